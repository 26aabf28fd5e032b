//! `deltafl model`: a device's choice of the conformity level.

use std::path::{Path, PathBuf};

use deltafl::data::{Federation, Split};
use deltafl::exchange::{Exchange as _, Simulation};
use deltafl::params::Params;
use deltafl::superquantile::{Bounds, Conformity};
use deltafl::task::Metric;
use deltafl::trainer::Sgd;
use deltafl_device::enrolment::{AskError, ModelApi};
use deltafl_device::is_refused_certificate;
use deltafl_run::text_table;
use deltafl_wire::card::{Card, CardLosses, HeldOutFigures};
use deltafl_wire::contract::DataContract;
use deltafl_wire::identity::DeviceIdentity;
use deltafl_wire::params_file::{ModelAbout, read_params};
use miette::{IntoDiagnostic, Report, Result};
use serde::Serialize;

use crate::certs::identity_error;
use crate::error::bad_input;
use crate::run::CpuArgs;

/// Fetch the model of a level, and compare the levels on this device
#[derive(clap::Subcommand, Debug)]
pub(crate) enum ModelCommand {
    /// Fetch the model of the level nearest to θ
    #[command(
        after_help = "Example:\n  deltafl model pull --theta 0.5 --server https://fl.example.org:7780 --identity identity --out model.safetensors"
    )]
    Pull {
        /// The conformity level θ in (0, 1]
        #[arg(long)]
        theta: f64,
        #[command(flatten)]
        source: SourceArgs,
        /// The file for the params; the model card is written to the same folder
        #[arg(long, value_name = "FILE", default_value = "model.safetensors")]
        out: PathBuf,
    },
    /// Evaluate every level locally on the held-out examples of this device, and print the best θ
    #[command(
        after_help = "Example:\n  deltafl model try --data data/mine --server https://fl.example.org:7780 --identity identity"
    )]
    Try {
        /// The federation folder with this device's examples
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
        #[command(flatten)]
        source: SourceArgs,
        #[command(flatten)]
        cpu: CpuArgs,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
}

/// The source of the models.
#[derive(clap::Args, Debug)]
pub(crate) struct SourceArgs {
    /// The HTTP address of the server
    #[arg(long, value_name = "URL")]
    server: String,
    /// This device's identity
    #[arg(long, value_name = "DIR")]
    identity: Option<PathBuf>,
    /// The federation, if its models are public; no identity is needed then
    #[arg(long, value_name = "NAME", conflicts_with = "identity")]
    federation: Option<String>,
}

impl SourceArgs {
    fn model_api(&self) -> Result<ModelApi> {
        if let Some(folder) = &self.identity {
            let device = DeviceIdentity::open(folder).map_err(identity_error)?;
            return Ok(ModelApi::with_identity(&self.server, &device));
        }
        let Some(federation) = &self.federation else {
            return Err(bad_input("models are for devices of a federation: the identity of this device is needed")
                .help("--identity DIR presents this device's certificate; --federation NAME is enough if models are public")
                .into());
        };
        Ok(ModelApi::anonymous(&self.server, federation))
    }

    /// Returns the options for the same server, as typed on a command line.
    fn typed(&self) -> String {
        let who = match (&self.identity, &self.federation) {
            (Some(folder), _) => format!(" --identity {}", folder.display()),
            (None, Some(federation)) => format!(" --federation {federation}"),
            (None, None) => String::new(),
        };
        format!("--server {}{who}", self.server)
    }
}

pub(crate) fn run(command: ModelCommand) -> Result<()> {
    match command {
        ModelCommand::Pull { theta, source, out } => pull(theta, &source.model_api()?, &out),
        ModelCommand::Try { data, source, cpu, json } => try_levels(&data, &source, &cpu, json),
    }
}

fn pull(theta: f64, model_api: &ModelApi, out: &Path) -> Result<()> {
    let theta = Conformity::try_from(theta).map_err(|e| bad_input(e.to_string()))?;
    let card = model_api.card(theta.get()).map_err(ask_error)?;
    let held = std::fs::read(out).ok().map(|bytes| blake3::hash(&bytes).to_hex().to_string());
    if held.as_deref() == Some(&card.blake3) {
        println!("{} is the newest already: θ = {}, version {}", out.display(), card.theta, card.version);
        return Ok(());
    }
    let bytes = model_api.params(&card).map_err(ask_error)?;
    read_params(&bytes).map_err(|e| bad_input("the server sent no params").because(e))?;
    std::fs::write(out, &bytes).into_diagnostic()?;
    let text = serde_json::to_string_pretty(&card).into_diagnostic()?;
    std::fs::write(out.with_extension("card.json"), text + "\n").into_diagnostic()?;
    println!("θ = {}, version {}, {} bytes: {}", card.theta, card.version, card.bytes, out.display());
    Ok(())
}

