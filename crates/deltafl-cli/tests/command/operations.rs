//! Operation of a server: settings from a file, a standby server, and the findings of the doctor.

#![cfg(feature = "net")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;

#[cfg(unix)]
use crate::support::ctrl_c;
use crate::support::{DEPLOYED, Workdir, asked};
use crate::watchdog;

#[test]
fn flags_override_the_environment_and_the_environment_overrides_the_file() {
    let _limit = watchdog::start();
    let workdir = Workdir::with(DEPLOYED)
        .variable("DELTAFL_SERVE_HTTP", "127.0.0.1:0")
        .variable("DELTAFL_CONFIG", "s.toml");
    let file = "experiment = \"x.toml\"\ninsecure = true\nlisten = \"10.255.255.255:1\"\nhttp = \"10.255.255.255:2\"\nset = [\"cohort=5\"]\n";
    fs::write(workdir.path("s.toml"), file).unwrap();
    let mut server = workdir.start("serve --listen 127.0.0.1:0");
    assert!(server.hear("live page: ").starts_with("http://127.0.0.1:"), "the value of the environment");
    assert!(server.hear("listening on ").starts_with("127.0.0.1:"), "the value of the flag");
    let experiment = fs::read_to_string(workdir.path("runs/deployed/experiment.toml")).unwrap();
    assert!(experiment.contains("cohort = 5"), "the value of the file: {experiment}");
}

#[test]
fn an_error_in_a_settings_file_is_reported_with_its_position() {
    let _limit = watchdog::start();
    let workdir = Workdir::with(DEPLOYED);
    fs::write(workdir.path("s.toml"), "experiment = \"x.toml\"\nlissen = \"127.0.0.1:0\"\n").unwrap();
    let said = workdir.refusal("serve --config s.toml --insecure");
    assert!(said.contains("s.toml:2:1") && said.contains("the nearest is \"listen\""), "{said}");
    fs::write(workdir.path("d.toml"), "server = \"localhost:7700\"\nmin-cohort = \"many\"\n").unwrap();
    let said = workdir.refusal("device --config d.toml --insecure --data mine");
    assert!(said.contains("d.toml:2:14") && said.contains("invalid value 'many'"), "{said}");
}

#[test]
fn a_standby_server_reports_its_state_until_it_leads() {
    let _limit = watchdog::start();
    let workdir = Workdir::with(DEPLOYED);
    let serve = |out: &str| {
        format!(
            "serve x.toml --insecure --out {out} --database sqlite:state.sqlite --blobs blobs --listen 127.0.0.1:0 --http 127.0.0.1:0"
        )
    };
    let mut first = workdir.start(&serve("first"));
    let leading = first.hear("live page: http://");
    first.hear("listening on");
    assert_eq!(asked(&leading, "/readyz"), (200, "ready\n".to_owned()));
    let mut second = workdir.start(&serve("second"));
    let standing_by = second.hear("live page: http://");
    second.hear("another server leads; standing by");
    assert_eq!(asked(&standing_by, "/healthz"), (200, "alive\n".to_owned()));
    assert_eq!(asked(&standing_by, "/readyz"), (503, "standby\n".to_owned()));
    assert!(asked(&standing_by, "/metrics").1.contains("deltafl_leading 0"));
    drop(first); // like kill -9
    second.hear("listening on");
    assert_eq!(asked(&standing_by, "/readyz"), (200, "ready\n".to_owned()));
}

/// Starts a server with a wrong clock that answers one request.
fn in_another_century() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 1024]);
        let head = "HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
    });
    format!("http://{address}")
}

