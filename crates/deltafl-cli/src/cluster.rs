//! `mpirun deltafl run`: a run on the ranks of an MPI job. Every rank trains; rank 0 writes and speaks.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use deltafl::data::Federation;
use deltafl::model::Model;
use deltafl::trainer::Sgd;
use deltafl::training::train;
use deltafl_data::experiment::{Experiment, Population, Resolved, SecureAggregation};
use deltafl_data::run_folder::{RunFolder, checkpoint_bytes, state_of_checkpoint};
use deltafl_mpi::{Masks, World};
use miette::Report;

use crate::error::{bad_input, exit_code};
use crate::gpu::{Found, Wish};
use crate::progress::{Progress, Show};
use crate::session::{
    Ended, Options, Recorder, Seeds, Stopped, build_model, computing, folder_error, load, open,
    stop_on_interrupt, tell_classes, warn_before,
};

/// Trains all seeds of an experiment on all ranks.
pub(crate) fn run(experiment: Experiment, options: &Options<'_>) -> Result<Ended, Report> {
    let world = World::init().map_err(|e| bad_input(e.to_string()))?;
    let prepared = prepare(&world, experiment, options);
    let first = world.first_failure(prepared.is_err());
    match prepared {
        Ok(run) if first.is_none() => {
            // The others may be waiting for this rank: it cannot just return.
            on_ranks(&world, run, options).or_else(|report| {
                eprintln!("{world} failed\nError: {report:?}");
                world.abort(exit_code(&report))
            })
        }
        Err(report) if first == Some(world.rank()) => {
            eprintln!("{world} cannot take part");
            Err(report)
        }
        // The job ends; another rank says why.
        _ => Ok(Ended::Followed),
    }
}

/// What each rank needs to train.
struct Run {
    experiment: Experiment,
    federation: Federation,
    model: Box<dyn Model>,
    /// Where the devices of this rank compute.
    wish: Wish,
    /// On rank 0.
    folder: Option<RunFolder>,
}

fn prepare(world: &World, experiment: Experiment, options: &Options<'_>) -> Result<Run, Report> {
    let kernel = world.common_isa(options.kernel);
    let wish = common_wish(world, options);
    let federation = load(&experiment)?;
    let model = build_model(&experiment, &federation, kernel)?;
    // What cannot be computed is found before the run folder is made; the data is uploaded again for the run.
    let compute = Found::at(wish, &experiment, &federation, model.num_params())?.recorded();
    let experiment = experiment.with_resolved(Some(Resolved {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        data_hash: federation.hash().to_owned(),
        kernel,
        compute,
        params: model.num_params(),
        population: Population::if_sampled(&federation),
    }));
    let folder = world.is_root().then(|| open(&experiment, options)).transpose()?;
    Ok(Run { experiment, federation, model, wish, folder })
}

/// Where each rank computes: the ranks of a host share its GPUs in turn. Under `auto` all ranks have the same kind of GPU or
/// none uses one, since kinds round differently; a run that was begun goes on where it was begun.
fn common_wish(world: &World, options: &Options<'_>) -> Wish {
    // Only rank 0 reads the run folder.
    let begun = Wish::for_run(options.out, options.compute);
    let begun = world.bytes_of_root(vec![u8::from(begun.gpu.is_some()), u8::from(begun.required)]);
    let gpu = (begun[0] == 1).then(|| Wish::gpu_of_process(options.compute, world.rank_on_host()));
    let wish = Wish { gpu, required: begun[1] == 1 };
    let same = world.same("the GPU", &wish.name()).is_ok();
    if same || wish.required { wish } else { Wish::CPU }
}

fn on_ranks(world: &World, run: Run, options: &Options<'_>) -> Result<Ended, Report> {
    let Run { experiment, federation, model, wish, folder } = run;
    world.same("the data", federation.hash()).map_err(|e| bad_input(e.to_string()))?;
    world.same("the experiment", &experiment.to_toml()).map_err(|e| bad_input(e.to_string()))?;
    let trainer = Sgd::new(&*model);
    let found = Found::at(wish, &experiment, &federation, model.num_params())?;
    if world.is_root() && matches!(options.show, Show::Plain) {
        eprintln!("{}", found.told());
    }
    let compute = computing(found, &trainer, &federation, world.threads(options.threads))?.alone();
    let masks = match experiment.secagg() {
        SecureAggregation::Plain => Masks::None,
        SecureAggregation::Real => Masks::Real { drop_out: experiment.availability().drop_out.get() },
    };
    let mut exchange = world
        .exchange(compute, &federation, masks)
        .map_err(|e| bad_input("the experiment cannot be trained").because(e))?;
    let show = if world.is_root() { options.show } else { &Show::Quiet };
    warn_before(&experiment, &federation, show);
    let (stop, folder) = (stop_on_interrupt(), folder.map(Mutex::new));
    let labels = experiment.labels();
    let plan = experiment.plan();

    let seeds = Seeds::new(&experiment, &trainer, |seed| {
        let saved = folder.as_ref().map(|folder| {
            folder.lock().unwrap_or_else(PoisonError::into_inner).state(seed, model.num_params())
        });
        let saved = saved.transpose().map_err(folder_error)?.flatten();
        // Only rank 0 reads the run folder; a checkpoint's bytes are the state for the others.
        let saved = saved.map(|state| checkpoint_bytes(&state)).transpose().map_err(Report::from_err)?;
        let saved = Some(world.bytes_of_root(saved.unwrap_or_default())).filter(|bytes| !bytes.is_empty());
        saved.map(|bytes| state_of_checkpoint(&bytes)).transpose().map_err(Report::from_err)
    })?;
    let stopped = seeds.work(|state| {
        let progress = Progress::new(show, &experiment, state.seed, state.round);
        let recorder = folder.as_ref().map(|folder| Recorder {
            folder,
            progress: &progress,
            labels: &labels,
            seed: state.seed,
            stop: [stop, seeds.failed()],
            lap: Instant::now(),
        });
        let outcome = train(&mut exchange, &plan, state, &mut world.observe(recorder));
        progress.finish();
        outcome.map_err(Report::from_err)
    })?;
    if let Some(state) = stopped {
        let stopped = Stopped::at(options.out, &experiment, &state);
        return Ok(if world.is_root() { Ended::Interrupted(stopped) } else { Ended::Followed });
    }
    if let Some(throughput) = exchange.throughput().filter(|_| matches!(show, Show::Plain)) {
        eprint!("{throughput}");
    }
    let folder = folder.map(|folder| folder.into_inner().unwrap_or_else(PoisonError::into_inner));
    if let Some(folder) = &folder {
        tell_classes(folder, &experiment, &trainer, &federation, options.threads)?;
    }
    let summary = folder.map(|folder| folder.summarise()).transpose().map_err(folder_error)?;
    Ok(summary.map_or(Ended::Followed, Ended::Finished))
}
