//! An owner's command that decides whether a device participates.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// The interval at which a running command is polled.
const GLANCE: Duration = Duration::from_millis(20);

/// A command that runs repeatedly. The device participates while the last run returned exit status
/// 0.
#[derive(Clone, Debug)]
pub struct Hook {
    /// The command, run by `sh -c`.
    pub command: String,
    /// The pause between two runs.
    pub every: Duration,
    /// The time limit of a run. A run that exceeds it is killed and counts as failed.
    pub patience: Duration,
}

impl Hook {
    /// Creates a hook that runs the command every fifteen seconds with a time limit of ten seconds.
    pub fn new(command: &str) -> Self {
        Self {
            command: command.to_owned(),
            every: Duration::from_secs(15),
            patience: Duration::from_secs(10),
        }
    }

    /// Runs the command on its own thread until the result is dropped. The hook denies
    /// participation until the first run has finished.
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
                tracing::warn!(%error, "failed to run the owner's command");
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
        tracing::warn!(seconds = self.patience.as_secs(), "the owner's command exceeded its time limit");
        let _ = child.kill();
        let _ = child.wait();
        false
    }
}

/// A running hook.
#[derive(Debug)]
pub(super) struct RunningHook(Arc<AtomicBool>);

impl RunningHook {
    /// Whether the last run succeeded.
    pub(super) fn allows(&self) -> bool {
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
        assert!(!running.allows());
        std::fs::write(&file, "").unwrap();
        while !running.allows() {
            thread::yield_now();
        }
        std::fs::remove_file(&file).unwrap();
        while running.allows() {
            thread::yield_now();
        }
    }
}
