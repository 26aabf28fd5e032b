//! Columns of text: a vocabulary from the train devices, and texts as sequences of its words.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use deltafl::data::{
    DataContract, DeviceExamples, InputKind, Provenance, Split, TableCoding, TargetKind, TextCoding,
    TextUnit, WordVectors,
};

use super::error::{ImportError, ImportProblem};
use super::rows::TableFiles;
use super::spool::{SortedRows, Spool};
use super::tokens::tokens;
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
}

impl TextOptions {
    /// Most words of an example if no length is given.
    pub const LONGEST: usize = 200;
}

impl Default for TextOptions {
    fn default() -> Self {
        Self { unit: TextUnit::Words, keep_case: false, vocabulary: 10_000, length: None, vectors: None }
    }
}

/// The vocabulary of texts: to be collected, or given.
pub(crate) enum TextTable {
    /// Columns whose vocabulary is collected.
    New(Vec<String>, TextOptions),
    /// A given vocabulary.
    Given { coding: TextCoding, words: Vec<String>, len: usize },
}

impl TextTable {
    /// Returns the vocabulary of a contract.
    pub(crate) fn like(
        table: &TableFiles,
        contract: &DataContract,
        coding: TextCoding,
        len: usize,
    ) -> Result<Self, ImportError> {
        if contract.words.is_empty() {
            return Err(ImportError::file(table.path(), ImportProblem::NoCoding));
        }
        Ok(Self::Given { coding, words: contract.words.clone(), len })
    }
}

/// Texts with labels on the way to a federation.
pub(crate) struct TextRows {
    pub(crate) spool: Spool,
    pub(crate) class_names: Vec<String>,
    pub(crate) coding: TableCoding,
    pub(crate) texts: TextTable,
}

/// A vocabulary with the length of an example.
struct TextEncoder {
    coding: TextCoding,
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
            TextTable::Given { coding, words, len } => TextEncoder::new(coding, words, None, len),
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
            texts.for_each_text(device, |text, label| {
                labels.push(label);
                encoder.push(text, &mut ids);
            })?;
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
    let skip_unknown = options.vectors.is_none();
    let coding = TextCoding { columns, unit: options.unit, lowercase: !options.keep_case, skip_unknown };
    let (mut counts, mut longest): (HashMap<String, u64>, usize) = (HashMap::new(), 1);
    for &(device, split) in roster {
        texts.for_each_text(device, |text, _| {
            let mut units = 0;
            for_each_unit(&coding, text, |unit| {
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
            longest = longest.max(units);
        })?;
    }
    let len = options.length.unwrap_or(longest.min(TextOptions::LONGEST)).max(1);
    source.option("words of the train devices", counts.len());
    if longest > len {
        source.option("texts are cut after", format!("{len} words"));
    }
    if let Some(path) = &options.vectors {
        let occurring: HashSet<String> = counts.into_keys().collect();
        let vocabulary = Vocabulary::read(path, &occurring)?;
        source.option("words with a vector", vocabulary.words.len() - 1);
        source.file(path);
        return Ok(TextEncoder::new(coding, vocabulary.words, Some(vocabulary.vectors), len));
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
    Ok(TextEncoder::new(coding, words, None, len))
}

/// Calls a function with each unit of a text.
fn for_each_unit(coding: &TextCoding, text: &str, mut each: impl FnMut(&str)) {
    let text: Cow<'_, str> = if coding.lowercase { text.to_lowercase().into() } else { text.into() };
    match coding.unit {
        TextUnit::Words => tokens(&text).for_each(each),
        TextUnit::Characters => {
            let mut buffer = [0; 4];
            text.chars().for_each(|character| each(character.encode_utf8(&mut buffer)));
        }
    }
}

impl TextEncoder {
    fn new(coding: TextCoding, words: Vec<String>, vectors: Option<WordVectors>, len: usize) -> Self {
        let index = words.iter().cloned().zip(0..).skip(1).collect();
        Self { coding, words, index, vectors, len }
    }

    /// Appends the words of a text, padded with 0.
    fn push(&self, text: &str, out: &mut Vec<u32>) {
        let end = out.len() + self.len;
        for_each_unit(&self.coding, text, |unit| {
            let id = self.index.get(unit).copied().unwrap_or(0);
            if out.len() < end && (id > 0 || !self.coding.skip_unknown) {
                out.push(id);
            }
        });
        out.resize(end, 0);
    }
}
