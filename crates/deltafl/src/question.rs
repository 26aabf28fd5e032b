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
//! ```

mod bytes;

use self::bytes::{ByteWriter, Reader};
use crate::evaluation::{self, Measure};
use crate::params::{Params, ParamsId, UpdateCode};
use crate::selection::Weighting;
use crate::stream::{Purpose, Stream};
use crate::superquantile::private::QuantileQuery;
use crate::terms::{Clip, Terms, TrackSchedule};
use crate::trainer::LocalPlan;

/// The first byte of an encoded question.
const VERSION: u8 = 4;
/// The maximum number of queries of a question.
pub const MAX_QUERIES: usize = 64;
/// The maximum number of devices of a cohort.
pub const MAX_MEMBERS: u32 = 1 << 20;
/// The maximum number of tracks of a run.
pub const MAX_TRACKS: u32 = 1 << 16;
/// The maximum number of measures of an evaluation.
const MAX_MEASURES: usize = 16;
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
}

impl<P> Query<P> {
    /// Creates a query of track 0 at w without further vectors.
    pub fn new(params: P, ask: Ask) -> Self {
        Self { track: 0, params, sent: Vec::new(), ask }
    }

    /// Returns the same query for another track.
    #[must_use]
    pub fn of_track(self, track: usize) -> Self {
        Self { track: track as u32, ..self }
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

impl Query {
    /// Returns the length of an answer.
    pub fn answer_len(&self) -> usize {
        self.ask.answer_len(self.params.len())
    }

    /// Returns `true` if a device needs F_k(w) to answer.
    pub fn needs_loss(&self) -> bool {
        self.ask.needs_loss()
    }
}

/// A type that identifies params by content.
pub trait Identified {
    /// Returns the id of the params.
    fn id(&self) -> ParamsId;
}

impl Identified for Params {
    fn id(&self) -> ParamsId {
        Self::id(self)
    }
}

impl Identified for ParamsId {
    fn id(&self) -> ParamsId {
        *self
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
            queries.push(Query { track: query.track, params: w, sent, ask: query.ask.clone() });
        }
        Some(Question { key: self.key, queries })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::CONTROL_VARIATE;
    use crate::superquantile::private::Bins;
    use crate::superquantile::smooth::Smoothing;
    use crate::task::Task;
    use crate::terms::Weights;
    use crate::trainer::Work;

    fn plan() -> LocalPlan {
        LocalPlan {
            work: Work::Steps(7),
            batch: 10,
            learning_rate: 0.1,
            l2: 1e-4,
            proximal: 0.01,
            correction: None,
        }
    }

    fn question() -> Question {
        let params = Params::from(vec![1.0, -2.0]);
        let nu = Smoothing::try_from(0.25).unwrap();
        let asks = [
            Ask::Quantile(QuantileQuery::Histogram(Bins::new(0.0, 8.0, 64).unwrap())),
            Ask::Quantile(QuantileQuery::MeanStep { mu: 1.5, floor: 0.01 }),
            Ask::Update { weighting: Weighting::everyone(), plan: plan() },
            Ask::Update { weighting: Weighting::tail(2.5), plan: plan() },
            Ask::Update { weighting: Weighting::smooth_tail(2.5, nu), plan: plan() },
            Ask::Evaluation(Measure::of_task(Task::NextSymbol)),
        ];
        let queries = asks.map(|ask| Query::new(params.clone(), ask)).to_vec();
        let terms = Terms { tracks: 2, ..Terms::OPEN };
        Question { key: RoundKey { run: 3, seed: 5, round: 6, members: 4, terms }, queries }
    }

    #[test]
    fn a_device_signs_the_question_that_the_server_asked() {
        let mut asked = question();
        asked.key.terms.clip = Clip::try_from(0.1).ok();
        let bytes = asked.to_bytes();
        let received = Question::from_bytes(&bytes).unwrap();
        assert_eq!(received.to_bytes(), bytes);
        assert_eq!(received.digest(), asked.digest());
        let params: Vec<Params> = asked.queries.iter().map(|query| query.params.clone()).collect();
        assert_eq!(received.with_params(&params), Some(asked));
        assert_eq!(received.with_params(&params[1..]), None);
    }

    #[test]
    fn what_is_sent_beside_w_is_part_of_the_question() {
        let mut asked = question();
        let corrected = LocalPlan { correction: Some(&CONTROL_VARIATE), ..plan() };
        asked.queries[2].ask = Ask::Update { weighting: Weighting::everyone(), plan: corrected };
        asked.queries[2].sent = vec![vec![0.5, 0.25].into()];
        let received = Question::from_bytes(&asked.to_bytes()).unwrap();
        assert_eq!(received.digest(), asked.digest());
        let named: Vec<Params> = asked.queries.iter().flat_map(|query| query.named().cloned()).collect();
        assert_eq!(named.iter().map(Params::id).collect::<Vec<_>>(), received.named().collect::<Vec<_>>());
        assert_eq!(received.with_params(&named).as_ref(), Some(&asked));
        assert_eq!(asked.queries[2].answer_len(), UpdateCode::len(4));
        asked.queries[2].sent = vec![vec![0.5, 0.5].into()];
        assert_ne!(received.digest(), asked.digest());
        asked.queries[2].sent = vec![vec![0.5].into()];
        assert_eq!(Question::from_bytes(&asked.to_bytes()).unwrap_err().field, "sent");
        asked.queries[2].sent.clear();
        assert!(Question::from_bytes(&asked.to_bytes()).is_err());
    }

    #[test]
    fn every_part_of_a_question_changes_its_digest() {
        let changes: [&dyn Fn(&mut Question); 17] = [
            &|q| q.key.run += 1,
            &|q| q.key.seed += 1,
            &|q| q.key.round += 1,
            &|q| q.key.members += 1,
            &|q| q.key.terms.weights = Weights::Bucketed,
            &|q| q.key.terms.schedule = TrackSchedule::InTurn,
            &|q| q.key.terms.schedule = TrackSchedule::Apart,
            &|q| q.key.terms.tracks = 3,
            &|q| q.queries[0].track = 1,
            &|q| q.key.terms.clip = Clip::try_from(1.0).ok(),
            &|q| q.key.terms.clip = Clip::try_from(1.5).ok(),
            &|q| _ = q.queries.pop(),
            &|q| q.queries[5].ask = Ask::Evaluation(vec![Measure::Loss]),
            &|q| q.queries[0].params = vec![1.0, -2.5].into(),
            &|q| q.queries[0].params = vec![1.0, -2.0, 0.0].into(),
            &|q| q.queries[3].ask = Ask::Update { weighting: Weighting::tail(2.6), plan: plan() },
            &|q| {
                let plan = LocalPlan { proximal: 0.02, ..plan() };
                q.queries[3].ask = Ask::Update { weighting: Weighting::tail(2.5), plan };
            },
        ];
        let mut digests = vec![question().digest()];
        for change in changes {
            let mut changed = question();
            change(&mut changed);
            digests.push(changed.digest());
        }
        for (i, digest) in digests.iter().enumerate() {
            assert!(!digests[..i].contains(digest), "change {i}");
        }
    }

    #[test]
    fn a_device_answers_for_one_track_where_tracks_divide_the_cohort() {
        let mut key = question().key;
        key.terms = Terms { schedule: TrackSchedule::Apart, tracks: 3, ..Terms::PRIVATE };
        let mut devices = [0; 3];
        for device in 0..3000 {
            let answered: Vec<usize> =
                (0..3).filter(|&track| key.is_answered_by(track as u32, device)).collect();
            assert_eq!(answered.len(), 1);
            devices[answered[0]] += 1;
        }
        assert!(devices.iter().all(|devices| (900..1100).contains(devices)), "{devices:?}");
        for schedule in [TrackSchedule::Together, TrackSchedule::InTurn] {
            key.terms.schedule = schedule;
            assert!((0..3).all(|track| key.is_answered_by(track, 7)));
        }
    }

    #[test]
    fn questions_that_no_honest_server_asks_are_refused() {
        let refused = |change: &dyn Fn(&mut Question)| {
            let mut question = question();
            change(&mut question);
            Question::from_bytes(&question.to_bytes()).unwrap_err().field
        };
        assert_eq!(refused(&|q| q.key.members = 0), "members");
        assert_eq!(refused(&|q| q.key.terms.tracks = 0), "tracks");
        assert_eq!(refused(&|q| q.key.terms.tracks = MAX_TRACKS + 1), "tracks");
        assert_eq!(refused(&|q| q.queries[1].track = 2), "track");
        assert_eq!(refused(&|q| q.queries.clear()), "queries");
        assert_eq!(refused(&|q| q.queries = vec![q.queries[0].clone(); MAX_QUERIES + 1]), "queries");
        let update = |plan: LocalPlan| {
            refused(&|q| q.queries[3].ask = Ask::Update { weighting: Weighting::tail(2.5), plan })
        };
        assert_eq!(update(LocalPlan { work: Work::Epochs(0), ..plan() }), "work");
        assert_eq!(update(LocalPlan { batch: 0, ..plan() }), "batch");
        assert_eq!(update(LocalPlan { learning_rate: f32::INFINITY, ..plan() }), "learning rate");
        assert_eq!(update(LocalPlan { proximal: f32::NAN, ..plan() }), "proximal");
        let clip = Clip::try_from(1.0).ok();
        let corrected = LocalPlan { correction: Some(&CONTROL_VARIATE), ..plan() };
        let sends_more = |q: &mut Question| {
            q.key.terms.clip = clip;
            q.queries[2].ask = Ask::Update { weighting: Weighting::everyone(), plan: corrected };
            q.queries[2].sent = vec![vec![0.5, 0.25].into()];
        };
        assert_eq!(refused(&sends_more), "clip");
        for wrong in [-0.0, -1.0, f64::NAN, f64::INFINITY] {
            // After version, run, seed, round, members, weights, schedule and tracks.
            let mut bytes = question().to_bytes();
            bytes[35..43].copy_from_slice(&wrong.to_le_bytes());
            assert_eq!(Question::from_bytes(&bytes).unwrap_err().field, "clip", "{wrong}");
        }
        let evaluation =
            |measures: Vec<Measure>| refused(&|q| q.queries[5].ask = Ask::Evaluation(measures.clone()));
        assert_eq!(evaluation(Vec::new()), "measures");
        assert_eq!(evaluation(vec![Measure::Loss, Measure::Loss]), "measures");
        let mut longer = question().to_bytes();
        longer.push(0);
        assert_eq!(Question::from_bytes(&longer).unwrap_err().field, "trailing bytes");
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_canonical(flips in prop::collection::vec((0usize..400, any::<u8>()), 0..6), cut in 0usize..400) {
            let mut bytes = question().to_bytes();
            for (at, byte) in flips {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            if cut < 300 {
                bytes.truncate(bytes.len() - cut % 8);
            }
            if let Ok(question) = Question::from_bytes(&bytes) {
                prop_assert_eq!(question.to_bytes(), bytes);
            }
        }
    }
}
