//! `--tui`: a dashboard on the terminal while a run trains.
//!
//! A separate thread draws the notes of the training and reads the keys. In raw mode, Ctrl-C is a
//! key and not a signal. The terminal is restored at the end, on a panic, or before the process
//! exits.

use std::io::{self, IsTerminal, Stderr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use deltafl::exchange::SplitEvaluation;
use deltafl::training::RoundRecord;
use deltafl_data::experiment::Experiment;
use miette::{IntoDiagnostic, Result, WrapErr};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};

mod draw;
mod view;

use view::View;

/// Time between two redraws.
const TICK: Duration = Duration::from_millis(150);

/// Whether the dashboard controls the terminal.
static OPEN: AtomicBool = AtomicBool::new(false);

/// The dashboard. Dropping it restores the terminal.
pub(crate) struct Dashboard {
    notes: Notes,
    closing: Arc<AtomicBool>,
    painter: Option<JoinHandle<()>>,
}

/// Notes of the training for the drawing thread.
#[derive(Clone)]
pub(crate) struct Notes {
    view: Arc<Mutex<View>>,
    start: Instant,
}

impl Dashboard {
    /// Opens the dashboard. Returns `None` and prints a message if there is no terminal. `stop` is
    /// set when the user asks to stop.
    pub(crate) fn open(stop: &'static AtomicBool) -> Result<Option<Self>> {
        if !io::stderr().is_terminal() || !io::stdin().is_terminal() {
            eprintln!("--tui needs a terminal: showing plain progress instead");
            return Ok(None);
        }
        restore_on_panic();
        let terminal = take_terminal().into_diagnostic().wrap_err("cannot open the terminal for --tui")?;
        let notes = Notes { view: Arc::default(), start: Instant::now() };
        let closing = Arc::new(AtomicBool::new(false));
        let (view, closed) = (Arc::clone(&notes.view), Arc::clone(&closing));
        let painter = std::thread::spawn(move || paint(terminal, &view, stop, &closed));
        Ok(Some(Self { notes, closing, painter: Some(painter) }))
    }

    /// Returns the handle for the training code.
    pub(crate) fn notes(&self) -> &Notes {
        &self.notes
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        // The drawing thread ends first, at its next tick, so that it does not draw on a restored
        // terminal. After a panic the terminal is already restored, and the thread may wait for
        // input. It is then not joined.
        let ours = is_open();
        self.closing.store(true, Ordering::Release);
        if let Some(painter) = self.painter.take().filter(|_| ours) {
            // A panic of the thread has already been reported.
            let _ = painter.join();
        }
        restore();
    }
}

impl Notes {
    /// Notes that a seed of an experiment begins, with `done` rounds trained earlier.
    pub(crate) fn begin(&self, experiment: &Experiment, seed: u64, done: u64) {
        self.view().begin(experiment, seed, done, self.start.elapsed());
    }

    /// Notes that a round of all tracks is done.
    pub(crate) fn round(&self, records: &[RoundRecord]) {
        self.view().round(records, self.start.elapsed());
    }

    /// Notes that every device has been evaluated.
    pub(crate) fn evaluation(&self, round: u64, splits: &[SplitEvaluation]) {
        self.view().evaluation(round, splits);
    }

    fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether a dashboard controls the terminal. Nothing else may then print to it.
pub(crate) fn is_open() -> bool {
    OPEN.load(Ordering::Relaxed)
}

/// Restores the terminal, once.
pub(crate) fn restore() {
    if OPEN.swap(false, Ordering::Relaxed) {
        // A failure cannot be reported any more.
        let _ = disable_raw_mode();
        let _ = execute!(io::stderr(), LeaveAlternateScreen, ratatui::crossterm::cursor::Show);
    }
}

fn take_terminal() -> io::Result<Terminal<CrosstermBackend<Stderr>>> {
    enable_raw_mode()?;
    OPEN.store(true, Ordering::Relaxed);
    let taken = execute!(io::stderr(), EnterAlternateScreen)
        .and_then(|()| Terminal::new(CrosstermBackend::new(io::stderr())));
    if taken.is_err() {
        restore();
    }
    taken
}

/// Restores the terminal before a panic message is printed.
fn restore_on_panic() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            before(panic);
        }));
    });
}

/// Draws and reads keys until the dashboard closes or the terminal is restored.
fn paint(
    mut terminal: Terminal<CrosstermBackend<Stderr>>,
    view: &Mutex<View>,
    stop: &AtomicBool,
    closing: &AtomicBool,
) {
    while is_open() {
        // Read before the view, so that the last frame shows the end of the run, even of a very
        // short one.
        let last = closing.load(Ordering::Acquire);
        let mut now = view.lock().unwrap_or_else(PoisonError::into_inner).clone();
        now.stopping = stop.load(Ordering::Relaxed);
        // The terminal may be gone, for example after a lost connection. Training continues without
        // it.
        if terminal.draw(|frame| draw::screen(frame, &now)).is_err() {
            return restore();
        }
        if last {
            return;
        }
        match event::poll(TICK).and_then(|ready| if ready { event::read().map(Some) } else { Ok(None) }) {
            Ok(Some(event)) if asks_to_stop(&event) => {
                if stop.swap(true, Ordering::Relaxed) {
                    restore();
                    std::process::exit(130);
                }
            }
            Ok(_) => {}
            Err(_) => return restore(),
        }
    }
}

fn asks_to_stop(event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    let control_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind == KeyEventKind::Press && (key.code == KeyCode::Char('q') || control_c)
}

#[cfg(test)]
mod tests {
    use ratatui::crossterm::event::KeyEvent;

    use super::*;
    use crate::interrupt::stop_on_interrupt;

    #[test]
    #[ignore = "run by the next test on a separate terminal"]
    fn panics_with_the_terminal_taken() {
        let _dashboard = Dashboard::open(stop_on_interrupt()).unwrap().expect("there is a terminal");
        panic!("on purpose");
    }

    #[test]
    fn a_panic_restores_the_terminal_before_its_message() {
        let this = std::env::current_exe().unwrap();
        let name = "dashboard::tests::panics_with_the_terminal_taken";
        let line = format!("'{}' --exact {name} --ignored --nocapture", this.display());
        let script = std::process::Command::new("timeout")
            .args(["60", "script", "-qefc", &line, "/dev/null"])
            .output();
        let Some(output) = script.ok().filter(|output| output.status.code() != Some(127)) else {
            eprintln!("skipped: `script` is not in PATH (apt-get install bsdutils)");
            return;
        };
        assert_ne!(output.status.code(), Some(124), "the process hung after its panic");
        let told = String::from_utf8_lossy(&output.stdout);
        let at = |text: &str| told.find(text).unwrap_or_else(|| panic!("{text}: {told:?}"));
        assert!(at("\x1b[?1049h") < at("\x1b[?1049l") && at("\x1b[?1049l") < at("on purpose"), "{told:?}");
    }

    #[test]
    fn q_and_control_c_ask_to_stop_and_other_keys_do_not() {
        let key = |code, modifiers| asks_to_stop(&Event::Key(KeyEvent::new(code, modifiers)));
        assert!(key(KeyCode::Char('q'), KeyModifiers::NONE));
        assert!(key(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(!key(KeyCode::Char('c'), KeyModifiers::NONE));
        assert!(!key(KeyCode::Enter, KeyModifiers::NONE));
    }
}
