//! The result of a run in one sentence.

use deltafl::metrics::OverSeeds;

use super::distribution::{Distribution, Measured};
use super::measure::{ReportMeasure, TAIL};
use super::results::RunResults;
use crate::text_table;

/// The result of a run as text.
pub(super) struct Headline {
    /// The sentence at the top of the page.
    pub(super) sentence: String,
    /// The rule by which the level was chosen, and the best rejected level.
    pub(super) price: Option<String>,
    /// A limitation of the result.
    pub(super) caveat: Option<String>,
}

/// The accepted cost of the mean. A level with a larger cost is not recommended, regardless of its
/// tail.
#[derive(Clone, Copy, Debug)]
struct Price {
    /// The maximum accepted cost of the mean.
    most: f64,
    /// The price in words.
    words: &'static str,
}

impl Price {
    fn new(measure: ReportMeasure, baseline: f64) -> Self {
        let cost = measure.cost(baseline);
        if measure.percent() {
            Self { most: cost + 0.01, words: "one point" }
        } else {
            Self { most: cost + 0.03 * cost.abs(), words: "3 %" }
        }
    }
}

/// Returns the recommended level. It has the best 90th percentile of all levels whose mean is at
/// most one point of error (3 % of other measures) worse than the baseline's. Returns the baseline
/// if there is no such level.
pub(super) fn best_level(run: &RunResults) -> usize {
    let primary = run.primary();
    let price = Price::new(primary.measure, mean(primary.last(run.baseline)));
    let cost = |track: usize| primary.measure.cost(mean(primary.last(track)));
    best_tail(run, others(run).filter(|&track| cost(track) <= price.most)).unwrap_or(run.baseline)
}

/// Returns the word for a track: a level of one algorithm, or one of several methods.
fn noun(run: &RunResults) -> &'static str {
    let mut algorithms = others(run).map(|track| &run.tracks[track].algorithm);
    let first = algorithms.next();
    if algorithms.all(|algorithm| Some(algorithm) == first) { "level" } else { "method" }
}

fn others(run: &RunResults) -> impl Iterator<Item = usize> {
    let baseline = run.baseline;
    (0..run.tracks.len()).filter(move |&track| track != baseline)
}

/// Returns the track with the best tail.
fn best_tail(run: &RunResults, tracks: impl Iterator<Item = usize>) -> Option<usize> {
    let primary = run.primary();
    let cost = |track: usize| primary.measure.cost(tail(primary.last(track)));
    tracks.min_by(|&a, &b| cost(a).total_cmp(&cost(b)))
}

/// Words that depend on whether lower or higher values are better.
struct MeasureWording {
    /// The name of the tail percentile.
    tail: String,
    best: &'static str,
    better: &'static str,
    improves: &'static str,
    worse: &'static str,
    beyond: &'static str,
}

impl MeasureWording {
    fn for_measure(measure: ReportMeasure) -> Self {
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

/// Compares the level of [`best_level`] with the baseline.
pub(super) fn headline(run: &RunResults) -> Headline {
    let primary = run.primary();
    let measure = primary.measure;
    let baseline = primary.last(run.baseline);
    let name = &run.tracks[run.baseline].label;
    let shown = |value: f64| formatted(value, primary);
    let moved = |what: fn(&Distribution) -> f64, track: usize| {
        format!("from {} to {}", shown(what(baseline)), shown(what(primary.last(track))))
    };
    let words = MeasureWording::for_measure(measure);
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
    let price = Price::new(measure, mean(baseline)).words;
    let noun = noun(run);
    let best = best_level(run);
    let (track, sentence) = if best == run.baseline {
        let label = &run.tracks[best_of_all].label;
        let sentence = format!(
            "No {noun} keeps the mean {} within {price} of {name}’s; {label} changes the {} {} and the mean {}",
            measure.name(),
            words.tail,
            moved(tail, best_of_all),
            moved(mean, best_of_all)
        );
        (best_of_all, sentence)
    } else if shown(tail(primary.last(best))) == shown(tail(baseline)) {
        let sentence = format!(
            "{} and {name} have the same {} of the {}, {}; the mean changes {}",
            run.tracks[best].label,
            words.tail,
            measure.name(),
            shown(tail(baseline)),
            moved(mean, best)
        );
        (best, sentence)
    } else if measure.cost(tail(primary.last(best))) < measure.cost(tail(baseline)) {
        let sentence = format!(
            "{} changes the {} of the {} {}; the mean changes {}",
            run.tracks[best].label,
            words.tail,
            measure.name(),
            moved(tail, best),
            moved(mean, best)
        );
        (best, sentence)
    } else {
        let sentence = format!(
            "No {noun} within {price} of the mean {} the {} of the {} {} {name}’s {}; {} is closest with {}; the mean changes {}",
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
        "The {noun} shown has the {} {} of those whose mean is at most {price} {} {name}’s.{}",
        words.best,
        words.tail,
        words.worse,
        also.unwrap_or_default()
    );
    Headline { sentence, price: Some(price), caveat: caveat(run, Some(track)) }
}

/// Returns the mean over devices, averaged over seeds.
fn mean(distribution: &Distribution) -> f64 {
    distribution.figure(|figures| figures.mean).mean
}

/// Returns the tail percentile, averaged over seeds.
fn tail(distribution: &Distribution) -> f64 {
    distribution.figure(|figures| figures.percentiles[TAIL]).mean
}

/// Formats a value with its unit. Shares and losses have one decimal fewer than in the tables.
fn formatted(value: f64, measured: &Measured) -> String {
    let measure = measured.measure;
    if measure.percent() {
        format!("{:.1} %", value * measure.display_scale())
    } else {
        text_table::number(value, measured.decimals())
    }
}

/// Returns the limitation of the headline: that of the run, or of the track that is compared with
/// the baseline.
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

/// Returns a note if the bounds of two tail percentiles overlap.
fn overlap(baseline: &Distribution, track: &Distribution, tail: &str) -> Option<String> {
    let ((a, b), (c, d)) = (baseline.between(1 + TAIL)?, track.between(1 + TAIL)?);
    (a.max(c) < b.min(d))
        .then(|| format!("The bounds of the two {tail}s overlap: the sums do not distinguish them."))
}

/// Returns a note if the seeds do not distinguish two tail percentiles: the paired difference is
/// less than two standard errors.
fn spread(baseline: &Distribution, track: &Distribution, tail: &str) -> Option<String> {
    let pairs = baseline.figures.iter().zip(&track.figures);
    let differences: Vec<f64> = pairs.map(|(b, t)| t.percentiles[TAIL] - b.percentiles[TAIL]).collect();
    let seeds = differences.len();
    let difference = OverSeeds::new(&differences)?;
    let Some(std) = difference.std else {
        return Some("One seed only: other seeds may give other results.".to_owned());
    };
    let error = std / (seeds as f64).sqrt();
    (difference.mean.abs() < 2.0 * error).then(|| {
        format!("The {seeds} seeds do not distinguish the two {tail}s: the difference is less than two standard errors.")
    })
}
