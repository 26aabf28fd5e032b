//! A device of a federation behind a C interface: join, callbacks for loss and update, stop.
//!
//! cbindgen generates `include/deltafl.h` from this file. The examples remain with the caller. The
//! library knows only their number and requests the loss of ranges, so that a device in C adds the
//! same integers to a sum as a device in Rust.
//!
//! ```c
//! deltafl_options options = {.server = "127.0.0.1:7700", .name = "sensor-0"};
//! deltafl_trainer trainer = {.params = 2, .examples = 20, .loss = loss, .update = update};
//! deltafl_device *device = deltafl_join(&options, &trainer, error, sizeof error);
//! while (device && deltafl_wait(device, 1000, error, sizeof error) == 0) {}
//! deltafl_stop(device);
//! ```
//!
//! `tests/line.c` is a complete program, and `docs/src/how-to/embed.md` describes how to link it.

#![allow(unsafe_code, reason = "a C interface")]
#![allow(non_camel_case_types, reason = "the names are those of the header")]

use std::ffi::{CStr, c_char, c_void};
use std::ops::{ControlFlow, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use ::deltafl_device::{
    Consent, Credentials, Device, DeviceData, DeviceError, DeviceState, ServerEndpoint, ServerTrust,
    SessionEvent, SessionObserver, check_address, is_refused_certificate,
};
use deltafl::data::Examples;
use deltafl::memory::AlgorithmState;
use deltafl::model::Score;
use deltafl::stream::Stream;
use deltafl::trainer::{LocalTask, LocalTrainer, TrainerError, Work, Worker};
use deltafl_wire::chain;
use deltafl_wire::identity::DeviceIdentity;
use deltafl_wire::loopback;
use tokio::runtime::Runtime;

/// The random numbers of one local update. Use no other source.
pub struct deltafl_random(Stream);

/// The training plan of a device in a round.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct deltafl_plan {
    /// The number of passes over the examples, or 0 if `steps` is used.
    pub epochs: u32,
    /// The number of steps, each on a batch drawn with replacement, or 0 if `epochs` is used.
    pub steps: u32,
    /// The number of examples per step.
    pub batch: u64,
    /// The learning rate of the round.
    pub learning_rate: f32,
    /// λ of the term (λ/2)‖w‖².
    pub l2: f32,
    /// μ of the term (μ/2)‖w − w_t‖².
    pub proximal: f32,
}

/// The trainer of the caller. Calls never overlap, but may come from different threads. If a
/// callback returns a value other than 0, the device leaves the round.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct deltafl_trainer {
    /// A pointer that is passed to every callback.
    pub context: *mut c_void,
    /// The number of parameters.
    pub params: usize,
    /// The number of examples of this device.
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
    /// Trains `params` in place according to `plan`.
    pub update: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            params: *mut f32,
            plan: *const deltafl_plan,
            random: *mut deltafl_random,
        ) -> i32,
    >,
}

/// The server and the identity of a device. All strings are UTF-8.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct deltafl_options {
    /// The host and port of the server.
    pub server: *const c_char,
    /// The folder that `deltafl enrol` wrote. NULL connects to this machine without certificates,
    /// for demonstrations.
    pub identity: *const c_char,
    /// The name of the device if `identity` is NULL.
    pub name: *const c_char,
    /// The folder in which the device stores its received requests and its answers. It is required
    /// with an `identity`. NULL stores nothing.
    pub state: *const c_char,
    /// The smallest number of members in a round, or 0 for the default of 30.
    pub min_cohort: u32,
    /// The smallest number of rounds between two rounds that the device answers.
    pub rounds_between: u64,
    /// The largest number of answers under one authority, or 0 for the default. An answer is a
    /// contribution to one sum.
    pub answers: u64,
    /// The largest number of answers per day, or 0 for the default.
    pub answers_per_day: u64,
    /// The smallest batch of an update, or 0 for the default.
    pub min_batch: u64,
    /// The smallest number of steps of an update, or 0 for the default.
    pub min_steps: u64,
    /// The smallest number of examples behind an answer, or 0 for the default.
    pub min_examples: u64,
    /// Whether the server may weigh devices by classes of their numbers of examples.
    pub bucketed: bool,
    /// Whether random numbers are derived from the seed of the server, to reproduce a simulation.
    /// The server then knows all of them.
    pub reproducible: bool,
}

