//! What a run shows, in one sentence.

use deltafl::metrics::OverSeeds;

use super::results::{Distribution, Measure, RunResults};

/// What a run shows, in words.
pub(super) struct Headline {
    /// For the top of the page.
    pub(super) sentence: String,
    /// What to bear in mind with it.
    pub(super) caveat: Option<String>,
}

/// The track whose 90th percentile is lowest, held against the baseline.
pub(super) fn headline(run: &RunResults) -> Headline {
    let split = run.main_split();
    let measure = split.measure;
    let p90_of = |track: usize| p90(split.last(track)).mean;
    let others = (0..run.tracks.len()).filter(|&track| track != run.baseline);
    let best = others.min_by(|&a, &b| p90_of(a).total_cmp(&p90_of(b)));
    let baseline = split.last(run.baseline);
    let name = &run.tracks[run.baseline].label;
    let Some(best) = best else {
        let sentence = format!(
            "{name} reaches a mean {} of {}; the 90th percentile over devices is {}",
            measure.name(),
            shown(mean(baseline).mean, measure),
            shown(p90(baseline).mean, measure)
        );
        return Headline { sentence, caveat: unfinished(run) };
    };
    let (label, distribution) = (&run.tracks[best].label, split.last(best));
    let (from, to) = (p90(baseline).mean, p90(distribution).mean);
    let tail = if to < from {
        format!(
            "{label} brings the 90th percentile of the {} from {} to {}",
            measure.name(),
            shown(from, measure),
            shown(to, measure)
        )
    } else {
        format!(
            "No track lowers the 90th percentile of the {} below {name}’s {}; {label} comes closest with {}",
            measure.name(),
            shown(from, measure),
            shown(to, measure)
        )
    };
    let (from, to) = (mean(baseline).mean, mean(distribution).mean);
    let means = format!("the mean moves from {} to {}", shown(from, measure), shown(to, measure));
    Headline {
        sentence: format!("{tail}; {means}"),
        caveat: unfinished(run).or_else(|| spread(baseline, distribution)),
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
