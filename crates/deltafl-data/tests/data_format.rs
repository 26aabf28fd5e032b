//! The native format: what is written is what is mapped, other programs read it, and a damaged folder is an
//! error and never a panic.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::Command;

use deltafl::data::{
    BatchBuffer, DeviceExamples, DeviceSplit, Federation, FederationBuilder, FederationIndex, InputKind,
    Split, TargetKind, Unverified, WordVectors,
};
use deltafl::task::Targets;
use deltafl_data::{FederationWriter, Heading, Manifest, OpenError, SaveError};
use tempfile::TempDir;

fn images() -> Federation {
    let mut builder = FederationBuilder::new("images", InputKind::Bytes { dim: 3 }, 10);
    builder.push("anna", Split::Train, DeviceExamples::Bytes(&[0, 1, 2, 253, 254, 255]), &[3, 9]).unwrap();
    builder.push("боря", Split::Test, DeviceExamples::Bytes(&[7, 8, 9]), &[0]).unwrap();
    builder.push("c", Split::Validation, DeviceExamples::Bytes(&[4; 9]), &[1, 2, 1]).unwrap();
    builder.build()
}

fn dense() -> Federation {
    let mut builder = FederationBuilder::new("dense", InputKind::Dense { dim: 2 }, 2);
    builder
        .push("a", Split::Train, DeviceExamples::Dense(&[1.5, -2.0, f32::MIN_POSITIVE, 3e30]), &[1, 0])
        .unwrap();
    builder.push("b", Split::Test, DeviceExamples::Dense(&[0.0, 0.1]), &[1]).unwrap();
    builder.build()
}

fn words() -> Federation {
    let mut builder = FederationBuilder::new("words", InputKind::Tokens { len: 2, vocabulary: 3 }, 2);
    builder.words(vec!["".into(), "good".into(), "bad".into()]);
    builder.vectors(WordVectors { dim: 2, values: vec![0.0, 0.0, 1.0, 0.5, -1.0, -0.5].into() });
    builder.push("a", Split::Train, DeviceExamples::Tokens(&[1, 2, 0, 0]), &[1, 0]).unwrap();
    builder.build()
}

fn text() -> Federation {
    let mut builder = FederationBuilder::new("text", InputKind::Windows { len: 2, alphabet: 4 }, 4);
    builder.symbols(" abc");
    builder.push("role", Split::Train, DeviceExamples::Text(&[1, 2, 3, 0, 1]), Targets::IN_TEXT).unwrap();
    builder.push("other", Split::Test, DeviceExamples::Text(&[3, 3, 1]), Targets::IN_TEXT).unwrap();
    builder.build()
}

/// Everything a model could see of a federation.
fn contents(federation: &Federation) -> Vec<String> {
    federation
        .devices()
        .map(|k| {
            let examples = federation.examples(k);
            let mut buffer = BatchBuffer::default();
            let batch = buffer.gather(&examples, 0..examples.len());
            format!("{} {:?} {:?}", federation.id(k), federation.split_of(k), batch)
        })
        .collect()
}

#[test]
fn a_saved_federation_opens_to_what_it_was() {
    for federation in [images(), dense(), words(), text()] {
        let dir = TempDir::new().unwrap();
        let target = dir.path().join("nested/federation");
        let manifest = deltafl_data::save(&federation, &target).unwrap();
        let opened = deltafl_data::open(&target).unwrap();
        assert_eq!(contents(&opened), contents(&federation));
        assert_eq!((opened.name(), opened.kind()), (federation.name(), federation.kind()));
        assert_eq!(opened.classes(), federation.classes());
        assert_eq!(opened.hash(), federation.hash(), "{}", opened.name());
        assert_eq!(manifest.hash, federation.hash());
        assert_eq!(opened.symbols(), federation.symbols());
        assert_eq!(opened.words(), federation.words());
        assert_eq!(opened.vectors().map(|v| &v.values), federation.vectors().map(|v| &v.values));
        opened.verify().unwrap();
    }
}

#[test]
fn a_federation_without_its_small_devices_saves_compactly() {
    let dir = TempDir::new().unwrap();
    let split = images().split_devices(&DeviceSplit { min_examples: 1, ..DeviceSplit::default() }).unwrap();
    deltafl_data::save(&split, dir.path().join("f")).unwrap();
    let opened = deltafl_data::open(dir.path().join("f")).unwrap();
    assert_eq!(contents(&opened), contents(&split));
    assert_eq!(opened.device_split(), split.device_split());
    opened.verify().unwrap();
    let manifest = Manifest::read(&dir.path().join("f")).unwrap();
    assert_eq!((manifest.devices, manifest.examples), (2, 5));
}

