//! `deltafl privacy`: the cost of an experiment, and the noise of a budget.

use std::path::{Path, PathBuf};

use deltafl::privacy::{CorrelatedNoise, Mechanism, PrivacyPlan, quantile_error};
use deltafl::superquantile::Conformity;
use deltafl_data::experiment::{Experiment, Positive};
use deltafl_run::report::error_by_epsilon;
use deltafl_run::sweep::folder::SweepFolder;
use deltafl_run::{experiment_file, text_table};
use miette::{IntoDiagnostic, Result, WrapErr, miette};

use crate::error::explained;

/// Show what an experiment costs in privacy, and the noise that a budget needs
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Prints ε for each adversary, the noise of the sums, and the error of the quantile of the losses. The \
experiment has a section [privacy].

Examples:
  deltafl privacy private.toml --devices 100000
  deltafl privacy private.toml --epsilon 1,3,10
  deltafl sweep run private.toml --sweep privacy.epsilon=1,3,10
  deltafl privacy private.toml --sweep sweeps/private --chart error.svg"
)]
pub(crate) struct Args {
    /// The experiment, a TOML file
    experiment: PathBuf,
    /// The number of training devices, from which cohorts are drawn
    #[arg(long, value_name = "N")]
    devices: Option<usize>,
    /// Budgets to compare with that of the experiment
    #[arg(long, value_name = "EPSILONS", value_delimiter = ',')]
    epsilon: Vec<f64>,
    /// Override a key of the experiment; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Print the numbers as JSON
    #[arg(long)]
    json: bool,
    /// The folder of a sweep over privacy.epsilon, or a run folder; may be repeated
    #[arg(long, value_name = "DIR", requires = "chart")]
    sweep: Vec<PathBuf>,
    /// Draw the error of the devices against ε over the runs of --sweep, as SVG
    #[arg(long, value_name = "FILE", requires = "sweep")]
    chart: Option<PathBuf>,
}

/// The numbers of one budget.
#[derive(serde::Serialize)]
struct BudgetRow {
    /// ε against the server; absent if it sees sums without noise.
    #[serde(skip_serializing_if = "Option::is_none")]
    epsilon_server: Option<f64>,
    /// ε against readers of the models; absent if the number of devices is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    epsilon_readers: Option<f64>,
    delta: f64,
    /// The rounds in which a device answers at most.
    rounds: u64,
    /// The noise of all sums of a round, relative to the influence of a device.
    noise_round: f64,
    noise_update: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    noise_quantile: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    noise_evaluation: Option<f64>,
    /// The devices whose noise a sum contains for certain.
    honest: u32,
    /// The error of the kept mass.
    #[serde(skip_serializing_if = "Option::is_none")]
    quantile_error: Option<f64>,
    /// The error of the sum of all updates with noise that is correlated over rounds, relative to
    /// independent noise of the same ε.
    correlated_noise: f64,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let experiment = experiment_file::read(&args.experiment, &args.overrides).map_err(explained)?;
    let section = *experiment.privacy().ok_or_else(|| {
        miette!(
            help = "add for example:  [privacy]  epsilon = 10  clip = 0.5",
            "{} has no section [privacy]: its sums are exact, and ε is infinite",
            args.experiment.display()
        )
    })?;
    let mut rows = vec![row(&experiment, args.devices)?];
    for &epsilon in &args.epsilon {
        let epsilon = Some(Positive::try_from(epsilon).into_diagnostic()?);
        let other = deltafl_data::experiment::PrivacySection { epsilon, noise: None, ..section };
        let other = experiment.clone().with_privacy(Some(other)).into_diagnostic()?;
        rows.push(row(&other, args.devices)?);
    }
    if let Some(chart) = &args.chart {
        draw(&args.sweep, chart)?;
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&rows).into_diagnostic()?);
        return Ok(());
    }
    print!("{}", described(&experiment, &rows[0]));
    println!("{}", text_table::aligned(&table(&rows)));
    Ok(())
}

