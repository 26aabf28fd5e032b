//! Labelled texts that come in any order, put in the order of their devices.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::error::ImportError;

/// Texts in an unnamed file beside the target.
pub(crate) struct TextSpool {
    folder: PathBuf,
    file: BufWriter<File>,
    end: u64,
    pub(crate) ids: Vec<String>,
    index: HashMap<String, u32>,
    texts: Vec<Text>,
}

#[derive(Clone, Copy)]
struct Text {
    device: u32,
    len: u32,
    start: u64,
    label: u8,
}

impl TextSpool {
    pub(crate) fn new(folder: &Path) -> Result<Self, ImportError> {
        let create = || {
            std::fs::create_dir_all(folder)?;
            tempfile::tempfile_in(folder)
        };
        let file = create().map_err(|source| ImportError::file(folder, source))?;
        Ok(Self {
            folder: folder.to_owned(),
            file: BufWriter::new(file),
            end: 0,
            ids: Vec::new(),
            index: HashMap::new(),
            texts: Vec::new(),
        })
    }

    /// Appends a text; texts are no longer than a line of input.
    pub(crate) fn push(&mut self, id: &str, text: &str, label: u8) -> Result<(), ImportError> {
        let device = match self.index.get(id) {
            Some(&device) => device,
            None => {
                let device = self.ids.len() as u32;
                self.ids.push(id.to_owned());
                self.index.insert(id.to_owned(), device);
                device
            }
        };
        self.texts.push(Text { device, len: text.len() as u32, start: self.end, label });
        self.end += text.len() as u64;
        self.file.write_all(text.as_bytes()).map_err(|source| ImportError::file(&self.folder, source))
    }

    /// Nothing more will come.
    pub(crate) fn finish(self) -> Result<SortedTexts, ImportError> {
        let folder = self.folder;
        let file = self.file.into_inner().map_err(|error| ImportError::file(&folder, error.into_error()))?;
        let mut texts = self.texts;
        texts.sort_by_key(|text| text.device); // stable: a device keeps the order of its texts
        let mut of_device = vec![0..0; self.ids.len()];
        for (i, text) in texts.iter().enumerate() {
            let range = &mut of_device[text.device as usize];
            *range = if range.end == 0 { i } else { range.start }..i + 1;
        }
        Ok(SortedTexts { folder, file, ids: self.ids, texts, of_device })
    }
}

/// The texts, device by device.
pub(crate) struct SortedTexts {
    folder: PathBuf,
    file: File,
    pub(crate) ids: Vec<String>,
    texts: Vec<Text>,
    of_device: Vec<std::ops::Range<usize>>,
}

impl SortedTexts {
    /// Texts of each device.
    pub(crate) fn counts(&self) -> Vec<u64> {
        self.of_device.iter().map(|range| range.len() as u64).collect()
    }

    /// Calls `each` with the texts of a device and their labels.
    pub(crate) fn each(&mut self, device: usize, mut each: impl FnMut(&str, u8)) -> Result<(), ImportError> {
        let mut bytes = Vec::new();
        for text in &self.texts[self.of_device[device].clone()] {
            bytes.resize(text.len as usize, 0);
            let read =
                self.file.seek(SeekFrom::Start(text.start)).and_then(|_| self.file.read_exact(&mut bytes));
            read.map_err(|source| ImportError::file(&self.folder, source))?;
            each(&String::from_utf8_lossy(&bytes), text.label);
        }
        Ok(())
    }
}
