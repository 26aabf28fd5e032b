//! Progress of runs on standard error: a bar or a dashboard on a terminal, plain lines elsewhere,
//! nothing with `--quiet`.

use std::io::IsTerminal;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deltafl::training::{RoundRecord, State};
use deltafl_data::experiment::Experiment;
use deltafl_data::run_folder::Summary;
use deltafl_run::sweep::train::SweepListener;
use deltafl_run::{Listener, SeedEvaluation, idle_rounds};
use indicatif::{ProgressBar, ProgressStyle};
use miette::Result;

use crate::dashboard::Dashboard;
use crate::interrupt::stop_on_interrupt;

/// Displays the progress of a run.
pub(crate) struct Progress {
    shown: Shown,
    /// The bar of the current seed, or of all seeds.
    bar: Mutex<Option<Bar>>,
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
        Self { shown: if quiet { Shown::Quiet } else { Shown::Plain }, bar: Mutex::default() }
    }

    /// Opens a dashboard if `tui` is set and there is a terminal. Otherwise, the same as
    /// [`Self::unless`].
    pub(crate) fn new(tui: bool, quiet: bool) -> Result<Self> {
        let dashboard = if tui && !quiet { Dashboard::open(stop_on_interrupt())? } else { None };
        Ok(match dashboard {
            Some(dashboard) => Self { shown: Shown::Dashboard(dashboard), bar: Mutex::default() },
            None => Self::unless(quiet),
        })
    }

    fn on_terminal(&self) -> bool {
        matches!(self.shown, Shown::Plain) && std::io::stderr().is_terminal()
    }

    fn bar(&self) -> MutexGuard<'_, Option<Bar>> {
        self.bar.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces or removes the bar.
    fn replace_bar(&self, bar: Option<Bar>) {
        if let Some(before) = std::mem::replace(&mut *self.bar(), bar) {
            before.bar().finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.replace_bar(None);
    }
}

impl Listener for Progress {
    fn stop(&self) -> &AtomicBool {
        stop_on_interrupt()
    }

    fn shows_seeds_side_by_side(&self) -> bool {
        !matches!(self.shown, Shown::Dashboard(_))
    }

    fn begin_side_by_side(&self, experiment: &Experiment, seeds: &[State]) {
        if self.on_terminal() {
            let done = seeds.iter().map(|state| state.round).sum();
            let bar = shared_bar("seeds", experiment.rounds.get() * seeds.len() as u64, done);
            self.replace_bar(Some(Bar::AllSeeds(bar)));
        }
    }

    fn begin(&self, experiment: &Experiment, seed: u64, done: u64) {
        if let Shown::Dashboard(dashboard) = &self.shown {
            dashboard.notes().begin(experiment, seed, done);
        }
        if !self.on_terminal() || matches!(*self.bar(), Some(Bar::AllSeeds(_))) {
            return;
        }
        let style = "{prefix:>12} {bar:30} round {pos}/{len} · {per_sec} · {eta} left · {wide_msg}";
        let style = ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(experiment.rounds.get())
            .with_style(style.progress_chars("━╸─"))
            .with_position(done);
        bar.set_prefix(format!("seed {seed}"));
        bar.reset_eta();
        bar.enable_steady_tick(Duration::from_millis(250));
        self.replace_bar(Some(Bar::Seed(bar)));
    }

    fn round(&self, records: &[RoundRecord]) {
        if let Shown::Dashboard(dashboard) = &self.shown {
            dashboard.notes().round(records);
        }
        if let Some(bar) = &*self.bar() {
            bar.bar().inc(1);
        }
    }

    fn evaluation(&self, evaluation: &SeedEvaluation<'_>) {
        let SeedEvaluation { seed, round, splits, .. } = *evaluation;
        match &self.shown {
            Shown::Dashboard(dashboard) => dashboard.notes().evaluation(round, splits),
            Shown::Plain => match &*self.bar() {
                Some(Bar::Seed(bar)) => bar.set_message(evaluation.headline()),
                Some(Bar::AllSeeds(_)) => {}
                None => eprintln!("seed {seed}, round {round}: {}", evaluation.headline()),
            },
            Shown::Quiet => {}
        }
    }

    fn end(&self, _: u64) {
        if matches!(*self.bar(), Some(Bar::Seed(_))) {
            self.replace_bar(None);
        }
    }

    fn note(&self, text: &str) {
        if matches!(self.shown, Shown::Plain) {
            eprintln!("{text}");
        }
    }

    fn warn(&self, text: &str) {
        self.note(&format!("warning: {text}"));
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
    bar: Mutex<ProgressBar>,
}

impl SweepProgress {
    /// Creates a display, or none if `quiet` is set.
    pub(crate) fn unless(quiet: bool) -> Self {
        Self { quiet, bar: Mutex::new(ProgressBar::hidden()) }
    }

    fn bar(&self) -> MutexGuard<'_, ProgressBar> {
        self.bar.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn print(&self, line: &str) {
        let bar = self.bar();
        match (self.quiet, bar.is_hidden()) {
            (true, _) => {}
            (false, true) => eprintln!("{line}"),
            (false, false) => bar.println(line),
        }
    }
}

impl SweepListener for SweepProgress {
    fn stop(&self) -> &AtomicBool {
        stop_on_interrupt()
    }

    fn begin(&self, rounds: u64, done: u64) {
        if !self.quiet && std::io::stderr().is_terminal() {
            *self.bar() = shared_bar("points", rounds, done);
        }
    }

    fn round(&self) {
        self.bar().inc(1);
    }

    fn finished(&self, done: usize, of: usize, name: &str) {
        self.print(&format!("{done} of {of} points: {name}"));
    }

    fn busy(&self, name: &str) {
        self.print(&format!("{name} is being trained by another process"));
    }

    fn end(&self) {
        self.bar().finish_and_clear();
    }
}

/// Creates a bar for the rounds of several runs, of which `done` were trained earlier.
fn shared_bar(of: &str, rounds: u64, done: u64) -> ProgressBar {
    let style = format!("{{bar:30}} round {{pos}}/{{len}} of all {of} · {{per_sec}} · {{eta}} left");
    let style = ProgressStyle::with_template(&style).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(rounds).with_style(style.progress_chars("━╸─")).with_position(done);
    bar.reset_eta();
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}
