//! The error of each class, if classes have names: the share of its examples that is predicted as
//! another class.
//!
//! The examples of all devices of a split are regrouped into a federation with one device per
//! class. This federation is evaluated like any other. Classes without names are omitted: their
//! numbers carry little information, and there may be thousands of them.

use std::num::NonZeroUsize;

use deltafl::data::{
    DeviceExamples, Federation, FederationBuilder, FederationIndex, InputKind, InvalidDevice, Split,
    TargetKind,
};
use deltafl::exchange::{Exchange as _, ExchangeError, Simulation, SplitEvaluation};
use deltafl::metrics::OverSeeds;
use deltafl::params::Params;
use deltafl::task::{Task, Unit};
use deltafl::trainer::LocalTrainer;
use deltafl_data::run_folder::{ClassFigures, Classes};

use crate::text_table;

/// The reason why classes cannot be evaluated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ByClassError {
    /// The examples of a class do not form a valid device.
    #[error(transparent)]
    Examples(#[from] InvalidDevice),
    /// The devices cannot be computed.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
}

/// The largest number of classes that are reported.
const CLASSES: usize = 100;

/// Returns the error of each class of the test devices for some tracks, over seeds. Uses the train
/// devices if there are no test devices. Returns `None` if classes have no names.
///
/// # Errors
///
/// Fails if the examples of a class do not form a device, or if an evaluation fails.
pub fn evaluate(
    trainer: &dyn LocalTrainer,
    federation: &Federation,
    seeds: &[Vec<&Params>],
    threads: Option<NonZeroUsize>,
) -> Result<Option<Classes>, ByClassError> {
    let split = if federation.split(Split::Test).is_empty() { Split::Train } else { Split::Test };
    let Some(by_class) = by_class(federation, split)? else { return Ok(None) };
    if by_class.is_empty() || trainer.task().primary().unit != Unit::Share {
        return Ok(None);
    }
    let mut exchange = Simulation::with_threads(trainer, &by_class, threads)?;
    let mut evaluations = Vec::new();
    for params in seeds {
        evaluations.extend(exchange.evaluate(Split::Train, params)?);
    }
    Ok(figures(split, &evaluations))
}

/// Regroups the examples of a split into one device per class. Returns `None` if classes have no
/// names.
fn by_class(federation: &Federation, split: Split) -> Result<Option<Federation>, ByClassError> {
    let TargetKind::Classes(classes) = federation.targets() else { return Ok(None) };
    if federation.class_names().is_empty() || classes > CLASSES {
        return Ok(None);
    }
    let mut builder = FederationBuilder::new(federation.name(), federation.kind(), classes);
    for class in 0..classes as u32 {
        let mut rows = ClassExamples::default();
        for device in federation.split(split) {
            rows.take(federation, device, class);
        }
        if rows.count > 0 {
            let labels = vec![class; rows.count];
            let name = federation.class_name(class);
            builder.push(&name, Split::Train, rows.lent(federation.kind()), &labels)?;
        }
    }
    Ok(Some(builder.build().normalised_as(federation)))
}

/// Examples under construction.
#[derive(Default)]
struct ClassExamples {
    count: usize,
    bytes: Vec<u8>,
    dense: Vec<f32>,
    tokens: Vec<u32>,
}

impl ClassExamples {
    /// Adds the examples of a class from one device.
    fn take(&mut self, federation: &Federation, device: FederationIndex, class: u32) {
        let examples = federation.examples(device);
        let of_class = (0..examples.len()).filter(|&i| examples.label(i) == class);
        for i in of_class {
            match (federation.stored_inputs(device), federation.kind()) {
                (DeviceExamples::Bytes(values), InputKind::Bytes { dim }) => {
                    self.bytes.extend_from_slice(&values[i * dim..(i + 1) * dim]);
                }
                (DeviceExamples::Dense(values), InputKind::Dense { dim }) => {
                    self.dense.extend_from_slice(&values[i * dim..(i + 1) * dim]);
                }
                (DeviceExamples::Tokens(ids), InputKind::Tokens { len, .. }) => {
                    self.tokens.extend_from_slice(&ids[i * len..(i + 1) * len]);
                }
                // Symbols of a text have no names.
                _ => return,
            }
            self.count += 1;
        }
    }

    fn lent(&self, kind: InputKind) -> DeviceExamples<'_> {
        match kind {
            InputKind::Bytes { .. } => DeviceExamples::Bytes(&self.bytes),
            InputKind::Dense { .. } => DeviceExamples::Dense(&self.dense),
            InputKind::Tokens { .. } | InputKind::Windows { .. } => DeviceExamples::Tokens(&self.tokens),
        }
    }
}

/// Computes mean and deviation over seeds for each class.
fn figures(split: Split, seeds: &[SplitEvaluation]) -> Option<Classes> {
    let first = seeds.first()?;
    let errors = |class: usize| {
        let of_track = |track: usize| {
            let values: Vec<f64> = seeds.iter().map(|seed| seed.tracks[track][class].primary()).collect();
            OverSeeds::new(&values)
        };
        (0..first.tracks.len()).map(of_track).collect::<Option<Vec<_>>>()
    };
    let class = |(c, device): (usize, &deltafl::exchange::EvaluatedDevice)| {
        Some(ClassFigures { name: device.id.clone(), examples: device.examples, errors: errors(c)? })
    };
    let classes = first.devices.iter().enumerate().map(class).collect::<Option<Vec<_>>>()?;
    Some(Classes { split, classes })
}

/// Renders a table for a terminal: a row per class, a column per track.
pub fn rendered(classes: &Classes, tracks: &[String]) -> String {
    let metric = Task::Classes.primary();
    let header = [String::new(), "examples".to_owned()].into_iter().chain(tracks.iter().cloned());
    let mut rows: Vec<Vec<String>> = vec![header.collect()];
    for class in &classes.classes {
        let errors = class.errors.iter().map(|&error| text_table::formatted(metric, error, 2));
        rows.push([class.name.clone(), class.examples.to_string()].into_iter().chain(errors).collect());
    }
    let title =
        format!("By class: the share of its {} examples taken for another, in %", classes.split.name());
    format!("\n{title}\n\n{}", text_table::aligned(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_contains_its_examples_from_every_device_of_the_split() {
        let mut builder = FederationBuilder::new("x", InputKind::Dense { dim: 1 }, 3);
        let mut push = |id: &str, split, values: &[f32], labels: &[u32]| {
            builder.push(id, split, DeviceExamples::Dense(values), labels).unwrap();
        };
        push("a", Split::Test, &[1.0, 2.0, 3.0], &[0, 2, 0]);
        push("b", Split::Test, &[4.0], &[2]);
        push("c", Split::Train, &[5.0], &[1]);
        builder.class_names(["ill", "lost", "well"].map(str::to_owned).to_vec());
        let federation = builder.build();
        let by_class = by_class(&federation, Split::Test).unwrap().unwrap();
        let told: Vec<(&str, u64)> =
            by_class.devices().map(|class| (by_class.id(class), by_class.example_count(class))).collect();
        assert_eq!(told, [("ill", 2), ("well", 2)], "no example is lost");
        assert!(matches!(by_class.stored_inputs(FederationIndex(1)), DeviceExamples::Dense([2.0, 4.0])));
    }
}
