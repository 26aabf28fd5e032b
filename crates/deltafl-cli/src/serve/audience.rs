//! Who hears how a server fares: the terminal of the command, or a program that embeds it.

use std::net::SocketAddr;

use deltafl::training::RoundRecord;
use deltafl_data::experiment::Experiment;

use deltafl_run::session::thin_tail_warnings;

/// Who hears how a server fares.
pub(crate) trait Audience: Sync {
    /// What a person should know.
    fn say(&self, text: &str);
    /// What a person might like to know.
    fn note(&self, text: &str);
    /// Where the live page is.
    fn page(&self, url: &str);
    /// Where devices connect to, and how many are waited for.
    fn listening(&self, address: SocketAddr, devices: usize);
    /// A seed begins, `done` rounds of it earlier.
    fn begin(&self, experiment: &Experiment, seed: u64, done: u64);
    /// A round is done; the record is that of the first track.
    fn round(&self, record: &RoundRecord, seconds: f64);
    /// What was turned away, and how often.
    fn refused(&self, counted: &str);
    /// Something to know of the experiment.
    fn warn(&self, experiment: &Experiment);
}

/// Lines on standard error.
pub(super) struct Console {
    /// Nothing about rounds.
    pub(super) quiet: bool,
}

impl Audience for Console {
    fn say(&self, text: &str) {
        eprintln!("{text}");
    }

    fn note(&self, text: &str) {
        if !self.quiet {
            eprintln!("{text}");
        }
    }

    fn page(&self, url: &str) {
        eprintln!("live page: {url}");
    }

    fn listening(&self, address: SocketAddr, devices: usize) {
        let noun = if devices == 1 { "device" } else { "devices" };
        eprintln!("listening on {address}; waiting for {devices} {noun}");
    }

    fn begin(&self, _: &Experiment, _: u64, _: u64) {}

    fn round(&self, record: &RoundRecord, seconds: f64) {
        let RoundRecord { seed, round, cohort, dropped, .. } = record;
        if !self.quiet {
            let stayed = cohort - dropped;
            eprintln!("seed {seed}, round {}: {stayed} of {cohort} devices, {seconds:.1} s", round + 1);
        }
    }

    fn refused(&self, counted: &str) {
        if !self.quiet {
            eprintln!("refused: {counted}");
        }
    }

    fn warn(&self, experiment: &Experiment) {
        thin_tail_warnings(experiment).iter().for_each(|text| self.note(&format!("warning: {text}")));
    }
}
