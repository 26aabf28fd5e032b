//! The contribution of one device to the sum of one query.
//!
//! A simulated and a deployed device use the functions of this module, so that both add the same
//! integers.

use crate::evaluation::{self, Measure};
use crate::exchange::Evaluation;
use crate::memory::AlgorithmState;
use crate::model::Score;
use crate::params::UpdateCode;
use crate::privacy::{Noise, update};
use crate::question::Ask;
use crate::selection::{DeviceFacts, DeviceRule, LARGEST_SHARE, Report};
use crate::stream::Stream;
use crate::superquantile::DeviceLoss;
use crate::superquantile::private::QuantileQuery;
use crate::task::Task;
use crate::trainer::{LocalPlan, LocalTask, PersonalMethod, TrainerError, Worker};

/// The contribution of a device to a sum, before anything is computed for it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Contribution<'q> {
    /// Zeros.
    Nothing,
    /// The loss of the device, in a step of a private quantile.
    Loss(&'q QuantileQuery, DeviceLoss),
    /// A local update.
    Update {
        /// How the device trains.
        plan: &'q LocalPlan,
        /// α_k·ω_k; NaN if the loss is not a number. Such an update is counted as refused.
        weight: f64,
        /// The report with the update, if the weighting has one.
        report: Option<Report<'q>>,
    },
    /// Histograms of the metrics over the examples that the device holds out.
    Evaluation(&'q [Measure]),
}

/// The facts about a device that do not depend on the params.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    /// n_k.
    pub(crate) examples: u64,
    /// The index of its declared group, or 0.
    pub(crate) group: usize,
}

impl<'q> Contribution<'q> {
    /// Returns the contribution of a device with this weight α_k, number of examples and group.
    /// `loss` is F_k(w), which must be present if the query needs it.
    ///
    /// A device whose loss is not finite contributes nothing to a quantile.
    pub(crate) fn new(ask: &'q Ask, weight: f64, Held { examples, group }: Held, loss: Option<f64>) -> Self {
        match ask {
            Ask::Quantile(query) => match loss.map(|loss| DeviceLoss::new(loss, weight)) {
                Some(Ok(loss)) => Self::Loss(query, loss),
                _ => Self::Nothing,
            },
            Ask::Update { weighting, plan } => {
                let device =
                    DeviceFacts { loss: loss.unwrap_or(0.0), steps: plan.steps(examples), examples, group };
                let share = weighting.share(&device);
                if share <= 0.0 {
                    return Self::Nothing;
                }
                let reports = !weighting.kind().reports.is_empty();
                let report = reports.then_some(Report { weighting, device, weight, share, rule: None });
                Self::Update { plan, weight: weight * share, report }
            }
            Ask::Evaluation(measures) => Self::Evaluation(measures),
        }
    }
}

impl<'q> Contribution<'q> {
    /// Returns the contribution with the share of a rule, if it is an update.
    pub(crate) fn with_rule(self, rule: Option<&'q dyn DeviceRule>) -> Self {
        match (rule, self) {
            (Some(rule), Self::Update { plan, weight, report: Some(report) }) if !weight.is_nan() => {
                let share = rule.share(&report.device).clamp(0.0, LARGEST_SHARE);
                if share <= 0.0 {
                    return Self::Nothing;
                }
                let report = Some(Report { share, rule: Some(rule), ..report });
                Self::Update { plan, weight: weight * share, report }
            }
            (_, other) => other,
        }
    }
}

/// Returns F_k(w): the mean loss of a device with this score over its examples.
pub(crate) fn mean_loss(score: &Score, examples: u64) -> f64 {
    score.loss / examples as f64
}

/// Adds the metrics of a device with this score over the examples that it holds out.
pub(crate) fn add_evaluation(
    measures: &[Measure],
    task: Task,
    score: &Score,
    examples: u64,
    sum: &mut [u64],
) {
    evaluation::answer(measures, task, &Evaluation::new(task, score, examples), sum);
}

/// The share of a device in a sum of updates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share<'a> {
    /// α_k·ω_k.
    pub(crate) weight: f64,
    /// The report with the update.
    pub(crate) report: Option<Report<'a>>,
    /// The training of a personal model after the update.
    pub(crate) personal: Option<PersonalMethod>,
}

