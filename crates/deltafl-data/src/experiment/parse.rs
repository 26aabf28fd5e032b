//! From the text of an experiment file to an [`Experiment`]: every error points at its place.

use std::num::{NonZeroU64, NonZeroUsize};
use std::ops::Range;
use std::str::FromStr;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer, ValueDeserializer};

use super::{
    AlgorithmSection, DataSection, Experiment, LocalSection, ModelSection, NonNegative, OneOrMore, Resolved,
    SecureAggregation, name, renamed,
};
use deltafl::algorithm::{self, ALGORITHMS, Algorithm, InvalidOption, OptionSpec, Value};
use deltafl::cohort::Availability;
use deltafl::terms::{Clip, Weights};
use deltafl::training::Plan;

/// What is wrong with an experiment file, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InvalidExperiment {
    /// What is wrong.
    pub message: String,
    /// The bytes of the file that are wrong; `None` when something is missing from the whole.
    pub span: Option<Range<usize>>,
}

impl InvalidExperiment {
    pub(super) fn new(message: impl Into<String>, span: Range<usize>) -> Self {
        Self { message: message.into(), span: Some(span) }
    }

    /// The line of the file, counted from 1.
    pub fn line(&self, text: &str) -> usize {
        let start = self.span.as_ref().map_or(0, |span| span.start.min(text.len()));
        1 + text.as_bytes()[..start].iter().filter(|byte| **byte == b'\n').count()
    }
}

impl From<toml::de::Error> for InvalidExperiment {
    fn from(error: toml::de::Error) -> Self {
        Self { message: error.message().trim().to_owned(), span: error.span() }
    }
}

/// The sections of a file, but for the algorithms.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sections {
    #[serde(deserialize_with = "name::checked")]
    name: String,
    #[serde(default = "first_seed")]
    seeds: OneOrMore<u64>,
    rounds: NonZeroU64,
    cohort: NonZeroUsize,
    #[serde(default)]
    with_replacement: bool,
    #[serde(default = "evaluate_every")]
    evaluate_every: NonZeroU64,
    weights: Option<Weights>,
    clip: Option<Clip>,
    #[serde(default)]
    secagg: SecureAggregation,
    data: DataSection,
    model: ModelSection,
    local: LocalSection,
    #[serde(default)]
    availability: Availability,
    resolved: Option<Resolved>,
}

impl FromStr for Experiment {
    type Err = InvalidExperiment;

    fn from_str(text: &str) -> Result<Self, InvalidExperiment> {
        Self::parse(text)
    }
}

impl Experiment {
    /// Reads an experiment file.
    pub fn parse(text: &str) -> Result<Self, InvalidExperiment> {
        let mut table = DeTable::parse(text)?;
        renamed::refuse_old_keys(table.get_ref())?;
        let whole = table.span();
        let sections = table.get_mut().remove("algorithm");
        let places = Places::of(table.get_ref());
        let read = Sections::deserialize(Deserializer::from(table))?;
        if read.local.epochs.is_some() == read.local.steps.is_some() {
            let message = match read.local.epochs {
                Some(_) => "give either epochs or steps, not both",
                None => "give either epochs or steps",
            };
            return Err(InvalidExperiment::new(message, places.at("local", "steps")));
        }
        read.model
            .validate()
            .map_err(|e| InvalidExperiment::new(e.to_string(), places.at("model", e.option)))?;
        let algorithm = match sections {
            Some(sections) => algorithms(sections)?,
            None => {
                let message = "there is no [[algorithm]]: an experiment trains at least one";
                return Err(InvalidExperiment::new(message, whole.end..whole.end));
            }
        };
        let Sections {
            name, seeds, rounds, cohort, with_replacement, evaluate_every, weights, secagg, ..
        } = read;
        let Sections { clip, data, model, local, availability, resolved, .. } = read;
        let mut experiment = Self {
            name,
            seeds,
            rounds,
            cohort,
            with_replacement,
            evaluate_every,
            weights: Weights::default(),
            clip,
            secagg,
            data,
            model,
            local,
            availability,
            algorithm,
            resolved,
        };
        experiment.weights = weights.unwrap_or_else(|| experiment.usual_weights());
        if clip.is_some()
            && let Some(track) = experiment.tracks().iter().find(|track| track.correction.is_some())
        {
            let message = format!(
                "{} sends more than w, and a bound on the length of updates says nothing of it: leave clip out",
                track.label.algorithm
            );
            return Err(InvalidExperiment::new(message, places.at("clip", "")));
        }
        Ok(experiment)
    }
}

