//! The deployed federation: a server that learns sums, and devices that keep their data.
//!
//! The round loop stays [`deltafl::training::train`]; this crate is one more [`Exchange`](deltafl::exchange::Exchange), whose
//! devices are at the other end of a connection that they opened.
//!
//! | module | holds |
//! |---|---|
//! | [`serve`], [`engine`], [`roster`] | the server, the devices as an engine, who they are |
//! | [`device`], [`swarm`] | a device: consent, session, answers; many of them |
//! | [`link`], [`wire`] | connections and messages below both |
//! | [`guard`] | against whom a round protects: what servers offer and devices insist on |
//! | [`identity`] | certificates, signing keys, enrolment tokens, revocation |
//! | [`store`] | what the server remembers: SQLite or Postgres, and params by content |
//! | [`http`], [`knob`], [`live`] | models per θ, enrolment, the live page, metrics |
//! | [`refusal`], [`fault`], [`loopback`] | what the server turns away; devices that misbehave on purpose; a fleet for one machine |

pub mod device;
pub mod engine;
pub mod enrolment;
pub mod fault;
#[doc(hidden)]
pub mod fuzzing;
pub mod guard;
pub mod http;
mod hub;
pub mod identity;
pub mod knob;
pub mod link;
pub mod live;
pub mod loopback;
mod metrics;
mod reception;
pub mod refusal;
pub mod roster;
mod round;
pub mod serve;
pub mod store;
pub mod swarm;
pub mod wire;

pub use round::Deadlines;
