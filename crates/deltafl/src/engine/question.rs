//! What the devices of a cohort are asked, as bytes that each of them signs.

use super::{Query, Round};
use crate::device::{Admission, Work};
use crate::superquantile::private::QuantileQuery;

/// What the devices sign along with a sum: the whole question, so that no device can be given a w, an η, a learning
/// rate or a weight of its own, which would single it out in the sum.
pub fn context(round: &Round<'_>, queries: &[Query<'_>]) -> Vec<u8> {
    let mut bytes = Bytes(blake3::Hasher::new());
    bytes.number(round.seed).number(round.index).number(round.cohort.len() as u64);
    for drawn in round.cohort.iter().filter(|drawn| drawn.times > 1) {
        bytes.number(u64::from(drawn.device)).number(u64::from(drawn.times));
    }
    for query in queries {
        bytes.0.update(query.params().hash().as_bytes());
        bytes.query(query);
    }
    bytes.0.finalize().as_bytes().to_vec()
}

/// A hasher of fields of fixed width.
struct Bytes(blake3::Hasher);

impl Bytes {
    fn number(&mut self, number: u64) -> &mut Self {
        self.0.update(&number.to_le_bytes());
        self
    }

    fn real(&mut self, real: f64) -> &mut Self {
        self.number(real.to_bits())
    }

    fn query(&mut self, query: &Query<'_>) {
        match query {
            Query::Quantile { query: QuantileQuery::Histogram(bins), .. } => {
                self.number(0).real(bins.lower()).real(bins.upper()).number(bins.places() as u64);
            }
            Query::Quantile { query: QuantileQuery::MeanStep { mu, floor }, .. } => {
                self.number(1).real(*mu).real(*floor);
            }
            Query::LocalUpdate { admission, plan, .. } => {
                let (eta, nu) = match admission {
                    Admission::Everyone => (f64::NEG_INFINITY, 0.0),
                    Admission::Tail { eta } => (*eta, 0.0),
                    Admission::Smooth { eta, nu } => (*eta, nu.get()),
                };
                let (kind, work) = match plan.work {
                    Work::Epochs(epochs) => (0, epochs),
                    Work::Steps(steps) => (1, steps),
                };
                self.number(2)
                    .real(eta)
                    .real(nu)
                    .number(kind)
                    .number(u64::from(work))
                    .number(plan.batch as u64);
                self.real(f64::from(plan.step.learning_rate)).real(f64::from(plan.step.l2));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::LocalPlan;
    use crate::engine::Drawn;
    use crate::model::Step;
    use crate::params::Params;

    fn update(params: &Params, eta: f64, learning_rate: f32) -> Query<'_> {
        let plan = LocalPlan { work: Work::Epochs(1), batch: 10, step: Step { learning_rate, l2: 0.0 } };
        Query::LocalUpdate { params, admission: Admission::Tail { eta }, plan }
    }

    #[test]
    fn every_part_of_a_question_changes_its_context() {
        let once = [Drawn { device: 3, times: 1, dropped: false }];
        let twice = [Drawn { device: 3, times: 2, dropped: false }];
        let round = Round { seed: 1, index: 2, cohort: &once };
        let (params, other) = (Params::from(vec![1.0]), Params::from(vec![2.0]));
        let base = context(&round, &[update(&params, 0.5, 0.1)]);
        assert_eq!(base, context(&round, &[update(&params.clone(), 0.5, 0.1)]));
        let others = [
            context(&Round { seed: 2, ..round }, &[update(&params, 0.5, 0.1)]),
            context(&Round { index: 3, ..round }, &[update(&params, 0.5, 0.1)]),
            context(&Round { cohort: &twice, ..round }, &[update(&params, 0.5, 0.1)]),
            context(&round, &[update(&other, 0.5, 0.1)]),
            context(&round, &[update(&params, 0.6, 0.1)]),
            context(&round, &[update(&params, 0.5, 0.2)]),
            context(&round, &[update(&params, 0.5, 0.1), update(&params, 0.5, 0.1)]),
        ];
        for other in others {
            assert_ne!(base, other);
        }
    }
}
