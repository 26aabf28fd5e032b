//! What the fuzz targets run, in reach of ordinary tests: any bytes as any message. Nothing may panic, and what is read
//! must mean the same when it is written and read again.

use bytes::Bytes;
use prost::Message;

use crate::roster::Roster;
use crate::wire::proto::{
    Chunk, FetchRequest, FromDevice, FromServer, Losses, Part, Question, from_device, from_server,
};
use crate::wire::{Assembly, BlobId, Question as Checked, hash};

/// The longest message that is put together.
const LIMIT: usize = 1 << 16;

/// Any bytes as what a device says, one message behind the other.
pub fn from_device(data: &[u8]) {
    let mut assembly = Assembly::default();
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

/// Any bytes as what a server says.
pub fn from_server(data: &[u8]) {
    let mut assembly = Assembly::default();
    let Some(message) = read_again::<FromServer>(data) else { return };
    match message.body {
        Some(from_server::Body::Part(part)) => take_twice(&mut assembly, part),
        Some(from_server::Body::Question(question)) => ask(question),
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

/// Any bytes as a question.
pub fn question(data: &[u8]) {
    if let Some(question) = read_again::<Question>(data) {
        ask(question);
    }
}

/// Any bytes as a roster.
pub fn roster(data: &[u8]) {
    if let Ok(roster) = Roster::decode(Bytes::copy_from_slice(data)) {
        let again = Roster::decode(roster.encode()).expect("what was read can be read again");
        assert_eq!(roster.entries(), again.entries());
        let _ = roster.keys();
    }
}

/// Any bytes as a request for a blob, and as a piece of one.
pub fn fetch(data: &[u8]) {
    if let Some(request) = read_again::<FetchRequest>(data) {
        let _ = hash(&request.hash);
    }
    read_again::<Chunk>(data);
}

fn read_again<M: Message + Default>(data: &[u8]) -> Option<M> {
    let message = M::decode(data).ok()?;
    let written = message.encode_to_vec();
    let again = M::decode(written.as_slice()).expect("what was read can be read again");
    // Bytes and not messages are compared: a NaN is not equal to itself.
    assert_eq!(again.encode_to_vec(), written);
    Some(message)
}

fn take_twice(assembly: &mut Assembly, part: Part) {
    for _ in 0..2 {
        if let Ok(Some(message)) = assembly.take(part.clone(), LIMIT) {
            assert!(message.len() <= LIMIT);
        }
    }
}

fn ask(question: Question) {
    let cohort = question.cohort as usize;
    if let Ok(checked) = Checked::try_from(question) {
        assert_eq!(checked.cohort.len(), cohort);
        assert!(checked.times(0) >= 1);
    }
}
