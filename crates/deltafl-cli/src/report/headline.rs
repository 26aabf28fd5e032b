//! What a run shows, in one sentence.

use deltafl::metrics::OverSeeds;

use super::measure::{Measure, TAIL};
use super::results::{Distribution, Measured, RunResults};
use crate::table;

/// What a run shows, in words.
pub(super) struct Headline {
    /// For the top of the page.
    pub(super) sentence: String,
    /// By which rule the level was chosen, and what it passed over.
    pub(super) price: Option<String>,
    /// What to bear in mind with it.
    pub(super) caveat: Option<String>,
}

/// What the mean may cost: a level that moves it by more is not recommended, however well it serves the tail.
#[derive(Clone, Copy, Debug)]
struct Price {
    /// The greatest cost of the mean that is accepted.
    most: f64,
    /// For people.
    words: &'static str,
}

impl Price {
    fn of(measure: Measure, baseline: f64) -> Self {
        let cost = measure.cost(baseline);
        if measure.percent() {
            Self { most: cost + 0.01, words: "one point" }
        } else {
            Self { most: cost + 0.03 * cost.abs(), words: "3 %" }
        }
    }
}

/// The level that serves the tail best at a stated price: the best 90th percentile among those whose mean is at most
/// one point of error (3 % of other measures) worse than that of the baseline; the baseline where no level is within the
/// price.
pub(super) fn best_level(run: &RunResults) -> usize {
    let primary = run.primary();
    let price = Price::of(primary.measure, mean(primary.last(run.baseline)));
    let cost = |track: usize| primary.measure.cost(mean(primary.last(track)));
    best_tail(run, others(run).filter(|&track| cost(track) <= price.most)).unwrap_or(run.baseline)
}

fn others(run: &RunResults) -> impl Iterator<Item = usize> {
    let baseline = run.baseline;
    (0..run.tracks.len()).filter(move |&track| track != baseline)
}

/// The track that serves the tail best.
fn best_tail(run: &RunResults, tracks: impl Iterator<Item = usize>) -> Option<usize> {
    let primary = run.primary();
    let cost = |track: usize| primary.measure.cost(tail(primary.last(track)));
    tracks.min_by(|&a, &b| cost(a).total_cmp(&cost(b)))
}

/// Words that depend on which way is better.
struct Words {
    /// The percentile of the tail.
    tail: String,
    best: &'static str,
    better: &'static str,
    improves: &'static str,
    worse: &'static str,
    beyond: &'static str,
}

impl Words {
    fn of(measure: Measure) -> Self {
        let tail = measure.tail();
        if measure.lower_is_better() {
            Self {
                tail,
                best: "lowest",
                better: "lower",
                improves: "lowers",
                worse: "above",
                beyond: "below",
            }
        } else {
            Self {
                tail,
                best: "highest",
                better: "higher",
                improves: "raises",
                worse: "below",
                beyond: "above",
            }
        }
    }
}

