//! The owner's conditions: hours, power and network under which a device participates.
//!
//! Linux exposes power supplies in `/sys/class/power_supply` and networks in `/proc/net` and
//! `/sys/class/net`. A command ([`Hook`]) serves other systems and other conditions. A device does
//! not participate if it cannot determine whether a condition is met.

mod hook;
mod hours;
mod network;
mod power;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

pub use self::hook::Hook;
pub use self::hours::{Hours, InvalidWindow, TimeWindow};
use crate::consent::{Reason, Willing};

/// The conditions under which a device participates.
#[derive(Clone, Default)]
pub struct Conditions {
    /// The hours of the day, or any hour if `None`.
    pub hours: Option<Hours>,
    /// Participates on mains power only.
    pub on_mains: bool,
    /// Does not participate over a mobile modem or Bluetooth.
    pub unmetered: bool,
    /// Participates while a command succeeds.
    pub hook: Option<Hook>,
    /// The folder that contains `sys` and `proc`. It is `/` except in tests.
    pub root: Root,
}

/// The root of the file system that exposes the state of the machine.
#[derive(Clone, Debug)]
pub struct Root(pub PathBuf);

impl Default for Root {
    fn default() -> Self {
        Self(PathBuf::from("/"))
    }
}

/// A condition that is not met.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unmet {
    /// The time is outside the allowed hours.
    #[error("it is outside of the hours that this device's owner allows")]
    Hours,
    /// The machine runs on battery.
    #[error("the machine is not on mains power")]
    Battery,
    /// The network is metered.
    #[error("the network {0} belongs to a mobile modem or to Bluetooth")]
    Metered(String),
    /// The command failed or has not finished its first run.
    #[error("the owner's command does not permit participation")]
    Hook,
    /// The system does not expose the required state.
    #[error("this system does not expose its {what} state in {path}")]
    Unknown {
        /// The missing state.
        what: &'static str,
        /// The path that was read.
        path: PathBuf,
    },
}

impl Unmet {
    /// Returns the reason sent to the server. It contains no more than the server needs to count
    /// its devices.
    fn reason(&self) -> Reason {
        match self {
            Self::Battery => Reason::Battery,
            Self::Hook => Reason::Busy,
            Self::Hours | Self::Metered(_) | Self::Unknown { .. } => Reason::Policy,
        }
    }
}

impl Conditions {
    /// Checks all conditions except the command, which [`Self::willing`] starts.
    pub fn check(&self) -> Result<(), Unmet> {
        if self.hours.as_ref().is_some_and(|hours| !hours.are_now()) {
            return Err(Unmet::Hours);
        }
        if self.on_mains && !power::is_on_mains(&self.root.0)? {
            return Err(Unmet::Battery);
        }
        match self.unmetered.then(|| network::metered(&self.root.0)).transpose()?.flatten() {
            Some(interface) => Err(Unmet::Metered(interface)),
            None => Ok(()),
        }
    }

    /// Converts the conditions into the check that a device's [`Consent`](crate::Consent) uses. The
    /// command runs on its own thread until the result is dropped.
    pub fn willing(self) -> Willing {
        let hook = self.hook.clone().map(Hook::start);
        let last: Mutex<Option<Unmet>> = Mutex::new(None);
        Arc::new(move || {
            let said = hook.as_ref().is_none_or(hook::RunningHook::allows);
            let unmet = self.check().and(if said { Ok(()) } else { Err(Unmet::Hook) }).err();
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            if *last != unmet {
                match &unmet {
                    Some(unmet) => tracing::info!(%unmet, "takes no part for now"),
                    None => tracing::info!("all conditions are met again"),
                }
                last.clone_from(&unmet);
            }
            unmet.map_or(Ok(()), |unmet| Err(unmet.reason()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_condition_that_is_not_met_is_named_and_the_server_learns_little() {
        let root = tempfile::tempdir().unwrap();
        let conditions =
            Conditions { unmetered: true, root: Root(root.path().to_owned()), ..Conditions::default() };
        let unmet = conditions.check().unwrap_err();
        assert!(matches!(unmet, Unmet::Unknown { what: "network", .. }), "{unmet}");
        assert_eq!((conditions.willing())(), Err(Reason::Policy));
        let never = Hours { windows: Vec::new(), now: Arc::new(|| 0) };
        let conditions = Conditions { hours: Some(never), on_mains: true, ..Conditions::default() };
        assert_eq!(conditions.check(), Err(Unmet::Hours));
        assert_eq!((Conditions::default().willing())(), Ok(()));
    }
}
