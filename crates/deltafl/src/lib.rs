//! Federated learning for devices that differ.
//!
//! Δ-FL ("simplicial FL") trains one model per conformity level θ. Each round it keeps the devices in the upper
//! θ-tail of the losses and averages their updates under secure aggregation, so that it minimises the superquantile
//! of the device losses; θ = 1 is federated averaging. This example trains two levels on a federation that needs no
//! download:
//!
//! ```
//! use deltafl::algorithm::{Tail, Track};
//! use deltafl::cohort::{Availability, Sampling};
//! use deltafl::compute::Threads;
//! use deltafl::data::synthetic::Glyphs;
//! use deltafl::exchange::Direct;
//! use deltafl::kernel::Isa;
//! use deltafl::model::ModelSpec;
//! use deltafl::superquantile::Conformity;
//! use deltafl::terms::Terms;
//! use deltafl::trainer::{Sgd, Work};
//! use deltafl::training::{Local, Plan, Records, State, train};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let plan = Plan {
//!     rounds: 2,
//!     sampling: Sampling { cohort_size: 5, with_replacement: false, availability: Availability::default() },
//!     local: Local { work: Work::Epochs(1), batch: 10, learning_rate: 0.1, decay: None },
//!     evaluate_every: 2,
//!     terms: Terms::OPEN,
//!     held_out: None,
//!     tracks: vec![Track::fed_avg(), Tail::new(Conformity::try_from(0.5)?).into()],
//! };
//! let federation = Glyphs { devices: 12.try_into()?, ..Glyphs::default() }.build();
//! let model = ModelSpec::LINEAR.build(&federation, Isa::detect())?;
//! let trainer = Sgd::new(&*model);
//! let mut exchange = Direct::new(Threads::new(&trainer, &federation, 2)?, &federation)?;
//! let (mut state, mut records) = (State::new(1, 2, &trainer), Records::default());
//! train(&mut exchange, &plan, &mut state, &mut records)?;
//! for track in &records.rounds {
//!     println!("round {}, {}: {} of {} devices in the tail", track.round, track.name, track.tail, track.cohort);
//! }
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
//! | [`algorithm`] | the table of algorithms: FedAvg, Δ-FL, …, and Algorithm 1 |
//! | [`selection`], [`trainer`], [`server_step`], [`memory`] | what an algorithm is made of, and what it keeps between rounds |
//! | [`training`], [`cohort`] | the one round loop; who is drawn |
//! | [`question`], [`terms`], [`device`] | what devices are asked, in canonical bytes, and on what terms; what one answers |
//! | [`compute`], [`exchange`] | where devices compute; how their answers meet |
//! | [`model`], [`kernel`], [`params`] | what is trained, how fast, and its sums in fixed point |
//! | [`task`] | what is predicted, and which figures say how well |
//! | [`data`] | federations: columns in memory or lent by a mapped file; synthetic ones |
//! | [`metrics`], [`illustration`] | the figures of the tables; figure 3 in numbers |
//! | [`evaluation`] | the same figures between bounds, from secure sums |
//!
//! The library is pure: no clock, no socket, no file, no printing. A run reports its progress as
//! [`Event`](training::Event)s.

// Our tests compare floats for the same bits: that is the promise.
#![cfg_attr(test, allow(clippy::float_cmp))]

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
pub mod question;
pub mod selection;
pub mod server_step;
pub mod stream;
pub mod superquantile;
pub mod task;
pub mod terms;
pub mod trainer;
pub mod training;
