//! The events of a server.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use deltafl::training::{Observer, ObserverError, RoundRecord, SharedObserver, TrainingError};
use deltafl_data::experiment::Experiment;
use deltafl_data::run_folder::RunFolderError;
use deltafl_wire::chain;

use super::error::{self, ServerError};
use crate::roster_renewal::RenewalError;

/// An event of a server.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum ServerEvent<'a> {
    /// Devices hold no examples out, so that nothing will be known of their error.
    NothingHeldOut,
    /// The keys of the authority are not here: devices enrol elsewhere, and rosters are signed
    /// there.
    NoAuthorityKeys,
    /// The roster expires soon, and the keys to sign another are not here.
    RosterExpires {
        /// Days until then.
        days: u64,
    },
    /// The roster could not be renewed; it is tried again.
    RosterNotRenewed {
        /// The error.
        error: &'a RenewalError,
    },
    /// The live page is served.
    Page {
        /// Its address.
        url: &'a str,
    },
    /// Another server leads; this one is on standby.
    StandingBy,
    /// Devices can connect.
    Listening {
        /// The address of the socket.
        address: SocketAddr,
        /// The devices for which the first round waits.
        devices: usize,
    },
    /// A seed begins.
    SeedBegins {
        /// The experiment.
        experiment: &'a Experiment,
        /// The seed.
        seed: u64,
        /// Rounds trained earlier.
        done: u64,
    },
    /// A round is committed.
    Round {
        /// The record of the first track.
        record: &'a RoundRecord,
        /// The time of the round.
        seconds: f64,
    },
    /// `summary.json` could not be written.
    NoSummary {
        /// The error.
        error: &'a RunFolderError,
    },
    /// Requests were refused, by reason.
    Refused {
        /// Name and count of each reason.
        counts: &'a [(&'static str, u64)],
    },
    /// All rounds are done; the server serves the models until it is stopped.
    Staying,
}

/// A line for a person.
impl fmt::Display for ServerEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NothingHeldOut => f.write_str(
                "devices hold no examples out, and nothing will be known of their error: under [data] write \
                 split = { within = { train = 0.8 } }",
            ),
            Self::NoAuthorityKeys => f.write_str(
                "the authority's keys are not here: devices enrol elsewhere, and `deltafl certs roster` signs the roster",
            ),
            Self::RosterExpires { days } => write!(f, "the roster expires in {days} days; {}", error::SIGN),
            Self::RosterNotRenewed { error } => write!(f, "the roster could not be renewed: {}", chain(*error)),
            Self::Page { url } => write!(f, "live page: {url}"),
            Self::StandingBy => f.write_str("another server leads; standing by"),
            Self::Listening { address, devices } => {
                let noun = if *devices == 1 { "device" } else { "devices" };
                write!(f, "listening on {address}; waiting for {devices} {noun}")
            }
            Self::SeedBegins { seed, done, .. } => write!(f, "seed {seed} begins after {done} rounds"),
            Self::Round { record, seconds } => {
                let RoundRecord { seed, round, cohort, dropped, .. } = record;
                let (round, stayed) = (round + 1, cohort - dropped);
                write!(f, "seed {seed}, round {round}: {stayed} of {cohort} devices, {seconds:.1} s")
            }
            Self::NoSummary { error } => write!(f, "summary.json could not be written: {}", chain(*error)),
            Self::Refused { counts } => {
                let counts: Vec<String> =
                    counts.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
                write!(f, "refused: {}", counts.join(", "))
            }
            Self::Staying => f.write_str("all rounds are done; serving the models until stopped"),
        }
    }
}

/// An observer of a server. Events arrive from several threads, one at a time.
pub type ServerObserver = dyn for<'e> Observer<ServerEvent<'e>> + Send;

/// Sends events to the observer. Stops the server if the observer asks for it or fails.
#[derive(Clone)]
pub(crate) struct ServerEvents {
    observer: Arc<SharedObserver<Box<ServerObserver>>>,
    stop: Arc<AtomicBool>,
    /// The first error of the observer.
    failure: Arc<OnceLock<ObserverError>>,
}

impl ServerEvents {
    pub(super) fn new(observer: Box<ServerObserver>, stop: &Arc<AtomicBool>) -> Self {
        let observer = Arc::new(SharedObserver::new(observer));
        Self { observer, stop: Arc::clone(stop), failure: Arc::default() }
    }

    pub(crate) fn send(&self, event: ServerEvent<'_>) {
        match self.observer.send(event) {
            Ok(false) => return,
            Ok(true) => {}
            // The first error is reported.
            Err(error) => drop(self.failure.set(error)),
        }
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Returns the error of the observer, if it failed.
    pub(super) fn failure(self) -> Option<ServerError> {
        let error = Arc::into_inner(self.failure)?.into_inner()?;
        Some(ServerError::Training(TrainingError::Observer(error)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_names_the_cause_of_an_error() {
        let source = std::io::Error::other("no space left");
        let error = RunFolderError::Io { path: "run/summary.json".into(), source };
        let line = ServerEvent::NoSummary { error: &error }.to_string();
        assert_eq!(line, "summary.json could not be written: run/summary.json: no space left");
    }
}
