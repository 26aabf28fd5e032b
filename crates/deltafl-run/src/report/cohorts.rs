//! The evaluations of a deployed run: histograms over the anonymous devices of cohorts.
//!
//! In curves and bars, a device counts at the midpoint of its bin. The lower and upper edges of the
//! bins bound each value. Tables and page show both bounds.

use std::collections::BTreeMap;

use deltafl::data::Split;
use deltafl::evaluation::{self, CohortEvaluation, MeasureHistogram};
use deltafl::task::Task;
use deltafl_data::run_folder::RoundLine;

use super::distribution::{Distribution, FiguresBetween, Measured};
use super::measure::ReportMeasure;
use super::results::Evaluated;

/// Returns the cohort evaluations. Returns `None` if no version was evaluated for every seed.
pub(super) fn read(lines: &[RoundLine], tracks: usize) -> Option<Evaluated> {
    let seeds = by_seed(lines, tracks);
    let (first, others) = seeds.split_first()?;
    let reached = |version: &&u64| others.iter().all(|seed| seed.versions.contains_key(*version));
    let versions: Vec<u64> = first.versions.keys().filter(reached).copied().collect();
    let last = |seed: &Seed<'_>| seed.versions.keys().next_back().copied();
    let example = first.versions.get(versions.last()?)?.first()?;
    let measures = example.measures.iter().enumerate();
    let measured = measures.filter_map(|(place, histogram)| {
        let measure = measure(histogram.measure, example.task)?;
        let frames = versions.iter().map(|version| frame(&seeds, *version, tracks, place, measure));
        let frames = frames.collect::<Option<Vec<_>>>()?;
        Some(Measured { measure, devices: [].into(), population: None, frames })
    });
    let told =
        || versions.iter().flat_map(|version| seeds.iter().map(|seed| seed.versions[version][0].devices()));
    Some(Evaluated {
        measured: measured.collect(),
        even: seeds.iter().all(|seed| last(seed) == last(first)),
        cohorts: Some((told().min()?, told().max()?)),
        seeds: seeds.iter().map(|seed| seed.seed).collect(),
        rounds: versions,
    })
    .filter(|evaluated| !evaluated.measured.is_empty())
}

/// The cohort evaluations of a seed, by version and track.
struct Seed<'a> {
    seed: u64,
    versions: BTreeMap<u64, Vec<&'a CohortEvaluation>>,
}

/// The evaluations of each version by track, `None` for tracks without one.
type Versions<'a> = BTreeMap<u64, Vec<Option<&'a CohortEvaluation>>>;

