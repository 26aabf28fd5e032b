//! The price of privacy: the error of the test devices for several ε, FedAvg and Δ-FL at θ = 0.5.
//!
//!     cargo run --release -p deltafl --example private -- DEVICES COHORT ROUNDS SEEDS CLIP EPSILON …
//!
//! An ε of `inf` trains with the same clipping bound and practically without noise. `exact` trains
//! without clipping and with exact sums. A device takes part at most once in DEVICES/COHORT rounds.
//! If `DROP_OUT` is set, devices drop out with this probability, the noise is calibrated to the
//! threshold of secret sharing, and a twentieth of the cohort may help the server;
//! `REMOVE_EXCESS=1` removes the noise that a sum does not need. SEEDS is a number, for seeds 1 to
//! SEEDS, or a range such as `2-5`. `TRACK=fedavg` or `TRACK=theta-0.5` trains one of the two
//! tracks. The output is a table in CSV.

use std::error::Error;

use deltafl::algorithm::{Quantile, Tail, Track};
use deltafl::cohort::Availability;
use deltafl::data::synthetic::Glyphs;
use deltafl::data::{Federation, Normalise, Split};
use deltafl::exchange::Simulation;
use deltafl::kernel::Isa;
use deltafl::metrics::Figures;
use deltafl::model::ModelSpec;
use deltafl::privacy::{BudgetShares, ClipRule, Delta, Mechanism, Participation, PrivacyPlan, Rho};
use deltafl::superquantile::private::PrivateQuantile;
use deltafl::terms::{Clip, Terms};
use deltafl::trainer::Sgd;
use deltafl::training::{Plan, Records, train};

/// The settings of all runs.
struct Settings {
    devices: usize,
    cohort: usize,
    rounds: u64,
    clip: f64,
    drop_out: Option<f64>,
    remove_excess: bool,
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [devices, cohort, rounds, seeds, clip, epsilons @ ..] = &words[..] else {
        return Err("expected DEVICES COHORT ROUNDS SEEDS CLIP EPSILON …".into());
    };
    let federation = Glyphs { devices: devices.parse()?, ..Glyphs::default() }.build();
    let federation = federation.normalised(Normalise::MeanRatio);
    let settings = Settings {
        devices: federation.split(Split::Train).len(),
        cohort: cohort.parse()?,
        rounds: rounds.parse()?,
        clip: clip.parse()?,
        drop_out: std::env::var("DROP_OUT").ok().map(|share| share.parse()).transpose()?,
        remove_excess: std::env::var_os("REMOVE_EXCESS").is_some(),
    };
    let (first, last) = seeds.split_once('-').unwrap_or(("1", seeds));
    let (seeds, only) = (first.parse()?..=last.parse()?, std::env::var("TRACK").ok());
    println!("epsilon,track,seed,mean,p90,epsilon_server,epsilon_readers,clip,unclipped,seconds");
    for epsilon in epsilons {
        for (name, track) in [("fedavg", fed_avg as fn() -> Track), ("theta-0.5", half)] {
            if only.as_ref().is_some_and(|only| only != name) {
                continue;
            }
            for seed in seeds.clone() {
                run(&settings, &federation, epsilon, (name, track()), seed)?;
            }
        }
    }
    Ok(())
}

/// Trains one track and prints its row.
fn run(
    settings: &Settings,
    federation: &Federation,
    epsilon: &str,
    (name, track): (&str, Track),
    seed: u64,
) -> Result<(), Box<dyn Error>> {
    let model = ModelSpec::LINEAR.build(federation, Isa::detect())?;
    let trainer = Sgd::new(&*model);
    let terms = Terms { clip: None, ..Terms::PRIVATE };
    let privacy = if epsilon == "exact" { None } else { Some(settings.privacy(epsilon.parse()?)?) };
    let drop_out = settings.drop_out.unwrap_or(0.0).try_into()?;
    let availability = Availability { drop_out, ..Availability::default() };
    let plan =
        Plan::builder().rounds(settings.rounds).cohort(settings.cohort).evaluate_every(settings.rounds);
    let plan = plan.terms(terms).availability(availability).track(track).privacy(privacy).build()?;
    let mut simulation = Simulation::new(&trainer, federation)?;
    let (mut state, mut records) = (plan.start(seed, &trainer), Records::default());
    let begun = std::time::Instant::now();
    train(&mut simulation, &plan, &mut state, &mut records)?;
    let seconds = begun.elapsed().as_secs_f64();
    let (_, splits) = records.evaluations.last().ok_or("no evaluation")?;
    let test = splits.iter().find(|split| split.split == Split::Test).ok_or("no test devices")?;
    let figures = Figures::of_primary(test, 0).ok_or("no test devices")?;
    let p90 = figures.percentile(90).ok_or("no 90th percentile")?;
    let spent = records.rounds.last().and_then(|record| record.privacy);
    let number = |number: Option<f64>| number.map_or("inf".to_owned(), |number| format!("{number:.4}"));
    println!(
        "{epsilon},{name},{seed},{:.5},{p90:.5},{},{},{},{},{seconds:.2}",
        figures.mean,
        number(spent.and_then(|spent| spent.epsilon_server)),
        number(spent.map(|spent| spent.epsilon_readers)),
        number(spent.map(|spent| spent.clip)),
        number(spent.map(|spent| spent.unclipped)),
    );
    Ok(())
}

fn fed_avg() -> Track {
    Track::fed_avg()
}

fn half() -> Track {
    let theta = 0.5.try_into().expect("one half is a level");
    Tail { quantile: Quantile::Private(PrivateQuantile::Tree), ..Tail::new(theta) }.into()
}

impl Settings {
    /// Returns the noise of a budget.
    fn privacy(&self, epsilon: f64) -> Result<PrivacyPlan, Box<dyn Error>> {
        let delta = Delta::try_from(1e-6)?;
        // A margin, because the numbers of devices per turn vary.
        let rounds_between = ((0.8 * self.devices as f64 / self.cohort as f64) as u64).clamp(1, self.rounds);
        let device = Participation::new(self.rounds, rounds_between, self.rounds, Terms::PRIVATE);
        // An infinite ε has noise that is too small to matter.
        let total = if epsilon.is_finite() { Rho::within(epsilon, delta) } else { Rho::new(1e9) };
        let shares = BudgetShares { quantile: 0.2, evaluation: 0.0 };
        let (track_round, evaluation) = PrivacyPlan::divide(total, shares, device);
        let cohort = u32::try_from(self.cohort)?;
        // Every device of a cohort survives and none helps the server, unless devices drop out.
        let accomplices = if self.drop_out.is_some() { cohort.div_ceil(20) } else { 0 };
        let survivors = if self.drop_out.is_some() { (cohort + accomplices) / 2 + 1 } else { cohort };
        Ok(PrivacyPlan {
            mechanism: Mechanism::Distributed,
            delta,
            survivors,
            accomplices,
            rounds_between,
            clip: ClipRule { start: Clip::try_from(self.clip)?, adaptive: false },
            track_round,
            evaluation,
            quantile_share: shares.quantile,
            remove_excess: self.remove_excess,
        })
    }
}
