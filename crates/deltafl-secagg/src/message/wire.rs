//! Messages as bytes: protobuf, versioned, bounded (`proto/secagg.proto`).
//!
//! Decoding is zero-copy where it can be: boxes, bundles and masked inputs are slices of the received buffer,
//! and the lists that are built hold no more entries than the buffer has records.

mod proto;

use std::collections::BTreeMap;

use prost::Message as _;
use prost::bytes::{BufMut, Bytes, BytesMut};
use prost::encoding::{WireType, encode_key, encode_varint};
use thiserror::Error;

use self::proto::{FromDevice, FromServer, RECORDS, Records, from_device, from_server};
use super::{
    DeviceBody, DeviceMessage, DeviceSet, KeyBundle, REVEAL_LEN, Reveal, SecretKind, ServerBody,
    ServerMessage,
};
use crate::draw::Opening;
use crate::graph::GraphRule;
use crate::identity::DeviceId;
use crate::keys::{CIPHERTEXT_LEN, Deposit, ShareBox};
use crate::mask::Suite;
use crate::params::{RoundId, RoundParams, VERSION};
use crate::ring::Ring;
use crate::shamir::{SHARE_LEN, Share};

/// Bytes of the two shares of a slot inside a box.
pub(crate) const BOX_SLOT_LEN: usize = 2 * SHARE_LEN;

/// Bytes of what a device sends to a neighbour in a round of so many slots: an ML-KEM ciphertext and a box.
pub(crate) fn box_len(slots: u32) -> usize {
    CIPHERTEXT_LEN + slots as usize * BOX_SLOT_LEN + ShareBox::OVERHEAD
}

/// Bytes of what a device leaves with the server about a neighbour.
pub(crate) fn deposit_len(slots: u32) -> usize {
    slots as usize * Deposit::LEN
}

/// Why bytes are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WireError {
    /// More bytes than the receiver allows.
    #[error("a message of {len} bytes is over the limit of {limit}")]
    TooLong {
        /// The bytes received.
        len: usize,
        /// The bytes allowed.
        limit: usize,
    },
    /// Not protobuf of the expected shape.
    #[error("not a protobuf message of this protocol")]
    Protobuf,
    /// Another version of the protocol.
    #[error("version {0} of the protocol is not spoken here")]
    Version(u32),
    /// A message without contents, or of a kind that this version does not know.
    #[error("the message says nothing that is known")]
    Body,
    /// A field of a wrong length or with a value out of range.
    #[error("field `{0}` is malformed")]
    Field(&'static str),
}

/// The bytes of a device's message.
pub fn encode_device(message: &DeviceMessage) -> Bytes {
    let RoundId { session, round } = message.round;
    let body = Some(device_body_to_wire(&message.body));
    let wire = FromDevice { version: VERSION, session: Bytes::copy_from_slice(&session), round, body };
    wire.encode_to_vec().into()
}

/// The message of a device, if `bytes` are at most `limit` and well formed.
pub fn decode_device(bytes: Bytes, limit: usize) -> Result<DeviceMessage, WireError> {
    within(&bytes, limit)?;
    let wire = FromDevice::decode(bytes).map_err(|_| WireError::Protobuf)?;
    let round = round(wire.version, &wire.session, wire.round)?;
    Ok(DeviceMessage { round, body: device_body(wire.body.ok_or(WireError::Body)?)? })
}

/// The bytes of a server's message.
pub fn encode_server(message: &ServerMessage) -> Bytes {
    server_to_wire(message.round, Some(server_body_to_wire(&message.body))).encode_to_vec().into()
}

/// The bytes of [`encode_server`] in pieces that follow each other. What devices sent to each other, and it is long, is not
/// copied: the pieces are those of the messages in which it came.
pub fn encode_server_in_pieces(message: &ServerMessage) -> Vec<Bytes> {
    let round = message.round;
    match &message.body {
        ServerBody::Keys(bundles) => {
            let bundles = bundles.iter().map(|(&id, bundle)| (id, bundle.as_bytes().clone()));
            records_in_pieces(round, from_server::KEYS, bundles)
        }
        ServerBody::EarlyShares(boxes) => boxes_in_pieces(round, from_server::EARLY_SHARES, boxes),
        ServerBody::Shares(boxes) => boxes_in_pieces(round, from_server::SHARES, boxes),
        _ => vec![encode_server(message)],
    }
}

