//! docs/src/how-to/deploy.md as a test: certificates, a server, a fleet, the choice of θ.

#![cfg(feature = "net")]

use std::fs;

use crate::support::{DEPLOYED, Workdir, checkpoints};
use crate::watchdog;

fn workdir() -> Workdir {
    Workdir::with(DEPLOYED).variable("DELTAFL_DATABASE", "sqlite:state/deltafl.sqlite")
}

/// Returns the port of an address printed by a server.
fn port(said: &str) -> &str {
    said.split(';').next().unwrap().rsplit(':').next().unwrap()
}

#[test]
fn a_federation_is_deployed_as_the_documentation_says() {
    let _limit = watchdog::start();
    let workdir = workdir();
    workdir.printed("certs init --federation clinics");
    workdir.printed("certs server --host localhost --host 127.0.0.1");
    assert!(workdir.printed("certs show certs").contains("authority of clinics"));
    workdir.printed("certs device --fleet 12 --out fleet.json");
    workdir.printed("doctor --certs certs --blobs state/blobs");

    let mut server = workdir.start(
        "serve x.toml --certs certs --authority-here --allow-close-levels --out run --listen 127.0.0.1:0 --http 127.0.0.1:0 --stay --blobs state/blobs --wait-for 12",
    );
    let http = server.hear("live page: ");
    let grpc = server.hear("listening on ");
    let url = format!("https://localhost:{}", port(&http));
    let _swarm = workdir
        .start(&format!("swarm x.toml --fleet fleet.json --min-cohort 3 --server localhost:{}", port(&grpc)));
    server.hear("all rounds are done");

    // The params are the same to the byte as those of a simulation.
    workdir.printed("run x.toml --out simulated --quiet");
    assert!(checkpoints(&workdir.path("run")) == checkpoints(&workdir.path("simulated")));

    // A new device enrols with a token and chooses a level θ.
    let token = workdir.printed("enrol token");
    let enrol = |name: &str, out: &str| {
        format!("enrol device {name} --server {url} --token {} --out {out}", token.trim())
    };
    assert!(workdir.printed(&enrol("tablet", "tablet")).contains("tablet is device 12 of clinics"));
    assert!(workdir.refusal(&enrol("other", "other")).contains("used up or expired"));
    workdir.printed(&format!("doctor --identity tablet --server {url}"));
    let pulled = workdir.printed(&format!("model pull --theta 0.3 --server {url} --identity tablet"));
    assert!(pulled.starts_with("θ = 0.25, version 4"), "{pulled}");
    // Its card describes the distribution of losses by bounds of percentiles from secure sums,
    // without the loss of any device. The third of three tracks trained in round 2.
    let card = fs::read_to_string(workdir.path("model.card.json")).unwrap();
    let card: serde_json::Value = serde_json::from_str(&card).unwrap();
    let losses = &card["losses"];
    assert_eq!((losses["mode"].as_str(), losses["version"].as_u64()), (Some("private"), Some(2)), "{card}");
    assert_eq!(losses["devices"], 8, "{card}");
    let median = &losses["percentiles"][2];
    assert!(median["lower"].as_f64() < median["upper"].as_f64(), "{card}");
    assert_eq!(losses["histograms"].as_array().map(Vec::len), Some(2), "two levels: {card}");
    let again = workdir.printed(&format!("model pull --theta 0.3 --server {url} --identity tablet"));
    assert!(again.contains("is the newest already"), "{again}");
    workdir.printed("data synth glyphs --devices 6 --out mine");
    let tried = workdir.printed(&format!("model try --data mine --server {url} --identity tablet"));
    assert_eq!(tried.matches("serves this device best").count(), 1, "{tried}");
    // The printed command runs without changes.
    let command = tried.lines().find_map(|line| line.strip_prefix("Get it:  deltafl ")).unwrap();
    assert!(workdir.printed(command).contains("version 4"), "{command}");
    assert!(tried.lines().next().unwrap().contains("error %"), "{tried}");
    // A device has the name of its certificate, regardless of the name in its table.
    let words =
        format!("device --server localhost:{} --identity tablet --data mine --name w00000", port(&grpc));
    let mut tablet = workdir.start(&words);
    tablet.hear("tablet takes part in deployed");

    assert!(workdir.printed("certs revoke tablet").contains("revoked"));
    tablet.hear("the server refuses this device's certificate");
    let refused = workdir.refusal(&format!("model pull --theta 0.3 --server {url} --identity tablet"));
    assert!(
        refused.contains("refuses this device's certificate") && refused.contains("it was revoked"),
        "{refused}"
    );
    assert!(workdir.refusal("certs revoke nobody").contains("there is no device nobody"));
}