/// The level of [`best_level`], held against the baseline.
pub(super) fn headline(run: &RunResults) -> Headline {
    let primary = run.primary();
    let measure = primary.measure;
    let baseline = primary.last(run.baseline);
    let name = &run.tracks[run.baseline].label;
    let shown = |value: f64| shown(value, primary);
    let moved = |what: fn(&Distribution) -> f64, track: usize| {
        format!("from {} to {}", shown(what(baseline)), shown(what(primary.last(track))))
    };
    let words = Words::of(measure);
    let Some(best_of_all) = best_tail(run, others(run)) else {
        let sentence = format!(
            "{name} reaches a mean {} of {}; the {} over devices is {}",
            measure.name(),
            shown(mean(baseline)),
            words.tail,
            shown(tail(baseline))
        );
        return Headline { sentence, price: None, caveat: caveat(run, None) };
    };
    let price = Price::of(measure, mean(baseline)).words;
    let best = best_level(run);
    let (track, sentence) = if best == run.baseline {
        let label = &run.tracks[best_of_all].label;
        let sentence = format!(
            "No level keeps the mean {} within {price} of {name}’s; {label} moves the {} {} and the mean {}",
            measure.name(),
            words.tail,
            moved(tail, best_of_all),
            moved(mean, best_of_all)
        );
        (best_of_all, sentence)
    } else if measure.cost(tail(primary.last(best))) < measure.cost(tail(baseline)) {
        let sentence = format!(
            "{} brings the {} of the {} {}; the mean moves {}",
            run.tracks[best].label,
            words.tail,
            measure.name(),
            moved(tail, best),
            moved(mean, best)
        );
        (best, sentence)
    } else {
        let sentence = format!(
            "No level within {price} of the mean {} the {} of the {} {} {name}’s {}; {} comes closest with {}; the mean moves {}",
            words.improves,
            words.tail,
            measure.name(),
            words.beyond,
            shown(tail(baseline)),
            run.tracks[best].label,
            shown(tail(primary.last(best))),
            moved(mean, best)
        );
        (best, sentence)
    };
    let passed_over = best_of_all != best && best != run.baseline;
    let also = passed_over.then(|| {
        format!(
            " {} has a {} one, {}, for a mean of {}.",
            run.tracks[best_of_all].label,
            words.better,
            shown(tail(primary.last(best_of_all))),
            shown(mean(primary.last(best_of_all)))
        )
    });
    let price = format!(
        "The level shown has the {} {} of those whose mean is at most {price} {} {name}’s.{}",
        words.best,
        words.tail,
        words.worse,
        also.unwrap_or_default()
    );
    Headline { sentence, price: Some(price), caveat: caveat(run, Some(track)) }
}

/// The mean over devices, mean over seeds.
fn mean(distribution: &Distribution) -> f64 {
    distribution.figure(|figures| figures.mean).mean
}

/// The percentile of the tail, mean over seeds.
fn tail(distribution: &Distribution) -> f64 {
    distribution.figure(|figures| figures.percentiles[TAIL]).mean
}

/// A value with its unit: shares and losses to one place less than in the tables, others to as many.
fn shown(value: f64, measured: &Measured) -> String {
    let measure = measured.measure;
    if measure.percent() {
        format!("{:.1} %", value * measure.shown())
    } else {
        table::number(value, measured.decimals())
    }
}

/// What to bear in mind with the headline: that of the run, or that of the track which it holds against the baseline.
fn caveat(run: &RunResults, track: Option<usize>) -> Option<String> {
    let primary = run.primary();
    let spread = || spread(primary.last(run.baseline), primary.last(track?), &primary.measure.tail());
    let overlap = || overlap(primary.last(run.baseline), primary.last(track?), &primary.measure.tail());
    unfinished(run).or_else(overlap).or_else(spread)
}

fn unfinished(run: &RunResults) -> Option<String> {
    let planned = run.experiment.rounds();
    (run.rounds_done() < planned || !run.even).then(|| {
        format!(
            "The run is not finished: {} of {planned} rounds are evaluated for every seed.",
            run.rounds_done()
        )
    })
}

/// Says so when what is known of two percentiles of the tail does not tell them apart.
fn overlap(baseline: &Distribution, track: &Distribution, tail: &str) -> Option<String> {
    let ((a, b), (c, d)) = (baseline.between(1 + TAIL)?, track.between(1 + TAIL)?);
    (a.max(c) < b.min(d))
        .then(|| format!("The bounds of the two {tail}s overlap: the sums do not tell them apart."))
}

/// Says so when the seeds do not tell two percentiles of the tail apart: less than two standard errors of the paired
/// difference.
fn spread(baseline: &Distribution, track: &Distribution, tail: &str) -> Option<String> {
    let pairs = baseline.figures.iter().zip(&track.figures);
    let differences: Vec<f64> = pairs.map(|(b, t)| t.percentiles[TAIL] - b.percentiles[TAIL]).collect();
    let seeds = differences.len();
    let difference = OverSeeds::new(&differences)?;
    let Some(std) = difference.std else {
        return Some("One seed: another may tell another story.".to_owned());
    };
    let error = std / (seeds as f64).sqrt();
    (difference.mean.abs() < 2.0 * error).then(|| {
        format!("The {seeds} seeds do not tell the two {tail}s apart: the difference is less than two standard errors.")
    })
}