/// Where sections and their keys stand.
struct Places(Vec<(String, Range<usize>, Vec<NamedPlace>)>);

/// A key and where it stands.
type NamedPlace = (String, Range<usize>);

impl Places {
    fn of(table: &DeTable<'_>) -> Self {
        let keys = |value: &DeValue<'_>| -> Vec<(String, Range<usize>)> {
            let table = value.as_table().into_iter().flat_map(|table| table.iter());
            table.map(|(key, _)| (key.get_ref().to_string(), key.span())).collect()
        };
        let section = |(key, value): (&Spanned<toml::de::DeString<'_>>, &Spanned<DeValue<'_>>)| {
            (key.get_ref().to_string(), key.span(), keys(value.get_ref()))
        };
        Self(table.iter().map(section).collect())
    }

    /// The key of a section, or the section where it has no such key.
    fn at(&self, section: &str, key: &str) -> Range<usize> {
        let Some((_, span, keys)) = self.0.iter().find(|(name, ..)| name == section) else { return 0..0 };
        keys.iter().find(|(name, _)| name == key).map_or_else(|| span.clone(), |(_, span)| span.clone())
    }
}

/// The `[[algorithm]]` sections.
fn algorithms(sections: Spanned<DeValue<'_>>) -> Result<Vec<AlgorithmSection>, InvalidExperiment> {
    let span = sections.span();
    let DeValue::Array(sections) = sections.into_inner() else {
        return Err(InvalidExperiment::new("expected [[algorithm]] tables", span));
    };
    if sections.is_empty() {
        return Err(InvalidExperiment::new("an experiment trains at least one algorithm", span));
    }
    sections.into_iter().map(section).collect()
}

fn section(section: Spanned<DeValue<'_>>) -> Result<AlgorithmSection, InvalidExperiment> {
    let span = section.span();
    let DeValue::Table(mut table) = section.into_inner() else {
        return Err(InvalidExperiment::new("expected a table such as { kind = \"fedavg\" }", span));
    };
    let algorithm = kind(table.remove("kind"), &span)?;
    let l2 =
        table.remove("l2").map(|l2| NonNegative::deserialize(ValueDeserializer::from(l2))).transpose()?;
    let mut given: Vec<(&str, Range<usize>, Vec<Value>)> = Vec::new();
    for (key, value) in table {
        let spec = algorithm.options.iter().find(|spec| spec.name == key.get_ref().as_ref());
        let spec =
            spec.ok_or_else(|| InvalidExperiment::new(foreign(key.get_ref(), algorithm), key.span()))?;
        let at = value.span();
        given.push((spec.name, at, values(spec, value)?));
    }
    let named: Vec<(&str, Vec<Value>)> = given.iter().map(|(name, _, v)| (*name, v.clone())).collect();
    AlgorithmSection::new(algorithm, &named, l2).map_err(|InvalidOption { option, reason }| {
        let place = given.iter().find(|(name, ..)| *name == option).map(|(_, at, _)| at.clone());
        InvalidExperiment::new(format!("{option}: {reason}"), place.unwrap_or_else(|| first_line(&span)))
    })
}

/// The span of a table, without what stands in it.
fn first_line(span: &Range<usize>) -> Range<usize> {
    span.clone()
}

fn kind(
    value: Option<Spanned<DeValue<'_>>>,
    section: &Range<usize>,
) -> Result<&'static Algorithm, InvalidExperiment> {
    let known: Vec<&str> = ALGORITHMS.iter().map(|algorithm| algorithm.kind).collect();
    let Some(value) = value else {
        let message = format!("an algorithm needs its kind: {}", known.join(", "));
        return Err(InvalidExperiment::new(message, first_line(section)));
    };
    let found = value.get_ref().as_str().and_then(algorithm::find);
    found.ok_or_else(|| {
        let message = format!("unknown algorithm: expected one of {}", known.join(", "));
        InvalidExperiment::new(message, value.span())
    })
}