fn boxes_in_pieces(round: RoundId, tag: u32, boxes: &BTreeMap<DeviceId, Bytes>) -> Vec<Bytes> {
    records_in_pieces(round, tag, boxes.iter().map(|(&id, sealed)| (id, sealed.clone())))
}

/// A message whose body is records: as protobuf has it, the fields in the order of their numbers, the records at the end.
fn records_in_pieces(
    round: RoundId,
    tag: u32,
    records: impl ExactSizeIterator<Item = (DeviceId, Bytes)>,
) -> Vec<Bytes> {
    let mut pieces = vec![Bytes::new()];
    let mut ids = Vec::with_capacity(records.len());
    pieces.extend(records.map(|(id, record)| {
        ids.push(id);
        record
    }));
    let len: usize = pieces.iter().map(Bytes::len).sum();
    let mut inner = Records { ids: ids_to_wire(ids.into_iter()), records: Bytes::new() }.encode_to_vec();
    if len > 0 {
        encode_key(RECORDS, WireType::LengthDelimited, &mut inner);
        encode_varint(len as u64, &mut inner);
    }
    let mut head = server_to_wire(round, None).encode_to_vec();
    encode_key(tag, WireType::LengthDelimited, &mut head);
    encode_varint((inner.len() + len) as u64, &mut head);
    head.extend_from_slice(&inner);
    pieces[0] = head.into();
    pieces
}

fn server_to_wire(RoundId { session, round }: RoundId, body: Option<from_server::Body>) -> FromServer {
    FromServer { version: VERSION, session: Bytes::copy_from_slice(&session), round, body }
}

/// The message of a server, if `bytes` are at most `limit` and well formed.
pub fn decode_server(bytes: Bytes, limit: usize) -> Result<ServerMessage, WireError> {
    within(&bytes, limit)?;
    let wire = FromServer::decode(bytes).map_err(|_| WireError::Protobuf)?;
    let round = round(wire.version, &wire.session, wire.round)?;
    Ok(ServerMessage { round, body: server_body(round, wire.body.ok_or(WireError::Body)?)? })
}

fn within(bytes: &Bytes, limit: usize) -> Result<(), WireError> {
    match bytes.len() {
        len if len > limit => Err(WireError::TooLong { len, limit }),
        _ => Ok(()),
    }
}

fn round(version: u32, session: &Bytes, round: u64) -> Result<RoundId, WireError> {
    if version != VERSION {
        return Err(WireError::Version(version));
    }
    Ok(RoundId { session: array(session, "session")?, round })
}

fn device_body_to_wire(body: &DeviceBody) -> from_device::Body {
    match body {
        DeviceBody::Advertise(bundle) => from_device::Body::Advertise(bundle.as_bytes().clone()),
        DeviceBody::Reveal(reveal) => from_device::Body::Reveal(Bytes::copy_from_slice(reveal.as_ref())),
        DeviceBody::Shares(boxes) => from_device::Body::Shares(records(boxes)),
        DeviceBody::Confirm { complaints, deposits } => from_device::Body::Confirm(proto::Confirm {
            complaints: ids_to_wire(complaints.iter()),
            deposits: Some(records(deposits)),
        }),
        DeviceBody::MaskedInput { slot, input, signature } => {
            from_device::Body::MaskedInput(proto::MaskedInput {
                slot: *slot,
                input: input.clone(),
                signature: Bytes::copy_from_slice(signature),
            })
        }
        DeviceBody::Attest { slot, signature } => from_device::Body::Attest(proto::Attest {
            slot: *slot,
            signature: Bytes::copy_from_slice(signature),
        }),
        DeviceBody::Unmask { slot, shares } => {
            let of = |wanted: SecretKind| -> BTreeMap<DeviceId, [u8; SHARE_LEN]> {
                let matching = shares.iter().filter(|(_, (kind, _))| *kind == wanted);
                matching.map(|(&id, (_, share))| (id, share.to_bytes())).collect()
            };
            let (seeds, deposit_keys) = (of(SecretKind::Seed), of(SecretKind::DepositKey));
            from_device::Body::Unmask(proto::Unmask {
                slot: *slot,
                seeds: Some(records(&seeds)),
                deposit_keys: Some(records(&deposit_keys)),
            })
        }
    }
}

