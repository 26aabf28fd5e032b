//! The owner's agreement.

use std::sync::Arc;
use std::time::Duration;

use deltafl::params::ParamsId;
use deltafl::privacy::Rho;
use deltafl::question::{Ask, Question};
use deltafl::terms::Weights;
use deltafl::trainer::Work;
use deltafl_secagg::Defences;
use deltafl_secagg::device::DevicePolicy;
use deltafl_secagg::graph::Permille;
use deltafl_secagg::params::RoundParams;
use deltafl_wire::proto;
use deltafl_wire::threat::ThreatAssumptions;

mod compute_time;
mod refusal;
mod tracks;

pub(crate) use self::compute_time::ComputeTimeBudget;
use self::compute_time::DAY;
pub(crate) use self::refusal::TooMuch;
pub use self::refusal::{NotAllowed, Reason};
use self::tracks::check_tracks;
use crate::state::{AnswerBudget, PrivacyLimit};

/// The largest batch of a step that draws its examples. It determines the memory in which a device
/// trains. In a pass over the examples, no batch is larger than their number.
const LARGE_BATCH: u64 = 1024;
/// The examples that count as one pass if a plan names a number of steps.
const EXAMPLES_PER_PASS: u64 = 1000;

/// Returns the minimum average number of devices per track if a cohort is divided among tracks. It
/// is a third of the owner's smallest cohort, at most ten.
fn least_part(min_cohort: usize) -> u64 {
    (min_cohort as u64 / 3).clamp(1, 10)
}

/// Asks the device whether it can participate now.
pub type Willing = Arc<dyn Fn() -> Result<(), Reason> + Send + Sync>;

/// The agreement of a device's owner.
#[derive(Clone)]
pub struct Consent {
    /// The allowed experiments by name, or any experiment if `None`.
    pub experiments: Option<Vec<String>>,
    /// The allowed models by kind (`linear`, `conv-net` …). If `None`, any model that fits the data
    /// is allowed.
    pub models: Option<Vec<String>>,
    /// Whether the server may ask for the loss of this device (open mode).
    pub open: bool,
    /// The smallest cohort, including this device.
    pub min_cohort: usize,
    /// The adversary against which rounds must protect the device.
    pub guard: ThreatAssumptions,
    /// The largest fraction of drawn devices that may be left out of a round. It applies if the
    /// roster requires drawn cohorts.
    pub max_left_out: Permille,
    /// Whether to refuse federations whose server chooses the cohorts.
    pub drawn_only: bool,
    /// The computing time per day.
    pub work_per_day: Duration,
    /// The maximum number of passes over the device's examples for one question. 1,000 examples of
    /// a plan that names its steps count as one pass. The device refuses a larger question before
    /// it starts the work.
    pub max_passes: u32,
    /// The largest number of answers under one authority. An answer is a contribution to one sum.
    pub answers: u64,
    /// The largest number of answers per day.
    pub answers_per_day: u64,
    /// The smallest batch of an update.
    pub min_batch: u64,
    /// The smallest number of steps of an update.
    pub min_steps: u64,
    /// The smallest number of examples behind an answer.
    pub min_examples: u64,
    /// Whether the server may weigh devices by five classes of their numbers of examples.
    pub bucketed: bool,
    /// Whether the device contributes evaluations on its held-out examples to sums.
    pub evaluate: bool,
    /// The number of rounds of a run that the device skips between two answers.
    pub rounds_between: u64,
    /// The largest ε under one authority, computed by the device over everything that it has
    /// answered.
    pub privacy: PrivacyLimit,
    /// Whether batches and the track follow from the seed of the server, so that a deployment
    /// reproduces the bits of a simulation. The server then knows all random numbers of the device,
    /// and the difference of two sums is exact. For tests and demonstrations only.
    pub reproducible: bool,
    /// Whether the device can participate now.
    pub willing: Willing,
}