fn foreign(key: &str, algorithm: &Algorithm) -> String {
    let names = ["kind"].into_iter().chain(algorithm.options.iter().map(|spec| spec.name)).chain(["l2"]);
    let options: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    let owner = ALGORITHMS.iter().find(|other| other.options.iter().any(|spec| spec.name == key));
    let of = owner.map_or(String::new(), |owner| format!(", which is an option of {}", owner.kind));
    format!("{} has no option {key}{of}; expected one of {}", algorithm.kind, options.join(", "))
}

/// The values of an option: a list where it makes levels.
fn values(spec: &OptionSpec, value: Spanned<DeValue<'_>>) -> Result<Vec<Value>, InvalidExperiment> {
    let span = value.span();
    match value.into_inner() {
        DeValue::Array(values) if spec.levels && !values.is_empty() => {
            values.into_iter().map(|value| one_value(spec, value.span(), value.get_ref())).collect()
        }
        value => Ok(vec![one_value(spec, span, &value)?]),
    }
}

fn one_value(spec: &OptionSpec, span: Range<usize>, value: &DeValue<'_>) -> Result<Value, InvalidExperiment> {
    let (checked, shown) = match value {
        DeValue::Float(real) => {
            (real.as_str().parse().ok().and_then(|r| spec.real(r)), real.as_str().to_owned())
        }
        DeValue::Integer(whole) => {
            let number = i64::from_str_radix(whole.as_str(), whole.radix()).ok();
            (number.and_then(|number| spec.real(number as f64)), whole.as_str().to_owned())
        }
        DeValue::String(word) => (spec.word(word), format!("{word:?}")),
        other => (None, other.type_str().to_owned()),
    };
    let message = || format!("{}: expected {}, got {shown}", spec.name, spec.kind);
    checked.ok_or_else(|| InvalidExperiment::new(message(), span))
}

fn first_seed() -> OneOrMore<u64> {
    OneOrMore::from(1)
}

fn evaluate_every() -> NonZeroU64 {
    NonZeroU64::new(Plan::EVALUATE_EVERY).unwrap_or(NonZeroU64::MIN)
}

#[cfg(test)]
mod tests {
    use deltafl::terms::Terms;

    use super::*;

    const HEAD: &str = "name = 'a'\nrounds = 3\ncohort = 5\ndata = { source = 'd' }\n[model]\nkind = 'linear'\n\
                        [local]\nepochs = 1\nbatch = 10\nlearning_rate = 0.5\n";

    fn error(text: &str) -> (usize, String) {
        let error = Experiment::parse(text).unwrap_err();
        (error.line(text), error.message)
    }

    fn with(algorithms: &str) -> String {
        format!("{HEAD}{algorithms}")
    }

    #[test]
    fn an_experiment_written_out_is_read_back() {
        let text = with(
            "[[algorithm]]\nkind = 'fedavg'\nl2 = 1e-3\n[[algorithm]]\nkind = 'delta-fl'\ntheta = [0.5, 0.1]\n",
        );
        let experiment = Experiment::parse(&text).unwrap();
        assert_eq!(Experiment::parse(&experiment.to_toml()).unwrap(), experiment);
        let names: Vec<String> = experiment.labels().into_iter().map(|label| label.name).collect();
        assert_eq!(names, ["FedAvg", "Δ-FL θ=0.5", "Δ-FL θ=0.1"]);
    }

