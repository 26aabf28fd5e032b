//! Detection of MPI jobs from the environment.
//!
//! A binary built against a different MPI than the launcher, or started by `srun` without
//! `--mpi=pmix`, starts as N worlds of one rank each. They would all train the same run N times.

use std::env;

/// Variables that contain the number of processes of the job.
const SIZES: [&str; 3] = ["SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"];
/// Variables that a launcher sets in each process.
const RANKS: [&str; 3] = ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"];

/// Returns true if this process is part of an MPI job: started by `mpirun`, or by Slurm with
/// several tasks.
pub fn launched() -> bool {
    RANKS.iter().any(|name| env::var_os(name).is_some()) || several(|name| env::var(name).ok()).is_some()
}

/// Returns the variable that announces several processes, and their number.
pub(crate) fn several(variable: impl Fn(&str) -> Option<String>) -> Option<(&'static str, usize)> {
    SIZES.into_iter().find_map(|name| {
        let tasks = variable(name)?.trim().parse().ok()?;
        (tasks > 1).then_some((name, tasks))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_tasks_are_detected_for_every_launcher() {
        let only = |name: &'static str, value: &'static str| {
            move |asked: &str| (asked == name).then(|| value.to_owned())
        };
        assert_eq!(several(only("SLURM_NTASKS", "4")), Some(("SLURM_NTASKS", 4)));
        assert_eq!(several(only("PMI_SIZE", " 2\n")), Some(("PMI_SIZE", 2)));
        assert_eq!(several(only("SLURM_NTASKS", "1")), None);
        assert_eq!(several(only("SLURM_NTASKS", "many")), None);
        assert_eq!(several(|_| None), None);
    }
}
