//! The bodies of the fuzz targets over a small seeded corpus, so that they are run where no fuzzer
//! is.

#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../../../fuzz/bodies/net.rs"]
mod net;
#[path = "../../../fuzz/bodies/units.rs"]
mod units;
#[path = "field/watchdog.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod watchdog;

use deltafl::params::Params;
use deltafl::question::{Ask, Query, RoundKey, encode};
use deltafl::selection::Weighting;
use deltafl::stream::{Purpose, Stream};
use deltafl::superquantile::private::{Bins, QuantileQuery};
use deltafl::terms::Terms;
use deltafl::trainer::{LocalPlan, Work};
use deltafl_wire as wire;

use deltafl_server::authority::Authority;
use deltafl_wire::enrolment::EnrolRequest;
use deltafl_wire::identity::{DeviceKeys, Token};
use deltafl_wire::loopback;
use deltafl_wire::proto;
use deltafl_wire::proto::{from_device as device, from_server as server};
use deltafl_wire::roster::RosterVersion;
use prost::Message;

/// A message of every kind.
fn corpus() -> Vec<Vec<u8>> {
    let plan = LocalPlan {
        work: Work::Steps(3),
        batch: 10,
        learning_rate: 0.1,
        l2: 0.0,
        proximal: 0.0,
        correction: None,
    };
    let params = Params::from(vec![1.0, 2.0]);
    let asks = [
        Ask::Update { weighting: Weighting::tail(0.5), plan },
        Ask::Quantile(QuantileQuery::Histogram(Bins::new(0.0, 8.0, 64).unwrap())),
    ];
    let queries = asks.map(|ask| Query::new(params.clone(), ask));
    let key = RoundKey { run: 0, seed: 1, round: 2, members: 5, terms: Terms::OPEN };
    let question = proto::Question { canonical: encode(&key, &queries).into() };
    let part = proto::Part { total: 9, data: b"four".as_slice().into() };
    let hello = proto::Hello { version: 1, device: "anna".to_owned() };
    let losses = proto::Losses { id: 1, examples: 2, losses: vec![0.5, f64::NAN] };
    let from_device =
        [device::Body::Hello(hello), device::Body::Part(part.clone()), device::Body::Losses(losses)];
    let from_server = [server::Body::Question(question.clone()), server::Body::Part(part)];
    let mut corpus: Vec<Vec<u8>> = Vec::new();
    corpus.extend(from_device.map(|body| proto::FromDevice { body: Some(body) }.encode_to_vec()));
    corpus.extend(from_server.map(|body| proto::FromServer { body: Some(body) }.encode_to_vec()));
    corpus.push(question.canonical.to_vec());
    let edition = RosterVersion { version: 1, expires: u64::MAX };
    corpus.push(loopback::roster(edition, ["anna", "boris"].into_iter(), |_| false).unwrap().bytes.to_vec());
    corpus.push(proto::FetchRequest { hash: vec![1; 32].into(), offset: 3 }.encode_to_vec());
    let two = wire::fragments(vec![5; wire::FRAGMENT + 1].into())
        .flat_map(|part| part.encode_length_delimited_to_vec());
    corpus.push(two.collect());
    corpus.extend(papers());
    corpus
}

/// What a device shows and posts when it enrols.
fn papers() -> [Vec<u8>; 3] {
    let authority = Authority::generate("demo".parse().unwrap(), 1).unwrap();
    let device = authority.issue_device(&"anna".parse().unwrap(), 0, 1).unwrap();
    let token =
        Token::generate(authority.fingerprint(), authority.public_key()).unwrap().reveal().to_string();
    let asked = DeviceKeys::generate().unwrap().request("boris".parse().unwrap());
    let tls_key = asked.tls_key.iter().map(|byte| format!("{byte:02x}")).collect();
    let (signing_key, proof) = (asked.signing_key, String::new());
    let request = EnrolRequest { token: token.clone(), name: asked.name, tls_key, signing_key, proof };
    [device.certificate().to_vec(), token.into_bytes(), serde_json::to_vec(&request).unwrap()]
}

#[test]
fn random_bytes_do_not_break_the_decoders() {
    let _limit = watchdog::start();
    let mut stream = Stream::new(1, Purpose::Faults, 0, 0);
    for len in 0..300 {
        let bytes: Vec<u8> = (0..len).map(|_| stream.next_u64() as u8).collect();
        net::TARGETS.iter().for_each(|(_, body)| body(&bytes));
    }
}

#[test]
fn changed_messages_do_not_break_the_decoders() {
    let _limit = watchdog::start();
    let mut stream = Stream::new(2, Purpose::Faults, 0, 0);
    for message in corpus() {
        for _ in 0..300 {
            let mut changed = message.clone();
            for _ in 0..=stream.below(3) {
                let at = stream.below(changed.len() as u64) as usize;
                match stream.below(3) {
                    0 => changed[at] = stream.next_u64() as u8,
                    1 => changed.truncate(at + 1),
                    _ => changed.insert(at, stream.next_u64() as u8),
                }
            }
            net::TARGETS.iter().for_each(|(_, body)| body(&changed));
        }
    }
}

#[test]
fn the_corpus_of_the_fuzzer_does_not_break_the_decoders() {
    let _limit = watchdog::start();
    let seeds: Vec<Vec<u8>> = corpus().into_iter().filter(|seed| seed.len() < 4096).collect();
    for (target, body) in net::TARGETS {
        units::units(target, &seeds).iter().for_each(|unit| body(unit));
    }
}