#[test]
fn the_doctor_reports_problems_with_instructions() {
    let _limit = watchdog::start();
    let workdir = Workdir::with(DEPLOYED);
    workdir.printed("certs init --federation clinics");
    workdir.printed("certs server --host localhost --days 10");
    workdir.printed("certs device phone --out phone --database sqlite:state.sqlite");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    fs::write(workdir.path("file"), "").unwrap();
    let late = in_another_century();
    let found = |words: &str| {
        let output = workdir.run(&format!("doctor {words}"));
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    let (fine, soon) = found("--certs certs");
    assert!(fine && soon.contains("note  server certificate: expires in 9 days"), "{soon}");
    assert!(soon.contains("→ move the folder server away"), "{soon}");
    for (words, bad, advice) in [
        (
            format!("--listen {}", taken.local_addr().unwrap()),
            "BAD   port",
            "stop the program that listens there",
        ),
        ("--server http://127.0.0.1:1".to_owned(), "BAD   server", "check the address, the firewall"),
        (format!("--server {late}"), "BAD   clock", "synchronise both machines' clocks"),
        ("--database sqlite:file/below/it".to_owned(), "BAD   database", "check the URL"),
        ("--database mysql://x".to_owned(), "BAD   database", "check the URL"),
        ("--database sqlite:state.sqlite --blobs file".to_owned(), "BAD   blobs", "permissions"),
        ("--identity nowhere".to_owned(), "BAD   device certificate", "enrol again"),
        ("--certs nowhere".to_owned(), "BAD   server certificate", "deltafl certs server"),
    ] {
        let (fine, text) = found(&words);
        assert!(!fine && text.contains(bad) && text.contains(advice), "{words}\n{text}");
    }
    fs::rename(workdir.path("certs/ca"), workdir.path("elsewhere")).unwrap();
    let (fine, text) = found("--certs certs");
    assert!(fine && text.contains("note  authority: its keys are not here"), "{text}");
}

#[test]
fn a_server_without_the_keys_of_the_authority_shows_its_certificate_and_revokes() {
    let _limit = watchdog::start();
    let workdir = Workdir::with(DEPLOYED).variable("DELTAFL_DATABASE", "sqlite:deltafl.sqlite");
    workdir.printed("certs init --federation clinics --out authority");
    workdir.printed("certs server --certs authority --out certs --host localhost");
    workdir.printed("certs device ward-1 --certs authority --out ward-1");
    let shown = workdir.printed("certs show certs");
    assert!(shown.contains("authority of clinics") && shown.contains("\nserver\n"), "{shown}");
    assert!(workdir.printed("certs revoke ward-1").contains("ward-1 is revoked"));
    let refused = workdir.refusal("certs device ward-2 --out ward-2");
    assert!(refused.contains("where the authority's keys are"), "{refused}");
}

#[cfg(unix)]
#[test]
fn an_interrupted_device_disconnects_and_does_not_claim_to_finish_its_round() {
    let _limit = watchdog::start();
    let workdir = Workdir::with(DEPLOYED);
    workdir.printed("data synth glyphs --devices 1 --train 1 --out mine");
    let mut device = workdir.start("device --insecure --server 127.0.0.1:1 --data mine");
    device.hear("trying again");
    ctrl_c(&device.child);
    device.hear("disconnecting; press Ctrl-C again");
    assert!(device.child.wait().unwrap().success());
}

#[test]
fn a_device_that_cannot_store_its_identity_keeps_its_token() {
    let _limit = watchdog::start();
    let workdir = Workdir::with(DEPLOYED);
    let token = format!("deltafl-{}", "A".repeat(107));
    fs::create_dir(workdir.path("ward-1")).unwrap();
    fs::write(workdir.path("ward-1/device.key"), "").unwrap();
    let refused = workdir
        .refusal(&format!("enrol device ward-1 --server https://localhost:1 --token {token} --out ward-1"));
    assert!(refused.contains("device.key") && !refused.contains("the request to the server"), "{refused}");
}

#[cfg(unix)]
#[test]
fn the_doctor_reports_a_key_that_others_can_read() {
    let _limit = watchdog::start();
    use std::os::unix::fs::PermissionsExt as _;
    let workdir = Workdir::with(DEPLOYED);
    workdir.printed("certs init --federation clinics");
    let key = workdir.path("certs/ca/ca.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let output = workdir.run("doctor --certs certs");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!output.status.success() && text.contains("chmod 600 certs/ca/ca.key"), "{text}");
}

#[test]
fn two_transcripts_of_one_server_are_compared() {
    let _limit = watchdog::start();
    let workdir = Workdir::with(DEPLOYED);
    let line = |previous: &str, survivors: &str| {
        format!(
            "{{\"previous\":\"{previous}\",\"at\":1,\"event\":\"survivors\",\"setup\":[\"aa\",3],\"slot\":0,\"survivors\":[40,\"{survivors}\"]}}\n"
        )
    };
    let (zeros, ones) = ("0".repeat(64), "1".repeat(64));
    fs::write(workdir.path("one.jsonl"), line(&zeros, &ones)).unwrap();
    fs::write(workdir.path("same.jsonl"), line(&zeros, &ones)).unwrap();
    fs::write(workdir.path("other.jsonl"), line(&zeros, &zeros)).unwrap();
    fs::write(workdir.path("broken.jsonl"), line(&ones, &ones)).unwrap();
    assert!(
        workdir
            .printed("device audit one.jsonl same.jsonl")
            .contains("1 records in both, 0 of them different")
    );
    let split = workdir.run("device audit one.jsonl other.jsonl");
    let told = String::from_utf8_lossy(&split.stdout).into_owned();
    assert!(split.status.code() == Some(1) && told.contains("the survivors of sum 0"), "{told}");
    assert!(workdir.refusal("device audit broken.jsonl").contains("line 1"));
}

#[test]
fn a_transcript_is_compared_with_the_log_of_the_authority() {
    let _limit = watchdog::start();
    let workdir = Workdir::with(DEPLOYED);
    workdir.printed("certs init --federation clinics");
    for device in ["ward-1", "ward-2"] {
        workdir.printed(&format!("certs device {device} --out {device} --database sqlite:deltafl.sqlite"));
        workdir.printed("certs roster --database sqlite:deltafl.sqlite");
    }
    // Nothing has changed, so no roster is signed.
    workdir.printed("certs roster --database sqlite:deltafl.sqlite");
    let log = fs::read_to_string(workdir.path("certs/ca/rosters.jsonl")).unwrap();
    let rosters: Vec<serde_json::Value> =
        log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rosters.len(), 2, "{log}");
    assert_eq!(rosters[1]["previous"][1], rosters[0]["hash"]);

    let zeros = "0".repeat(64);
    let (version, hash) = (rosters[1]["version"].as_u64().unwrap(), rosters[1]["hash"].as_str().unwrap());
    let transcript = |file: &str, version: u64, hash: &str| {
        let line = format!(
            "{{\"previous\":\"{zeros}\",\"at\":1,\"event\":\"roster\",\"version\":{version},\"hash\":\"{hash}\"}}\n"
        );
        fs::write(workdir.path(file), line).unwrap();
    };
    transcript("same.jsonl", version, hash);
    transcript("other.jsonl", version, &zeros);
    transcript("outside.jsonl", 0, hash);
    let audit = |file: &str| workdir.run(&format!("device audit {file} certs/ca/rosters.jsonl"));
    let told = |output: &std::process::Output| String::from_utf8_lossy(&output.stdout).into_owned();
    let same = audit("same.jsonl");
    assert!(same.status.success() && told(&same).contains("1 records in both, 0 of them"), "{}", told(&same));
    for (file, shown) in [("other.jsonl", hash), ("outside.jsonl", "not in the log of rosters")] {
        let output = audit(file);
        assert!(output.status.code() == Some(1) && told(&output).contains(shown), "{}", told(&output));
    }
    fs::write(workdir.path("forged.jsonl"), log.replace(hash, &zeros)).unwrap();
    assert!(workdir.refusal("device audit forged.jsonl").contains("invalid"));
}
