//! Progress of a run: a bar or a dashboard on a terminal, plain lines elsewhere, nothing when quiet.

use std::io::IsTerminal;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use deltafl::algorithm::TrackLabel;
use deltafl::data::Split;
use deltafl::exchange::SplitEvaluation;
use deltafl::metrics::Figures;
use deltafl::task::Unit;
use deltafl::training::{RoundRecord, State};
use deltafl_data::experiment::Experiment;
use indicatif::{ProgressBar, ProgressStyle};
use miette::Result;

use crate::dashboard::{Dashboard, Notes};
use crate::table;

/// A program that trains by the library and shows progress itself.
pub trait Listener: Sync {
    /// The flag that ends the run after the round.
    fn stop(&self) -> &AtomicBool;

    /// A seed begins, `done` rounds of it earlier.
    fn begin(&self, experiment: &Experiment, seed: u64, done: u64);

    /// A round of all tracks is done.
    fn round(&self, records: &[RoundRecord]);

    /// Every device has been evaluated; `headline` is the line that the command shows.
    fn evaluation(&self, seed: u64, round: u64, headline: &str);

    /// Something to know of the run: a warning.
    fn warn(&self, text: &str);
}

/// What a command shows of a run, on standard error.
pub(crate) enum Show<'a> {
    /// A bar on a terminal, lines elsewhere.
    Plain,
    /// Nothing.
    Quiet,
    /// Rounds on a bar that several runs share.
    Shared(ProgressBar),
    /// A dashboard that fills the terminal until this is dropped.
    Dashboard(Dashboard),
    /// What a listener makes of it.
    Listener(&'a dyn Listener),
}

impl Show<'_> {
    /// Says what a person should know of a run, where there is room for it.
    pub(crate) fn say(&self, text: &str) {
        match self {
            Self::Plain => eprintln!("{text}"),
            Self::Listener(listener) => listener.warn(text.strip_prefix("warning: ").unwrap_or(text)),
            Self::Quiet | Self::Shared(_) | Self::Dashboard(_) => {}
        }
    }

    /// Progress, unless asked for none.
    pub(crate) fn unless(quiet: bool) -> Self {
        if quiet { Self::Quiet } else { Self::Plain }
    }

    /// A dashboard if asked for one and there is a terminal; otherwise as [`Self::unless`].
    pub(crate) fn new(tui: bool, quiet: bool, stop: &'static AtomicBool) -> Result<Self> {
        let dashboard = if tui && !quiet { Dashboard::open(stop)? } else { None };
        Ok(dashboard.map_or_else(|| Self::unless(quiet), Self::Dashboard))
    }

    /// For the seeds of a run side by side: on a terminal one bar of them all.
    pub(crate) fn over_seeds(&self, experiment: &Experiment, seeds: &[State]) -> Self {
        match self {
            Self::Plain if std::io::stderr().is_terminal() => {
                let done = seeds.iter().map(|state| state.round).sum();
                Self::Shared(shared_bar("seeds", experiment.rounds() * seeds.len() as u64, done))
            }
            Self::Plain => Self::Plain,
            Self::Shared(bar) => Self::Shared(bar.clone()),
            Self::Listener(listener) => Self::Listener(*listener),
            Self::Quiet | Self::Dashboard(_) => Self::Quiet,
        }
    }
}

/// A bar of the rounds of several runs, `done` of them earlier.
pub(crate) fn shared_bar(of: &str, rounds: u64, done: u64) -> ProgressBar {
    let style = format!("{{bar:30}} round {{pos}}/{{len}} of all {of} · {{per_sec}} · {{eta}} left");
    let style = ProgressStyle::with_template(&style).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(rounds).with_style(style.progress_chars("━╸─")).with_position(done);
    bar.reset_eta();
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}

/// How the progress of one seed is shown.
pub(crate) enum Progress<'a> {
    /// A bar that redraws itself.
    Bar(ProgressBar),
    /// A line per evaluation.
    Lines,
    /// Nothing.
    Quiet,
    /// Rounds only.
    Shared(ProgressBar),
    /// Everything.
    Dashboard(Notes),
    /// What a listener makes of it.
    Listener(&'a dyn Listener),
}

impl<'a> Progress<'a> {
    /// For a seed of an experiment, `done` rounds of it earlier.
    pub(crate) fn new(show: &Show<'a>, experiment: &Experiment, seed: u64, done: u64) -> Self {
        match show {
            Show::Quiet => return Self::Quiet,
            Show::Shared(bar) => return Self::Shared(bar.clone()),
            Show::Dashboard(dashboard) => {
                dashboard.notes().begin(experiment, seed, done);
                return Self::Dashboard(dashboard.notes().clone());
            }
            Show::Listener(listener) => {
                listener.begin(experiment, seed, done);
                return Self::Listener(*listener);
            }
            Show::Plain if !std::io::stderr().is_terminal() => return Self::Lines,
            Show::Plain => {}
        }
        let style = "{prefix:>12} {bar:30} round {pos}/{len} · {per_sec} · {eta} left · {wide_msg}";
        let style = ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar =
            ProgressBar::new(experiment.rounds()).with_style(style.progress_chars("━╸─")).with_position(done);
        bar.set_prefix(format!("seed {seed}"));
        bar.reset_eta();
        bar.enable_steady_tick(Duration::from_millis(250));
        Self::Bar(bar)
    }

    /// A round of all tracks is done.
    pub(crate) fn round(&self, records: &[RoundRecord]) {
        match self {
            Self::Bar(bar) | Self::Shared(bar) => bar.inc(1),
            Self::Dashboard(notes) => notes.round(records),
            Self::Listener(listener) => listener.round(records),
            Self::Lines | Self::Quiet => {}
        }
    }

    /// Every device has been evaluated.
    pub(crate) fn evaluation(
        &self,
        seed: u64,
        round: u64,
        labels: &[TrackLabel],
        splits: &[SplitEvaluation],
    ) {
        let line = || headline(labels, splits);
        match self {
            Self::Bar(bar) => bar.set_message(line()),
            Self::Lines => eprintln!("seed {seed}, round {round}: {}", line()),
            Self::Dashboard(notes) => notes.evaluation(round, splits),
            Self::Listener(listener) => listener.evaluation(seed, round, &line()),
            Self::Quiet | Self::Shared(_) => {}
        }
    }

    /// The run is over.
    pub(crate) fn finish(&self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

/// The 90th percentile of the test error of each track.
fn headline(labels: &[TrackLabel], splits: &[SplitEvaluation]) -> String {
    let of = |wanted: Split| splits.iter().find(|split| split.split == wanted && !split.devices.is_empty());
    // A federation without test devices is judged by those that train.
    let Some(judged) = of(Split::Test).or_else(|| of(Split::Train)) else { return String::new() };
    let metric = judged.task.primary();
    let of_track = |(i, label): (usize, &TrackLabel)| {
        let p90 = Figures::of_primary(judged, i).and_then(|figures| figures.percentile(90))?;
        let shown = metric.shown(p90);
        Some(if metric.unit == Unit::Share {
            format!("{label} {shown:.1} %")
        } else {
            format!("{label} {}", table::number(shown, table::places([shown])))
        })
    };
    let figures: Vec<String> = labels.iter().enumerate().filter_map(of_track).collect();
    if figures.is_empty() {
        String::new()
    } else {
        format!("90th percentile of the {}: {}", metric.title, figures.join(", "))
    }
}