fn device_body(body: from_device::Body) -> Result<DeviceBody, WireError> {
    Ok(match body {
        from_device::Body::Advertise(bytes) => {
            DeviceBody::Advertise(KeyBundle::from_bytes(bytes).ok_or(WireError::Field("advertise"))?)
        }
        from_device::Body::Reveal(reveal) => DeviceBody::Reveal(Reveal::from(array(&reveal, "reveal")?)),
        from_device::Body::Shares(wire) => DeviceBody::Shares(boxes(&wire)?),
        from_device::Body::Confirm(wire) => DeviceBody::Confirm {
            complaints: ids(&wire.complaints, "complaints")?,
            deposits: entries(&wire.deposits.unwrap_or_default(), deposit_len(1), "deposits")?.collect(),
        },
        from_device::Body::MaskedInput(wire) => {
            let signature = array(&wire.signature, "signature")?;
            DeviceBody::MaskedInput { slot: wire.slot, input: wire.input, signature }
        }
        from_device::Body::Attest(wire) => {
            DeviceBody::Attest { slot: wire.slot, signature: array(&wire.signature, "signature")? }
        }
        from_device::Body::Unmask(wire) => {
            DeviceBody::Unmask { slot: wire.slot, shares: unmask_shares(wire)? }
        }
    })
}

fn unmask_shares(wire: proto::Unmask) -> Result<BTreeMap<DeviceId, (SecretKind, Share)>, WireError> {
    let mut shares = BTreeMap::new();
    let halves = [(SecretKind::Seed, wire.seeds), (SecretKind::DepositKey, wire.deposit_keys)];
    for (kind, records) in halves {
        for (id, bytes) in entries(&records.unwrap_or_default(), SHARE_LEN, "shares")? {
            let share = Share::from_bytes(&array(&bytes, "shares")?).ok_or(WireError::Field("shares"))?;
            // Both kinds for one device is what no honest device ever says.
            if shares.insert(id, (kind, share)).is_some() {
                return Err(WireError::Field("shares"));
            }
        }
    }
    Ok(shares)
}

fn server_body_to_wire(body: &ServerBody) -> from_server::Body {
    match body {
        ServerBody::Invite(params) => from_server::Body::Invite(invite_to_wire(params)),
        ServerBody::Commitments(commitments) => from_server::Body::Commitments(records(commitments)),
        ServerBody::Reveals(reveals) => from_server::Body::Reveals(records(reveals)),
        ServerBody::Keys(bundles) => from_server::Body::Keys(records(bundles)),
        ServerBody::EarlyShares(boxes) => from_server::Body::EarlyShares(records(boxes)),
        ServerBody::Shares(boxes) => from_server::Body::Shares(records(boxes)),
        ServerBody::OpenSlot { slot, ring, len, active } => from_server::Body::OpenSlot(proto::OpenSlot {
            slot: *slot,
            ring: ring.code(),
            len: *len,
            active: ids_to_wire(active.iter()),
        }),
        ServerBody::Survivors { slot, survivors } => from_server::Body::Survivors(proto::Survivors {
            slot: *slot,
            survivors: ids_to_wire(survivors.iter()),
        }),
        ServerBody::Attestations { slot, signatures, masked } => {
            from_server::Body::Attestations(proto::Attestations {
                slot: *slot,
                signatures: Some(records(signatures)),
                masked: Some(records(masked)),
            })
        }
    }
}

fn server_body(round: RoundId, body: from_server::Body) -> Result<ServerBody, WireError> {
    Ok(match body {
        from_server::Body::Invite(wire) => ServerBody::Invite(invite(round, &wire)?),
        from_server::Body::Commitments(wire) => ServerBody::Commitments(arrays(&wire, "commitments")?),
        from_server::Body::Reveals(wire) => {
            let reveals = arrays::<REVEAL_LEN>(&wire, "reveals")?;
            ServerBody::Reveals(reveals.into_iter().map(|(id, bytes)| (id, Reveal::from(bytes))).collect())
        }
        from_server::Body::Keys(wire) => ServerBody::Keys(bundles(&wire)?),
        from_server::Body::EarlyShares(wire) => ServerBody::EarlyShares(boxes(&wire)?),
        from_server::Body::Shares(wire) => ServerBody::Shares(boxes(&wire)?),
        from_server::Body::OpenSlot(wire) => ServerBody::OpenSlot {
            slot: wire.slot,
            ring: Ring::from_code(wire.ring).ok_or(WireError::Field("ring"))?,
            len: wire.len,
            active: ids(&wire.active, "active")?,
        },
        from_server::Body::Survivors(wire) => {
            ServerBody::Survivors { slot: wire.slot, survivors: ids(&wire.survivors, "survivors")? }
        }
        from_server::Body::Attestations(wire) => ServerBody::Attestations {
            slot: wire.slot,
            signatures: arrays(&wire.signatures.unwrap_or_default(), "signatures")?,
            masked: arrays(&wire.masked.unwrap_or_default(), "masked")?,
        },
    })
}

