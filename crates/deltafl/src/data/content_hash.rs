//! BLAKE3 of a federation's contents.
//!
//! A hash of hashes, one per column, so that a streaming writer and a federation in memory agree.
//! The data of devices is hashed in the order of the devices, independent of its position.
//! Therefore a federation without some devices has the hash of its compact copy.

use super::{Federation, InputColumn, InputKind, TargetKind, WordVectors};

/// An incremental hash of a federation.
#[derive(Debug, Default)]
pub struct ContentHash {
    ids: blake3::Hasher,
    split: blake3::Hasher,
    count: blake3::Hasher,
    inputs: blake3::Hasher,
    labels: blake3::Hasher,
    words: blake3::Hasher,
}

impl ContentHash {
    /// Adds a device.
    pub fn device(&mut self, id: &str, split: u8, count: u64) {
        self.ids.update(id.as_bytes()).update(&[0]);
        self.split.update(&[split]);
        self.count.update(&count.to_le_bytes());
    }

    /// Adds inputs in their memory layout.
    pub fn inputs(&mut self, bytes: &[u8]) {
        self.inputs.update(bytes);
    }

    /// Adds targets in their stored form.
    pub fn targets(&mut self, bytes: &[u8]) {
        self.labels.update(bytes);
    }

    /// Adds a vocabulary.
    pub fn words<'a>(&mut self, words: impl Iterator<Item = &'a str>, vectors: &[f32]) {
        for word in words {
            self.words.update(word.as_bytes()).update(&[0]);
        }
        self.words.update(bytemuck::cast_slice(vectors));
    }

    /// Returns the hash in hexadecimal.
    pub fn finish(&self, kind: InputKind, targets: TargetKind) -> String {
        let mut hasher = blake3::Hasher::new();
        let targets = match targets {
            TargetKind::Classes(classes) => classes.to_string(),
            TargetKind::Values => "values".to_owned(),
        };
        hasher.update(format!("{kind:?} {targets}").as_bytes());
        for column in [&self.ids, &self.split, &self.count, &self.inputs, &self.labels, &self.words] {
            hasher.update(column.finalize().as_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }
}

impl Federation {
    /// Computes BLAKE3 over the kind, the device table and the columns. Reads everything.
    pub(crate) fn content_hash(&self) -> String {
        let mut hash = ContentHash::default();
        for k in self.devices() {
            hash.device(self.id(k), self.devices.split[k.place()], self.example_count(k));
        }
        for run in self.runs() {
            hash.inputs(&self.inputs.bytes()[run.inputs]);
            hash.targets(self.targets.bytes(run.labels));
        }
        if let Some(vectors) = &self.vectors {
            hash.words(self.word_list(vectors), &vectors.values);
        } else if let Some(words) = &self.words {
            hash.words(words.iter(), &[]);
        }
        hash.finish(self.kind, self.target)
    }

    /// Returns a word per vector, or the empty word if unknown.
    pub fn word_list(&self, vectors: &WordVectors) -> impl Iterator<Item = &str> + Clone {
        let known = |i: usize| self.words.as_ref().filter(|words| i < words.len());
        let rows = vectors.values.len() / vectors.dim.max(1);
        (0..rows).map(move |i| known(i).map_or("", |words| words.value(i)))
    }

    /// Returns the contiguous ranges of the columns that the devices cover, in their order.
    fn runs(&self) -> Vec<HashedRange> {
        let mut runs: Vec<HashedRange> = Vec::new();
        for k in 0..self.len() {
            let (start, count) = (self.devices.offset[k] as usize, self.devices.examples[k] as usize);
            let next = match self.kind {
                InputKind::Bytes { dim } => HashedRange::of_rows(start, count, dim),
                InputKind::Dense { dim } | InputKind::Tokens { len: dim, .. } => {
                    HashedRange::of_rows(start, count, 4 * dim)
                }
                InputKind::Windows { len, .. } => {
                    HashedRange { inputs: start..start + count + len, labels: 0..0 }
                }
            };
            match runs.last_mut() {
                Some(run) if run.inputs.end == next.inputs.start && run.labels.end == next.labels.start => {
                    run.inputs.end = next.inputs.end;
                    run.labels.end = next.labels.end;
                }
                _ => runs.push(next),
            }
        }
        runs
    }
}

/// Returns the bytes of the inputs and the entries of the labels.
struct HashedRange {
    inputs: std::ops::Range<usize>,
    labels: std::ops::Range<usize>,
}

impl HashedRange {
    fn of_rows(start: usize, count: usize, width: usize) -> Self {
        Self { inputs: start * width..(start + count) * width, labels: start..start + count }
    }
}

impl InputColumn {
    /// Returns the bytes of the column in memory.
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(values) | Self::Text(values) => values,
            Self::Dense(values) => bytemuck::cast_slice(values),
            Self::Tokens(ids) => bytemuck::cast_slice(ids),
        }
    }
}
