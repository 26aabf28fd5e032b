//! The owner's conditions, as options.

use std::sync::Arc;

use chrono::{Local, Timelike as _};
use deltafl_device::{Conditions, Hook, Hours, TimeWindow, Unmet, Willing};
use miette::Result;

use crate::error::bad_input;

/// When a device takes part.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "When this device takes part")]
pub(crate) struct ConditionArgs {
    /// Take part only between these times of the day, such as 22:00-06:30, by this machine's clock; may be repeated
    #[arg(long, value_name = "FROM-UNTIL")]
    between: Vec<TimeWindow>,
    /// Take part only while the machine is on mains power
    #[arg(long)]
    on_mains: bool,
    /// Take part only while the default route is not a mobile modem's or Bluetooth
    #[arg(long)]
    unmetered: bool,
    /// Take part only while this command ends with exit status 0; it is run every fifteen seconds
    #[arg(long = "while", value_name = "COMMAND")]
    command: Option<String>,
}

impl ConditionArgs {
    /// The conditions for a device's consent. A system that does not show what a condition needs is an error.
    pub(crate) fn willing(&self) -> Result<Willing> {
        let conditions = Conditions {
            hours: (!self.between.is_empty())
                .then(|| Hours { windows: self.between.clone(), now: Arc::new(minute_of_day) }),
            on_mains: self.on_mains,
            unmetered: self.unmetered,
            hook: self.command.as_deref().map(Hook::new),
            ..Conditions::default()
        };
        let shown = Conditions { hours: None, ..conditions.clone() };
        if let Err(unknown @ Unmet::Unknown { .. }) = shown.check() {
            return Err(bad_input(unknown.to_string())
                .help("use --while COMMAND with a command that knows, in place of --on-mains or --unmetered")
                .into());
        }
        Ok(conditions.willing())
    }
}

/// By this machine's clock and time zone.
fn minute_of_day() -> u16 {
    let now = Local::now();
    (60 * now.hour() + now.minute()) as u16
}