/// A device that takes part in a federation.
pub struct deltafl_device {
    runtime: Option<Runtime>,
    /// Receives the reason why the device ended.
    ended: Receiver<String>,
}

/// Takes part in a federation on separate threads until `deltafl_stop`. On failure, returns NULL
/// and writes the reason to `error`, truncated to `error_len` bytes including the terminating zero.
/// `error` may be NULL.
///
/// # Safety
/// `options` and `trainer` point to initialised structures with zero-terminated strings.
/// `trainer->context` and the callbacks are valid until `deltafl_stop` returns. `error` points to
/// `error_len` bytes or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deltafl_join(
    options: *const deltafl_options,
    trainer: *const deltafl_trainer,
    error: *mut c_char,
    error_len: usize,
) -> *mut deltafl_device {
    let joined = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the caller passes pointers to initialised structures, or NULL.
        let (options, trainer) = unsafe { (options.as_ref(), trainer.as_ref()) };
        let options = options.ok_or("options is NULL")?;
        // SAFETY: the caller guarantees that the strings are zero-terminated.
        let options = unsafe { DeviceOptions::read(options) }?;
        join(&options, CTrainer::new(trainer.ok_or("trainer is NULL")?)?)
    }));
    let reason = match joined {
        Ok(Ok(device)) => return Box::into_raw(Box::new(device)),
        Ok(Err(reason)) => chain(&*reason),
        Err(_) => "the library failed".to_owned(),
    };
    // SAFETY: the caller guarantees that `error` points to `error_len` bytes or is NULL.
    unsafe { write_text(&reason, error, error_len) };
    std::ptr::null_mut()
}

/// Waits for up to the given number of milliseconds. Returns 0 if the device still takes part.
/// Returns 1 if it has ended, and writes the reason to `error`.
///
/// # Safety
/// `device` was returned by `deltafl_join` and was not stopped. `error` points to `error_len` bytes
/// or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deltafl_wait(
    device: *const deltafl_device,
    milliseconds: u64,
    error: *mut c_char,
    error_len: usize,
) -> i32 {
    // SAFETY: the caller passes a device that was not stopped, or NULL.
    let Some(device) = (unsafe { device.as_ref() }) else { return 1 };
    let reason = match device.ended.recv_timeout(Duration::from_millis(milliseconds)) {
        Err(RecvTimeoutError::Timeout) => return 0,
        Ok(reason) => reason,
        Err(RecvTimeoutError::Disconnected) => "the device has ended".to_owned(),
    };
    // SAFETY: the caller guarantees that `error` points to `error_len` bytes or is NULL.
    unsafe { write_text(&reason, error, error_len) };
    1
}

/// Leaves the federation and frees the device. Waits for a running callback. No callback is called
/// afterwards.
///
/// # Safety
/// `device` was returned by `deltafl_join` and was not stopped, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deltafl_stop(device: *mut deltafl_device) {
    if device.is_null() {
        return;
    }
    // SAFETY: the pointer was created by `Box::into_raw` in `deltafl_join` and is passed back once.
    let mut device = unsafe { Box::from_raw(device) };
    // Dropping a runtime waits for its blocking threads, which run the callbacks.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(device.runtime.take())));
}

/// Returns a random number below `bound`, or 0 if `bound` is 0.
///
/// # Safety
/// `random` is the pointer that the current call of `update` received.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deltafl_random_below(random: *mut deltafl_random, bound: u64) -> u64 {
    // SAFETY: the caller passes the pointer that it received, or NULL.
    match unsafe { random.as_mut() } {
        Some(random) if bound > 0 => random.0.below(bound),
        _ => 0,
    }
}

/// The options in Rust types.
struct DeviceOptions {
    server: String,
    identity: Option<String>,
    name: Option<String>,
    state: Option<String>,
    consent: Consent,
}

impl DeviceOptions {
    /// Converts the options.
    ///
    /// # Safety
    /// The strings are zero-terminated or NULL.
    unsafe fn read(options: &deltafl_options) -> Result<Self, TrainerError> {
        let text = |text: *const c_char| -> Result<Option<String>, TrainerError> {
            if text.is_null() {
                return Ok(None);
            }
            // SAFETY: the pointer is not NULL, and the caller guarantees a zero-terminated string.
            Ok(Some(unsafe { CStr::from_ptr(text) }.to_str()?.to_owned()))
        };
        Ok(Self {
            server: text(options.server)?.ok_or("options.server is NULL")?,
            identity: text(options.identity)?,
            name: text(options.name)?,
            state: text(options.state)?,
            consent: consent(options),
        })
    }

