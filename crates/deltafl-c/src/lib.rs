//! A device of a federation behind a C interface: join, a loss and an update callback, stop.
//!
//! `include/deltafl.h` is made of this file by cbindgen. The examples stay with the caller: the library knows their number and
//! asks about ranges of them, so that a device written in C adds the same integers to a sum as one written in Rust.

#![allow(unsafe_code, reason = "a C interface")]
#![allow(non_camel_case_types, reason = "the names are those of the header")]

use std::ffi::{CStr, c_char, c_void};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use ::deltafl_device::{Consent, Credentials, Data, Device, DeviceState, Server, Trust};
use deltafl::data::Examples;
use deltafl::memory::Memory;
use deltafl::model::Score;
use deltafl::stream::Stream;
use deltafl::trainer::{LocalTask, LocalTrainer, TrainerError, Work, Worker};
use deltafl_wire::identity::DeviceIdentity;
use deltafl_wire::loopback;
use tokio::runtime::Runtime;

/// Random numbers of one local update: draw from them and from nothing else.
pub struct deltafl_random(Stream);

/// How a device trains in a round.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct deltafl_plan {
    /// Passes over the examples; 0 where `steps` counts.
    pub epochs: u32,
    /// Steps, each on a batch drawn with replacement; 0 where `epochs` counts.
    pub steps: u32,
    /// Examples per step.
    pub batch: u64,
    /// The learning rate of the round.
    pub learning_rate: f32,
    /// λ of the term (λ/2)‖w‖².
    pub l2: f32,
    /// μ of the term (μ/2)‖w − w_t‖².
    pub proximal: f32,
}

/// What the caller trains. Calls never overlap; they may come from different threads. A callback that returns something else
/// than 0 takes the device out of the round.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct deltafl_trainer {
    /// Handed to every callback.
    pub context: *mut c_void,
    /// Number of parameters.
    pub params: usize,
    /// Number of examples of this device.
    pub examples: usize,
    /// Writes the sum of the losses of examples `first` to `first + count` at `params` to `loss`.
    pub loss: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            params: *const f32,
            first: usize,
            count: usize,
            loss: *mut f64,
        ) -> i32,
    >,
    /// Trains `params` in place, as `plan` says.
    pub update: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            params: *mut f32,
            plan: *const deltafl_plan,
            random: *mut deltafl_random,
        ) -> i32,
    >,
}

/// Where a device takes part, and as whom. All text is UTF-8.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct deltafl_options {
    /// Host and port of the server.
    pub server: *const c_char,
    /// The folder that `deltafl enrol` wrote; NULL talks to this machine without certificates, for demonstrations.
    pub identity: *const c_char,
    /// The name of the device, where `identity` is NULL.
    pub name: *const c_char,
    /// The folder in which the device remembers what it was shown and what it answered; NULL forgets at the end.
    pub state: *const c_char,
    /// The fewest devices to hide among; 0 takes the usual 30.
    pub min_cohort: u32,
    /// Rounds that must lie between two rounds that the device answers.
    pub rounds_between: u64,
    /// Whether random numbers follow from the seed of the server, for the bits of a simulation. The server then knows them all.
    pub reproducible: bool,
}

/// A device that takes part.
pub struct deltafl_device {
    runtime: Option<Runtime>,
    /// Says why the device ended.
    ended: Receiver<String>,
}

/// Takes part in a federation, on threads of its own, until `deltafl_stop`. Returns NULL if that cannot begin, and writes the
/// reason to `error`, cut to `error_len` bytes with the zero behind it; `error` may be NULL.
///
/// # Safety
/// `options` and `trainer` point to filled structures whose texts end with a zero. `trainer->context` and the callbacks are
/// valid until `deltafl_stop` returns. `error` points to `error_len` bytes or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deltafl_join(
    options: *const deltafl_options,
    trainer: *const deltafl_trainer,
    error: *mut c_char,
    error_len: usize,
) -> *mut deltafl_device {
    let joined = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the caller hands pointers to filled structures, or NULL.
        let (options, trainer) = unsafe { (options.as_ref(), trainer.as_ref()) };
        let options = options.ok_or("options is NULL")?;
        // SAFETY: the texts of the options end with a zero, as the caller promises.
        let options = unsafe { Options::read(options) }?;
        join(&options, CTrainer::new(trainer.ok_or("trainer is NULL")?)?)
    }));
    let reason = match joined {
        Ok(Ok(device)) => return Box::into_raw(Box::new(device)),
        Ok(Err(reason)) => reason.to_string(),
        Err(_) => "the library failed".to_owned(),
    };
    // SAFETY: `error` points to `error_len` bytes or is NULL, as the caller promises.
    unsafe { write_text(&reason, error, error_len) };
    std::ptr::null_mut()
}

