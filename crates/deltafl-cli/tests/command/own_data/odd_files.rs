//! Files as other programs write them.

use std::fs;

use crate::support::Workdir;

/// Imports a file with `auto` and returns the output.
fn imported(workdir: &Workdir, name: &str, contents: &[u8], options: &str) -> String {
    fs::write(workdir.path(name), contents).unwrap();
    workdir.printed(&format!("data import auto {name} {options} --out {}.fed", name.replace('.', "-")))
}

#[test]
fn objects_of_json_may_be_in_an_array_on_one_line_or_on_many() {
    let workdir = Workdir::with("");
    let object = |i: usize| {
        let age = if i.is_multiple_of(5) { String::new() } else { format!("\"age\": {}, ", 20 + i) };
        let bought = if i.is_multiple_of(3) { "true" } else { "false" };
        format!(
            "{{\"user\": {{{age}\"id\": \"u{}\"}}, \"note\": \"a ] }} \\\" b\", \"clicks\": {}.5, \"bought\": {bought}}}",
            i % 4,
            i % 7
        )
    };
    let objects: Vec<String> = (0..40).map(object).collect();
    let lines = imported(&workdir, "lines.jsonl", objects.join("\n").as_bytes(), "");
    let line = imported(&workdir, "line.json", format!("[{}]", objects.join(", ")).as_bytes(), "");
    let spread = objects.join(",").replace(", \"", ",\n  \"");
    let many = imported(&workdir, "many.json", format!("[\n{spread}\n]\n").as_bytes(), "");
    // The columns keep the order of the keys, and the last one that fits is the label.
    let expected = ["user.id   device      4 devices", "user.age  number      21 to 59, 8 missing"];
    let label = "bought    label       2 classes, a guess: --label names another column";
    for told in [&lines, &line, &many] {
        assert!(expected.iter().all(|text| told.contains(text)) && told.contains(label), "{told}");
        assert!(told.contains("2 classes (false, true)"), "{told}");
    }
    let hash = |name: &str| {
        workdir.printed(&format!("data info {name}")).split("hash").nth(1).unwrap()[..70].to_owned()
    };
    assert_eq!(hash("lines-jsonl.fed"), hash("line-json.fed"));
    assert_eq!(hash("lines-jsonl.fed"), hash("many-json.fed"));
    // A key that no object of a file has is missing there.
    let (first, second) = objects.split_at(20);
    let without = second.join("\n").replace("\"age\"", "\"years\"");
    fs::write(workdir.path("a.jsonl"), first.join("\n")).unwrap();
    fs::write(workdir.path("b.jsonl"), without).unwrap();
    let told = workdir.printed("data import auto a.jsonl b.jsonl --out both");
    assert!(told.contains("user.age    number      21 to 39, 24 missing"), "{told}");
    assert!(told.contains("user.years  number      41 to 59, 24 missing"), "{told}");
    let cases = [
        ("[{\"a\": 1},\n{\"a\": }]", "line 2: not a JSON object: expected value"),
        ("[{\"a\": 1},\n{\"a\": \"x\ny\"}]", "line 2: not a JSON object: a text does not end in its line"),
        ("{\"a\": 1}\n\n{\"a\": 1", "line 3: not a JSON object: the file ends inside an object"),
        ("{\"a\": 1}\n7\n", "line 2: not a JSON object: expected an object such as"),
    ];
    for (contents, expected) in cases {
        fs::write(workdir.path("broken.json"), contents).unwrap();
        let told = workdir.refusal("data import auto broken.json --out out");
        assert!(told.replace("\n  │", "").contains(expected), "{expected}: {told}");
    }
}

#[test]
fn a_file_that_cannot_be_read_as_meant_is_refused_with_the_fix() {
    let workdir = Workdir::with("");
    let refused = |name: &str, contents: &[u8]| {
        fs::write(workdir.path(name), contents).unwrap();
        workdir.refusal(&format!("data import auto {name} --out out")).replace("\n  │", "")
    };
    let told = refused("plain.csv", b"0,1.5,1\n1,2.5,0\n");
    assert!(told.contains("plain.csv: the first line contains numbers only"), "{told}");
    let told = refused("latin.csv", b"who,x,y\nK\xf6ln,1,0\n");
    assert!(
        told.contains("latin.csv, line 2: not valid UTF-8") && told.contains("help: save the file as"),
        "{told}"
    );
    // Columns of a data frame without names are named by numbers.
    let rows: String = (0..20).map(|i| format!("{}.5,{}\n", i % 5, i % 2)).collect();
    let told = imported(&workdir, "frame.csv", format!("0,1\n{rows}").as_bytes(), "--label 1");
    assert!(told.contains("20 examples, 2 classes"), "{told}");
}

#[test]
fn numbers_with_units_are_named_and_do_not_become_categories() {
    let workdir = Workdir::with("");
    let rows: String = (0..60)
        .map(|i| {
            format!(
                "shop {},{i},\"{},{:03}\",{}%,{}\n",
                i % 6,
                i % 7 + 1,
                i * 13 % 1000,
                i % 50,
                ["no", "yes"][i % 2]
            )
        })
        .collect();
    let table = format!("shop,guests,amount,share,sold\n{rows}");
    let told = imported(&workdir, "t.csv", table.as_bytes(), "");
    for column in ["amount", "share "] {
        let expected = format!("{column}  other       not used: numbers with units or separated thousands");
        assert!(told.contains(&expected), "{told}");
    }
    let told = workdir.refusal("data import auto t.csv --ignore guests --out none");
    assert!(told.contains("t.csv: no column is left as a feature"), "{told}");
}

