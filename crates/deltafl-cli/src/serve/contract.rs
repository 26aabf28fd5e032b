//! The contract of the data that a server hands to its devices.

use deltafl::data::{Federation, WithinSplit};
use deltafl_data::experiment::{Experiment, SplitSection};
use deltafl_wire::contract::DataContract;
use miette::Result;

use super::Args;
use crate::error::bad_input;

/// The contract of data as a federation has it, and as the experiment says that devices split their own examples.
pub(crate) fn contract_of(federation: &Federation, experiment: &Experiment) -> DataContract {
    DataContract { split: split_within(experiment), ..DataContract::of(federation) }
}

fn split_within(experiment: &Experiment) -> Option<WithinSplit> {
    match &experiment.data().split {
        Some(SplitSection::Within(within)) => Some(*within),
        _ => None,
    }
}

/// The shape of the data and its contract: as a file declares it, or as the experiment's data has it. How devices split their own
/// examples the experiment says, or the file.
pub(super) fn declared(args: &Args, experiment: &Experiment) -> Result<(Federation, DataContract)> {
    let Some(path) = &args.contract else {
        let refused = bad_input("the data of the experiment cannot be used");
        let refused = match args.insecure {
            true => refused,
            false => refused.help(
                "a server needs no examples: it takes --contract FILE, which --print-contract prints where the data is",
            ),
        };
        let federation = experiment.data().load().map_err(|e| refused.because(e))?;
        let contract = contract_of(&federation, experiment);
        return Ok((federation, contract));
    };
    let within = split_within(experiment);
    let refused = || bad_input(format!("{} holds no contract of the data", path.display()));
    let bytes = std::fs::read(path).map_err(|e| refused().because(e))?;
    let mut contract = DataContract::from_bytes(&bytes).map_err(|e| {
        refused().help("deltafl serve EXPERIMENT --print-contract prints one to start from").because(e)
    })?;
    if within.is_some() && contract.split.is_some() && contract.split != within {
        return Err(bad_input(format!(
            "{} splits the examples of devices otherwise than the experiment",
            path.display()
        ))
        .help("leave \"split\" out of the one, or data.split out of the other")
        .into());
    }
    contract.split = contract.split.or(within);
    Ok((contract.shape(), contract))
}