/// Waits up to so many milliseconds. Returns 0 if the device still takes part, and 1 if it has ended; then `error` says why.
///
/// # Safety
/// `device` comes from `deltafl_join` and was not stopped. `error` points to `error_len` bytes or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deltafl_wait(
    device: *const deltafl_device,
    milliseconds: u64,
    error: *mut c_char,
    error_len: usize,
) -> i32 {
    // SAFETY: the caller hands a device that was not stopped, or NULL.
    let Some(device) = (unsafe { device.as_ref() }) else { return 1 };
    let reason = match device.ended.recv_timeout(Duration::from_millis(milliseconds)) {
        Err(RecvTimeoutError::Timeout) => return 0,
        Ok(reason) => reason,
        Err(RecvTimeoutError::Disconnected) => "the device has ended".to_owned(),
    };
    // SAFETY: `error` points to `error_len` bytes or is NULL, as the caller promises.
    unsafe { write_text(&reason, error, error_len) };
    1
}

/// Leaves the federation and frees the device. A callback that runs is waited for; none is called after.
///
/// # Safety
/// `device` comes from `deltafl_join` and was not stopped, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deltafl_stop(device: *mut deltafl_device) {
    if device.is_null() {
        return;
    }
    // SAFETY: it was made by Box::into_raw in deltafl_join and is handed back once.
    let mut device = unsafe { Box::from_raw(device) };
    // Dropping a runtime waits for what runs on its blocking threads: the callbacks.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(device.runtime.take())));
}

/// A random number below `bound`; 0 where `bound` is 0.
///
/// # Safety
/// `random` is the one that the present call of `update` was given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deltafl_random_below(random: *mut deltafl_random, bound: u64) -> u64 {
    // SAFETY: the caller hands on what it was given, or NULL.
    match unsafe { random.as_mut() } {
        Some(random) if bound > 0 => random.0.below(bound),
        _ => 0,
    }
}

/// Options as Rust holds them.
struct Options {
    server: String,
    identity: Option<String>,
    name: Option<String>,
    state: Option<String>,
    min_cohort: Option<usize>,
    rounds_between: u64,
    reproducible: bool,
}

impl Options {
    /// # Safety
    /// The texts end with a zero or are NULL.
    unsafe fn read(options: &deltafl_options) -> Result<Self, TrainerError> {
        let text = |text: *const c_char| -> Result<Option<String>, TrainerError> {
            if text.is_null() {
                return Ok(None);
            }
            // SAFETY: it is not NULL and ends with a zero, as the caller promises.
            Ok(Some(unsafe { CStr::from_ptr(text) }.to_str()?.to_owned()))
        };
        Ok(Self {
            server: text(options.server)?.ok_or("options.server is NULL")?,
            identity: text(options.identity)?,
            name: text(options.name)?,
            state: text(options.state)?,
            min_cohort: (options.min_cohort > 0).then_some(options.min_cohort as usize),
            rounds_between: options.rounds_between,
            reproducible: options.reproducible,
        })
    }

    /// Who the device is, and how it knows its server.
    fn known(&self) -> Result<(Credentials, Server), TrainerError> {
        if let Some(folder) = &self.identity {
            let identity = DeviceIdentity::open(Path::new(folder))?;
            return Ok((Credentials::from(&identity), Server::certified(&self.server, &identity)?));
        }
        let name = self.name.as_ref().ok_or("options.identity and options.name are both NULL")?;
        let server = Server { address: self.server.clone(), trust: Trust::Loopback };
        Ok((loopback::credentials(name), server))
    }
}

