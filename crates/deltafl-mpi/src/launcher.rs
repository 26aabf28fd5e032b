//! What the launcher of a job has left in the environment.
//!
//! A binary that was built against another MPI than the one that launched it, or that `srun` started without
//! `--mpi=pmix`, comes up as N worlds of one rank each. They would all train the same run, N times.

use std::env;

/// Variables with the number of processes of the job.
const SIZES: [&str; 3] = ["SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"];
/// Variables that a launcher gives to each process.
const RANKS: [&str; 3] = ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"];

/// Whether this process was started as part of an MPI job: by `mpirun`, or by Slurm with several tasks.
pub fn launched() -> bool {
    RANKS.iter().any(|name| env::var_os(name).is_some()) || several(|name| env::var(name).ok()).is_some()
}

/// The variable that promises several processes, and how many.
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
    fn several_tasks_are_found_whoever_launched_them() {
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
