//! The messages of a server that deviates: set-ups, questions, survivors and signatures.

use std::collections::BTreeMap;

use bytes::Bytes;
use deltafl::params::Params;
use deltafl::question::{Ask, Query, Question, RoundKey};
use deltafl::selection::Weighting;
use deltafl::superquantile::private::{Bins, QuantileQuery};
use deltafl::terms::{Terms, TrackSchedule, Weights};
use deltafl::trainer::{LocalPlan, Work};
use deltafl_secagg::graph::{CollusionBound, GraphRule, Permille};
use deltafl_secagg::identity::DeviceId;
use deltafl_secagg::mask::MaskSuite;
use deltafl_secagg::message::{DeviceBody, DeviceSet, ServerBody};
use deltafl_secagg::params::{RoundId, RoundParams};
use deltafl_secagg::ring::Ring;
use deltafl_wire::proto::{self, from_server};
use deltafl_wire::roster::session_under;
use rand_core::Rng as _;

use super::scenario::{Scenario, SetUp};
use super::{DEVICES, PARAMS, SLOTS};

impl Scenario {
    /// Changes the roster or the session of some devices.
    fn change_identity(&mut self) {
        let all: Vec<u32> = (0..DEVICES).collect();
        let some = if self.one_in(2) { all } else { self.most_of(&all) };
        match self.below(24) {
            0 => {
                let forged = self.liar.roster(&self.rosters[2]);
                some.iter().for_each(|&k| self.post(k, from_server::Body::Roster(forged.clone())));
            }
            1 | 2 => {
                let next = self.liar.roster(&self.rosters[1]);
                for k in some {
                    self.shown[k as usize] = 1;
                    self.post(k, from_server::Body::Roster(next.clone()));
                }
            }
            3 => {
                self.liar.show(self.rosters[1].clone());
                for k in some {
                    self.shown[k as usize] = 1;
                    self.sessions[k as usize] = [5; 16];
                    self.liar.reconnect(k, [5; 16]);
                }
            }
            _ => {}
        }
    }

    /// Returns the name of a round for a device.
    fn round_id(&self, device: u32, round: u64) -> RoundId {
        let roster = blake3::hash(&self.rosters[self.shown[device as usize]].bytes);
        RoundId { session: session_under(&self.sessions[device as usize], &roster), round }
    }

    /// Sets up keys with a cohort.
    async fn set_up(&mut self, number: u64) -> SetUp {
        self.change_identity();
        self.settle().await;
        // Sometimes without one device, so that two sums differ in it.
        let mut cohort: Vec<u32> = (0..DEVICES).collect();
        if self.one_in(2) {
            let without = self.below(cohort.len());
            cohort.remove(without);
        }
        let delta = Permille::new(400).unwrap();
        let params = RoundParams {
            id: self.round_id(cohort[0], number),
            suite: MaskSuite::default(),
            cohort: cohort.len() as u32,
            graph: GraphRule::Active { gamma: CollusionBound::Devices(1), delta },
            slots: SLOTS,
            draw: None,
        };
        for to in self.shuffled(&cohort) {
            let mut own = RoundParams { id: self.round_id(to, number), ..params.clone() };
            if self.one_in(self.rarity) {
                match self.below(4) {
                    0 => own.cohort += 1,
                    1 => own.graph = GraphRule::Full { threshold: 2 },
                    2 => own.id.round = number.saturating_sub(1),
                    _ => own.slots = 2,
                }
            }
            self.say(to, own.id, ServerBody::Invite(own.clone()));
        }
        let mut bundles = BTreeMap::new();
        for (from, _, body) in self.settle().await {
            if let DeviceBody::Advertise(bundle) = body {
                bundles.insert(from, bundle);
            }
        }
        for to in self.shuffled(&cohort) {
            let mut keys = bundles.clone();
            if self.one_in(self.rarity) && !keys.is_empty() {
                let ids: Vec<DeviceId> = keys.keys().copied().collect();
                let (one, other) = (ids[self.below(ids.len())], ids[self.below(ids.len())]);
                match self.one_in(2) {
                    true => drop(keys.remove(&one)),
                    false => drop(keys.insert(one, bundles[&other].clone())),
                }
            }
            self.say(to, params.id, ServerBody::Keys(keys));
        }
        let mut boxes = BTreeMap::new();
        for (from, _, body) in self.settle().await {
            if let DeviceBody::Shares(sealed) = body {
                boxes.insert(from, sealed);
            }
        }
        for to in self.shuffled(&cohort) {
            let sealed = |(&from, boxes): (&DeviceId, &BTreeMap<DeviceId, Bytes>)| {
                Some((from, boxes.get(&DeviceId(to))?.clone()))
            };
            let mut delivered: BTreeMap<DeviceId, Bytes> = boxes.iter().filter_map(sealed).collect();
            if self.one_in(self.rarity) && !delivered.is_empty() {
                let ids: Vec<DeviceId> = delivered.keys().copied().collect();
                let (one, other) = (ids[self.below(ids.len())], ids[self.below(ids.len())]);
                let moved = delivered.remove(&one).unwrap();
                if self.one_in(2) {
                    delivered.insert(other, moved);
                }
            }
            self.say(to, params.id, ServerBody::Shares(delivered));
        }
        let confirmed = |(from, _, body): (DeviceId, RoundId, DeviceBody)| {
            matches!(body, DeviceBody::Confirm { .. }).then_some(from.0)
        };
        let active: Vec<u32> = self.settle().await.into_iter().filter_map(confirmed).collect();
        SetUp { params, active }
    }

