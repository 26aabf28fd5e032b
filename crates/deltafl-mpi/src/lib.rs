//! The exchange of Δ-FL over MPI ranks, for simulations that are too large for one machine.
//!
//! Every rank runs the same round loop on the same state. A question of the loop is a collective
//! operation: each rank computes its share of the cohort on its threads. One all-reduce adds the
//! integer sums, and one gather collects the losses. All ranks continue with the same answer, so
//! parameters are never sent. Only rank 0 has an observer and writes files.
//!
//! ```text
//!           rank 0                   rank 1                 rank 2
//! losses    blocks of S_t            blocks of S_t          blocks of S_t         by examples, cut evenly
//!           ╰────────────────────── all-gather ─────────────────╯                16 bytes per block
//! updates   devices of the tail      devices of the tail    devices of the tail   largest first
//!           ╰──────────────── all-reduce in Z_2^64 ─────────────╯                8 bytes per parameter
//! w_{t+1}   same bits                same bits              same bits
//! records   run folder               –                      –
//! ```
//!
//! | module | contains |
//! |---|---|
//! | [`World`] | the ranks of a job, and checks that they agree |
//! | [`MpiExchange`] | the exchange: a simulation that shares its devices among ranks |
//! | [`Ranks`] | the collective operations of that exchange |
//! | [`Agreed`] | the observer of all ranks: rank 0 decides whether the run stops |
//! | [`Throughput`] | the work of each rank and its balance |
//!
//! MPI has no fault tolerance: if a rank fails, the job fails. A run folder can be resumed from its
//! last checkpoint on any number of ranks, with the same bits.
//!
//! ```no_run
//! use deltafl::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let world = deltafl_mpi::World::init()?;
//! let federation = Glyphs::default().build();
//! world.same("the data", federation.hash())?;
//! let model = ModelSpec::LINEAR.build(&federation, world.common_isa(Isa::detect()))?;
//! let trainer = Sgd::new(&*model);
//! let compute = Threads::new(&trainer, &federation, Some(world.threads(None)))?;
//! let mut exchange = world.exchange(compute, &federation)?;
//! let plan = Plan::builder().track(Track::fed_avg()).build()?;
//! let recorder = world.is_root().then(Records::default);
//! train(&mut exchange, &plan, &mut plan.start(1, &trainer), &mut world.observe(recorder))?;
//! if let Some(throughput) = world.throughput(&exchange) {
//!     eprint!("{throughput}");
//! }
//! # Ok(())
//! # }
//! ```

mod agreed;
mod launcher;
mod ranks;
mod throughput;
mod world;

pub use agreed::Agreed;
pub use launcher::launched;
pub use ranks::Ranks;
pub use throughput::{RankThroughput, Throughput};
pub use world::{Differs, MpiExchange, World, WorldError};
