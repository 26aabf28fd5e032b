//! Questions to the devices of a cohort and their canonical bytes.
//!
//! A device needs a [`Question`], its examples and the params that the question names in order to
//! answer. A question has one encoding, which the protocol sends. Devices sign its hash
//! ([`Question::digest`]) with each sum, so that no device can receive a different w, η or learning
//! rate. Counts and lengths are part of the bytes.
//!
//! ```text
//! version u8 · run u64 · seed u64 · round u64 · members u32                                         little-endian
//! · terms: weights u8, schedule u8, tracks u32, clip f64 (0 for none) · queries u32 · query …
//! query       track u32 · params: BLAKE3 32 bytes, entries u64 · tag u8 · …
//!   tag 0     a histogram: lower f64 · upper f64 · bins u32
//!   tag 1     a step by means: mu f64 · floor f64
//!   tag 2     an update: weighting: length u8, name, count u8, f64 … · work: tag u8, u32 · batch u32
//!             · learning rate f32 · l2 f32 · proximal f32 · correction: length u8 (0 for none), name
//!             · vectors sent with w: BLAKE3 32 bytes, entries u64 … as many as the correction has
//!   tag 3     an evaluation: measures u8 · name of a measure: length u8, name …
//!   tag 4     a tree: lower f64 · upper f64 · height u8
//!   noise     after each query: 0 u8; or 1 u8 · variance u32 · units u32 · honest u32 · clip f64 (0 for none)
//!             ; or 2 u8 · the same · accomplices u32 · most u32, if excess noise is removed
//! ```

mod bytes;

use self::bytes::{ByteWriter, Reader};
use crate::evaluation::{self, Measure};
use crate::params::{Params, ParamsId, UpdateCode};
use crate::privacy::{Noise, Rho};
use crate::selection::Weighting;
use crate::stream::{Purpose, Stream};
use crate::superquantile::private::QuantileQuery;
use crate::terms::{Clip, Terms, TrackSchedule};
use crate::trainer::LocalPlan;

/// The first byte of an encoded question.
const VERSION: u8 = 5;
/// The maximum number of queries of a question.
pub const MAX_QUERIES: usize = 64;
/// The maximum number of devices of a cohort.
pub const MAX_MEMBERS: u32 = 1 << 20;
/// The maximum number of tracks of a run.
pub const MAX_TRACKS: u32 = 1 << 16;
/// The maximum number of measures of an evaluation.
const MAX_MEASURES: usize = 16;
/// The maximum number of params of a noisy update, which is padded to a power of two.
const MAX_NOISY_ENTRIES: u64 = 1 << 30;
/// The maximum batch size of a step.
pub const MAX_BATCH: usize = 1 << 20;

/// The round of a question. A device's random numbers, its fixed point and its weight depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundKey {
    /// The run of the federation, starting at 0. The authority signs the number of runs. A
    /// simulation has one.
    pub run: u64,
    /// The seed of the run.
    pub seed: u64,
    /// t, starting at 0.
    pub round: u64,
    /// |S_t|: the devices among which a sum must not wrap around.
    pub members: u32,
    /// The terms of the answers.
    pub terms: Terms,
}

impl RoundKey {
    /// Returns the encoding of a device's update as integers.
    pub fn code(&self) -> UpdateCode {
        UpdateCode::new(self.members as usize).clipped(self.terms.clip)
    }

    /// Returns the track for which a device of a reproducible run answers, if the tracks divide the
    /// cohort. Returns `None` if a device answers for every track of the question. `device` is its
    /// [`stream_key`](crate::device::stream_key).
    ///
    /// The server knows the seed. If the owner did not agree to a reproducible run, the device
    /// draws its own track.
    pub fn assigned_track(&self, device: u64) -> Option<u32> {
        let draw = || {
            let mut stream = Stream::new(self.seed, Purpose::Apart, self.round, device);
            stream.below(self.terms.divided_among()) as u32
        };
        (self.terms.schedule == TrackSchedule::Apart).then(draw)
    }

    /// Returns the public signs with which the updates of a noisy query are rotated.
    pub(crate) fn rotation(&self, query: u32) -> Stream {
        Stream::for_query(self.seed, Purpose::Rotation, self.round, 0, query)
    }

    /// Returns `true` if a device of a reproducible run answers the queries of a track.
    pub fn is_answered_by(&self, track: u32, device: u64) -> bool {
        self.assigned_track(device).is_none_or(|assigned| assigned == track)
    }
}

/// The queries of one sum. `P` is the type of the params: the params themselves, or their id before
/// a device has fetched them.
#[derive(Clone, Debug, PartialEq)]
pub struct Question<P = Params> {
    /// The round.
    pub key: RoundKey,
    /// At most one of each kind per track.
    pub queries: Vec<Query<P>>,
}

