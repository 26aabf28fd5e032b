//! A device's participation in a round: it joins, contributes its answer to the sum, and follows
//! the protocol.

use std::sync::Arc;

use bytes::Bytes;
use chacha20::ChaCha20Rng;
use deltafl::device::{UpdateRandomness, stream_key};
use deltafl::params::{Params, ParamsId};
use deltafl::privacy::Rho;
use deltafl::question::{Ask, Query, Question, RoundKey};
use deltafl::stream::Stream;
use deltafl::terms::TrackSchedule;
use deltafl_secagg::device::{DeviceEvent, DeviceRound, RefusedRound, SeenRound};
use deltafl_secagg::draw::LeftOut;
use deltafl_secagg::message::wire::{decode_server, encode_device};
use deltafl_secagg::message::{DeviceSet, ServerBody};
use deltafl_secagg::params::RoundParams;
use deltafl_secagg::ring::RingVector;
use deltafl_wire::identity::hex;
use deltafl_wire::proto;
use deltafl_wire::proto::{from_device, from_server};
use deltafl_wire::{BlobId, MAX_QUERIES, fragments, malformed, params_blob_from_id};
use rand_core::SeedableRng;
use tokio::time::Instant;

use super::divided::DividedRound;
use super::{PENDING, Session, SessionError};
use crate::answer::{AnswerTask, Answering};
use crate::consent::Reason;
use crate::defences::Defence;
use crate::events::SessionEvent;
use crate::fault::Turn;
use crate::fetch::fetch_again;
use crate::state::{AnswerRefused, Claim, Digest, LedgerKey, PrivacyExhausted, ServedTrack, TranscriptEvent};

