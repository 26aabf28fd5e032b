//! Good files with something wrong in them: no importer panics, and what an importer accepts, opens and verifies.
//!
//! What the fuzz targets do without end, this does a hundred and fifty times per format, always the same.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float32Array, Int64Array, RecordBatch, StringArray};
use deltafl::stream::{Purpose, Stream};
use deltafl_data::import::{
    Features, ImportError, ImportTarget, Imported, auto, idx, images, leaf, npz, parquet, sent140,
    shakespeare, table,
};
use tempfile::TempDir;

const MUTANTS: u64 = 150;

/// The file with a few bytes changed, cut, doubled or moved.
fn mutant(good: &[u8], stream: &mut Stream) -> Vec<u8> {
    let mut bytes = good.to_vec();
    for _ in 0..=stream.below(3) {
        if bytes.is_empty() {
            break;
        }
        let at = stream.below(bytes.len() as u64) as usize;
        let len = 1 + stream.below(8.min((bytes.len() - at) as u64)) as usize;
        match stream.below(6) {
            0 => bytes[at] ^= 1 << stream.below(8),
            1 => bytes[at] = [0, 0xff, 0x7f, b'"', b'\n', b'9', b'-', b'['][stream.below(8) as usize],
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..at + len)),
            4 => {
                let piece = bytes[at..at + len].to_vec();
                bytes.splice(at..at, piece);
            }
            _ => {
                let piece = bytes[at..at + len].to_vec();
                let to = stream.below(bytes.len() as u64) as usize;
                bytes.splice(to..to, piece);
            }
        }
    }
    bytes
}

fn survives(good: &[u8], import: impl Fn(&Path, &ImportTarget) -> Result<Imported, ImportError>) {
    let mut accepted = 0;
    for round in 0..=MUTANTS {
        let mut stream = Stream::new(1, Purpose::Synthesis, round, 0);
        let bytes = if round == 0 { good.to_vec() } else { mutant(good, &mut stream) };
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, bytes).unwrap();
        match import(&path, &ImportTarget::new(dir.path().join("out"))) {
            Ok(imported) => {
                accepted += 1;
                imported.open().unwrap().verify().unwrap();
            }
            Err(error) => {
                assert_ne!(round, 0, "the good file is refused: {error}");
                assert_eq!(
                    fs::read_dir(dir.path()).unwrap().count(),
                    1,
                    "something half-made is left: {error}"
                );
            }
        }
    }
    assert!(accepted > 0);
}

#[test]
fn leaf_survives() {
    let good = br#"{"users": ["a", "b"], "num_samples": [2, 1], "hierarchies": [null],
        "user_data": {"a": {"x": [[0.5, -1.25e-3], [1, 0]], "y": [1, 0]}, "b\u00e9": {"y": [3], "x": [[7, 8]]}}}"#;
    let good = String::from_utf8_lossy(good).replace(r#""a", "b"]"#, r#""a"]"#).replace("[2, 1]", "[2]");
    survives(good.as_bytes(), |path, target| leaf::import(&[path.to_owned()], Features::Auto, target));
}

#[test]
fn tables_survive() {
    let columns = table::TableColumns {
        device: Some("d".into()),
        label: "y".into(),
        features: Vec::new(),
        ..table::TableColumns::default()
    };
    let good = b"d,y,x1,x2\na,0,0.5,1\n\"b, c\",1,2,3\na,2,1e-3,-4\n";
    survives(good, |path, target| table::import(path, table::Dialect::Csv, &columns, Features::Auto, target));
}

#[test]
fn json_lines_survive() {
    let columns = table::TableColumns {
        device: Some("d".into()),
        label: "y".into(),
        texts: vec!["t".into()],
        ..table::TableColumns::default()
    };
    let good = br#"{"d": "a", "y": "no", "t": "a bad film", "n": {"m": [1, 2]}}
{"d": 7, "y": "yes", "t": "caf\u00e9 \ud83d\ude00"}
"#;
    survives(good, |path, target| {
        let format = table::TableFormat::JsonLines;
        table::import_files(&[path.to_owned()], format, &columns, Features::Auto, target)
    });
}

