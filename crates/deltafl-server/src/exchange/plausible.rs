//! Plausibility checks of sums.
//!
//! The server sees no single answer, but some invalid answers are visible in the sum. Examples are
//! more devices in the tail than answered, weight without devices, entries out of range, and
//! non-finite parameters. Such a sum changes no parameters: the round is aborted and restarted.
//! These checks do not detect an attacker that stays within the bounds
//! (docs/src/explanation/threat-model.md).

use deltafl::evaluation::Measure;
use deltafl::exchange::CohortSum;
use deltafl::params::Params;
use deltafl::question::{Ask, Query};
use deltafl::superquantile::private::QuantileQuery;
use deltafl::terms::Clip;

/// The maximum plausible number of examples of a device.
const MOST_EXAMPLES: f64 = 4_294_967_296.0;
/// The units of a weight and of an entry of an update (docs/src/reference/api.md).
const WEIGHT_UNIT: f64 = 65_536.0;
const UPDATE_UNIT: f64 = 16_777_216.0;

/// The reason for which a sum is implausible.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Implausible {
    /// The sum counts more devices than answered.
    #[error("{tail} devices in the tail and {refused} refusals exceed the {answered} that answered")]
    Devices {
        /// The number of devices in the tail.
        tail: u64,
        /// The number of devices that refused.
        refused: u64,
        /// The number of devices that answered.
        answered: u64,
    },
    /// The weight is impossible for these devices.
    #[error("{tail} devices cannot weigh {weight}")]
    Weight {
        /// The number of devices in the tail.
        tail: u64,
        /// Their weight.
        weight: f64,
    },
    /// An entry exceeds the bound on the devices' answers.
    #[error("entry {entry} of a sum exceeds the bound on the answers of its devices")]
    Entry {
        /// The index of the entry.
        entry: usize,
    },
    /// Parameters would become non-finite.
    #[error("parameter {entry} would not be finite")]
    NotFinite {
        /// The index of the parameter.
        entry: usize,
    },
    /// The step exceeds the limit of the server.
    #[error("the step has norm {norm}, above the limit of {most}")]
    Norm {
        /// ‖Δ‖.
        norm: f64,
        /// The limit.
        most: f64,
    },
}

/// The bounds on the change of w in a round.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct StepBounds {
    /// The operator's limit.
    pub(super) most: Option<f64>,
    /// The maximum norm of a device's update, and thus of any mean of updates.
    pub(super) clip: Option<Clip>,
}

impl StepBounds {
    /// Returns the maximum norm of a step of `params` parameters by this many devices with this
    /// weight.
    fn longest(&self, kept: f64, weight: f64, params: usize) -> Option<f64> {
        let of_clip = self.clip.map(|clip| {
            // Each device rounds its weight and each entry by at most half a unit.
            let rounded = 0.5 * kept / weight;
            clip.get() * (1.0 + rounded / WEIGHT_UNIT + 1e-9) + (params as f64).sqrt() * rounded / UPDATE_UNIT
        });
        [self.most, of_clip].into_iter().flatten().reduce(f64::min)
    }
}

/// Checks the sum of the answers to a query; `cohort` devices were asked.
pub(super) fn check(
    query: &Query,
    sum: &CohortSum,
    cohort: usize,
    step: StepBounds,
) -> Result<(), Implausible> {
    // Any entry of a noisy sum is possible.
    if query.noise.is_some() {
        return Ok(());
    }
    match &query.ask {
        Ask::Update { .. } => check_update(&query.params, sum, cohort, step),
        Ask::Quantile(QuantileQuery::Histogram(_)) => {
            // Each device adds its number of examples to one bin.
            let most = sum.answered as f64 * MOST_EXAMPLES;
            let over = sum.values.iter().position(|&value| value as f64 > most);
            over.map_or(Ok(()), |entry| Err(Implausible::Entry { entry }))
        }
        Ask::Quantile(_) => Ok(()),
        Ask::Evaluation(measures) => check_evaluation(measures, sum),
    }
}

/// Each device puts 1 into one place of each measure.
fn check_evaluation(measures: &[Measure], sum: &CohortSum) -> Result<(), Implausible> {
    let mut start = 0;
    for measure in measures {
        let mut devices = 0u64;
        for entry in start..start + measure.places() {
            let added = sum.values.get(entry).and_then(|&value| devices.checked_add(value));
            devices = added.filter(|&devices| devices <= sum.answered).ok_or(Implausible::Entry { entry })?;
        }
        start += measure.places();
    }
    Ok(())
}

