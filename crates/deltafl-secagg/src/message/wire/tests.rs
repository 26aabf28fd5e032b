//! Encoded messages decode to the same message, and malformed messages are rejected.

use super::*;
use crate::graph::{CollusionBound, Permille};
use proptest::prelude::*;

const ROUND: RoundId = RoundId { session: [3; 16], round: 12 };

fn device_message(body: DeviceBody) -> Bytes {
    encode_device(&DeviceMessage { round: ROUND, body })
}

fn server_message(body: ServerBody) -> Bytes {
    encode_server(&ServerMessage { round: ROUND, body })
}

fn map<T>(records: impl IntoIterator<Item = (u32, T)>) -> BTreeMap<DeviceId, T> {
    records.into_iter().map(|(id, record)| (DeviceId(id), record)).collect()
}

fn share(value: u64) -> SecretShare {
    let mut bytes = [0; SHARE_LEN];
    bytes[..8].copy_from_slice(&value.to_le_bytes());
    SecretShare::from_bytes(&bytes).expect("below p")
}

fn bundle() -> KeyBundle {
    KeyBundle::from_bytes(Bytes::from(vec![1; KeyBundle::len_for(2)])).expect("a valid length")
}

/// Returns one device message of each kind.
pub(super) fn device_messages() -> Vec<Bytes> {
    let sealed = Bytes::from(vec![7; box_len(1)]);
    [
        DeviceBody::Advertise(bundle()),
        DeviceBody::Reveal(Reveal::from([4; REVEAL_LEN])),
        DeviceBody::Shares(map([(1, sealed.clone()), (5, sealed)])),
        DeviceBody::Confirm { complaints: DeviceSet::default(), deposits: BTreeMap::new() },
        DeviceBody::Confirm {
            complaints: [DeviceId(1), DeviceId(9)].into_iter().collect(),
            deposits: map([(2, Bytes::from(vec![8; deposit_len(2)]))]),
        },
        DeviceBody::MaskedInput { slot: 1, input: Bytes::from_static(b"12345678"), signature: [6; 64] },
        DeviceBody::Attest { slot: 1, signature: [5; 64] },
        DeviceBody::Unmask {
            slot: 1,
            shares: map([(1, (SecretKind::Seed, share(6))), (2, (SecretKind::DepositKey, share(7)))]),
            revealed: None,
        },
        DeviceBody::Unmask { slot: 2, shares: map([]), revealed: Some([9; 32]) },
    ]
    .into_iter()
    .map(device_message)
    .collect()
}

/// Returns one server message of each kind.
pub(super) fn server_messages() -> Vec<Bytes> {
    let sealed = Bytes::from(vec![7; box_len(1)]);
    let half = Permille::new(500).expect("one half");
    let params =
        |graph| RoundParams { id: ROUND, suite: MaskSuite::ChaCha20, cohort: 9, graph, slots: 2, draw: None };
    let active: DeviceSet = [DeviceId(1), DeviceId(70_000)].into_iter().collect();
    [
        ServerBody::Invite(params(GraphRule::Full { threshold: 5 })),
        ServerBody::Invite(RoundParams {
            draw: Some(DrawOpening([6; 32])),
            ..params(GraphRule::Full { threshold: 5 })
        }),
        ServerBody::Invite(params(GraphRule::Active { gamma: CollusionBound::Devices(1), delta: half })),
        ServerBody::Invite(params(GraphRule::HonestButCurious { gamma: half.into(), delta: half })),
        ServerBody::Commitments(map([(1, [1; 32]), (2, [2; 32])])),
        ServerBody::Reveals(map([(1, Reveal::from([1; REVEAL_LEN])), (2, Reveal::from([2; REVEAL_LEN]))])),
        ServerBody::Keys(map([(3, bundle())])),
        ServerBody::EarlyShares(map([(1, sealed.clone())])),
        ServerBody::Shares(map([(1, sealed)])),
        ServerBody::OpenSlot { slot: 1, ring: Ring::Z64, len: 8, active: active.clone() },
        ServerBody::Survivors { slot: 1, survivors: active },
        ServerBody::Attestations { slot: 1, signatures: map([(1, [1; 64])]), masked: map([(2, [2; 64])]) },
    ]
    .into_iter()
    .map(server_message)
    .collect()
}

#[test]
fn every_message_survives_decoding_and_encoding() {
    for bytes in device_messages() {
        let message = decode_device(bytes.clone(), bytes.len()).expect("well formed");
        assert_eq!(encode_device(&message), bytes, "{message:?}");
    }
    for bytes in server_messages() {
        let message = decode_server(bytes.clone(), bytes.len()).expect("well formed");
        assert_eq!(encode_server(&message), bytes, "{message:?}");
    }
}

#[test]
fn a_message_over_the_limit_is_rejected_before_decoding() {
    let bytes = device_message(DeviceBody::Reveal(Reveal::from([4; REVEAL_LEN])));
    let (len, limit) = (bytes.len(), bytes.len() - 1);
    assert_eq!(decode_device(bytes, limit).err(), Some(WireError::TooLong { len, limit }));
}

