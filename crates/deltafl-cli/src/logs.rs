//! Structured logs on standard error: what happened, with fields. Those of a server have no figure and no name of one device.

use tracing_subscriber::filter::LevelFilter;

/// What is logged, and how.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Logs")]
pub(crate) struct LogArgs {
    /// What is logged on standard error: off, error, warn, info or debug, each with those before it
    #[arg(long = "log", value_name = "LEVEL", default_value = "warn", env = "DELTAFL_LOG")]
    level: LevelFilter,
    /// Log a JSON object per line, for programs
    #[arg(long)]
    log_json: bool,
}

impl LogArgs {
    /// Logs from now on.
    pub(crate) fn start(&self) {
        let logs = tracing_subscriber::fmt().with_max_level(self.level).with_writer(std::io::stderr);
        // Another one may stand already when several runs share a process; it stays in charge.
        let _ = if self.log_json { logs.json().try_init() } else { logs.try_init() };
    }
}
