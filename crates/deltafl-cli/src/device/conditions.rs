//! The owner's conditions, as options.

use deltafl_device::{DeviceConfig, TimeWindow};

/// When a device takes part.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "When this device takes part")]
pub(crate) struct ConditionArgs {
    /// Take part only between these times of the day, such as 22:00-06:30, by this machine's clock;
    /// may be repeated
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
    /// Puts the conditions into a configuration.
    pub(super) fn apply(&self, config: &mut DeviceConfig) {
        config.between.clone_from(&self.between);
        config.on_mains = self.on_mains;
        config.unmetered = self.unmetered;
        config.while_command.clone_from(&self.command);
    }
}
