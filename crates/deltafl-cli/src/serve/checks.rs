//! What must not be deployed.

use deltafl::terms::{TrackSchedule, Weights};
use deltafl_data::experiment::Experiment;
use miette::Result;

use super::Args;
use crate::error::bad_input;

/// Devices of a cohort by which two levels must differ.
const APART: f64 = 10.0;

/// Refuses what must not be deployed.
pub(crate) fn check(args: &Args, experiment: &Experiment) -> Result<()> {
    if !args.insecure && args.deployment.certs.is_none() {
        return Err(bad_input("a server needs --certs DIR, or --insecure on a loopback address")
            .help("deltafl certs init and deltafl certs server make the folder")
            .into());
    }
    if experiment.is_open() && !args.open {
        return Err(bad_input("the experiment finds η in open mode: devices would tell their losses one by one")
            .help("private mode: --set algorithm.N.quantile=histogram, counted from 0; or choose the open mode with --open")
            .into());
    }
    if !experiment.is_open() && experiment.weights() == Weights::Exact {
        return Err(bad_input("devices do not tell how many examples they have")
            .help("write weights = \"uniform\" or \"bucketed\" into the experiment, or --set weights=uniform")
            .into());
    }
    if experiment.with_replacement() {
        return Err(bad_input("the experiment draws cohorts with replacement, which a deployment refuses")
            .help("a device that counts twice could be read off a sum: remove with_replacement, or --set with_replacement=false")
            .into());
    }
    if !args.insecure && !args.allow_close_levels {
        check_levels(experiment)?;
    }
    Ok(())
}

/// The schedule of the tracks of a deployment.
pub(crate) fn schedule(experiment: &Experiment) -> Result<TrackSchedule> {
    let together = || {
        bad_input("the experiment trains its tracks together, which devices refuse")
            .help("the difference of the sums of two tracks is the sum over the devices between their thresholds: write tracks = \"in-turn\" or \"apart\" into the experiment, or --set tracks=in-turn")
    };
    Ok(experiment.deployed_schedule().ok_or_else(together)?)
}

/// Refuses levels whose tails differ by a few devices: all tracks start at one w, and where two of them are asked of the same
/// devices there, the difference of their sums is the sum over those few. Refuses to divide a cohort into parts that are too
/// small to hide a device.
fn check_levels(experiment: &Experiment) -> Result<()> {
    let cohort = experiment.cohort();
    let mut levels: Vec<f64> = experiment.tracks().into_iter().map(|track| track.label.theta.get()).collect();
    levels.sort_by(f64::total_cmp);
    levels.dedup();
    for pair in levels.windows(2) {
        let apart = (pair[1] - pair[0]) * cohort as f64;
        if apart < APART - 1e-6 {
            let (low, high) = (pair[0], pair[1]);
            let what = format!("θ = {low} and {high} are {apart:.1} devices apart in a cohort of {cohort}");
            return Err(bad_input(what)
                .help("what lies between is the sum over those: take larger cohorts or levels further apart, or --allow-close-levels")
                .into());
        }
    }
    let tracks = experiment.tracks().len();
    let divided = experiment.deployed_schedule() == Some(TrackSchedule::Apart);
    if divided && tracks > 1 && (cohort as f64) < APART * tracks as f64 {
        let what = format!("{tracks} tracks divide a cohort of {cohort} into fewer than ten devices each");
        return Err(bad_input(what)
            .help("take larger cohorts or fewer tracks, let them take turns with tracks = \"in-turn\", or --allow-close-levels")
            .into());
    }
    Ok(())
}