/// Allows any experiment in private mode at any time, among at least thirty devices. The server may
/// be malicious. The device draws its own batches.
impl Default for Consent {
    fn default() -> Self {
        Self {
            experiments: None,
            models: None,
            open: false,
            min_cohort: 30,
            guard: ThreatAssumptions::default(),
            max_left_out: Permille::new(500).unwrap_or_default(),
            drawn_only: false,
            work_per_day: DAY,
            max_passes: 100,
            answers: 100_000,
            answers_per_day: 5_000,
            min_batch: 1,
            min_steps: 1,
            min_examples: 4,
            bucketed: false,
            evaluate: true,
            rounds_between: 0,
            privacy: PrivacyLimit::default(),
            reproducible: false,
            willing: Arc::new(|| Ok(())),
        }
    }
}

impl Consent {
    /// Checks that the owner's agreement covers this experiment.
    pub(super) fn allows(&self, experiment: &proto::Experiment, params: usize) -> Result<(), NotAllowed> {
        let listed = |list: &Option<Vec<String>>, name: &str| {
            list.as_ref().is_none_or(|list| list.iter().any(|allowed| allowed == name))
        };
        if !listed(&self.experiments, &experiment.name) {
            return Err(NotAllowed::Experiment(experiment.name.clone()));
        }
        let model = serde_json::from_str::<serde_json::Value>(&experiment.model).unwrap_or_default();
        let kind = model.get("kind").and_then(|kind| kind.as_str()).unwrap_or_default();
        if !listed(&self.models, kind) {
            return Err(NotAllowed::Model(kind.to_owned()));
        }
        if experiment.open && !self.open {
            return Err(NotAllowed::Open);
        }
        let (theirs, ours) = (experiment.params, params as u64);
        if theirs != ours { Err(NotAllowed::OtherModel { theirs, ours }) } else { Ok(()) }
    }

    /// Checks the terms of a question against the owner's agreement, the number of runs that the
    /// roster allows, and the number of active devices.
    pub(super) fn allows_terms(
        &self,
        question: &Question<ParamsId>,
        runs: u64,
        active: usize,
    ) -> Result<(), TooMuch> {
        let (terms, run) = (question.key.terms, question.key.run);
        if run >= runs {
            return Err(TooMuch::UnsignedRun { run, runs });
        }
        if terms.weights == Weights::Exact && !self.open {
            return Err(TooMuch::Weights);
        }
        if terms.weights == Weights::Bucketed && !self.open && !self.bucketed {
            return Err(TooMuch::Bucketed);
        }
        check_tracks(question)?;
        let (members, active) = (u64::from(question.key.members), active as u64);
        // The server states the members of the cohort. Secure aggregation knows the active ones.
        if active > members {
            return Err(TooMuch::Members { members, active });
        }
        let (members, tracks) = (active, terms.divided_among());
        let least = least_part(self.min_cohort);
        if tracks > 1 && members < tracks * least {
            return Err(TooMuch::Divided { members, tracks, least });
        }
        Ok(())
    }

    /// Checks that the work and the memory of a question are within the owner's limits. The result
    /// does not depend on the number of examples of the device. Otherwise a server could find this
    /// number by a few questions.
    pub(super) fn allows_work(&self, question: &Question<ParamsId>) -> Result<(), TooMuch> {
        let mut passes = 0u64;
        for query in &question.queries {
            // The loss, which also decides on membership in the tail.
            passes = passes.saturating_add(1);
            let Ask::Update { plan, .. } = &query.ask else { continue };
            let batch = plan.batch as u64;
            passes = passes.saturating_add(match plan.work {
                Work::Epochs(epochs) => u64::from(epochs),
                Work::Steps(_) if batch > LARGE_BATCH => {
                    return Err(TooMuch::Batch { batch, most: LARGE_BATCH });
                }
                Work::Steps(steps) => (u64::from(steps) * batch).div_ceil(EXAMPLES_PER_PASS),
            });
        }
        let most = u64::from(self.max_passes);
        if passes > most { Err(TooMuch::Passes { passes, most }) } else { Ok(()) }
    }

