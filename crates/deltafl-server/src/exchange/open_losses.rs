//! Open mode: devices that agreed to it send their individual losses.

use std::collections::HashMap;

use deltafl::exchange::{CohortMember, NamedLoss, Round};
use deltafl::params::Params;
use deltafl::superquantile::DeviceLoss;
use deltafl_wire::proto::from_server;
use deltafl_wire::{params_blob, proto};
use tokio::time::Instant;

use super::NetworkExchange;
use crate::hub::{Address, HubEvent, Outbound, PhasePurpose, SessionEvent, Status};
use crate::refusal::Refusal;

impl NetworkExchange {
    /// Returns F_k(w) of each answering device, per track, in cohort order.
    pub(super) fn open_losses(&mut self, round: &Round<'_>, tracks: &[&Params]) -> Vec<Vec<NamedLoss>> {
        self.asked += 1;
        self.link.hub.blobs.keep_params(tracks.iter().copied());
        let params = tracks.iter().map(|params| params_blob(params).to_wire()).collect();
        let question =
            Outbound::shared(from_server::Body::LossQuestion(proto::LossQuestion { id: self.asked, params }));
        let reached = round.cohort.iter().filter(|drawn| !drawn.dropped);
        let reached = reached.filter_map(|drawn| Some((self.link.hub.address(drawn.device.0)?, *drawn)));
        let mut awaited: HashMap<Address, CohortMember> = reached.collect();
        // Before the question is sent: the end of a session is announced for devices that are
        // engaged.
        let _engaged = self.link.hub.engage(awaited.keys().copied());
        awaited.retain(|address, _| self.link.hub.send(*address, &question));
        self.link.hub.status.send_modify(|status| {
            status.turn_to((round.seed, round.index), PhasePurpose::Losses);
            status.enter("tell losses", awaited.len());
        });
        let told = self.receive_losses(awaited, tracks.len());
        self.link.hub.status.send_modify(Status::rest);
        let of_track = |track: usize| {
            let of_device = |drawn: &CohortMember| {
                let losses = told.get(&drawn.device.0)?;
                let weight = round.terms.weights.weight(losses.examples) as f64;
                let loss = DeviceLoss::new(losses.losses[track], weight).ok()?;
                Some(NamedLoss { device: drawn.device, loss })
            };
            round.cohort.iter().filter_map(of_device).collect()
        };
        (0..tracks.len()).map(of_track).collect()
    }

    fn receive_losses(
        &mut self,
        mut awaited: HashMap<Address, CohortMember>,
        tracks: usize,
    ) -> HashMap<u32, proto::Losses> {
        let deadline = Instant::now() + self.rules.deadlines.input;
        let mut told = HashMap::new();
        while !awaited.is_empty() {
            let Some(SessionEvent { from, event }) = self.link.next(deadline) else { break };
            match event {
                HubEvent::Losses(losses) if losses.id == self.asked && losses.losses.len() == tracks => {
                    if awaited.remove(&from).is_some() {
                        told.insert(from.device, losses);
                        self.link.hub.status.send_modify(Status::count_answer);
                    }
                }
                HubEvent::Gone => drop(awaited.remove(&from)),
                HubEvent::Losses(_) | HubEvent::Message { .. } => {
                    self.link.hub.refusals.count(Refusal::Late);
                }
            }
        }
        told
    }
}
