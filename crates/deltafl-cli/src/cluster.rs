//! `mpirun deltafl run`: a run on the ranks of an MPI job. Every rank trains; rank 0 writes and speaks.

use std::time::Instant;

use deltafl::data::Federation;
use deltafl::model::Model;
use deltafl::trainer::Sgd;
use deltafl::training::{Outcome, State, train};
use deltafl_data::experiment::{Experiment, Population, Resolved, SecureAggregation};
use deltafl_data::run_folder::{RunFolder, checkpoint_bytes, state_of_checkpoint};
use deltafl_mpi::{Masks, World};
use miette::Report;

use crate::error::{bad_input, exit_code};
use crate::progress::{Progress, Show};
use crate::session::{
    Ended, Options, Recorder, Stopped, build_model, compute, folder_error, load, open, stop_on_interrupt,
    tell_classes, warn_before,
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
    /// On rank 0.
    folder: Option<RunFolder>,
}

fn prepare(world: &World, mut experiment: Experiment, options: &Options<'_>) -> Result<Run, Report> {
    let kernel = world.common_isa(options.kernel);
    let federation = load(&experiment)?;
    let model = build_model(&experiment, &federation, kernel)?;
    experiment.resolved = Some(Resolved {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        data_hash: federation.hash().to_owned(),
        kernel,
        params: model.num_params(),
        population: Population::of(&federation),
    });
    let folder = world.is_root().then(|| open(&experiment, options)).transpose()?;
    Ok(Run { experiment, federation, model, folder })
}

fn on_ranks(world: &World, run: Run, options: &Options<'_>) -> Result<Ended, Report> {
    let Run { experiment, federation, model, mut folder } = run;
    world.same("the data", federation.hash()).map_err(|e| bad_input(e.to_string()))?;
    world.same("the experiment", &experiment.to_toml()).map_err(|e| bad_input(e.to_string()))?;
    let trainer = Sgd::new(&*model);
    let compute = compute(&trainer, &federation, world.threads(options.threads))?;
    let masks = match experiment.secagg {
        SecureAggregation::Plain => Masks::None,
        SecureAggregation::Real => Masks::Real { drop_out: experiment.availability.drop_out.get() },
    };
    let mut exchange = world
        .exchange(compute, &federation, masks)
        .map_err(|e| bad_input("the experiment cannot be trained").because(e))?;
    let show = if world.is_root() { options.show } else { &Show::Quiet };
    warn_before(&experiment, &federation, show);
    let stop = stop_on_interrupt();
    let labels = experiment.labels();
    let plan = experiment.plan();

    for &seed in &experiment.seeds {
        let saved = folder.as_ref().map(|folder| folder.state(seed, model.num_params()));
        let saved = saved.transpose().map_err(folder_error)?.flatten();
        // Only rank 0 reads the run folder; a checkpoint's bytes are the state for the others.
        let saved = saved.map(|state| checkpoint_bytes(&state)).transpose().map_err(Report::from_err)?;
        let saved = Some(world.bytes_of_root(saved.unwrap_or_default())).filter(|bytes| !bytes.is_empty());
        let saved = saved.map(|bytes| state_of_checkpoint(&bytes)).transpose().map_err(Report::from_err)?;
        let mut state = saved.unwrap_or_else(|| State::new(seed, labels.len(), &trainer));
        if state.round == plan.rounds {
            continue;
        }
        let progress = Progress::new(show, &experiment, seed, state.round);
        let recorder = folder.as_mut().map(|folder| Recorder {
            folder,
            progress: &progress,
            labels: &labels,
            seed,
            stop,
            lap: Instant::now(),
        });
        let outcome = train(&mut exchange, &plan, &mut state, &mut world.observe(recorder));
        progress.finish();
        if outcome.map_err(Report::from_err)? == Outcome::Stopped {
            let stopped = Stopped::at(options.out, &experiment, &state);
            return Ok(if world.is_root() { Ended::Interrupted(stopped) } else { Ended::Followed });
        }
    }
    if let Some(throughput) = exchange.throughput().filter(|_| matches!(show, Show::Plain)) {
        eprint!("{throughput}");
    }
    if let Some(folder) = &folder {
        tell_classes(folder, &experiment, &trainer, &federation, options.threads)?;
    }
    let summary = folder.map(|folder| folder.summarise()).transpose().map_err(folder_error)?;
    Ok(summary.map_or(Ended::Followed, Ended::Finished))
}
