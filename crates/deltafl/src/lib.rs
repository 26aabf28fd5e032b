//! Federated learning for devices that differ.
//!
//! Federated averaging trains one model for the average device, and serves unusual devices badly.
//! Δ-FL trains one model per *conformity level* θ. In each round it selects the devices in the
//! upper θ-tail of the losses and averages their updates under secure aggregation. It thereby
//! minimises the superquantile of the device losses. θ = 1 is federated averaging.
//!
//! This crate is the numerical core: the algorithms, the models, the round loop and the simulation
//! of devices. The example trains two levels on a synthetic federation:
//!
//! ```
//! use deltafl::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let federation = Glyphs { devices: 12.try_into()?, ..Glyphs::default() }.build();
//! let model = ModelSpec::LINEAR.build(&federation, Isa::detect())?;
//! let trainer = Sgd::new(&*model);
//! let half = Tail::new(0.5.try_into()?);
//! let plan = Plan::builder().rounds(2).cohort(5).track(Track::fed_avg()).track(half).build()?;
//!
//! let mut simulation = Simulation::new(&trainer, &federation)?;
//! let (mut state, mut records) = (plan.start(1, &trainer), Records::default());
//! train(&mut simulation, &plan, &mut state, &mut records)?;
//! for track in &records.rounds {
//!     println!("round {}, {}: {} of {} devices", track.round, track.name, track.tail, track.cohort);
//! }
//! assert_ne!(state.tracks[0].params, state.tracks[1].params);
//! # Ok(())
//! # }
//! ```
//!
//! # Where to go
//!
//! | to | see |
//! |---|---|
//! | train with your own model | [`model::Model`] and `examples/own_model.rs` |
//! | train with your own local update | [`trainer::LocalTrainer`] |
//! | load your own data | [`data::FederationBuilder`], or the crate `deltafl-data` for files |
//! | choose or add an algorithm | [`algorithm`] |
//! | follow the progress of a run, or stop it | [`training::Event`] and [`training::Observer`] |
//! | simulate secure aggregation | [`exchange::Simulation::masked`] |
//! | compute on a GPU or on MPI ranks | the crates `deltafl-cuda` and `deltafl-mpi` |
//! | train with real devices | the crates `deltafl-server` and `deltafl-device` |
//!
//! # Modules
//!
//! | module | contains |
//! |---|---|
//! | [`superquantile`] | conformity θ, quantile η, superquantile, mixtures, smoothing, private quantiles |
//! | [`algorithm`] | the table of algorithms: FedAvg, Δ-FL, …, and Algorithm 1 |
//! | [`selection`], [`trainer`], [`aggregation`], [`server_step`], [`memory`] | the parts of an algorithm and its state |
//! | [`training`], [`cohort`] | the round loop, and the draw of cohorts |
//! | [`question`], [`terms`], [`device`] | the questions to devices and their terms, and a device's answer |
//! | [`compute`], [`exchange`] | the computation of devices, and the sum of their answers |
//! | [`model`], [`kernel`], [`params`] | the models, their kernels, and their params with sums in fixed point |
//! | [`privacy`] | differential privacy: the cost of noisy sums, and the noise of a budget |
//! | [`task`] | the kinds of prediction and their metrics |
//! | [`data`] | federations: columns in memory or mapped files, and synthetic federations |
//! | [`metrics`], [`illustration`] | the figures of the paper's tables, and the data of its figure 3 |
//! | [`evaluation`] | the same figures with bounds, from secure sums |
//! | [`adversary`] | simulated devices that lie about their loss or their update |
//!
//! # Guarantees
//!
//! - **Reproducible.** A run depends on its plan, its data and its seed. The number of threads,
//!   masks, and interruptions do not change a bit of the params.
//! - **Pure.** The crate has no clock, socket, file or terminal. A run reports its progress as
//!   [`Event`](training::Event)s.

// Our tests compare floats for the same bits: that is the promise.
#![cfg_attr(test, allow(clippy::float_cmp))]

pub mod adversary;
pub mod aggregation;
pub mod algorithm;
pub mod cohort;
pub mod compute;
pub mod data;
pub mod device;
pub mod evaluation;
pub mod exchange;
pub mod illustration;
pub mod kernel;
pub mod memory;
pub mod metrics;
pub mod model;
pub mod number;
pub mod options;
pub mod params;
pub mod prelude;
pub mod privacy;
pub mod question;
pub mod selection;
pub mod server_step;
pub mod stream;
pub mod superquantile;
pub mod task;
pub mod terms;
pub mod trainer;
pub mod training;
