//! Federated learning for devices that differ.
//!
//! Δ-FL ("simplicial FL") trains one model per conformity level θ. Each round it keeps the devices in the upper
//! θ-tail of the losses and averages their updates under secure aggregation, so that it minimises the superquantile
//! of the device losses; θ = 1 is federated averaging. This example trains two levels on a federation that needs no
//! download:
//!
//! ```
//! use deltafl::engine::{SplitEvaluation, Threads};
//! use deltafl::experiment::Experiment;
//! use deltafl::kernel::Isa;
//! use deltafl::training::{Observer, ObserverError, RoundRecord, State, train};
//! use std::ops::ControlFlow;
//!
//! struct Printer;
//! impl Observer for Printer {
//!     fn round(&mut self, tracks: &[RoundRecord]) -> Result<ControlFlow<()>, ObserverError> {
//!         tracks.iter().for_each(|t| println!("θ = {}: {} of {} devices kept", t.theta, t.tail, t.cohort));
//!         Ok(ControlFlow::Continue(()))
//!     }
//!     fn evaluation(&mut self, _: u64, _: &[SplitEvaluation]) -> Result<(), ObserverError> { Ok(()) }
//!     fn checkpoint(&mut self, _: &State) -> Result<(), ObserverError> { Ok(()) }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let experiment: Experiment = toml::from_str(r#"
//!     name = "first"
//!     rounds = 2
//!     cohort = 5
//!     data = { source = { kind = "glyphs", devices = 12 } }
//!     model = { kind = "linear" }
//!     local = { epochs = 1, batch = 10, learning_rate = 0.1 }
//!     algorithm = [{ kind = "fedavg" }, { kind = "delta-fl", theta = 0.5 }]
//! "#)?;
//! let federation = experiment.data.load()?;
//! let model = experiment.model.spec().build(&federation, Isa::detect())?;
//! let mut engine = Threads::new(&*model, &federation, 2)?;
//! let mut state = State::new(1, 2, &*model);
//! train(&mut engine, &experiment.plan(), &mut state, &mut Printer)?;
//! assert_ne!(state.tracks[0].params, state.tracks[1].params);
//! # Ok(())
//! # }
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`superquantile`] | conformity θ, quantile η, superquantile, mixtures, smoothing, private quantiles |
//! | [`algorithm`], [`training`] | FedAvg, Δ-FL and Algorithm 1; the one round loop |
//! | [`engine`], [`device`], [`cohort`] | where devices live, what one computes, who is drawn |
//! | [`model`], [`kernel`], [`params`] | what is trained, how fast, and its sums in fixed point |
//! | [`data`] | federations: mapped folders, importers, synthetic ones |
//! | [`experiment`], [`run_folder`], [`metrics`] | what to run, what it leaves behind, the figures of the tables |
//!
//! The library is pure: no clock, no socket, no printing. What leaves it leaves through an
//! [`Observer`](training::Observer).

// Our tests compare floats for the same bits: that is the promise.
#![cfg_attr(test, allow(clippy::float_cmp))]

pub mod algorithm;
pub mod cohort;
pub mod compute;
pub mod data;
pub mod device;
pub mod exchange;
pub mod experiment;
pub mod illustration;
pub mod kernel;
pub mod memory;
pub mod metrics;
pub mod model;
pub mod params;
pub mod question;
pub mod run_folder;
pub mod selection;
pub mod server_step;
pub mod stream;
pub mod superquantile;
pub mod trainer;
pub mod training;
