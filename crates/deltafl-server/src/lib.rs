//! The server of a federation, for embedding. It learns only sums, and the devices keep their data.
//!
//! The round loop is [`deltafl::training::train`]. This crate provides an
//! [`Exchange`](deltafl::exchange::Exchange) with devices that connect over the network.
//!
//! | module | contents |
//! |---|---|
//! | [`server`] | the durable server: options, events, errors |
//! | [`serve`], [`exchange`] | the gRPC side, and its devices as an exchange of the round loop |
//! | [`listener`] | TCP and TLS below gRPC |
//! | [`authority`] | the certificate authority, the server's certificate, revocation |
//! | [`committer`], [`roster_renewal`] | commits to the store and run folder, roster renewal |
//! | [`store`] | the storage: SQLite or Postgres, and params by content |
//! | [`http`], [`model_api`], [`live`] | models per θ, enrolment, the live page, metrics |
//! | [`refusal`] | the refusals of the server |

pub mod authority;
pub mod committer;
pub mod exchange;
mod framed;
#[doc(hidden)]
pub mod fuzzing;
pub mod http;
mod hub;
pub mod listener;
pub mod live;
mod metrics;
pub mod model_api;
mod paced;
mod quota;
pub mod refusal;
pub mod roster_renewal;
mod round;
pub mod serve;
pub mod server;
mod service;
pub mod store;

pub use round::Deadlines;
pub use server::{InitialModel, ServedModel, Server, ServerConfig, ServerError, ServerEvent, ServerListener};