#[test]
fn inspected_tables_survive() {
    let good = b"user;day;area;kind;text;y\na;2024-01-31;1,5;x;a good and long text;1\na;2024-02-01;;y;another good text;0\n\
        b;2024-02-02;-1.234,5;;a third text of words;1\nb;;2;x;the last of the texts;0\n";
    survives(good, |path, target| {
        let paths = [path.to_owned()];
        let found = auto::inspect(&paths, &auto::AutoOptions::default())?;
        let target = ImportTarget { regression: found.regression, ..target.clone() };
        table::import_files(&paths, found.format, &found.table, Features::Auto, &target)
    });
}

/// A grey JPEG of 8 × 8 pixels, as libjpeg writes it.
const JPEG: &[u8] = include_bytes!("grey.jpg");

#[test]
fn images_survive() {
    let mut png = Vec::new();
    let mut encoder = png::Encoder::new(&mut png, 2, 2);
    encoder.set_color(png::ColorType::Rgba);
    encoder.write_header().unwrap().write_image_data(&[7; 16]).unwrap();
    for (name, good) in [("1.png", &png[..]), ("1.jpg", JPEG)] {
        survives(good, |path, target| {
            let folder = tempfile::tempdir().unwrap();
            let class = folder.path().join("class");
            fs::create_dir(&class).unwrap();
            fs::copy(path, class.join(name)).unwrap();
            images::import_folder(folder.path(), images::ImageOptions::default(), target)
        });
    }
}

#[test]
fn idx_survives() {
    let good = [0, 0, 8, 1, 0, 0, 0, 5, 1, 2, 3, 4, 5];
    survives(&good, |path, target| {
        let files = idx::IdxFiles { images: path.to_owned(), labels: path.to_owned(), devices: None };
        idx::import(&files, target)
    });
}

#[test]
fn npz_survives() {
    let array = |descr: &str, shape: &str, bytes: &[u8]| {
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
        let start = [b"\x93NUMPY\x01\x00".as_slice(), &(header.len() as u16).to_le_bytes()].concat();
        [&start, header.as_bytes(), bytes].concat()
    };
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    // Stored, so that a change reaches the array and not only the checksum.
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, bytes) in
        [("x.npy", array("<f4", "(2, 2)", &[0; 16])), ("y.npy", array("<i2", "(2,)", &[1, 0, 0, 0]))]
    {
        writer.start_file(name, options).unwrap();
        writer.write_all(&bytes).unwrap();
    }
    let arrays = npz::NpzArrays { x: "x".into(), y: "y".into(), device: None };
    survives(&writer.finish().unwrap().into_inner(), |path, target| {
        npz::import(path, &arrays, Features::Auto, target)
    });
}

#[test]
fn parquet_survives() {
    let batch = RecordBatch::try_from_iter([
        ("d", Arc::new(StringArray::from(vec!["a", "b", "a"])) as ArrayRef),
        ("x", Arc::new(Float32Array::from(vec![0.5, 1.5, 2.5])) as ArrayRef),
        ("y", Arc::new(Int64Array::from(vec![0, 1, 2])) as ArrayRef),
    ])
    .unwrap();
    let mut writer = ::parquet::arrow::ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    let good = writer.into_inner().unwrap();
    let columns = table::TableColumns {
        device: Some("d".into()),
        label: "y".into(),
        features: Vec::new(),
        ..table::TableColumns::default()
    };
    survives(&good, |path, target| parquet::import(&[path.to_owned()], &columns, Features::Auto, target));
}

#[test]
fn tweets_survive() {
    let good =
        b"\"4\",\"1\",\"d\",\"q\",\"ann\",\"GOOD, good!\"\n\"0\",\"2\",\"d\",\"q\",\"bob\",\"bad caf\xe9\"\n";
    survives(good, |path, target| {
        let vectors = tempfile::NamedTempFile::new().unwrap();
        fs::write(vectors.path(), "good 1 0\nbad -1 0\n").unwrap();
        let options = sent140::TweetOptions {
            vectors: vectors.path().to_owned(),
            features: sent140::TweetFeatures::MeanVector,
            lowercase: true,
            columns: None,
        };
        sent140::import(&[path.to_owned()], &options, target)
    });
}

#[test]
fn shakespeare_survives() {
    let good = b"header\n\n\nby William Shakespeare\n\n\n\n\nTITLE\n\nby William Shakespeare\n\
        \x20 ANNE. Speak the speech, I pray you,\n    as I pronounced it\n    to you.\n\
        \x20 BOB. No.\n  BOB. I say no!\n  BOB. Never, never, never.\n";
    survives(good, shakespeare::import);
}
