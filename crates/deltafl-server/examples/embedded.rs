//! A server inside a program of yours: it trains a model that it does not know, with devices that bring their trainer.
//!
//! `crates/deltafl-device/examples/own_trainer.rs` is the other end.

use std::error::Error;
use std::sync::Arc;

use deltafl::algorithm::{Quantile, Tail, Track};
use deltafl::model::Tensor;
use deltafl::terms::Terms;
use deltafl::trainer::Work;
use deltafl::training::{Plan, Records, State, train};
use deltafl_server::engine::Rules;
use deltafl_server::serve::{Host, Introduction, Setup};
use deltafl_wire::{loopback, roster::RosterVersion};

/// Trains two levels over some rounds with the devices of these names.
pub(crate) fn serve(
    address: &str,
    names: &[&str],
    started: impl FnOnce(&Host),
) -> Result<State, Box<dyn Error>> {
    let tail = Tail { quantile: Quantile::Private(Default::default()), ..Tail::new(0.5.try_into()?) };
    // The two tracks take turns.
    let plan = Plan::builder().rounds(40).cohort(4).work(Work::Epochs(5)).batch(1).terms(Terms::PRIVATE);
    let plan = plan.track(Track::fed_avg()).track(tail).build()?;
    let introduction =
        Introduction { experiment: "points".into(), params: 2, ..Introduction::new("points")? };
    let roster =
        loopback::roster(RosterVersion { version: 1, expires: u64::MAX }, names.iter().copied(), |_| false)?;
    let runtime = tokio::runtime::Runtime::new()?;
    let _entered = runtime.enter();
    let mut host = runtime.block_on(Host::start(Setup::loopback(address.parse()?, introduction), &roster))?;
    started(&host);
    let mut devices = host.engine(Rules::new(4, names.len()), Arc::default()).ok_or("asked for once")?;
    let tensors = vec![Tensor::new("slope", &[1]), Tensor::new("intercept", &[1])];
    let mut state = plan.start_from(1, vec![0.0; 2].into(), tensors);
    train(&mut devices, &plan, &mut state, &mut Records::default())?;
    runtime.block_on(host.shut_down());
    Ok(state)
}

#[allow(dead_code, reason = "a test takes the rest in as a module")]
fn main() -> Result<(), Box<dyn Error>> {
    let names = ["sensor-0", "sensor-1", "sensor-2", "sensor-3"];
    let state = serve("127.0.0.1:7700", &names, |host| println!("listening on {}", host.address()))?;
    state.tracks.iter().for_each(|track| println!("{:?}", track.params.as_slice()));
    Ok(())
}
