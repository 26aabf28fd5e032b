//! The experiment that the methods of a field share: data, splits, model, cohorts and local work.

use std::num::NonZeroUsize;
use std::path::Path;

use deltafl::algorithm::FED_AVG;
use deltafl::data::synthetic::{Fraction, Spec};
use deltafl::data::{DeviceSplit, InputKind, WithinSplit};
use deltafl_data::experiment::{AlgorithmSection, Experiment, SplitSection};
use toml_edit::{InlineTable, Value};

use super::FieldError;
use crate::experiment_file;

/// The share of the train devices that is held out while methods are tuned.
const HELD_OUT: f64 = 0.25;

/// The largest number of devices of a split that is evaluated while methods are tuned.
const TUNING_SAMPLE: NonZeroUsize = NonZeroUsize::new(64).unwrap();

/// The defaults for a kind of input.
struct Usual {
    model: &'static str,
    normalise: &'static str,
    learning_rate: f64,
    /// Whether the model has an intercept; `None` if it has no such option.
    intercept: Option<bool>,
}

impl Usual {
    fn for_input(kind: InputKind, is_table: bool) -> Self {
        let usual =
            |model, normalise, learning_rate, intercept| Self { model, normalise, learning_rate, intercept };
        match kind {
            InputKind::Bytes { .. } => usual("linear", "mean-ratio", 1.0, Some(false)),
            InputKind::Dense { .. } if is_table => usual("linear", "standard", 0.1, Some(true)),
            InputKind::Dense { .. } => usual("linear", "none", 0.1, Some(false)),
            InputKind::Tokens { .. } => usual("lstm", "none", 1.0, None),
            InputKind::Windows { .. } => usual("gru", "none", 0.1, None),
        }
    }
}

/// Returns the shared experiment. Its only algorithm is FedAvg.
///
/// `federation` is a federation folder, the name of a synthetic federation, an inline table such as
/// `{ kind = "glyphs", devices = 40 }`, or an experiment file whose algorithms are replaced.
pub(super) fn experiment(
    federation: &str,
    model: Option<&str>,
    overrides: &[String],
) -> Result<Experiment, FieldError> {
    let path = Path::new(federation);
    let is_file = path.extension().is_some_and(|extension| extension == "toml");
    let text = if is_file { experiment_file::text(path)? } else { template(federation)? };
    let model = model.map(|kind| format!("model.kind={kind}"));
    let overrides: Vec<String> = model.into_iter().chain(overrides.iter().cloned()).collect();
    let experiment = experiment_file::parse(path, &text, &overrides)?;
    let split = experiment.data().split.clone().unwrap_or(SplitSection::Devices(DeviceSplit::default()));
    let fed_avg = AlgorithmSection::new(&FED_AVG, &[], None).expect("FedAvg needs no option");
    let experiment = experiment.with_resolved(None).with_schedule(None).with_split(Some(split));
    Ok(experiment.with_algorithms(vec![fed_avg]).expect("FedAvg sends only w"))
}

/// Returns the text of the default experiment for a federation.
fn template(federation: &str) -> Result<String, FieldError> {
    // The devices of synthetic(α, β) have different models, so a model for unseen devices does not
    // exist.
    let (mut split, within) = ("{ train = 0.5 }", "{ within = { train = 0.8 } }");
    let mut is_table = false;
    let (source, kind, cohort) = match synthetic(federation) {
        Some(source) => {
            let table = source.parse::<Value>().ok();
            let kind = table.as_ref().and_then(|table| table.as_inline_table()?.get("kind")?.as_str());
            let (kind, cohort) = match kind {
                Some("glyphs") => (InputKind::Bytes { dim: 1 }, 30),
                Some("roles") => (InputKind::Windows { len: 1, alphabet: 1 }, 10),
                Some("tweets") => (InputKind::Tokens { len: 1, vocabulary: 1 }, 20),
                _ => {
                    split = within;
                    (InputKind::Dense { dim: 1 }, 10)
                }
            };
            (source, kind, cohort)
        }
        None if Path::new(federation).is_dir() => {
            let opened = deltafl_data::open(federation);
            let opened = opened.map_err(|source| FieldError::Open { path: federation.into(), source })?;
            let source = Value::from(federation).to_string();
            is_table = opened.coding().is_some();
            (source, opened.kind(), (opened.len() / 8).clamp(1, 30))
        }
        None => return Err(FieldError::UnknownFederation { name: federation.to_owned() }),
    };
    let Usual { model, normalise, learning_rate, intercept } = Usual::for_input(kind, is_table);
    let intercept = intercept.map_or_else(String::new, |given| format!("intercept = {given}\n"));
    let name = folder_name(federation);
    Ok(format!(
        "name = {}\nseeds = [1]\nrounds = 30\ncohort = {cohort}\nevaluate_every = 6\n\n[data]\nsource = {source}\n\
         normalise = \"{normalise}\"\nsplit = {split}\n\n[model]\nkind = \"{model}\"\n{intercept}\n[local]\nepochs = 1\n\
         batch = 10\nlearning_rate = {learning_rate:?}\ndecay = {{ factor = 0.5, every = 10 }}\n\n\
         [[algorithm]]\nkind = \"fedavg\"\n",
        Value::from(name)
    ))
}

