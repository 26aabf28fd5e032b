//! `mpirun deltafl run`: the command on ranks. Needs the feature `mpi`.
#![cfg(feature = "mpi")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const EXPERIMENT: &str = r#"
    name = "cluster"
    rounds = 4
    cohort = 6
    evaluate_every = 2
    data = { source = { kind = "glyphs", devices = 16 } }
    model = { kind = "linear" }
    local = { epochs = 1, batch = 10, learning_rate = 0.1 }
    [[algorithm]]
    kind = "fedavg"
    [[algorithm]]
    kind = "delta-fl"
    theta = 0.5
"#;

/// Returns a job whose session files are in this folder. By default, all jobs of a machine share
/// one folder, and a job that ends removes it while another starts.
fn mpirun(ranks: &str, folder: &Path) -> Command {
    let mut mpirun = Command::new("mpirun");
    // The settings suit a container: root, fewer cores than ranks, no network, no process tracing.
    mpirun.args([
        "--allow-run-as-root",
        "--oversubscribe",
        "--mca",
        "btl",
        "self,vader",
        "--mca",
        "pml",
        "ob1",
    ]);
    mpirun.args(["--mca", "btl_vader_single_copy_mechanism", "none", "--mca", "oob_tcp_if_include", "lo"]);
    mpirun.args(["--mca", "orte_tmpdir_base"]).arg(folder);
    mpirun.args(["--mca", "plm_rsh_agent", "/bin/false", "-n", ranks, env!("CARGO_BIN_EXE_deltafl")]);
    mpirun.env_remove("SLURM_NTASKS");
    mpirun
}

fn is_installed() -> bool {
    let found = Command::new("mpirun").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !found {
        eprintln!("skipped: there is no mpirun here (Debian: libopenmpi-dev openmpi-bin)");
    }
    found
}

fn run(mut command: Command, experiment: &Path, out: &Path) -> Output {
    command.arg("run").arg(experiment).arg("--out").arg(out).args(["--threads", "1"]);
    command.stdin(Stdio::null()).output().expect("the command can be started")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_run_on_ranks_writes_the_same_checkpoints_as_a_run_in_one_process() {
    if !is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let experiment = folder.path().join("cluster.toml");
    fs::write(&experiment, EXPERIMENT).unwrap();
    let (alone, ranks) = (folder.path().join("alone"), folder.path().join("ranks"));
    let output = run(Command::new(env!("CARGO_BIN_EXE_deltafl")), &experiment, &alone);
    assert!(output.status.success(), "{}", said(&output));
    let output = run(mpirun("3", folder.path()), &experiment, &ranks);
    assert!(output.status.success(), "{}", said(&output));
    let checkpoint = |out: &Path| fs::read(out.join("checkpoint/seed-1.safetensors")).unwrap();
    assert!(checkpoint(&alone) == checkpoint(&ranks));
    assert!(said(&output).contains("imbalance"), "{}", said(&output));
    let tables = String::from_utf8_lossy(&output.stdout).matches("Run folder:").count();
    assert_eq!(tables, 1, "only rank 0 prints");

    // The folder now contains a run: rank 0 reports this once.
    let again = run(mpirun("2", folder.path()), &experiment, &ranks);
    assert_eq!(again.status.code(), Some(2), "{}", said(&again));
    assert_eq!(said(&again).matches("already holds a run").count(), 1, "{}", said(&again));
}

#[test]
fn separate_processes_without_a_common_mpi_job_are_rejected() {
    if !is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let experiment = folder.path().join("cluster.toml");
    fs::write(&experiment, EXPERIMENT).unwrap();
    let mut command = mpirun("1", folder.path());
    command.env("SLURM_NTASKS", "4");
    let output = run(command, &experiment, &folder.path().join("out"));
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("MPI sees a single rank"), "{}", said(&output));
    assert!(!folder.path().join("out").exists());
}

#[test]
fn ranks_share_the_methods_of_a_field_and_rank_0_prints_it() {
    if !is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = mpirun("2", folder.path());
    command.args([
        "field",
        "synthetic(1,1)",
        "--algorithms",
        "fedavg,term",
        "--splits",
        "1",
        "--threads",
        "1",
    ]);
    for set in ["rounds=2", "cohort=3", "data.source.devices=16"] {
        command.args(["--set", set]);
    }
    let output = command.arg("--out").arg(folder.path().join("f")).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(printed.matches("of 2 methods").count(), 1, "{printed}");
    // Each rank trains the 13 points of one method: nine and three candidates and one split. The
    // three have as many rounds as the nine here, so they are finished already.
    assert_eq!(said(&output).matches("9 of 13 points").count(), 2, "{}", said(&output));
    for method in ["FedAvg", "TERM"] {
        let last = format!("13 of 13 points: {method} split 1");
        assert_eq!(said(&output).matches(&last).count(), 1, "{}", said(&output));
    }
}
