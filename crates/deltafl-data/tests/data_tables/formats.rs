//! Parquet, `.npz`, LEAF, compressed files, and files that are not tables.

use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use deltafl_data::import::{leaf, npz, parquet};

use super::texts::text_columns;
use super::*;

fn write_parquet(path: &Path, columns: Vec<(&str, ArrayRef)>) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let batch =
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true))).unwrap();
    let file = std::fs::File::create(path).unwrap();
    let mut writer = ::parquet::arrow::ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

#[test]
fn parquet_has_words_too_and_names_the_row_of_a_missing_value() {
    let folder = Folder::new();
    let file = folder.0.path().join("in/p.parquet");
    let strings = |values: Vec<Option<&str>>| Arc::new(StringArray::from(values)) as ArrayRef;
    let table = |sexes, ages: Vec<Option<f64>>| {
        vec![
            ("__index_level_0__", Arc::new(Int64Array::from(vec![0, 1, 2])) as ArrayRef),
            ("clinic", strings(vec![Some("north"), Some("south"), Some("north")])),
            ("sex", strings(sexes)),
            ("age", Arc::new(Float64Array::from(ages)) as ArrayRef),
            ("outcome", strings(vec![Some("ill"), Some("well"), Some("well")])),
        ]
    };
    let sexes = vec![Some("F"), Some("M"), Some("M")];
    write_parquet(&file, table(sexes.clone(), vec![Some(61.0), Some(48.0), Some(35.0)]));
    let import = |target: &ImportTarget| {
        parquet::import(std::slice::from_ref(&file), &columns("clinic", "outcome"), Features::Dense, target)
    };
    check_patients(&opened(&import(&folder.target()).unwrap()));

    let refused = |target: &ImportTarget| import(target).unwrap_err().to_string();
    let target = ImportTarget::new(folder.0.path().join("second"));
    write_parquet(&file, table(sexes, vec![Some(61.0), None, Some(35.0)]));
    assert!(
        refused(&target).contains("row 1: the value of column \"age\" is missing"),
        "{}",
        refused(&target)
    );
    write_parquet(&file, table(vec![Some("F"), Some("M"), None], vec![Some(1.0); 3]));
    assert!(
        refused(&target).contains("row 2: the value of column \"sex\" is missing"),
        "{}",
        refused(&target)
    );
}

#[test]
fn every_compression_and_flat_type_of_parquet_is_read() {
    use ::parquet::basic::{BrotliLevel, Compression, GzipLevel, ZstdLevel};
    use arrow_array::{Date32Array, Decimal128Array, Float16Array, TimestampMillisecondArray};
    let day = 86_400_000;
    let table = || {
        RecordBatch::try_from_iter(vec![
            ("clinic", Arc::new(StringArray::from(vec!["a", "a"])) as ArrayRef),
            ("cost", Arc::new(Decimal128Array::from(vec![12_345, -50]).with_precision_and_scale(9, 2).unwrap()) as ArrayRef),
            ("half", Arc::new(Float16Array::from_iter_values([1.5, -0.25].map(|x: f32| {
                <arrow_array::types::Float16Type as arrow_array::types::ArrowPrimitiveType>::Native::from_f32(x)
            }))) as ArrayRef),
            ("born", Arc::new(Date32Array::from(vec![10, 20])) as ArrayRef),
            ("seen", Arc::new(TimestampMillisecondArray::from(vec![day / 2, 3 * day])) as ArrayRef),
            ("y", Arc::new(Int64Array::from(vec![0, 1])) as ArrayRef),
        ])
        .unwrap()
    };
    let compressions = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(GzipLevel::default()),
        Compression::ZSTD(ZstdLevel::default()),
        Compression::BROTLI(BrotliLevel::default()),
        Compression::LZ4_RAW,
    ];
    for compression in compressions {
        let folder = Folder::new();
        let file = folder.file("p.parquet", "");
        let batch = table();
        let properties =
            ::parquet::file::properties::WriterProperties::builder().set_compression(compression).build();
        let out = std::fs::File::create(&file).unwrap();
        let mut writer =
            ::parquet::arrow::ArrowWriter::try_new(out, batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let columns =
            table::TableColumns { dates: vec!["born".into(), "seen".into()], ..columns("clinic", "y") };
        let imported = parquet::import(&[file], &columns, Features::Dense, &folder.target()).unwrap();
        let rows = inputs(&opened(&imported), FederationIndex(0));
        assert_eq!(rows, [123.45, 1.5, 10.0, 0.5, -0.5, -0.25, 20.0, 3.0], "{compression}");
    }
}

