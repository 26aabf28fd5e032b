//! The options of `deltafl serve` that say how rounds are run.

use std::time::Duration;

use deltafl_server::Deadlines;
use deltafl_server::engine::Rules;
use deltafl_server::serve::Limits;
use miette::Result;

use crate::device::GuardArgs;
use crate::error::bad_input;

/// How rounds are run with devices that come and go.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Rounds")]
pub(crate) struct Rounds {
    /// Devices that must be connected before a round begins [default: a cohort]
    #[arg(long, value_name = "N")]
    wait_for: Option<usize>,
    /// Devices invited beyond the cohort, as a share of it; the first that join take part
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    over_select: f64,
    /// The share of a cohort that must answer for its sum to count
    #[arg(long, value_name = "SHARE", default_value_t = 0.5)]
    quorum: f64,
    /// The share of a cohort that may vanish in the middle of a sum: keys are shared so that the others can finish it
    #[arg(long, value_name = "SHARE", default_value_t = 0.2)]
    drop_out: f64,
    /// Cohorts that a round is tried with; where none of them comes to a sum, the round changes nothing
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    attempts: u32,
    /// The longest step that a round may take, as the norm of the change of the params; a longer one is given up
    #[arg(long, value_name = "NORM")]
    max_step: Option<f64>,
    /// Ask for no histogram of losses that training does not need: the model card of FedAvg, say, then has none
    #[arg(long)]
    pub(super) no_survey: bool,
    /// Do not ask cohorts how the models serve the examples that devices hold out: nothing is then known of the error
    #[arg(long)]
    pub(super) no_evaluation: bool,
    #[command(flatten)]
    guard: GuardArgs,
    #[command(flatten)]
    deadlines: DeadlineArgs,
}

/// How long devices may take, and at which rates they are heard and served.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Deadlines and rates")]
struct DeadlineArgs {
    /// Seconds for each step of the key set-up
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    setup_deadline: u64,
    /// Seconds to fetch params, train and answer
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    answer_deadline: u64,
    /// Seconds for each of the last two steps of a sum: the consistency check and the unmasking
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    unmask_deadline: u64,
    /// Seconds that a server which goes on with a round of another one waits for its devices to come back
    #[arg(long, value_name = "SECONDS", default_value_t = 150)]
    come_back_deadline: u64,
    /// Kilobytes per second at which a device must send its answer, or it is cut off
    #[arg(long, value_name = "KB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    min_rate: u32,
    /// Megabytes per second that the server spends, at most, on devices which connect without the newest params: each of them
    /// fetches these before it can be drawn. With 0 devices fetch params only when they are asked something
    #[arg(long, value_name = "MB", default_value_t = 100, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    newest_rate: u64,
}

impl Rounds {
    /// Bounds on what devices can make the server hold and send.
    pub(super) fn limits(&self) -> Limits {
        Limits {
            min_rate: 1000 * self.deadlines.min_rate,
            newest_rate: 1_000_000 * self.deadlines.newest_rate,
            ..Limits::default()
        }
    }

    /// Returns the rules for `devices` devices, and the number of devices that a round invites.
    pub(super) fn rules(&self, cohort: usize, devices: usize) -> Result<(Rules, usize)> {
        let share = |option: &str, value: f64, most: f64| {
            let fits = (0.0..=most).contains(&value);
            fits.then_some(value).ok_or_else(|| bad_input(format!("--{option} {value} is not in 0..={most}")))
        };
        let planned = cohort;
        let cohort = cohort.min(devices);
        // If the server may lie, more than half of the invited devices must stay
        // (docs/src/explanation/threat-model.md).
        let extra = share("over-select", self.over_select, 0.5)? * cohort as f64;
        let invited = planned + extra.ceil() as usize;
        let quorum = (share("quorum", self.quorum, 1.0)? * cohort as f64).ceil() as usize;
        let dropping = (1000.0 * share("drop-out", self.drop_out, 0.5)?) as u16;
        let rules = Rules {
            present: self.wait_for.unwrap_or(cohort).min(devices),
            quorum: quorum.max(2),
            dropping: deltafl_server::engine::Permille::new(dropping).unwrap_or_default(),
            deadlines: Deadlines {
                setup: Duration::from_secs(self.deadlines.setup_deadline),
                input: Duration::from_secs(self.deadlines.answer_deadline),
                unmask: Duration::from_secs(self.deadlines.unmask_deadline),
            },
            max_step: self.max_step,
            attempts: self.attempts,
            come_back: Duration::from_secs(self.deadlines.come_back_deadline),
            guard: self.guard.guard()?,
            ..Rules::new(cohort, devices)
        };
        Ok((rules, invited))
    }
}
