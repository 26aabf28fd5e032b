//! The `external` table of an `[[algorithm]]` section: an algorithm of the caller's program.
//!
//! The program replaces some parts of the algorithm that the section names. The run folder records
//! the name of the algorithm, the parts and the options, so that it can be read and compared without
//! the program.

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
    /// Returns what the server must see, if the replaced algorithm requires `base`.
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
