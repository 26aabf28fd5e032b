//! A device's part in a round: it joins, answers inside the sum, and keeps to the protocol.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use chacha20::ChaCha20Rng;
use deltafl::evaluation::Measure;
use deltafl::params::{Params, ParamsId};
use deltafl::question::{Ask, Query, Question};
use deltafl::superquantile::private::QuantileQuery;
use deltafl_secagg::device::{DeviceEvent, DeviceRound, RefusedRound};
use deltafl_secagg::draw::LeftOut;
use deltafl_secagg::message::wire::{decode_server, encode_device};
use deltafl_secagg::message::{DeviceSet, ServerBody};
use deltafl_secagg::params::RoundParams;
use deltafl_secagg::ring::RingVector;
use deltafl_wire::identity::hex;
use deltafl_wire::proto;
use deltafl_wire::proto::{from_device, from_server};
use deltafl_wire::{BlobId, MAX_QUERIES, blob_of_id, malformed, parts};
use rand_core::SeedableRng;
use zeroize::Zeroizing;

use super::{PENDING, Session, SessionError};
use crate::answer::Task;
use crate::consent::Reason;
use crate::fault::Turn;
use crate::fetch::fetch_again;
use crate::state::{Claim, Digest, Event};

impl Session<'_> {
    /// A message of secure aggregation.
    pub(super) async fn take_part(&mut self, bytes: Bytes, limit: usize) -> Result<(), SessionError> {
        let message = decode_server(bytes, limit)?;
        if let ServerBody::Invite(params) = &message.body {
            return self.join(params).await;
        }
        let now = self.since.elapsed();
        let Some(protocol) = &mut self.protocol else { return Ok(()) };
        let shown = drawn(protocol, &message.body)
            .or_else(|| shown(protocol.params(), &message.body, self.question.as_ref()));
        if let Err(abort) = protocol.handle(now, message) {
            tracing::warn!(%abort, "left the round");
            self.record_refusal(&abort)?;
            return self.sit_out(Reason::Policy).await;
        }
        // Before anything is said that depends on it.
        if let Some(event) = shown {
            self.device.state.record(event)?;
        }
        while let Some(event) = self.protocol.as_mut().and_then(DeviceRound::poll_event) {
            match event {
                DeviceEvent::InputWanted(_) => self.answer().await?,
                DeviceEvent::RoundDone => {
                    self.speak().await?;
                    self.protocol = None;
                }
                _ => {}
            }
        }
        self.speak().await
    }

    /// Joins a round that consent and policy allow.
    async fn join(&mut self, params: &RoundParams) -> Result<(), SessionError> {
        (self.protocol, self.question) = (None, None);
        if let Err(reason) = self.willing() {
            return self.decline(reason).await;
        }
        if !self.device.consent.guard.accepts(params.graph, params.cohort) {
            let refused = RefusedRound::Unsafe;
            self.memory.log_refusal(&refused, "stays out of a round");
            let event = Event::Refused { setup: setup(params), reason: refused.to_string() };
            self.device.state.record(event)?;
            return self.sit_out(Reason::Policy).await;
        }
        let mut seed = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *seed).map_err(|_| SessionError::Randomness)?;
        let now = self.since.elapsed();
        match self.enrolment.join(params, now, &mut ChaCha20Rng::from_seed(*seed)) {
            Ok(protocol) => {
                // Both before the first message of the round: a device that restarts joins no round twice.
                self.device.state.join(params.id)?;
                self.device.state.record(Event::Joined {
                    setup: setup(params),
                    roster: self.roster.roster.edition().version,
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

    /// Notes in the transcript why the device leaves the round.
    fn record_refusal(&mut self, reason: &dyn std::fmt::Display) -> Result<(), SessionError> {
        let Some(protocol) = &self.protocol else { return Ok(()) };
        let event = Event::Refused { setup: setup(protocol.params()), reason: reason.to_string() };
        Ok(self.device.state.record(event)?)
    }

    /// Computes the answer to the present question and hands it in.
    async fn answer(&mut self) -> Result<(), SessionError> {
        let (Some(question), Some(mut protocol)) = (self.question.take(), self.protocol.take()) else {
            return self.sit_out(Reason::Unable).await;
        };
        let examples = self.data.federation.example_count(self.data.device);
        let consent = &self.device.consent;
        let allowed = consent.allows_terms(&question).and_then(|()| consent.allows_work(&question, examples));
        if let Err(refused) = allowed {
            self.memory.log_refusal(&refused, "stays out of a sum");
            self.protocol = Some(protocol);
            self.record_refusal(&refused)?;
            return self.sit_out(Reason::Policy).await;
        }
        if let Err(refused) = self.device.state.claim(&claims(&question))? {
            self.memory.log_refusal(&refused, "stays out of a sum");
            self.protocol = Some(protocol);
            self.record_refusal(&refused)?;
            return self.sit_out(Reason::Answered).await;
        }
        let silent = self.silent(&question)?;
        let blobs: Vec<BlobId> = question.named().map(|id| blob_of_id(&id)).collect();
        let params = self.fetch_params(&blobs).await?;
        let question = question.with_params(&params).ok_or_else(|| malformed("params"))?;
        let (key, before) = (question.key, self.device.state.recall(&question)?);
        let mut own = before.clone();
        let workers = Arc::clone(&self.device.workers);
        let Some(_room) = self.unless_over(workers.room()).await? else {
            tracing::info!("the round is over, and the answer to it is not computed");
            return Ok(());
        };
        let (data, task) = (self.data.clone(), self.trainer.task());
        let mut losses = std::mem::take(&mut self.memory.losses);
        let begun = Instant::now();
        let computed = workers.compute(Arc::clone(self.trainer), move |worker| {
            let answer =
                Task { data: &data, task }.answer(&question, &silent, &mut losses, &mut own, worker)?;
            let submitted = protocol.submit(&answer.context, RingVector::Z64(answer.values));
            Ok((submitted, protocol, losses, own))
        });
        let computed = self.unless_over(computed).await;
        self.memory.ledger.spend(begun.elapsed());
        let Some(computed) = computed? else {
            tracing::info!("the round is over, and the answer to it is not computed any further");
            return Ok(());
        };
        let (submitted, protocol, losses, own) = computed?;
        self.device.state.remember(&key, &before, &own)?;
        self.memory.losses = losses;
        self.protocol = Some(protocol);
        match submitted {
            Ok(()) => self.speak().await,
            Err(refused) => {
                tracing::warn!(%refused, "the answer does not fit what was asked");
                self.sit_out(Reason::Unable).await
            }
        }
    }

    /// The queries about the examples that the device holds out to which it adds nothing, because its owner did not agree or
    /// because it has told how their params serve it before. It answers the others all the same: training needs none of these.
    fn silent(&mut self, question: &Question<ParamsId>) -> Result<Vec<usize>, SessionError> {
        let state = &mut self.device.state;
        let asked: Vec<(usize, Vec<Claim>)> = evaluations(question);
        if !self.device.consent.evaluate {
            return Ok(asked.into_iter().map(|(query, _)| query).collect());
        }
        let all: Vec<Claim> = asked.iter().flat_map(|(_, claims)| claims).copied().collect();
        if all.is_empty() || state.claim(&all)?.is_ok() {
            return Ok(Vec::new());
        }
        let mut silent = Vec::new();
        for (query, claims) in asked {
            if state.claim(&claims)?.is_err() {
                silent.push(query);
            }
        }
        Ok(silent)
    }

    /// What a computation comes to; `None` when the server says that the round is over before it ends. It ends with the
    /// connection, too: whatever is dropped here is not computed any further.
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
                        from_server::Body::Over(_) => return Ok(None),
                        body => self.keep_for_later(body)?,
                    }
                }
            }
        }
    }

    /// What something comes to that the device waits for. Messages of the server are kept for later, but for the one that it
    /// stops, behind which nothing comes.
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

    /// Open mode: F_k at the parameters asked about.
    pub(super) async fn tell_losses(&mut self, question: proto::LossQuestion) -> Result<(), SessionError> {
        if !self.device.consent.open || question.params.len() > MAX_QUERIES {
            return self.sit_out(Reason::Policy).await;
        }
        let blobs = question.params.into_iter().map(|blob| BlobId::from_wire(Some(blob)));
        let params = self.fetch_params(&blobs.collect::<Result<Vec<_>, _>>()?).await?;
        let (data, task) = (self.data.clone(), self.trainer.task());
        let (begun, workers) = (Instant::now(), Arc::clone(&self.device.workers));
        let computed = workers.compute(Arc::clone(self.trainer), move |worker| {
            Task { data: &data, task }.losses(&params, worker)
        });
        let losses = self.while_listening(computed).await??;
        self.memory.ledger.spend(begun.elapsed());
        let examples = self.data.federation.example_count(self.data.device);
        self.send(from_device::Body::Losses(proto::Losses { id: question.id, examples, losses })).await
    }

    /// The parameters of some hashes, each fetched once.
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

    /// Sends what the protocol has to say.
    async fn speak(&mut self) -> Result<(), SessionError> {
        while let Some(message) = self.protocol.as_mut().and_then(DeviceRound::poll_transmit) {
            let mut bytes = encode_device(&message);
            match self.device.faults.next_message().await {
                Turn::Sent => {}
                Turn::Vanishes => return Err(SessionError::Vanished),
                Turn::Garbled => bytes = self.device.faults.noise(bytes.len()).into(),
            }
            for part in parts(bytes) {
                self.device.faults.transfer(part.data.len()).await;
                self.send(from_device::Body::Part(part)).await?;
            }
        }
        Ok(())
    }
}