/// Returns an array as a `.npy` file.
fn npy(descr: &str, is_fortran: bool, shape: &str, bytes: impl IntoIterator<Item = u8>) -> Vec<u8> {
    let order = if is_fortran { "True" } else { "False" };
    let header = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}\n");
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    file.extend(bytes);
    file
}

/// Imports a `.npz` file with the arrays x and y.
fn import_npz(x: &[u8], y: &[u8]) -> Federation {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, bytes) in [("x.npy", x), ("y.npy", y)] {
        writer.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
        std::io::Write::write_all(&mut writer, bytes).unwrap();
    }
    let folder = Folder::new();
    let file = folder.file("a.npz", writer.finish().unwrap().into_inner());
    let arrays = npz::NpzArrays { x: "x".into(), y: "y".into(), device: None };
    opened(&npz::import(&file, &arrays, Features::Dense, &folder.target()).unwrap())
}

#[test]
fn an_array_in_fortran_order_is_the_same_array() {
    let read = |is_fortran, x: [f32; 6]| {
        let x = npy("<f4", is_fortran, "(2, 3)", x.into_iter().flat_map(f32::to_le_bytes));
        inputs(&import_npz(&x, &npy("|u1", false, "(2,)", [1, 0])), FederationIndex(0))
    };
    let rows = read(false, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(read(true, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]), rows);
}

#[test]
fn npz_labels_may_be_words() {
    let x = npy("<f4", false, "(3, 1)", [1.0f32, 2.0, 3.0].into_iter().flat_map(f32::to_le_bytes));
    let labels = "nojayn".chars().flat_map(|c| u32::from(c).to_le_bytes());
    let federation = import_npz(&x, &npy("<U2", false, "(3,)", labels));
    assert_eq!(federation.class_names(), ["ja", "no", "yn"]);
    assert_eq!(federation.examples(FederationIndex(0)).label(0), 1);
}

#[test]
fn leafs_train_and_test_folders_are_kept_apart_on_request_and_it_is_said_when_not() {
    let folder = Folder::new();
    let shard =
        |x: f32| format!("{{\"users\": [\"a\"], \"user_data\": {{\"a\": {{\"x\": [[{x}]], \"y\": [0]}}}}}}");
    let train = folder.file("train/s.json", shard(1.5));
    let paths = [
        train.parent().unwrap().to_owned(),
        folder.file("test/s.json", shard(2.5)).parent().unwrap().to_owned(),
    ];
    let together = leaf::import(&paths, Features::Dense, &folder.target()).unwrap();
    assert_eq!(together.manifest.devices, 1);
    let options = &together.manifest.source.as_ref().unwrap().options;
    assert_eq!(options["train and test parts"], "put together, device by device");

    let target = ImportTarget { keep_split: true, ..ImportTarget::new(folder.0.path().join("kept")) };
    let federation = opened(&leaf::import(&paths, Features::Dense, &target).unwrap());
    let in_split =
        |split| federation.split(split).iter().map(|&k| inputs(&federation, k)).collect::<Vec<_>>();
    assert_eq!((in_split(Split::Train), in_split(Split::Test)), (vec![vec![1.5]], vec![vec![2.5]]));
}

#[test]
fn compressed_files_and_several_files_are_one_table() {
    let folder = Folder::new();
    let plain = folder.file("a.csv", "clinic,sex,age,outcome\nnorth,F,61,ill\nsouth,M,48,well\n");
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    zip.start_file("b.csv", zip::write::SimpleFileOptions::default()).unwrap();
    std::io::Write::write_all(&mut zip, b"outcome,clinic,sex,age\nwell,north,M,35\n").unwrap();
    let zipped = folder.file("b.zip", zip.finish().unwrap().into_inner());
    let format = table::TableFormat::Delimited(table::Dialect::Csv);
    let columns = columns("clinic", "outcome");
    let imported =
        table::import_files(&[plain.clone(), zipped], format, &columns, Features::Dense, &folder.target())
            .unwrap();
    check_patients(&opened(&imported));
    let other = folder.file("c.csv", "clinic,age\nnorth,1\n");
    let target = ImportTarget::new(folder.0.path().join("second"));
    let refused =
        table::import_files(&[plain, other], format, &columns, Features::Dense, &target).unwrap_err();
    assert!(refused.to_string().contains("c.csv: there is no column \"sex\""), "{refused}");
}