impl Session<'_> {
    /// Handles a secure aggregation message.
    pub(super) async fn take_part(&mut self, bytes: Bytes, limit: usize) -> Result<(), SessionError> {
        let message = decode_server(bytes, limit)?;
        if let ServerBody::Invite(params) = &message.body {
            return self.join(params).await;
        }
        let now = self.since.elapsed();
        let Some(protocol) = &mut self.protocol else { return Ok(()) };
        let active = match &message.body {
            ServerBody::OpenSlot { active, .. } => active.clone(),
            _ => DeviceSet::default(),
        };
        let shown = drawn(protocol, &message.body)
            .or_else(|| transcript_event(protocol.params(), &message.body, self.question.as_ref()));
        if let Err(abort) = protocol.handle(now, message) {
            tracing::warn!(%abort, "left the round");
            self.record_refusal(&abort)?;
            return self.sit_out(Reason::Policy).await;
        }
        // Written before any message that depends on it.
        if let Some(event) = shown {
            self.device.state.record(event)?;
        }
        while let Some(event) = self.protocol.as_mut().and_then(DeviceRound::poll_event) {
            match event {
                DeviceEvent::InputWanted(_) => self.answer(&active).await?,
                DeviceEvent::RoundDone => {
                    self.speak().await?;
                    self.protocol = None;
                }
                _ => {}
            }
        }
        self.speak().await
    }

    /// Joins a round if consent and policy allow it.
    async fn join(&mut self, params: &RoundParams) -> Result<(), SessionError> {
        (self.protocol, self.question) = (None, None);
        if let Err(reason) = self.willing() {
            return self.decline(reason).await;
        }
        if !self.device.consent.guard.accepts(params.graph, params.cohort) {
            let refused = RefusedRound::Unsafe;
            self.memory.log_refusal(&refused, "stays out of a round");
            let event = TranscriptEvent::Refused { setup: setup(params), reason: refused.to_string() };
            self.device.state.record(event)?;
            return self.sit_out(Reason::Policy).await;
        }
        let seed = self.device.random()?;
        let now = self.since.elapsed();
        match self.enrolment.join(params, now, &mut ChaCha20Rng::from_seed(*seed)) {
            Ok(protocol) => {
                // Both are written before the first message of the round, so that a restarted
                // device joins no round twice.
                let roster = self.roster.roster.edition().version;
                let joined = SeenRound { round: params.id.round, roster };
                if self.device.defences.has(Defence::JoinedOnDisk) {
                    self.device.state.join(self.device.credentials.authority, joined)?;
                }
                self.device.state.record(TranscriptEvent::Joined {
                    setup: setup(params),
                    roster,
                    cohort: params.cohort,
                    params: Digest(params.digest()),
                })?;
                self.device.faults.begin_round();
                self.protocol = Some(protocol);
                self.speak().await
            }
            Err(refused) => {
                self.memory.log_refusal(&refused, "stays out of a round");
                self.sit_out(Reason::Policy).await
            }
        }
    }

    /// Records in the transcript why the device leaves the round.
    fn record_refusal(&mut self, reason: &dyn std::fmt::Display) -> Result<(), SessionError> {
        let Some(protocol) = &self.protocol else { return Ok(()) };
        let event = TranscriptEvent::Refused { setup: setup(protocol.params()), reason: reason.to_string() };
        Ok(self.device.state.record(event)?)
    }

    /// Computes and submits the answer to the current question, among the active devices.
    async fn answer(&mut self, active: &DeviceSet) -> Result<(), SessionError> {
        let (Some(question), Some(mut protocol)) = (self.question.take(), self.protocol.take()) else {
            return self.sit_out(Reason::Unable).await;
        };
        let examples = self.data.federation.example_count(self.data.device);
        let (consent, runs) = (&self.device.consent, self.roster.roster.runs());
        let terms = match self.device.defences.has(Defence::OneTrackPerDevice) {
            true => consent.allows_terms(&question, runs, active.len()),
            false => Ok(()),
        };
        let detail = match self.device.defences.has(Defence::ExamplesBehindAnswer) {
            true => consent.allows_detail(&question, examples),
            false => Ok(()),
        };
        let allowed = terms.and(detail).and_then(|()| consent.allows_work(&question));
        if let Err(refused) = allowed {
            return self.refuse(protocol, &refused, Reason::Policy).await;
        }
        if let Err(spent) = self.check_budget() {
            return self.refuse(protocol, &spent, Reason::Policy).await;
        }
        let authority = self.device.credentials.authority;
        let cost = self.device.consent.cost(&question, protocol.params(), active.len());
        if let Err(exhausted) = self.check_privacy(cost) {
            return self.refuse(protocol, &exhausted, Reason::Policy).await;
        }
        let answering = match self.claim(&question, active)? {
            Ok(answering) => answering,
            Err(refused) => return self.refuse(protocol, &refused, Reason::Answered).await,
        };
        self.device.state.count_answer(&self.ledger_key(&question.key))?;
        self.device.state.spend_privacy(authority, cost)?;
        let randomness = match self.device.consent.reproducible {
            true => UpdateRandomness::Reproducible,
            false => UpdateRandomness::Secret(*self.device.random()?),
        };
        let blobs: Vec<BlobId> = question.named().map(|id| params_blob_from_id(&id)).collect();
        let params = self.fetch_params(&blobs).await?;
        let question = question.with_params(&params).ok_or_else(|| malformed("params"))?;
        let (key, tracks) =
            (question.key, question.queries.iter().map(|query| query.track).collect::<Vec<_>>());
        let before = self.device.state.recall(&key, &tracks)?;
        let mut own = before.clone();
        let workers = Arc::clone(&self.device.workers);
        let Some(_room) = self.unless_over(workers.room()).await? else {
            tracing::info!("the round is over: its answer is not computed");
            return Ok(());
        };
        let is_evaluation = question.queries.iter().all(|query| matches!(query.ask, Ask::Evaluation(_)));
        let (data, task) = (self.data.clone(), self.trainer.task());
        let mut losses = std::mem::take(&mut self.memory.losses);
        let trains_always = self.device.defences.has(Defence::EqualWork);
        let begun = Instant::now();
        let computed = workers.compute(Arc::clone(self.trainer), move |worker| {
            let task = AnswerTask { data: &data, task, randomness, trains_always };
            let answer = task.answer(&question, &answering, &mut losses, &mut own, worker)?;
            // Noisy sums fit into 32 bits.
            let values = match question.queries.iter().all(|query| query.noise.is_some()) {
                true => RingVector::Z32(answer.values.into_iter().map(|entry| entry as u32).collect()),
                false => RingVector::Z64(answer.values),
            };
            let submitted = protocol.submit_with_keys(&answer.context, values, answer.keys);
            Ok((submitted, protocol, losses, own))
        });
        let computed = self.unless_over(computed).await;
        self.memory.ledger.spend(begun.elapsed());
        let Some(computed) = computed? else {
            tracing::info!("the round is over: the computation of its answer is cancelled");
            return Ok(());
        };
        let (submitted, protocol, losses, own) = computed?;
        self.device.state.remember(&key, &tracks, &before, &own)?;
        self.memory.losses = losses;
        self.protocol = Some(protocol);
        match submitted {
            Ok(()) => {
                self.speak().await?;
                let event = match is_evaluation {
                    true => SessionEvent::Evaluated,
                    false => SessionEvent::Answered { round: key.round },
                };
                let _ = self.device.observe(event);
                Ok(())
            }
            Err(refused) => {
                tracing::warn!(%refused, "the answer does not match the question");
                self.sit_out(Reason::Unable).await
            }
        }
    }

    /// Checks that an answer of this cost stays within the owner's limit on ε.
    fn check_privacy(&self, cost: Rho) -> Result<(), PrivacyExhausted> {
        let (authority, limit) = (&self.device.credentials.authority, self.device.consent.privacy);
        match self.device.defences.has(Defence::PrivacyLimit) {
            true => self.device.state.check_privacy(authority, cost, limit),
            false => Ok(()),
        }
    }

    /// Refuses a sum and records the reason.
    async fn refuse(
        &mut self,
        protocol: DeviceRound,
        refused: &(dyn std::fmt::Display + Sync),
        reason: Reason,
    ) -> Result<(), SessionError> {
        self.memory.log_refusal(&refused, "stays out of a sum");
        self.protocol = Some(protocol);
        self.record_refusal(&refused)?;
        self.sit_out(reason).await
    }

    /// Records in the ledger the answers that the device is about to give, and returns the
    /// corresponding queries. Evaluation queries are skipped if the owner did not agree.
    ///
    /// A device that cannot answer a query refuses the whole sum. If it added zeros instead, a
    /// server could ask one device among others that have answered before, and would read it alone.
    fn claim(
        &mut self,
        question: &Question<ParamsId>,
        active: &DeviceSet,
    ) -> Result<Result<Answering, AnswerRefused>, SessionError> {
        let (consent, terms) = (&self.device.consent, question.key.terms);
        let is_silent =
            |query: &Query<ParamsId>| matches!(query.ask, Ask::Evaluation(_)) && !consent.evaluate;
        let silent = (0..question.queries.len()).filter(|&i| is_silent(&question.queries[i])).collect();
        if !self.device.defences.has(Defence::OncePerRound) {
            return Ok(Ok(Answering { track: None, silent }));
        }
        let key = self.ledger_key(&question.key);
        let known = self.device.state.track(&key);
        let divided = match terms.divided_among() > 1 && self.device.defences.has(Defence::SecretTrack) {
            true => {
                let (before, roster) = (self.memory.divided.as_ref(), self.roster.hash);
                match DividedRound::after(before, known.is_some(), question, roster, active) {
                    Ok(divided) => Some(divided),
                    Err(refused) => return Ok(Err(refused)),
                }
            }
            false => None,
        };
        let track = match terms.schedule {
            TrackSchedule::Apart if consent.reproducible => {
                question.key.assigned_track(stream_key(self.data.name())).unwrap_or_default()
            }
            TrackSchedule::Apart => match known {
                Some(track) => track,
                None => Stream::from_key(*self.device.random()?).below(terms.divided_among()) as u32,
            },
            TrackSchedule::InTurn | TrackSchedule::Together => {
                question.queries.first().map_or(0, |query| query.track)
            }
        };
        let of_track = || question.queries.iter().filter(|query| query.track == track);
        let params = of_track().next().map(|query| query.params.hash);
        let served = ServedTrack { divided_among: terms.divided_among() as u32, track, params };
        let mut claims: Vec<Claim> = Vec::new();
        for query in question.queries.iter().filter(|query| !is_silent(query)) {
            let claim = claim_of(&query.ask);
            // The claims of a divided round do not depend on the secret track.
            if (divided.is_some() || query.track == track) && !claims.contains(&claim) {
                claims.push(claim);
            }
        }
        if let Err(answered) = self.device.state.claim(&key, served, &claims)? {
            return Ok(Err(answered));
        }
        if divided.is_some() {
            self.memory.divided = divided;
        }
        Ok(Ok(Answering { track: Some(track), silent }))
    }

    /// The key of a round in the ledger.
    fn ledger_key(&self, key: &RoundKey) -> LedgerKey {
        LedgerKey {
            authority: self.device.credentials.authority,
            run: key.run,
            round: key.round,
            rounds_between: self.device.consent.rounds_between,
        }
    }

    /// Awaits a computation. Returns `None` if the server ends the round first. The computation is
    /// also cancelled when the connection ends and this future is dropped.
    async fn unless_over<T>(
        &mut self,
        computing: impl Future<Output = T>,
    ) -> Result<Option<T>, SessionError> {
        tokio::pin!(computing);
        loop {
            tokio::select! {
                computed = &mut computing => return Ok(Some(computed)),
                message = self.incoming.message() => {
                    let message = message?.ok_or(SessionError::Closed)?;
                    match message.body.ok_or(malformed("body"))? {
                        from_server::Body::Over(over) => {
                            if over.last {
                                let _ = self.device.observe(SessionEvent::Finished);
                            }
                            return Ok(None);
                        }
                        body => self.keep_for_later(body)?,
                    }
                }
            }
        }
    }

    /// Awaits a future. Messages of the server are queued meanwhile, except for a shutdown notice,
    /// which is always the last message.
    pub(super) async fn while_listening<T>(
        &mut self,
        waiting: impl Future<Output = T>,
    ) -> Result<T, SessionError> {
        tokio::pin!(waiting);
        loop {
            tokio::select! {
                came = &mut waiting => return Ok(came),
                message = self.incoming.message() => {
                    let message = message?.ok_or(SessionError::Closed)?;
                    match message.body.ok_or(malformed("body"))? {
                        from_server::Body::Drain(drain) => return Err(SessionError::Drained { within: drain.within }),
                        body => self.keep_for_later(body)?,
                    }
                }
            }
        }
    }

    fn keep_for_later(&mut self, body: from_server::Body) -> Result<(), SessionError> {
        if self.pending.len() == PENDING {
            return Err(malformed("body").into());
        }
        self.pending.push_back(body);
        Ok(())
    }

    /// Answers in open mode with F_k at the given parameters.
    pub(super) async fn send_losses(&mut self, question: proto::LossQuestion) -> Result<(), SessionError> {
        let is_open = self.device.consent.open || !self.device.defences.has(Defence::NoLossInPrivate);
        if !is_open || question.params.len() > MAX_QUERIES {
            return self.sit_out(Reason::Policy).await;
        }
        // A loss without noise has no finite cost.
        if let Err(exhausted) = self.check_privacy(Rho::UNBOUNDED) {
            self.memory.log_refusal(&exhausted, "reports no loss");
            return self.sit_out(Reason::Policy).await;
        }
        self.device.state.spend_privacy(self.device.credentials.authority, Rho::UNBOUNDED)?;
        let blobs = question.params.into_iter().map(|blob| BlobId::from_wire(Some(blob)));
        let params = self.fetch_params(&blobs.collect::<Result<Vec<_>, _>>()?).await?;
        let (data, task) = (self.data.clone(), self.trainer.task());
        let (begun, workers) = (Instant::now(), Arc::clone(&self.device.workers));
        let computed = workers.compute(Arc::clone(self.trainer), move |worker| {
            let randomness = UpdateRandomness::default();
            AnswerTask { data: &data, task, randomness, trains_always: false }.losses(&params, worker)
        });
        let losses = self.while_listening(computed).await??;
        self.memory.ledger.spend(begun.elapsed());
        let examples = self.data.federation.example_count(self.data.device);
        self.send(from_device::Body::Losses(proto::Losses { id: question.id, examples, losses })).await
    }

    /// Returns the parameters with these hashes. Each is fetched once.
    pub(super) async fn fetch_params(&mut self, blobs: &[BlobId]) -> Result<Vec<Params>, SessionError> {
        let mut fetched: Vec<Params> = Vec::with_capacity(blobs.len());
        for (i, &blob) in blobs.iter().enumerate() {
            let params = match blobs[..i].iter().position(|earlier| *earlier == blob) {
                Some(earlier) => fetched[earlier].clone(),
                None => self.params(blob).await?,
            };
            fetched.push(params);
        }
        Ok(fetched)
    }

    async fn params(&mut self, blob: BlobId) -> Result<Params, SessionError> {
        let expected = 4 * self.trainer.num_params() as u64;
        if blob.len != expected {
            return Err(malformed("params").into());
        }
        let (cache, link) = (&self.device.cache, self.device.link());
        if let Some(known) = cache.params(&blob.hash) {
            if self.memory.is_new(&blob.hash) {
                fetch_again(&mut self.client, blob, link).await?;
            }
            return Ok(known);
        }
        let bytes = self.memory.partial.fetch(&mut self.client, blob, expected, link).await?;
        self.memory.is_new(&blob.hash);
        let entries = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        Ok(cache.keep_params(entries.collect::<Vec<f32>>().into()))
    }

    /// Sends the pending messages of the protocol.
    async fn speak(&mut self) -> Result<(), SessionError> {
        while let Some(message) = self.protocol.as_mut().and_then(DeviceRound::poll_transmit) {
            let mut bytes = encode_device(&message);
            match self.device.faults.next_message().await {
                Turn::Sent => {}
                Turn::Vanishes => return Err(SessionError::Vanished),
                Turn::Garbled => bytes = self.device.faults.noise(bytes.len()).into(),
            }
            for part in fragments(bytes) {
                self.device.faults.transfer(part.data.len()).await;
                self.send(from_device::Body::Part(part)).await?;
            }
        }
        Ok(())
    }
}