#[test]
fn a_writer_that_is_dropped_leaves_nothing() {
    let dir = TempDir::new().unwrap();
    let heading =
        Heading { name: "x".into(), kind: InputKind::Bytes { dim: 1 }, target: TargetKind::Classes(2) };
    let mut writer = FederationWriter::create(dir.path().join("f"), heading.clone()).unwrap();
    writer.push("a", Split::Train, DeviceExamples::Bytes(&[1]), &[0]).unwrap();
    let refused = writer.push("a", Split::Train, DeviceExamples::Bytes(&[1]), &[0]);
    assert!(matches!(refused, Err(SaveError::Device(_))));
    drop(writer);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    let empty = FederationWriter::create(dir.path().join("f"), heading).unwrap();
    assert!(matches!(empty.finish(), Err(SaveError::NoDevices)));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_folder_with_something_in_it_is_not_overwritten() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("thesis.tex"), "years of work").unwrap();
    assert!(matches!(deltafl_data::save(&images(), dir.path()), Err(SaveError::Exists { .. })));
}

/// The files of a saved federation, and a way to open it with one of them changed.
struct Damage {
    dir: TempDir,
}

impl Damage {
    fn new(federation: &Federation) -> Self {
        let dir = TempDir::new().unwrap();
        deltafl_data::save(federation, dir.path().join("f")).unwrap();
        Self { dir }
    }

    fn folder(&self) -> std::path::PathBuf {
        self.dir.path().join("f")
    }

    fn read(&self, file: &str) -> Vec<u8> {
        fs::read(self.folder().join(file)).unwrap()
    }

    /// Opens with the file changed, walks everything, and puts the file back.
    fn open_with(&self, file: &str, bytes: &[u8]) -> Result<(), String> {
        let path = self.folder().join(file);
        let original = fs::read(&path).unwrap();
        fs::write(&path, bytes).unwrap();
        let result = deltafl_data::open(self.folder()).map_err(|error| error.to_string());
        let result = result.map(|federation| {
            contents(&federation);
            let _ = federation.verify();
        });
        fs::write(&path, original).unwrap();
        result.map_err(|error| error.replace(&*self.folder().to_string_lossy(), "DIR"))
    }
}

#[test]
fn a_truncated_file_is_an_error() {
    let damage = Damage::new(&words());
    for file in ["devices.arrow", "examples.arrow", "words.arrow"] {
        let whole = damage.read(file);
        for len in (0..whole.len()).step_by(17) {
            damage.open_with(file, &whole[..len]).unwrap_err();
        }
        damage.open_with(file, &whole).unwrap();
    }
}

#[test]
fn a_changed_byte_never_panics() {
    for (federation, flip) in [(images(), 0x80), (text(), 0x01)] {
        let damage = Damage::new(&federation);
        for file in ["devices.arrow", "examples.arrow"] {
            let whole = damage.read(file);
            for at in (0..whole.len()).step_by(7) {
                let mut changed = whole.clone();
                changed[at] ^= flip;
                let _ = damage.open_with(file, &changed);
            }
        }
    }
}

#[test]
fn changed_contents_are_found_by_their_hash() {
    let damage = Damage::new(&images());
    let path = damage.folder().join("examples.arrow");
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(6).position(|w| w == [0, 1, 2, 253, 254, 255]).unwrap();
    bytes[at] = 77;
    fs::write(&path, &bytes).unwrap();
    let opened = deltafl_data::open(damage.folder()).unwrap();
    assert!(matches!(opened.verify(), Err(Unverified::Hash { .. })));
}

#[test]
fn a_label_out_of_range_reads_as_the_highest_class() {
    let damage = Damage::new(&images());
    let path = damage.folder().join("examples.arrow");
    let mut bytes = fs::read(&path).unwrap();
    let labels = [3u16, 9, 0, 1, 2, 1].map(u16::to_le_bytes).concat();
    let at = bytes.windows(labels.len()).position(|w| w == labels).unwrap();
    bytes[at + 1] = 0xff;
    fs::write(&path, &bytes).unwrap();
    let opened = deltafl_data::open(damage.folder()).unwrap();
    assert_eq!(
        (opened.examples(FederationIndex(0)).label(0), opened.examples(FederationIndex(0)).label(1)),
        (9, 9)
    );
    assert!(matches!(opened.verify(), Err(Unverified::Device(_))));
}

