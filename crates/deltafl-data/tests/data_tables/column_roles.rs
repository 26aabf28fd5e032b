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

#[test]
fn a_decimal_point_beside_decimal_commas_is_refused_in_targets_and_other_columns() {
    let said = |text: &str| {
        let folder = Folder::new();
        let file = folder.file("t.csv", text);
        let target = ImportTarget { regression: true, ..folder.target() };
        table::import(&file, table::Dialect::Csv, &columns("city", "price"), Features::Auto, &target)
            .unwrap_err()
            .to_string()
    };
    let target = said("city;area;price\na;1;1.234,5\na;2;1.234\n");
    assert!(target.contains("the column \"price\" has numbers with a decimal comma"), "{target}");
    let other = said("city;area;price\na;1.234;1,5\na;2.500;2,5\n");
    assert!(other.contains("the column \"area\" has numbers with a decimal comma"), "{other}");
    let comma = table::TableColumns { decimal: Some(table::Decimal::Comma), ..columns("city", "y") };
    let named = csv_error("city,area,y\na,1.234,0\n", &comma);
    assert!(named.contains("the column \"area\" has numbers with a decimal comma"), "{named}");

    let folder = Folder::new();
    let first = opened(&csv(&folder, "city;area;y\na;1,5;0\na;1.234,5;1\n", &columns("city", "y")));
    let later = folder.file("later.csv", "city;area\na;1,5\na;1.234\n");
    let options = table::LikeOptions { without_labels: true, ..table::LikeOptions::default() };
    let target = ImportTarget::new(folder.0.path().join("later"));
    let format = table::TableFormat::Delimited(table::Dialect::Csv);
    let contract = DataContract::from_federation(&first);
    let later = table::import_like(&[later], format, &contract, &options, &target).unwrap_err().to_string();
    assert!(later.contains("the column \"area\" has numbers with a decimal comma"), "{later}");
}

#[test]
fn a_date_with_slashes_and_the_day_first_is_refused() {
    let columns = table::TableColumns { dates: vec!["sold".into()], ..columns("city", "y") };
    let text = "city,sold,y\na,05/03/2024,0\n";
    let federation = opened(&csv(&Folder::new(), format!("{text}a,05/31/2024,1\n"), &columns));
    assert_eq!(inputs(&federation, FederationIndex(0)), [19846.0, 19874.0]);
    assert_eq!(
        csv_error(format!("{text}a,31/05/2024,1\n"), &columns),
        "t.csv, line 3: the date \"31/05/2024\" in the column \"sold\" has the day first, but dates with slashes \
         have the month first: write dates as 2024-03-31"
    );
}

#[test]
fn spellings_of_truth_values_and_of_whole_numbers_are_one_value() {
    let category = table::TableColumns { categories: vec!["size".into()], ..columns("city", "y") };
    let text = "city,sold,size,y\na,True,1.0,TRUE\na,TRUE,2,true\na,false,1,False\na,False,2.0,false\n";
    let folder = Folder::new();
    let imported = csv(&folder, text, &category);
    assert_eq!(
        imported.manifest.features.iter().map(|column| column.categories.clone()).collect::<Vec<_>>(),
        [["True", "false"], ["1.0", "2"]]
    );
    let federation = opened(&imported);
    assert_eq!(federation.class_names(), ["False", "TRUE"]);
    let rows = [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0];
    assert_eq!(inputs(&federation, FederationIndex(0)), rows);

    let later = folder.file("later.csv", "city,size,sold\na,1,true\na,2.0,TRUE\na,,yes\n");
    let options = table::LikeOptions { without_labels: true, ..table::LikeOptions::default() };
    let target = ImportTarget::new(folder.0.path().join("later"));
    let contract = DataContract::from_federation(&federation);
    let format = table::TableFormat::Delimited(table::Dialect::Csv);
    let later = table::import_like(&[later], format, &contract, &options, &target).unwrap();
    assert_eq!(inputs(&opened(&later), FederationIndex(0))[..8], [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0]);
    assert_eq!(later.manifest.source.unwrap().options[table::UNSEEN], "sold: 1, size: 1");
}

#[test]
fn a_header_that_is_not_utf8_is_refused() {
    let error = csv_error(b"city,gr\xf6\xdfe,y\na,1,0\n", &columns("city", "y"));
    assert_eq!(error, "t.csv, line 1: not valid UTF-8");
}

#[test]
fn columns_of_zeros_and_ones_are_numbers_and_later_rows_may_contain_others() {
    let folder = Folder::new();
    let import = |features, text: &str, later: &str| {
        let file = folder.file("t.csv", text);
        let target = ImportTarget::new(folder.0.path().join(format!("{features:?}")));
        let columns = columns("city", "y");
        let imported = table::import(&file, table::Dialect::Csv, &columns, features, &target).unwrap();
        let contract = DataContract::from_federation(&opened(&imported));
        let later = folder.file("later.csv", later);
        let options = table::LikeOptions { without_labels: true, ..table::LikeOptions::default() };
        let target = ImportTarget::new(folder.0.path().join(format!("later {features:?}")));
        let format = table::TableFormat::Delimited(table::Dialect::Csv);
        let later = table::import_like(&[later], format, &contract, &options, &target).unwrap();
        (opened(&imported), opened(&later))
    };
    let (first, later) = import(Features::Auto, "city,a,y\na,1,0\na,0,1\n", "city,a\na,2\na,0.5\n");
    assert_eq!((first.kind(), later.kind()), (InputKind::Dense { dim: 1 }, InputKind::Dense { dim: 1 }));
    assert_eq!(inputs(&later, FederationIndex(0)), [2.0, 0.5]);
    let (first, later) = import(Features::GreyLevels, "city,a,y\na,255,0\na,51,1\n", "city,a\na,1\na,0\n");
    assert_eq!((first.kind(), later.kind()), (InputKind::Bytes { dim: 1 }, InputKind::Bytes { dim: 1 }));
    assert_eq!(inputs(&later, FederationIndex(0)), [1.0 / 255.0, 0.0]);
}

#[test]
fn a_quote_that_is_not_closed_is_refused() {
    let text = "city,y,note\na,0,u\nb,1,\"v\nc,0,u\nd,1,v\n";
    assert_eq!(
        csv_error(text, &columns("city", "y")),
        "t.csv, line 3: a quote of the row is not closed, so that the row contains the rest of the file: close it, \
         or write it twice"
    );
    let closed = csv(&Folder::new(), "city,y,note\r\na,0,u\r\nb,1,\"v\r\nc\"\r\n", &columns("city", "y"));
    assert_eq!(closed.manifest.features[0].categories, ["u", "v\r\nc"]);
}
