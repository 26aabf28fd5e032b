//! Published vectors: complete rounds from a seeded generator, message by message
//! (`vectors/*.json`).
//!
//! `UPDATE_VECTORS=1` regenerates them. `vectors/check.py` recomputes every sum from the messages,
//! with its own protobuf reader, field, HKDF, AES and ChaCha20. It does not cover key agreement,
//! which takes place between devices.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

use chacha20::ChaCha20Rng;
use deltafl_secagg::graph::{CollusionBound, GraphRule, Permille};
use deltafl_secagg::identity::DeviceId;
use deltafl_secagg::mask::MaskSuite;
use deltafl_secagg::params::RoundId;
use deltafl_secagg::server::PhaseName;
use deltafl_secagg::simulate::{DropOut, SimulatedRound, SimulationConfig};
use rand_core::{Rng, SeedableRng};
use serde_json::{Value, json};

const FIRST_LEN: u32 = 8;
const SECOND_LEN: u32 = 21;

struct Vector {
    name: &'static str,
    suite: MaskSuite,
    graph: GraphRule,
    drops: &'static [(u32, PhaseName)],
}

fn vectors() -> [Vector; 5] {
    let tenth = Permille::new(100).expect("one in ten");
    [
        Vector {
            name: "active-aegis",
            suite: MaskSuite::Aegis128X4,
            graph: GraphRule::Active { gamma: CollusionBound::Devices(1), delta: tenth },
            drops: &[(2, PhaseName::MaskedInput(0)), (1, PhaseName::Confirm)],
        },
        Vector {
            name: "full-aes",
            suite: MaskSuite::Aes128Ctr,
            graph: GraphRule::Full { threshold: 3 },
            drops: &[(3, PhaseName::MaskedInput(0)), (8, PhaseName::Unmask(0))],
        },
        Vector {
            name: "full-chacha",
            suite: MaskSuite::ChaCha20,
            graph: GraphRule::Full { threshold: 3 },
            drops: &[(5, PhaseName::Share), (3, PhaseName::MaskedInput(1))],
        },
        Vector {
            name: "committed-aes",
            suite: MaskSuite::Aes128Ctr,
            graph: GraphRule::HonestButCurious { gamma: tenth.into(), delta: tenth },
            drops: &[(13, PhaseName::Reveal), (8, PhaseName::MaskedInput(1))],
        },
        Vector {
            name: "active-aes",
            suite: MaskSuite::Aes128Ctr,
            graph: GraphRule::Active { gamma: CollusionBound::Devices(1), delta: tenth },
            drops: &[(2, PhaseName::MaskedInput(0)), (1, PhaseName::Confirm)],
        },
    ]
}

fn path(file: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "vectors", file].iter().collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes everything");
        text
    })
}

/// Two slots, one in each ring, on six devices.
fn record(vector: &Vector) -> Value {
    let ids = [1, 2, 3, 5, 8, 13].map(DeviceId);
    let drops: Vec<DropOut> =
        vector.drops.iter().map(|&(id, before)| DropOut { device: DeviceId(id), before }).collect();
    let id = RoundId { session: *b"a known session!", round: 7 };
    let (suite, graph) = (vector.suite, vector.graph);
    let config = SimulationConfig { id, suite, graph, slots: 2, min_members: 2, record: true };
    let mut rng = ChaCha20Rng::seed_from_u64(2017);
    let mut round = SimulatedRound::new(&config, &ids, &drops, &mut rng).expect("enough devices");
    let mut inputs = json!({});
    let mut slots = Vec::new();

    let first = round.sum::<u32>(FIRST_LEN, b"first context", |id| {
        let input: Vec<u32> = (0..FIRST_LEN).map(|_| rng.next_u32()).collect();
        inputs[format!("0/{id}")] = json!(input);
        input
    });
    let first = first.expect("enough devices");
    slots.push(json!({"ring": 32, "len": FIRST_LEN, "context": hex(b"first context"),
        "survivors": first.survivors.iter().map(|id| id.0).collect::<Vec<_>>(), "sum": first.sum}));

    let second = round.sum::<u64>(SECOND_LEN, b"second context", |id| {
        let input: Vec<u64> = (0..SECOND_LEN).map(|_| rng.next_u64()).collect();
        inputs[format!("1/{id}")] = json!(input);
        input
    });
    let second = second.expect("enough devices");
    slots.push(json!({"ring": 64, "len": SECOND_LEN, "context": hex(b"second context"),
        "survivors": second.survivors.iter().map(|id| id.0).collect::<Vec<_>>(), "sum": second.sum}));

    let messages: Vec<Value> = round
        .recording()
        .iter()
        .map(|message| {
            json!({"from": message.from.map(|id| id.0), "to": message.to.map(|id| id.0), "bytes": hex(&message.bytes)})
        })
        .collect();
    json!({"slots": slots, "inputs": inputs, "messages": messages})
}

#[test]
fn rounds_from_the_published_seeds_match_the_published_vectors() {
    for vector in vectors() {
        let file = path(&format!("{}.json", vector.name));
        let recorded = record(&vector);
        if std::env::var_os("UPDATE_VECTORS").is_some() {
            let text = serde_json::to_string_pretty(&recorded).expect("plain values");
            std::fs::write(&file, text + "\n").expect("the folder of the vectors is writable");
        }
        let published = std::fs::read_to_string(&file).expect("published beside this test");
        let published: Value = serde_json::from_str(&published).expect("JSON");
        assert!(recorded == published, "{} has changed", vector.name);
    }
}

#[test]
fn an_independent_reader_recomputes_the_sums_from_the_messages() {
    for vector in vectors() {
        let check = Command::new("python3")
            .arg(path("check.py"))
            .arg(path(&format!("{}.json", vector.name)))
            .output()
            .expect("this test needs python3");
        let printed =
            format!("{}{}", String::from_utf8_lossy(&check.stdout), String::from_utf8_lossy(&check.stderr));
        assert!(check.status.success(), "{}: {printed}", vector.name);
    }
}
