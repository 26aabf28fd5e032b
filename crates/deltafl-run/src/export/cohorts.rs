//! `cohorts.csv`: the devices drawn in every round. With them, another program can recompute η_t
//! for a subset of the devices.
//!
//! In a simulation, a cohort depends only on the experiment, the seed and the round, so the run
//! folder determines it. This module writes it by name and checks it against the recorded rounds. A
//! round restarts if too many devices vanish for a sum. Its cohort is the first attempt that draws
//! and loses the recorded numbers of devices.

use std::path::{Path, PathBuf};

use deltafl::cohort::{Draw, Sampling};
use deltafl::data::{Federation, Split};
use deltafl::exchange::{CohortMember, Reachable};
use deltafl_data::run_folder::{self, RoundLine};

use super::ExportError;
use crate::error::FileError;
use crate::session;

/// The number of attempts after which a round is abandoned.
const MOST_ATTEMPTS: u64 = 1000;

/// Writes cohorts.csv.
pub(super) fn write(run: &Path, out: &Path) -> Result<Vec<PathBuf>, ExportError> {
    let experiment = run_folder::read_experiment(run)?;
    let federation = session::load(&experiment)?;
    if experiment.resolved.as_ref().is_some_and(|resolved| resolved.data_hash != federation.hash()) {
        return Err(ExportError::OtherData { hash: federation.hash().to_owned() });
    }
    let path = out.join("cohorts.csv");
    write_csv(&path, &federation, experiment.plan().sampling(), &run_folder::read_rounds(run)?)?;
    Ok(vec![path])
}

fn write_csv(
    path: &Path,
    federation: &Federation,
    sampling: &Sampling,
    lines: &[RoundLine],
) -> Result<(), ExportError> {
    let failed = |e: csv::Error| FileError::write(path)(e.into());
    let train = federation.split(Split::Train);
    let mut writer = csv::Writer::from_path(path).map_err(failed)?;
    writer.write_record(["seed", "round", "device", "examples", "times", "vanished"]).map_err(failed)?;
    // The tracks of a round share its cohort, and their records follow each other.
    let mut last = None;
    for record in lines.iter().map(|line| &line.record) {
        if last.replace((record.seed, record.round)) == Some((record.seed, record.round)) {
            continue;
        }
        let recorded = (record.cohort, record.dropped);
        let cohort = cohort(sampling, train.len(), (record.seed, record.round), recorded)?;
        for CohortMember { device, times, dropped } in cohort {
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
                .map_err(failed)?;
        }
    }
    Ok(writer.flush().map_err(FileError::write(path))?)
}

/// Returns the cohort of a round with the recorded size and the recorded number of vanished
/// devices.
fn cohort(
    sampling: &Sampling,
    devices: usize,
    (seed, round): (u64, u64),
    recorded: (u64, u64),
) -> Result<Vec<CohortMember>, ExportError> {
    (0..MOST_ATTEMPTS)
        .map(|attempt| sampling.cohort(devices, Draw { seed, round, attempt }, &Reachable::Everyone))
        .find(|cohort| {
            let vanished = cohort.iter().filter(|drawn| drawn.dropped).count();
            (cohort.len() as u64, vanished as u64) == recorded
        })
        .ok_or(ExportError::Cohort { seed, round, cohort: recorded.0, dropped: recorded.1, devices })
}
