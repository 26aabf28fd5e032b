//! The bodies of the fuzz targets of server and device, also run by ordinary tests. They parse
//! arbitrary bytes as messages. No input may cause a panic, and a parsed value must survive
//! serialisation.

use std::sync::OnceLock;

use bytes::{Buf, Bytes};
use deltafl::kernel::Isa;
use deltafl::memory::AlgorithmState;
use deltafl::model::ModelSpec;
use deltafl_device::DeviceState;
use deltafl_secagg::identity::{DeviceId, KeyRoster};
use deltafl_wire::contract::DataContract;
use deltafl_wire::enrolment::{EnrolAnswer, EnrolRequest};
use deltafl_wire::identity::{
    CertificateDer, DeviceName, DeviceRequest, FederationName, Token, Validity, from_bytes_hex, from_pem,
};
use deltafl_wire::params_file::{read_params, write_params};
use deltafl_wire::proto::{
    Chunk, FetchRequest, FromDevice, FromServer, Losses, NewestParams, NewestRequest, Part, Question,
    from_device, from_server,
};
use deltafl_wire::roster::Roster;
use deltafl_wire::roster_log::LoggedRoster;
use deltafl_wire::{BlobId, Reassembly, hash, parse_question as checked};
use prost::Message;

use deltafl_server::authority::{Authority, Peer};