fn invite_to_wire(params: &RoundParams) -> proto::Invite {
    let [graph, threshold, gamma, colluding, delta] = params.graph.numbers();
    let (suite, cohort, slots) = (params.suite.code(), params.cohort, params.slots);
    let draw = params.draw.map(|opening| Bytes::copy_from_slice(&opening.0)).unwrap_or_default();
    proto::Invite { suite, cohort, slots, graph, threshold, gamma, colluding, delta, draw }
}

fn invite(id: RoundId, wire: &proto::Invite) -> Result<RoundParams, WireError> {
    let numbers = [wire.graph, wire.threshold, wire.gamma, wire.colluding, wire.delta];
    let graph = GraphRule::from_numbers(numbers).ok_or(WireError::Field("graph"))?;
    let suite = Suite::from_code(wire.suite).ok_or(WireError::Field("suite"))?;
    let draw = match wire.draw.len() {
        0 => None,
        _ => Some(Opening(array(&wire.draw, "draw")?)),
    };
    let params = RoundParams { id, suite, cohort: wire.cohort, graph, slots: wire.slots, draw };
    params.check().map_err(|_| WireError::Field("invite"))?;
    Ok(params)
}

fn ids_to_wire(ids: impl ExactSizeIterator<Item = DeviceId>) -> Bytes {
    let mut bytes = BytesMut::with_capacity(ids.len() * 4);
    ids.for_each(|id| bytes.put_u32_le(id.0));
    bytes.freeze()
}

fn ids(bytes: &Bytes, field: &'static str) -> Result<DeviceSet, WireError> {
    let (chunks, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(WireError::Field(field));
    }
    let ids: Vec<DeviceId> = chunks.iter().map(|&id| DeviceId(u32::from_le_bytes(id))).collect();
    DeviceSet::try_from(ids).map_err(|_| WireError::Field(field))
}

fn records<T: AsRef<[u8]>>(entries: &BTreeMap<DeviceId, T>) -> Records {
    let mut records = BytesMut::with_capacity(entries.values().map(|record| record.as_ref().len()).sum());
    entries.values().for_each(|record| records.put_slice(record.as_ref()));
    Records { ids: ids_to_wire(entries.keys().copied()), records: records.freeze() }
}

/// The records by device: slices of the message, all of one length of at least `shortest`.
fn entries(
    wire: &Records,
    shortest: usize,
    field: &'static str,
) -> Result<impl Iterator<Item = (DeviceId, Bytes)>, WireError> {
    let ids = ids(&wire.ids, field)?;
    let each = wire.records.len().checked_div(ids.len()).unwrap_or(0);
    if each * ids.len() != wire.records.len() || (!ids.is_empty() && each < shortest) {
        return Err(WireError::Field(field));
    }
    let records = wire.records.clone();
    let record = move |i: usize| records.slice(i * each..(i + 1) * each);
    Ok(ids.into_vec().into_iter().enumerate().map(move |(i, id)| (id, record(i))))
}

fn arrays<const N: usize>(
    wire: &Records,
    field: &'static str,
) -> Result<BTreeMap<DeviceId, [u8; N]>, WireError> {
    entries(wire, N, field)?.map(|(id, bytes)| Ok((id, array(&bytes, field)?))).collect()
}

fn boxes(wire: &Records) -> Result<BTreeMap<DeviceId, Bytes>, WireError> {
    Ok(entries(wire, box_len(1), "shares")?.collect())
}

fn bundles(wire: &Records) -> Result<BTreeMap<DeviceId, KeyBundle>, WireError> {
    entries(wire, KeyBundle::len_for(1), "keys")?
        .map(|(id, bytes)| Ok((id, KeyBundle::from_bytes(bytes).ok_or(WireError::Field("keys"))?)))
        .collect()
}

fn array<const N: usize>(bytes: &Bytes, field: &'static str) -> Result<[u8; N], WireError> {
    bytes.as_ref().try_into().map_err(|_| WireError::Field(field))
}

#[cfg(test)]
mod tests;
