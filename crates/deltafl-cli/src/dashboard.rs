//! `--tui`: a dashboard on the terminal while a run trains.
//!
//! A thread of its own paints what training notes down, and listens to the keys: in raw mode Ctrl-C is a key and
//! no signal. The terminal is given back at the end, on a panic and before the process exits, whichever comes first.

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

/// Time between two paintings.
const TICK: Duration = Duration::from_millis(150);

/// Whether the terminal is ours.
static OPEN: AtomicBool = AtomicBool::new(false);

/// The dashboard; the terminal is given back when it is dropped.
pub(crate) struct Dashboard {
    notes: Notes,
    closing: Arc<AtomicBool>,
    painter: Option<JoinHandle<()>>,
}

/// What training writes down for the painter.
#[derive(Clone)]
pub(crate) struct Notes {
    view: Arc<Mutex<View>>,
    start: Instant,
}

impl Dashboard {
    /// Takes the terminal; `None`, with a word on why, where there is none. `stop` is raised by the user's wish to stop.
    pub(crate) fn open(stop: &'static AtomicBool) -> Result<Option<Self>> {
        if !io::stderr().is_terminal() || !io::stdin().is_terminal() {
            eprintln!("--tui needs a terminal: showing plain progress instead");
            return Ok(None);
        }
        restore_on_panic();
        let terminal = take_terminal().into_diagnostic().wrap_err("cannot take the terminal for --tui")?;
        let notes = Notes { view: Arc::default(), start: Instant::now() };
        let closing = Arc::new(AtomicBool::new(false));
        let (view, closed) = (Arc::clone(&notes.view), Arc::clone(&closing));
        let painter = std::thread::spawn(move || paint(terminal, &view, stop, &closed));
        Ok(Some(Self { notes, closing, painter: Some(painter) }))
    }

    /// For training.
    pub(crate) fn notes(&self) -> &Notes {
        &self.notes
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        // First the painter ends, at its next tick, so that it paints nothing on a terminal that is no longer ours. After
        // a panic it is not ours already, and the painter may wait for a line that nobody will type: it is left alone.
        let ours = is_open();
        self.closing.store(true, Ordering::Release);
        if let Some(painter) = self.painter.take().filter(|_| ours) {
            // A panic in it has been reported by then.
            let _ = painter.join();
        }
        restore();
    }
}

impl Notes {
    /// A seed of an experiment begins, with so many rounds done earlier.
    pub(crate) fn begin(&self, experiment: &Experiment, seed: u64, done: u64) {
        self.view().begin(experiment, seed, done, self.start.elapsed());
    }

    /// A round of all tracks is done.
    pub(crate) fn round(&self, records: &[RoundRecord]) {
        self.view().round(records, self.start.elapsed());
    }

    /// Every device has been evaluated.
    pub(crate) fn evaluation(&self, round: u64, splits: &[SplitEvaluation]) {
        self.view().evaluation(round, splits);
    }

    fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a dashboard has the terminal: nothing else may print on it.
pub(crate) fn is_open() -> bool {
    OPEN.load(Ordering::Relaxed)
}

/// Gives the terminal back, once.
pub(crate) fn restore() {
    if OPEN.swap(false, Ordering::Relaxed) {
        // There is nobody left to tell when this fails.
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

/// A panic gives the terminal back before it speaks.
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

/// Paints and listens until the dashboard closes or the terminal is given back.
fn paint(
    mut terminal: Terminal<CrosstermBackend<Stderr>>,
    view: &Mutex<View>,
    stop: &AtomicBool,
    closing: &AtomicBool,
) {
    while is_open() {
        // Asked before the view is looked at, so that the last picture is that of the end, however short the run was.
        let last = closing.load(Ordering::Acquire);
        let mut now = view.lock().unwrap_or_else(PoisonError::into_inner).clone();
        now.stopping = stop.load(Ordering::Relaxed);
        // The terminal may have gone, with the connection behind it: training goes on without.
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
    #[ignore = "the next test runs it, on a terminal of its own"]
    fn panics_with_the_terminal_taken() {
        let _dashboard = Dashboard::open(stop_on_interrupt()).unwrap().expect("there is a terminal");
        panic!("on purpose");
    }

    #[test]
    fn a_panic_gives_the_terminal_back_before_it_speaks() {
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
