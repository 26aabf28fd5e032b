//! Progress of runs on standard error: a bar or a dashboard on a terminal, plain lines elsewhere,
//! nothing with `--quiet`.

use std::io::IsTerminal;
use std::time::Duration;

use deltafl::training::{Event, Observer, ObserverResult};
use deltafl_data::experiment::Experiment;
use deltafl_data::run_folder::Summary;
use deltafl_run::event::headline;
use deltafl_run::{RunEvent, SweepEvent, idle_rounds};
use indicatif::{ProgressBar, ProgressStyle};
use miette::Result;

use crate::dashboard::Dashboard;
use crate::interrupt::{interrupted, stop_on_interrupt};

/// Displays the progress of a run.
pub(crate) struct Progress {
    shown: Shown,
    /// The bar of the current seed, or of all seeds.
    bar: Option<Bar>,
}

enum Shown {
    /// A bar on a terminal, lines elsewhere.
    Plain,
    /// Nothing.
    Quiet,
    /// A dashboard that fills the terminal until this is dropped.
    Dashboard(Dashboard),
}

enum Bar {
    Seed(ProgressBar),
    AllSeeds(ProgressBar),
}

impl Bar {
    fn bar(&self) -> &ProgressBar {
        match self {
            Self::Seed(bar) | Self::AllSeeds(bar) => bar,
        }
    }
}

impl Progress {
    /// Creates a plain display, or none if `quiet` is set.
    pub(crate) fn unless(quiet: bool) -> Self {
        Self { shown: if quiet { Shown::Quiet } else { Shown::Plain }, bar: None }
    }

    /// Opens a dashboard if `tui` is set and there is a terminal. Otherwise, the same as
    /// [`Self::unless`].
    pub(crate) fn new(tui: bool, quiet: bool) -> Result<Self> {
        let dashboard = if tui && !quiet { Dashboard::open(stop_on_interrupt())? } else { None };
        Ok(match dashboard {
            Some(dashboard) => Self { shown: Shown::Dashboard(dashboard), bar: None },
            None => Self::unless(quiet),
        })
    }

    /// Returns whether several seeds can be displayed at the same time.
    pub(crate) fn shows_concurrent_seeds(&self) -> bool {
        !matches!(self.shown, Shown::Dashboard(_))
    }

    fn on_terminal(&self) -> bool {
        matches!(self.shown, Shown::Plain) && std::io::stderr().is_terminal()
    }

    /// Replaces or removes the bar.
    fn replace_bar(&mut self, bar: Option<Bar>) {
        if let Some(before) = std::mem::replace(&mut self.bar, bar) {
            before.bar().finish_and_clear();
        }
    }

    fn print(&self, text: &str) {
        if matches!(self.shown, Shown::Plain) {
            eprintln!("{text}");
        }
    }

    fn begin_seed(&mut self, experiment: &Experiment, seed: u64, done: u64) {
        if let Shown::Dashboard(dashboard) = &self.shown {
            dashboard.notes().begin(experiment, seed, done);
        }
        if !self.on_terminal() || matches!(self.bar, Some(Bar::AllSeeds(_))) {
            return;
        }
        let style = "{prefix:>12} {bar:30} round {pos}/{len} · {per_sec} · {eta} left · {wide_msg}";
        let bar = styled_bar(style, experiment.rounds(), done);
        bar.set_prefix(format!("seed {seed}"));
        self.replace_bar(Some(Bar::Seed(bar)));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.replace_bar(None);
    }
}

impl Observer<RunEvent<'_>> for Progress {
    fn handle(&mut self, event: RunEvent<'_>) -> ObserverResult {
        match event {
            RunEvent::Note(text) => self.print(text),
            RunEvent::Warning(text) => self.print(&format!("warning: {text}")),
            RunEvent::SeedsBegin { experiment, states } if self.on_terminal() => {
                let done = states.iter().map(|state| state.round).sum();
                let bar = shared_bar("seeds", experiment.rounds() * states.len() as u64, done);
                self.replace_bar(Some(Bar::AllSeeds(bar)));
            }
            RunEvent::SeedBegins { experiment, seed, done } => self.begin_seed(experiment, seed, done),
            RunEvent::Training { event: Event::RoundFinished { records }, .. } => {
                if let Shown::Dashboard(dashboard) = &self.shown {
                    dashboard.notes().round(records);
                }
                if let Some(bar) = &self.bar {
                    bar.bar().inc(1);
                }
            }
            RunEvent::Training { seed, labels, event: Event::Evaluated { round, splits } } => {
                match (&self.shown, &self.bar) {
                    (Shown::Dashboard(dashboard), _) => dashboard.notes().evaluation(round, splits),
                    (Shown::Plain, Some(Bar::Seed(bar))) => bar.set_message(headline(labels, splits)),
                    (Shown::Plain, None) => {
                        eprintln!("seed {seed}, round {round}: {}", headline(labels, splits));
                    }
                    (Shown::Plain, Some(Bar::AllSeeds(_))) | (Shown::Quiet, _) => {}
                }
            }
            RunEvent::SeedEnds { .. } if matches!(self.bar, Some(Bar::Seed(_))) => self.replace_bar(None),
            _ => {}
        }
        Ok(interrupted())
    }
}

/// Prints a warning for every track in which most rounds changed nothing.
pub(crate) fn warn_of_idle_rounds(summary: &Summary, experiment: &Experiment) {
    let warnings = idle_rounds::warnings(summary, experiment);
    warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
}

/// Displays the progress of a sweep.
pub(crate) struct SweepProgress {
    quiet: bool,
    bar: ProgressBar,
}

impl SweepProgress {
    /// Creates a display, or none if `quiet` is set.
    pub(crate) fn unless(quiet: bool) -> Self {
        Self { quiet, bar: ProgressBar::hidden() }
    }

    fn print(&self, line: &str) {
        match (self.quiet, self.bar.is_hidden()) {
            (true, _) => {}
            (false, true) => eprintln!("{line}"),
            (false, false) => self.bar.println(line),
        }
    }
}

impl Observer<SweepEvent<'_>> for SweepProgress {
    fn handle(&mut self, event: SweepEvent<'_>) -> ObserverResult {
        match event {
            SweepEvent::Begins { rounds, done } if !self.quiet && std::io::stderr().is_terminal() => {
                self.bar = shared_bar("points", rounds, done);
            }
            SweepEvent::Point {
                event: RunEvent::Training { event: Event::RoundFinished { .. }, .. },
                ..
            } => {
                self.bar.inc(1);
            }
            SweepEvent::PointFinished { name, done, of } => {
                self.print(&format!("{done} of {of} points: {name}"));
            }
            SweepEvent::PointBusy { name } => {
                self.print(&format!("{name} is being trained by another process"));
            }
            SweepEvent::Ends => self.bar.finish_and_clear(),
            _ => {}
        }
        Ok(interrupted())
    }
}

/// Creates a bar for the rounds of several runs, of which `done` were trained earlier.
fn shared_bar(of: &str, rounds: u64, done: u64) -> ProgressBar {
    let style = format!("{{bar:30}} round {{pos}}/{{len}} of all {of} · {{per_sec}} · {{eta}} left");
    styled_bar(&style, rounds, done)
}

fn styled_bar(style: &str, rounds: u64, done: u64) -> ProgressBar {
    let style = ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(rounds).with_style(style.progress_chars("━╸─")).with_position(done);
    bar.reset_eta();
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}
