//! Structured logs on standard error: what happened, with fields, and never a figure or a name of one device.

use tracing_subscriber::filter::LevelFilter;

/// What is logged, and how.
#[derive(clap::Args, Debug)]
pub(super) struct LogArgs {
    /// The least that is logged: off, error, warn, info or debug
    #[arg(long = "log", value_name = "LEVEL", default_value = "warn", env = "DELTAFL_LOG")]
    level: LevelFilter,
    /// A JSON object per line, for programs
    #[arg(long)]
    log_json: bool,
}

impl LogArgs {
    /// Logs from now on.
    pub(super) fn start(&self) {
        let logs = tracing_subscriber::fmt().with_max_level(self.level).with_writer(std::io::stderr);
        // Another one may stand already when several runs share a process; it stays in charge.
        let _ = if self.log_json { logs.json().try_init() } else { logs.try_init() };
    }
}