impl<'a> Seed<'a> {
    /// Keeps the versions for which every track was evaluated.
    fn complete((seed, versions): (u64, Versions<'a>)) -> Self {
        let complete = |(version, told): (u64, Vec<Option<&'a CohortEvaluation>>)| {
            Some((version, told.into_iter().collect::<Option<_>>()?))
        };
        Self { seed, versions: versions.into_iter().filter_map(complete).collect() }
    }
}

/// Returns the seeds in training order, with the versions for which every track was evaluated.
///
/// Tracks that take turns report a version in different rounds, in any order.
fn by_seed(lines: &[RoundLine], tracks: usize) -> Vec<Seed<'_>> {
    let mut seeds: Vec<(u64, Versions<'_>)> = Vec::new();
    for record in lines.iter().map(|line| &line.record) {
        if seeds.iter().all(|(seed, _)| *seed != record.seed) {
            seeds.push((record.seed, BTreeMap::new()));
        }
        let Some((_, versions)) = seeds.iter_mut().find(|(seed, _)| *seed == record.seed) else { continue };
        for told in &record.evaluations {
            let known = versions.entry(told.version).or_insert_with(|| vec![None; tracks]);
            // A version is evaluated once: by the last cohort of a run, or by the next cohort if
            // the run was extended.
            if let Some(known @ None) = known.get_mut(record.track) {
                *known = Some(told);
            }
        }
    }
    let mut seeds: Vec<Seed<'_>> = seeds.into_iter().map(Seed::complete).collect();
    seeds.retain(|seed| !seed.versions.is_empty());
    seeds
}

/// Converts a measure of an evaluation to a measure of a report.
fn measure(measure: evaluation::Measure, task: Task) -> Option<ReportMeasure> {
    match measure {
        evaluation::Measure::Loss => Some(ReportMeasure::loss(Split::Test, task)),
        evaluation::Measure::Metric(metric) => {
            ReportMeasure::metrics(Split::Test, task).find(|m| m.is(metric))
        }
    }
}

/// Returns a distribution per track at one version.
fn frame(
    seeds: &[Seed<'_>],
    version: u64,
    tracks: usize,
    place: usize,
    measure: ReportMeasure,
) -> Option<Vec<Distribution>> {
    let of_track = |track: usize| {
        let mut distribution = Distribution::default();
        for seed in seeds {
            distribution.take(measure, seed.versions.get(&version)?.get(track)?.measures.get(place)?)?;
        }
        Some(distribution)
    };
    (0..tracks).map(of_track).collect()
}

impl Distribution {
    /// Adds the histogram of a seed's cohort.
    fn take(&mut self, measure: ReportMeasure, histogram: &MeasureHistogram) -> Option<()> {
        let (lower, upper) = histogram.ends();
        let middles: Vec<f64> =
            lower.iter().zip(&upper).map(|(&lower, &upper)| middle(lower, upper)).collect();
        let figures = |values: &[f64]| measure.figures_of(values.iter().map(|&value| (value, 1)));
        self.figures.push(figures(&middles)?);
        self.between.push(FiguresBetween { lower: figures(&lower)?, upper: figures(&upper)? });
        self.values.extend(middles.iter().map(|&value| value as f32));
        Some(())
    }
}

/// Returns the position at which a device is drawn, given one or both edges of its bin.
fn middle(lower: f64, upper: f64) -> f64 {
    match (lower.is_finite(), upper.is_finite()) {
        (true, true) => lower.midpoint(upper),
        (true, false) => lower,
        _ => upper,
    }
}

#[cfg(test)]
mod tests {
    use deltafl::exchange::Evaluation;
    use deltafl::training::RoundRecord;

    use super::*;

    /// Returns the lines of two tracks at a version: the errors of a cohort, a tenth lower for the
    /// second track.
    fn lines(seed: u64, version: u64, errors: &[f64]) -> Vec<RoundLine> {
        let of_track = |track: usize| {
            let asked = evaluation::Measure::of_task(Task::Classes);
            let mut sum = vec![0; evaluation::answer_len(&asked)];
            for &error in errors {
                let device = Evaluation::of_primary(2.0 * error, error - 0.1 * track as f64);
                evaluation::answer(&asked, Task::Classes, &device, &mut sum);
            }
            let record = RoundRecord {
                seed,
                track,
                name: format!("track {track}"),
                round: version,
                eta: None,
                eta_age: None,
                loss: None,
                cohort: errors.len() as u64,
                dropped: 0,
                tail: 1,
                tail_weight: 1.0,
                refused: 0,
                sums: 1,
                messages: 0,
                bytes_up: 0,
                bytes_down: 0,
                evaluations: CohortEvaluation::new(version, Task::Classes, &sum).into_iter().collect(),
                privacy: None,
            };
            RoundLine { record, seconds: 0.0 }
        };
        (0..2).map(of_track).collect()
    }

    #[test]
    fn values_are_within_the_bounds_of_the_cohorts() {
        let lines = [lines(1, 0, &[0.905, 0.805]), lines(1, 4, &[0.305, 0.505, 0.405])].concat();
        let told = read(&lines, 2).unwrap();
        assert_eq!((told.rounds.as_slice(), told.cohorts, told.even), (&[0, 4][..], Some((2, 3)), true));
        let keys: Vec<String> = told.measured.iter().map(|measured| measured.measure.key()).collect();
        assert_eq!(keys, ["test_error", "test_loss"]);
        let last = told.measured[0].last(1);
        let FiguresBetween { lower, upper } = last.between[0];
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(close(lower.mean, 0.30) && close(upper.mean, 0.31), "{lower:?} {upper:?}");
        assert!(close(last.figures[0].mean, 0.305), "{:?}", last.figures);
    }

    #[test]
    fn only_versions_reached_by_every_seed_are_shown() {
        let one = lines(1, 0, &[0.5]);
        let all = [one.clone(), lines(1, 4, &[0.4]), lines(2, 0, &[0.6])].concat();
        let told = read(&all, 2).unwrap();
        assert_eq!(
            (told.rounds.as_slice(), told.seeds.as_slice(), told.even),
            (&[0][..], &[1, 2][..], false)
        );
        assert!(read(&one[..1], 2).is_none(), "only one of two tracks");
        let reversed: Vec<RoundLine> = lines(1, 4, &[0.4]).into_iter().rev().collect();
        assert_eq!(read(&reversed, 2).unwrap().rounds, [4], "tracks that take turns report in any order");
        assert!(read(&[], 2).is_none());
    }
}
