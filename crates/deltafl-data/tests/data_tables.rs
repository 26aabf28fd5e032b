//! Tables as strangers have them: words, categories, pandas' index, semicolons, a byte order mark, splits in a column.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use deltafl::data::{
    BatchBuffer, DataContract, FeatureColumn, Federation, FederationIndex, InputKind, MissingRule, Split,
    TargetKind, TextUnit,
};
use deltafl::kernel::Isa;
use deltafl::model::ModelSpec;
use deltafl_data::import::{Features, ImportTarget, Imported, leaf, npz, parquet, table};
use tempfile::TempDir;

/// A folder to work in.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join("in").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn target(&self) -> ImportTarget {
        ImportTarget::new(self.0.path().join("out"))
    }
}

fn columns(device: &str, label: &str) -> table::TableColumns {
    table::TableColumns { device: Some(device.into()), label: label.into(), ..table::TableColumns::default() }
}

fn csv(folder: &Folder, text: impl AsRef<[u8]>, columns: &table::TableColumns) -> Imported {
    let file = folder.file("t.csv", text);
    table::import(&file, table::Dialect::Csv, columns, Features::Dense, &folder.target()).unwrap()
}

fn csv_error(text: impl AsRef<[u8]>, columns: &table::TableColumns) -> String {
    let folder = Folder::new();
    let file = folder.file("t.csv", text);
    let refused = table::import(&file, table::Dialect::Csv, columns, Features::Dense, &folder.target());
    let parent = file.parent().unwrap().display().to_string();
    refused.unwrap_err().to_string().replace(&format!("{parent}/"), "")
}

/// The inputs of a device.
fn inputs(federation: &Federation, k: FederationIndex) -> Vec<f32> {
    let examples = federation.examples(k);
    BatchBuffer::default().gather(&examples, 0..examples.len()).inputs.dense().to_vec()
}

fn opened(imported: &Imported) -> Federation {
    let federation = imported.open().unwrap();
    federation.verify().unwrap();
    federation
}

const PATIENTS: &str = "clinic,sex,age,outcome\nnorth,F,61,ill\nsouth,M,48,well\nnorth,M,35,well\n";

fn check_patients(federation: &Federation) {
    assert_eq!(federation.class_names(), ["ill", "well"]);
    assert_eq!((federation.classes(), federation.class_name(1)), (2, "well".to_owned()));
    let sex = FeatureColumn::of_categories("sex", vec!["F".into(), "M".into()]);
    let age = FeatureColumn::number("age");
    assert_eq!(federation.feature_columns(), [sex, age]);
    // Device "north": F and M, one feature each, then the age.
    assert_eq!(inputs(federation, FederationIndex(0)), [1.0, 0.0, 61.0, 0.0, 1.0, 35.0]);
    let labels: Vec<u32> = (0..2).map(|i| federation.examples(FederationIndex(0)).label(i)).collect();
    assert_eq!(labels, [0, 1]);
}

#[test]
fn words_become_classes_with_names_and_a_feature_per_category() {
    let folder = Folder::new();
    let federation = opened(&csv(&folder, PATIENTS, &columns("clinic", "outcome")));
    check_patients(&federation);
    // A copy keeps the names, and a model trains on it.
    let again = folder.0.path().join("again");
    deltafl_data::save(&federation, &again).unwrap();
    check_patients(&deltafl_data::open(&again).unwrap());
    ModelSpec::LOGISTIC.build(&federation, Isa::detect()).unwrap();
}

#[test]
fn quotes_a_byte_order_mark_semicolons_and_windows_line_ends_make_no_difference() {
    let quoted = "\u{feff}\"clinic\";\"sex\";\"age\";\"outcome\"\r\n\"north\";\"F\";61;\"ill\"\r\n\"south\";\"M\";48;\"well\"\r\n\"north\";\"M\";35;\"well\"\r\n";
    check_patients(&opened(&csv(&Folder::new(), quoted, &columns("clinic", "outcome"))));
}

#[test]
fn the_first_line_below_the_header_is_line_2_whatever_ends_a_line() {
    for end in ["\n", "\r\n"] {
        let text = ["clinic,age,y", "north,61,0", "south,old,1", ""].join(end);
        let error = csv_error(&text, &columns("clinic", "y"));
        assert!(error.starts_with("t.csv, line 3: \"old\" is not a number"), "{error}");
        let text = ["clinic,age,y", "north,61", ""].join(end);
        assert_eq!(csv_error(&text, &columns("clinic", "y")), "t.csv, line 2: fields: expected 3, found 2");
    }
}

