//! The `external` table of an `[[algorithm]]` section: an algorithm of the caller's program.
//!
//! The program replaces some parts of the algorithm that the section names. The run folder records
//! the name of the algorithm, the parts and the options, so that it can be read and compared
//! without the program.

use deltafl::algorithm::{AlgorithmParts, Requires};
use deltafl::memory::AlgorithmState;
use deltafl::selection::{Learned, Needs, Selection, SummedTail, Weighting};
use serde::{Deserialize, Serialize};

/// An algorithm of the caller's program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExternalSection {
    /// Its name in tables.
    pub name: String,
    /// The parts that the program replaces.
    pub replaces: Vec<ExternalPart>,
    /// Its options. They distinguish runs and have no other effect.
    #[serde(default, skip_serializing_if = "toml::Table::is_empty")]
    pub options: toml::Table,
}

/// A part of an algorithm that a program replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExternalPart {
    /// The weight of a device as a function of its loss.
    Weight,
    /// The devices that count, selected from their losses.
    Select,
    /// The local update of a device.
    Update,
    /// The server step.
    ServerStep,
}

/// Implements the algorithms of the external sections of an experiment.
pub trait ExternalAlgorithms: Sync {
    /// Replaces parts of the algorithm of a track. `section` is the index of its section.
    fn parts(&self, section: usize, track: usize, base: AlgorithmParts) -> AlgorithmParts;
}

impl ExternalSection {
    /// Returns the answers that the server needs, if the replaced algorithm requires `base`.
    pub(super) fn requires(&self, base: Requires) -> Requires {
        let replaces = |part| self.replaces.contains(&part);
        match base {
            Requires::Open(_) => base,
            _ if replaces(ExternalPart::Select) => {
                Requires::Open("the program selects devices by name, from their losses")
            }
            _ if replaces(ExternalPart::Weight) => {
                Requires::Simulation("deployed devices do not know the weight that the program computes")
            }
            _ if replaces(ExternalPart::Update) => {
                Requires::Simulation("deployed devices do not know the local update of the program")
            }
            _ => base,
        }
    }

    /// Returns the parts of a track without its program. They can be read but not trained.
    pub(super) fn described(&self, base: AlgorithmParts) -> AlgorithmParts {
        if self.replaces.contains(&ExternalPart::Select) {
            return AlgorithmParts { selection: Box::new(Described), ..base };
        }
        base
    }
}

/// A selection that needs losses and is implemented elsewhere.
struct Described;

impl Selection for Described {
    fn needs(&self, _round: u64, _memory: &AlgorithmState) -> Needs {
        Needs::NamedLosses
    }

    fn learn(&self, _round: u64, _learned: Learned<'_>, _memory: &mut AlgorithmState) {}

    fn weighting(&self, _memory: &AlgorithmState) -> Weighting {
        Weighting::everyone()
    }

    fn observe(&self, _summed: &SummedTail<'_>, _memory: &mut AlgorithmState) {}
}

#[cfg(test)]
mod tests {
    use crate::experiment::Experiment;

    fn experiment(algorithms: &str) -> Experiment {
        let head = "name = 'x'\nrounds = 1\ncohort = 20\n[data]\nsource = { kind = 'glyphs', devices = 4 }\n\
                    [model]\nkind = 'external'\nexternal = { optimizer = 'Adam' }\n[local]\nepochs = 1\nbatch = 10\n\
                    learning_rate = 1.0\n";
        Experiment::parse(&format!("{head}{algorithms}")).unwrap()
    }

    fn section(kind: &str, replaces: &str) -> String {
        format!(
            "[[algorithm]]\n{kind}\n[algorithm.external]\nname = 'Mine'\nreplaces = [{replaces}]\n\
             [algorithm.external.options]\nrate = 0.5\n"
        )
    }

    #[test]
    fn an_external_algorithm_is_written_back_and_named_by_its_program() {
        let own = section("kind = 'delta-fl'\ntheta = [0.8, 0.5]", "'server-step'");
        let experiment = experiment(&format!("{own}[[algorithm]]\nkind = 'fedavg'\n"));
        let again = Experiment::parse(&experiment.to_toml()).unwrap();
        assert_eq!(again, experiment);
        let labels = experiment.labels();
        let names: Vec<_> =
            labels.iter().map(|label| (label.name.as_str(), label.algorithm.as_str())).collect();
        assert_eq!(names, [("Mine θ=0.8", "external"), ("Mine θ=0.5", "external"), ("FedAvg", "fedavg")]);
        assert_eq!(experiment.external(), Some("Mine"));
    }

    #[test]
    fn another_option_of_the_program_is_a_difference() {
        let before = experiment(&section("kind = 'fedavg'", "'weight'"));
        let now = experiment(&section("kind = 'fedavg'", "'weight'").replace("0.5", "0.7"));
        let changed: Vec<String> = before.differences(&now).into_iter().map(|change| change.key).collect();
        assert_eq!(changed, ["algorithm.0.external.options.rate"]);
    }

    #[test]
    fn the_replaced_parts_decide_where_an_algorithm_runs() {
        for (replaces, is_open, simulation) in [
            ("'server-step'", false, false),
            ("'weight'", false, true),
            ("'update'", false, true),
            ("'select'", true, true),
        ] {
            let experiment = experiment(&section("kind = 'fedavg'", replaces));
            let found = (experiment.is_open(), experiment.needs_simulation().is_some());
            assert_eq!(found, (is_open, simulation), "{replaces}");
        }
    }
}