#[test]
fn a_file_that_is_no_text_is_named() {
    let mut two = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for name in ["a", "b"] {
        two.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
    }
    let cases: [(Vec<u8>, &str); 4] = [
        (
            b"PAR1\x15".to_vec(),
            "expected text, but this is a Parquet file: import it with `data import parquet`",
        ),
        (b"a,b\n\x00,1\n".to_vec(), "expected text, but this is a binary file"),
        (b"\xff\xfea\x00".to_vec(), "expected text, but this is UTF-16: save it as UTF-8"),
        (
            two.finish().unwrap().into_inner(),
            "a zip archive of 2 files: unpack it, and name the files to import",
        ),
    ];
    for (bytes, expected) in cases {
        assert_eq!(csv_error(bytes, &columns("clinic", "y")), format!("t.csv: {expected}"));
    }
    let folder = Folder::new();
    for (text, expected) in [
        ("{\"author\": 1}\n{broken\n", "line 2: not a JSON object"),
        ("{\"author\": 1}\n[1]\n", "line 2: not a JSON object: expected an object"),
    ] {
        let file = folder.file("t.jsonl", text);
        let format = table::TableFormat::JsonLines;
        let refused = table::import_files(&[file], format, &text_columns(), Features::Auto, &folder.target());
        assert!(refused.unwrap_err().to_string().contains(expected), "{expected}");
        assert!(!folder.0.path().join("out").exists());
    }
}

/// Imports a table of two columns besides the label, and returns its devices and categories.
fn exact_texts(ids: ArrayRef, categories: ArrayRef) -> (Vec<String>, Vec<String>) {
    let folder = Folder::new();
    let file = folder.0.path().join("in/p.parquet");
    let y = Arc::new(Int64Array::from(vec![0, 1])) as ArrayRef;
    write_parquet(&file, vec![("clinic", ids), ("code", categories), ("y", y)]);
    let columns = table::TableColumns { categories: vec!["code".into()], ..columns("clinic", "y") };
    let imported = parquet::import(&[file], &columns, Features::Auto, &folder.target()).unwrap();
    let federation = opened(&imported);
    let ids = federation.devices().map(|k| federation.id(k).to_owned()).collect();
    (ids, imported.manifest.features[0].categories.clone())
}

#[test]
fn large_numbers_are_different_devices_and_categories() {
    use arrow_array::Decimal128Array;
    let whole = |a: i64| Arc::new(Int64Array::from(vec![a, a + 1])) as ArrayRef;
    let real = |a: f64| Arc::new(Float64Array::from(vec![a, a + 1.0])) as ArrayRef;
    let decimal = |a: i128| {
        let values = Decimal128Array::from(vec![a, a + 1]).with_precision_and_scale(38, 0).unwrap();
        Arc::new(values) as ArrayRef
    };
    let two = ["16777216", "16777217"].map(str::to_owned).to_vec();
    assert_eq!(exact_texts(real(16_777_216.0), whole(16_777_216)), (two.clone(), two.clone()));
    assert_eq!(exact_texts(whole(16_777_216), real(16_777_216.0)), (two.clone(), two));
    let large = ["-9007199254740993", "-9007199254740992"].map(str::to_owned).to_vec();
    let (ids, categories) = exact_texts(decimal(-9_007_199_254_740_993), decimal(-9_007_199_254_740_993));
    // Categories have an alphabetical order.
    assert_eq!((ids, categories.into_iter().rev().collect()), (large.clone(), large));
}

#[test]
fn large_numbers_of_json_are_different_categories() {
    let folder = Folder::new();
    let text = "{\"d\":\"a\",\"x\":16777216,\"y\":0}\n{\"d\":\"a\",\"x\":16777217,\"y\":1}\n";
    let file = folder.file("t.jsonl", text);
    let columns = table::TableColumns { categories: vec!["x".into()], ..columns("d", "y") };
    let format = table::TableFormat::JsonLines;
    let imported = table::import_files(&[file], format, &columns, Features::Auto, &folder.target()).unwrap();
    assert_eq!(imported.manifest.features[0].categories, ["16777216", "16777217"]);
}

