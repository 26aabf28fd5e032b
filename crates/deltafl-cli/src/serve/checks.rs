//! What must not be deployed.

use deltafl::terms::Weights;
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

/// Refuses levels whose tails differ by a few devices: where two tracks stand at one w, as all do in round 0, the difference of
/// their sums is the sum over those few.
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
    let parts = levels.len();
    if parts > 1 && (cohort as f64) < APART * parts as f64 {
        let what = format!("{parts} levels part a cohort of {cohort} into fewer than ten devices each");
        return Err(bad_input(what)
            .help("all levels start at one w, and there a device trains for one of them: take larger cohorts or fewer levels, or --allow-close-levels")
            .into());
    }
    Ok(())
}
