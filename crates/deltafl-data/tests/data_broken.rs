//! A corpus of broken files: each is refused with an error that says what and where, and leaves nothing behind.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use deltafl_data::import::{
    Features, ImportError, ImportTarget, Imported, emnist, idx, leaf, npz, parquet, sent140, shakespeare,
    table,
};
use tempfile::TempDir;

type Outcome = Result<Imported, ImportError>;

/// Imports a file that holds these bytes, and gives the error with the folder's name taken out.
fn refused(bytes: &[u8], import: impl Fn(&Path, &ImportTarget) -> Outcome) -> String {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("f");
    fs::write(&path, bytes).unwrap();
    refused_in(&dir, |target| import(&path, target))
}

fn refused_in(dir: &TempDir, import: impl Fn(&ImportTarget) -> Outcome) -> String {
    let before = fs::read_dir(dir.path()).unwrap().count();
    let error = import(&ImportTarget::new(dir.path().join("out"))).unwrap_err();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), before, "something half-made is left: {error}");
    error.to_string().replace(&format!("{}/", dir.path().display()), "")
}

fn leaf_error(text: impl AsRef<[u8]>) -> String {
    refused(text.as_ref(), |path, target| leaf::import(&[path.to_owned()], Features::Auto, target))
}

#[test]
fn broken_leaf_shards() {
    let cases: [(&str, &str); 22] = [
        ("", "f, byte 0: expected an object, found the end of the file"),
        ("[1]", "f, byte 0: expected an object, found `[`"),
        (r#"{"users": ["a"]}"#, "f: the key \"user_data\" is missing"),
        (r#"{"user_data": {}}"#, "f: holds no examples"),
        (
            r#"{"user_data": {"a": {"x": [[1, 2]"#,
            "f, byte 33: expected `,` or `]`, found the end of the file",
        ),
        (r#"{"user_data": {"a": {"x": [[1, "2"]], "y": [0]}}}"#, "f, byte 31: expected a number, found `\"`"),
        (r#"{"user_data": {"a": {"x": [[NaN]], "y": [0]}}}"#, "f, byte 28: a feature is not finite"),
        (r#"{"user_data": {"a": {"x": [[1e999]], "y": [0]}}}"#, "f, byte 34: a feature is not finite"),
        (r#"{"user_data": {"a": {"x": [[null]], "y": [0]}}}"#, "f, byte 28: expected a number, found `n`"),
        (
            r#"{"user_data": {"a": {"x": [[1], [1, 2]], "y": [0, 0]}}}"#,
            "f, byte 38: an example has 2 features, those before it have 1",
        ),
        (
            r#"{"user_data": {"a": {"x": [[]], "y": [0]}}}"#,
            "f, byte 29: an example has 0 features, those before it have 1",
        ),
        (
            r#"{"user_data": {"a": {"x": [[1]], "y": [-1]}}}"#,
            "f, byte 39: label -1 is not a whole number from 0 to 16777215; numbers to predict are imported with --regression",
        ),
        (
            r#"{"user_data": {"a": {"x": [[1]], "y": [0.5]}}}"#,
            "f, byte 39: label 0.5 is not a whole number from 0 to 16777215; numbers to predict are imported with --regression",
        ),
        (
            r#"{"user_data": {"a": {"x": [[1]], "y": [16777216]}}}"#,
            "f, byte 39: label 16777216 is not a whole number from 0 to 16777215; numbers to predict are imported with --regression",
        ),
        (
            r#"{"user_data": {"a": {"x": [[1]], "y": [0, 1]}}}"#,
            "f, byte 45: device \"a\" has 1 examples and 2 labels",
        ),
        (
            r#"{"user_data": {"b": {"x": [[1]], "y": [0]}, "a": {"x": [], "y": []}}}"#,
            "f, byte 67: device \"a\" has no examples",
        ),
        (
            r#"{"user_data": {"a": {"x": [[1]], "x": [[1]], "y": [0]}}}"#,
            "f, byte 43: the key \"x\" occurs twice",
        ),
        (
            r#"{"user_data": {"a": {"x": [[1]], "y": [0]}, "a": {"x": [[1]], "y": [0]}}}"#,
            "f, byte 71: device \"a\" occurs twice in this file",
        ),
        (r#"{"users": [], "users": []}"#, "f, byte 22: the key \"users\" occurs twice"),
        (
            r#"{"users": ["a", "b"], "user_data": {"a": {"x": [[1]], "y": [0]}}}"#,
            "f: the data of device \"b\" is missing",
        ),
        (
            r#"{"users": ["a"], "num_samples": [1000000000], "user_data": {"a": {"x": [[1]], "y": [0]}}}"#,
            "f: device \"a\" has 1 examples, but `num_samples` lists 1000000000",
        ),
        (
            r#"{"user_data": {"a": {"x": [[1]], "y": [0]}}} and more"#,
            "f, byte 45: expected the end of the file, found `a`",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(leaf_error(text), expected, "{text}");
    }
    let bad_utf8 = b"{\"user_data\": {\"\xff\": {\"x\": [[1]], \"y\": [0]}}}";
    assert_eq!(leaf_error(bad_utf8), "f, byte 18: not valid UTF-8");
}

#[test]
fn truncated_gzip_and_endless_nesting() {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(br#"{"user_data": {"a": {"x": [[1]], "y": [0]}}}"#).unwrap();
    let whole = encoder.finish().unwrap();
    let error = leaf_error(&whole[..whole.len() - 9]);
    assert_eq!(error, "f, byte 44: incomplete deflate stream");
    let deep = format!(r#"{{"user_data": {{"a": {{"x": {}"#, "[".repeat(1 << 20));
    assert_eq!(leaf_error(deep), "f, byte 35: a nesting longer than 8");
    let other = format!(r#"{{"more": {}"#, "[".repeat(1 << 20));
    assert_eq!(leaf_error(other), "f, byte 74: a nesting longer than 64");
}

fn table_error(text: impl AsRef<[u8]>) -> String {
    let columns = table::TableColumns {
        device: Some("user".into()),
        label: "y".into(),
        features: Vec::new(),
        ..table::TableColumns::default()
    };
    refused(text.as_ref(), |path, target| {
        let target = ImportTarget { classes: Some(3), ..target.clone() };
        table::import(path, table::Dialect::Csv, &columns, Features::Auto, &target)
    })
}

#[test]
fn broken_tables() {
    let cases: [(&[u8], &str); 11] = [
        (b"", "f: there is no column \"user\"; the columns are "),
        (b"a,b\n1,2\n", "f: there is no column \"user\"; the columns are a, b"),
        (b"user,y,x\n", "f: holds no examples"),
        (b"user,y,x\na,0\n", "f, line 2: fields: expected 3, found 2"),
        (
            b"user,y,x\na,0,1\na,0,one\n",
            "f, line 3: \"one\" is not a number, and the column \"x\" begins with one: correct it, leave the column out with \
             --columns, or read the whole column as words with --category \"x\"",
        ),
        (b"user,y,x\na,0,inf\n", "f, line 2: a feature is not finite"),
        (
            b"user,y,x\na,0,\n",
            "f, line 2: the value of column \"x\" is missing: fill it in, or choose a rule with --missing drop, mean or category",
        ),
        (
            b"user,y,x\na,-1,1\n",
            "f, line 2: label -1 is not a whole number from 0 to 16777215; numbers to predict are imported with --regression",
        ),
        (b"user,y,x\na,3,1\n", "f, line 2: label 3 is not below the number of classes, 3"),
        (b"user,y,x\n\xff,0,1\n", "f, line 2: not valid UTF-8"),
        (
            b"user,y\na,0\n",
            "f: no column is left as a feature: --columns, --number, --category, --date and --text name some",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(table_error(text), expected);
    }
}

fn idx_file(dims: &[u32], bytes: &[u8]) -> Vec<u8> {
    let mut file = vec![0, 0, 8, dims.len() as u8];
    dims.iter().for_each(|dim| file.extend(dim.to_be_bytes()));
    file.extend(bytes);
    file
}

fn idx_error(images: &[u8], labels: &[u8], devices: &str) -> String {
    let dir = TempDir::new().unwrap();
    let put = |name: &str, bytes: &[u8]| {
        fs::write(dir.path().join(name), bytes).unwrap();
        dir.path().join(name)
    };
    let files = idx::IdxFiles {
        images: put("images", images),
        labels: put("labels", labels),
        devices: Some(put("devices", devices.as_bytes())),
    };
    refused_in(&dir, |target| idx::import(&files, target))
}

#[test]
fn broken_idx_files() {
    let (images, labels) = (idx_file(&[2, 1, 1], &[1, 2]), idx_file(&[2], &[0, 1]));
    let header = "writer\tfirst\tcount\n";
    let devices = format!("{header}a\t0\t2\n");
    let table = |rows: &str| format!("{header}{rows}");
    let error = |images: &[u8], labels: &[u8]| idx_error(images, labels, &devices);
    assert_eq!(error(&images[..5], &labels), "images, byte 5: the file ends in the middle of the header");
    assert_eq!(error(&images[..17], &labels), "images, byte 17: the file ends in the middle of the items");
    assert_eq!(
        error(b"GIF89a", &labels),
        "images, byte 0: expected an IDX file of bytes (00 00 08 and 1 to 4 dimensions), found `G`"
    );
    assert_eq!(
        error(&idx_file(&[1_000_000_000, 28, 28], &[]), &labels),
        "labels: labels: expected 1000000000, found 2"
    );
    assert_eq!(
        error(&images, &idx_file(&[1_000_000_000], &[0])),
        "labels, byte 9: the file ends in the middle of the items"
    );
    assert_eq!(
        error(&idx_file(&[2, u32::MAX, u32::MAX], &[]), &labels),
        "images, byte 8: an item that is empty or longer than 16777216"
    );
    assert_eq!(
        error(&idx_file(&[2, 1, 1], &[1, 2, 3]), &labels),
        "images, byte 18: more bytes follow the end of the data"
    );
    let with = |rows: &str| idx_error(&images, &labels, &table(rows));
    assert_eq!(with("a\t0\t3\n"), "devices, line 2: images up to this device: expected 2, found 3");
    assert_eq!(with("a\t0\t1\na\t1\t1\n"), "devices, line 3: device \"a\" occurs twice in this file");
    assert_eq!(with("a\t0\t2\nb\t1\t1\n"), "devices: devices \"a\" and \"b\" share examples");
    assert_eq!(with("a\t0\t0\n"), "devices, line 2: device \"a\" has no examples");
    assert_eq!(with("a\t-1\t1\n"), "devices, line 2: \"-1\" is not a number");
    assert_eq!(with("a\t0\n"), "devices, line 2: the column \"count\" is missing");
}

fn npy(descr: &str, shape: &str, bytes: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    file.extend(bytes);
    file
}

fn npz_error(x: &[u8], y: &[u8]) -> String {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, bytes) in [("x.npy", x), ("y.npy", y)] {
        writer.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
        writer.write_all(bytes).unwrap();
    }
    npz_file_error(&writer.finish().unwrap().into_inner(), "x")
}

fn npz_file_error(bytes: &[u8], x: &str) -> String {
    let arrays = npz::NpzArrays { x: x.into(), y: "y".into(), device: None };
    refused(bytes, |path, target| npz::import(path, &arrays, Features::Auto, target))
}

#[test]
fn broken_npz_files() {
    let (x, y) = (npy("|u1", "(2, 1)", &[1, 2]), npy("|u1", "(2,)", &[0, 1]));
    assert!(
        npz_file_error(b"PK\x03\x04 and then nothing", "x")
            .starts_with("f: not a zip archive that can be read: ")
    );
    assert_eq!(npz_error(b"no array", &y), "f, member \"x.npy\": holds no NumPy array");
    assert_eq!(
        npz_error(&x[..x.len() - 1], &y),
        "f, member \"x.npy\": the file ends in the middle of an array"
    );
    assert_eq!(npz_error(&x, &npy("|u1", "(3,)", &[0; 3])), "f, member \"y.npy\": rows: expected 2, found 3");
    assert_eq!(
        npz_error(&x, &npy("|u1", "(1000000000,)", &[0; 3])),
        "f, member \"y.npy\": the file ends in the middle of an array"
    );
    assert_eq!(
        npz_error(&x, &npy("|i1", "(2,)", &[0, 0xff])),
        "f, member \"y.npy\": label -1 is not a whole number from 0 to 16777215; numbers to predict are imported with --regression"
    );
    assert_eq!(
        npz_error(&npy("<c16", "(2, 1)", &[]), &y),
        "f, member \"x.npy\": the array has type <c16, which is not supported; little-endian integers, f4, f8 and strings are"
    );
    let nan: Vec<u8> = [1.0, f32::NAN].iter().flat_map(|x| x.to_le_bytes()).collect();
    assert_eq!(npz_error(&npy("<f4", "(2, 1)", &nan), &y), "f, row 1: a feature is not finite");
    assert_eq!(
        npz_error(&npy("<f4", "(2, 99999999999999999999)", &nan), &y),
        "f, member \"x.npy\": \"99999999999999999999\" is not a number"
    );
    assert_eq!(
        npz_error(&npy("<f4", "(2, 9999999999999, 9999999999999)", &nan), &y),
        "f, member \"x.npy\": in the array header \"shape\" is missing"
    );
}

#[test]
fn broken_parquet_files() {
    let columns = table::TableColumns {
        device: None,
        label: "y".into(),
        features: Vec::new(),
        ..table::TableColumns::default()
    };
    for bytes in [
        &b""[..],
        b"PAR1",
        b"PAR1\x00\x00\x00\x00\xff\xff\xff\x7fPAR1",
        b"not parquet at all, but long enough",
    ] {
        let error = refused(bytes, |path, target| {
            parquet::import(&[path.to_owned()], &columns, Features::Auto, target)
        });
        assert!(error.starts_with("f: not a Parquet file that can be read: "), "{error}");
    }
}

fn tweet_error(tweets: &[u8], vectors: &[u8]) -> String {
    let dir = TempDir::new().unwrap();
    let (file, words) = (dir.path().join("f"), dir.path().join("v"));
    fs::write(&file, tweets).unwrap();
    fs::write(&words, vectors).unwrap();
    let options = sent140::TweetOptions {
        vectors: words,
        features: sent140::TweetFeatures::Tokens,
        lowercase: true,
        columns: None,
    };
    refused_in(&dir, |target| sent140::import(std::slice::from_ref(&file), &options, target))
}

#[test]
fn broken_tweets() {
    let tweet = br#""4","1","d","q","ann","good""#;
    assert_eq!(tweet_error(b"", b"good 1\n"), "f: holds no tweets");
    assert_eq!(tweet_error(b"4,1\n", b"good 1\n"), "f, line 1: columns of Sentiment140: expected 6, found 2");
    assert_eq!(
        tweet_error(br#""3","1","d","q","ann","good""#, b"good 1\n"),
        "f, line 1: polarity \"3\" is none of 0 (negative), 2 (neutral), 4 (positive)"
    );
    assert_eq!(tweet_error(tweet, b""), "v: holds no word vectors");
    assert_eq!(tweet_error(tweet, b"good 1 nan\n"), "v, line 1: a feature is not finite");
    assert_eq!(
        tweet_error(tweet, b"bad 1 2\ngood 1\n"),
        "v, line 2: an example has 1 features, those before it have 2"
    );
    assert_eq!(tweet_error(tweet, b"\xff 1\n"), "v, line 1: not valid UTF-8");
    assert_eq!(
        tweet_error(br#"{"user_data": {"a": {"x": [["1", "d"]], "y": [0]}}}"#, b"good 1\n"),
        "f, byte 37: fields of a tweet: expected 6, found 2"
    );
    assert_eq!(
        tweet_error(br#"{"user_data": {"a": {"x": [], "y": [4]}}}"#, b"good 1\n"),
        "f, byte 37: polarity \"4\" is none of 0 (negative), 2 (neutral), 4 (positive)"
    );
}

#[test]
fn broken_texts_of_shakespeare() {
    let error = |text: &[u8]| refused(text, shakespeare::import);
    let nothing = "f: holds no plays as the 1994 World Library edition prints them (newer postings have another layout)";
    assert_eq!(error(b""), nothing);
    assert_eq!(error(b"THE SONNETS\n\n                    1\n\nFrom fairest creatures"), nothing);
    assert_eq!(error(b"title \xff"), "f, byte 6: not valid UTF-8");
    assert_eq!(
        error(b"\nby William Shakespeare\nby William Shakespeare\n"),
        "f, line 2: the title above \"by William Shakespeare\" is missing"
    );
}

#[test]
fn broken_trees_of_nist() {
    let dir = TempDir::new().unwrap();
    let put = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    };
    put("by_class/34/hsf_0/x.png", b"not an image");
    put("by_write/hsf_0/w/d/x.png", b"not an image");
    put("empty/readme.txt", b"");
    let import = |by_write: &str, by_class: &str| {
        let path = |name: &str| -> PathBuf { dir.path().join(name) };
        refused_in(&dir, |target| emnist::import(&path(by_write), &path(by_class), target))
    };
    assert_eq!(import("by_write", "empty"), "empty: holds no images at CLASS/hsf_*/*.png");
    assert_eq!(import("empty", "by_class"), "empty: holds no images at hsf_*/WRITER/*/*.png");
    let error = import("by_write", "by_class");
    assert!(
        error.starts_with("by_write, member \"hsf_0/w/d/x.png\": not an image that can be read: "),
        "{error}"
    );
    assert!(import("missing", "by_class").starts_with("missing: No such file"));
}
