//! One round of secure aggregation in memory: a server and four devices that exchange bytes.
//!
//! An application with a network replaces the queues by connections, and `now` by a clock.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use chacha20::ChaCha20Rng;
use deltafl_secagg::defences::Defences;
use deltafl_secagg::device::{AdversaryModel, DeviceEvent, DevicePolicy};
use deltafl_secagg::identity::{KeyRoster, SigningIdentity};
use deltafl_secagg::mask::MaskSuite;
use deltafl_secagg::message::ServerBody;
use deltafl_secagg::message::wire::{decode_device, decode_server, encode_device, encode_server};
use deltafl_secagg::params::{RoundId, RoundParams};
use deltafl_secagg::ring::{Ring, RingVector};
use deltafl_secagg::server::{ServerRoundConfig, ServerRoundEvent};
use deltafl_secagg::{DeviceId, DeviceRound, GraphRule, Participant, ServerRound};
use rand_core::SeedableRng;

/// The application's data that all devices must agree on.
const CONTEXT: &[u8] = b"round 1";

fn main() -> Result<(), Box<dyn Error>> {
    // A deployment uses the random numbers of the operating system.
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    let now = Duration::ZERO;

    // Every device has a long-term key pair. An authority publishes the roster of public keys.
    let identities: Vec<_> = (0..4).map(|id| SigningIdentity::generate(DeviceId(id), &mut rng)).collect();
    let mut roster = KeyRoster::new();
    for identity in &identities {
        roster.add(identity.id(), &identity.public())?;
    }
    let roster = Arc::new(roster);

    // The server invites its cohort.
    let id = RoundId { session: [7; 16], round: 1 };
    let (suite, graph) = (MaskSuite::default(), GraphRule::default());
    let config = ServerRoundConfig {
        params: RoundParams { id, suite, cohort: 4, graph, slots: 1, draw: None },
        cohort: (0..4).map(DeviceId).collect(),
        roster: Arc::clone(&roster),
        min_members: 3,
        phase_timeout: Duration::from_secs(60),
    };
    let mut server = ServerRound::new(config, now)?;

    // Every device decides by its policy whether it joins.
    let policy = DevicePolicy {
        min_members: 3,
        adversary: AdversaryModel::default(),
        max_len: 1000,
        patience: Duration::from_secs(600),
        max_left_out: None,
        defences: Defences::default(),
    };
    let mut participants: BTreeMap<DeviceId, Participant> = identities
        .into_iter()
        .map(Arc::new)
        .map(|identity| {
            let id = identity.id();
            (id, Participant::new(identity, Arc::clone(&roster), [7; 16], policy))
        })
        .collect();
    let mut devices: BTreeMap<DeviceId, DeviceRound> = BTreeMap::new();

    loop {
        // Server to devices.
        while let Some(transmit) = server.poll_transmit() {
            let bytes = encode_server(&transmit.message);
            for to in transmit.to.iter() {
                match devices.get_mut(&to) {
                    Some(device) => {
                        let message = decode_server(bytes.clone(), device.message_limit())?;
                        device.handle(now, message)?;
                    }
                    None => {
                        let message = decode_server(bytes.clone(), 1000)?;
                        let ServerBody::Invite(params) = message.body else { continue };
                        let Some(participant) = participants.get_mut(&to) else { continue };
                        devices.insert(to, participant.join(&params, now, &mut rng)?);
                    }
                }
            }
        }
        // Devices to server.
        for (&id, device) in &mut devices {
            while let Some(event) = device.poll_event() {
                if let DeviceEvent::InputWanted(request) = event {
                    let input = vec![u64::from(id.0); request.len as usize];
                    device.submit(CONTEXT, RingVector::from(input))?;
                }
            }
            while let Some(message) = device.poll_transmit() {
                let message = decode_device(encode_device(&message), server.message_limit())?;
                server.handle(now, id, message)?;
            }
        }
        // The application opens a slot when the server is ready, and receives the sum.
        match server.poll_event() {
            Some(ServerRoundEvent::Ready { .. }) => server.open_slot(now, Ring::Z64, 3, CONTEXT)?,
            Some(ServerRoundEvent::Sum(sum)) => {
                assert_eq!(sum.sum, RingVector::from(vec![6_u64; 3]));
                println!("the sum of {} devices is correct", sum.survivors.len());
                return Ok(());
            }
            Some(ServerRoundEvent::Ended(failure)) => return Err(failure.into()),
            _ => {}
        }
    }
}
