//! Sentiment140: tweets with a polarity, a device per author.
//!
//! Three kinds of files are read and distinguished by their contents: the original CSV of six
//! columns (polarity, id, date, query, author, text; Latin-1), a table with a header, and LEAF's
//! JSON. Polarity 0 is class 0, 4 is class 1 (1 in LEAF's files). Neutral tweets (2) are dropped.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::delimited::{Delimited, Dialect, column};
use super::error::{ImportError, ImportProblem};
use super::input::Input;
use super::json::JsonReader;
use super::leaf::{ShardSink, read_shard};
use super::spool::{SortedRows, Spool};
use super::word_vectors::Vocabulary;
use super::{ImportTarget, Imported, tokens};
use crate::FederationWriter;
use deltafl::data::{DeviceExamples, InputKind, Provenance, Split, TargetKind};

/// Words per example of the recurrent model.
pub const LENGTH: usize = 20;

/// The features of a tweet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TweetFeatures {
    /// Its first 20 words, padded at the end.
    #[default]
    Tokens,
    /// The mean of the vectors of all its words. An unknown word counts as zero, and so does a
    /// tweet without words.
    MeanVector,
}

/// The options of the importer.
#[derive(Clone, Debug)]
pub struct TweetOptions {
    /// The word vectors.
    pub vectors: PathBuf,
    /// The features.
    pub features: TweetFeatures,
    /// Whether words are looked up in lower case, unlike in the authors' released code.
    pub lowercase: bool,
    /// The columns of a table with a header; `None` for the original file and LEAF's.
    pub columns: Option<TweetColumns>,
}

/// The columns of a table of tweets.
#[derive(Clone, Debug)]
pub struct TweetColumns {
    /// The author.
    pub device: String,
    /// The polarity.
    pub label: String,
    /// The text.
    pub text: String,
}

/// Imports tweets.
pub fn import(
    paths: &[PathBuf],
    options: &TweetOptions,
    target: &ImportTarget,
) -> Result<Imported, ImportError> {
    let mut tweets = Tweets { spool: Spool::new(&target.parent())?, neutral: 0 };
    let mut source = Provenance::new("sent140");
    for path in paths {
        source.file(path);
        read(path, options, &mut tweets)?;
    }
    source.file(&options.vectors);
    source.option("lowercase", options.lowercase);
    source.dropped("neutral tweets", tweets.neutral);
    let mut texts = tweets.spool.finish()?;
    if texts.ids.is_empty() {
        return Err(ImportError::file(&paths[0], ImportProblem::Nothing("no tweets")));
    }
    let roster = target.roster(&texts.counts, &mut source)?;
    let occurring = occurring_words(&mut texts, &roster, options.lowercase)?;
    let vocabulary = Vocabulary::read(&options.vectors, &occurring)?;
    source.option("words that occur", occurring.len());
    source.option("words with a vector", vocabulary.words.len() - 1);
    TweetOutput { texts, vocabulary, lowercase: options.lowercase }.write(
        options.features,
        &roster,
        target,
        source,
    )
}

fn read(path: &Path, options: &TweetOptions, tweets: &mut Tweets) -> Result<(), ImportError> {
    let mut first = Vec::new();
    Input::open(path)?.line(&mut first)?;
    let is_json = first.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
    match &options.columns {
        _ if is_json => read_shard(path, &mut LeafTweets { tweets, id: String::new(), texts: Vec::new() }),
        None => tweets.read_original(path),
        Some(columns) => {
            let dialect = if first.contains(&b'\t') { Dialect::Tsv } else { Dialect::Csv };
            tweets.read_table(path, dialect, columns)
        }
    }
}

struct Tweets {
    spool: Spool,
    neutral: u64,
}

impl Tweets {
    fn read_original(&mut self, path: &Path) -> Result<(), ImportError> {
        let mut file = Delimited::open(path, Dialect::Csv, false)?;
        while file.next()? {
            if file.len() != 6 {
                let got = file.len() as u64;
                return Err(file.error(ImportProblem::Count {
                    what: "columns of Sentiment140",
                    expected: 6,
                    got,
                }));
            }
            self.push(&file, 4, 0, 5)?;
        }
        Ok(())
    }

    fn read_table(
        &mut self,
        path: &Path,
        dialect: Dialect,
        columns: &TweetColumns,
    ) -> Result<(), ImportError> {
        let mut file = Delimited::open(path, dialect, true)?;
        let header = file.header()?;
        let [device, label, text] = [&columns.device, &columns.label, &columns.text];
        let device = column(path, &header, device)?;
        let label = column(path, &header, label)?;
        let text = column(path, &header, text)?;
        while file.next()? {
            self.push(&file, device, label, text)?;
        }
        Ok(())
    }

    fn push(
        &mut self,
        file: &Delimited,
        device: usize,
        label: usize,
        text: usize,
    ) -> Result<(), ImportError> {
        let class = match file.field(label) {
            b"0" => 0,
            b"1" | b"4" => 1,
            b"2" => {
                self.neutral += 1;
                return Ok(());
            }
            other => {
                return Err(file.error(ImportProblem::Polarity(String::from_utf8_lossy(other).into_owned())));
            }
        };
        self.spool.text(&decode(file.field(device)), &decode(file.field(text)), class)
    }
}

