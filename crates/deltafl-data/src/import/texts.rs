//! Columns of text: a vocabulary from the train devices, and texts as sequences of its words.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use deltafl::data::{
    DataContract, DeviceExamples, InputKind, Provenance, Split, TableCoding, TargetKind, TextCoding,
    TextUnit, WordVectors,
};

use super::error::{ImportError, ImportProblem};
use super::input::Input;
use super::rows::TableFiles;
use super::spool::{SortedRows, Spool};
use super::text_units::{LONGEST_TOKENIZER, UnitSplitter};
use super::word_vectors::Vocabulary;
use super::{ImportTarget, Imported};
use crate::FederationWriter;

/// The conversion of texts.
#[derive(Clone, Debug)]
pub struct TextOptions {
    /// The units.
    pub unit: TextUnit,
    /// Whether letters keep their case.
    pub keep_case: bool,
    /// The largest number of words, with word 0. The most frequent words are kept.
    pub vocabulary: usize,
    /// Words per example; those of the longest text, but at most [`TextOptions::LONGEST`], if `None`.
    pub length: Option<usize>,
    /// Frozen word vectors in GloVe's format; the vectors are trained if `None`.
    pub vectors: Option<PathBuf>,
    /// The file `tokenizer.json` of [`TextUnit::Tokens`].
    pub tokenizer: Option<PathBuf>,
}

impl TextOptions {
    /// Most words of an example if no length is given.
    pub const LONGEST: usize = 200;
}

impl Default for TextOptions {
    fn default() -> Self {
        Self {
            unit: TextUnit::Words,
            keep_case: false,
            vocabulary: 10_000,
            length: None,
            vectors: None,
            tokenizer: None,
        }
    }
}

/// The vocabulary of texts: to be collected, or given.
pub(crate) enum TextTable {
    /// Columns whose vocabulary is collected.
    New(Vec<String>, TextOptions),
    /// A given vocabulary.
    Given { coding: TextCoding, splitter: UnitSplitter, words: Vec<String>, len: usize },
}

impl TextTable {
    /// Returns the vocabulary of a contract.
    pub(crate) fn like(
        table: &TableFiles,
        contract: &DataContract,
        coding: TextCoding,
        len: usize,
    ) -> Result<Self, ImportError> {
        let failed = |problem| ImportError::file(table.path(), problem);
        if contract.words.is_empty() {
            return Err(failed(ImportProblem::NoCoding));
        }
        let splitter = UnitSplitter::new(&coding).map_err(failed)?;
        Ok(Self::Given { coding, splitter, words: contract.words.clone(), len })
    }
}

/// Texts with labels on the way to a federation.
pub(crate) struct TextRows {
    /// The table, for errors.
    pub(crate) path: PathBuf,
    pub(crate) spool: Spool,
    pub(crate) class_names: Vec<String>,
    pub(crate) coding: TableCoding,
    pub(crate) texts: TextTable,
}

/// A vocabulary with the length of an example.
struct TextEncoder {
    coding: TextCoding,
    splitter: UnitSplitter,
    words: Vec<String>,
    index: HashMap<String, u32>,
    vectors: Option<WordVectors>,
    len: usize,
}

impl TextRows {
    /// Writes the federation.
    pub(crate) fn write(
        self,
        target: &ImportTarget,
        mut source: Provenance,
    ) -> Result<Imported, ImportError> {
        let mut texts = self.spool.finish()?;
        let kind_of_target = match target.regression {
            true => TargetKind::Values,
            false => TargetKind::Classes(target.classes(texts.highest_label())?.max(self.class_names.len())),
        };
        let roster = target.given_roster(&texts.counts, &texts.splits, &mut source)?;
        let encoder = match self.texts {
            TextTable::Given { coding, splitter, words, len } => {
                TextEncoder::new(coding, splitter, words, None, len)
            }
            TextTable::New(columns, options) => collect(&mut texts, &roster, columns, &options, &mut source)?,
        };
        let kind = InputKind::Tokens { len: encoder.len, vocabulary: encoder.words.len() };
        let heading = target.heading(&source.importer, kind, kind_of_target);
        let mut writer = FederationWriter::create(&target.out, heading)?;
        let coding = TableCoding { text: Some(encoder.coding.clone()), ..self.coding };
        target.record(&mut writer, source);
        writer.class_names(self.class_names).coding(coding);
        let words = encoder.words.iter().map(String::as_str);
        match &encoder.vectors {
            Some(vectors) => writer.words(words, vectors)?,
            None => writer.word_list(words)?,
        }
        let (mut ids, mut labels) = (Vec::new(), Vec::new());
        for &(device, split) in &roster {
            ids.clear();
            labels.clear();
            let mut failed = None;
            texts.for_each_text(device, |text, label| {
                labels.push(label);
                failed = encoder.push(text, &mut ids).err().or(failed.take());
            })?;
            check(failed, &self.path)?;
            let (id, inputs) = (&texts.ids[device], DeviceExamples::Tokens(&ids));
            if target.regression {
                let values: Vec<f32> = labels.iter().map(|&bits| f32::from_bits(bits)).collect();
                writer.push(id, split, inputs, &values)?;
            } else {
                writer.push(id, split, inputs, &labels)?;
            }
        }
        Ok(Imported::new(writer.finish()?, target))
    }
}

