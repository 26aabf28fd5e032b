//! `deltafl evaluate`: evaluates the models of a run on other devices.

use std::fs;

use serde_json::Value;

use super::workdir;

#[test]
fn evaluating_the_devices_of_the_run_reproduces_its_errors() {
    let workdir = workdir::workdir();
    workdir.printed("data synth glyphs --devices 24 --seed 5 --out d");
    workdir.printed("run x.toml --set data.source=d --set data.normalise=standard --out r -q");
    let json = |words: &str| -> Value { serde_json::from_str(&workdir.printed(words)).unwrap() };
    let all = json("evaluate r --data d --json --devices devices.csv");
    assert_eq!((all["tracks"].as_array().unwrap().len(), &all["tracks"][0]["seeds"]), (3, &2.into()));
    // The error of each device is that of the run's last evaluation, normalised by the train
    // devices.
    workdir.printed("export r --format csv --out e");
    let rows = |path: &str| -> Vec<csv::StringRecord> {
        csv::Reader::from_path(workdir.path(path)).unwrap().records().map(Result::unwrap).collect()
    };
    let header = csv::Reader::from_path(workdir.path("e/devices.csv")).unwrap().headers().unwrap().clone();
    let column = |name: &str| header.iter().position(|column| column == name).unwrap();
    let known: Vec<[String; 3]> = rows("e/devices.csv")
        .iter()
        .filter(|row| &row[column("round")] == "6")
        .map(|row| ["seed", "device", "error"].map(|name| row[column(name)].to_owned()))
        .collect();
    let evaluated = rows("devices.csv");
    assert_eq!(
        (evaluated.len(), known.len()),
        (24 * 3 * 2, 24 * 3 * 2),
        "every device, regardless of its split"
    );
    for row in &evaluated {
        let found = [row[0].to_owned(), row[2].to_owned(), row[5].to_owned()];
        assert!(known.contains(&found), "{row:?}");
    }

    let one = json("evaluate r --data d --theta 0.5 --json");
    assert_eq!(one["tracks"], serde_json::json!([all["tracks"][1]]));
    workdir.printed("data synth glyphs --devices 8 --seed 99 --out other");
    let printed = workdir.printed("evaluate r --data other");
    assert!(printed.contains("over the 8 devices of other after 6 rounds, 2 seeds"), "{printed}");
}

#[test]
fn data_that_does_not_fit_the_models_is_rejected() {
    let workdir = workdir::workdir();
    workdir.printed("run x.toml --set rounds=1 --out r -q");
    workdir.printed("data synth logistic --devices 4 --out other");
    assert!(workdir.refusal("evaluate r --data other").contains("is not like the data of the run"));
    assert!(workdir.refusal("evaluate r --data nowhere").contains("cannot open the federation nowhere"));
    assert!(workdir.refusal("evaluate r --data other --theta 0.3").contains("no model for θ = 0.3"));
    fs::create_dir(workdir.path("empty")).unwrap();
    assert!(workdir.refusal("evaluate empty --data other").contains("holds no run"));
}

#[test]
fn later_data_is_matched_by_the_names_of_classes_and_columns() {
    let workdir = workdir::workdir();
    let csv = |turned: bool, words: [&str; 2]| {
        let row = |i: usize| {
            let (age, sex) = ((i % 5).to_string(), ["F", "M"][i % 2]);
            let [a, b] = if turned { [sex, &age] } else { [age.as_str(), sex] };
            format!("d{},{a},{b},{}\n", i / 4, words[i % 2])
        };
        let columns = if turned { "sex,age" } else { "age,sex" };
        format!("device,{columns},label\n{}", (0..24).map(row).collect::<String>())
    };
    for (name, turned, words) in [
        ("mine", false, ["ill", "well"]),
        ("others", false, ["ill", "well"]),
        ("renamed", false, ["well", "zombie"]),
        ("turned", true, ["ill", "well"]),
    ] {
        fs::write(workdir.path(&format!("{name}.csv")), csv(turned, words)).unwrap();
        workdir.printed(&format!("data import csv {name}.csv --device device --label label --out {name}"));
    }
    let run = "run x.toml --set data.source=mine --set data.split={train=0.5} --set seeds=1 --quiet --out m";
    assert!(workdir.printed(run).contains("By class"));
    let told = workdir.printed("evaluate m --data others");
    assert!(told.contains("test examples taken for another") && told.contains("well"), "{told}");
    let said = workdir.refusal("evaluate m --data renamed");
    assert!(said.contains("class \"zombie\" is not in the contract: [\"ill\", \"well\"]"), "{said}");
    // The order of columns does not matter, an unseen category has a place, a class may be absent,
    // and the data of the run is not needed.
    fs::remove_dir_all(workdir.path("mine")).unwrap();
    let figures = |words: &str| workdir.printed(words).split_once('\n').unwrap().1.to_owned();
    assert_eq!(figures("evaluate m --data turned"), figures("evaluate m --data others"));
    fs::write(workdir.path("new.csv"), "sex,device,label,age\nX,d9,well,3\nF,d9,well,1\n").unwrap();
    workdir.printed("data import csv new.csv --device device --label label --out new");
    workdir.printed("evaluate m --data new");
    let like = workdir.printed("data import csv new.csv --like m --out coded");
    assert!(like.contains("2 classes (ill, well)"), "{like}");
    assert_eq!(
        figures("evaluate m --data coded"),
        figures("evaluate m --data new"),
        "the constants of the run, or the contract at evaluation"
    );
}

#[test]
fn a_model_among_several_of_one_level_is_named_or_refused() {
    let workdir = workdir::workdir();
    workdir.printed("data synth glyphs --devices 24 --seed 5 --out d");
    let two = |kind: &str| format!("--set data.source=d --set rounds=1 --set algorithm.0.kind={kind}");
    workdir.printed(&format!("run x.toml {} --set algorithm.0.q=[1.0,2.0] --out r -q", two("q-ffl")));
    let said = workdir.refusal("predict r d --out p.csv --theta 1");
    assert!(said.contains("several models for θ = 1") && said.contains("q-FFL q=1, q-FFL q=2"), "{said}");
    let said = workdir.refusal("predict r d --out p.csv --seed 9");
    assert!(said.contains("the run has no seed 9") && said.contains("its seeds are 1, 2"), "{said}");
    workdir.printed("export r --format safetensors --out e");
    for file in ["q-ffl-q-1", "q-ffl-q-2", "delta-fl-theta-0.5"] {
        assert!(workdir.path(&format!("e/{file}.safetensors")).is_file(), "{file}");
    }

    // Personal models are on their devices only.
    workdir.printed(&format!("run x.toml {} --out personal -q", two("ditto")));
    let said = workdir.printed("evaluate personal --data d");
    assert!(said.contains("Shared models, because personal models stay on their devices: Ditto"), "{said}");
    let said = workdir.printed("predict personal d --out p.csv");
    assert!(said.contains("predictions of Ditto λ=0.1 model=personal, the shared model"), "{said}");
}