/// Who is in a round, where the roster says that cohorts are drawn.
fn drawn(protocol: &DeviceRound, body: &ServerBody) -> Option<Event> {
    let members: DeviceSet = match body {
        // On a drawn graph this is all members, and the keys that follow are those of neighbours.
        ServerBody::Commitments(commitments) => commitments.keys().copied().collect(),
        ServerBody::Keys(keys) if !protocol.is_placed() => keys.keys().copied().collect(),
        _ => return None,
    };
    let LeftOut { drawn, left_out } = protocol.left_out(&members)?;
    Some(Event::Drawn { setup: setup(protocol.params()), members: digest_of(&members), drawn, left_out })
}

/// What a message of a round shows that every device of the round must see alike.
fn shown(params: &RoundParams, body: &ServerBody, question: Option<&Question<ParamsId>>) -> Option<Event> {
    match body {
        ServerBody::OpenSlot { slot, active, .. } => {
            let question = question?;
            let trained = question.queries.iter().filter(|query| matches!(query.ask, Ask::Update { .. }));
            Some(Event::Asked {
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
            Some(Event::Survivors { setup, slot: *slot, survivors })
        }
        _ => None,
    }
}

/// What a device gives away of the examples that it holds out, query by query.
fn evaluations(question: &Question<ParamsId>) -> Vec<(usize, Vec<Claim>)> {
    let (seed, round) = (question.key.seed, question.key.round);
    let of_query = |(i, query): (usize, &Query<ParamsId>)| {
        let Ask::Evaluation(measures) = &query.ask else { return None };
        let params = query.params.hash;
        let claim = |measure: &Measure| Claim::Evaluation { params, seed, round, measure: measure.name() };
        Some((i, measures.iter().map(claim).collect()))
    };
    question.queries.iter().enumerate().filter_map(of_query).collect()
}

/// What a device gives away by answering a question, but for the examples that it holds out.
fn claims(question: &Question<ParamsId>) -> Vec<Claim> {
    let (seed, round) = (question.key.seed, question.key.round);
    let of_query = |query: &Query<ParamsId>| {
        let params = query.params.hash;
        match &query.ask {
            Ask::Update { .. } => Some(Claim::Update { params, seed, round }),
            Ask::Quantile(QuantileQuery::Histogram(bins)) => {
                let (lower, upper, bins) = (bins.lower(), bins.upper(), bins.places() as u32);
                Some(Claim::Histogram { params, seed, round, lower, upper, bins })
            }
            Ask::Quantile(QuantileQuery::MeanStep { mu, floor }) => {
                Some(Claim::MeanStep { params, seed, round, mu: *mu, floor: *floor })
            }
            Ask::Evaluation(_) => None,
        }
    };
    question.queries.iter().filter_map(of_query).collect()
}

/// The session and the number of a key set-up.
fn setup(params: &RoundParams) -> (String, u64) {
    (hex(&params.id.session), params.id.round)
}

/// How many devices, and the hash of their numbers.
fn digest_of(devices: &DeviceSet) -> (usize, Digest) {
    let mut hasher = blake3::Hasher::new();
    for id in devices.iter() {
        hasher.update(&id.0.to_le_bytes());
    }
    (devices.len(), hasher.finalize().into())
}