/// Collects the vocabulary of the train devices.
fn collect(
    texts: &mut SortedRows,
    roster: &[(usize, Split)],
    columns: Vec<String>,
    options: &TextOptions,
    source: &mut Provenance,
) -> Result<TextEncoder, ImportError> {
    let coding = new_coding(columns, options)?;
    let path = options.tokenizer.as_deref().unwrap_or(Path::new("tokenizer.json"));
    let splitter = UnitSplitter::new(&coding).map_err(|problem| ImportError::file(path, problem))?;
    let (mut counts, mut longest): (HashMap<String, u64>, usize) = (HashMap::new(), 1);
    for &(device, split) in roster {
        let mut failed = None;
        texts.for_each_text(device, |text, _| {
            let mut units = 0;
            let divided = splitter.for_each(text, |unit| {
                units += 1;
                if split != Split::Train {
                    return;
                }
                match counts.get_mut(unit) {
                    Some(count) => *count += 1,
                    None => {
                        counts.insert(unit.to_owned(), 1);
                    }
                }
            });
            failed = divided.err().or(failed.take());
            longest = longest.max(units);
        })?;
        check(failed, path)?;
    }
    let len = options.length.unwrap_or(longest.min(TextOptions::LONGEST)).max(1);
    source.option("words of the train devices", counts.len());
    if longest > len {
        source.option("texts are cut after", format!("{len} words"));
    }
    if let Some(path) = &options.tokenizer {
        source.file(path);
    }
    if let Some(path) = &options.vectors {
        let occurring: HashSet<String> = counts.into_keys().collect();
        let vocabulary = Vocabulary::read(path, &occurring)?;
        source.option("words with a vector", vocabulary.words.len() - 1);
        source.file(path);
        return Ok(TextEncoder::new(coding, splitter, vocabulary.words, Some(vocabulary.vectors), len));
    }
    let mut by_count: Vec<(String, u64)> = counts.into_iter().collect();
    by_count.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    by_count.truncate(options.vocabulary.max(2) - 1);
    source.option("vocabulary", by_count.len());
    let words = std::iter::once(String::new()).chain(by_count.into_iter().map(|(word, _)| word));
    // A model needs at least one word besides padding.
    let mut words: Vec<String> = words.collect();
    if words.len() == 1 {
        words.push("(none)".to_owned());
    }
    Ok(TextEncoder::new(coding, splitter, words, None, len))
}

/// Returns the coding of an import with its own vocabulary.
fn new_coding(columns: Vec<String>, options: &TextOptions) -> Result<TextCoding, ImportError> {
    let tokenizer = options.tokenizer.as_deref().map(read_tokenizer).transpose()?;
    let (unit, lowercase) = match tokenizer {
        // The tokenizer has its own normalisation.
        Some(_) => (TextUnit::Tokens, false),
        None => (options.unit, !options.keep_case),
    };
    Ok(TextCoding { columns, unit, lowercase, skip_unknown: options.vectors.is_none(), tokenizer })
}

fn read_tokenizer(path: &Path) -> Result<String, ImportError> {
    let bytes = Input::read_all(path, LONGEST_TOKENIZER)?;
    String::from_utf8(bytes).map_err(|_| ImportError::file(path, ImportProblem::Utf8))
}

/// Returns the problem of a file, if there is one.
fn check(problem: Option<ImportProblem>, path: &Path) -> Result<(), ImportError> {
    problem.map_or(Ok(()), |problem| Err(ImportError::file(path, problem)))
}

impl TextEncoder {
    fn new(
        coding: TextCoding,
        splitter: UnitSplitter,
        words: Vec<String>,
        vectors: Option<WordVectors>,
        len: usize,
    ) -> Self {
        let index = words.iter().cloned().zip(0..).skip(1).collect();
        Self { coding, splitter, words, index, vectors, len }
    }

    /// Appends the words of a text, padded with 0.
    fn push(&self, text: &str, out: &mut Vec<u32>) -> Result<(), ImportProblem> {
        let end = out.len() + self.len;
        let divided = self.splitter.for_each(text, |unit| {
            let id = self.index.get(unit).copied().unwrap_or(0);
            if out.len() < end && (id > 0 || !self.coding.skip_unknown) {
                out.push(id);
            }
        });
        out.resize(end, 0);
        divided
    }
}
