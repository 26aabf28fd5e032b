//! What a run shows, in one sentence.

use deltafl::metrics::OverSeeds;

use super::results::{Distribution, Measure, RunResults};

/// What a run shows, in words.
pub(super) struct Headline {
    /// For the top of the page.
    pub(super) sentence: String,
    /// By which rule the level was chosen, and what it passed over.
    pub(super) price: Option<String>,
    /// What to bear in mind with it.
    pub(super) caveat: Option<String>,
}

/// What the mean may cost: a level that moves it by more is not recommended, however low its 90th percentile.
#[derive(Clone, Copy, Debug)]
struct Price {
    /// The greatest mean that is accepted.
    most: f64,
    /// For people.
    words: &'static str,
}

impl Price {
    fn of(measure: Measure, baseline: f64) -> Self {
        match measure {
            Measure::TestError => Self { most: baseline + 0.01, words: "one point" },
            Measure::TrainLoss => Self { most: baseline * 1.03, words: "3 %" },
        }
    }
}

/// The level that serves the tail best at a stated price: the lowest 90th percentile among those whose mean is at most
/// one point of error (3 % of the loss) above that of the baseline; the baseline where no level is within the price.
pub(super) fn best_level(run: &RunResults) -> usize {
    let split = run.main_split();
    let price = Price::of(split.measure, mean(split.last(run.baseline)).mean);
    let within = others(run).filter(|&track| mean(split.last(track)).mean <= price.most);
    lowest_p90(run, within).unwrap_or(run.baseline)
}

fn others(run: &RunResults) -> impl Iterator<Item = usize> {
    let baseline = run.baseline;
    (0..run.tracks.len()).filter(move |&track| track != baseline)
}

fn lowest_p90(run: &RunResults, tracks: impl Iterator<Item = usize>) -> Option<usize> {
    let p90_of = |track: usize| p90(run.main_split().last(track)).mean;
    tracks.min_by(|&a, &b| p90_of(a).total_cmp(&p90_of(b)))
}

/// The level of [`best_level`], held against the baseline.
pub(super) fn headline(run: &RunResults) -> Headline {
    let split = run.main_split();
    let measure = split.measure;
    let baseline = split.last(run.baseline);
    let name = &run.tracks[run.baseline].label;
    let moved = |what: fn(&Distribution) -> OverSeeds, track: usize| {
        let (from, to) = (what(baseline).mean, what(split.last(track)).mean);
        format!("from {} to {}", shown(from, measure), shown(to, measure))
    };
    let Some(lowest) = lowest_p90(run, others(run)) else {
        let sentence = format!(
            "{name} reaches a mean {} of {}; the 90th percentile over devices is {}",
            measure.name(),
            shown(mean(baseline).mean, measure),
            shown(p90(baseline).mean, measure)
        );
        return Headline { sentence, price: None, caveat: unfinished(run) };
    };
    let words = Price::of(measure, mean(baseline).mean).words;
    let best = best_level(run);
    let (track, sentence) = if best == run.baseline {
        let label = &run.tracks[lowest].label;
        let sentence = format!(
            "No level keeps the mean {} within {words} of {name}’s; {label} moves the 90th percentile {} and the mean {}",
            measure.name(),
            moved(p90, lowest),
            moved(mean, lowest)
        );
        (lowest, sentence)
    } else if p90(split.last(best)).mean < p90(baseline).mean {
        let sentence = format!(
            "{} brings the 90th percentile of the {} {}; the mean moves {}",
            run.tracks[best].label,
            measure.name(),
            moved(p90, best),
            moved(mean, best)
        );
        (best, sentence)
    } else {
        let sentence = format!(
            "No level within {words} of the mean lowers the 90th percentile of the {} below {name}’s {}; {} comes closest with {}; the mean moves {}",
            measure.name(),
            shown(p90(baseline).mean, measure),
            run.tracks[best].label,
            shown(p90(split.last(best)).mean, measure),
            moved(mean, best)
        );
        (best, sentence)
    };
    let lower = lowest != best && best != run.baseline;
    let also = lower.then(|| {
        format!(
            " {} has a lower one, {}, for a mean of {}.",
            run.tracks[lowest].label,
            shown(p90(split.last(lowest)).mean, measure),
            shown(mean(split.last(lowest)).mean, measure)
        )
    });
    let price = format!(
        "The level shown has the lowest 90th percentile of those whose mean is at most {words} above {name}’s.{}",
        also.unwrap_or_default()
    );
    Headline {
        sentence,
        price: Some(price),
        caveat: unfinished(run).or_else(|| spread(baseline, split.last(track))),
    }
}

fn mean(distribution: &Distribution) -> OverSeeds {
    distribution.figure(|figures| figures.mean)
}

fn p90(distribution: &Distribution) -> OverSeeds {
    distribution.figure(|figures| figures.percentiles[4])
}

/// A value with its unit, to one place less than in the tables.
fn shown(value: f64, measure: Measure) -> String {
    let number = format!("{:.*}", measure.decimals() - 1, value * measure.shown());
    match measure {
        Measure::TestError => format!("{number} %"),
        Measure::TrainLoss => number,
    }
}

fn unfinished(run: &RunResults) -> Option<String> {
    let planned = run.experiment.rounds.get();
    (run.rounds_done() < planned || !run.even).then(|| {
        format!(
            "The run is not finished: {} of {planned} rounds are evaluated for every seed.",
            run.rounds_done()
        )
    })
}

/// Says so when the seeds do not tell the two 90th percentiles apart: less than two standard errors of the
/// paired difference.
fn spread(baseline: &Distribution, track: &Distribution) -> Option<String> {
    let pairs = baseline.figures.iter().zip(&track.figures);
    let differences: Vec<f64> = pairs.map(|(b, t)| t.percentiles[4] - b.percentiles[4]).collect();
    let seeds = differences.len();
    let difference = OverSeeds::new(&differences)?;
    if seeds == 1 {
        return Some("One seed: another may tell another story.".to_owned());
    }
    let error = difference.std / (seeds as f64).sqrt();
    (difference.mean.abs() < 2.0 * error).then(|| {
        format!("The {seeds} seeds do not tell the two 90th percentiles apart: the difference is less than two standard errors.")
    })
}