fn row(experiment: &Experiment, devices: Option<usize>) -> Result<BudgetRow> {
    let (Some(plan), Some(cost)) = (experiment.privacy_plan(), experiment.privacy_cost(devices.unwrap_or(1)))
    else {
        return Err(miette!("the experiment has no section [privacy]"));
    };
    let theta = experiment.labels().into_iter().map(|label| label.theta).find(|theta| theta.get() < 1.0);
    let share = plan.quantile_share;
    let update = if theta.is_some() { plan.track_round * (1.0 - share) } else { plan.track_round };
    let has_evaluation = plan.evaluation.get() > 0.0;
    Ok(BudgetRow {
        epsilon_server: cost.epsilon_server,
        epsilon_readers: devices.map(|_| cost.epsilon_readers),
        delta: plan.delta.get(),
        rounds: cost.device.rounds,
        noise_round: (plan.track_round * cost.device.tracks).noise_multiplier(),
        noise_update: update.noise_multiplier(),
        noise_quantile: theta.map(|_| (plan.track_round * share).noise_multiplier()),
        noise_evaluation: has_evaluation.then(|| plan.evaluation.noise_multiplier()),
        honest: plan.honest(),
        quantile_error: theta.map(|theta| error(&plan, theta, experiment.cohort())).transpose()?,
        correlated_noise: CorrelatedNoise::best(experiment.rounds(), plan.rounds_between).last_round,
    })
}

/// Draws the error against ε over the runs of sweeps and run folders.
fn draw(folders: &[PathBuf], chart: &Path) -> Result<()> {
    let mut runs = Vec::new();
    for folder in folders {
        let sweep = SweepFolder::at(folder);
        match sweep.description().is_file() {
            true => {
                let points = sweep.sweep().map_err(explained)?.points;
                runs.extend(points.iter().map(|point| sweep.point(&point.address)));
            }
            false => runs.push(folder.clone()),
        }
    }
    let svg = error_by_epsilon(&runs).map_err(explained)?.ok_or_else(|| {
        miette!(
            help = "train a sweep first:  deltafl sweep run FILE --sweep privacy.epsilon=3,10",
            "the runs do not differ in ε"
        )
    })?;
    std::fs::write(chart, svg)
        .into_diagnostic()
        .wrap_err_with(|| format!("could not write {}", chart.display()))?;
    println!("{}\n", chart.display());
    Ok(())
}

fn error(plan: &PrivacyPlan, theta: Conformity, cohort: usize) -> Result<f64> {
    quantile_error(plan, theta, u32::try_from(cohort).unwrap_or(u32::MAX)).into_diagnostic()
}

/// Describes the guarantee in sentences.
fn described(experiment: &Experiment, row: &BudgetRow) -> String {
    let mechanism = experiment.privacy().map_or_else(Mechanism::default, |section| section.mechanism);
    let who = match mechanism {
        Mechanism::Distributed => format!(
            "Each device adds noise. A sum contains the noise of at least {} honest devices.",
            row.honest
        ),
        Mechanism::Central => {
            "The server adds the noise and sees sums without it: there is no guarantee against the server."
                .to_owned()
        }
    };
    let correlated = match row.correlated_noise < 0.995 {
        true => format!(
            " Noise that is correlated over rounds, which is not implemented, would have {:.2} of the error of the last model.",
            row.correlated_noise
        ),
        false => String::new(),
    };
    format!(
        "A device answers in at most {} of {} rounds. {who}{correlated}\nδ = {}\n\n",
        row.rounds,
        experiment.rounds(),
        row.delta
    )
}

fn table(rows: &[BudgetRow]) -> Vec<Vec<String>> {
    let head = [
        "ε against the server",
        "ε against readers of the models",
        "noise of a round",
        "of the update",
        "of the quantile",
        "error of the kept mass",
    ];
    let known = |number: Option<f64>| number.map_or("–".to_owned(), |number| format!("{number:.3}"));
    let cells = |row: &BudgetRow| {
        vec![
            known(row.epsilon_server),
            known(row.epsilon_readers),
            format!("{:.3}", row.noise_round),
            format!("{:.3}", row.noise_update),
            known(row.noise_quantile),
            known(row.quantile_error),
        ]
    };
    std::iter::once(head.map(str::to_owned).to_vec()).chain(rows.iter().map(cells)).collect()
}
