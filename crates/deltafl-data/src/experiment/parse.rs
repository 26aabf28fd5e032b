//! Parses experiment files. Every error has the place in the file.

mod invalid;
mod layers;
mod option_table;
use std::str::FromStr;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer, ValueDeserializer};

use super::{AlgorithmSection, Experiment, ExperimentFile, ExternalSection, ModelSection, renamed};
use deltafl::algorithm::ALGORITHMS;
use deltafl::model::MODELS;
use deltafl::model::stack::STACK;
use deltafl::options::OptionValue;
use deltafl::terms::TrackSchedule;
pub use invalid::InvalidExperiment;
pub use layers::layer_span;
use option_table::{Entry, OptionTable};

impl FromStr for Experiment {
    type Err = InvalidExperiment;

    fn from_str(text: &str) -> Result<Self, InvalidExperiment> {
        Self::parse(text)
    }
}

impl Experiment {
    /// Parses an experiment file.
    ///
    /// # Errors
    /// The text is not TOML, a key is unknown or missing, or a value is wrong. The error has the
    /// place.
    pub fn parse(text: &str) -> Result<Self, InvalidExperiment> {
        let mut table = DeTable::parse(text)?;
        renamed::refuse_old_keys(table.get_ref())?;
        let whole = table.span();
        let mut remove = |key: &str| table.get_mut().remove(key);
        let (algorithm_sections, model_section) = (remove("algorithm"), remove("model"));
        let key = |name: &str| table.get_ref().get_key_value(name).map(|(key, _)| key.span());
        let place = key("privacy").or_else(|| key("clip"));
        let mut file = ExperimentFile::deserialize(Deserializer::from(table))?;
        file.model = match model_section {
            Some(section) => model(section, file.resolved.is_some())?,
            None => return Err(InvalidExperiment::new("missing field `model`", whole)),
        };
        file.algorithm = match algorithm_sections {
            Some(sections) => algorithms(sections)?,
            None => {
                let message = "there is no [[algorithm]]: an experiment trains at least one";
                return Err(InvalidExperiment::new(message, whole.end..whole.end));
            }
        };
        let mut experiment = Self(file);
        if experiment.0.weights.is_none() {
            experiment.0.weights = Some(experiment.usual_weights());
        }
        // If η is found in secure sums, a simulation trains as a deployment does.
        if experiment.0.tracks.is_none() && (experiment.is_private() || experiment.privacy().is_some()) {
            experiment.0.tracks = Some(TrackSchedule::InTurn);
        }
        experiment.check_algorithms().map_err(|error| InvalidExperiment { span: place, ..error })?;
        Ok(experiment)
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
    sections.into_iter().map(algorithm).collect()
}

fn algorithm(mut section: Spanned<DeValue<'_>>) -> Result<AlgorithmSection, InvalidExperiment> {
    let external: Option<ExternalSection> = external(&mut section)?;
    let known: Vec<Entry> = ALGORITHMS.iter().map(|algorithm| (algorithm.kind, algorithm.options)).collect();
    let table = OptionTable::read(section, "algorithm", &known, &["l2"])?;
    let given: Vec<(&str, Vec<OptionValue>)> =
        table.given.iter().map(|(option, _, values)| (option.name, values.clone())).collect();
    let section = AlgorithmSection::new(ALGORITHMS[table.entry], &given, table.l2);
    Ok(section.map_err(|error| table.locate(error))?.replaced_by(external))
}

/// Removes the table `external` of a section, which describes a part of the caller's program.
fn external<'de, T: Deserialize<'de>>(
    section: &mut Spanned<DeValue<'de>>,
) -> Result<Option<T>, InvalidExperiment> {
    let table = match section.get_mut() {
        DeValue::Table(table) => table.remove("external"),
        _ => None,
    };
    Ok(table.map(|table| T::deserialize(ValueDeserializer::from(table))).transpose()?)
}

/// The `[model]` section. A run folder contains the values of all options that differ from a
/// serialised model, so that an option that it does not give has its default there.
fn model(mut section: Spanned<DeValue<'_>>, is_resolved: bool) -> Result<ModelSection, InvalidExperiment> {
    let external: Option<toml::Table> = external(&mut section)?;
    let layers_value = layers::remove(&mut section);
    if layers_value.is_some()
        && let DeValue::Table(table) = section.get_mut()
        && !table.contains_key("kind")
    {
        // Layers without a kind are a stack.
        table.insert(
            Spanned::new(0..0, "kind".into()),
            Spanned::new(0..0, DeValue::String(STACK.kind.into())),
        );
    }
    let known: Vec<Entry> = MODELS.iter().map(|model| (model.kind, model.options)).collect();
    let table = OptionTable::read(section, "model", &known, &["l2"])?;
    let given = table.given.iter().flat_map(|(option, _, values)| values.iter().map(|v| (option.name, *v)));
    let definition = MODELS[table.entry];
    let usual = definition.usual().filter(|_| !is_resolved);
    let spec = definition.spec_with(usual.chain(given)).map_err(|error| table.locate(error))?;
    let spec = match layers_value {
        Some(value) if !std::ptr::eq(definition, &STACK) => {
            let message =
                format!("{} has no layers; a model of layers has kind = \"stack\"", definition.kind);
            return Err(InvalidExperiment::new(message, layers::first_span(&value)));
        }
        Some(value) => spec.with_layers(layers::read(value)?),
        None => spec,
    };
    Ok(ModelSection { spec, l2: table.l2.unwrap_or_default(), external })
}

#[cfg(test)]
mod tests {
    use deltafl::terms::{Clip, Terms, Weights};

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
        assert_eq!(terms(&with("[[algorithm]]\nkind = 'fedavg'\n")), Terms::OPEN);
        let exact = format!("weights = 'exact'\n{}", tail("histogram"));
        assert_eq!(terms(&exact), Terms { weights: Weights::Exact, ..Terms::PRIVATE });
        assert_eq!(error(&exact.replace("exact", "round")).0, 1);
        let both = format!("{}{}", tail("histogram"), "[[algorithm]]\nkind = 'delta-fl'\ntheta = 0.1\n");
        let open = Terms { tracks: 2, ..Terms::OPEN };
        assert_eq!(terms(&both), open, "a server that sees losses for one track sees them");
    }

