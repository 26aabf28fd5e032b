//! `deltafl data`: output and files.

use std::fs;
use std::process::{Command, Output};

use tempfile::TempDir;

fn deltafl(dir: &TempDir, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_deltafl")).args(arguments).current_dir(dir.path()).output().unwrap()
}

/// Returns the output of a successful command.
fn printed(dir: &TempDir, arguments: &[&str]) -> String {
    let output = deltafl(dir, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the message of a command that rejects its input.
fn refused(dir: &TempDir, arguments: &[&str]) -> String {
    let output = deltafl(dir, arguments);
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stderr).unwrap()
}

const CSV: &str = "user,y,x1,x2\na,0,0.5,1\na,1,0.25,2\nb,0,0.125,3\nc,2,1,4\nc,2,2,5\nc,1,3,6\n";

fn imported() -> TempDir {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("t.csv"), CSV).unwrap();
    let arguments = ["data", "import", "csv", "t.csv", "--device", "user", "--label", "y", "--out", "f"];
    assert_eq!(printed(&dir, &arguments), FIRST);
    dir
}

/// The output of an import of a federation that has only train devices.
const FIRST: &str = "f: csv, 3 devices, 6 examples, 3 classes
  3 train, 0 test, 0 validation devices
  no test devices: give --train 0.5 here, split = { train = 0.5 } under [data] in the experiment, or
  split = { within = { train = 0.8 } } to hold back examples of each device
  columns
    user  device
    y  label
    x1  number
    x2  number
";

#[test]
fn info_shows_the_federation() {
    let dir = imported();
    let text = printed(&dir, &["data", "info", "f", "--verify"]);
    let without_hash: Vec<&str> = text.lines().filter(|line| !line.contains("hash")).collect();
    assert_eq!(
        without_hash.join("\n"),
        "\x20       name  csv
       input  2 features
    predicts  3 classes
     devices  3: 3 train, 0 test, 0 validation
    examples  6
  per device  min 1, median 2, mean 2.0, max 3
classes each  min 1, median 2, mean 1.7, max 2
  label skew  min 0.333, median 0.333, mean 0.444, max 0.667
      source  csv: t.csv

            1–1  ████████████████████                     1
            2–3  ████████████████████████████████████████ 2

     columns
    user  device
    y  label
    x1  number
    x2  number"
    );
    let json = printed(&dir, &["data", "info", "f", "--json"]);
    assert!(json.contains("\"devices\": 3") && json.contains("\"label_skew\""), "{json}");
}

#[test]
fn a_renamed_option_is_rejected_with_its_new_name() {
    let dir = TempDir::new().unwrap();
    let said = refused(&dir, &["data", "synth", "glyphs", "--points", "5,9,20", "--out", "f"]);
    assert!(said.contains("it is called --examples now"), "{said}");
    let said = refused(&dir, &["data", "split", "f", "--min-points", "3", "--out", "g"]);
    assert!(said.contains("'--min-examples'"), "{said}");
}

#[test]
fn split_and_partition_write_new_folders() {
    let dir = imported();
    let split = ["data", "split", "f", "--train", "0.5", "--min-examples", "1", "--out", "halves"];
    assert_eq!(
        printed(&dir, &split),
        "halves: csv, 2 devices, 5 examples, 3 classes\n  1 train, 1 test, 0 validation devices\n  \
         left out: 1 devices with no more than 1 examples, 1 in all: b (1)\n"
    );
    let partition = ["data", "partition", "f", "--devices", "2", "--iid", "--out", "even"];
    assert_eq!(printed(&dir, &partition), "even: csv, 2 devices, 6 examples, 3 classes\n");
    printed(&dir, &["data", "info", "even", "--verify"]);
}

const EXPERIMENT: &str = r#"
name = "clinics"
rounds = 2
cohort = 2
[data]
source = "f"
[model]
kind = "logistic"
intercept = true
[local]
epochs = 1
batch = 5
learning_rate = 0.1
[[algorithm]]
kind = "fedavg"
"#;

#[test]
fn word_labels_are_imported_and_train_devices_are_reported_without_test_devices() {
    let dir = TempDir::new().unwrap();
    let csv = "clinic;sex;outcome\r\nnorth;F;ill\r\nnorth;M;well\r\nsouth;M;well\r\nsouth;F;ill\r\n";
    fs::write(dir.path().join("t.csv"), csv).unwrap();
    fs::write(dir.path().join("x.toml"), EXPERIMENT).unwrap();
    let import = ["data", "import", "csv", "t.csv", "--device", "clinic", "--label", "outcome", "--out", "f"];
    let said = printed(&dir, &import);
    assert!(said.starts_with("f: csv, 2 devices, 4 examples, 2 classes (ill, well)\n"), "{said}");
    assert!(printed(&dir, &["data", "info", "f"]).contains("2 classes: ill (2), well (2)"));
    assert!(printed(&dir, &["data", "show", "f"]).contains("ill: 1  well: 1"));

    let said = printed(&dir, &["run", "x.toml", "--out", "r", "--quiet"]);
    assert!(said.contains("Train error in %") && said.contains("no test devices"), "{said}");
    let summary = fs::read_to_string(dir.path().join("r/summary.json")).unwrap();
    assert!(
        summary.contains("\"reported\": \"train\"") && summary.contains("\"task\": \"binary\""),
        "{summary}"
    );

    let within = ["run", "x.toml", "--out", "w", "--quiet", "--set", "data.split={within={train=0.5}}"];
    assert!(printed(&dir, &within).contains("Test error in %"));
    let error = refused(&dir, &["run", "x.toml", "--out", "e", "--set", "data.split={within={train=2}}"]);
    assert!(error.contains("a share must lie in [0, 1], got 2"), "{error}");
}