#[test]
fn two_values_of_a_json_key_are_refused() {
    for object in ["{\"d\":\"a\",\"x\":1,\"x\":2,\"y\":0}", "{\"d\":\"a\",\"x.a\":1,\"x\":{\"a\":2},\"y\":0}"]
    {
        let folder = Folder::new();
        let file = folder.file("t.jsonl", format!("{{\"d\":\"a\",\"x\":1,\"y\":0}}\n{object}\n"));
        let format = table::TableFormat::JsonLines;
        let columns = columns("d", "y");
        let error = table::import_files(&[file], format, &columns, Features::Auto, &folder.target());
        let error = error.unwrap_err().to_string();
        assert!(error.contains("t.jsonl, line 2: two columns are called"), "{error}");
    }
}

#[test]
fn npz_truth_values_are_zero_and_one_and_large_devices_differ() {
    let folder = Folder::new();
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let ids = [9_007_199_254_740_992i64, 9_007_199_254_740_993].into_iter().flat_map(i64::to_le_bytes);
    let arrays = [
        ("x.npy", npy("|b1", false, "(2, 1)", [1, 0])),
        ("y.npy", npy("|u1", false, "(2,)", [1, 0])),
        ("d.npy", npy("<i8", false, "(2,)", ids)),
    ];
    for (name, bytes) in arrays {
        writer.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
        std::io::Write::write_all(&mut writer, &bytes).unwrap();
    }
    let file = folder.file("a.npz", writer.finish().unwrap().into_inner());
    let arrays = npz::NpzArrays { x: "x".into(), y: "y".into(), device: Some("d".into()) };
    let federation = opened(&npz::import(&file, &arrays, Features::Auto, &folder.target()).unwrap());
    assert_eq!(federation.kind(), InputKind::Bytes { dim: 1 });
    assert_eq!((federation.len(), inputs(&federation, FederationIndex(0))), (2, vec![1.0]));
}

#[test]
fn files_with_lists_have_the_same_columns_in_any_order_and_lists_of_one_length() {
    use arrow_array::ListArray;
    use arrow_array::types::Float32Type;
    let lists = |lists: [&[f32]; 2]| {
        let rows = lists.map(|list| Some(list.iter().copied().map(Some).collect::<Vec<_>>()));
        Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(rows)) as ArrayRef
    };
    let folder = Folder::new();
    let write = |name: &str, columns: Vec<(&str, ArrayRef)>| {
        let path = folder.0.path().join(name);
        let more = |name| (name, Arc::new(StringArray::from(vec!["a", "a"])) as ArrayRef);
        let y = ("y", Arc::new(Int64Array::from(vec![0, 1])) as ArrayRef);
        write_parquet(&path, columns.into_iter().chain([more("d"), more("g"), y]).collect());
        path
    };
    let u = || ("u", lists([&[1.0, 2.0], &[3.0, 4.0]]));
    let v = || ("v", lists([&[5.0], &[6.0]]));
    let (first, second) = (write("1.parquet", vec![u(), v()]), write("2.parquet", vec![v(), u()]));
    let ignored = |name: &str| deltafl::data::IgnoredColumn { name: name.into(), reason: String::new() };
    let columns = table::TableColumns { ignored: vec![ignored("g")], ..columns("d", "y") };
    let import = |files: &[std::path::PathBuf], columns: &table::TableColumns, out: &str| {
        let target = ImportTarget::new(folder.0.path().join(out));
        parquet::import(files, columns, Features::Dense, &target)
    };
    let both = opened(&import(&[first.clone(), second], &columns, "both").unwrap());
    let rows = [1.0, 2.0, 5.0, 3.0, 4.0, 6.0];
    assert_eq!(inputs(&both, FederationIndex(0)), [rows, rows].concat());

    let uneven = [("u", lists([&[1.0, 2.0], &[3.0]])), ("v", lists([&[5.0], &[6.0, 7.0]]))];
    let uneven = write("3.parquet", uneven.to_vec());
    let error = import(&[uneven], &columns, "uneven").unwrap_err().to_string();
    assert!(error.contains("row 1: the column \"u\" has 1 features, and 2 in the rows before"), "{error}");

    let group = table::TableColumns { group: Some("g".into()), ..columns.clone() };
    let error = import(&[first], &group, "group").unwrap_err().to_string();
    assert!(error.contains("the table has lists or images, so the column \"g\" cannot be"), "{error}");
}
