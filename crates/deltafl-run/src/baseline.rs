//! The best constant prediction: the most frequent class, or the mean of the targets.

use deltafl::data::{Examples, Federation, FederationIndex, Split, TargetKind};
use deltafl::task::Metric;
use deltafl_data::run_folder::{Baseline, Summary};

use crate::text_table::{decimals, number};

/// Returns the error of the best constant prediction of the train devices on the evaluated test
/// devices, or on the evaluated train devices if there are no test devices.
pub fn baseline(federation: &Federation) -> Option<Baseline> {
    let train = federation.split(Split::Train);
    let test = federation.evaluated(Split::Test);
    let reported = if test.is_empty() { federation.evaluated(Split::Train) } else { test };
    let on_devices = |error: &dyn Fn(&Examples<'_>) -> f64| -> Vec<f64> {
        reported.iter().map(|&k: &FederationIndex| error(&federation.examples(k))).collect()
    };
    match federation.targets() {
        TargetKind::Classes(classes) => {
            let mut counts = vec![0u64; classes];
            for &k in &train {
                let examples = federation.examples(k);
                (0..examples.len()).for_each(|i| counts[examples.label(i) as usize] += 1);
            }
            let most = counts.iter().copied().max()?;
            let class = counts.iter().position(|&count| count == most)? as u32;
            let error = |examples: &Examples<'_>| {
                let wrong = (0..examples.len()).filter(|&i| examples.label(i) != class).count();
                wrong as f64 / examples.len().max(1) as f64
            };
            Baseline::new(format!("always {}", federation.class_name(class)), &on_devices(&error))
        }
        TargetKind::Values => {
            let (mut sum, mut count) = (0.0, 0.0);
            for &k in &train {
                let examples = federation.examples(k);
                (0..examples.len()).for_each(|i| sum += f64::from(examples.value(i)));
                count += examples.len() as f64;
            }
            let mean = sum / f64::max(count, 1.0);
            let error = |examples: &Examples<'_>| {
                let squares = (0..examples.len()).map(|i| (f64::from(examples.value(i)) - mean).powi(2));
                (squares.sum::<f64>() / examples.len().max(1) as f64).sqrt()
            };
            Baseline::new("always the mean".to_owned(), &on_devices(&error))
        }
    }
}

/// Returns a line for each track whose mean error is above that of the baseline.
pub fn worse_tracks(summary: &Summary) -> String {
    let Some(baseline) = &summary.baseline else { return String::new() };
    let metric: &Metric = summary.task.primary();
    let mut lines = String::new();
    for track in &summary.tracks {
        let Some(test) = track.test else { continue };
        let (own, constant) = (test.mean.mean, baseline.test.mean.mean);
        if own > constant || !own.is_finite() {
            let digits = decimals(metric, [constant]);
            let shown = |value: f64| number(metric.display_value(value), digits);
            lines.push_str(&format!(
                "{} is worse than the constant prediction \"{}\": {} {} on average, against {}. Try another learning \
                 rate, normalise = \"standard\" or intercept = true.\n",
                track.name,
                baseline.name,
                metric.title,
                shown(own),
                shown(constant)
            ));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use deltafl::data::{DeviceExamples, FederationBuilder, InputKind};

    use super::*;

    #[test]
    fn the_constant_is_that_of_the_train_devices() {
        let mut builder = FederationBuilder::new("t", InputKind::Dense { dim: 1 }, 3);
        let mut push = |id, split, labels: &[u32]| {
            let x = vec![0.0; labels.len()];
            builder.push(id, split, DeviceExamples::Dense(&x), labels).unwrap();
        };
        push("a", Split::Train, &[1, 1, 0]);
        push("b", Split::Test, &[0, 0, 0, 1]);
        push("c", Split::Test, &[1, 1, 1, 1]);
        let federation = builder.build();
        let found = baseline(&federation).unwrap();
        assert_eq!(found.name, "always 1");
        assert!((found.test.mean.mean - 0.375).abs() < 1e-12);
        let sample = federation.evaluating(NonZeroUsize::new(1));
        let device = sample.id(sample.evaluated(Split::Test)[0]);
        let expected = if device == "b" { 0.75 } else { 0.0 };
        assert!((baseline(&sample).unwrap().test.mean.mean - expected).abs() < 1e-12, "{device}");
        let mut builder = FederationBuilder::of_values("t", InputKind::Dense { dim: 1 });
        builder.push("a", Split::Train, DeviceExamples::Dense(&[0.0, 0.0]), &[1.0f32, 3.0]).unwrap();
        assert!((baseline(&builder.build()).unwrap().test.mean.mean - 1.0).abs() < 1e-12);
    }
}