#[test]
fn a_damaged_manifest_says_where() {
    let damage = Damage::new(&images());
    let manifest = String::from_utf8(damage.read("federation.toml")).unwrap();
    let with = |from: &str, to: &str| {
        assert!(manifest.contains(from), "{manifest}");
        damage.open_with("federation.toml", manifest.replace(from, to).as_bytes()).unwrap_err()
    };
    assert_eq!(
        with("format = 2", "format = 7"),
        "DIR/federation.toml: unknown format 7: this version reads format 2; import the data again"
    );
    assert_eq!(
        with("format = 2", "format = 1\npoints = 3"),
        "DIR/federation.toml: unknown format 1: this version reads format 2; import the data again",
        "an earlier version has other keys"
    );
    assert_eq!(
        with("dim = 3", "dim = 0"),
        "DIR/federation.toml: input.dim must be at least 1 and at most 2147483647, got 0"
    );
    assert_eq!(
        with("dim = 3", "dim = 1000000000"),
        "DIR/examples.arrow: column 0 should be \"input\": FixedSizeList(1000000000 x non-null UInt8)"
    );
    assert_eq!(
        with("devices = 3", "devices = 4"),
        "DIR/devices.arrow: contains 3 devices, but the manifest lists 4"
    );
    assert!(with("classes = 10", "classes = -1").contains("TOML parse error at line 3"));
    assert!(matches!(deltafl_data::open(damage.dir.path()), Err(OpenError::Io { .. })));
}

#[test]
fn devices_cannot_point_outside_the_examples() {
    let damage = Damage::new(&images());
    let whole = damage.read("devices.arrow");
    let offsets = [0u64, 2, 3].map(u64::to_le_bytes).concat();
    let at = whole.windows(offsets.len()).position(|w| w == offsets).unwrap();
    let mut changed = whole.clone();
    changed[at + 16..at + 24].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(
        damage.open_with("devices.arrow", &changed).unwrap_err(),
        "DIR/devices.arrow: device 2 points outside the examples, or has none, or has split 2"
    );
}

/// `python3` that has pyarrow, or none: `DELTAFL_PYTHON` names another one.
fn python_with_pyarrow() -> Option<String> {
    let python = std::env::var("DELTAFL_PYTHON").unwrap_or_else(|_| "python3".into());
    let found =
        Command::new(&python).args(["-c", "import pyarrow"]).output().is_ok_and(|o| o.status.success());
    found.then_some(python)
}

fn pyarrow_reads(python: &str, dir: &Path) -> String {
    let script = "import sys, json, pyarrow as pa
out = {}
for name in sys.argv[2:]:
    table = pa.ipc.open_file(pa.memory_map(sys.argv[1] + '/' + name)).read_all()
    table.validate(full=True)
    out[name] = table.to_pydict()
print(json.dumps(out, ensure_ascii=True))";
    let files: Vec<&str> = ["devices.arrow", "examples.arrow", "words.arrow"]
        .into_iter()
        .filter(|name| dir.join(name).exists())
        .collect();
    let output = Command::new(python).args(["-c", script]).arg(dir).args(files).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn pyarrow_reads_the_files_as_they_are() {
    let Some(python) = python_with_pyarrow() else {
        println!("skipped: python3 has no pyarrow (pip install pyarrow, or set DELTAFL_PYTHON)");
        return;
    };
    let read = |federation: Federation| {
        let dir = TempDir::new().unwrap();
        deltafl_data::save(&federation, dir.path().join("f")).unwrap();
        pyarrow_reads(&python, &dir.path().join("f"))
    };
    assert_eq!(
        read(images()),
        r#"{"devices.arrow": {"id": ["anna", "\u0431\u043e\u0440\u044f", "c"], "split": [0, 1, 2], "offset": [0, 2, 3], "examples": [2, 1, 3]}, "examples.arrow": {"input": [[0, 1, 2], [253, 254, 255], [7, 8, 9], [4, 4, 4], [4, 4, 4], [4, 4, 4]], "label": [3, 9, 0, 1, 2, 1]}}"#
    );
    assert_eq!(
        read(words()),
        r#"{"devices.arrow": {"id": ["a"], "split": [0], "offset": [0], "examples": [2]}, "examples.arrow": {"input": [[1, 2], [0, 0]], "label": [1, 0]}, "words.arrow": {"word": ["", "good", "bad"], "vector": [[0.0, 0.0], [1.0, 0.5], [-1.0, -0.5]]}}"#
    );
    assert_eq!(
        read(text()),
        r#"{"devices.arrow": {"id": ["role", "other"], "split": [0, 1], "offset": [0, 5], "examples": [3, 1]}, "examples.arrow": {"symbol": [1, 2, 3, 0, 1, 3, 3, 1]}}"#
    );
    assert!(read(dense()).contains("[[1.5, -2.0], [1.1754943508222875e-38,"));
}
