//! The options of `deltafl serve` about rounds.

use deltafl_server::ServerConfig;

use crate::device::GuardArgs;

/// The rounds of a deployment, whose devices connect and disconnect.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Rounds")]
pub(crate) struct RoundArgs {
    /// Number of devices that must be connected before a round starts [default: a cohort]
    #[arg(long, value_name = "N")]
    wait_for: Option<usize>,
    /// Devices invited beyond the cohort, as a share of it; the first that join take part
    #[arg(long, value_name = "SHARE", default_value_t = ServerConfig::default().over_select)]
    over_select: f64,
    /// The share of a cohort that must answer for its sum to count
    #[arg(long, value_name = "SHARE", default_value_t = ServerConfig::default().quorum)]
    quorum: f64,
    /// The share of a cohort that may drop out during a sum: keys are shared so that the other
    /// devices can finish it
    #[arg(long, value_name = "SHARE", default_value_t = ServerConfig::default().drop_out)]
    drop_out: f64,
    /// Number of cohorts that a round tries; if the aggregation of all of them fails, the round
    /// changes nothing
    #[arg(long, value_name = "N", default_value_t = ServerConfig::default().attempts, value_parser = clap::value_parser!(u32).range(1..))]
    attempts: u32,
    /// The largest norm of the change of the params in a round; a larger change is rejected
    #[arg(long, value_name = "NORM")]
    max_step: Option<f64>,
    /// Request no histogram of losses that training does not need; the model card of FedAvg then
    /// has none
    #[arg(long)]
    no_survey: bool,
    /// Do not evaluate models on the held-out examples of devices; their error is then unknown
    #[arg(long)]
    no_evaluation: bool,
    #[command(flatten)]
    guard: GuardArgs,
    #[command(flatten)]
    deadlines: DeadlineArgs,
}

/// Deadlines of devices, and rates of sending and receiving.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Deadlines and rates")]
struct DeadlineArgs {
    /// Seconds for each step of the key set-up
    #[arg(long, value_name = "SECONDS", default_value_t = ServerConfig::default().setup_deadline, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    setup_deadline: u64,
    /// Seconds to fetch params, train and answer
    #[arg(long, value_name = "SECONDS", default_value_t = ServerConfig::default().answer_deadline, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    answer_deadline: u64,
    /// Seconds for each of the last two steps of a sum: the consistency check and the unmasking
    #[arg(long, value_name = "SECONDS", default_value_t = ServerConfig::default().unmask_deadline, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    unmask_deadline: u64,
    /// Seconds that a server waits for the devices of a round that another server started
    #[arg(long, value_name = "SECONDS", default_value_t = ServerConfig::default().come_back_deadline, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    come_back_deadline: u64,
    /// Minimum rate in kilobytes per second at which a device must send its answer
    #[arg(long, value_name = "KB", default_value_t = ServerConfig::default().min_rate, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    min_rate: u32,
    /// Maximum rate in megabytes per second for devices that connect without the newest params and
    /// fetch them before they can be drawn. At 0, devices fetch params only with a question
    #[arg(long, value_name = "MB", default_value_t = ServerConfig::default().newest_rate, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    newest_rate: u64,
}

impl RoundArgs {
    /// Puts the options into a configuration.
    pub(super) fn apply(&self, config: &mut ServerConfig) {
        config.wait_for = self.wait_for;
        config.over_select = self.over_select;
        config.quorum = self.quorum;
        config.drop_out = self.drop_out;
        config.attempts = self.attempts;
        config.max_step = self.max_step;
        config.no_survey = self.no_survey;
        config.no_evaluation = self.no_evaluation;
        let guard = self.guard.options();
        (config.adversary, config.gamma, config.accomplices) =
            (guard.adversary, guard.gamma, guard.accomplices);
        config.setup_deadline = self.deadlines.setup_deadline;
        config.answer_deadline = self.deadlines.answer_deadline;
        config.unmask_deadline = self.deadlines.unmask_deadline;
        config.come_back_deadline = self.deadlines.come_back_deadline;
        config.min_rate = self.deadlines.min_rate;
        config.newest_rate = self.deadlines.newest_rate;
    }
}