#[test]
fn a_different_version_is_rejected() {
    let mut bytes = device_message(DeviceBody::Reveal(Reveal::from([4; REVEAL_LEN]))).to_vec();
    assert_eq!(bytes[..2], [0x08, 2], "field 1, a varint: the version");
    bytes[1] = 1;
    assert_eq!(decode_device(bytes.into(), 1000).err(), Some(WireError::Version(1)));
}

#[test]
fn a_message_without_contents_is_rejected() {
    let wire = FromDevice { version: VERSION, session: Bytes::from_static(&[3; 16]), round: 1, body: None };
    assert_eq!(decode_device(wire.encode_to_vec().into(), 1000).err(), Some(WireError::Body));
}

#[test]
fn both_shares_of_one_device_in_one_message_are_rejected() {
    let one =
        Records { ids: ids_to_wire([DeviceId(1)].into_iter()), records: Bytes::from_static(&[0; SHARE_LEN]) };
    let unmask =
        proto::Unmask { slot: 0, seeds: Some(one.clone()), deposit_keys: Some(one), revealed: Bytes::new() };
    assert_eq!(unmask_shares(unmask).err(), Some(WireError::Field("shares")));
}

#[test]
fn records_that_do_not_match_their_ids_are_rejected() {
    let ids = |count: u32| ids_to_wire((0..count).map(DeviceId).collect::<Vec<_>>().into_iter());
    let read = |ids: Bytes, len: usize| arrays::<32>(&Records { ids, records: vec![0; len].into() }, "x");
    assert!(read(ids(2), 64).is_ok());
    assert!(read(ids(0), 0).is_ok());
    assert!(read(ids(2), 63).is_err(), "not of equal length");
    assert!(read(ids(2), 62).is_err(), "too short");
    assert!(read(ids(2), 66).is_err(), "too long");
    assert!(read(ids(0), 32).is_err(), "a record without an id");
    assert!(read(ids(2).slice(1..), 64).is_err(), "a truncated id");
}

#[test]
fn impossible_parameters_are_rejected() {
    let good = proto::Invite { suite: 3, cohort: 5, slots: 1, graph: 2, threshold: 3, ..Default::default() };
    assert!(invite(ROUND, &good).is_ok());
    let active = proto::Invite { graph: 1, threshold: 0, gamma: 100, delta: 200, ..good.clone() };
    assert!(invite(ROUND, &active).is_ok());
    for bad in [
        proto::Invite { suite: 9, ..good.clone() },
        proto::Invite { draw: Bytes::from_static(b"short"), ..good.clone() },
        // A suite without ML-KEM.
        proto::Invite { suite: 1, ..good.clone() },
        proto::Invite { cohort: u32::MAX, ..good.clone() },
        proto::Invite { slots: 1000, ..good.clone() },
        proto::Invite { threshold: 6, ..good.clone() },
        proto::Invite { graph: 0, ..good.clone() },
        proto::Invite { gamma: 1, ..good.clone() },
        proto::Invite { threshold: 3, ..active.clone() },
        proto::Invite { gamma: 501, ..active.clone() },
        proto::Invite { delta: 501, ..active.clone() },
        proto::Invite { colluding: 1, ..active.clone() },
        proto::Invite { gamma: 0, colluding: 5, ..active.clone() },
    ] {
        assert!(invite(ROUND, &bad).is_err(), "{bad:?}");
    }
}

#[test]
fn the_pieces_of_a_message_concatenate_to_its_encoding() {
    let keys = |count| ServerBody::Keys(map((0..count).map(|id| (id, bundle()))));
    let boxes =
        |count, len| ServerBody::Shares(map((0..count).map(|id| (3 * id, Bytes::from(vec![id as u8; len])))));
    let long = [keys(0), keys(1), keys(90), boxes(0, 0), boxes(1, box_len(1)), boxes(150, box_len(4))];
    let long = long.map(|body| ServerMessage { round: ROUND, body });
    let each = server_messages().into_iter().map(|bytes| decode_server(bytes, 1 << 20).expect("well formed"));
    for message in each.chain(long) {
        assert_eq!(encode_server_in_pieces(&message).concat(), encode_server(&message), "{:?}", message.body);
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic_the_decoders(bytes: Vec<u8>) {
        let _ = decode_device(bytes.clone().into(), 4096);
        let _ = decode_server(bytes.into(), 4096);
    }

    #[test]
    fn modified_messages_do_not_panic_the_decoders(which: prop::sample::Index, at: prop::sample::Index, to: u8) {
        let all: Vec<Bytes> = device_messages().into_iter().chain(server_messages()).collect();
        let mut bytes = which.get(&all).to_vec();
        let at = at.index(bytes.len());
        bytes[at] = to;
        let _ = decode_device(bytes.clone().into(), 4096);
        let _ = decode_server(bytes.into(), 4096);
    }
}
