//! The `deltafl` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(deltafl_cli::command(std::env::args_os().collect()))
}
