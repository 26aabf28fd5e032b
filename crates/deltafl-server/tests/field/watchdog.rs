//! A time limit for tests. A test that exceeds it ends its process: a failed assertion would not,
//! because a runtime that is dropped waits for its blocking threads.

use std::io::Write as _;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The time limit of one test. Generous, because the machine may be loaded.
const LIMIT: Duration = Duration::from_secs(600);

type Report = Box<dyn Fn() -> Option<String> + Send>;

/// Reports on the servers of this process.
static REPORTS: Mutex<Vec<Report>> = Mutex::new(Vec::new());

/// Ends the time limit when it is dropped.
#[must_use]
pub struct Watchdog(#[allow(dead_code, reason = "dropped with the watchdog")] Sender<()>);

/// Starts the time limit of a test: `let _limit = watchdog::start();` is its first line.
pub fn start() -> Watchdog {
    start_with(LIMIT)
}

/// Starts a time limit of this length.
pub fn start_with(limit: Duration) -> Watchdog {
    let (alive, ended) = channel();
    // libtest names the thread of a test after it.
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    std::thread::spawn(move || {
        if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            fail(&test, limit);
        }
    });
    Watchdog(alive)
}

/// Adds a report to the message of a test that exceeds its limit. `None` is left out.
pub fn report(report: impl Fn() -> Option<String> + Send + 'static) {
    REPORTS.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(report));
}

/// Writes to the handle itself, because libtest captures what is printed.
fn fail(test: &str, limit: Duration) -> ! {
    let mut stderr = std::io::stderr().lock();
    let _ = writeln!(stderr, "\n{test}: not done after {} s; the sessions of all servers:", limit.as_secs());
    let reports = REPORTS.lock().unwrap_or_else(PoisonError::into_inner);
    for text in reports.iter().filter_map(|report| report()) {
        let _ = writeln!(stderr, "{text}");
    }
    let _ = stderr.flush();
    std::process::exit(101);
}