fn join(options: &Options, trainer: CTrainer) -> Result<deltafl_device, TrainerError> {
    let (credentials, server) = options.known()?;
    let data = Data::held_by_trainer(&credentials.name, trainer.raw.examples)?;
    let mut consent = Consent::default();
    consent.min_cohort = options.min_cohort.unwrap_or(consent.min_cohort);
    (consent.rounds_between, consent.reproducible) = (options.rounds_between, options.reproducible);
    let state = match &options.state {
        Some(folder) => DeviceState::open(Path::new(folder))?,
        None => DeviceState::default(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let (tell, ended) = channel();
    let device = Device::connect(server, credentials, consent).with_state(state);
    runtime.spawn(async move {
        if let Err(reason) = device.serve(Arc::new(trainer), data).await {
            let _ = tell.send(reason.to_string());
        }
    });
    Ok(deltafl_device { runtime: Some(runtime), ended })
}

/// Writes a text and a zero behind it, cut to fit.
///
/// # Safety
/// `to` points to `len` bytes or is NULL.
unsafe fn write_text(text: &str, to: *mut c_char, len: usize) {
    if to.is_null() || len == 0 {
        return;
    }
    // Not within a character.
    let end = (0..=text.len().min(len - 1)).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    // SAFETY: `end` is below `len`, and both ranges are valid and do not overlap.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast::<u8>(), end);
        to.add(end).write(0);
    }
}

/// The trainer of the caller.
struct CTrainer {
    raw: deltafl_trainer,
    loss: unsafe extern "C" fn(*mut c_void, *const f32, usize, usize, *mut f64) -> i32,
    update: unsafe extern "C" fn(*mut c_void, *mut f32, *const deltafl_plan, *mut deltafl_random) -> i32,
}

// SAFETY: the device computes on one thread at a time, and the caller promises that its context can be used so.
unsafe impl Send for CTrainer {}
// SAFETY: as above; a shared reference calls nothing by itself.
unsafe impl Sync for CTrainer {}

impl CTrainer {
    fn new(raw: &deltafl_trainer) -> Result<Self, TrainerError> {
        let (Some(loss), Some(update)) = (raw.loss, raw.update) else {
            return Err("trainer.loss or trainer.update is NULL".into());
        };
        Ok(Self { raw: *raw, loss, update })
    }
}

impl LocalTrainer for CTrainer {
    fn num_params(&self) -> usize {
        self.raw.params
    }

    /// The server begins; a device never does.
    fn init(&self, _: &mut Stream, params: &mut [f32]) {
        params.fill(0.0);
    }

    fn worker(&self) -> Box<dyn Worker + '_> {
        Box::new(CWorker { trainer: self, params: Vec::new() })
    }
}

struct CWorker<'a> {
    trainer: &'a CTrainer,
    params: Vec<f32>,
}

impl Worker for CWorker<'_> {
    fn load(&mut self, params: &[f32]) {
        params.clone_into(&mut self.params);
    }

    fn score(&mut self, _: &Examples<'_>, block: Range<usize>) -> Result<Score, TrainerError> {
        let CTrainer { raw, loss: callback, .. } = self.trainer;
        let mut loss = f64::NAN;
        // SAFETY: the callback and its context are valid until the device is stopped, and the pointers are ours.
        let status =
            unsafe { callback(raw.context, self.params.as_ptr(), block.start, block.len(), &mut loss) };
        if status == 0 { Ok(Score { loss, ..Score::default() }) } else { Err(refused("loss", status)) }
    }

    fn update(
        &mut self,
        task: &LocalTask<'_>,
        _: &mut Memory,
        stream: &mut Stream,
    ) -> Result<&[f32], TrainerError> {
        let plan = task.plan;
        plan.without_correction()?;
        self.load(task.params);
        let (epochs, steps) = match plan.work {
            Work::Epochs(epochs) => (epochs, 0),
            Work::Steps(steps) => (0, steps),
        };
        let plan = deltafl_plan {
            epochs,
            steps,
            batch: plan.batch as u64,
            learning_rate: plan.learning_rate,
            l2: plan.l2,
            proximal: plan.proximal,
        };
        let mut random = deltafl_random(stream.clone());
        let CTrainer { raw, update: callback, .. } = self.trainer;
        // SAFETY: as above; `params` holds as many entries as the trainer said.
        let status = unsafe { callback(raw.context, self.params.as_mut_ptr(), &plan, &mut random) };
        *stream = random.0;
        if status == 0 { Ok(&self.params) } else { Err(refused("update", status)) }
    }
}

fn refused(callback: &str, status: i32) -> TrainerError {
    format!("the callback {callback} returned {status}").into()
}