    #[test]
    fn tracks_train_together_in_open_simulations_and_never_in_deployments() {
        let open = with("[[algorithm]]\nkind = 'delta-fl'\ntheta = [0.5, 0.1]\n");
        let private = open.replace("theta", "quantile = 'histogram'\ntheta");
        let of = |text: &str| {
            let experiment = Experiment::parse(text).unwrap();
            assert_eq!(Experiment::parse(&experiment.to_toml()).unwrap(), experiment);
            (experiment.terms().schedule, experiment.deployed_schedule())
        };
        use TrackSchedule::{Apart, InTurn, Together};
        assert_eq!(of(&open), (Together, Some(InTurn)));
        assert_eq!(of(&private), (InTurn, Some(InTurn)));
        for (name, said) in TrackSchedule::ALL.map(|schedule| (schedule.name(), schedule)) {
            let deployed = (said != Together).then_some(said);
            assert_eq!(of(&format!("tracks = '{name}'\n{open}")), (said, deployed));
            assert_eq!(of(&format!("tracks = '{name}'\n{private}")), (said, deployed));
        }
        assert_eq!(of(&format!("tracks = 'apart'\n{open}")).0, Apart);
        assert_eq!(error(&format!("tracks = 'alone'\n{open}")).0, 1);
        let address = |text: &str| Experiment::parse(text).unwrap().address();
        assert_eq!(address(&format!("tracks = 'together'\n{open}")), address(&open));
        assert_ne!(address(&format!("tracks = 'in-turn'\n{open}")), address(&open));
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
    fn privacy_is_calibrated_to_the_run_and_refused_where_something_has_no_noise() {
        let private = |section: &str, algorithms: &str| with(&format!("[privacy]\n{section}\n{algorithms}"));
        let tree = "[[algorithm]]\nkind = 'delta-fl'\ntheta = 0.5\nquantile = 'tree'\n";
        let text = private("epsilon = 3\nclip = 0.5\naccomplices = 1", tree);
        let experiment = Experiment::parse(&text).unwrap();
        assert_eq!(Experiment::parse(&experiment.to_toml()).unwrap(), experiment);
        assert_eq!(experiment.weights(), Weights::Uniform);
        let plan = experiment.privacy_plan().unwrap();
        assert_eq!((plan.survivors, plan.accomplices, plan.honest()), (4, 1, 3));
        // Three rounds, and a device may be in each of them.
        let cost = experiment.privacy_cost(1000).unwrap();
        assert_eq!(cost.device.rounds, 3);
        let server = cost.epsilon_server.unwrap();
        assert!(server <= 3.0 && server > 2.999, "{cost:?}");
        assert!(cost.epsilon_readers < server, "{cost:?}");
        // The noise of ε costs ε again.
        let multiplier = (plan.track_round).noise_multiplier();
        let noise = private(&format!("noise = {multiplier}\nclip = 0.5\naccomplices = 1"), tree);
        let again = Experiment::parse(&noise).unwrap().privacy_cost(1000).unwrap();
        assert!((again.epsilon_server.unwrap() - server).abs() < 1e-6);
        // A device that answers once needs less noise.
        let rarely = text.replace("epsilon", "rounds_between = 3\nepsilon");
        let rarely = Experiment::parse(&rarely).unwrap().privacy_plan().unwrap();
        assert!((rarely.track_round.get() / plan.track_round.get() - 3.0).abs() < 1e-9);
        let central = text.replace("epsilon", "mechanism = 'central'\nepsilon");
        assert_eq!(Experiment::parse(&central).unwrap().privacy_cost(1000).unwrap().epsilon_server, None);
        let section = "epsilon = 3\nclip = 0.5";
        for (text, reason) in [
            (private(section, &tree.replace("tree", "open")), "open mode"),
            (private(section, &tree.replace("tree", "mm")), "tree"),
            (private(section, &tree.replace("tree", "histogram")), "tree"),
            (private(section, "[[algorithm]]\nkind = 'scaffold'\n"), "control variates"),
            (private(section, "[[algorithm]]\nkind = 'krum'\n"), "individual devices"),
            (format!("weights = 'exact'\n{}", private(section, tree)), "uniform"),
            (format!("clip = 1.0\n{}", private(section, tree)), "clip"),
            (format!("with_replacement = true\n{}", private(section, tree)), "twice"),
            (format!("adversary = {{ share = 0.2 }}\n{}", private(section, tree)), "[adversary]"),
            (private("clip = 0.5", tree), "either epsilon or noise"),
            (private("epsilon = 3\nnoise = 1\nclip = 0.5", tree), "either epsilon or noise"),
            (private("epsilon = 3\nclip = 0.5\nsurvivors = 6", tree), "survivors"),
        ] {
            let (line, message) = error(&text);
            assert!(message.contains(reason), "{message}");
            assert!(text.lines().nth(line - 1).unwrap().contains("privacy"), "{message}: line {line}");
        }
    }

    #[test]
    fn algorithms_that_need_individual_answers_are_refused_where_the_server_sees_sums_only() {
        for kind in ["afl", "drfa", "gifair", "median", "trimmed-mean", "geometric-median", "krum"] {
            let open = with(&format!("[[algorithm]]\nkind = '{kind}'\n"));
            let experiment = Experiment::parse(&open).unwrap();
            assert_eq!(experiment.needs_simulation().unwrap().0, kind);
            let real = error(&format!("secagg = 'real'\n{open}")).1;
            let expected = format!("{kind} does not work with secagg = \"real\": the server ");
            assert!(real.starts_with(&expected), "{real}");
            let private = "[[algorithm]]\nkind = 'delta-fl'\ntheta = 0.5\nquantile = 'histogram'\n";
            let private = error(&format!("{open}{private}")).1;
            assert!(private.starts_with(&format!("{kind} does not work with private mode: ")), "{private}");
        }
        let in_sums = ["fedavgm", "fednova", "feddyn", "q-ffl", "term", "propfair", "semivred"];
        for kind in in_sums {
            let text = with(&format!("[[algorithm]]\nkind = '{kind}'\n"));
            let experiment = Experiment::parse(&format!("secagg = 'real'\n{text}")).unwrap();
            assert_eq!((experiment.needs_simulation(), experiment.is_open()), (None, false), "{kind}");
        }
        let personal = format!("secagg = 'real'\n{}", with("[[algorithm]]\nkind = 'ditto'\n"));
        assert!(Experiment::parse(&personal).unwrap().needs_simulation().is_some());
    }

    #[test]
    fn liars_are_part_of_an_experiment_and_of_no_deployment() {
        let honest = with("[[algorithm]]\nkind = 'fedavg'\n");
        let experiment = Experiment::parse(&honest).unwrap();
        assert!(experiment.adversary().is_none() && experiment.needs_simulation().is_none());
        let lying = format!("adversary = {{ share = 0.2, flip_sign = true, scale = 5 }}\n{honest}");
        let lying = Experiment::parse(&lying).unwrap();
        assert_eq!(Experiment::parse(&lying.to_toml()).unwrap(), lying);
        assert_ne!(lying.address(), experiment.address());
        assert_eq!(lying.needs_simulation().unwrap().0, "[adversary]");
        assert_eq!(error(&format!("adversary = {{ share = 1.5 }}\n{honest}")).0, 1);
    }

    #[test]
    fn a_composition_has_the_options_of_its_parts() {
        let text = with("[[algorithm]]\nkind = 'delta-fl+fedadam'\ntheta = [0.5, 0.1]\nserver_rate = 0.1\n");
        let experiment = Experiment::parse(&text).unwrap();
        assert_eq!(Experiment::parse(&experiment.to_toml()).unwrap(), experiment);
        let names: Vec<String> = experiment.labels().into_iter().map(|label| label.name).collect();
        assert_eq!(names, ["Δ-FL + FedAdam θ=0.5", "Δ-FL + FedAdam θ=0.1"]);
        let text = with("[[algorithm]]\nkind = 'ditto'\nevaluate = ['personal', 'shared']\n");
        let names: Vec<String> =
            Experiment::parse(&text).unwrap().labels().into_iter().map(|label| label.name).collect();
        assert_eq!(names, ["Ditto λ=0.1 model=personal", "Ditto λ=0.1 model=shared"]);
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
