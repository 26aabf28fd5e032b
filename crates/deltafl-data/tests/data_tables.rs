//! Tables as strangers have them: words, categories, pandas' index, semicolons, a byte order mark,
//! splits in a column.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use deltafl::data::{
    BatchBuffer, DataContract, FeatureColumn, Federation, FederationIndex, InputKind, MissingRule, Split,
    TargetKind, TextUnit,
};
use deltafl::kernel::Isa;
use deltafl::model::ModelSpec;
use deltafl_data::import::{Features, ImportTarget, Imported, table};
use tempfile::TempDir;

#[path = "data_tables/column_roles.rs"]
mod column_roles;
#[path = "data_tables/formats.rs"]
mod formats;
#[path = "data_tables/texts.rs"]
mod texts;

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
fn more_than_65536_classes_survive_the_folder() {
    let rows: String = (0..66_000).map(|i| format!("{i},0.5\n")).collect();
    let columns = table::TableColumns { label: "y".into(), ..table::TableColumns::default() };
    let federation = opened(&csv(&Folder::new(), format!("y,x\n{rows}"), &columns));
    assert_eq!(
        (federation.classes(), federation.examples(FederationIndex(0)).label(65_999)),
        (66_000, 65_999)
    );
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