/// One query of a question. Its answer is an integer vector that leaves a device only inside a sum.
#[derive(Clone, Debug, PartialEq)]
pub struct Query<P = Params> {
    /// The track of the query, starting at 0.
    pub track: u32,
    /// w.
    pub params: P,
    /// The vectors sent with w, as many as the correction of an update requires.
    pub sent: Vec<P>,
    /// The computation at w.
    pub ask: Ask,
    /// The noise of the answers; `None` for exact sums.
    pub noise: Option<Noise>,
}

impl<P> Query<P> {
    /// Creates a query of track 0 at w without further vectors.
    pub fn new(params: P, ask: Ask) -> Self {
        Self { track: 0, params, sent: Vec::new(), ask, noise: None }
    }

    /// Returns the same query for another track.
    #[must_use]
    pub fn of_track(self, track: usize) -> Self {
        Self { track: track as u32, ..self }
    }

    /// Returns the number of the query among those of a round, for its random numbers.
    pub fn number(&self) -> u32 {
        let kind = match self.ask {
            Ask::Quantile(_) => 0,
            Ask::Update { .. } => 1,
            Ask::Evaluation(_) => 2,
        };
        4 * self.track + kind
    }

    /// Returns all params of the query: w and the vectors sent with it.
    pub fn named(&self) -> impl Iterator<Item = &P> {
        std::iter::once(&self.params).chain(&self.sent)
    }
}

/// A computation of a device at w.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// A step of a private quantile of the losses F_k(w) (Algorithm 3, line 5).
    Quantile(QuantileQuery),
    /// The local update of the devices that count (Algorithm 2, lines 6–9).
    Update {
        /// The weighting of the devices.
        weighting: Weighting,
        /// The training plan.
        plan: LocalPlan,
    },
    /// Histograms of the device's measures of w on its held-out examples. Training does not need
    /// them.
    Evaluation(Vec<Measure>),
}

impl Ask {
    /// Returns `true` if a device needs F_k(w) to answer.
    pub fn needs_loss(&self) -> bool {
        match self {
            Self::Quantile(_) => true,
            Self::Update { weighting, .. } => weighting.needs_loss(),
            // Held-out examples are not those of F_k.
            Self::Evaluation(_) => false,
        }
    }

    /// Returns the weighting of the devices in an update.
    pub fn weighting(&self) -> Option<&Weighting> {
        match self {
            Self::Quantile(_) | Self::Evaluation(_) => None,
            Self::Update { weighting, .. } => Some(weighting),
        }
    }

    /// Returns the length of an answer for params with this many entries.
    pub fn answer_len(&self, params: usize) -> usize {
        match self {
            Self::Quantile(query) => query.len(),
            Self::Update { plan, weighting } => {
                UpdateCode::len(params * (1 + plan.sent())) + weighting.kind().reports.len()
            }
            Self::Evaluation(measures) => evaluation::answer_len(measures),
        }
    }
}

impl<P: Identified> Query<P> {
    /// Returns the length of an answer.
    pub fn answer_len(&self) -> usize {
        let params = self.params.entries();
        match &self.noise {
            Some(noise) => noise.answer_len(&self.ask, params),
            None => self.ask.answer_len(params),
        }
    }

    /// Returns the cost of the sum if at least `honest` devices add their noise and `colluding`
    /// others may subtract theirs. It is unbounded for an exact sum.
    pub fn rho(&self, honest: u64, colluding: u64) -> Rho {
        let cost = |noise: &Noise| noise.rho(&self.ask, self.params.entries(), honest, colluding);
        self.noise.as_ref().map_or(Rho::UNBOUNDED, cost)
    }
}

impl Query {
    /// Returns `true` if a device needs F_k(w) to answer.
    pub fn needs_loss(&self) -> bool {
        self.ask.needs_loss()
    }
}

/// A type that identifies params by content.
pub trait Identified {
    /// Returns the id of the params.
    fn id(&self) -> ParamsId;

    /// Returns the number of entries.
    fn entries(&self) -> usize;
}

impl Identified for Params {
    fn id(&self) -> ParamsId {
        Self::id(self)
    }

    fn entries(&self) -> usize {
        self.len()
    }
}

impl Identified for ParamsId {
    fn id(&self) -> ParamsId {
        *self
    }

    fn entries(&self) -> usize {
        usize::try_from(self.len).unwrap_or(usize::MAX >> 2)
    }
}