#[test]
fn quoted_decimal_commas_are_not_categories() {
    let workdir = Workdir::with("");
    let rows: String =
        (0..40).map(|i| format!("u{},\"{i},5\",{i},{}\n", i % 4, ["no", "yes"][i % 2])).collect();
    let told = imported(&workdir, "t.csv", format!("user,x,z,sold\n{rows}").as_bytes(), "");
    assert!(
        told.contains("x     other       not used: numbers with decimal commas: give --decimal ,"),
        "{told}"
    );
    let table = "data import csv t.csv --device user --label sold";
    let told = workdir.refusal(&format!("{table} --out a")).replace("\n  │", "");
    assert!(told.contains("the column \"x\" contains numbers with commas: give --decimal ,"), "{told}");
    // Every importer of tables lists the columns with their types.
    let told = workdir.printed(&format!("{table} --decimal , --out b"));
    assert!(told.contains("    user  device\n    sold  label\n    x  number\n    z  number\n"), "{told}");
    let told = workdir.printed(&format!("{table} --category x --out c"));
    assert!(told.contains("    x  category of 40 values\n"), "{told}");
}

#[test]
fn a_run_is_evaluated_on_a_later_table_as_it_is() {
    let workdir = Workdir::with("");
    let row = |i: usize| format!("c{},{},{},{}\n", i % 6, 40 + i, ["flat", "house", "villa"][i % 3], 900 * i);
    let rows: String = (0..120).map(row).collect();
    imported(&workdir, "h.csv", format!("city,area,kind,price\n{rows}").as_bytes(), "--label price");
    workdir.printed("init h-csv.fed --rounds 5 --rate 0.1");
    workdir.printed("run h-csv.fed.toml --quiet --out r");
    fs::rename(workdir.path("h-csv.fed"), workdir.path("moved")).unwrap();
    // Another order, an absent and an unseen category; the original data has moved.
    fs::write(
        workdir.path("later.csv"),
        "price,kind,area,city\n90000,flat,90,x\n99000,castle,80,x\n1,flat,7,y\n",
    )
    .unwrap();
    let told = workdir.printed("evaluate r --data later.csv");
    assert!(told.contains("Test RMSE over the 2 devices of later.csv"), "{told}");
    fs::write(workdir.path("wrong.csv"), "price,kind,city\n90000,flat,x\n").unwrap();
    let told = workdir.refusal("evaluate r --data wrong.csv");
    assert!(told.contains("wrong.csv: there is no column \"area\""), "{told}");
}

#[test]
fn truth_values_of_one_format_are_those_of_another() {
    let workdir = Workdir::with("");
    let rows = |yes: &str, no: &str, quote: &str| {
        let row = |i: usize| {
            let smokes = if i.is_multiple_of(2) { yes } else { no };
            match quote {
                "" => format!("p{},{smokes},{}\n", i % 5, ["ill", "well"][i % 2]),
                _ => format!(
                    "{{\"patient\": \"p{}\", \"smokes\": {smokes}, \"state\": \"{}\"}}\n",
                    i % 5,
                    ["ill", "well"][i % 2]
                ),
            }
        };
        (0..40).map(row).collect::<String>()
    };
    imported(&workdir, "a.jsonl", rows("true", "false", "\"").as_bytes(), "--label state");
    workdir.printed("init a-jsonl.fed --rounds 5 --rate 0.5");
    workdir.printed("run a-jsonl.fed.toml --quiet --out r");
    fs::write(workdir.path("b.csv"), format!("patient,smokes,state\n{}", rows("True", "False", ""))).unwrap();
    // The labels of a table for predictions are not read: they may be missing or unknown.
    fs::write(workdir.path("c.csv"), "state,smokes\n,True\nunknown,False\n").unwrap();
    assert!(workdir.printed("predict r b.csv --out p.csv").contains("(ill: 20, well: 20)"));
    assert!(workdir.printed("predict r c.csv --out p.csv").contains("(ill: 1, well: 1)"));
}

#[test]
fn a_tokenizer_divides_texts_or_the_missing_feature_is_named() {
    let workdir = Workdir::with("");
    let vocabulary = r#"{"[UNK]": 0, "good": 1, "film": 2, "bad": 3}"#;
    let tokenizer = format!(
        r#"{{"version": "1.0", "added_tokens": [], "normalizer": {{"type": "Lowercase"}},
            "pre_tokenizer": {{"type": "Whitespace"}}, "model": {{"type": "WordLevel",
            "vocab": {vocabulary}, "unk_token": "[UNK]"}}}}"#
    );
    fs::write(workdir.path("tokenizer.json"), tokenizer).unwrap();
    let rows: String = (0..40)
        .map(|i| format!("u{},{} film number {i},{}\n", i % 4, ["Good", "BAD"][i % 2], ["yes", "no"][i % 2]))
        .collect();
    fs::write(workdir.path("t.csv"), format!("user,text,label\n{rows}")).unwrap();
    let import = "data import auto t.csv --tokenizer tokenizer.json --out t";
    if !cfg!(feature = "tokenizers") {
        let told = workdir.refusal(import).replace("\n  │", "");
        assert!(
            told.contains("this build has no tokenizers: install deltafl with --features tokenizers"),
            "{told}"
        );
        return;
    }
    assert!(workdir.printed(import).contains("vocabulary: 4"));
    workdir.printed("init t --rounds 10");
    workdir.printed("run t.toml --quiet --out r");
    fs::remove_file(workdir.path("tokenizer.json")).unwrap();
    fs::write(workdir.path("new.csv"), "text\nGOOD\nbad film\n").unwrap();
    let told = workdir.printed("predict r new.csv --out p.csv");
    assert!(told.contains("(no: 1, yes: 1)"), "{told}");
}