    /// Checks that an answer of a device with `examples` examples rests on enough of them. A step
    /// on one example is the gradient of that example.
    pub(super) fn allows_detail(&self, question: &Question<ParamsId>, examples: u64) -> Result<(), TooMuch> {
        for query in &question.queries {
            let behind = match &query.ask {
                Ask::Update { plan, .. } => {
                    let batch = plan.batch as u64;
                    if batch < self.min_batch {
                        return Err(TooMuch::SmallBatch { batch, least: self.min_batch });
                    }
                    let (steps, visits) = match plan.work {
                        Work::Epochs(epochs) => (u64::from(epochs) * examples.div_ceil(batch), examples),
                        Work::Steps(steps) => (u64::from(steps), u64::from(steps).saturating_mul(batch)),
                    };
                    if steps < self.min_steps {
                        return Err(TooMuch::FewSteps { steps, least: self.min_steps });
                    }
                    visits.min(examples)
                }
                Ask::Quantile(_) => examples,
                Ask::Evaluation(_) => continue,
            };
            if behind < self.min_examples {
                return Err(TooMuch::FewExamples { examples: behind, least: self.min_examples });
            }
        }
        Ok(())
    }

    /// Returns the cost of answering a question: the sum over the queries of a track, for the track
    /// with the largest cost. A query without noise has no finite cost. The device computes the
    /// number of honest devices in the sum by its own assumptions.
    pub(super) fn cost(&self, question: &Question<ParamsId>, params: &RoundParams, active: usize) -> Rho {
        let colluding = self.guard.colluding(params.cohort) as usize;
        let honest = params.graph.honest_in_sum(params.cohort, active, colluding) as u64;
        let of_track = |track: u32| -> Rho {
            question
                .queries
                .iter()
                .filter(|query| query.track == track)
                .map(|query| query.rho(honest, colluding as u64))
                .sum()
        };
        let tracks = question.queries.iter().map(|query| query.track);
        // The server knows the noise of a reproducible device.
        let is_known = self.reproducible;
        let costs = tracks.map(|track| if is_known { Rho::UNBOUNDED } else { of_track(track) });
        costs.fold(Rho::ZERO, |most, cost| if cost > most { cost } else { most })
    }

    /// Returns the largest number of answers.
    pub(super) fn budget(&self) -> AnswerBudget {
        AnswerBudget { total: self.answers, per_day: self.answers_per_day }
    }

    /// Returns the device's policy for secure aggregation with answers of at most `max_len`
    /// integers. The policy depends on whether the roster requires drawn cohorts.
    pub(super) fn policy(&self, max_len: u32, drawn: bool, defences: Defences) -> DevicePolicy {
        DevicePolicy {
            min_members: self.min_cohort,
            adversary: self.guard.required(),
            max_len,
            patience: Duration::from_secs(30 * 60),
            max_left_out: (drawn || self.drawn_only).then_some(self.max_left_out),
            defences,
        }
    }
}

#[cfg(test)]
mod tests {
    use deltafl::privacy::{Excess, Noise};
    use deltafl::question::{Query, RoundKey};
    use deltafl::selection::Weighting;
    use deltafl::terms::{Clip, Terms, TrackSchedule};
    use deltafl::trainer::LocalPlan;
    use deltafl_secagg::graph::GraphRule;
    use deltafl_secagg::mask::MaskSuite;
    use deltafl_secagg::params::RoundId;

    use super::*;

