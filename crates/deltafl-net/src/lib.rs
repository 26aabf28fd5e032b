//! The deployed federation: a server that learns sums, and devices that keep their data.
//!
//! The round loop stays [`deltafl::training::train`]; this crate is one more [`Engine`](deltafl::engine::Engine), whose
//! devices are at the other end of a connection that they opened.
//!
//! | module | holds |
//! |---|---|
//! | [`serve`], [`engine`], [`roster`] | the server, the devices as an engine, who they are |
//! | [`device`], [`swarm`] | a device: consent, session, answers; many of them |
//! | [`link`], [`wire`] | connections and messages below both |
//! | [`refusal`], [`fault`], [`loopback`] | what the server turns away; devices that misbehave on purpose; a fleet for one machine |

pub mod device;
pub mod engine;
pub mod fault;
#[doc(hidden)]
pub mod fuzzing;
mod hub;
pub mod link;
pub mod loopback;
mod reception;
pub mod refusal;
pub mod roster;
mod round;
pub mod serve;
pub mod swarm;
pub mod wire;

pub use round::Deadlines;
