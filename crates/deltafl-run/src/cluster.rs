//! A run on the ranks of an MPI job. Every rank trains; rank 0 writes the run folder and reports.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use deltafl::data::Federation;
use deltafl::model::Model;
use deltafl::trainer::Sgd;
use deltafl::training::{SharedObserver, train};
use deltafl_data::experiment::{Experiment, Population, Resolved, SecureAggregation};
use deltafl_data::run_folder::{RunFolder, checkpoint_bytes, state_of_checkpoint};
use deltafl_data::seeds::Seeds;
use deltafl_mpi::World;

use crate::backend::{Backend, BackendRequest};
use crate::event::{RunEvent, RunObserver, SendEvent};
use crate::session::{
    Ended, Recorder, RunError, RunOptions, Stopped, build_model, check_external, describe_data, load, open,
    warn_before, write_classes,
};

use crate::sweep::points::Shard;

pub use deltafl_mpi::launched;

/// Trains all seeds of an experiment on all ranks.
///
/// If a rank fails while others wait for it, the job is aborted. `failed` then reports the named
/// rank's error and returns the exit code of the job.
///
/// # Errors
///
/// Fails if the ranks disagree on the inputs, or if this rank cannot take part.
pub fn run(
    experiment: Experiment,
    options: &RunOptions<'_>,
    observer: &mut RunObserver<'_>,
    failed: &dyn Fn(&str, RunError) -> u8,
) -> Result<Ended, RunError> {
    let world = World::init().map_err(|e| RunError::Ranks { problem: e.to_string() })?;
    let observer = SharedObserver::new(observer);
    let prepared = prepare(&world, experiment, options);
    let first = world.first_failure(prepared.is_err());
    match prepared {
        Ok(run) if first.is_none() => {
            // The other ranks may be waiting for this one, so it cannot return.
            on_ranks(&world, run, options, &|event: RunEvent<'_>| observer.send(event))
                .or_else(|error| world.abort(failed(&format!("{world} failed"), error)))
        }
        Err(error) if first == Some(world.rank()) => {
            Err(RunError::Rank { rank: world.to_string(), source: Box::new(error) })
        }
        // The job ends; another rank reports the error.
        _ => Ok(Ended::Followed),
    }
}

/// The ranks of an MPI job that share independent work: each trains a share of the points of a
/// field.
pub struct RankShares {
    world: World,
}

impl RankShares {
    /// Joins the job.
    ///
    /// # Errors
    ///
    /// Fails if MPI cannot be initialised.
    pub fn init() -> Result<Self, RunError> {
        let world = World::init().map_err(|e| RunError::Ranks { problem: e.to_string() })?;
        Ok(Self { world })
    }

    /// Returns the share of this rank.
    pub fn shard(&self) -> Shard {
        Shard::new(self.world.rank() + 1, self.world.size()).unwrap_or(Shard::WHOLE)
    }

    /// Returns the number of threads of this rank.
    pub fn threads(&self, asked: Option<NonZeroUsize>) -> NonZeroUsize {
        self.world.threads(asked)
    }

    /// Returns whether this rank writes the results.
    pub fn is_root(&self) -> bool {
        self.world.is_root()
    }

    /// Waits for all ranks. Returns whether all of them succeeded.
    pub fn all_succeeded(&self, succeeded: bool) -> bool {
        self.world.first_failure(!succeeded).is_none()
    }
}

/// The inputs of a rank.
struct RankInputs {
    experiment: Experiment,
    federation: Federation,
    model: Box<dyn Model>,
    /// The backend of this rank.
    request: BackendRequest,
    /// The run folder, on rank 0 only.
    folder: Option<RunFolder>,
}

fn prepare(world: &World, experiment: Experiment, options: &RunOptions<'_>) -> Result<RankInputs, RunError> {
    let kernel = world.common_isa(options.machine.kernel);
    let request = common_request(world, options);
    let federation = load(&experiment)?;
    let model = build_model(&experiment, &federation, kernel)?;
    // An unusable backend is detected before the run folder is created. The run uploads the data
    // again.
    check_external(&experiment, options)?;
    let trainer = Sgd::new(&*model);
    let threads = options.machine.threads;
    let compute = Backend::open(request, &experiment, &federation, &trainer, threads)?.recorded();
    let normalise = experiment.data().normalisation(&federation);
    let experiment = experiment.with_resolved(Some(Resolved {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        data_hash: federation.hash().to_owned(),
        kernel,
        compute,
        params: model.num_params(),
        normalise: Some(normalise),
        population: Population::if_sampled(&federation),
    }));
    let folder = world.is_root().then(|| open(&experiment, options)).transpose()?;
    folder.as_ref().map(|folder| describe_data(folder, &federation)).transpose()?;
    Ok(RankInputs { experiment, federation, model, request, folder })
}

/// Returns the backend of each rank. The ranks of a host share its GPUs round-robin. With `auto`,
/// either all ranks use the same kind of GPU or none uses one, because kinds round differently. An
/// existing run continues on its backend.
fn common_request(world: &World, options: &RunOptions<'_>) -> BackendRequest {
    let place = options.machine.compute;
    // Only rank 0 reads the run folder.
    let begun = BackendRequest::for_run(options.out, place);
    let begun = world.bytes_of_root(vec![u8::from(begun.gpu.is_some()), u8::from(begun.required)]);
    let gpu = (begun[0] == 1).then(|| BackendRequest::gpu_of_process(place, world.rank_on_host()));
    let request = BackendRequest { gpu, required: begun[1] == 1 };
    let same = world.same("the GPU", &request.gpu_name()).is_ok();
    if same || request.required { request } else { BackendRequest::CPU }
}

fn on_ranks(
    world: &World,
    run: RankInputs,
    options: &RunOptions<'_>,
    send: &SendEvent<'_>,
) -> Result<Ended, RunError> {
    let RankInputs { experiment, federation, model, request, folder } = run;
    let differs = |e: deltafl_mpi::Differs| RunError::Ranks { problem: e.to_string() };
    world.same("the data", federation.hash()).map_err(differs)?;
    world.same("the experiment", &experiment.to_toml()).map_err(differs)?;
    let federation = experiment.adversary().falsified(&federation).unwrap_or(federation);
    let trainer = Sgd::boxed(&*model);
    let threads = Some(world.threads(options.machine.threads));
    let backend = Backend::open(request, &experiment, &federation, &*trainer, threads)?;
    if world.is_root() {
        send(RunEvent::Note(&backend.description()))?;
    }
    let compute = experiment.adversary().wrap(backend.into_compute(), &federation);
    let mut exchange = world.exchange(compute, &federation).map_err(RunError::Setup)?;
    if experiment.secagg() == SecureAggregation::Real {
        exchange = exchange.masked(experiment.availability().drop_out.get());
    }
    if world.is_root() {
        warn_before(&experiment, &federation, send)?;
    }
    let folder = folder.map(Mutex::new);
    let labels = experiment.labels();
    let plan = experiment.plan();

    let seeds = Seeds::new(&experiment, &*trainer, |seed| {
        let saved = folder.as_ref().map(|folder| {
            folder.lock().unwrap_or_else(PoisonError::into_inner).state(seed, model.num_params())
        });
        let saved = saved.transpose()?.flatten();
        // Only rank 0 reads the run folder; it sends the bytes of a checkpoint to the others.
        let saved = saved.map(|state| checkpoint_bytes(&state)).transpose()?;
        let saved = Some(world.bytes_of_root(saved.unwrap_or_default())).filter(|bytes| !bytes.is_empty());
        saved.map(|bytes| state_of_checkpoint(&bytes)).transpose().map_err(RunError::from)
    })?;
    let stopped = seeds.work(|state| {
        let seed = state.seed;
        if world.is_root() {
            send(RunEvent::SeedBegins { experiment: &experiment, seed, done: state.round })?;
        }
        let recorder = folder.as_ref().map(|folder| Recorder {
            folder,
            send,
            labels: &labels,
            seed,
            failed: seeds.failed(),
            lap: Instant::now(),
        });
        let outcome = train(&mut exchange, &plan, state, &mut world.observe(recorder));
        if world.is_root() {
            send(RunEvent::SeedEnds { seed })?;
        }
        outcome.map_err(RunError::from)
    })?;
    if let Some(state) = stopped {
        let stopped = Stopped::at(options.out, &experiment, &state);
        return Ok(if world.is_root() { Ended::Interrupted(stopped) } else { Ended::Followed });
    }
    if let Some(throughput) = world.throughput(&exchange).filter(|_| world.is_root()) {
        send(RunEvent::Note(throughput.to_string().trim_end()))?;
    }
    let folder = folder.map(|folder| folder.into_inner().unwrap_or_else(PoisonError::into_inner));
    if let Some(folder) = &folder {
        write_classes(folder, &experiment, &*trainer, &federation, options.machine.threads)?;
    }
    let summary = folder.map(|folder| folder.summarise()).transpose()?;
    Ok(summary.map_or(Ended::Followed, Ended::Finished))
}
