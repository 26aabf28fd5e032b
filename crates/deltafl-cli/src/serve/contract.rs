//! The contract of the data that a server sends to its devices.

use deltafl::data::Federation;
use deltafl_data::experiment::Experiment;
use deltafl_server::server::{contract_of, split_within};
use deltafl_wire::contract::DataContract;
use miette::Result;

use super::Args;
use crate::error::bad_input;

/// The shape of the data and its contract: those of a file, or of the experiment's data. The
/// experiment or the file contains the split of the devices' own examples.
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
