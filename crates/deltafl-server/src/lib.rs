//! The server of a federation, for embedding. It learns only sums, and the devices keep their data.
//!
//! A [`Server`] trains an experiment with devices that connect over the network. It commits every
//! round to its store. Started again with the same configuration, it continues after the last
//! committed round, and a second server on the same database is on standby.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//!
//! use deltafl_data::experiment::Experiment;
//! use deltafl_server::{InitialModel, ServedModel, Server, ServerConfig, ServerEvent};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Devices provide the trainer. The server needs the initial parameters only.
//! let model = InitialModel::zeros(&[("slope", &[1]), ("intercept", &[1])]);
//! let devices = ["sensor-0", "sensor-1", "sensor-2", "sensor-3"].map(str::to_owned);
//! let served = ServedModel::for_devices(&model, devices);
//! let experiment = Experiment::parse(&std::fs::read_to_string("points.toml")?)?;
//! let server = Server::new(ServerConfig::default(), experiment, served)?;
//! server.run(&Default::default(), |event: ServerEvent<'_>| {
//!     println!("{event}");
//!     Ok(ControlFlow::Continue(()))
//! })?;
//! # Ok(())
//! # }
//! ```
//!
//! # Where to go
//!
//! | to | see |
//! |---|---|
//! | start a complete program | `examples/embedded.rs`, and the device `own_trainer.rs` of `deltafl-device` |
//! | use certificates, Postgres, S3 or the live page | the fields of [`ServerConfig`] |
//! | display progress or stop the server | [`ServerEvent`] |
//! | train over devices with your own round loop | [`serve::Host`] and [`exchange::NetworkExchange`] |
//! | run a federation in memory and in virtual time | [`Server::with_environment`], `tests/simulated_network.rs` |
//! | learn about the attacks of a malicious server | `docs/src/explanation/threat-model.md` |
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | [`server`] | the durable server: options, events, errors |
//! | [`serve`], [`exchange`] | the gRPC side, and its devices as an exchange of the round loop |
//! | [`listener`] | connections and TLS below gRPC |
//! | [`authority`] | the certificate authority, the server's certificate, revocation |
//! | [`committer`], [`roster_renewal`] | commits to the store and run folder, roster renewal |
//! | [`store`] | the storage: SQLite or Postgres, and params by content |
//! | [`http`], [`model_api`], [`live`] | models per θ, enrolment, the live page, metrics |
//! | [`refusal`] | the refusals of the server |

pub mod authority;
pub mod committer;
pub mod exchange;
mod framed;
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
pub use server::{InitialModel, ServedModel, Server, ServerConfig, ServerError, ServerEvent, ServerObserver};
