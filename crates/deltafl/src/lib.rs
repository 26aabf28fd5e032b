//! Federated learning for devices that differ.
//!
//! Δ-FL ("simplicial FL") trains one model per conformity level θ. Each round it keeps the devices in the upper
//! θ-tail of the losses and averages their updates under secure aggregation, so that it minimises the superquantile
//! of the device losses; θ = 1 is federated averaging. This example trains two levels on a federation that needs no
//! download:
//!
//! ```
//! use deltafl::algorithm::{Algorithm, DeltaFl, FedAvg};
//! use deltafl::cohort::{Availability, Sampling};
//! use deltafl::data::synthetic::Glyphs;
//! use deltafl::device::Work;
//! use deltafl::engine::{SplitEvaluation, Threads};
//! use deltafl::kernel::Isa;
//! use deltafl::model::ModelSpec;
//! use deltafl::superquantile::Conformity;
//! use deltafl::training::{Local, Observer, ObserverError, Plan, RoundRecord, State, Track, train};
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
//! let half = DeltaFl::new(Conformity::try_from(0.5)?);
//! let algorithms: [Box<dyn Algorithm>; 2] = [Box::new(FedAvg), Box::new(half)];
//! let plan = Plan {
//!     rounds: 2,
//!     sampling: Sampling { cohort_size: 5, with_replacement: false, availability: Availability::default() },
//!     local: Local { work: Work::Epochs(1), batch: 10, learning_rate: 0.1, decay: None },
//!     evaluate_every: 2,
//!     tracks: algorithms.into_iter().map(|algorithm| Track { algorithm, l2: 0.0 }).collect(),
//! };
//! let federation = Glyphs { devices: 12.try_into()?, ..Glyphs::default() }.build();
//! let model = ModelSpec::LINEAR.build(&federation, Isa::detect())?;
//! let mut engine = Threads::new(&*model, &federation, 2)?;
//! let mut state = State::new(1, 2, &*model);
//! train(&mut engine, &plan, &mut state, &mut Printer)?;
//! assert_ne!(state.tracks[0].params, state.tracks[1].params);
//! # Ok(())
//! # }
//! ```
//!
//! The crate `deltafl-data` reads the same from an experiment file, and federations from folders.
//!
//! | module | holds |
//! |---|---|
//! | [`superquantile`] | conformity θ, quantile η, superquantile, mixtures, smoothing, private quantiles |
//! | [`algorithm`], [`training`] | FedAvg, Δ-FL and Algorithm 1; the one round loop |
//! | [`engine`], [`device`], [`cohort`] | where devices live, what one computes, who is drawn |
//! | [`model`], [`kernel`], [`params`] | what is trained, how fast, and its sums in fixed point |
//! | [`task`] | what is predicted, and which figures say how well |
//! | [`data`] | federations: columns in memory or lent by a mapped file; synthetic ones |
//! | [`metrics`], [`illustration`] | the figures of the tables; figure 3 in numbers |
//!
//! The library is pure: no clock, no socket, no file, no printing. What leaves it leaves through an
//! [`Observer`](training::Observer).

// Our tests compare floats for the same bits: that is the promise.
#![cfg_attr(test, allow(clippy::float_cmp))]

pub mod algorithm;
pub mod cohort;
pub mod data;
pub mod device;
pub mod engine;
pub mod illustration;
pub mod kernel;
pub mod metrics;
pub mod model;
pub mod params;
pub mod stream;
pub mod superquantile;
pub mod task;
pub mod training;