/// Records the members of a round if the roster requires drawn cohorts.
fn drawn(protocol: &DeviceRound, body: &ServerBody) -> Option<TranscriptEvent> {
    let members: DeviceSet = match body {
        // On a drawn graph these are all members, and the keys that follow are those of neighbours.
        ServerBody::Commitments(commitments) => commitments.keys().copied().collect(),
        ServerBody::Keys(keys) if !protocol.is_placed() => keys.keys().copied().collect(),
        _ => return None,
    };
    let LeftOut { drawn, left_out } = protocol.left_out(&members)?;
    Some(TranscriptEvent::Drawn {
        setup: setup(protocol.params()),
        members: digest_of(&members),
        drawn,
        left_out,
    })
}

/// Records the content of a message that must be the same for every device of the round.
fn transcript_event(
    params: &RoundParams,
    body: &ServerBody,
    question: Option<&Question<ParamsId>>,
) -> Option<TranscriptEvent> {
    match body {
        ServerBody::OpenSlot { slot, active, .. } => {
            let question = question?;
            let trained = question.queries.iter().filter(|query| matches!(query.ask, Ask::Update { .. }));
            Some(TranscriptEvent::Asked {
                setup: setup(params),
                slot: *slot,
                round: (question.key.seed, question.key.round),
                question: question.digest().into(),
                trained: trained.map(|query| query.params.hash.into()).collect(),
                active: digest_of(active),
            })
        }
        ServerBody::Survivors { slot, survivors } => {
            let (setup, survivors) = (setup(params), digest_of(survivors));
            Some(TranscriptEvent::Survivors { setup, slot: *slot, survivors })
        }
        _ => None,
    }
}

/// Returns the claim that answering a query makes.
fn claim_of(ask: &Ask) -> Claim {
    match ask {
        Ask::Update { .. } => Claim::Update,
        Ask::Quantile(_) => Claim::Losses,
        Ask::Evaluation(_) => Claim::Evaluation,
    }
}

/// Returns the session and the number of a key set-up.
fn setup(params: &RoundParams) -> (String, u64) {
    (hex(&params.id.session), params.id.round)
}

/// Returns the number of devices and the hash of their numbers.
fn digest_of(devices: &DeviceSet) -> (usize, Digest) {
    let mut hasher = blake3::Hasher::new();
    for id in devices.iter() {
        hasher.update(&id.0.to_le_bytes());
    }
    (devices.len(), hasher.finalize().into())
}