/// The name of a target and its body.
pub(crate) type Target = (&'static str, fn(&[u8]));

/// The targets.
pub(crate) const TARGETS: &[Target] = &[
    ("net_certificate", certificate),
    ("net_contract", contract),
    ("net_enrolment", enrolment),
    ("net_fetch", fetch),
    ("net_from_device", from_device),
    ("net_from_server", from_server),
    ("net_params", params),
    ("net_parts", parts),
    ("net_question", question),
    ("net_roster", roster),
    ("net_state", state),
    ("net_texts", texts),
];

/// The length limit of an assembled message.
const LIMIT: usize = 1 << 16;

/// Parses bytes as a sequence of messages of a device.
fn from_device(data: &[u8]) {
    let mut assembly = Reassembly::default();
    let Some(message) = read_again::<FromDevice>(data) else { return };
    match message.body {
        Some(from_device::Body::Part(part)) => take_twice(&mut assembly, part),
        Some(from_device::Body::Ready(ready)) => {
            let _ = hash(&ready.roster);
        }
        Some(from_device::Body::Losses(Losses { losses, .. })) => assert!(losses.len() <= data.len()),
        _ => {}
    }
}

/// Parses bytes as a message of a server.
fn from_server(data: &[u8]) {
    let mut assembly = Reassembly::default();
    let Some(message) = read_again::<FromServer>(data) else { return };
    match message.body {
        Some(from_server::Body::Part(part)) => take_twice(&mut assembly, part),
        Some(from_server::Body::Question(question)) => ask(&question),
        Some(from_server::Body::LossQuestion(question)) => {
            for blob in question.params {
                let _ = BlobId::from_wire(Some(blob));
            }
        }
        Some(from_server::Body::Welcome(welcome)) => {
            let _ = BlobId::from_wire(welcome.roster.and_then(|roster| roster.blob));
        }
        _ => {}
    }
}

/// Parses bytes as a question.
fn question(data: &[u8]) {
    ask(&Question { canonical: Bytes::copy_from_slice(data) });
}

/// Parses bytes as a roster.
fn roster(data: &[u8]) {
    if let Ok(roster) = Roster::decode(Bytes::copy_from_slice(data)) {
        let again = Roster::decode(roster.encode()).expect("a serialised value can be parsed");
        assert_eq!(roster.entries(), again.entries());
        let _ = roster.keys(&blake3::hash(b""), &[0; 64]);
    }
}

/// Parses bytes as a request for a blob or for the newest params, and as the response.
fn fetch(data: &[u8]) {
    if let Some(request) = read_again::<FetchRequest>(data) {
        let _ = hash(&request.hash);
    }
    read_again::<Chunk>(data);
    if let Some(request) = read_again::<NewestRequest>(data) {
        let _ = request.held.iter().map(|held| hash(held)).collect::<Result<Vec<_>, _>>();
    }
    if let Some(told) = read_again::<NewestParams>(data) {
        for blob in told.missing {
            let _ = BlobId::from_wire(Some(blob));
        }
    }
}

/// Parses bytes as consecutive parts of messages of a device.
fn parts(mut data: &[u8]) {
    let mut assembly = Reassembly::default();
    while data.has_remaining() {
        let Ok(part) = Part::decode_length_delimited(&mut data) else { return };
        match assembly.take(part, LIMIT) {
            Ok(Some(message)) => assert!(message.len() <= LIMIT && !assembly.is_partial()),
            Ok(None) => assert!(assembly.is_partial()),
            Err(_) => return, // The server ends the connection here.
        }
    }
}

/// Parses bytes as an enrolment request and as its response.
fn enrolment(data: &[u8]) {
    static AUTHORITY: OnceLock<Authority> = OnceLock::new();
    if let Ok(EnrolRequest { token, name, tls_key, signing_key, .. }) = serde_json::from_slice(data) {
        let _ = token.parse::<Token>();
        let _ = KeyRoster::new().add(DeviceId(0), &signing_key);
        let authority = AUTHORITY.get_or_init(|| {
            let federation = "fuzz".parse().expect("letters are a name");
            Authority::generate(federation, 1).expect("keys can be made")
        });
        if let Some(tls_key) = from_bytes_hex(&tls_key)
            && let Ok(certified) =
                authority.certify(&DeviceRequest { name: name.clone(), tls_key, signing_key }, 0, 1)
        {
            let peer = Peer::from_certificate(&certified.certificate)
                .expect("the authority's certificate contains a device name");
            assert_eq!(peer.device, name);
        }
    }
    if let Ok(EnrolAnswer { certificate, authority, .. }) = serde_json::from_slice(data) {
        for pem in [certificate, authority] {
            assert!(from_pem(&pem).is_none_or(|list| !list.is_empty()));
        }
    }
}

/// Parses bytes as tokens and names.
fn texts(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(token) = text.parse::<Token>() {
        let again: Token = token.reveal().parse().expect("a serialised value can be parsed");
        assert_eq!((again.authority(), again.hash()), (token.authority(), token.hash()));
    }
    if let Ok(name) = text.parse::<DeviceName>() {
        assert!(name.as_str() == text && text.len() <= 63 && !text.contains('.'));
    }
    let _ = text.parse::<FederationName>();
    assert!(from_pem(text).is_none_or(|list| !list.is_empty()));
}

/// Parses bytes as a peer's certificate.
fn certificate(data: &[u8]) {
    let certificate = CertificateDer::from(data);
    if let Ok(peer) = Peer::from_certificate(&certificate) {
        assert!(!peer.device.as_str().contains('.') && !peer.federation.as_str().contains('.'));
    }
    let _ = Validity::from_certificate(&certificate);
}

/// Parses bytes as a model in JSON, a NUL, and a data contract, and builds the model for the contract.
fn contract(data: &[u8]) {
    let cut = data.iter().position(|&byte| byte == 0).map_or(0, |nul| nul + 1);
    let Ok(contract) = DataContract::from_bytes(&data[cut..]) else { return };
    let again = DataContract::from_bytes(&contract.to_bytes()).expect("a serialised value can be parsed");
    assert_eq!(contract.hash(), again.hash());
    if let Ok(spec) = serde_json::from_slice::<ModelSpec>(&data[..cut.saturating_sub(1)]) {
        let _ = spec.build(&contract.shape(), Isa::Reference);
    }
}

/// Parses bytes as the params of a model, and as the memory of a device.
fn params(data: &[u8]) {
    if let Ok((about, params)) = read_params(data) {
        let written = write_params(&about, &params).expect("params match their own description");
        let (_, again) = read_params(&written).expect("a serialised value can be parsed");
        assert_eq!(params.hash(), again.hash());
    }
    if let Ok(memory) = AlgorithmState::from_bytes(data) {
        assert_eq!(AlgorithmState::from_bytes(&memory.to_bytes()), Ok(memory));
    }
}

/// Opens the state of a device. The first byte selects the file that contains the other bytes.
fn state(data: &[u8]) {
    const FILES: [&str; 7] =
        ["roster.json", "rosters.jsonl", "transcript.jsonl", "ledger", "answers", "privacy", "rounds"];
    let Some((choice, data)) = data.split_first() else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    drop(DeviceState::open(folder.path()).expect("a new folder"));
    let path = folder.path().join(FILES[usize::from(*choice) % FILES.len()]);
    std::fs::write(&path, data).expect("a temporary file");
    let _ = (DeviceState::read_answers(folder.path()), DeviceState::read_privacy(folder.path()));
    let _ = LoggedRoster::read(&path);
    drop(DeviceState::open(folder.path()));
}

fn read_again<M: Message + Default>(data: &[u8]) -> Option<M> {
    let message = M::decode(data).ok()?;
    let written = message.encode_to_vec();
    let again = M::decode(written.as_slice()).expect("a serialised value can be parsed");
    // Compare bytes, not messages, because a NaN is not equal to itself.
    assert_eq!(again.encode_to_vec(), written);
    Some(message)
}

fn take_twice(assembly: &mut Reassembly, part: Part) {
    for _ in 0..2 {
        if let Ok(Some(message)) = assembly.take(part.clone(), LIMIT) {
            assert!(message.len() <= LIMIT);
        }
    }
}

fn ask(question: &Question) {
    if let Ok(read) = checked(question) {
        assert_eq!(read.to_bytes(), question.canonical);
    }
}
