//! Steps at which a first attempt went wrong without a word.

use std::fs;
use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::support::Workdir;

/// A red JPEG of 8 × 8 pixels, as libjpeg writes it.
const JPEG: &str = "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABQODxIPDRQSEBIXFRQYHjIhHhwcHj0sLiQySUBMS0dARkVQWnNiUFVtVkVGZIhlbXd\
    7gYKBTmCNl4x9lnN+gXz/2wBDARUXFx4aHjshITt8U0ZTfHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHz/wAARC\
    AAIAAgDASIAAhEBAxEB/8QAFQABAQAAAAAAAAAAAAAAAAAAAAX/xAAUEAEAAAAAAAAAAAAAAAAAAAAA/8QAFQEBAQAAAAAAAAAAAAAAAAAABAb/xAAUEQ\
    EAAAAAAAAAAAAAAAAAAAAA/9oADAMBAAIRAxEAPwCaAMoH/9k=";

/// A table of eight cities with a price and a kind.
fn houses() -> Workdir {
    let workdir = Workdir::with("");
    let row = |i: usize| {
        let (area, kind) = (40 + i * 37 % 160, i % 3);
        format!(
            "c{},{area},{},{}\n",
            i % 8,
            ["flat", "house", "villa"][kind],
            100_000 + 900 * area + 30_000 * kind
        )
    };
    let rows: String = (0..240).map(row).collect();
    fs::write(workdir.path("houses.csv"), format!("city,area,kind,price\n{rows}")).unwrap();
    let numbers =
        "data import csv houses.csv --device city --label price --regression --train 0.5 --out houses";
    workdir.printed(numbers);
    workdir.printed("data import csv houses.csv --device city --label kind --train 0.5 --out kinds");
    let experiment = |data: &str| {
        format!(
            "name = '{data}'\nrounds = 8\ncohort = 4\n[data]\nsource = '{data}'\n[model]\nkind = 'linear'\n\
             [local]\nsteps = 10\nbatch = 10\nlearning_rate = 0.1\n[[algorithm]]\nkind = 'fedavg'\n"
        )
    };
    for data in ["houses", "kinds"] {
        fs::write(workdir.path(&format!("{data}.toml")), experiment(data)).unwrap();
    }
    workdir
}

#[test]
fn a_model_worse_than_a_constant_is_pointed_out() {
    let workdir = houses();
    let told = workdir.printed("run houses.toml --quiet --out good");
    assert!(told.contains("always the mean") && !told.contains("is worse than the constant"), "{told}");
    let bare = "--set data.normalise=none --set model.intercept=false --set local.learning_rate=1e-7";
    let told = workdir.printed(&format!("run houses.toml --quiet {bare} --out bad"));
    let line = "FedAvg is worse than the constant prediction \"always the mean\": RMSE ";
    assert!(told.contains(line) && told.contains("or intercept = true"), "{told}");
}

#[test]
fn a_perceptron_predicts_numbers_and_init_says_if_they_are_too_large() {
    let workdir = houses();
    let told = workdir.printed("init houses --model perceptron --rounds 5 --out large.toml");
    assert!(
        told.contains("none of 6 was better than a constant prediction: divide the targets by"),
        "{told}"
    );
    let table = fs::read_to_string(workdir.path("houses.csv")).unwrap();
    let scaled: String = table
        .lines()
        .skip(1)
        .map(|line| {
            let (rest, price) = line.rsplit_once(',').unwrap();
            format!("{rest},{}\n", price.parse::<f64>().unwrap() / 1e5)
        })
        .collect();
    fs::write(workdir.path("small.csv"), format!("city,area,kind,price\n{scaled}")).unwrap();
    workdir.printed("data import auto small.csv --label price --train 0.5 --out small");
    let told = workdir.printed("init small --model perceptron --rounds 30");
    assert!(told.contains("the best of 6 in 10 rounds"), "{told}");
    workdir.printed("run small.toml --quiet --out r");
    let summary: serde_json::Value =
        serde_json::from_slice(&fs::read(workdir.path("r/summary.json")).unwrap()).unwrap();
    let mean = |of: &serde_json::Value| of["test"]["mean"]["mean"].as_f64().unwrap();
    let (model, constant) = (mean(&summary["tracks"][0]), mean(&summary["baseline"]));
    assert!(model < 0.5 * constant, "{model} {constant}");
}

#[test]
fn init_does_not_advise_a_linear_model_to_use_a_linear_model() {
    let workdir = Workdir::with("");
    let price = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54; // unrelated to the area
    let rows: String = (0..60).map(|i| format!("city {},{i},{}\n", i % 6, price(i))).collect();
    fs::write(workdir.path("t.csv"), format!("city,area,price\n{rows}")).unwrap();
    workdir.printed("data import csv t.csv --device city --label price --regression --out t");
    let told = workdir.printed("init t --out linear.toml");
    assert!(told.contains("was better than a constant prediction (--rate)"), "{told}");
    let told = workdir.printed("init t --model perceptron --out perceptron.toml");
    assert!(told.contains("their standard deviation, or use --model linear (--rate)"), "{told}");
}