/// The evaluation of a level on this device.
#[derive(Clone, Debug, Serialize)]
struct Tried {
    theta: Conformity,
    algorithm: String,
    version: u64,
    loss: f64,
    /// The name of the metric, for example `error` or `rmse`.
    metric: &'static str,
    /// The value of the metric; a share as a fraction.
    value: f64,
    /// The number of evaluated examples.
    examples: u64,
    /// Whether the examples are held out. If the device holds none out, it may have trained on
    /// them.
    held_out: bool,
    #[serde(skip)]
    shown: &'static Metric,
    /// The losses of other devices under this level.
    others: CardLosses,
    /// The metrics of this level on held-out examples of other devices.
    others_held_out: Vec<HeldOutFigures>,
}

impl Tried {
    /// Returns median and 90th percentile of the metric over the held-out examples of other
    /// devices.
    fn metric_of_others(&self) -> Option<[Bounds; 2]> {
        let of_metric = |figures: &&HeldOutFigures| figures.measure.name() == self.metric;
        self.others_held_out.iter().find(of_metric).map(|told| [told.figures.p50, told.figures.p90])
    }

    /// Returns median and 90th percentile of the losses of other devices.
    fn losses_of_others(&self) -> Option<[Bounds; 2]> {
        let known = &self.others.measured()?.percentiles;
        let at = |percent: u8| known.iter().find(|p| p.percentile == percent).map(|p| p.bounds);
        Some([at(50)?, at(90)?])
    }
}

/// Formats known bounds of a figure, each end by `number`.
fn between(bounds: Bounds, number: impl Fn(f64) -> String) -> String {
    match (bounds.lower.map(&number), bounds.upper.map(&number)) {
        (Some(lower), Some(upper)) if lower == upper => lower,
        (Some(lower), Some(upper)) => format!("{lower}–{upper}"),
        (Some(lower), None) => format!("≥ {lower}"),
        (None, Some(upper)) => format!("< {upper}"),
        (None, None) => "–".to_owned(),
    }
}

fn try_levels(data: &Path, source: &SourceArgs, cpu: &CpuArgs, json: bool) -> Result<()> {
    let model_api = source.model_api()?;
    let cards = model_api.models().map_err(ask_error)?;
    let newest = cards.iter().map(|card| card.version).max();
    let mut tried = Vec::new();
    for card in cards.iter().filter(|card| Some(card.version) == newest) {
        let bytes = model_api.params(card).map_err(ask_error)?;
        let (about, params) =
            read_params(&bytes).map_err(|e| bad_input("the server sent no params").because(e))?;
        let federation = fitted(data, about.contract.as_ref())?;
        tried.push(evaluate(card, &about, &params, &federation, cpu)?);
    }
    let best = tried.iter().min_by(|a, b| a.loss.total_cmp(&b.loss));
    let Some(best) = best else {
        return Err(bad_input("the server has published no model yet").into());
    };
    if json {
        println!("{}", serde_json::to_string_pretty(&tried).into_diagnostic()?);
        return Ok(());
    }
    // The metric on held-out examples of other devices is comparable to this device's. Their losses
    // are on training examples.
    let held_out = tried.iter().any(|level| level.metric_of_others().is_some());
    let heading = best.shown.heading();
    let digits = text_table::decimals(best.shown, tried.iter().map(|level| level.value));
    println!("{:>9}  {:>8}  {heading:>8}  {:>13}  {:>13}", "θ", "loss", "median", "90th");
    // Levels that the table shows as equal are not ranked.
    let is_equal = |level: &&Tried| format!("{:.4}", level.loss) == format!("{:.4}", best.loss);
    let is_single = tried.iter().filter(is_equal).count() == 1;
    for level in &tried {
        let mark = match () {
            () if !is_equal(&level) => "",
            () if is_single => "  ← serves this device best",
            () => "  ← as good as the best",
        };
        let theta = level.theta.to_string();
        let value = text_table::number(level.shown.display_value(level.value), digits);
        let [median, high] = match held_out {
            true => level.metric_of_others().unwrap_or_default().map(|bounds| {
                between(bounds, |value| text_table::number(level.shown.display_value(value), digits))
            }),
            false => level
                .losses_of_others()
                .unwrap_or_default()
                .map(|bounds| between(bounds, |value| format!("{value:.3}"))),
        };
        println!("{theta:>9}  {:>8.4}  {value:>8}  {median:>13}  {high:>13}{mark}", level.loss);
    }
    let examples = best.examples;
    match best.held_out {
        true => println!("\nloss, {heading}: on {examples} examples of this device that never trained"),
        false => println!(
            "\nloss, {heading}: on {examples} examples of this device; it may have trained on them, as the federation holds none out"
        ),
    }
    if held_out {
        println!(
            "median, 90th: percentiles of {heading} over a cohort, on examples that never trained, from the model cards"
        );
    } else if tried.iter().any(|level| level.others.measured().is_some()) {
        println!("median, 90th: percentiles of the losses of a cohort, from the model cards");
    }
    println!("\nGet it:  deltafl model pull --theta {} {}", best.theta, source.typed());
    Ok(())
}