/// Returns the inline table of a synthetic federation: `glyphs`, `synthetic(1,1)`, or the table
/// itself.
fn synthetic(federation: &str) -> Option<String> {
    if federation.trim_start().starts_with('{') {
        return Some(federation.to_owned());
    }
    let mut table = InlineTable::new();
    if let Some(arguments) = federation.strip_prefix("synthetic(").and_then(|rest| rest.strip_suffix(')')) {
        let (alpha, beta) = arguments.split_once(',')?;
        table.insert("kind", "logistic".into());
        table.insert("alpha", alpha.trim().parse::<f64>().ok()?.into());
        table.insert("beta", beta.trim().parse::<f64>().ok()?.into());
    } else {
        table.insert("kind", (*Spec::KINDS.iter().find(|kind| **kind == federation)?).into());
    }
    Some(table.to_string().trim().to_owned())
}

/// Returns the text as the name of a folder: `synthetic(1,1)` becomes `synthetic-1-1`.
fn folder_name(federation: &str) -> String {
    let last = federation.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let words = last.split(|c: char| !c.is_alphanumeric() && c != '-' && c != '_' && c != '.');
    let name = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-");
    let name = name.trim_start_matches('.');
    if name.is_empty() { "field".to_owned() } else { name.to_owned() }
}

/// Returns the experiment on a split of the devices, for the final runs.
pub(super) fn on_split(base: &Experiment, seed: u64) -> Experiment {
    let split = base.data().split.clone().map(|split| match split {
        SplitSection::Devices(split) => SplitSection::Devices(DeviceSplit { seed, validation: 0.0, ..split }),
        SplitSection::Within(split) => SplitSection::Within(WithinSplit { seed, ..split }),
        given @ SplitSection::Given(_) => given,
    });
    base.clone().with_split(split)
}

/// Returns the experiment on which methods are tuned: part of the train devices of the first split
/// is held out.
///
/// # Errors
///
/// Fails if the devices are split by lists without validation devices.
pub(super) fn for_tuning(base: &Experiment, seed: u64) -> Result<Experiment, FieldError> {
    let experiment = on_split(base, seed);
    let split = match experiment.data().split.clone() {
        Some(SplitSection::Devices(split)) => {
            SplitSection::Devices(DeviceSplit { validation: HELD_OUT, ..split })
        }
        Some(SplitSection::Within(mut split)) => {
            let held_out = HELD_OUT * split.train.get();
            split.validation = Fraction::new(held_out).unwrap_or(Fraction::NONE);
            split.train = Fraction::new(split.train.get() - held_out).unwrap_or(split.train);
            SplitSection::Within(split)
        }
        Some(SplitSection::Given(given)) if !given.validation.is_empty() => SplitSection::Given(given),
        _ => return Err(FieldError::NoValidation),
    };
    let sample = experiment.data().evaluate_sample.unwrap_or(TUNING_SAMPLE).min(TUNING_SAMPLE);
    Ok(experiment.with_split(Some(split)).with_evaluation_sample(Some(sample)))
}

#[cfg(test)]
mod tests {
    use deltafl::data::Split;

    use super::*;

    #[test]
    fn synthetic_federations_are_known_by_name_and_by_arguments() {
        assert_eq!(synthetic("glyphs").unwrap(), "{ kind = \"glyphs\" }");
        assert_eq!(
            synthetic("synthetic(1, 0.5)").unwrap(),
            "{ kind = \"logistic\", alpha = 1.0, beta = 0.5 }"
        );
        assert!(synthetic("runes").is_none() && synthetic("synthetic(1)").is_none());
    }

    #[test]
    fn tuning_holds_out_train_devices_and_the_final_runs_use_all_of_them() {
        let base = experiment("glyphs", None, &["data.source.devices=40".to_owned()]).unwrap();
        let count = |experiment: &Experiment, split| experiment.data().load().unwrap().split(split).len();
        let [tuned, trained] = [for_tuning(&base, 1).unwrap(), on_split(&base, 1)];
        assert_eq!(
            [Split::Train, Split::Validation, Split::Test].map(|split| count(&tuned, split)),
            [15, 5, 20]
        );
        assert_eq!(
            [Split::Train, Split::Validation, Split::Test].map(|split| count(&trained, split)),
            [20, 0, 20]
        );
        let test = |experiment: &Experiment| {
            let federation = experiment.data().load().unwrap();
            federation.split(Split::Test).into_iter().map(|k| federation.id(k).to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(test(&tuned), test(&trained), "no test device is used to tune");
        assert_ne!(test(&on_split(&base, 2)), test(&trained));
    }

    #[test]
    fn devices_with_models_of_their_own_are_split_by_examples() {
        let base = experiment("synthetic(1,1)", None, &["data.source.devices=6".to_owned()]).unwrap();
        assert_eq!(base.name(), "synthetic-1-1");
        let tuned = for_tuning(&base, 1).unwrap().data().load().unwrap();
        let counts = [Split::Train, Split::Validation, Split::Test].map(|split| tuned.split(split).len());
        assert_eq!(counts, [6, 6, 6], "every device trains, and holds out examples");
    }
}