/// Decodes UTF-8 if it is valid, and Latin-1 otherwise: the original file mixes both.
fn decode(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().map(|&byte| char::from(byte)).collect(),
    }
}

/// LEAF's tweets: `x` is [id, date, query, author, text, part], `y` is 0 or 1.
struct LeafTweets<'t> {
    tweets: &'t mut Tweets,
    id: String,
    texts: Vec<String>,
}

impl ShardSink for LeafTweets<'_> {
    fn device(&mut self, id: &str) -> u32 {
        id.clone_into(&mut self.id);
        self.texts.clear();
        0
    }

    fn example(&mut self, _: u32, json: &mut JsonReader) -> Result<(), ImportError> {
        let (mut field, mut text) = (0, String::new());
        json.array(|json| {
            field += 1;
            if field == 5 { json.string(&mut text) } else { json.skip() }
        })?;
        if field < 5 {
            return Err(json.error(ImportProblem::Count {
                what: "fields of a tweet",
                expected: 6,
                got: field,
            }));
        }
        self.texts.push(text);
        Ok(())
    }

    fn label(&mut self, json: &mut JsonReader) -> Result<u32, ImportError> {
        match json.label()? {
            class @ (0 | 1) => Ok(class),
            other => Err(json.error(ImportProblem::Polarity(other.to_string()))),
        }
    }

    fn labels(&mut self, labels: &[u32]) -> Result<(), ImportError> {
        for (text, &label) in self.texts.iter().zip(labels) {
            self.tweets.spool.text(&self.id, text, label)?;
        }
        Ok(())
    }
}

type Roster = [(usize, Split)];

fn occurring_words(
    texts: &mut SortedRows,
    roster: &Roster,
    lowercase: bool,
) -> Result<HashSet<String>, ImportError> {
    let mut words = HashSet::new();
    for &(device, _) in roster {
        texts.for_each_text(device, |text, _| {
            let text = cased(text, lowercase);
            for token in tokens(&text) {
                if !words.contains(token) {
                    words.insert(token.to_owned());
                }
            }
        })?;
    }
    Ok(words)
}

fn cased(text: &str, lowercase: bool) -> std::borrow::Cow<'_, str> {
    if lowercase { text.to_lowercase().into() } else { text.into() }
}

/// Tweets that are being written to the folder.
struct TweetOutput {
    texts: SortedRows,
    vocabulary: Vocabulary,
    lowercase: bool,
}

impl TweetOutput {
    fn write(
        mut self,
        features: TweetFeatures,
        roster: &Roster,
        target: &ImportTarget,
        mut source: Provenance,
    ) -> Result<Imported, ImportError> {
        let kind = match features {
            TweetFeatures::Tokens => {
                InputKind::Tokens { len: LENGTH, vocabulary: self.vocabulary.words.len() }
            }
            TweetFeatures::MeanVector => InputKind::Dense { dim: self.vocabulary.vectors.dim },
        };
        let name = match features {
            TweetFeatures::Tokens => "tokens",
            TweetFeatures::MeanVector => "mean-vector",
        };
        source.option("features", name);
        let mut writer =
            FederationWriter::create(&target.out, target.heading("sent140", kind, TargetKind::Classes(2)))?;
        target.record(&mut writer, source);
        if features == TweetFeatures::Tokens {
            writer.words(self.vocabulary.words.iter().map(String::as_str), &self.vocabulary.vectors)?;
        }
        let (mut words, mut means, mut labels) = (Vec::new(), Vec::new(), Vec::new());
        for &(device, split) in roster {
            words.clear();
            means.clear();
            labels.clear();
            let (vocabulary, lowercase) = (&self.vocabulary, self.lowercase);
            self.texts.for_each_text(device, |text, label| {
                labels.push(label);
                let text = cased(text, lowercase);
                match features {
                    TweetFeatures::Tokens => push_tokens(vocabulary, &text, &mut words),
                    TweetFeatures::MeanVector => push_mean(vocabulary, &text, &mut means),
                }
            })?;
            let inputs = match features {
                TweetFeatures::Tokens => DeviceExamples::Tokens(&words),
                TweetFeatures::MeanVector => DeviceExamples::Dense(&means),
            };
            writer.push(&self.texts.ids[device], split, inputs, &labels)?;
        }
        Ok(Imported { manifest: writer.finish()?, out: target.out.clone() })
    }
}

fn push_tokens(vocabulary: &Vocabulary, text: &str, out: &mut Vec<u32>) {
    let end = out.len() + LENGTH;
    out.extend(tokens(text).take(LENGTH).map(|word| vocabulary.token(word)));
    out.resize(end, 0);
}

fn push_mean(vocabulary: &Vocabulary, text: &str, out: &mut Vec<f32>) {
    let mut sum = vec![0.0f64; vocabulary.vectors.dim];
    let mut count = 0u32;
    for word in tokens(text) {
        count += 1;
        let vector = vocabulary.vector(vocabulary.token(word));
        sum.iter_mut().zip(vector).for_each(|(sum, &x)| *sum += f64::from(x));
    }
    out.extend(sum.iter().map(|sum| (sum / f64::from(count.max(1))) as f32));
}
