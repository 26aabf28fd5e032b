//! A Slurm array job that trains a sweep: a task per shard.

use std::path::Path;

use crate::error::shell_quoted;

/// Returns the script. Its paths are relative to the folder from which it is submitted.
pub fn script(folder: &Path, name: &str, tasks: usize) -> String {
    let script = shell_quoted(&folder.join("sweep.slurm").display().to_string());
    let folder = shell_quoted(&folder.display().to_string());
    let job: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' }).collect();
    format!(
        r#"#!/bin/bash
# Trains a sweep, its points dealt out to {tasks} tasks. Submit it from the folder in which it was made:
#   sbatch {script}
# Submitted again, it goes on with what is not finished. Then: deltafl sweep list {folder}
#SBATCH --job-name={job}
#SBATCH --array=1-{tasks}
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=deltafl-%A-%a.log
# A checkpoint before the time is up: the rounds under way are finished and written.
#SBATCH --signal=TERM@120

set -euo pipefail
folder={folder}

srun --mpi=none deltafl sweep run "$folder/sweep.toml" --out "$folder" --quiet \
    --shard "$SLURM_ARRAY_TASK_ID/{tasks}" --threads "${{SLURM_CPUS_PER_TASK:-1}}"
"#
    )
}