#[test]
fn init_chooses_a_model_that_predicts_a_number_from_a_text() {
    let workdir = Workdir::with("");
    let score = |i: u64| if i.is_multiple_of(3) { 1.5 } else { -0.5 };
    let word = |i: u64| if i.is_multiple_of(3) { "warm" } else { "dull" };
    let rows: String = (0..96).map(|i| format!("{},a {} film {i},{}\n", i % 8, word(i), score(i))).collect();
    fs::write(workdir.path("t.csv"), format!("author,text,score\n{rows}")).unwrap();
    workdir.printed("data import csv t.csv --device author --label score --text text --regression --out t");
    let told = workdir.printed("init t --rounds 2");
    assert!(told.contains("rnn, because the examples are texts"), "{told}");
    workdir.printed("run t.toml --quiet --out r");
    let error = workdir.refusal("init t --model text-bag --out bag.toml");
    assert!(error.contains("rnn (of texts)"), "{error}");
}

#[test]
fn tuning_uses_the_split_of_the_import_and_its_last_line_can_be_run() {
    let workdir = houses();
    let told = workdir.printed("tune kinds.toml --set rounds=2 --rates 0.1,1 --quiet --out tuned");
    let ready = told.split("Ready to run:\n  deltafl ").nth(1).unwrap_or_else(|| panic!("{told}"));
    let table = workdir.printed(ready.lines().next().unwrap());
    assert!(table.contains("FedAvg"), "{table}");
}

#[test]
fn a_single_class_is_pointed_out() {
    let workdir = Workdir::with("");
    fs::write(workdir.path("t.csv"), "user,x,label\na,1,yes\nb,2,yes\n").unwrap();
    let told = workdir.printed("data import csv t.csv --device user --label label --out t");
    assert!(told.contains("warning: all examples have the same label"), "{told}");
}

#[test]
fn a_jpeg_keeps_its_colours() {
    let workdir = Workdir::with("");
    let bytes = STANDARD.decode(JPEG).unwrap();
    for (class, user) in [("red", "a"), ("also red", "a"), ("red", "b")] {
        fs::create_dir_all(workdir.path(&format!("photos/{user}/{class}"))).unwrap();
        fs::write(workdir.path(&format!("photos/{user}/{class}/1.jpg")), &bytes).unwrap();
    }
    let told = workdir.printed("data import auto photos --out p");
    assert!(told.contains("2 devices, 3 examples, 2 classes (also red, red)"), "{told}");
    assert!(told.contains("images: 8 × 8 × 3"), "{told}");
    // The sheet shows the colours.
    workdir.printed("data show p --out sheet.png");
    let decoder =
        png::Decoder::new(std::io::BufReader::new(fs::File::open(workdir.path("sheet.png")).unwrap()));
    let mut reader = decoder.read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    assert_eq!(reader.next_frame(&mut pixels).unwrap().color_type, png::ColorType::Rgb);
    assert!(pixels.chunks_exact(3).any(|pixel| pixel[0] > 150 && pixel[1] < 100 && pixel[2] < 100));

    // Other files are counted, and a missing image is named with its row.
    fs::write(workdir.path("photos/a/red/2.webp"), "RIFF").unwrap();
    let told = workdir.printed("data import auto photos --out q");
    assert!(told.contains("left out: 1 files other than PNG and JPEG images"), "{told}");
    let rows = "path,user,label\nphotos/a/red/1.jpg,a,x\nphotos/nothing.jpg,b,y\n";
    fs::write(workdir.path("list.csv"), rows).unwrap();
    let told = workdir.refusal("data import auto list.csv --out l").replace("\n  │", "");
    assert!(told.contains("list.csv, line 3: there is no image photos/nothing.jpg"), "{told}");
}

#[test]
fn a_zip_archive_is_read_and_the_text_of_leaf_is_shown_as_text() {
    let workdir = Workdir::with("");
    let file = fs::File::create(workdir.path("pg100.zip")).unwrap();
    let mut archive = zip::ZipWriter::new(file);
    archive.start_file("pg100.txt", zip::write::SimpleFileOptions::default()).unwrap();
    archive.write_all("THE SONNETS\n".repeat(50).as_bytes()).unwrap();
    archive.finish().unwrap();
    let told = workdir.refusal("data import shakespeare pg100.zip --out s").replace("\n  │", "");
    assert!(told.contains("pg100.zip: holds no plays") && !told.contains("UTF-8"), "{told}");

    let leaf = r#"{"users": ["a"], "num_samples": [2], "user_data": {"a": {
        "x": ["Once upon a time, the", "ere was a king. He ha"], "y": ["r", "d"]}}}"#;
    fs::write(workdir.path("leaf.json"), leaf).unwrap();
    workdir.printed("data import leaf leaf.json --out l");
    let told = workdir.printed("data show l");
    assert!(told.contains("Once upon a time") && told.contains("ere was a king"), "{told}");
}
