//! `cohorts.csv`: who was drawn in every round, so that an outside program can find η_t again for a cohort of some of the
//! devices.
//!
//! In a simulation a cohort depends on the experiment, the seed and the round alone, so the run folder holds it already;
//! here it is written out by name. It is checked against what the rounds recorded. A round that was begun anew, because
//! too many devices had vanished for a sum, is the first attempt that drew and lost as many devices as were recorded.

use std::path::{Path, PathBuf};

use deltafl::cohort::{Draw, Sampling};
use deltafl::data::{Federation, Split};
use deltafl::exchange::{Drawn, Reachable};
use deltafl_data::run_folder::{self, RoundLine};
use miette::{IntoDiagnostic, WrapErr, miette};

use crate::session;

/// Attempts after which a round is given up.
const MOST_ATTEMPTS: u64 = 1000;

/// Writes cohorts.csv.
pub(super) fn write(run: &Path, out: &Path) -> miette::Result<Vec<PathBuf>> {
    let experiment = run_folder::read_experiment(run).into_diagnostic()?;
    let federation = session::load(&experiment)?;
    if experiment.resolved().is_some_and(|resolved| resolved.data_hash != federation.hash()) {
        return Err(miette!(
            "the data is not what the run was trained on: its hash is {}",
            federation.hash()
        ));
    }
    let path = out.join("cohorts.csv");
    let written = write_csv(
        &path,
        &federation,
        &experiment.plan().sampling,
        &run_folder::read_rounds(run).into_diagnostic()?,
    );
    written.wrap_err_with(|| path.display().to_string())?;
    Ok(vec![path])
}

fn write_csv(
    path: &Path,
    federation: &Federation,
    sampling: &Sampling,
    lines: &[RoundLine],
) -> miette::Result<()> {
    let train = federation.split(Split::Train);
    let mut writer = csv::Writer::from_path(path).into_diagnostic()?;
    writer.write_record(["seed", "round", "device", "examples", "times", "vanished"]).into_diagnostic()?;
    // The tracks share their cohorts.
    for record in lines.iter().map(|line| &line.record).filter(|record| record.track == 0) {
        let recorded = (record.cohort, record.dropped);
        let cohort = cohort(sampling, train.len(), (record.seed, record.round), recorded)?;
        for Drawn { device, times, dropped } in cohort {
            let device = train[device.place()];
            writer
                .write_record([
                    &record.seed.to_string(),
                    &record.round.to_string(),
                    federation.id(device),
                    &federation.example_count(device).to_string(),
                    &times.to_string(),
                    &u8::from(dropped).to_string(),
                ])
                .into_diagnostic()?;
        }
    }
    writer.flush().into_diagnostic()
}

/// The cohort of a round, of the size and with the losses that were recorded.
fn cohort(
    sampling: &Sampling,
    devices: usize,
    (seed, round): (u64, u64),
    recorded: (u64, u64),
) -> miette::Result<Vec<Drawn>> {
    (0..MOST_ATTEMPTS)
        .map(|attempt| sampling.cohort(devices, Draw { seed, round, attempt }, &Reachable::Everyone))
        .find(|cohort| {
            let vanished = cohort.iter().filter(|drawn| drawn.dropped).count();
            (cohort.len() as u64, vanished as u64) == recorded
        })
        .ok_or_else(|| {
            miette!(
                "seed {seed}, round {round}: no cohort of {} devices of which {} vanish is drawn from these {devices} \
                 train devices; was the run deployed?",
                recorded.0,
                recorded.1
            )
        })
}
