//! The roles of columns, and how their values are read.

use super::*;

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