/// This device's data, as the model that was pulled saw that of others.
fn fitted(data: &Path, contract: Option<&DataContract>) -> Result<Federation> {
    let federation = deltafl_data::open(data).map_err(|e| bad_input(e.to_string()))?;
    let Some(contract) = contract else { return Ok(federation) };
    let refused = |e| bad_input(format!("the data in {} does not fit the model", data.display())).because(e);
    Ok(contract.fit(federation).map_err(refused)?)
}

/// Mean loss and the task's metric over the examples that the device holds out, or over all of them
/// where it holds none out. Nothing leaves the machine.
fn evaluate(
    card: &Card,
    about: &ModelAbout,
    params: &Params,
    federation: &Federation,
    cpu: &CpuArgs,
) -> Result<Tried> {
    let refused = "the model does not fit the data";
    let model = about.model.build(federation, cpu.kernel.isa()).map_err(|e| bad_input(refused).because(e))?;
    if model.num_params() != params.len() {
        let (needs, got) = (model.num_params(), params.len());
        return Err(bad_input(format!("{refused}: it has {got} params where this data needs {needs}")).into());
    }
    let trainer = Sgd::boxed(&*model);
    let mut exchange = Simulation::with_threads(&*trainer, federation, cpu.threads())
        .map_err(|e| bad_input(refused).because(e))?;
    let (mut loss, mut value, mut examples) = (0.0, 0.0, 0.0);
    let held_out = federation.held_out().iter().any(Option::is_some);
    let splits = [Split::Test, Split::Train, Split::Validation];
    for &split in &splits[..if held_out { 1 } else { splits.len() }] {
        let evaluated = exchange.evaluate(split, &[params]).map_err(Report::from_err)?;
        let Some(evaluated) = evaluated else { continue };
        for (device, evaluation) in evaluated.devices.iter().zip(&evaluated.tracks[0]) {
            let weight = device.examples as f64;
            loss += weight * evaluation.loss;
            value += weight * evaluation.primary();
            examples += weight;
        }
    }
    let (theta, algorithm, version) = (card.theta, card.algorithm.clone(), card.version);
    let (mean_loss, value, shown) = (loss / examples, value / examples, trainer.task().primary());
    Ok(Tried {
        theta,
        algorithm,
        version,
        loss: mean_loss,
        metric: shown.name,
        value,
        examples: examples as u64,
        held_out,
        shown,
        others: card.losses.clone(),
        others_held_out: card.held_out.clone(),
    })
}

fn ask_error(error: AskError) -> Report {
    match error {
        AskError::Refused { status: 403, .. } => {
            let help = "--identity DIR shows this device's certificate; --federation NAME is for servers with public models";
            bad_input(error.to_string()).help(help).into()
        }
        AskError::Refused { status: 404, .. } => {
            bad_input("the server has no such model yet").because(error).into()
        }
        error if is_refused_certificate(&error) => {
            let help = "it was revoked or has expired: deltafl certs show DIR prints its validity; ask the keeper of \
                        the authority";
            bad_input("the server refuses this device's certificate").help(help).into()
        }
        error => Report::from_err(error),
    }
}
