//! Structured logs on standard error. Server logs contain no values and no names of single devices.

use tracing_subscriber::filter::LevelFilter;

/// The options of logging.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Logs")]
pub(crate) struct LogArgs {
    /// Log level on standard error: off, error, warn, info or debug; each includes the previous
    /// ones
    #[arg(long = "log", value_name = "LEVEL", default_value = "warn", env = "DELTAFL_LOG")]
    level: LevelFilter,
    /// Log a JSON object per line, for programs
    #[arg(long)]
    log_json: bool,
}

impl LogArgs {
    /// Starts logging.
    pub(crate) fn start(&self) {
        let logs = tracing_subscriber::fmt().with_max_level(self.level).with_writer(std::io::stderr);
        // If several runs share a process, the logger of the first remains active.
        let _ = if self.log_json { logs.json().try_init() } else { logs.try_init() };
    }
}
