//! A durable server inside another program. Devices have the trainer; the server has only the
//! initial parameters.
//!
//! `crates/deltafl-device/examples/own_trainer.rs` is the device.

use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use deltafl::training::{Observer, Outcome};
use deltafl_data::experiment::Experiment;
use deltafl_server::{InitialModel, ServedModel, Server, ServerConfig, ServerEvent};

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

/// Trains two levels with the named devices. A second call with the same folder continues the run.
pub(crate) fn serve(
    address: &str,
    names: &[&str],
    folder: &Path,
    observer: impl for<'e> Observer<ServerEvent<'e>> + Send + 'static,
) -> Result<Outcome, Box<dyn Error>> {
    let config =
        ServerConfig { listen: address.parse()?, out: Some(folder.to_owned()), ..ServerConfig::default() };
    let model = InitialModel::zeros(&[("slope", &[1]), ("intercept", &[1])]);
    let devices = names.iter().map(|&name| name.to_owned());
    let server =
        Server::new(config, Experiment::parse(EXPERIMENT)?, ServedModel::for_devices(&model, devices))?;
    Ok(server.run(&Arc::default(), observer)?)
}

#[allow(dead_code, reason = "a test uses the rest as a module")]
fn main() -> Result<(), Box<dyn Error>> {
    let names = ["sensor-0", "sensor-1", "sensor-2", "sensor-3"];
    let print = |event: ServerEvent<'_>| {
        println!("{event}");
        Ok(ControlFlow::Continue(()))
    };
    serve("127.0.0.1:7700", &names, Path::new("runs/points"), print)?;
    Ok(())
}
