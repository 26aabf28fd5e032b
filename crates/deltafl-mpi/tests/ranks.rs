//! Jobs of several ranks: the same bits as the threads exchange, killed or not, and a clear word
//! when something is wrong. Each test starts this program again under `mpirun`, as ranks that run
//! [`a_rank`].
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::Output;

use deltafl_data::run_folder::{evaluations, read_checkpoint, read_rounds};

#[path = "../../deltafl/tests/exchanges/intercepted.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by tests of several crates")]
mod intercepted;
#[path = "ranks/job.rs"]
mod job;
#[path = "ranks/mpirun.rs"]
mod mpirun;

use mpirun::Mpirun;

const RANKS: Mpirun = Mpirun { arguments: &["--exact", "a_rank", "--ignored", "--nocapture"] };

#[test]
#[ignore = "one rank of a job, which the other tests start"]
fn a_rank() {
    match std::env::var("JOB").as_deref() {
        Ok("train") => job::train_on_ranks(),
        Ok("differ") => job::differ(),
        Ok("fail-on-a-device") => job::fail_on_a_device(),
        _ => eprintln!("not a rank: the other tests start it with a JOB"),
    }
}

/// Trains on so many ranks into a folder.
fn train(ranks: usize, folder: &Path, variables: &[(&str, &str)]) -> Output {
    let folder = folder.to_str().expect("a temporary folder has a plain name");
    RANKS.run(ranks, &[&[("JOB", "train"), ("FOLDER", folder)], variables].concat())
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn assert_done(output: &Output) {
    assert!(output.status.success(), "{}", said(output));
}

/// Two runs have the same checkpoint, records and evaluations, bit for bit.
fn assert_same_run(one: &Path, other: &Path) {
    let checkpoint = |folder: &Path| fs::read(folder.join("checkpoint/seed-7.safetensors")).unwrap();
    assert!(checkpoint(one) == checkpoint(other), "checkpoints of {} differ", other.display());
    assert_eq!(read_rounds(one).unwrap(), read_rounds(other).unwrap());
    let names = |folder: &Path| {
        let mut names: Vec<_> =
            fs::read_dir(folder.join("devices")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(one), names(other));
    for name in names(one) {
        let file = |folder: &Path| fs::read(folder.join("devices").join(&name)).unwrap();
        assert!(file(one) == file(other), "{} differs", name.display());
    }
    assert_eq!(evaluations(one).unwrap().len(), 4);
}

#[test]
fn any_number_of_ranks_gives_the_bits_of_the_threads_exchange() {
    if !Mpirun::is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let threads = folder.path().join("threads");
    job::train_on_threads(&threads);
    for ranks in [1, 2, 3, 4, 8] {
        let run = folder.path().join(ranks.to_string());
        let output = train(ranks, &run, &[]);
        assert_done(&output);
        assert_same_run(&threads, &run);
        let table = said(&output);
        assert!(table.contains("imbalance"), "{table}");
        let lines = table.lines().skip_while(|line| !line.starts_with("rank ")).skip(1);
        assert_eq!(lines.take_while(|line| !line.starts_with("imbalance")).count(), ranks, "{table}");
    }
}

#[test]
fn a_job_killed_at_any_moment_resumes_on_another_number_of_ranks() {
    if !Mpirun::is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let threads = folder.path().join("threads");
    job::train_on_threads(&threads);
    let run = folder.path().join("run");

    // Before there is a checkpoint, and in the middle between two.
    assert!(!train(3, &run, &[("KILL_IN", "1")]).status.success());
    assert!(read_checkpoint(&run, 7).unwrap().is_none());
    assert!(!train(2, &run, &[("RESUME", "1"), ("KILL_IN", "5")]).status.success());
    assert_eq!(read_checkpoint(&run, 7).unwrap().unwrap().round, 4);
    assert_done(&train(4, &run, &[("RESUME", "1")]));
    assert_same_run(&threads, &run);
}

#[test]
fn a_wish_to_stop_on_rank_0_stops_all_ranks_with_a_checkpoint() {
    if !Mpirun::is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let threads = folder.path().join("threads");
    job::train_on_threads(&threads);
    let run = folder.path().join("run");
    assert_done(&train(3, &run, &[("STOP_AFTER", "3")]));
    assert_eq!(read_checkpoint(&run, 7).unwrap().unwrap().round, 3);
    assert_done(&train(2, &run, &[("RESUME", "1")]));
    assert_same_run(&threads, &run);
}

#[test]
fn singletons_that_should_be_one_job_are_refused() {
    if !Mpirun::is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let output = train(1, &folder.path().join("run"), &[("SLURM_NTASKS", "4")]);
    let said = said(&output);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("SLURM_NTASKS is 4, but MPI sees a single rank"), "{said}");
    assert!(said.contains("srun --mpi=pmix"), "{said}");
    assert!(!folder.path().join("run").exists());
}

#[test]
fn a_rank_that_fails_names_the_device_and_ends_the_job() {
    if !Mpirun::is_installed() {
        return;
    }
    let output = RANKS.run(3, &[("JOB", "fail-on-a-device")]);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(3), "{said}");
    let line = said.lines().find(|line| line.contains("failed:")).unwrap_or_default();
    assert!(line.starts_with("rank ") && line.contains("of 3 on "), "{said}");
    assert!(line.ends_with("device boris: no gradient for class 1"), "{said}");
}

#[test]
fn ranks_that_see_different_data_are_told_which_one() {
    if !Mpirun::is_installed() {
        return;
    }
    let output = RANKS.run(3, &[("JOB", "differ")]);
    assert!(!output.status.success());
    assert!(said(&output).contains("the data on rank 2"), "{}", said(&output));
}

#[test]
fn a_run_folder_that_rank_0_cannot_use_ends_the_job() {
    if !Mpirun::is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let output = train(2, folder.path(), &[("RESUME", "1")]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("holds no run"), "{}", said(&output));
}
