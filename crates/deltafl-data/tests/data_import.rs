//! Every importer on a small file of its format: what goes in comes out.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::types::{Float32Type, Int32Type};
use arrow_array::{
    Array as _, ArrayRef, BinaryArray, DictionaryArray, Int64Array, ListArray, RecordBatch, StringArray,
    StructArray, UInt8Array,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field};
use deltafl::data::{BatchBuffer, Federation, FederationIndex, InputKind};
use deltafl_data::import::{
    Features, ImportError, ImportTarget, Imported, emnist, idx, leaf, npz, parquet, sent140, shakespeare,
    table,
};
use tempfile::TempDir;

/// A folder with input files and a place for the federation.
struct Workdir(TempDir);

impl Workdir {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join("in").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    fn target(&self) -> ImportTarget {
        ImportTarget::new(self.0.path().join("out"))
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// `id: [inputs] [labels]` of each device, after the federation was verified.
fn devices(imported: &Imported) -> Vec<String> {
    let federation = imported.open().unwrap();
    federation.verify().unwrap();
    federation.devices().map(|k| device(&federation, k)).collect()
}

fn device(federation: &Federation, k: FederationIndex) -> String {
    let examples = federation.examples(k);
    let mut buffer = BatchBuffer::default();
    let batch = buffer.gather(&examples, 0..examples.len());
    let inputs = match federation.kind() {
        InputKind::Bytes { .. } => {
            let levels = batch.inputs.dense().iter().map(|x| (x * 255.0).round() as u8);
            format!("{:?}", levels.collect::<Vec<_>>())
        }
        InputKind::Dense { .. } => format!("{:?}", batch.inputs.dense()),
        _ => format!("{:?}", batch.inputs.tokens()),
    };
    format!("{}: {inputs} {:?}", federation.id(k), batch.targets.classes())
}

#[test]
fn leaf_shards_join_the_parts_of_a_device() {
    let workdir = Workdir::new();
    let train = r#"{"users": ["a", "b"], "num_samples": [2, 1],
        "user_data": {"a": {"x": [[0.5, 1.0], [0.25, -2e1]], "y": [1, 0]}, "b": {"y": [3], "x": [[7, 8]]}}}"#;
    let test = r#"{"user_data": {"b": {"x": [[9, 10]], "y": [2]}}, "hierarchies": [null], "users": ["b"]}"#;
    workdir.file("train/0.json", train);
    workdir.file("test/0.json.gz", gzip(test.as_bytes()));
    let imported = leaf::import(&[workdir.0.path().join("in")], Features::Auto, &workdir.target()).unwrap();
    assert_eq!(devices(&imported), ["a: [0.5, 1.0, 0.25, -20.0] [1, 0]", "b: [7.0, 8.0, 9.0, 10.0] [3, 2]"]);
    assert_eq!((imported.manifest.classes, imported.manifest.input), (4, InputKind::Dense { dim: 2 }));
    assert_eq!(imported.manifest.source.unwrap().files, ["0.json", "0.json.gz"]);
}

#[test]
fn leaf_images_become_bytes_and_nested_lists_are_flattened() {
    let workdir = Workdir::new();
    let shard =
        format!(r#"{{"user_data": {{"w": {{"x": [[[0, 1], [{}, 0.0]]], "y": [0]}}}}}}"#, 17.0 / 255.0);
    let file = workdir.file("s.json", shard);
    let imported = leaf::import(&[file], Features::Auto, &workdir.target()).unwrap();
    assert_eq!(imported.manifest.input, InputKind::Bytes { dim: 4 });
    assert_eq!(devices(&imported), ["w: [0, 255, 17, 0] [0]"]);
}

#[test]
fn leaf_texts_become_symbols() {
    let workdir = Workdir::new();
    let shard = r#"{"user_data": {"HAMLET": {"x": ["To b", "o be"], "y": ["e", ","]}}}"#;
    let imported = leaf::import(&[workdir.file("s.json", shard)], Features::Auto, &workdir.target()).unwrap();
    assert_eq!(imported.manifest.input, InputKind::Tokens { len: 4, vocabulary: 53 });
    assert_eq!(devices(&imported), ["HAMLET: [20, 41, 0, 28, 41, 0, 28, 31] [31, 0]"]);
}

#[test]
fn csv_rows_are_grouped_by_device() {
    let workdir = Workdir::new();
    let csv = "y,x1,user,x2,note\n1,0.5,\"b, c\",2,-\n0,1.5,a,3,-\n2.0,2.5,\"b, c\",4,-\n";
    let columns = table::TableColumns {
        device: Some("user".into()),
        label: "y".into(),
        features: vec!["x*".into()],
        ..table::TableColumns::default()
    };
    let file = workdir.file("t.csv", csv);
    let imported =
        table::import(&file, table::Dialect::Csv, &columns, Features::Auto, &workdir.target()).unwrap();
    assert_eq!(devices(&imported), ["b, c: [0.5, 2.0, 2.5, 4.0] [1, 2]", "a: [1.5, 3.0] [0]"]);
}

#[test]
fn tsv_takes_all_other_columns_and_grey_levels() {
    let workdir = Workdir::new();
    let file = workdir.file("t.tsv", gzip(b"label\tp0\tp1\n3\t0\t255\n1\t51\t102\n"));
    let columns = table::TableColumns {
        device: None,
        label: "label".into(),
        features: Vec::new(),
        ..table::TableColumns::default()
    };
    let target = workdir.target();
    let imported =
        table::import(&file, table::Dialect::Tsv, &columns, Features::GreyLevels, &target).unwrap();
    assert_eq!(imported.manifest.input, InputKind::Bytes { dim: 2 });
    assert_eq!(devices(&imported), ["all: [0, 255, 51, 102] [3, 1]"]);
}

fn idx_file(dims: &[u32], bytes: &[u8]) -> Vec<u8> {
    let mut file = vec![0, 0, 8, dims.len() as u8];
    dims.iter().for_each(|dim| file.extend(dim.to_be_bytes()));
    file.extend(bytes);
    file
}

#[test]
fn idx_images_go_to_their_writers() {
    let workdir = Workdir::new();
    let files = idx::IdxFiles {
        images: workdir.file("i.gz", gzip(&idx_file(&[4, 1, 2], &[0, 51, 102, 153, 204, 255, 1, 1]))),
        labels: workdir.file("l", idx_file(&[4], &[5, 6, 7, 8])),
        devices: Some(workdir.file("d.tsv", "writer\tfirst\tcount\tnote\nlate\t2\t1\tx\nearly\t0\t2\ty\n")),
    };
    let imported = idx::import(&files, &workdir.target()).unwrap();
    assert_eq!(devices(&imported), ["early: [0, 51, 102, 153] [5, 6]", "late: [204, 255] [7]"]);
    let dropped = imported.manifest.source.unwrap().dropped;
    assert_eq!((dropped[0].reason.as_str(), dropped[0].count), ("images of no device", 1));
}

/// A `.npy` file.
fn npy(descr: &str, shape: &str, bytes: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    file.extend(bytes);
    file
}

fn zipped(members: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, bytes) in members {
        writer.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

#[test]
fn npz_arrays_are_examples_labels_and_devices() {
    let workdir = Workdir::new();
    let floats: Vec<u8> = [0.5f64, -1.0, 2.0, 4.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    let labels: Vec<u8> = [1i64, 0].iter().flat_map(|y| y.to_le_bytes()).collect();
    let names: Vec<u8> = "käbc".chars().flat_map(|c| (c as u32).to_le_bytes()).collect();
    let file = zipped(&[
        ("x.npy", npy("<f8", "(2, 2)", &floats)),
        ("y.npy", npy("<i8", "(2,)", &labels)),
        ("who.npy", npy("<U2", "(2,)", &names)),
    ]);
    let arrays = npz::NpzArrays { x: "x".into(), y: "y".into(), device: Some("who".into()) };
    let file = workdir.file("d.npz", file);
    let imported = npz::import(&file, &arrays, Features::Auto, &workdir.target()).unwrap();
    assert_eq!(devices(&imported), ["kä: [0.5, -1.0] [1]", "bc: [2.0, 4.0] [0]"]);
}

fn png_of(pixels: &[u8], width: u32) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, width, pixels.len() as u32 / width);
    encoder.set_color(png::ColorType::Grayscale);
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(pixels).unwrap();
    writer.finish().unwrap();
    out
}

/// A Parquet file as Hugging Face keeps FEMNIST: images as PNG in a struct.
fn parquet_file(path: &Path) {
    let images = [png_of(&[0, 255], 2), png_of(&[51, 102], 2), png_of(&[153, 204], 2)];
    let bytes: ArrayRef = Arc::new(BinaryArray::from_iter_values(images.iter()));
    let image = StructArray::from(vec![(Arc::new(Field::new("bytes", DataType::Binary, true)), bytes)]);
    let batch = RecordBatch::try_from_iter([
        ("image", Arc::new(image) as ArrayRef),
        ("writer_id", Arc::new(StringArray::from(vec!["w1", "w2", "w1"])) as ArrayRef),
        ("character", Arc::new(Int64Array::from(vec![3, 1, 2])) as ArrayRef),
    ])
    .unwrap();
    let file = fs::File::create(path).unwrap();
    let mut writer = ::parquet::arrow::ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

#[test]
fn parquet_images_go_to_their_writers() {
    let workdir = Workdir::new();
    let file = workdir.file("p.parquet", "");
    parquet_file(&file);
    let columns = table::TableColumns {
        device: Some("writer_id".into()),
        label: "character".into(),
        features: vec!["image".into()],
        ..table::TableColumns::default()
    };
    let imported = parquet::import(&[file], &columns, Features::Auto, &workdir.target()).unwrap();
    assert_eq!(imported.manifest.input, InputKind::Bytes { dim: 2 });
    assert_eq!(devices(&imported), ["w1: [0, 255, 153, 204] [3, 2]", "w2: [51, 102] [1]"]);
}

fn list_column(rows: Vec<Option<Vec<Option<f32>>>>) -> ArrayRef {
    Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(rows))
}

/// Imports a Parquet file with lists in the column x and the devices a, b and a.
fn import_lists(workdir: &Workdir, lists: ArrayRef) -> Result<Imported, ImportError> {
    let devices: DictionaryArray<Int32Type> = ["a", "b", "a"].into_iter().collect();
    let batch = RecordBatch::try_from_iter_with_nullable([
        ("x", lists, true),
        ("d", Arc::new(devices) as ArrayRef, true),
        ("y", Arc::new(UInt8Array::from(vec![0, 1, 255])) as ArrayRef, true),
    ])
    .unwrap();
    let path = workdir.file("lists.parquet", "");
    let file = fs::File::create(&path).unwrap();
    let mut writer = ::parquet::arrow::ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    // Two row groups.
    writer.write(&batch.slice(0, 2)).unwrap();
    writer.flush().unwrap();
    writer.write(&batch.slice(2, 1)).unwrap();
    writer.close().unwrap();
    let columns = table::TableColumns {
        device: Some("d".into()),
        label: "y".into(),
        features: vec!["x".into()],
        ..table::TableColumns::default()
    };
    parquet::import(&[path], &columns, Features::Dense, &workdir.target())
}

#[test]
fn parquet_lists_are_rows_of_features() {
    let row = |values: [f32; 2]| Some(values.map(Some).to_vec());
    let flat = list_column(vec![row([0.5, 1.5]), row([2.5, 3.5]), row([4.5, -1.0])]);
    let expected = ["a: [0.5, 1.5, 4.5, -1.0] [0, 255]", "b: [2.5, 3.5] [1]"];
    assert_eq!(devices(&import_lists(&Workdir::new(), flat).unwrap()), expected);

    // The same features as lists of lists, some of which are empty.
    let items =
        list_column(vec![row([0.5, 1.5]), Some(vec![]), row([2.5, 3.5]), Some(vec![Some(4.5), Some(-1.0)])]);
    let field = Arc::new(Field::new("item", items.data_type().clone(), true));
    let nested = ListArray::new(field, OffsetBuffer::new(vec![0, 2, 3, 4].into()), items, None);
    assert_eq!(devices(&import_lists(&Workdir::new(), Arc::new(nested)).unwrap()), expected);
}

#[test]
fn parquet_texts_in_every_encoding_are_the_same_federation() {
    use ::parquet::basic::Encoding;
    use ::parquet::file::properties::{WriterProperties, WriterVersion};
    let texts =
        |of: fn(usize) -> String| Arc::new(StringArray::from_iter_values((0..1000).map(of))) as ArrayRef;
    let columns = vec![
        ("clinic", texts(|i| format!("clinic {}", i % 7)), true),
        ("word", texts(|i| "ab".repeat(1 + i % 5)), false),
        ("outcome", texts(|i| ["ill", "well"][i % 2].to_owned()), true),
    ];
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let import = |version, encoding| {
        let folder = Workdir::new();
        let file = folder.file("p.parquet", "");
        let properties = WriterProperties::builder()
            .set_writer_version(version)
            .set_dictionary_enabled(false)
            .set_encoding(encoding)
            .set_data_page_row_count_limit(300)
            .build();
        let out = fs::File::create(&file).unwrap();
        let mut writer =
            ::parquet::arrow::ArrowWriter::try_new(out, batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let columns = table::TableColumns {
            device: Some("clinic".into()),
            label: "outcome".into(),
            ..table::TableColumns::default()
        };
        parquet::import(&[file], &columns, Features::Dense, &folder.target()).unwrap().manifest.hash
    };
    let plain = import(WriterVersion::PARQUET_1_0, Encoding::PLAIN);
    for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
        for encoding in [Encoding::PLAIN, Encoding::DELTA_LENGTH_BYTE_ARRAY, Encoding::DELTA_BYTE_ARRAY] {
            assert_eq!(import(version, encoding), plain, "{version:?}, {encoding}");
        }
    }
}

#[test]
fn a_missing_number_in_a_parquet_list_is_refused_with_its_row() {
    let row = || Some(vec![Some(0.5), Some(1.5)]);
    for missing in [Some(vec![Some(0.5), None]), None] {
        let lists = list_column(vec![row(), row(), missing]);
        let error = import_lists(&Workdir::new(), lists).unwrap_err().to_string();
        assert!(error.contains("row 2: the value of column \"x\" is missing"), "{error}");
    }
    // An empty list has another length, and no missing value.
    let error = import_lists(&Workdir::new(), list_column(vec![row(), row(), Some(vec![])])).unwrap_err();
    assert!(error.to_string().contains("row 2"), "{error}");
    assert!(!error.to_string().contains("missing"), "{error}");
}

/// NIST's two trees: writer f0000_14 drew a 4 and a J, f0001_41 a z and something of no class.
fn nist(workdir: &Workdir) -> Vec<(String, Vec<u8>)> {
    let picture = |level: u8| {
        let pixels: Vec<u8> = (0..128 * 128).map(|i| if i / 128 < 64 { level } else { 255 }).collect();
        png_of(&pixels, 128)
    };
    let (four, jay, zed, unknown) = (picture(0), picture(50), picture(100), picture(150));
    let files = [
        ("by_class/34/hsf_0/hsf_0_00000.png", &four),
        ("by_class/4a/hsf_1/hsf_1_00000.png", &jay),
        ("by_class/7a/hsf_6/hsf_6_00000.png", &zed),
        ("by_class/7a/train_7a/x.png", &unknown),
        ("by_write/hsf_0/f0000_14/d0000_14/d0000_14_00000.png", &four),
        ("by_write/hsf_0/f0000_14/u0000_14/u0000_14_00000.png", &jay),
        ("by_write/hsf_0/f0001_41/l0001_41/l0001_41_00000.png", &zed),
        ("by_write/hsf_0/f0001_41/l0001_41/l0001_41_00001.png", &unknown),
    ];
    files.iter().for_each(|(name, bytes)| drop(workdir.file(name, bytes)));
    files.into_iter().map(|(name, bytes)| (name.to_owned(), bytes.clone())).collect()
}

#[test]
fn nists_images_are_matched_shrunk_and_the_first_one_is_there_twice() {
    let workdir = Workdir::new();
    let files = nist(&workdir);
    let folder = |name: &str| workdir.0.path().join("in").join(name);
    let imported = emnist::import(&folder("by_write"), &folder("by_class"), &workdir.target()).unwrap();
    let federation = imported.open().unwrap();
    federation.verify().unwrap();
    assert_eq!(
        (federation.id(FederationIndex(0)), federation.id(FederationIndex(1))),
        ("f0000_14", "f0001_41")
    );
    let labels = |k| {
        (0..federation.example_count(k) as usize).map(|i| federation.examples(k).label(i)).collect::<Vec<_>>()
    };
    assert_eq!((labels(FederationIndex(0)), labels(FederationIndex(1))), (vec![4, 4, 19], vec![61, 61]));
    let mut buffer = BatchBuffer::default();
    let jay = buffer.gather(&federation.examples(FederationIndex(0)), [2].into_iter()).inputs.dense();
    assert_eq!((jay.len(), jay[0], jay[783]), (784, 50.0 * (1.0 / 255.0), 1.0));
    assert_eq!(imported.manifest.source.unwrap().dropped[0].count, 1);

    let archive = |part: &str| {
        let members: Vec<(&str, Vec<u8>)> = files
            .iter()
            .filter(|(name, _)| name.starts_with(part))
            .map(|(name, bytes)| (name.as_str(), bytes.clone()))
            .collect();
        workdir.file(&format!("{part}.zip"), zipped(&members))
    };
    let target = ImportTarget::new(workdir.0.path().join("from-zip"));
    let zipped = emnist::import(&archive("by_write"), &archive("by_class"), &target).unwrap();
    assert_eq!(zipped.manifest.hash, federation.hash());
}

const VECTORS: &str = "good 1 0\nbad -1 0\n! 0 4\nunused 9 9\n";

fn tweet_options(workdir: &Workdir, features: sent140::TweetFeatures) -> sent140::TweetOptions {
    sent140::TweetOptions {
        vectors: workdir.file("v.txt", VECTORS),
        features,
        lowercase: true,
        columns: None,
    }
}

/// Latin-1, as Sentiment140 is: 0xe9 is é.
const TWEETS: &[u8] = b"\"4\",\"1\",\"d\",\"NO_QUERY\",\"ann\",\"GOOD, good!\"\n\
    \"0\",\"2\",\"d\",\"NO_QUERY\",\"bob\",\"bad caf\xe9\"\n\
    \"2\",\"3\",\"d\",\"NO_QUERY\",\"bob\",\"neutral\"\n\
    \"0\",\"4\",\"d\",\"NO_QUERY\",\"ann\",\":-)\"\n";

#[test]
fn tweets_become_their_first_twenty_words() {
    let workdir = Workdir::new();
    let options = tweet_options(&workdir, sent140::TweetFeatures::Tokens);
    let imported = sent140::import(&[workdir.file("t.csv", TWEETS)], &options, &workdir.target()).unwrap();
    let federation = imported.open().unwrap();
    let words: Vec<&str> = federation.words().unwrap().iter().collect();
    assert_eq!(words, ["", "good", "bad", "!"]);
    assert_eq!(federation.kind(), InputKind::Tokens { len: 20, vocabulary: 4 });
    let mut buffer = BatchBuffer::default();
    let ann = buffer.gather(&federation.examples(FederationIndex(0)), 0..2);
    assert_eq!(ann.inputs.tokens()[..6], [1, 0, 1, 3, 0, 0]);
    assert_eq!(ann.inputs.tokens()[20..], [0; 20]);
    assert_eq!(ann.targets.classes(), [1, 0]);
    assert_eq!(imported.manifest.source.unwrap().dropped[0].reason, "neutral tweets");
}

#[test]
fn tweets_become_mean_vectors_in_which_unknown_words_count() {
    let workdir = Workdir::new();
    let options = tweet_options(&workdir, sent140::TweetFeatures::MeanVector);
    let imported = sent140::import(&[workdir.file("t.csv", TWEETS)], &options, &workdir.target()).unwrap();
    assert_eq!(devices(&imported), ["ann: [0.5, 1.0, 0.0, 0.0] [1, 0]", "bob: [-0.5, 0.0] [0]"]);
}

#[test]
fn tweets_come_from_tables_and_from_leaf_as_well() {
    let workdir = Workdir::new();
    let mut options = tweet_options(&workdir, sent140::TweetFeatures::MeanVector);
    let leaf = r#"{"user_data": {"eve": {"x": [["1", "d", "q", "eve", "bad!", "training"]], "y": [0]}}}"#;
    let imported = sent140::import(&[workdir.file("t.json", leaf)], &options, &workdir.target()).unwrap();
    assert_eq!(devices(&imported), ["eve: [-0.5, 2.0] [0]"]);

    options.columns =
        Some(sent140::TweetColumns { device: "to".into(), label: "label".into(), text: "text".into() });
    let tsv = workdir.file("t.tsv", "row\tlabel\tto\ttext\n7\t4\tzoe\tsay \"good\n");
    let target = ImportTarget::new(workdir.0.path().join("second"));
    let imported = sent140::import(&[tsv], &options, &target).unwrap();
    assert_eq!(devices(&imported), ["zoe: [0.5, 0.0] [1]"]);
}

#[test]
fn shakespeares_roles_become_windows() {
    let workdir = Workdir::new();
    let text = "header\n\n\nby William Shakespeare\n\n\n\n\nTITLE\n\nby William Shakespeare\n\
        \x20 ANNE. Speak the speech, I pray you,\n    as I pronounced it\n    to you.\n\
        \x20 BOB. No.\n  BOB. I say no!\n  BOB. Never, never, never.\n";
    let imported = shakespeare::import(&workdir.file("s.txt", text), &workdir.target()).unwrap();
    assert_eq!(imported.manifest.input, InputKind::Windows { len: 20, alphabet: 53 });
    let federation = imported.open().unwrap();
    federation.verify().unwrap();
    assert_eq!(
        (federation.id(FederationIndex(0)), federation.id(FederationIndex(1))),
        ("TITLE_ANNE", "TITLE_BOB")
    );
    let length = "Speak the speech, I pray you, as I pronounced it to you. ".len() as u64;
    assert_eq!(federation.example_count(FederationIndex(0)), length - 20);
    assert_eq!(federation.examples(FederationIndex(0)).label(0), u32::from(shakespeare::symbol('p')));

    for (requested, classes) in [(128, 128), (10, 53)] {
        let out = workdir.0.path().join(format!("classes-{requested}"));
        let target = ImportTarget { classes: Some(requested), ..ImportTarget::new(out) };
        let imported = shakespeare::import(&workdir.file("s.txt", text), &target).unwrap();
        let federation = imported.open().unwrap();
        assert_eq!(federation.classes(), classes);
        assert_eq!(imported.manifest.input, InputKind::Windows { len: 20, alphabet: 53 });
    }
}

#[test]
fn an_import_can_split_and_drop_devices() {
    let workdir = Workdir::new();
    let csv = "user,y,x\na,0,0.1\na,1,0.2\nb,0,0.3\nc,1,0.4\nc,1,0.5\n";
    let columns = table::TableColumns {
        device: Some("user".into()),
        label: "y".into(),
        features: Vec::new(),
        ..table::TableColumns::default()
    };
    let mut target = workdir.target();
    (target.split.train, target.split.min_examples) = (0.5, 1);
    let file = workdir.file("t.csv", csv);
    let imported = table::import(&file, table::Dialect::Csv, &columns, Features::Auto, &target).unwrap();
    let federation = imported.open().unwrap();
    assert_eq!((federation.len(), federation.split(deltafl::data::Split::Train).len()), (2, 1));
    assert_eq!(federation.device_split(), Some(&target.split));
    let dropped = imported.manifest.source.unwrap().dropped;
    assert_eq!((dropped[0].reason.as_str(), dropped[0].count), ("devices with no more than 1 examples", 1));
}
