//! Tests of questions.

use proptest::prelude::*;

use super::*;
use crate::algorithm::CONTROL_VARIATE;
use crate::privacy::Excess;
use crate::superquantile::private::{Bins, TreeBins};
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

fn excess() -> Excess {
    Excess { accomplices: 1, most: 9 }
}

fn noise() -> Noise {
    Noise { variance: 100, units: 8, honest: 3, clip: None, excess: None }
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
        Ask::Quantile(QuantileQuery::Tree(TreeBins::new(0.0, 8.0, 3).unwrap())),
    ];
    let mut queries = asks.map(|ask| Query::new(params.clone(), ask)).to_vec();
    queries[6].noise = Some(noise());
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
    let changes: [&dyn Fn(&mut Question); 25] = [
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
        &|q| q.queries[6].noise = None,
        &|q| q.queries[6].noise = Some(Noise { variance: 101, ..noise() }),
        &|q| q.queries[6].noise = Some(Noise { units: 16, ..noise() }),
        &|q| q.queries[6].noise = Some(Noise { honest: 4, ..noise() }),
        &|q| q.queries[6].noise = Some(Noise { excess: Some(excess()), ..noise() }),
        &|q| {
            let excess = Some(Excess { accomplices: 2, ..excess() });
            q.queries[6].noise = Some(Noise { excess, ..noise() });
        },
        &|q| {
            let excess = Some(Excess { most: 8, ..excess() });
            q.queries[6].noise = Some(Noise { excess, ..noise() });
        },
        &|q| {
            let clip = Clip::try_from(0.5).ok();
            q.queries[3].noise = Some(Noise { clip, ..noise() });
        },
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
        let answered: Vec<usize> = (0..3).filter(|&track| key.is_answered_by(track as u32, device)).collect();
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
    let noisy = |place: usize, noise: Noise| refused(&|q| q.queries[place].noise = Some(noise));
    let clip = Clip::try_from(1.0).ok();
    // A histogram and a mean step have no noise, an update needs a clipping bound, and a count has
    // none.
    assert_eq!([0, 1, 2].map(|place| noisy(place, noise())), ["noise"; 3]);
    assert_eq!(noisy(6, Noise { clip, ..noise() }), "noise");
    assert_eq!(noisy(6, Noise { variance: u32::MAX, ..noise() }), "noise");
    assert_eq!(noisy(6, Noise { units: 1 << 30, ..noise() }), "noise");
    assert_eq!(noisy(6, Noise { units: 9, ..noise() }), "noise");
    assert_eq!(noisy(6, Noise { honest: 0, ..noise() }), "noise");
    // More honest survivors than there can be, and more than a cohort can have.
    for (accomplices, most) in [(1, 3), (u32::MAX, 9), (1, u32::MAX)] {
        let excess = Some(Excess { accomplices, most });
        assert_eq!(noisy(6, Noise { excess, ..noise() }), "noise");
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
