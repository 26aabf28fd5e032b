//! What a cohort is asked: from the engine's queries to the wire, and on a device back into queries.

use deltafl::device::{Admission, LocalPlan, Work};
use deltafl::engine::{Drawn, Query, Round};
use deltafl::model::Step;
use deltafl::params::Params;
use deltafl::superquantile::private::{Bins, QuantileQuery};
use deltafl::superquantile::smooth::Smoothing;
use deltafl_secagg::params::MAX_COHORT;
use prost::Message as _;

use super::{BlobId, MAX_QUERIES, Malformed, malformed, proto};

/// The longest batch that a device is asked to step on.
const MAX_BATCH: u32 = 1 << 20;

/// The id of parameters as they travel: little-endian `f32`.
pub(crate) fn blob_of(params: &Params) -> BlobId {
    BlobId { hash: params.hash(), len: 4 * params.len() as u64 }
}

/// The question of a server, as it travels.
pub(crate) fn to_wire(round: &Round<'_>, queries: &[Query<'_>]) -> proto::Question {
    proto::Question {
        seed: round.seed,
        round: round.index,
        cohort: round.cohort.len() as u32,
        queries: queries.iter().map(query_to_wire).collect(),
    }
}

fn query_to_wire(query: &Query<'_>) -> proto::Query {
    use proto::query::Kind;
    let kind = match query {
        Query::Quantile { query: QuantileQuery::Histogram(bins), .. } => Kind::Histogram(proto::Histogram {
            lower: bins.lower(),
            upper: bins.upper(),
            bins: bins.places() as u32 - 2,
        }),
        Query::Quantile { query: QuantileQuery::MeanStep { mu, floor }, .. } => {
            Kind::MeanStep(proto::MeanStep { mu: *mu, floor: *floor })
        }
        Query::LocalUpdate { admission, plan, .. } => Kind::Update(update_to_wire(*admission, plan)),
    };
    proto::Query { params: Some(blob_of(query.params()).to_wire()), kind: Some(kind) }
}

fn update_to_wire(admission: Admission, plan: &LocalPlan) -> proto::LocalUpdate {
    use proto::local_update::Work as Wire;
    let (eta, nu) = match admission {
        Admission::Everyone => (None, 0.0),
        Admission::Tail { eta } => (Some(eta), 0.0),
        Admission::Smooth { eta, nu } => (Some(eta), nu.get()),
    };
    proto::LocalUpdate {
        eta,
        nu,
        work: Some(match plan.work {
            Work::Epochs(epochs) => Wire::Epochs(epochs),
            Work::Steps(steps) => Wire::Steps(steps),
        }),
        batch: plan.batch as u32,
        learning_rate: plan.step.learning_rate,
        l2: plan.step.l2,
    }
}

/// A question as a device takes it in: checked, its parameters still to be fetched.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// The seed of the run.
    pub seed: u64,
    /// t.
    pub round: u64,
    /// S_t as far as a device knows it: how many. Each counts once, because a weight of its own would single a device out.
    pub cohort: Vec<Drawn>,
    /// What is asked, and at which parameters.
    pub queries: Vec<AskedQuery>,
    /// BLAKE3 of the question as it came.
    digest: [u8; 32],
}

/// A query without its parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct AskedQuery {
    /// w.
    pub params: BlobId,
    /// The question.
    pub asked: Asked,
}

/// What is asked of a device.
#[derive(Clone, Debug, PartialEq)]
pub enum Asked {
    /// A step of a private quantile.
    Quantile(QuantileQuery),
    /// The local update.
    Update {
        /// Who takes part.
        admission: Admission,
        /// How they train.
        plan: LocalPlan,
    },
}

impl AskedQuery {
    /// The query, at the parameters that were fetched for it.
    pub fn at<'a>(&self, params: &'a Params) -> Query<'a> {
        match &self.asked {
            Asked::Quantile(query) => Query::Quantile { params, query: query.clone() },
            Asked::Update { admission, plan } => {
                Query::LocalUpdate { params, admission: *admission, plan: *plan }
            }
        }
    }
}

/// A device that stands for any other of the cohort: nothing that a device computes depends on who they are.
const ANYBODY: Drawn = Drawn { device: u32::MAX, times: 1, dropped: false };

impl Question {
    /// BLAKE3 of the question as it came: what two devices compare.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// The round, as the engine's code sees it.
    pub fn round(&self) -> Round<'_> {
        Round { seed: self.seed, index: self.round, cohort: &self.cohort }
    }
}

impl TryFrom<proto::Question> for Question {
    type Error = Malformed;

    fn try_from(wire: proto::Question) -> Result<Self, Malformed> {
        let digest = *blake3::hash(&wire.encode_to_vec()).as_bytes();
        if !(1..=MAX_COHORT).contains(&wire.cohort) {
            return Err(malformed("cohort"));
        }
        if !(1..=MAX_QUERIES).contains(&wire.queries.len()) {
            return Err(malformed("queries"));
        }
        let cohort = vec![ANYBODY; wire.cohort as usize];
        let queries = wire.queries.into_iter().map(AskedQuery::try_from).collect::<Result<_, _>>()?;
        Ok(Self { seed: wire.seed, round: wire.round, cohort, queries, digest })
    }
}

