//! Secure aggregation: a server computes a sum of the devices' vectors without seeing any of them.
//!
//! The crate implements the protocol of Bonawitz et al. (CCS 2017) and its k-regular variant (Bell
//! et al., CCS 2020) as state machines without I/O. Messages, time and random numbers are
//! parameters, so that a round with a seeded generator is reproducible. The crate is independent of
//! models, sockets and files, and can be audited separately.
//!
//! # Example
//!
//! Three devices add their vectors. Then one of them drops out, and the others add theirs:
//!
//! ```
//! use chacha20::ChaCha20Rng;
//! use deltafl_secagg::{DeviceId, DropOut, GraphRule, SimulatedRound, SimulationConfig};
//! use rand_core::SeedableRng;
//!
//! let devices = [DeviceId(0), DeviceId(1), DeviceId(2)];
//! let drop_outs = [DropOut::before_input(DeviceId(2), 1)];
//! let graph = GraphRule::Full { threshold: 2 };
//! let config = SimulationConfig { graph, slots: 2, ..SimulationConfig::default() };
//!
//! let mut rng = ChaCha20Rng::seed_from_u64(1);
//! let mut round = SimulatedRound::new(&config, &devices, &drop_outs, &mut rng)?;
//! let first = round.sum::<u64>(2, b"first slot", |id| vec![u64::from(id.0), 1])?;
//! assert_eq!(first.sum, [0 + 1 + 2, 3]);
//! let second = round.sum::<u64>(2, b"second slot", |id| vec![u64::from(id.0), 1])?;
//! assert_eq!(second.sum, [0 + 1, 2]);
//! # Ok::<(), deltafl_secagg::simulate::SimulationError>(())
//! ```
//!
//! [`SimulatedRound`] runs the same state machines as a deployment and encodes every message.
//! `examples/one_round.rs` connects a [`ServerRound`] and [`DeviceRound`]s without it, as an
//! application with a network does.
//!
//! # Protocol
//!
//! Device u masks its vector x_u with a self mask and with one pairwise mask per neighbour. The
//! neighbour applies the same mask with the opposite sign:
//!
//! ```text
//! y_u = x_u + PRG(b_u) + Σ_{v~u, u<v} PRG(s_uv) − Σ_{v~u, v<u} PRG(s_uv)      in Z_2³² or Z_2⁶⁴
//! ```
//!
//! The seed b_u and the key of all s_uv are secret-shared among the neighbours of u. If u drops
//! out, t of its neighbours reveal shares of the key, and the server removes the pairwise masks of
//! u. If u survives, they reveal shares of b_u. A device never reveals both, and reveals shares
//! only after t devices have signed the same view of the round.
//!
//! # Security
//!
//! The server may deviate from the protocol and collude with devices. [`GraphRule::Active`] is the
//! default: the full graph with t > (n+c)/2 for up to 300 devices, and a k-regular graph beyond.
//! Its (k, t) limit the server to one large sum per slot ([`graph::parameters`]). Misbehaving
//! devices are identified and then left out or corrected ([`server::Misbehaviour`]).
//!
//! The protocol, its proofs, bounds and limitations are in
//! `docs/src/explanation/secure-aggregation.md`. The attacks in `src/attacks` test them against the
//! implementation.
//!
//! # Where to go
//!
//! | task | module |
//! |---|---|
//! | run a round in one process | [`simulate`] |
//! | run a round over a network | [`server`], [`device`], [`message`] |
//! | select the graph of secret sharing | [`graph`], [`graph::parameters`] |
//! | draw a cohort that devices can verify | [`draw`] |
//! | store the rounds that a device has joined | [`device::SeenRounds`] |
//! | add noise for differential privacy | [`noise`] |
//! | test an attack with a defence switched off | [`defences`] |
//! | review the cryptography | [`identity`], [`shamir`], [`mask`], [`transcript`] |

#[cfg(test)]
mod attacks;
pub mod defences;
pub mod device;
pub mod draw;
pub mod field;
pub mod graph;
pub mod identity;
mod keys;
#[cfg(any(test, feature = "test-util"))]
#[path = "../test-util/known_masks.rs"]
pub mod known_masks;
pub mod mask;
pub mod message;
pub mod noise;
pub mod params;
pub mod ring;
pub mod server;
pub mod shamir;
pub mod simulate;
pub mod transcript;

pub use self::defences::Defences;
pub use self::device::{DeviceRound, Participant};
pub use self::graph::GraphRule;
pub use self::identity::DeviceId;
pub use self::server::ServerRound;
pub use self::simulate::{DropOut, SimulatedRound, SimulationConfig};