    fn experiment() -> proto::Experiment {
        let (name, model) = ("digits".to_owned(), r#"{"kind":"linear"}"#.to_owned());
        proto::Experiment { name, model, params: 10, open: false, contract: None }
    }

    #[test]
    fn what_is_not_on_the_list_is_refused() {
        let lists = Consent {
            experiments: Some(vec!["digits".to_owned()]),
            models: Some(vec!["linear".to_owned()]),
            ..Consent::default()
        };
        assert_eq!(lists.allows(&experiment(), 10), Ok(()));
        let other = proto::Experiment { name: "faces".to_owned(), ..experiment() };
        assert_eq!(lists.allows(&other, 10), Err(NotAllowed::Experiment("faces".to_owned())));
        let other = proto::Experiment { model: r#"{"kind":"gru"}"#.to_owned(), ..experiment() };
        assert_eq!(lists.allows(&other, 10), Err(NotAllowed::Model("gru".to_owned())));
        assert!(lists.allows(&experiment(), 11).is_err());
    }

    #[test]
    fn open_mode_needs_consent() {
        let open = proto::Experiment { open: true, ..experiment() };
        assert_eq!(Consent::default().allows(&open, 10), Err(NotAllowed::Open));
        assert_eq!(Consent { open: true, ..Consent::default() }.allows(&open, 10), Ok(()));
    }

    fn question(work: Work, batch: usize, updates: usize) -> Question<ParamsId> {
        let plan = LocalPlan { work, batch, learning_rate: 0.1, l2: 0.0, proximal: 0.0, correction: None };
        let ask = Ask::Update { weighting: Weighting::everyone(), plan };
        let query = Query::new(ParamsId { hash: blake3::hash(b"w"), len: 10 }, ask);
        Question {
            key: RoundKey { run: 0, seed: 1, round: 1, members: 3, terms: Terms::PRIVATE },
            queries: vec![query; updates],
        }
    }

    #[test]
    fn a_device_computes_the_cost_of_a_question_by_its_own_assumptions() {
        let id = RoundId { session: [0; 16], round: 0 };
        let (suite, graph) = (MaskSuite::default(), GraphRule::default());
        let params = RoundParams { id, suite, cohort: 100, graph, slots: 4, draw: None };
        let consent = Consent::default();
        let mut asked = question(Work::Epochs(1), 10, 1);
        assert_eq!(consent.cost(&asked, &params, 100), Rho::UNBOUNDED, "no noise");
        let clip = Clip::try_from(1.0).ok();
        asked.queries[0].noise = Some(Noise { variance: 1000, units: 64, honest: 99, clip, excess: None });
        // t − c of the full graph, and not the number in the question.
        let honest = 53 - u64::from(consent.guard.colluding(100));
        let colluding = consent.guard.colluding(100).into();
        assert_eq!(consent.cost(&asked, &params, 100), asked.queries[0].rho(honest, colluding));
        let cautious = ThreatAssumptions { accomplices: 20, ..consent.guard };
        let cautious = Consent { guard: cautious, ..Consent::default() };
        assert_eq!(cautious.cost(&asked, &params, 100), asked.queries[0].rho(33, 20));
        let reproducible = Consent { reproducible: true, ..Consent::default() };
        assert_eq!(reproducible.cost(&asked, &params, 100), Rho::UNBOUNDED, "the server knows the noise");
        let twice = Question { queries: vec![asked.queries[0].clone(); 2], key: asked.key };
        assert_eq!(consent.cost(&twice, &params, 100), asked.queries[0].rho(honest, colluding) * 2);
        // A question whose noise is removed for more survivors costs as much as for the fewest.
        let excess = Some(Excess { accomplices: 5, most: 100 });
        let noise = Noise { variance: 4000, units: 64, honest: 48, clip, excess };
        asked.queries[0].noise = Some(noise);
        let removed = consent.cost(&asked, &params, 100);
        asked.queries[0].noise = Some(Noise { excess: None, ..noise });
        assert_eq!(removed, consent.cost(&asked, &params, 100));
    }

    #[test]
    fn a_question_of_too_much_work_or_memory_is_refused_before_it_is_begun() {
        use Work::{Epochs, Steps};
        let allowed = |question: Question<ParamsId>| Consent::default().allows_work(&question);
        assert_eq!(allowed(question(Epochs(1), 10, 3)), Ok(()));
        assert_eq!(allowed(question(Epochs(1), 10, 40)), Ok(()));
        assert_eq!(allowed(question(Steps(100), 10, 2)), Ok(()));
        let endless = allowed(question(Epochs(u32::MAX), 10, 1));
        assert_eq!(endless, Err(TooMuch::Passes { passes: 1 << 32, most: 100 }));
        assert!(allowed(question(Epochs(50), 10, 2)).is_err(), "all queries of a question count");
        assert!(allowed(question(Steps(u32::MAX), 1000, 64)).is_err());
        assert_eq!(
            allowed(question(Steps(1), 1 << 20, 1)),
            Err(TooMuch::Batch { batch: 1 << 20, most: 1024 })
        );
        assert_eq!(allowed(question(Epochs(1), 5000, 1)), Ok(()), "a batch of all examples");
    }

    /// A server that asks for more and more work learns where a device refuses. With the defaults
    /// this does not depend on the device if it has at least four examples.
    #[test]
    fn a_refusal_does_not_reveal_the_number_of_examples() {
        use Work::{Epochs, Steps};
        let consent = Consent::default();
        let refuses = |work, batch, examples| {
            let question = question(work, batch, 1);
            consent.allows_detail(&question, examples).and(consent.allows_work(&question)).is_err()
        };
        let mut some = [0, 0];
        for work in (0..20).flat_map(|power| [Epochs(1 << power), Steps(1 << power)]) {
            for batch in (0..20).map(|power| 1 << power) {
                let answers = [4, 5, 50, 99, 100, 101, 1023, 5000, 1 << 20].map(|n| refuses(work, batch, n));
                assert!(answers.iter().all(|answer| *answer == answers[0]), "{work:?}, {batch}: {answers:?}");
                some[usize::from(answers[0])] += 1;
            }
        }
        assert!(some.iter().all(|count| *count > 50), "{some:?}");
    }

    #[test]
    fn an_answer_rests_on_enough_examples() {
        use Work::{Epochs, Steps};
        let consent = Consent { min_batch: 4, min_steps: 3, min_examples: 12, ..Consent::default() };
        let allowed = |work, batch, examples| consent.allows_detail(&question(work, batch, 1), examples);
        assert_eq!(allowed(Steps(3), 4, 100), Ok(()));
        assert_eq!(allowed(Steps(3), 3, 100), Err(TooMuch::SmallBatch { batch: 3, least: 4 }));
        assert_eq!(allowed(Steps(2), 6, 100), Err(TooMuch::FewSteps { steps: 2, least: 3 }));
        assert_eq!(allowed(Steps(3), 4, 11), Err(TooMuch::FewExamples { examples: 11, least: 12 }));
        assert_eq!(allowed(Epochs(1), 4, 12), Ok(()));
        assert_eq!(allowed(Epochs(1), 8, 12), Err(TooMuch::FewSteps { steps: 2, least: 3 }));
        // The default refuses the gradient of one example and accepts an ordinary update.
        let default = |work, batch| Consent::default().allows_detail(&question(work, batch, 1), 100);
        assert_eq!(default(Steps(1), 1), Err(TooMuch::FewExamples { examples: 1, least: 4 }));
        assert_eq!(default(Epochs(5), 1), Ok(()), "all examples count, one after another");
        assert_eq!(default(Steps(1), 3), Err(TooMuch::FewExamples { examples: 3, least: 4 }));
        assert_eq!(default(Steps(1), 10), Ok(()));
        assert_eq!(default(Epochs(1), 10), Ok(()));
    }

    /// Creates a question for updates of this many tracks, each with its own threshold and w.
    fn asked(terms: Terms, members: u32, tracks: u32) -> Question<ParamsId> {
        let mut question = question(Work::Epochs(1), 10, 1);
        let template = question.queries.remove(0);
        let Ask::Update { plan, .. } = template.ask else { panic!("an update") };
        for track in 0..tracks {
            let ask = Ask::Update { weighting: Weighting::tail(f64::from(track)), plan };
            let params = ParamsId { hash: blake3::hash(&track.to_le_bytes()), len: 10 };
            question.queries.push(Query { track, ..Query::new(params, ask) });
        }
        question.key = RoundKey { members, terms: Terms { tracks, ..terms }, ..question.key };
        question
    }

    /// Checks the terms of a question whose members are all active.
    fn terms(consent: &Consent, question: &Question<ParamsId>, runs: u64) -> Result<(), TooMuch> {
        consent.allows_terms(question, runs, question.key.members as usize)
    }

    #[test]
    fn the_server_cannot_overstate_or_understate_the_members_of_a_cohort() {
        let apart = Terms { schedule: TrackSchedule::Apart, ..Terms::PRIVATE };
        let consent = Consent::default();
        let of = |members, active| consent.allows_terms(&asked(apart, members, 3), 1, active);
        assert_eq!(of(300, 30), Ok(()), "ten devices per track");
        assert_eq!(of(300, 29), Err(TooMuch::Divided { members: 29, tracks: 3, least: 10 }));
        assert_eq!(of(30, 31), Err(TooMuch::Members { members: 30, active: 31 }));
    }

    #[test]
    fn a_question_that_tells_of_a_device_is_refused_unless_its_owner_agreed_to_open_mode() {
        let (private, open) = (Consent::default(), Consent { open: true, ..Consent::default() });
        assert_eq!(terms(&private, &asked(Terms::PRIVATE, 100, 1), 1), Ok(()));
        let bucketed = Terms { weights: Weights::Bucketed, ..Terms::PRIVATE };
        assert_eq!(terms(&private, &asked(bucketed, 100, 1), 1), Err(TooMuch::Bucketed));
        let agreed = Consent { bucketed: true, ..Consent::default() };
        assert_eq!(terms(&agreed, &asked(bucketed, 100, 1), 1), Ok(()));
        let exact = asked(Terms { weights: Weights::Exact, ..Terms::PRIVATE }, 100, 1);
        assert_eq!(terms(&private, &exact, 1), Err(TooMuch::Weights));
        assert_eq!(terms(&open, &exact, 1), Ok(()));
    }

    #[test]
    fn no_consent_covers_a_device_that_two_tracks_share() {
        let apart = Terms { schedule: TrackSchedule::Apart, ..Terms::PRIVATE };
        let together = Terms { schedule: TrackSchedule::Together, ..Terms::PRIVATE };
        for open in [false, true] {
            let consent = Consent { open, ..Consent::default() };
            assert_eq!(terms(&consent, &asked(together, 100, 4), 1), Err(TooMuch::Together));
            assert_eq!(terms(&consent, &asked(together, 100, 1), 1), Err(TooMuch::Together));
            assert_eq!(terms(&consent, &asked(Terms::PRIVATE, 100, 2), 1), Err(TooMuch::Together));
            assert_eq!(terms(&consent, &asked(apart, 100, 4), 1), Ok(()));
            // Two thresholds under one track, at the same w or at different ones.
            for w in [0, 1] {
                let mut twice = asked(apart, 100, 4);
                let params = twice.queries[w].params;
                twice.queries.push(Query { track: 0, params, ..twice.queries[1].clone() });
                assert_eq!(terms(&consent, &twice, 1), Err(TooMuch::Twice(0)));
            }
        }
        let private = Consent::default();
        for left_out in 0..3 {
            let mut some = asked(apart, 100, 3);
            some.queries.remove(left_out);
            let refused = terms(&private, &some, 1);
            assert_eq!(refused, Err(TooMuch::SomeTracks { asked: 2, tracks: 3 }), "{left_out}");
        }
        let mut unequal = asked(apart, 100, 3);
        let Ask::Update { plan, .. } = &mut unequal.queries[2].ask else { panic!("an update") };
        plan.work = Work::Epochs(2);
        assert_eq!(terms(&private, &unequal, 1), Err(TooMuch::UnequalWork));
        let many = terms(&private, &asked(apart, 100, 64), 1);
        assert_eq!(many, Err(TooMuch::Divided { members: 100, tracks: 64, least: 10 }));
        let few = Consent { min_cohort: 12, ..Consent::default() };
        assert_eq!(terms(&few, &asked(apart, 12, 3), 1), Ok(()));
        let fewer = terms(&few, &asked(apart, 12, 4), 1);
        assert_eq!(fewer, Err(TooMuch::Divided { members: 12, tracks: 4, least: 4 }));
    }

    #[test]
    fn a_run_that_the_authority_did_not_sign_is_refused() {
        let of_run = |run| {
            let mut question = asked(Terms::PRIVATE, 100, 1);
            question.key.run = run;
            terms(&Consent { open: true, ..Consent::default() }, &question, 2)
        };
        assert_eq!((of_run(0), of_run(1)), (Ok(()), Ok(())));
        assert_eq!(of_run(2), Err(TooMuch::UnsignedRun { run: 2, runs: 2 }));
    }
}
