//! A deployed federation inside a program: a server and devices with trainers of their own.
//!
//! Both take the options of their commands as words, so that they have the same names, defaults and checks everywhere.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Parser;
use deltafl::data::Federation;
use deltafl::trainer::{LocalTrainer, Sgd};
use deltafl::training::{Outcome, RoundRecord};
use deltafl_data::experiment::Experiment;
use deltafl_run::Listener;
use deltafl_run::session::{self, thin_tail_warnings};

use super::Failure;
use crate::device::{TakePart, Watched, take_part_with};
use crate::error::{bad_input, explained};
use crate::serve::{self, Audience, Served};

/// The options of `deltafl device`.
#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct DeviceWords {
    #[command(flatten)]
    part: TakePart,
}

/// The options of `deltafl serve`.
#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct ServerWords {
    #[command(flatten)]
    args: serve::Args,
}

fn parsed<T: Parser>(words: Vec<OsString>) -> Result<T, Failure> {
    let parsed = T::try_parse_from(words);
    parsed.map_err(|e| {
        let said = e.render().to_string();
        // Usage of a command line is not that of a call.
        let first = said.split("\n\n").next().unwrap_or_default();
        bad_input(first.trim_start_matches("error: ").trim()).into()
    })
}

/// A device of this process.
pub struct Part<'a> {
    /// The options of `deltafl device`, without `--data`.
    pub words: Vec<OsString>,
    /// The federation that holds the device's examples.
    pub data: Arc<Federation>,
    /// What trains; without it, the server's model.
    pub trainer: Option<Arc<dyn LocalTrainer>>,
    /// Whether the device is to end; asked ten times a second.
    pub ended: &'a (dyn Fn() -> bool + Sync),
    /// Hears what a person should know.
    pub say: &'a (dyn Fn(&str) + Sync),
}

/// Takes part in a federation until it is to end, or its owner's consent does not cover what the server asks.
pub fn take_part(part: Part<'_>) -> Result<(), Failure> {
    let Part { mut words, data, trainer, ended, say } = part;
    words.extend(["--data".into(), data.name().into()]);
    let DeviceWords { part } = parsed(words)?;
    Ok(take_part_with(&part, data, trainer, &Watched { ended, say })?)
}

/// What a server of this process trains.
pub struct Service<'a> {
    /// The options of `deltafl serve`, without the experiment.
    pub words: Vec<OsString>,
    /// What is trained.
    pub experiment: Experiment,
    /// Data of the shape that the devices' has; without it, that of the experiment, or none where a trainer is brought.
    pub like: Option<&'a Federation>,
    /// What names w and where it starts, and what devices bring too; without it, the experiment's model.
    pub trainer: Option<&'a dyn LocalTrainer>,
    /// The devices of a server without certificates; without them, those of the data that train.
    pub devices: Option<Vec<String>>,
}

/// Who hears of a server.
pub trait ServerListener: Listener {
    /// Devices can connect; the address is that of a socket.
    fn listening(&self, address: SocketAddr, devices: usize);
    /// The live page is shown here.
    fn page(&self, url: &str);
    /// Something that happened.
    fn say(&self, text: &str);
}

/// Trains with devices that connect. Returns whether all seeds are done; `stop` ends it before.
pub fn serve(
    service: Service<'_>,
    listener: &dyn ServerListener,
    stop: &Arc<AtomicBool>,
) -> Result<bool, Failure> {
    let Service { mut words, experiment, like, trainer, devices } = service;
    words.push("(experiment)".into());
    let ServerWords { args } = parsed(words)?;
    serve::check(&args, &experiment)?;
    let prepared = match (like, trainer) {
        (Some(like), _) => Some(session::prepare(&experiment, like.clone()).map_err(explained)?),
        (None, Some(_)) => None,
        (None, None) => Some(session::load(&experiment).map_err(explained)?),
    };
    let model = match (&prepared, trainer) {
        (Some(federation), None) => {
            Some(session::build_model(&experiment, federation, args.kernel()).map_err(explained)?)
        }
        _ => None,
    };
    let own = model.as_deref().map(Sgd::new);
    let Some(trainer) = trainer.or(own.as_ref().map(|own| own as _)) else {
        return Err(bad_input("a server needs a model or a trainer").into());
    };
    let named = devices.or_else(|| prepared.as_ref().map(serve::train_devices)).unwrap_or_default();
    if named.is_empty() && args.is_insecure() {
        return Err(bad_input("a server without certificates needs the names of its devices").into());
    }
    let contract = prepared.as_ref().map(|federation| serve::contract_of(federation, &experiment));
    let data_hash = match &contract {
        Some(contract) => contract.hash().to_hex().to_string(),
        None => String::new(),
    };
    let served = Served { trainer, contract, data_hash, devices: named };
    let ended = serve::serve(&args, experiment, &served, &Heard(listener), stop)?;
    Ok(ended == Outcome::Finished)
}

/// A listener as the audience of a server.
struct Heard<'a>(&'a dyn ServerListener);

impl Audience for Heard<'_> {
    fn say(&self, text: &str) {
        self.0.say(text);
    }

    fn note(&self, text: &str) {
        self.0.say(text);
    }

    fn page(&self, url: &str) {
        self.0.page(url);
    }

    fn listening(&self, address: SocketAddr, devices: usize) {
        self.0.listening(address, devices);
    }

    fn begin(&self, experiment: &Experiment, seed: u64, done: u64) {
        self.0.begin(experiment, seed, done);
    }

    fn round(&self, record: &RoundRecord, seconds: f64) {
        let RoundRecord { seed, round, cohort, dropped, .. } = record;
        let stayed = cohort - dropped;
        self.0
            .say(&format!("seed {seed}, round {}: {stayed} of {cohort} devices, {seconds:.1} s", round + 1));
        self.0.round(std::slice::from_ref(record));
    }

    fn refused(&self, counted: &str) {
        self.0.say(&format!("refused: {counted}"));
    }

    fn warn(&self, experiment: &Experiment) {
        thin_tail_warnings(experiment).iter().for_each(|text| self.0.warn(text));
    }
}