    /// Returns w, or a nearly equal one.
    fn model(&mut self, units: u32) -> Params {
        let mut entries = vec![0.5f32; PARAMS];
        entries[1] = f32::from_bits(entries[1].to_bits() + units);
        let params = Params::from(entries);
        let bytes: Vec<u8> = params.as_slice().iter().flat_map(|entry| entry.to_le_bytes()).collect();
        self.liar.offer(bytes.into());
        self.models.insert(params.id().hash, params.clone());
        params
    }

    /// Returns a question of a round: for updates, or for a histogram of losses.
    fn question(&mut self, round: u64, members: u32, is_update: bool) -> Question {
        let key = RoundKey { run: 0, seed: 1, round, members, terms: Terms::PRIVATE };
        let units = if self.one_in(6) { self.rng.next_u32() % 3 } else { 0 };
        let ask = match is_update {
            true => update(if self.one_in(2) { 0.0 } else { 3.5 }),
            false => Ask::Quantile(QuantileQuery::Histogram(Bins::new(0.0, 1e6, 1024).unwrap())),
        };
        Question { key, queries: vec![Query::new(self.model(units), ask)] }
    }

    /// Returns another question than this one.
    fn other_question(&mut self, question: &Question) -> Question {
        let mut other = question.clone();
        match self.below(9) {
            0 => other.key.round += 1,
            1 => other.key.run += 1,
            2 => other.key.seed += 1,
            3 => other.key.members += 1,
            4 => other.key.terms.weights = Weights::Exact,
            5 => other.queries[0].params = self.model(3),
            6 => other.queries[0].ask = update(4.5),
            // Two thresholds at nearly equal w.
            turn => {
                let (schedule, tracks) = match turn {
                    7 => (TrackSchedule::Together, 2),
                    _ => (TrackSchedule::InTurn, 2),
                };
                other.key.terms = Terms { schedule, tracks, ..Terms::PRIVATE };
                other.queries = vec![
                    Query::new(self.model(0), update(0.0)),
                    Query::new(self.model(1), update(5.5)).of_track(1),
                ];
            }
        }
        other
    }

    /// Asks a question in a slot. Returns the devices that are still in the round.
    async fn slot(&mut self, set_up: &SetUp, slot: u32, round: u64) -> Vec<u32> {
        let is_update = slot + 1 == SLOTS || self.one_in(3);
        let mut question = self.question(round, set_up.params.cohort, is_update);
        let deviates = |scenario: &mut Self| scenario.one_in(8);
        if deviates(self) {
            question = self.other_question(&question);
        }
        let mut others = vec![(question, set(&set_up.active))];
        if deviates(self) {
            let (question, _) = others[0].clone();
            others.push((self.other_question(&question), set(&set_up.active)));
        }
        if deviates(self) {
            let fewer = self.most_of(&set_up.active);
            others.push((others[0].0.clone(), set(&fewer)));
        }
        let mut views: BTreeMap<u32, usize> = BTreeMap::new();
        for to in self.shuffled(&set_up.active) {
            let view = if self.one_in(2) { 0 } else { self.below(others.len()) };
            views.insert(to, view);
            let (question, active) = others[view].clone();
            let len = question.queries.iter().map(Query::answer_len).sum::<usize>() as u32;
            let canonical = question.to_bytes().into();
            self.post(to, from_server::Body::Question(proto::Question { canonical }));
            let slot = if self.one_in(20 * self.rarity) { slot + 1 } else { slot };
            self.say(to, set_up.params.id, ServerBody::OpenSlot { slot, ring: Ring::Z64, len, active });
        }
        let mut masked = BTreeMap::new();
        for (from, _, body) in self.settle().await {
            if let DeviceBody::MaskedInput { signature, .. } = body {
                masked.insert(from, signature);
            }
        }
        let survivors: Vec<u32> = masked.keys().map(|id| id.0).collect();
        self.unmask(set_up, slot, &survivors, &views).await
    }