#[test]
fn numeric_targets_are_reported_in_their_unit() {
    let dir = TempDir::new().unwrap();
    let csv = "city,rooms,price\na,1,2.5\na,2,4.5\nb,3,6.5\nb,4,8.5\nc,1,2.5\n";
    fs::write(dir.path().join("t.csv"), csv).unwrap();
    fs::write(dir.path().join("x.toml"), EXPERIMENT.replace("logistic", "linear")).unwrap();
    let import = ["data", "import", "csv", "t.csv", "--device", "city", "--label", "price"];
    let said = printed(&dir, &[&import[..], &["--regression", "--train", "0.7", "--out", "f"]].concat());
    assert!(said.contains("5 examples, numbers to predict") && said.contains("2 train, 1 test"), "{said}");
    assert!(printed(&dir, &["data", "show", "f"]).contains("numbers to predict from 2.5 to"));
    let said = printed(&dir, &["run", "x.toml", "--out", "r", "--quiet"]);
    assert!(said.contains("Test RMSE after 2 rounds"), "{said}");
    assert!(printed(&dir, &["export", "r", "--format", "csv"]).contains("devices.csv"));
    let exported = fs::read_to_string(dir.path().join("r/export/csv/devices.csv")).unwrap();
    assert!(exported.lines().next().unwrap().ends_with("examples,loss,rmse,mae,r_squared"), "{exported}");
    let error = refused(&dir, &["run", "x.toml", "--set", "model.kind=logistic", "--out", "e"]);
    assert!(error.contains("model logistic predicts classes"), "{error}");
}

#[test]
fn an_invalid_file_is_reported_with_its_line() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("t.csv"), "user,y,x\na,0,1\na,zero,1\n").unwrap();
    let arguments = ["data", "import", "csv", "t.csv", "--device", "user", "--label", "y", "--out", "f"];
    let error = refused(&dir, &arguments);
    assert!(error.contains("t.csv, line 3: label zero is not a whole number"), "{error}");
    assert!(!dir.path().join("f").exists());
    assert!(refused(&dir, &["data", "info", "nowhere"]).contains("nowhere/federation.toml"));
}

#[cfg(feature = "fetch")]
mod fetch {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::path::Path;
    use std::thread;

    use super::*;

    /// Returns Gutenberg's archive with a play of two roles of more than 100 windows each.
    fn archive() -> Vec<u8> {
        let line = "words upon words upon words upon words upon words\n";
        let role = |name: &str| format!("  {name}. {line}    {line}    {line}    {line}");
        let head = "header\n\n\nby William Shakespeare\n\n\n\n\nTHE PLAY\n\nby William Shakespeare\n";
        let text = format!("{head}{}{}", role("ANNE"), role("BOB"));
        let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
        writer.start_file("100.txt", zip::write::SimpleFileOptions::default()).unwrap();
        writer.write_all(text.as_bytes()).unwrap();
        writer.finish().unwrap().into_inner()
    }

    /// Serves one file at any address, once.
    fn serve(body: Vec<u8>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/mirror", listener.local_addr().unwrap());
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut line = String::new();
            while line != "\r\n" {
                line.clear();
                reader.read_line(&mut line).unwrap();
            }
            let head =
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(&body).unwrap();
        });
        url
    }

    fn exists(dir: &TempDir, path: impl AsRef<Path>) -> bool {
        dir.path().join(path).exists()
    }

    #[test]
    fn fetch_downloads_and_imports() {
        let dir = TempDir::new().unwrap();
        let url = serve(archive());
        let text = printed(&dir, &["data", "fetch", "shakespeare", "--out", "s", "--mirror", &url]);
        assert!(text.contains("recorded on first use, not verified"), "{text}");
        assert!(text.contains("s/federation: shakespeare, 2 devices"), "{text}");
        assert!(exists(&dir, "s/downloads/1994-01-100.zip.sha256"));
        printed(&dir, &["data", "info", "s/federation", "--verify"]);
    }

    #[test]
    fn fetch_rejects_a_file_that_does_not_match_its_pinned_hash() {
        let dir = TempDir::new().unwrap();
        let (url, pin) = (serve(archive()), format!("1994-01-100.zip={}", "0".repeat(64)));
        let arguments = ["data", "fetch", "shakespeare", "--out", "s", "--mirror", &url, "--sha256", &pin];
        let output = deltafl(&dir, &arguments);
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).contains("SHA-256 is"));
        assert!(!exists(&dir, "s/federation") && !exists(&dir, "s/downloads/1994-01-100.zip"));
    }
}
