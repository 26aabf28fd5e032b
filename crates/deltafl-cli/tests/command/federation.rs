//! `deltafl serve` and `deltafl swarm`: a deployed experiment has the same params to the byte.

#![cfg(feature = "net")]

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};

use crate::support::{DEPLOYED, Running, Workdir, asked, checkpoints};
use crate::watchdog;

const SERVE: &str =
    "serve x.toml --insecure --set seeds=[1,2] --wait-for 12 --out deployed --http 127.0.0.1:0 --stay";

/// Six devices with separate data whose features are normalised.
const NORMALISED: &str = r#"
name = "normalised"
rounds = 2
cohort = 6
weights = "uniform"
[data]
source = "data"
normalise = "mean-ratio"
split = { within = { train = 0.8 } }
[model]
kind = "linear"
[local]
steps = 2
batch = 10
learning_rate = 0.001
[[algorithm]]
kind = "fedavg"
"#;

/// Starts a server at this address. Returns its device address and its HTTP address.
fn server(workdir: &Workdir, listen: &str) -> (Running, String, String) {
    let mut server = workdir.start(&format!("{SERVE} --listen {listen}"));
    let http = server.hear("live page: http://");
    let address = server.hear("listening on ").split(';').next().unwrap().to_owned();
    (server, address, http)
}

#[test]
fn a_server_killed_repeatedly_finishes_every_round() {
    let _limit = watchdog::start();
    let workdir = Workdir::with(DEPLOYED);
    let (mut serving, address, mut http) = server(&workdir, "127.0.0.1:0");
    let _swarm = workdir.start(&format!("swarm x.toml --insecure --server {address}"));
    for round in ["seed 1, round 1:", "seed 1, round 3:", "seed 2, round 2:"] {
        serving.hear(round);
        drop(serving); // like kill -9, somewhere in the next round
        (serving, _, http) = server(&workdir, &address);
    }
    serving.hear("all rounds are done");

    // The page of the last server includes the data of earlier servers: phases and loss
    // distributions.
    let (_, page) = asked(&http, "/v1/federations/deployed");
    let page: serde_json::Value = serde_json::from_str(&page).unwrap();
    let rounds = page["rounds"].as_array().unwrap();
    assert_eq!(rounds.len(), 8, "four rounds of two seeds");
    // An interrupted round has no phases if the next server asked no devices, because it had all
    // sums or too few devices were left.
    let phases = |round: &serde_json::Value| round["phases"].as_array().unwrap().clone();
    let shown: Vec<_> = rounds.iter().map(phases).filter(|phases| !phases.is_empty()).collect();
    assert!(shown.len() >= rounds.len() - 3, "three servers were killed: {page}");
    assert!(shown.iter().all(|phases| phases[0]["name"] == "advertise keys"), "{page}");
}

