//! The examples of a server and of a device to embed, with each other.
#![allow(clippy::unwrap_used, missing_docs)]

use std::ops::ControlFlow;

use deltafl::training::Outcome;
use deltafl_data::run_folder;
use deltafl_server::ServerEvent;

#[path = "../examples/embedded.rs"]
mod embedded;
#[path = "../../deltafl-device/examples/own_trainer.rs"]
mod own_trainer;
#[path = "field/watchdog.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod watchdog;

/// The mean squared error of y = a·x + b over the points of the devices, worst device and mean.
fn errors(params: &[f32], shifts: &[f32]) -> (f64, f64) {
    let of_device = |shift: &f32| {
        let r = |i: u8| {
            let x = f32::from(i) / 20.0;
            f64::from(params[0] * x + params[1] - (2.0 * x + shift)).powi(2)
        };
        (0..20).map(r).sum::<f64>() / 20.0
    };
    let errors: Vec<f64> = shifts.iter().map(of_device).collect();
    (errors.iter().copied().fold(0.0, f64::max), errors.iter().sum::<f64>() / errors.len() as f64)
}

#[test]
fn a_server_trains_a_model_that_it_does_not_know_with_devices_that_bring_their_trainer() {
    let _limit = watchdog::start();
    let names = ["sensor-0", "sensor-1", "sensor-2", "sensor-3"];
    let shifts = [0.0, 0.1, 0.2, 2.0];
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let devices = runtime.handle().clone();
    let observer = move |event: ServerEvent<'_>| {
        let ServerEvent::Listening { address, .. } = event else { return Ok(ControlFlow::Continue(())) };
        for (name, shift) in names.into_iter().zip(shifts) {
            devices.spawn(own_trainer::take_part(address.to_string(), name, shift));
        }
        Ok(ControlFlow::Continue(()))
    };
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let outcome = embedded::serve("127.0.0.1:0", &names, &run, observer).unwrap();
    assert_eq!(outcome, Outcome::Finished);
    let state = run_folder::read_checkpoint(&run, 1).unwrap().expect("a finished run has a checkpoint");
    assert_eq!(state.round, 40);
    let [fed_avg, tail] = [0, 1].map(|track| errors(state.tracks[track].params.as_slice(), &shifts));
    assert!(fed_avg.1 < 0.8, "a line was found: {fed_avg:?}");
    assert!(tail.0 < fed_avg.0, "the tail serves the worst device better: {tail:?}, {fed_avg:?}");
}