impl TryFrom<proto::Query> for AskedQuery {
    type Error = Malformed;

    fn try_from(wire: proto::Query) -> Result<Self, Malformed> {
        use proto::query::Kind;
        let asked = match wire.kind.ok_or(malformed("kind"))? {
            Kind::Histogram(wire) => {
                let bins =
                    Bins::new(wire.lower, wire.upper, wire.bins).map_err(|_| malformed("histogram"))?;
                Asked::Quantile(QuantileQuery::Histogram(bins))
            }
            Kind::MeanStep(proto::MeanStep { mu, floor }) => {
                if !(mu.is_finite() && floor.is_finite() && floor > 0.0) {
                    return Err(malformed("mean_step"));
                }
                Asked::Quantile(QuantileQuery::MeanStep { mu, floor })
            }
            Kind::Update(wire) => update(&wire)?,
        };
        Ok(Self { params: BlobId::from_wire(wire.params)?, asked })
    }
}

fn update(wire: &proto::LocalUpdate) -> Result<Asked, Malformed> {
    use proto::local_update::Work as Wire;
    let admission = match wire.eta {
        None => Admission::Everyone,
        Some(eta) if eta.is_nan() => return Err(malformed("eta")),
        Some(eta) if wire.nu > 0.0 => {
            Admission::Smooth { eta, nu: Smoothing::try_from(wire.nu).map_err(|_| malformed("nu"))? }
        }
        Some(eta) => Admission::Tail { eta },
    };
    let work = match wire.work {
        Some(Wire::Epochs(epochs)) if epochs > 0 => Work::Epochs(epochs),
        Some(Wire::Steps(steps)) if steps > 0 => Work::Steps(steps),
        _ => return Err(malformed("work")),
    };
    if !(1..=MAX_BATCH).contains(&wire.batch) {
        return Err(malformed("batch"));
    }
    let step = Step { learning_rate: wire.learning_rate, l2: wire.l2 };
    if !(step.learning_rate.is_finite() && step.l2.is_finite()) {
        return Err(malformed("learning_rate"));
    }
    Ok(Asked::Update { admission, plan: LocalPlan { work, batch: wire.batch as usize, step } })
}

#[cfg(test)]
mod tests {
    use deltafl::engine::context;

    use super::*;

    fn queries(params: &Params) -> Vec<Query<'_>> {
        let plan = LocalPlan { work: Work::Steps(7), batch: 10, step: Step { learning_rate: 0.1, l2: 1e-4 } };
        let nu = Smoothing::try_from(0.25).unwrap();
        vec![
            Query::Quantile { params, query: QuantileQuery::Histogram(Bins::new(0.0, 8.0, 64).unwrap()) },
            Query::Quantile { params, query: QuantileQuery::MeanStep { mu: 1.5, floor: 0.01 } },
            Query::LocalUpdate { params, admission: Admission::Everyone, plan },
            Query::LocalUpdate { params, admission: Admission::Tail { eta: 2.5 }, plan },
            Query::LocalUpdate { params, admission: Admission::Smooth { eta: 2.5, nu }, plan },
        ]
    }

    #[test]
    fn a_device_signs_the_question_that_the_server_asked() {
        let params = Params::from(vec![1.0, -2.0]);
        let cohort = [4, 9, 2, 7].map(|device| Drawn { device, times: 1, dropped: false });
        let round = Round { seed: 5, index: 6, cohort: &cohort };
        let queries = queries(&params);
        let question = Question::try_from(to_wire(&round, &queries)).unwrap();
        let asked: Vec<Query<'_>> = question.queries.iter().map(|query| query.at(&params)).collect();
        assert_eq!(context(&question.round(), &asked), context(&round, &queries));
    }

    #[test]
    fn questions_that_no_honest_server_asks_are_refused() {
        let params = Params::from(vec![1.0]);
        let cohort = [ANYBODY; 3];
        let wire = to_wire(&Round { seed: 1, index: 1, cohort: &cohort }, &queries(&params));
        let refused = |change: &dyn Fn(&mut proto::Question)| {
            let mut wire = wire.clone();
            change(&mut wire);
            Question::try_from(wire).unwrap_err().field
        };
        assert_eq!(refused(&|wire| wire.cohort = 0), "cohort");
        assert_eq!(refused(&|wire| wire.cohort = u32::MAX), "cohort");
        assert_eq!(refused(&|wire| wire.queries.clear()), "queries");
        assert_eq!(refused(&|wire| wire.queries[0].params = None), "blob");
        assert_eq!(refused(&|wire| wire.queries[0].kind = None), "kind");
        let update = |change: &dyn Fn(&mut proto::LocalUpdate)| {
            refused(&|wire| {
                if let Some(proto::query::Kind::Update(update)) = &mut wire.queries[3].kind {
                    change(update);
                }
            })
        };
        assert_eq!(update(&|update| update.eta = Some(f64::NAN)), "eta");
        assert_eq!(update(&|update| update.work = None), "work");
        assert_eq!(update(&|update| update.batch = 0), "batch");
        assert_eq!(update(&|update| update.learning_rate = f32::INFINITY), "learning_rate");
    }
}