    /// Returns the identity of the device and its trust in the server.
    fn known(&self) -> Result<(Credentials, ServerEndpoint), TrainerError> {
        if let Some(folder) = &self.identity {
            let identity = DeviceIdentity::open(Path::new(folder))?;
            return Ok((Credentials::from(&identity), ServerEndpoint::certified(&self.server, &identity)?));
        }
        let name = self.name.as_ref().ok_or("options.identity and options.name are both NULL")?;
        let server = ServerEndpoint { address: self.server.clone(), trust: ServerTrust::Loopback };
        Ok((loopback::credentials(name), server))
    }
}

/// Returns the agreement of the owner.
fn consent(options: &deltafl_options) -> Consent {
    let or = |value: u64, default: u64| if value == 0 { default } else { value };
    let default = Consent::default();
    Consent {
        min_cohort: or(options.min_cohort.into(), default.min_cohort as u64) as usize,
        rounds_between: options.rounds_between,
        answers: or(options.answers, default.answers),
        answers_per_day: or(options.answers_per_day, default.answers_per_day),
        min_batch: or(options.min_batch, default.min_batch),
        min_steps: or(options.min_steps, default.min_steps),
        min_examples: or(options.min_examples, default.min_examples),
        bucketed: options.bucketed,
        reproducible: options.reproducible,
        ..default
    }
}

fn join(options: &DeviceOptions, trainer: CTrainer) -> Result<deltafl_device, TrainerError> {
    // A device that forgets its answers would answer a round twice.
    if options.identity.is_some() && options.state.is_none() {
        return Err("options.state is NULL: a device with an identity must store its state".into());
    }
    check_address(&options.server)?;
    let (credentials, server) = options.known()?;
    let data = DeviceData::held_by_trainer(&credentials.name, trainer.raw.examples)?;
    let consent = options.consent.clone();
    let state = match &options.state {
        Some(folder) => DeviceState::open(Path::new(folder))?,
        None => DeviceState::default(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let (tell, ended) = channel();
    let device = Device::new(server, credentials, consent)
        .with_state(state)
        .with_observer(stops_if_refused(tell.clone()));
    runtime.spawn(async move {
        if let Err(reason) = device.run(Arc::new(trainer), data).await {
            let _ = tell.send(chain(&reason));
        }
    });
    Ok(deltafl_device { runtime: Some(runtime), ended })
}

/// Returns an observer that stops a device whose certificate the server refuses.
fn stops_if_refused(tell: Sender<String>) -> SessionObserver {
    Arc::new(move |event| match event {
        SessionEvent::Ended { error } if is_refused_certificate(error) => {
            let refused = DeviceError::CertificateRefused;
            let _ = tell.send(format!("{refused}: {}", refused.help().unwrap_or_default()));
            ControlFlow::Break(())
        }
        _ => ControlFlow::Continue(()),
    })
}

/// Writes a zero-terminated string, truncated to fit.
///
/// # Safety
/// `to` points to `len` bytes or is NULL.
unsafe fn write_text(text: &str, to: *mut c_char, len: usize) {
    if to.is_null() || len == 0 {
        return;
    }
    // Truncate at a character boundary.
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

// SAFETY: the device computes on one thread at a time, and the caller guarantees that its context
// allows this.
unsafe impl Send for CTrainer {}
// SAFETY: as above. A shared reference calls nothing.
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

    /// The server initialises the parameters, never a device.
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
        // SAFETY: the callback and its context are valid until the device is stopped. The other
        // pointers are local.
        let status =
            unsafe { callback(raw.context, self.params.as_ptr(), block.start, block.len(), &mut loss) };
        if status == 0 { Ok(Score { loss, ..Score::default() }) } else { Err(refused("loss", status)) }
    }

    fn update(
        &mut self,
        task: &LocalTask<'_>,
        _: &mut AlgorithmState,
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
        // SAFETY: as above. `params` has the number of entries that the trainer declared.
        let status = unsafe { callback(raw.context, self.params.as_mut_ptr(), &plan, &mut random) };
        *stream = random.0;
        if status == 0 { Ok(&self.params) } else { Err(refused("update", status)) }
    }
}

fn refused(callback: &str, status: i32) -> TrainerError {
    format!("the callback {callback} returned {status}").into()
}