fn check_update(
    params: &Params,
    sum: &CohortSum,
    cohort: usize,
    step: StepBounds,
) -> Result<(), Implausible> {
    // Vectors returned in addition to w have the bounds of w. The step of w has a separate bound.
    let (update, footer) = sum.values.split_at(sum.values.len().saturating_sub(3));
    let [weight, tail, refused] = footer else { return Err(Implausible::Entry { entry: update.len() }) };
    let (tail, refused, answered) = (*tail, *refused, sum.answered);
    if tail.checked_add(refused).is_none_or(|devices| devices > answered) {
        return Err(Implausible::Devices { tail, refused, answered });
    }
    let weight = *weight as f64 / WEIGHT_UNIT;
    if weight > tail as f64 * MOST_EXAMPLES || (tail == 0 && weight > 0.0) {
        return Err(Implausible::Weight { tail, weight });
    }
    // A device omits entries above 2^62 / cohort and rounds by at most half a unit.
    let most = tail as f64 * (2f64.powi(62) / cohort.max(1) as f64 + 1.0);
    let mut squares = 0.0;
    let at = params.as_slice().iter().map(|&w| (w, true)).chain(std::iter::repeat((0.0, false)));
    for (entry, (&value, (w, moves))) in update.iter().zip(at).enumerate() {
        let value = value as i64 as f64;
        if value.abs() > most {
            return Err(Implausible::Entry { entry });
        }
        if weight > 0.0 {
            let change = value / UPDATE_UNIT / weight;
            if !((f64::from(w) + change) as f32).is_finite() {
                return Err(Implausible::NotFinite { entry });
            }
            squares += if moves { change * change } else { 0.0 };
        }
    }
    match step.longest(tail as f64, weight, params.len()) {
        Some(most) if squares.sqrt() > most => Err(Implausible::Norm { norm: squares.sqrt(), most }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use deltafl::exchange::Traffic;
    use deltafl::params::UpdateCode;
    use deltafl::selection::Weighting;
    use deltafl::superquantile::private::Bins;
    use deltafl::trainer::{LocalPlan, Work};

    use super::*;

    const COHORT: usize = 10;

    fn checked(values: Vec<u64>, max_norm: Option<f64>) -> Result<(), Implausible> {
        checked_step(values, StepBounds { most: max_norm, clip: None })
    }

    fn checked_step(values: Vec<u64>, step: StepBounds) -> Result<(), Implausible> {
        let params = Params::from(vec![0.5, -1.0]);
        let plan = LocalPlan {
            work: Work::Epochs(1),
            batch: 10,
            learning_rate: 0.1,
            l2: 0.0,
            proximal: 0.0,
            correction: None,
        };
        let query = Query::new(params, Ask::Update { weighting: Weighting::everyone(), plan });
        let sum = CohortSum { values, answered: 8, traffic: Traffic::default(), remembered: Vec::new() };
        check(&query, &sum, COHORT, step)
    }

    /// Returns the sum of eight devices that all move to (1, 1) with ten examples.
    fn honest() -> Vec<u64> {
        let mut sum = vec![0; UpdateCode::len(2)];
        for _ in 0..8 {
            UpdateCode::new(COHORT).add(&[0.5, -1.0], &[1.0, 1.0], 10.0, &mut sum).unwrap();
        }
        sum
    }

    #[test]
    fn honest_sums_are_believed() {
        assert_eq!(checked(honest(), None), Ok(()));
        assert_eq!(checked(vec![0; 5], None), Ok(()), "an empty tail");
        let mut largest = vec![0; UpdateCode::len(2)];
        let most = (2f64.powi(62) / COHORT as f64 / UPDATE_UNIT) as f32 * 0.99;
        for _ in 0..8 {
            UpdateCode::new(COHORT).add(&[0.0, 0.0], &[most, -most], 1.0, &mut largest).unwrap();
        }
        assert_eq!(checked(largest, None), Ok(()));
    }

    #[test]
    fn sums_that_no_honest_devices_make_are_not_believed() {
        let with = |change: fn(&mut Vec<u64>)| {
            let mut sum = honest();
            change(&mut sum);
            checked(sum, None)
        };
        assert!(matches!(with(|sum| sum[3] = 9), Err(Implausible::Devices { tail: 9, .. })));
        assert!(matches!(with(|sum| sum[4] = u64::MAX), Err(Implausible::Devices { .. })));
        assert!(matches!(with(|sum| sum[3] = 0), Err(Implausible::Weight { tail: 0, .. })));
        assert!(matches!(with(|sum| sum[2] = u64::MAX), Err(Implausible::Weight { .. })));
        assert_eq!(with(|sum| sum[1] = i64::MIN as u64), Err(Implausible::Entry { entry: 1 }));
        // Almost no weight with a large entry: w would become non-finite.
        let thin = |sum: &mut Vec<u64>| (sum[0], sum[2]) = (1 << 61, 0);
        assert_eq!(with(thin), Ok(()), "no weight moves nothing");
        let norm = |most| checked(honest(), Some(most));
        assert_eq!(norm(3.0), Ok(()));
        assert!(matches!(norm(2.0), Err(Implausible::Norm { .. })), "‖(0.5, 2)‖ is 2.06");
    }

    #[test]
    fn a_mean_that_is_longer_than_any_clipped_update_is_not_believed() {
        let clip = Clip::try_from(0.3).ok();
        let step = StepBounds { most: None, clip };
        let sum_of = |long: &[(f32, f64)]| {
            let mut sum = vec![0; UpdateCode::len(2)];
            for (far, weight) in long {
                let code = UpdateCode::new(COHORT).clipped(clip);
                code.add(&[0.5, -1.0], &[0.5 + far, -1.0 + far / 3.0], *weight, &mut sum).unwrap();
            }
            sum
        };
        // All in one direction, with weights that are not multiples of the unit.
        for weight in [1.0, 1.0 / 3.0, 1e-4, 250.7] {
            assert_eq!(checked_step(sum_of(&[(7.3, weight); 8]), step), Ok(()), "{weight}");
        }
        let mut lied = sum_of(&[(7.3, 1.0); 7]);
        UpdateCode::new(COHORT).add(&[0.5, -1.0], &[1.5, -1.0], 1.0, &mut lied).unwrap();
        let refused = checked_step(lied, step);
        assert!(matches!(refused, Err(Implausible::Norm { .. })), "{refused:?}");
        let mut opposed = sum_of(&[(-7.3, 1.0); 7]);
        UpdateCode::new(COHORT).add(&[0.5, -1.0], &[1.5, -1.0], 1.0, &mut opposed).unwrap();
        assert_eq!(checked_step(opposed, step), Ok(()), "a liar uses the room that the others leave");
    }

    #[test]
    fn an_evaluation_in_which_devices_count_twice_is_not_believed() {
        let measures = vec![Measure::named("error").unwrap(), Measure::Loss];
        let query = Query::new(Params::from(vec![0.0]), Ask::Evaluation(measures.clone()));
        let checked = |entries: &[(usize, u64)]| {
            let mut values = vec![0; query.answer_len()];
            entries.iter().for_each(|&(entry, devices)| values[entry] = devices);
            let sum = CohortSum { values, answered: 8, traffic: Traffic::default(), remembered: Vec::new() };
            check(&query, &sum, COHORT, StepBounds { most: None, clip: None })
        };
        let loss = measures[0].places();
        assert_eq!(checked(&[(3, 5), (7, 3), (loss + 2, 8)]), Ok(()));
        assert_eq!(checked(&[]), Ok(()), "nobody holds examples out");
        assert_eq!(checked(&[(3, 5), (7, 4)]), Err(Implausible::Entry { entry: 7 }));
        assert_eq!(
            checked(&[(loss + 2, u64::MAX), (loss + 3, 2)]),
            Err(Implausible::Entry { entry: loss + 2 })
        );
    }

    #[test]
    fn a_histogram_that_wraps_is_not_believed() {
        let params = Params::from(vec![0.0]);
        let bins = QuantileQuery::Histogram(Bins::new(0.0, 1.0, 2).unwrap());
        let query = Query::new(params, Ask::Quantile(bins));
        let sum = |values: Vec<u64>| CohortSum {
            values,
            answered: 8,
            traffic: Traffic::default(),
            remembered: Vec::new(),
        };
        let any = StepBounds::default();
        assert_eq!(check(&query, &sum(vec![0, 100, 40, 0]), COHORT, any), Ok(()));
        let wrapped = check(&query, &sum(vec![0, 100, u64::MAX - 3, 0]), COHORT, any);
        assert_eq!(wrapped, Err(Implausible::Entry { entry: 2 }));
    }
}
