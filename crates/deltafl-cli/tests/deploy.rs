//! docs/deploy.md as a test: certificates, a server, a fleet, the knob.

#![cfg(feature = "net")]
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};

const EXPERIMENT: &str = r#"
name = "deployed"
rounds = 4
cohort = 8
evaluate_every = 2
[data]
source = { kind = "glyphs", devices = 24 }
[model]
kind = "linear"
[local]
steps = 2
batch = 10
learning_rate = 0.1
[[algorithm]]
kind = "fedavg"
[[algorithm]]
kind = "delta-fl"
theta = [0.5, 0.25]
quantile = "histogram"
"#;

/// A folder in which commands are run.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        fs::write(place.path().join("x.toml"), EXPERIMENT).unwrap();
        place
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_deltafl"));
        command.args(line.split_whitespace()).current_dir(self.path());
        command.env("DELTAFL_DATABASE", "sqlite:state/deltafl.sqlite");
        command
    }

    fn run(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    /// What a command that succeeds prints.
    fn printed(&self, line: &str) -> String {
        let output = self.run(line);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{line}\n{out}\n{err}");
        out.into_owned()
    }

    /// Why a command fails.
    fn refused(&self, line: &str) -> String {
        let output = self.run(line);
        assert!(!output.status.success(), "{line}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn start(&self, line: &str) -> Running {
        let mut child = self.command(line).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stderr.take().unwrap());
        Running { child, said }
    }
}

/// A process that ends with the test, and what it says.
struct Running {
    child: Child,
    said: BufReader<ChildStderr>,
}

impl Running {
    /// Reads on to a line that starts like this; what follows.
    fn hear(&mut self, start: &str) -> String {
        let mut heard = String::new();
        loop {
            let mut line = String::new();
            assert!(self.said.read_line(&mut line).unwrap() > 0, "it ended without {start:?}:\n{heard}");
            if let Some(rest) = line.strip_prefix(start) {
                return rest.trim().to_owned();
            }
            heard.push_str(&line);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_federation_is_deployed_as_the_documentation_says() {
    let place = Place::new();
    place.printed("certs init --federation clinics");
    place.printed("certs server --host localhost --host 127.0.0.1");
    assert!(place.printed("certs show certs").contains("authority of clinics"));
    place.printed("certs device --fleet 12 --out fleet.json");
    place.printed("doctor --certs certs --blobs state/blobs");

    let mut server = place.start(
        "serve x.toml --certs certs --out run --listen 127.0.0.1:0 --http 127.0.0.1:0 --stay --blobs state/blobs --wait-for 12",
    );
    let http = server.hear("live page: ");
    let grpc = server.hear("listening on ");
    let port = |address: &str| address.rsplit(':').next().unwrap().split(';').next().unwrap().to_owned();
    let url = format!("https://localhost:{}", port(&http));
    let _swarm = place.start(&format!("swarm x.toml --fleet fleet.json --server localhost:{}", port(&grpc)));
    server.hear("all rounds are done");

    // The same bytes as a simulation.
    place.printed("run x.toml --out simulated --quiet");
    let checkpoint =
        |run: &str| fs::read(place.path().join(run).join("checkpoint/seed-1.safetensors")).unwrap();
    assert!(checkpoint("run") == checkpoint("simulated"));

    // A new device enrols with a token, and turns the knob.
    let token = place.printed("enrol token");
    let enrol = |name: &str, out: &str| {
        format!("enrol device {name} --server {url} --token {} --out {out}", token.trim())
    };
    assert!(place.printed(&enrol("tablet", "tablet")).contains("tablet is device 12 of clinics"));
    assert!(place.refused(&enrol("other", "other")).contains("used up or expired"));
    place.printed(&format!("doctor --identity tablet --server {url}"));
    let pulled = place.printed(&format!("model pull --theta 0.3 --server {url} --identity tablet"));
    assert!(pulled.starts_with("θ = 0.25, version 4"), "{pulled}");
    // Its card says how losses lie, from secure sums: bounds of percentiles, and no device's loss.
    let card = fs::read_to_string(place.path().join("model.card.json")).unwrap();
    let card: serde_json::Value = serde_json::from_str(&card).unwrap();
    let losses = &card["losses"];
    assert_eq!((losses["mode"].as_str(), losses["version"].as_u64()), (Some("private"), Some(3)), "{card}");
    assert_eq!(losses["devices"], 8, "{card}");
    let median = &losses["percentiles"][2];
    assert!(median["lower"].as_f64() < median["upper"].as_f64(), "{card}");
    assert_eq!(losses["histograms"].as_array().map(Vec::len), Some(2), "two levels: {card}");
    let again = place.printed(&format!("model pull --theta 0.3 --server {url} --identity tablet"));
    assert!(again.contains("is the newest already"), "{again}");
    place.printed("data synth glyphs --devices 6 --out mine");
    let tried = place.printed(&format!("model try --data mine --server {url} --identity tablet"));
    assert_eq!(tried.matches("serves this device best").count(), 1, "{tried}");
    assert_eq!(tried.lines().filter(|line| line.contains('%')).count(), 3, "{tried}");

    assert!(place.printed("certs revoke tablet").contains("revoked"));
    assert!(place.refused("certs revoke nobody").contains("there is no device nobody"));
}

#[test]
fn mistakes_are_answered_with_what_to_do() {
    let place = Place::new();
    assert!(place.refused("certs server --host localhost").contains("deltafl certs init"));
    assert!(place.refused("certs init --federation Not.A.Name").contains("a–z"));
    place.printed("certs init --federation clinics");
    assert!(place.refused("certs init --federation clinics").contains("exists already"));
    assert!(place.refused("serve x.toml").contains("--certs DIR"));
    let output = place.run("doctor --certs certs --blobs state/blobs");
    let found = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!output.status.success() && found.contains("BAD   server certificate"), "{found}");
    assert!(found.contains("ok    authority") && found.contains("ok    database"), "{found}");
}
