//! A command of the owner that says whether a device takes part.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// How often a running command is looked at.
const GLANCE: Duration = Duration::from_millis(20);

/// A command, run again and again: the device takes part while the last run ended with exit status 0.
#[derive(Clone, Debug)]
pub struct Hook {
    /// Run by `sh -c`.
    pub command: String,
    /// The pause between two runs.
    pub every: Duration,
    /// A run that takes longer is killed, and says no.
    pub patience: Duration,
}

impl Hook {
    /// A command that is run every fifteen seconds and has ten to answer.
    pub fn new(command: &str) -> Self {
        Self {
            command: command.to_owned(),
            every: Duration::from_secs(15),
            patience: Duration::from_secs(10),
        }
    }

    /// Runs it on a thread of its own until the result is dropped. It says no until its first run has ended.
    pub(super) fn start(self) -> RunningHook {
        let said = Arc::new(AtomicBool::new(false));
        let heard = Arc::downgrade(&said);
        thread::spawn(move || self.run_for(&heard));
        RunningHook(said)
    }

    fn run_for(&self, heard: &Weak<AtomicBool>) {
        while heard.strong_count() > 0 {
            let yes = self.run_once();
            let Some(said) = heard.upgrade() else { return };
            said.store(yes, Ordering::Relaxed);
            drop(said);
            thread::sleep(self.every);
        }
    }

    fn run_once(&self) -> bool {
        let mut command = Command::new("sh");
        command.args(["-c", &self.command]).stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                tracing::warn!(%error, "the owner's command cannot be run");
                return false;
            }
        };
        let begun = Instant::now();
        while begun.elapsed() < self.patience {
            match child.try_wait() {
                Ok(Some(status)) => return status.success(),
                Ok(None) => thread::sleep(GLANCE),
                Err(_) => break,
            }
        }
        tracing::warn!(seconds = self.patience.as_secs(), "the owner's command takes too long");
        let _ = child.kill();
        let _ = child.wait();
        false
    }
}

/// A hook that runs.
#[derive(Debug)]
pub(super) struct RunningHook(Arc<AtomicBool>);

impl RunningHook {
    /// What the last run said.
    pub(super) fn says_yes(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_status_decides_and_a_command_that_hangs_says_no() {
        let hook = |command: &str, patience| Hook { patience, ..Hook::new(command) }.run_once();
        let minute = Duration::from_secs(60);
        assert!(hook("true", minute));
        assert!(!hook("exit 3", minute));
        assert!(!hook("no-such-command-here", minute));
        assert!(!hook("exec sleep 3600", Duration::from_millis(50)));
    }

    #[test]
    fn what_the_last_run_said_holds() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("idle");
        let command = format!("test -e '{}'", file.display());
        let every = Duration::from_millis(5);
        let running = Hook { every, ..Hook::new(&command) }.start();
        assert!(!running.says_yes());
        std::fs::write(&file, "").unwrap();
        while !running.says_yes() {
            thread::yield_now();
        }
        std::fs::remove_file(&file).unwrap();
        while running.says_yes() {
            thread::yield_now();
        }
    }
}