#[test]
fn errors_include_instructions_to_fix_them() {
    let _limit = watchdog::start();
    let workdir = workdir();
    assert!(workdir.refusal("certs server --host localhost").contains("deltafl certs init"));
    assert!(workdir.refusal("certs init --federation Not.A.Name").contains("a–z"));
    workdir.printed("certs init --federation clinics");
    assert!(workdir.refusal("certs init --federation clinics").contains("exists already"));
    assert!(workdir.refusal("serve x.toml").contains("--certs DIR"));
    let refused = workdir.refusal("serve x.toml --certs certs --authority-here");
    assert!(refused.contains("θ = 0.25 and 0.5 are 2.0 devices apart"), "{refused}");
    let refused = workdir.refusal("model pull --theta 0.5 --server http://localhost:1");
    assert!(refused.contains("--identity DIR") && refused.contains("--federation NAME"), "{refused}");
    // A declared contract needs no data, and an invalid contract is rejected.
    fs::write(workdir.path("contract.json"), workdir.printed("serve x.toml --print-contract")).unwrap();
    workdir.printed("certs server --host localhost");
    let mut declared = workdir.start(
        "serve x.toml --certs certs --authority-here --allow-close-levels --listen 127.0.0.1:0 --out declared --blobs blobs --contract contract.json --set data.source=nowhere",
    );
    let address = declared.hear("listening on ").split(';').next().unwrap().to_owned();
    workdir.printed("data synth glyphs --devices 1 --train 1 --out mine");
    let refused = workdir.refusal(&format!("device --insecure --server {address} --data mine"));
    assert!(refused.contains("--identity DIR"), "{refused}");
    let token = format!("deltafl-{}", "A".repeat(107));
    let refused = workdir.refusal(&format!("enrol device ward-1 --server localhost:1 --token {token}"));
    assert!(refused.contains("https://HOST:PORT is expected"), "{refused}");
    fs::write(workdir.path("contract.json"), "{\"inputs\": 3}").unwrap();
    let refused = workdir
        .refusal("serve x.toml --certs certs --authority-here --allow-close-levels --contract contract.json");
    assert!(refused.contains("--print-contract"), "{refused}");
    fs::remove_dir_all(workdir.path("certs/server")).unwrap();
    assert!(workdir.refusal("serve x.toml --insecure --gamma 0.7").contains("--gamma 0.7 is not in 0..=0.5"));
    let output = workdir.run("doctor --certs certs --blobs state/blobs");
    let found = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!output.status.success() && found.contains("BAD   server certificate"), "{found}");
    assert!(found.contains("ok    authority") && found.contains("ok    database"), "{found}");
}

#[test]
fn a_server_without_the_authoritys_keys_uses_a_roster_signed_elsewhere() {
    let _limit = watchdog::start();
    let workdir = workdir();
    workdir.printed("certs init --federation clinics");
    // The server's machine has its own certificate and no keys of the authority.
    workdir.printed("certs server --host localhost --out machine");
    workdir.printed("certs device --fleet 12 --out fleet.json");
    let refused = workdir.refusal("serve x.toml --certs certs --allow-close-levels --listen 127.0.0.1:0");
    assert!(refused.contains("--authority-here"), "{refused}");
    let serve = "serve x.toml --certs machine --allow-close-levels --out run --listen 127.0.0.1:0 --http 127.0.0.1:0 --set rounds=1 --wait-for 12 --blobs blobs";
    let refused = workdir.refusal(serve);
    assert!(refused.contains("deltafl certs roster --certs certs"), "{refused}");
    assert!(workdir.printed("certs roster").contains("12 devices"));

    let mut server = workdir.start(&format!("{serve} --stay"));
    server.hear("the authority's keys are not here");
    let url = format!("https://localhost:{}", port(&server.hear("live page: ")));
    let grpc = server.hear("listening on ");
    let _swarm = workdir
        .start(&format!("swarm x.toml --fleet fleet.json --min-cohort 3 --server localhost:{}", port(&grpc)));
    server.hear("all rounds are done");
    let token = workdir.printed("enrol token");
    let refused =
        workdir.refusal(&format!("enrol device tablet --server {url} --out tablet --token {}", token.trim()));
    assert!(refused.contains("devices do not enrol here"), "{refused}");
}