/// Trains a device and adds its update to `sum`. Returns the new memory of the device if it differs
/// from `own`.
///
/// An update that is not finite, or whose weight is NaN, is counted in the sum as refused: the
/// server learns the number of refused updates and not their devices. The memory of such a device
/// is unchanged.
pub(crate) fn add_update(
    code: &UpdateCode,
    task: &LocalTask<'_>,
    Share { weight, report, personal }: Share<'_>,
    own: Option<&AlgorithmState>,
    stream: &mut Stream,
    worker: &mut dyn Worker,
    sum: &mut [u64],
) -> Result<Option<AlgorithmState>, TrainerError> {
    if weight.is_nan() {
        UpdateCode::refuse(sum);
        return Ok(None);
    }
    let mut memory = own.cloned().unwrap_or_default();
    let mut before = personal.filter(|method| method.repeats_batches()).map(|_| stream.clone());
    let answer = worker.update(task, &mut memory, stream)?;
    let numbers = match (&report, answer.split_at_checked(task.params.len())) {
        (Some(report), Some((local, _))) => report.numbers(code.squared_norm(task.params, local)),
        _ => Vec::new(),
    };
    if !code.fits(&numbers) {
        UpdateCode::refuse(sum);
        return Ok(None);
    }
    let is_added = add_answer(code, task, answer, weight, sum)?;
    if is_added {
        UpdateCode::add_reports(&numbers, sum);
        if let Some(method) = personal {
            let stream = before.as_mut().unwrap_or(stream);
            worker.personalise(task, method, &mut memory, stream)?;
        }
    }
    let is_new = own.is_some() || !memory.is_empty();
    Ok((is_added && is_new).then_some(memory))
}

/// Adds the answer of a worker to `sum`: w_k, and the changes of the vectors that were sent with w.
/// Returns whether the update is in the sum. An update that is not finite is counted there instead.
fn add_answer(
    code: &UpdateCode,
    task: &LocalTask<'_>,
    answer: &[f32],
    weight: f64,
    sum: &mut [u64],
) -> Result<bool, TrainerError> {
    let (params, expected) = (task.params, task.params.len() * (1 + task.plan.sent()));
    if answer.len() != expected {
        let problem = format!("the trainer returned {} entries instead of {expected}", answer.len());
        return Err(problem.into());
    }
    let (local, changes) = answer.split_at(params.len());
    if changes.is_empty() {
        return Ok(code.add(params, local, weight, sum).is_ok());
    }
    if code.clip().is_some() {
        return Err("updates are clipped, but the clipping bound does not apply to vectors that are \
                    sent beside w: use an algorithm that sends w alone"
            .into());
    }
    let zero = vec![0.0; params.len()];
    let mut parts = vec![(local, params)];
    parts.extend(changes.chunks(params.len().max(1)).map(|change| (change, &zero[..])));
    Ok(code.add_parts(&parts, weight, sum).is_ok())
}

/// The share of a device in a noisy sum of updates.
pub(crate) struct NoisyShare<'a> {
    /// The noise of the query.
    pub(crate) noise: &'a Noise,
    /// ω_k; 0 or NaN if the device adds only noise.
    pub(crate) weight: f64,
    /// The public signs of the rotation.
    pub(crate) signs: Stream,
    /// The random numbers of rounding and noise.
    pub(crate) private: Stream,
}

/// Trains a device and adds its clipped and rounded update and its noise to `sum`. Returns the new
/// memory of the device if it differs from `own`. A device of weight 0 and a device whose update is
/// not finite add only noise.
pub(crate) fn add_noisy_update(
    NoisyShare { noise, weight, mut signs, mut private }: NoisyShare<'_>,
    task: &LocalTask<'_>,
    own: Option<&AlgorithmState>,
    stream: &mut Stream,
    worker: &mut dyn Worker,
    sum: &mut [u64],
) -> Result<Option<AlgorithmState>, TrainerError> {
    let mut next = None;
    if let (true, Some(clip)) = (weight > 0.0, noise.clip) {
        let mut memory = own.cloned().unwrap_or_default();
        let local = worker.update(task, &mut memory, stream)?;
        if local.len() != task.params.len() {
            let (got, expected) = (local.len(), task.params.len());
            return Err(format!("the trainer returned {got} entries instead of {expected}").into());
        }
        let change = (task.params, local);
        let is_added = update::add(noise, clip, change, weight, &mut signs, &mut private, sum);
        next = (is_added && (own.is_some() || !memory.is_empty())).then_some(memory);
    }
    noise.add_to(sum, &mut private);
    Ok(next)
}