    /// Returns the survivors that each device is told.
    fn told(&mut self, survivors: &[u32]) -> BTreeMap<u32, DeviceSet> {
        let order = self.shuffled(survivors);
        let plan = self.below(9);
        let fewer = [self.most_of(survivors), self.most_of(survivors)];
        let told = |scenario: &mut Self, (place, &device): (usize, &u32)| match plan {
            0 | 1 => set(&fewer[scenario.below(2)]),
            // Three devices are gone, and each device is told of two of them.
            2 => {
                let first = if place < 3 { place + 1 } else { place };
                let gone = [first, first + 1].map(|place| order[place % 3 % order.len()]);
                let stays = |id: &&u32| !gone.contains(id) || **id == device;
                survivors.iter().filter(stays).map(|&id| DeviceId(id)).collect()
            }
            _ => set(survivors),
        };
        order.iter().enumerate().map(|at| (*at.1, told(self, at))).collect()
    }

    /// Announces survivors and signatures, and collects shares.
    async fn unmask(
        &mut self,
        set_up: &SetUp,
        slot: u32,
        survivors: &[u32],
        views: &BTreeMap<u32, usize>,
    ) -> Vec<u32> {
        let told = self.told(survivors);
        for (&to, survivors) in &told {
            let survivors = survivors.clone();
            self.say(to, set_up.params.id, ServerBody::Survivors { slot, survivors });
        }
        let mut signed = BTreeMap::new();
        for (from, _, body) in self.settle().await {
            if let DeviceBody::Attest { signature, .. } = body {
                signed.insert(from, signature);
            }
        }
        for (&to, view) in &told {
            let alike = |id: &DeviceId| told.get(&id.0) == Some(view) && views.get(&id.0) == views.get(&to);
            let mut signatures: BTreeMap<DeviceId, [u8; 64]> = signed.clone();
            if !self.one_in(10) {
                signatures.retain(|id, _| alike(id) && view.contains(*id));
            }
            if self.one_in(self.rarity) {
                signatures.pop_first();
            }
            let body = ServerBody::Attestations { slot, signatures, masked: BTreeMap::new() };
            self.say(to, set_up.params.id, body);
        }
        let revealed = |(from, _, body): (DeviceId, RoundId, DeviceBody)| {
            matches!(body, DeviceBody::Unmask { .. }).then_some(from.0)
        };
        self.settle().await.into_iter().filter_map(revealed).collect()
    }

    /// Plays two or three key set-ups.
    pub(super) async fn play(&mut self) {
        self.settle().await;
        let mut number = 0;
        for _ in 0..2 + self.below(2) {
            number = if self.one_in(12) { number } else { number + 1 };
            let mut set_up = self.set_up(number).await;
            // The same round of the run again and again.
            let round = u64::from(self.one_in(4));
            for slot in 0..SLOTS {
                if self.one_in(20) {
                    let blobs =
                        self.models.values().map(|w| deltafl_wire::params_blob(w).to_wire()).collect();
                    let to = self.below(DEVICES as usize) as u32;
                    let asked = proto::LossQuestion { id: 1, params: blobs };
                    self.post(to, from_server::Body::LossQuestion(asked));
                }
                set_up.active = self.slot(&set_up, slot, round).await;
            }
        }
    }
}

fn update(eta: f64) -> Ask {
    let plan = LocalPlan {
        work: Work::Steps(2),
        batch: 4,
        learning_rate: 0.1,
        l2: 0.0,
        proximal: 0.0,
        correction: None,
    };
    Ask::Update { weighting: Weighting::tail(eta), plan }
}

fn set(devices: &[u32]) -> DeviceSet {
    devices.iter().map(|&id| DeviceId(id)).collect()
}
