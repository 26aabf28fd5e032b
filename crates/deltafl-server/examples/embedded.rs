//! A durable server inside a program of yours. It trains a model that it does not know, with devices that bring their trainer.
//!
//! `crates/deltafl-device/examples/own_trainer.rs` is the other end.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use deltafl::training::Outcome;
use deltafl_data::experiment::Experiment;
use deltafl_server::{InitialModel, ServedModel, Server, ServerConfig, ServerListener};

const EXPERIMENT: &str = r#"
    name = "points"
    # The two tracks take turns.
    rounds = 40
    cohort = 4
    weights = "uniform"
    data = { source = "memory:points" }
    model = { kind = "external" }
    local = { epochs = 5, batch = 1, learning_rate = 0.1 }
    algorithm = [{ kind = "fedavg" }, { kind = "delta-fl", theta = 0.5, quantile = "histogram" }]
"#;

/// Trains two levels with the devices of these names. Started again with the same folder, it continues.
pub(crate) fn serve(
    address: &str,
    names: &[&str],
    folder: &Path,
    listener: Arc<dyn ServerListener>,
) -> Result<Outcome, Box<dyn Error>> {
    let config =
        ServerConfig { listen: address.parse()?, out: Some(folder.to_owned()), ..ServerConfig::default() };
    let model = InitialModel::zeros(&[("slope", &[1]), ("intercept", &[1])]);
    let devices = names.iter().map(|&name| name.to_owned());
    let server =
        Server::new(config, Experiment::parse(EXPERIMENT)?, ServedModel::of_devices(&model, devices))?;
    Ok(server.run(&Arc::default(), &listener)?)
}

#[allow(dead_code, reason = "a test uses the rest as a module")]
fn main() -> Result<(), Box<dyn Error>> {
    let names = ["sensor-0", "sensor-1", "sensor-2", "sensor-3"];
    let print = |event: &deltafl_server::ServerEvent<'_>| println!("{event}");
    serve("127.0.0.1:7700", &names, Path::new("runs/points"), Arc::new(print))?;
    Ok(())
}