    #[test]
    fn devices_count_with_their_examples_unless_the_server_sees_sums_alone() {
        let terms = |text: &str| Experiment::parse(text).unwrap().terms();
        let tail = |quantile: &str| {
            with(&format!("[[algorithm]]\nkind = 'delta-fl'\ntheta = 0.5\nquantile = '{quantile}'\n"))
        };
        assert_eq!(terms(&tail("open")), Terms::OPEN);
        assert_eq!(terms(&tail("histogram")), Terms::PRIVATE);
        let fed_avg = Terms { apart: true, ..Terms::OPEN };
        assert_eq!(terms(&with("[[algorithm]]\nkind = 'fedavg'\n")), fed_avg);
        let exact = format!("weights = 'exact'\n{}", tail("histogram"));
        assert_eq!(terms(&exact), Terms { weights: Weights::Exact, ..Terms::PRIVATE });
        assert_eq!(error(&exact.replace("exact", "round")).0, 1);
        let both = format!("{}{}", tail("histogram"), "[[algorithm]]\nkind = 'delta-fl'\ntheta = 0.1\n");
        assert_eq!(terms(&both), Terms::OPEN, "a server that sees losses for one track sees them");
    }

    #[test]
    fn a_bound_on_updates_is_part_of_the_terms_and_no_bound_of_what_is_sent_beside_w() {
        let fed_avg = format!("clip = 0.5\n{}", with("[[algorithm]]\nkind = 'fedavg'\n"));
        let experiment = Experiment::parse(&fed_avg).unwrap();
        assert_eq!(experiment.terms().clip.map(Clip::get), Some(0.5));
        assert_eq!(Experiment::parse(&experiment.to_toml()).unwrap(), experiment);
        assert_eq!(error(&fed_avg.replace("0.5", "0")).0, 1);
        let (line, message) = error(&fed_avg.replace("fedavg", "scaffold"));
        assert!(line == 1 && message.starts_with("scaffold sends more than w"), "{line} {message}");
    }

    #[test]
    fn what_is_wrong_is_pointed_at() {
        assert_eq!(error(HEAD).1, "there is no [[algorithm]]: an experiment trains at least one");
        let (line, message) = error(&with("[[algorithm]]\nkind = 'fedavg'\nnu = 0.5\n"));
        assert_eq!(line, 13);
        assert!(message.starts_with("fedavg has no option nu, which is an option of delta-fl"), "{message}");
        let (line, message) = error(&with("[[algorithm]]\nkind = 'delta-fl'\ntheta = [0.5, 1.4]\n"));
        assert_eq!((line, message.as_str()), (13, "theta: expected a number in (0, 1], got 1.4"));
        let (_, message) = error(&with("[[algorithm]]\nkind = 'delta-fl'\n"));
        assert_eq!(message, "theta: delta-fl needs it: a number in (0, 1]");
        let (line, message) = error(&with("[[algorithm]]\nkind = 'sgd'\n"));
        assert_eq!((line, message.starts_with("unknown algorithm")), (12, true));
        let smooth = "[[algorithm]]\nkind = 'delta-fl'\ntheta = 0.5\nquantile = 'mm'\nnu = 0.1\n";
        assert_eq!(error(&with(smooth)).0, 15);
    }

    #[test]
    fn either_epochs_or_steps() {
        let algorithm = "[[algorithm]]\nkind = 'fedavg'\n";
        let both = with(algorithm).replace("epochs = 1", "epochs = 1\nsteps = 2");
        assert_eq!(error(&both), (9, "give either epochs or steps, not both".to_owned()));
        let neither = with(algorithm).replace("epochs = 1\n", "");
        assert_eq!(error(&neither), (7, "give either epochs or steps".to_owned()));
    }

    #[test]
    fn an_option_of_another_model_is_refused_at_its_line() {
        let text = with("[[algorithm]]\nkind = 'fedavg'\n").replace("'linear'", "'linear'\nhidden = 3");
        assert_eq!(error(&text).0, 7);
    }

    #[test]
    fn who_is_away_has_checked_numbers() {
        let with = |availability: &str| {
            format!("{HEAD}[availability]\n{availability}\n[[algorithm]]\nkind = 'fedavg'\n")
        };
        for wrong in [
            "drop_out = 1.5",
            "drop_out = -0.5",
            "drop_out = nan",
            "diurnal = { period = 0, low = 0.5 }",
            "diurnal = { period = 10, low = 7 }",
        ] {
            assert_eq!(error(&with(wrong)).0, 12, "{wrong}");
        }
        Experiment::parse(&with("drop_out = 0.5\ndiurnal = { period = 10, low = 0.2 }")).unwrap();
    }
}
