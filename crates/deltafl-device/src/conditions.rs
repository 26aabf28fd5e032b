//! Conditions of the owner: at which hours, on which power and over which network a device takes part.
//!
//! Linux shows power supplies in `/sys/class/power_supply` and networks in `/proc/net` and `/sys/class/net`. Where a system
//! shows nothing, and for whatever else an owner wants, a command decides ([`Hook`]). A device that cannot tell whether a
//! condition is met stays away.

mod hook;
mod hours;
mod network;
mod power;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

pub use self::hook::Hook;
pub use self::hours::{Hours, InvalidWindow, TimeWindow};
use crate::consent::{Reason, Willing};

/// What must hold for a device to take part.
#[derive(Clone, Default)]
pub struct Conditions {
    /// The hours of the day; `None` is any.
    pub hours: Option<Hours>,
    /// On mains power only.
    pub on_mains: bool,
    /// Not over a mobile modem or Bluetooth.
    pub unmetered: bool,
    /// While a command says so.
    pub hook: Option<Hook>,
    /// The folder in which `sys` and `proc` lie: `/` unless a test sets another.
    pub root: Root,
}

/// Where a system shows its state.
#[derive(Clone, Debug)]
pub struct Root(pub PathBuf);

impl Default for Root {
    fn default() -> Self {
        Self(PathBuf::from("/"))
    }
}

/// The condition that is not met.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unmet {
    /// Another hour.
    #[error("it is outside of the hours that this device's owner allows")]
    Hours,
    /// A battery is being emptied.
    #[error("the machine is not on mains power")]
    Battery,
    /// The network costs.
    #[error("the network {0} is a mobile modem's or Bluetooth")]
    Metered(String),
    /// The command said no, or nothing yet.
    #[error("the owner's command does not say that there is time")]
    Hook,
    /// The system does not show what a condition needs.
    #[error("this system does not show its {what} in {path}")]
    Unknown {
        /// What is missing.
        what: &'static str,
        /// Where it was looked for.
        path: PathBuf,
    },
}

impl Unmet {
    /// What the server is told: no more than it needs to count its devices.
    fn reason(&self) -> Reason {
        match self {
            Self::Battery => Reason::Battery,
            Self::Hook => Reason::Busy,
            Self::Hours | Self::Metered(_) | Self::Unknown { .. } => Reason::Policy,
        }
    }
}

impl Conditions {
    /// Checks all conditions but the command's, which [`Self::willing`] starts.
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

    /// These conditions for a device's [`Consent`](crate::Consent). The command is run on a thread of its own for as long as
    /// the result is in use.
    pub fn willing(self) -> Willing {
        let hook = self.hook.clone().map(Hook::start);
        let last: Mutex<Option<Unmet>> = Mutex::new(None);
        Arc::new(move || {
            let said = hook.as_ref().is_none_or(hook::RunningHook::says_yes);
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
