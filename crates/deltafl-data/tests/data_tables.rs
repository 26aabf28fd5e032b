//! Tables as strangers have them: words, categories, pandas' index, semicolons, a byte order mark, splits in a column.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use deltafl::data::{BatchBuffer, FeatureColumn, Federation, FederationIndex, InputKind, Split, TargetKind};
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
    let sex = FeatureColumn { name: "sex".into(), categories: vec!["F".into(), "M".into()] };
    let age = FeatureColumn { name: "age".into(), categories: Vec::new() };
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
        "t.csv, line 3: the value of column \"sex\" is missing: fill it in, or leave the row or the column out"
    );
    assert_eq!(
        csv_error("clinic,sex,outcome\na,F,ill\nb,M,\n", &columns),
        "t.csv, line 3: the value of column \"outcome\" is missing: fill it in, or leave the row or the column out"
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