#[test]
fn device_processes_with_normalised_data_reproduce_the_bits_of_the_simulation() {
    let _limit = watchdog::start();
    let workdir = Workdir::with(NORMALISED);
    workdir.printed("data synth glyphs --devices 6 --train 1 --out data");
    workdir.printed("run x.toml --out simulated --quiet");
    workdir.printed("run x.toml --out plain --quiet --set data.normalise=none");
    let mut serving = workdir
        .start("serve x.toml --insecure --listen 127.0.0.1:0 --http 127.0.0.1:0 --out deployed --stay");
    let http = serving.hear("live page: http://");
    let address = serving.hear("listening on ").split(';').next().unwrap().to_owned();
    // A device with inputs of another kind reports this and does not take part.
    std::fs::write(workdir.path("t.csv"), "who,y,a,b\nw00000,no,1,2\nw00000,yes,3,4\nw00000,no,3,5\n")
        .unwrap();
    workdir.printed("data import csv t.csv --device who --label y --out other");
    let refused = workdir.refusal(&format!("device --insecure --server {address} --data other"));
    assert!(
        refused.contains("does not fit the federation") && refused.contains("the contract requires Bytes"),
        "{refused}"
    );

    let data = deltafl_data::open(workdir.path("data")).unwrap();
    let device = |k| {
        let name = data.id(k);
        workdir
            .start(&format!("device --insecure --reproducible --server {address} --data data --name {name}"))
    };
    let mut devices: Vec<Running> = data.devices().map(device).collect();
    serving.hear("all rounds are done");
    // Every device answers in every round, and learns that training is over.
    for said in ["takes part in normalised", "answered in round 1", "answered in round 2"] {
        devices[0].hear(said);
    }
    assert!(asked(&http, "/metrics").1.contains("deltafl_leading 1"), "it holds the lease");
    let trained = |run: &str| checkpoints(&workdir.path(run));
    assert!(trained("deployed") == trained("simulated"));
    assert!(trained("deployed") != trained("plain"), "the constants have an effect");

    // The public model contains the constants, and its card names them.
    workdir.printed(&format!("model pull --theta 1 --server http://{http} --federation normalised"));
    let card = std::fs::read_to_string(workdir.path("model.card.json")).unwrap();
    let card: serde_json::Value = serde_json::from_str(&card).unwrap();
    assert_eq!(card["contract"].as_str().map(str::len), Some(64), "{card}");
    let tried = workdir
        .printed(&format!("model try --data data --server http://{http} --federation normalised --json"));
    let tried: serde_json::Value = serde_json::from_str(&tried).unwrap();
    assert!(tried[0]["loss"].as_f64().is_some_and(f64::is_finite), "{tried}");
    let held_out = data.len() as u64 + data.devices().map(|k| data.example_count(k) / 5).sum::<u64>();
    assert!(tried[0]["held_out"] == true && tried[0]["examples"].as_u64() <= Some(held_out), "{tried}");

    // The server knows bounds of the results on these examples, and a report draws them.
    let summary = std::fs::read_to_string(workdir.path("deployed/summary.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    let told = &summary["tracks"][0]["held_out"][0];
    assert_eq!((told["version"].as_u64(), told["devices"].as_u64()), (Some(2), Some(6)), "{summary}");
    let mean = &told["measures"]["error"]["mean"];
    // The exact result of the simulation is within the bounds.
    let simulated = std::fs::read_to_string(workdir.path("simulated/summary.json")).unwrap();
    let simulated: serde_json::Value = serde_json::from_str(&simulated).unwrap();
    let exact = simulated["tracks"][0]["test"]["mean"]["mean"].as_f64();
    assert!(mean["lower"].as_f64() <= exact && exact <= mean["upper"].as_f64(), "{mean} {exact:?}");
    workdir.printed("report deployed --no-figures");
    let table = std::fs::read_to_string(workdir.path("deployed/tables.md")).unwrap();
    assert!(table.contains("from secure sums over cohorts") && table.contains('–'), "{table}");

    // A finished federation trains further rounds with the same devices, which connect again, and
    // with a device that is started again.
    devices[0].hear("evaluated a model on its held-out examples");
    devices[0].hear("training is over");
    drop((serving, devices.pop()));
    devices.extend(data.devices().last().map(device));
    workdir.printed("run x.toml --out longer --quiet --set rounds=4");
    let further = format!("serve x.toml --insecure --set rounds=4 --listen {address} --out deployed");
    let mut serving = workdir.start(&format!("{further} --http 127.0.0.1:0 --stay"));
    serving.hear("all rounds are done");
    for said in ["connecting again", "connected again", "answered in round 3", "answered in round 4"] {
        devices[0].hear(said);
    }
    assert!(trained("deployed") == trained("longer"));
    let summary = std::fs::read_to_string(workdir.path("deployed/summary.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    let last = summary["tracks"][0]["held_out"].as_array().and_then(|told| told.last()).cloned().unwrap();
    assert_eq!((last["version"].as_u64(), last["devices"].as_u64()), (Some(4), Some(6)), "{summary}");
    // Only the number of rounds can change, and it only grows.
    drop(serving);
    let refused = workdir.refusal(&format!("{further} --set rounds=2"));
    assert!(refused.contains("rounds"), "{refused}");
}

#[test]
fn a_device_reports_why_it_does_not_take_part() {
    let _limit = watchdog::start();
    let workdir = Workdir::with(NORMALISED);
    workdir.printed("data synth glyphs --devices 3 --train 1 --out data");
    let data = deltafl_data::open(workdir.path("data")).unwrap();
    let names: Vec<&str> = data.devices().map(|k| data.id(k)).collect();
    let device = |k: usize, address: &str, options: &str| {
        let name = names[k];
        workdir.start(&format!("device --insecure --server {address} --data data --name {name} {options}"))
    };
    // The owner's conditions are not met: the device sends no request.
    device(0, "127.0.0.1:1", "--while false").hear("takes no part for now");
    let mut serving =
        workdir.start("serve x.toml --insecure --set cohort=3 --listen 127.0.0.1:0 --out deployed");
    let address = serving.hear("listening on ").split(';').next().unwrap().to_owned();
    // The owner allows less work than the server requests.
    let mut devices: Vec<Running> = (0..2).map(|k| device(k, &address, "")).collect();
    devices.push(device(2, &address, "--max-passes 0"));
    let why = devices[2].hear("stays out of a sum");
    assert!(why.contains("that this device's owner allows"), "{why}");
}

/// Three clinics with separate tables.
const CLINICS: [(&str, &str); 3] = [
    (
        "anna",
        "who,Age (years),Ward name,Re-admitted\nanna,50,Cardiology,no\nanna,61,\"Ear, nose & throat\",yes\nanna,44,Surgery,no\nanna,70,Surgery,yes\n",
    ),
    (
        "boris",
        "who,Age (years),Ward name,Re-admitted\nboris,30,Surgery,no\nboris,35,Cardiology,unclear\nboris,81,Surgery,no\n",
    ),
    (
        "clara",
        "who,Age (years),Ward name,Re-admitted\nclara,29,Surgery,yes\nclara,66,Surgery,yes\nclara,58,Surgery,yes\n",
    ),
];

#[test]
fn tables_with_some_of_the_categories_and_classes_train_like_one_table() {
    let _limit = watchdog::start();
    let experiment = NORMALISED.replace("cohort = 6", "cohort = 3").replace("mean-ratio", "standard");
    let workdir = Workdir::with(&experiment.replace("split = { within = { train = 0.8 } }", ""));
    let import = |file: &str, table: &str, out: &str| {
        std::fs::write(workdir.path(file), table).unwrap();
        workdir.printed(&format!("data import csv {file} --device who --label Re-admitted --out {out}"));
    };
    let rows = CLINICS.map(|(_, table)| table.split_once('\n').unwrap().1).concat();
    let (header, _) = CLINICS[0].1.split_once('\n').unwrap();
    import("all.csv", &format!("{header}\n{rows}"), "data");
    CLINICS.iter().for_each(|(name, table)| import(&format!("{name}.csv"), table, name));
    workdir.printed("run x.toml --out simulated --quiet");
    let mut serving = workdir.start("serve x.toml --insecure --listen 127.0.0.1:0 --out deployed");
    let address = serving.hear("listening on ").split(';').next().unwrap().to_owned();
    let unknown = CLINICS[0].1.replace("Ward name", "Ward");
    import("other.csv", &unknown, "other");
    let refused = workdir.refusal(&format!("device --insecure --server {address} --data other"));
    assert!(refused.contains(r#"there is no column "Ward name", which the contract requires"#), "{refused}");
    let device = |(name, _)| {
        // A clinic has three examples.
        workdir.start(&format!(
            "device --insecure --reproducible --min-examples 3 --server {address} --data {name}"
        ))
    };
    let _devices = CLINICS.map(device);
    assert!(serving.child.wait().unwrap().success());
    assert!(checkpoints(&workdir.path("deployed")) == checkpoints(&workdir.path("simulated")));
    // Without the data, the message explains the alternative.
    std::fs::remove_dir_all(workdir.path("data")).unwrap();
    workdir.printed("certs init --federation clinics --out certs");
    workdir.printed("certs server --host localhost");
    let refused =
        workdir.refusal("serve x.toml --certs certs --authority-here --listen 127.0.0.1:0 --out again");
    assert!(refused.contains("--contract FILE"), "{refused}");
}

#[test]
fn draws_with_replacement_are_rejected_in_a_deployment() {
    let _limit = watchdog::start();
    let workdir = Workdir::with(DEPLOYED);
    let refused = workdir.refusal("serve x.toml --insecure --set with_replacement=true");
    assert!(refused.contains("with_replacement=false"), "{refused}");
}

#[test]
fn a_server_for_other_machines_needs_certificates() {
    let _limit = watchdog::start();
    let refused = Workdir::with(DEPLOYED).refusal("serve x.toml --insecure --listen 0.0.0.0:0");
    assert!(refused.contains("without certificates"), "{refused}");
}

#[test]
fn a_swarm_without_a_server_reports_this() {
    let _limit = watchdog::start();
    // No process listens on a port that was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let workdir = Workdir::with(DEPLOYED);
    let mut swarm = workdir.start(&format!("swarm x.toml --insecure --server {free}"));
    assert!(swarm.hear("no server answers at ").starts_with(&free.to_string()));
}

/// Requests many responses over one connection.
fn ask(http: &str, path: &str, times: usize) -> TcpStream {
    let mut connection = TcpStream::connect(http).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {http}\r\n\r\n");
    connection.write_all(request.repeat(times).as_bytes()).unwrap();
    connection
}

#[test]
fn a_client_that_disconnects_before_its_responses_does_not_stop_the_server() {
    let _limit = watchdog::start();
    let workdir = Workdir::with(DEPLOYED);
    let (_serving, _, http) = server(&workdir, "127.0.0.1:0");
    for _ in 0..5 {
        let mut connection = ask(&http, "/page.js", 400);
        let _ = connection.read(&mut [0]); // the remaining responses cause a broken pipe
        let _ = connection.shutdown(Shutdown::Write);
    }
    let (status, _) = asked(&http, "/healthz");
    assert!([200, 429].contains(&status), "{status}: neither an answer nor a request to wait");
}
