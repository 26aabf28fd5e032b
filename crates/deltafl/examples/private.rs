//! The price of privacy: the error of the test devices for several ε, FedAvg and Δ-FL at θ = 0.5.
//!
//!     cargo run --release -p deltafl --example private -- DEVICES COHORT ROUNDS SEEDS CLIP EPSILON …
//!
//! An ε of `inf` trains with the same clipping bound and without noise. A device takes part at most once
//! in DEVICES/COHORT rounds. The output is a table in CSV.

use std::error::Error;

use deltafl::algorithm::{Quantile, Tail, Track};
use deltafl::data::synthetic::Glyphs;
use deltafl::data::{Normalise, Split};
use deltafl::exchange::Simulation;
use deltafl::kernel::Isa;
use deltafl::metrics::Figures;
use deltafl::model::ModelSpec;
use deltafl::privacy::{BudgetShares, ClipRule, Delta, Mechanism, Participation, PrivacyPlan, Rho};
use deltafl::superquantile::private::PrivateQuantile;
use deltafl::terms::{Clip, Terms};
use deltafl::trainer::Sgd;
use deltafl::training::{Plan, Records, train};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [devices, cohort, rounds, seeds, clip, epsilons @ ..] = &words[..] else {
        return Err("expected DEVICES COHORT ROUNDS SEEDS CLIP EPSILON …".into());
    };
    let (cohort, rounds, seeds): (usize, u64, u64) = (cohort.parse()?, rounds.parse()?, seeds.parse()?);
    let federation = Glyphs { devices: devices.parse()?, ..Glyphs::default() }.build();
    let federation = federation.normalised(Normalise::MeanRatio);
    let trained = federation.split(Split::Train).len();
    let model = ModelSpec::LINEAR.build(&federation, Isa::detect())?;
    let trainer = Sgd::new(&*model);
    println!("epsilon,track,seed,mean,p90,epsilon_server,epsilon_readers,clip,unclipped,seconds");
    for epsilon in epsilons {
        let privacy = private(epsilon.parse()?, clip.parse()?, cohort, rounds, trained)?;
        for (name, track) in [("fedavg", fed_avg as fn() -> Track), ("theta-0.5", half)] {
            for seed in 1..=seeds {
                let terms = Terms { clip: None, ..Terms::PRIVATE };
                let plan = Plan::builder().rounds(rounds).cohort(cohort).evaluate_every(rounds).terms(terms);
                let plan = plan.track(track()).privacy(privacy).build()?;
                let mut simulation = Simulation::new(&trainer, &federation)?;
                let (mut state, mut records) = (plan.start(seed, &trainer), Records::default());
                let begun = std::time::Instant::now();
                train(&mut simulation, &plan, &mut state, &mut records)?;
                let seconds = begun.elapsed().as_secs_f64();
                let Some((_, splits)) = records.evaluations.last() else { continue };
                let test = splits.iter().find(|split| split.split == Split::Test).ok_or("no test devices")?;
                let figures = Figures::of_primary(test, 0).ok_or("no test devices")?;
                let p90 = figures.percentile(90).ok_or("no 90th percentile")?;
                let spent = records.rounds.last().and_then(|record| record.privacy).ok_or("not private")?;
                println!(
                    "{epsilon},{name},{seed},{:.5},{p90:.5},{:.3},{:.3},{:.4},{:.3},{seconds:.1}",
                    figures.mean,
                    spent.epsilon_server.unwrap_or(f64::INFINITY),
                    spent.epsilon_readers,
                    spent.clip,
                    spent.unclipped
                );
            }
        }
    }
    Ok(())
}

fn fed_avg() -> Track {
    Track::fed_avg()
}

fn half() -> Track {
    let theta = 0.5.try_into().expect("one half is a level");
    Tail { quantile: Quantile::Private(PrivateQuantile::Tree), ..Tail::new(theta) }.into()
}

/// Returns the noise of a budget. Every device of a cohort survives, and none helps the server.
fn private(
    epsilon: f64,
    clip: f64,
    cohort: usize,
    rounds: u64,
    devices: usize,
) -> Result<PrivacyPlan, Box<dyn Error>> {
    let delta = Delta::try_from(1e-6)?;
    // A margin, because the numbers of devices per turn vary.
    let rounds_between = ((0.8 * devices as f64 / cohort as f64) as u64).clamp(1, rounds);
    let device = Participation::new(rounds, rounds_between, rounds, Terms::PRIVATE);
    // An infinite ε has noise that is too small to matter.
    let total = if epsilon.is_finite() { Rho::within(epsilon, delta) } else { Rho::new(1e9) };
    let shares = BudgetShares { quantile: 0.2, evaluation: 0.0 };
    let (track_round, evaluation) = PrivacyPlan::divide(total, shares, device);
    Ok(PrivacyPlan {
        mechanism: Mechanism::Distributed,
        delta,
        survivors: u32::try_from(cohort)?,
        accomplices: 0,
        rounds_between,
        clip: ClipRule { start: Clip::try_from(clip)?, adaptive: false },
        track_round,
        evaluation,
        quantile_share: shares.quantile,
    })
}