impl<P: Identified> Question<P> {
    /// Returns the canonical bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        encode(&self.key, &self.queries)
    }

    /// Returns the hash that devices sign with a sum: BLAKE3 of the canonical bytes.
    pub fn digest(&self) -> blake3::Hash {
        blake3::hash(&self.to_bytes())
    }
}

/// Writes the canonical bytes of some queries.
pub fn encode<P: Identified>(key: &RoundKey, queries: &[Query<P>]) -> Vec<u8> {
    let mut bytes = ByteWriter(Vec::with_capacity(32 + 128 * queries.len()));
    bytes.u8(VERSION).u64(key.run).u64(key.seed).u64(key.round).u32(key.members);
    bytes.u8(key.terms.weights as u8).u8(key.terms.schedule as u8).u32(key.terms.tracks);
    bytes.f64(key.terms.clip.map_or(0.0, Clip::get)).u32(queries.len() as u32);
    for query in queries {
        let ParamsId { hash, len } = query.params.id();
        bytes.u32(query.track).bytes(hash.as_bytes()).u64(len);
        bytes.ask(&query.ask);
        for ParamsId { hash, len } in query.sent.iter().map(Identified::id) {
            bytes.bytes(hash.as_bytes()).u64(len);
        }
        bytes.noise(query.noise.as_ref());
    }
    bytes.0
}

/// The reason for which bytes are not a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed question: {field}")]
pub struct MalformedQuestion {
    /// The field that is missing, out of range or unknown.
    pub field: &'static str,
}

const fn malformed(field: &'static str) -> MalformedQuestion {
    MalformedQuestion { field }
}

/// Returns `true` if a sum of this query fits into its ring, and if its noise applies to it.
fn fits(query: &Query<ParamsId>, members: u32) -> bool {
    let Some(noise) = &query.noise else { return true };
    let applies = match &query.ask {
        Ask::Quantile(query) => matches!(query, QuantileQuery::Tree(_)),
        Ask::Update { weighting, plan } => {
            plan.sent() == 0 && weighting.kind().reports.is_empty() && weighting.kind().most <= 1.0
        }
        Ask::Evaluation(_) => true,
    };
    applies
        && query.params.len <= MAX_NOISY_ENTRIES
        && noise.fits(&query.ask, query.params.entries(), members)
}

impl Question<ParamsId> {
    /// Decodes a question. Accepts only canonical bytes: [`Question::to_bytes`] of the result is
    /// `bytes`.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, MalformedQuestion> {
        let mut reader = Reader(bytes);
        if reader.u8("version")? != VERSION {
            return Err(malformed("version"));
        }
        let key = RoundKey {
            run: reader.u64("run")?,
            seed: reader.u64("seed")?,
            round: reader.u64("round")?,
            members: reader.u32("members")?,
            terms: reader.terms()?,
        };
        if !(1..=MAX_MEMBERS).contains(&key.members) {
            return Err(malformed("members"));
        }
        let count = reader.u32("queries")? as usize;
        if !(1..=MAX_QUERIES).contains(&count) {
            return Err(malformed("queries"));
        }
        let queries = (0..count).map(|_| reader.query()).collect::<Result<Vec<Query<ParamsId>>, _>>()?;
        if queries.iter().any(|query| query.track >= key.terms.tracks) {
            return Err(malformed("track"));
        }
        // The bound on the norm of an update does not cover the vectors sent with w.
        if key.terms.clip.is_some() && queries.iter().any(|query| !query.sent.is_empty()) {
            return Err(malformed("clip"));
        }
        if queries.iter().any(|query| !fits(query, key.members)) {
            return Err(malformed("noise"));
        }
        if reader.0.is_empty() { Ok(Self { key, queries }) } else { Err(malformed("trailing bytes")) }
    }

    /// Returns the params of the question by query: w and the vectors sent with it.
    pub fn named(&self) -> impl Iterator<Item = ParamsId> {
        self.queries.iter().flat_map(|query| query.named().copied())
    }

    /// Returns the question with its fetched params, in the order of [`Question::named`]. Returns
    /// `None` if there are fewer.
    pub fn with_params(&self, params: &[Params]) -> Option<Question> {
        let mut params = params.iter().cloned();
        let mut queries = Vec::with_capacity(self.queries.len());
        for query in &self.queries {
            let mut all = params.by_ref().take(1 + query.sent.len());
            let (w, sent) = (all.next()?, all.collect::<Vec<Params>>());
            if sent.len() < query.sent.len() {
                return None;
            }
            let (track, ask, noise) = (query.track, query.ask.clone(), query.noise);
            queries.push(Query { track, params: w, sent, ask, noise });
        }
        Some(Question { key: self.key, queries })
    }
}

#[cfg(test)]
mod tests;