#[test]
fn a_column_of_numbers_can_be_read_as_words() {
    let mut columns = columns("clinic", "y");
    columns.categories = vec!["ward".into()];
    let text = "clinic,ward,y\na,7,0\na,12,1\na,annex,0\n";
    let federation = opened(&csv(&Folder::new(), text, &columns));
    assert_eq!(federation.feature_columns()[0].categories, ["12", "7", "annex"]);
    assert_eq!(inputs(&federation, FederationIndex(0)), [0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
}

#[test]
fn what_is_missing_is_named_with_its_line() {
    let columns = columns("clinic", "outcome");
    assert_eq!(
        csv_error("clinic,sex,outcome\na,F,ill\nb,,well\n", &columns),
        "t.csv, line 3: the value of column \"sex\" is missing: fill it in, or choose a rule with --missing drop, mean or category"
    );
    assert_eq!(
        csv_error("clinic,sex,outcome\na,F,ill\nb,M,\n", &columns),
        "t.csv, line 3: the value of column \"outcome\" is missing: fill it in, or choose a rule with --missing drop, mean or category"
    );
    assert_eq!(
        csv_error("clinic,age,outcome\na,1,ill\n  ,2,well\n", &columns),
        "t.csv, line 3: the id of the device is empty"
    );
}

#[test]
fn a_column_with_too_many_words_is_refused() {
    let rows: String = (0..1001).map(|i| format!("a,name-{i},0\n")).collect();
    assert_eq!(
        csv_error(format!("clinic,name,y\n{rows}"), &columns("clinic", "y")),
        "t.csv, line 1002: the column \"name\" has more than 1000 different words: leave it out with --columns"
    );
}

#[test]
fn the_index_of_a_data_frame_is_no_feature_and_is_said() {
    for name in ["", "Unnamed: 0"] {
        let text = format!("{name},clinic,age,y\n0,a,61,0\n1,b,48,1\n");
        let imported = csv(&Folder::new(), text, &columns("clinic", "y"));
        assert_eq!(imported.manifest.input, InputKind::Dense { dim: 1 });
        let dropped = &imported.manifest.source.unwrap().dropped[0];
        assert_eq!((dropped.reason.as_str(), dropped.count), ("unnamed first column, an index", 1));
    }
}

#[test]
fn a_column_can_say_who_trains_and_who_tests() {
    let columns = table::TableColumns { split: Some("part".into()), ..columns("clinic", "y") };
    let text = "clinic,part,age,y\na,train,1,0\na,TEST,2,1\nb,train,3,0\nc,val,4,1\n";
    let federation = opened(&csv(&Folder::new(), text, &columns));
    let ids = |split| federation.split(split).iter().map(|&k| federation.id(k)).collect::<Vec<_>>();
    assert_eq!(
        (ids(Split::Train), ids(Split::Test), ids(Split::Validation)),
        (vec!["a", "b"], vec!["a"], vec!["c"])
    );
    let error = csv_error("clinic,part,age,y\na,later,1,0\n", &columns);
    assert_eq!(error, "t.csv, line 2: \"later\" is none of train, test and validation");
}

#[test]
fn numbers_to_predict_stay_numbers() {
    let folder = Folder::new();
    let file = folder.file("t.csv", "city,rooms,price\na,3,250.5\na,2,180\nb,5,-1e3\n");
    let target = ImportTarget { regression: true, ..folder.target() };
    let imported =
        table::import(&file, table::Dialect::Csv, &columns("city", "price"), Features::Auto, &target);
    let federation = opened(&imported.unwrap());
    assert_eq!(federation.targets(), TargetKind::Values);
    assert_eq!(
        (federation.examples(FederationIndex(0)).value(1), federation.examples(FederationIndex(1)).value(0)),
        (180.0, -1000.0)
    );
    let error = csv_error("city,rooms,price\na,3,250.5\n", &columns("city", "price"));
    assert!(error.ends_with("numbers to predict are imported with --regression"), "{error}");
}

#[test]
fn more_than_65536_classes_survive_the_folder() {
    let rows: String = (0..66_000).map(|i| format!("{i},0.5\n")).collect();
    let columns = table::TableColumns { label: "y".into(), ..table::TableColumns::default() };
    let federation = opened(&csv(&Folder::new(), format!("y,x\n{rows}"), &columns));
    assert_eq!(
        (federation.classes(), federation.examples(FederationIndex(0)).label(65_999)),
        (66_000, 65_999)
    );
}

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

/// A `.npz` with a 2 × 3 array x in the given order, and labels y.
fn npz_file(order: &str, x: [f32; 6]) -> Vec<u8> {
    let npy = |descr: &str, order: &str, shape: &str, bytes: Vec<u8>| {
        let header = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}\n");
        let mut file = b"\x93NUMPY\x01\x00".to_vec();
        file.extend((header.len() as u16).to_le_bytes());
        file.extend(header.as_bytes());
        file.extend(bytes);
        file
    };
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let x: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
    for (name, bytes) in
        [("x.npy", npy("<f4", order, "(2, 3)", x)), ("y.npy", npy("|u1", "False", "(2,)", vec![1, 0]))]
    {
        writer.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
        std::io::Write::write_all(&mut writer, &bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

#[test]
fn an_array_in_fortran_order_is_the_same_array() {
    let read = |order: &str, x| {
        let folder = Folder::new();
        let file = folder.file("a.npz", npz_file(order, x));
        let arrays = npz::NpzArrays { x: "x".into(), y: "y".into(), device: None };
        inputs(
            &opened(&npz::import(&file, &arrays, Features::Dense, &folder.target()).unwrap()),
            FederationIndex(0),
        )
    };
    let rows = read("False", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(read("True", [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]), rows);
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

const HOMES: &str = "city,area,kind,sold,price\nA,50,flat,2024-01-31,1\nA,,house,2024-02-01,0\nB,70,,2024-02-02,1\nB,NA,flat,,0\n,1,flat,,1\nB,1,flat,,\n";

#[test]
fn missing_values_follow_the_rule_and_are_counted() {
    let import = |missing| {
        let columns = table::TableColumns { missing, ..columns("city", "price") };
        let imported = csv(&Folder::new(), HOMES, &columns);
        let source = imported.manifest.source.clone().unwrap();
        (imported.manifest, source)
    };
    let columns_of = |manifest: &deltafl_data::Manifest| {
        manifest
            .features
            .iter()
            .map(|column| (column.fill, column.indicator, column.width()))
            .collect::<Vec<_>>()
    };
    let (manifest, source) = import(MissingRule::Drop);
    assert_eq!((manifest.examples, source.dropped[0].count), (1, 5), "{source:?}");

    let (manifest, source) = import(MissingRule::Mean);
    assert_eq!((manifest.examples, source.dropped[0].count), (4, 2));
    assert_eq!(source.options["missing values replaced"], "area: 2, kind: 1");
    assert_eq!(columns_of(&manifest), [(Some(60.0), false, 1), (None, false, 3)]);
    assert_eq!(manifest.features[1].categories, ["flat", "house", "(missing)"]);
    let ignored = &manifest.table.unwrap().ignored[0];
    assert_eq!((ignored.name.as_str(), ignored.reason.as_str()), ("sold", "dates, unless --date names them"));

    let (manifest, _) = import(MissingRule::Category);
    assert_eq!(columns_of(&manifest), [(Some(60.0), true, 2), (None, false, 3)]);
    assert!(
        csv_error(HOMES, &columns("city", "price"))
            .starts_with("t.csv, line 3: the value of column \"area\"")
    );
}

#[test]
fn dates_are_days_if_they_are_named() {
    let columns = table::TableColumns { dates: vec!["sold".into()], ..columns("city", "y") };
    let text = "city,sold,y\na,1970-01-11,0\na,1970-01-02T12:00:00Z,1\n";
    let federation = opened(&csv(&Folder::new(), text, &columns));
    assert_eq!(inputs(&federation, FederationIndex(0)), [10.0, 1.5]);
    assert!(federation.feature_columns()[0].date);
    let error = csv_error(format!("{text}a,soon,0\n"), &columns);
    assert_eq!(error, "t.csv, line 4: \"soon\" is not a date, and the column \"sold\" is read as dates");
}

#[test]
fn decimal_commas_are_numbers_in_semicolon_files_and_on_request() {
    let text = "city;area;y\na;1,5;0\na;1.234,25;1\na;2;0\n";
    let federation = opened(&csv(&Folder::new(), text, &columns("city", "y")));
    assert_eq!(inputs(&federation, FederationIndex(0)), [1.5, 1234.25, 2.0]);
    let mixed = csv_error("city;area;y\na;1,5;0\na;2.5;1\n", &columns("city", "y"));
    assert!(mixed.contains("has numbers with a decimal comma and numbers with a decimal point"), "{mixed}");
    let quoted = "city,area,y\na,\"1,5\",0\n";
    let comma = table::TableColumns { decimal: Some(table::Decimal::Comma), ..columns("city", "y") };
    assert_eq!(inputs(&opened(&csv(&Folder::new(), quoted, &comma)), FederationIndex(0)), [1.5]);
}

#[test]
fn roles_that_contradict_each_other_are_refused() {
    let said = |columns: &table::TableColumns, text: &str| csv_error(text, columns);
    let text = "city,area,y\na,1,0\n";
    let both = table::TableColumns { features: vec!["area".into(), "y".into()], ..columns("city", "y") };
    assert_eq!(
        said(&both, text),
        "t.csv: the column \"y\" cannot be the label and a feature at the same time"
    );
    assert_eq!(
        said(&columns("y", "y"), text),
        "t.csv: the column \"y\" cannot be the label and the device at the same time"
    );
    assert_eq!(
        said(&columns("city", "y"), "city,area,area,y\na,1,2,0\n"),
        "t.csv: two columns are called \"area\": rename one of them"
    );
    let prices: String = (0..30).map(|i| format!("a,1,{}\n", 100_000 + 777 * i)).collect();
    let sparse = said(&columns("city", "y"), &format!("city,area,y\n{prices}"));
    assert_eq!(
        sparse,
        "t.csv: the labels are 30 different numbers up to 122533: --regression predicts them as numbers, and --classes \
         122534 imports them as classes"
    );
}

const REVIEWS: [&str; 4] = [
    "author,text,stars\nann,\"A good, GOOD film\",good\nann,bad,bad\n",
    "{\"author\": \"ann\", \"text\": \"A good, GOOD film\", \"stars\": \"good\"}\n\n{\"stars\": \"bad\", \"text\": \"bad\", \"author\": \"ann\"}\n",
    "[{\"author\": \"ann\", \"text\": \"A good, GOOD film\", \"stars\": \"good\"},\n{\"stars\": \"bad\", \"text\": \"bad\", \"author\": \"ann\"}]",
    "\u{feff}author;text;stars\r\nann;A good, GOOD film;good\r\nann;bad;bad\r\n",
];

fn text_columns() -> table::TableColumns {
    table::TableColumns { texts: vec!["text".into()], ..columns("author", "stars") }
}

fn format_of(text: &str) -> table::TableFormat {
    match text.starts_with(['{', '[']) {
        true => table::TableFormat::JsonLines,
        false => table::TableFormat::Delimited(table::Dialect::Csv),
    }
}

#[test]
fn texts_are_words_of_the_vocabulary_in_every_format() {
    for text in REVIEWS {
        let folder = Folder::new();
        let file = folder.file("t", text);
        let imported =
            table::import_files(&[file], format_of(text), &text_columns(), Features::Auto, &folder.target())
                .unwrap();
        let federation = opened(&imported);
        assert_eq!(federation.kind(), InputKind::Tokens { len: 5, vocabulary: 6 });
        let words: Vec<&str> = federation.words().unwrap().iter().collect();
        assert_eq!(words, ["", "good", ",", "a", "bad", "film"], "{text}");
        assert_eq!(federation.class_names(), ["bad", "good"]);
        let examples = federation.examples(FederationIndex(0));
        let mut buffer = BatchBuffer::default();
        assert_eq!(buffer.gather(&examples, 0..2).inputs.tokens(), [3, 1, 2, 1, 5, 4, 0, 0, 0, 0]);
        let again = folder.0.path().join("again");
        deltafl_data::save(&federation, &again).unwrap();
        deltafl_data::open(&again).unwrap().verify().unwrap();
    }
    let characters = table::TableColumns {
        text: table::TextOptions { unit: TextUnit::Characters, ..table::TextOptions::default() },
        ..text_columns()
    };
    let federation = opened(&csv(&Folder::new(), "author,text,stars\na,aba,x\na,b,y\n", &characters));
    assert_eq!(federation.kind(), InputKind::Tokens { len: 3, vocabulary: 3 });
}

#[test]
fn the_vocabulary_is_that_of_the_train_devices() {
    let columns = table::TableColumns { split: Some("part".into()), ..text_columns() };
    let text = "author,part,text,stars\nann,train,seen,x\nbob,test,hidden seen,y\n";
    let federation = opened(&csv(&Folder::new(), text, &columns));
    assert_eq!(federation.words().unwrap().iter().collect::<Vec<_>>(), ["", "seen"]);
    let mut buffer = BatchBuffer::default();
    let tokens = buffer.gather(&federation.examples(FederationIndex(1)), 0..1).inputs.tokens().to_vec();
    assert_eq!(tokens, [1, 0], "an unknown word is skipped");
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

#[test]
fn a_later_table_is_coded_as_the_first() {
    let folder = Folder::new();
    let first = opened(&csv(&folder, PATIENTS, &columns("clinic", "outcome")));
    let contract = DataContract::from_federation(&first);
    let contract = DataContract::from_bytes(&contract.to_bytes()).unwrap();
    // Another order of columns, one more column, an unseen category, an absent class.
    let later = folder.file("l.csv", "outcome,age,more,sex,clinic\nwell,40,x,X,east\nwell,41,y,M,east\n");
    let format = table::TableFormat::Delimited(table::Dialect::Csv);
    let target = ImportTarget::new(folder.0.path().join("later"));
    let options = table::LikeOptions::default();
    let imported =
        table::import_like(std::slice::from_ref(&later), format, &contract, &options, &target).unwrap();
    let federation = opened(&imported);
    assert_eq!((federation.class_names(), federation.kind()), (first.class_names(), first.kind()));
    assert_eq!(inputs(&federation, FederationIndex(0)), [0.0, 0.0, 40.0, 0.0, 1.0, 41.0]);
    assert_eq!(federation.examples(FederationIndex(0)).label(0), 1);

    let target = ImportTarget::new(folder.0.path().join("third"));
    let unknown = folder.file("u.csv", "outcome,age,sex,clinic\nunclear,40,F,east\n");
    let refused =
        table::import_like(&[unknown], format, &contract, &options, &target).unwrap_err().to_string();
    assert!(
        refused.ends_with("the class \"unclear\" is not among those that the model knows: ill, well"),
        "{refused}"
    );
    let unlabelled = folder.file("p.csv", "sex,age\nF,40\n");
    let options = table::LikeOptions { one_device: true, without_labels: true, ..options };
    let federation =
        opened(&table::import_like(&[unlabelled], format, &contract, &options, &target).unwrap());
    assert_eq!(inputs(&federation, FederationIndex(0)), [1.0, 0.0, 40.0]);
}

#[test]
fn later_texts_use_the_words_of_the_first() {
    let folder = Folder::new();
    let first = opened(&csv(&folder, REVIEWS[0], &text_columns()));
    let contract = DataContract::from_federation(&first);
    let later = folder.file("l.csv", "stars,text\nbad,an awful film\n");
    let options = table::LikeOptions { one_device: true, ..table::LikeOptions::default() };
    let target = ImportTarget::new(folder.0.path().join("later"));
    let format = table::TableFormat::Delimited(table::Dialect::Csv);
    let federation = opened(&table::import_like(&[later], format, &contract, &options, &target).unwrap());
    assert_eq!(federation.kind(), first.kind());
    let mut buffer = BatchBuffer::default();
    let tokens = buffer.gather(&federation.examples(FederationIndex(0)), 0..1).inputs.tokens().to_vec();
    assert_eq!(tokens, [5, 0, 0, 0, 0]);
}

#[test]
fn npz_labels_may_be_words() {
    let npy = |descr: &str, shape: &str, bytes: Vec<u8>| {
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
        let mut file = b"\x93NUMPY\x01\x00".to_vec();
        file.extend((header.len() as u16).to_le_bytes());
        file.extend(header.as_bytes());
        file.extend(bytes);
        file
    };
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let labels: Vec<u8> = "nojayno".chars().take(6).flat_map(|c| u32::from(c).to_le_bytes()).collect();
    let x: Vec<u8> = [1.0f32, 2.0, 3.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    for (name, bytes) in [("x.npy", npy("<f4", "(3, 1)", x)), ("y.npy", npy("<U2", "(3,)", labels))] {
        writer.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
        std::io::Write::write_all(&mut writer, &bytes).unwrap();
    }
    let folder = Folder::new();
    let file = folder.file("a.npz", writer.finish().unwrap().into_inner());
    let arrays = npz::NpzArrays { x: "x".into(), y: "y".into(), device: None };
    let federation = opened(&npz::import(&file, &arrays, Features::Dense, &folder.target()).unwrap());
    assert_eq!(federation.class_names(), ["ja", "no", "yn"]);
    assert_eq!(federation.examples(FederationIndex(0)).label(0), 1);
}
