//! Starting this very program again, as the ranks of a job.

use std::process::{Command, Output, Stdio};

/// How to start a job with `mpirun`.
pub(crate) struct Mpirun {
    /// What a rank is called with.
    pub arguments: &'static [&'static str],
}

impl Mpirun {
    /// Whether there is an `mpirun`; says on standard error when there is none.
    pub(crate) fn is_installed() -> bool {
        let found = Command::new("mpirun").arg("--version").stdout(Stdio::null()).status().is_ok();
        if !found {
            eprintln!("skipped: there is no mpirun here (Debian: libopenmpi-dev openmpi-bin)");
        }
        found
    }

    /// Runs a job of `ranks` ranks, with these variables in their environment.
    pub(crate) fn run(&self, ranks: usize, variables: &[(&str, &str)]) -> Output {
        let mut mpirun = Command::new("mpirun");
        // A container: root, fewer cores than ranks, no network but the loopback, and no tracing of
        // processes, which the copy between processes without a buffer would need.
        mpirun.args(["--allow-run-as-root", "--oversubscribe", "-n", &ranks.to_string()]);
        for (key, value) in [
            ("btl", "self,vader"),
            ("btl_vader_single_copy_mechanism", "none"),
            ("pml", "ob1"),
            ("oob_tcp_if_include", "lo"),
            ("plm_rsh_agent", "/bin/false"),
            ("mpi_yield_when_idle", "1"),
        ] {
            mpirun.args(["--mca", key, value]);
        }
        // By default all jobs of a machine share a folder, and a job that ends removes it while
        // another begins.
        let files = tempfile::tempdir().expect("a temporary folder can be made");
        mpirun.args(["--mca", "orte_tmpdir_base"]).arg(files.path());
        let program = std::env::current_exe().expect("a running program knows its path");
        mpirun.arg(program).args(self.arguments).stdin(Stdio::null());
        // A job within a job is refused by Open MPI, and a surrounding allocation is none of ours.
        for (name, _) in std::env::vars().filter(|(name, _)| {
            ["OMPI_", "PMIX_", "PMI_", "SLURM_"].iter().any(|prefix| name.starts_with(prefix))
        }) {
            mpirun.env_remove(name);
        }
        mpirun.envs(variables.iter().copied()).output().expect("mpirun is installed")
    }
}
