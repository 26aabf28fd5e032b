//! AFL compared with the optimum of min_w max_k F_k(w), which a linear program finds.
//!
//! Each F_k is convex, so it is the largest of its tangents, and the problem is a linear program
//! with a row t ≥ F_k(v) + ∇F_k(v)·(w − v) for every point v and device k. The simplex method
//! solves its dual, a mixture of tangents, and generates the columns that it needs.

use deltafl::data::{DeviceExamples, FederationBuilder, InputKind, TargetKind};
use deltafl::stream::{Purpose, Stream};

use super::*;

const DEVICES: usize = 6;
/// Examples of each device.
const EXAMPLES: usize = 4;
const ROUNDS: u64 = 16_000;

/// Devices of a regression with two features: F_k(w) is the mean of (x·w − y)²/2.
struct Regression {
    /// The features and the target of each example.
    devices: Vec<Vec<([f32; 2], f32)>>,
}

/// A tangent of a loss: value + slope·w.
#[derive(Clone, Copy)]
struct Tangent {
    value: f64,
    slope: [f64; 2],
}

impl Regression {
    fn random(seed: u64) -> Self {
        let mut stream = Stream::new(seed, Purpose::Synthesis, 0, 0);
        let mut example = |k: usize| {
            let mut features = [stream.unit(), stream.unit()].map(|x| (2.0 * x - 1.0) as f32);
            features[k % 2] += 0.5;
            // The targets of a third of the devices are low, and those of another third are high.
            (features, (2.0 * stream.unit() - 1.0) as f32 + (k % 3) as f32 - 1.0)
        };
        Self { devices: (0..DEVICES).map(|k| (0..EXAMPLES).map(|_| example(k)).collect()).collect() }
    }

    fn federation(&self) -> Federation {
        let (kind, target) = (InputKind::Dense { dim: 2 }, TargetKind::Values);
        let mut builder = FederationBuilder::with_target("planes", kind, target);
        for (k, examples) in self.devices.iter().enumerate() {
            let inputs: Vec<f32> = examples.iter().flat_map(|(features, _)| *features).collect();
            let targets: Vec<f32> = examples.iter().map(|(_, target)| *target).collect();
            builder.push(&format!("d{k}"), Split::Train, DeviceExamples::Dense(&inputs), &targets).unwrap();
        }
        builder.build()
    }

    /// F_k(w) and ∇F_k(w).
    fn loss(&self, k: usize, w: [f64; 2]) -> (f64, [f64; 2]) {
        let (mut loss, mut gradient) = (0.0, [0.0; 2]);
        for (features, target) in &self.devices[k] {
            let x = features.map(f64::from);
            let residual = x[0] * w[0] + x[1] * w[1] - f64::from(*target);
            loss += 0.5 * residual * residual / EXAMPLES as f64;
            gradient = [0, 1].map(|i| gradient[i] + residual * x[i] / EXAMPLES as f64);
        }
        (loss, gradient)
    }

    /// The device with the largest loss at w, and this loss.
    fn worst(&self, w: [f64; 2]) -> (usize, f64) {
        let losses = (0..DEVICES).map(|k| (k, self.loss(k, w).0));
        losses.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap()
    }

    /// The optimum, enclosed: a lower bound of the linear program, and the largest loss at its w.
    fn optimum(&self) -> (f64, f64) {
        // Any w with an entry below 100 in absolute value is feasible, and no loss is below 0.
        let slopes = [[1.0, 0.0], [-0.5, 1.0], [-0.5, -1.0]];
        let mut basis = slopes.map(|slope| Tangent { value: -200.0, slope });
        for _ in 0..200 {
            // The multipliers t and w: t − slope·w = value for each tangent of the basis.
            let rows = basis.map(|tangent| [1.0, -tangent.slope[0], -tangent.slope[1]]);
            let [least, w0, w1] = solved(rows, basis.map(|tangent| tangent.value));
            let w = [w0, w1];
            let (k, largest) = self.worst(w);
            if largest - least < 1e-9 {
                return (least, largest);
            }
            // The tangent at w enters the mixture. The one whose share falls to zero first leaves.
            let (value, slope) = self.loss(k, w);
            let entering = Tangent { value: value - slope[0] * w[0] - slope[1] * w[1], slope };
            let columns =
                [[1.0; 3], basis.map(|tangent| tangent.slope[0]), basis.map(|tangent| tangent.slope[1])];
            let shares = solved(columns, [1.0, 0.0, 0.0]);
            let change = solved(columns, [1.0, slope[0], slope[1]]);
            let ratio = |&i: &usize| if change[i] > 1e-14 { shares[i] / change[i] } else { f64::INFINITY };
            let leaving = (0..3).min_by(|a, b| ratio(a).total_cmp(&ratio(b))).unwrap();
            basis[leaving] = entering;
        }
        panic!("the linear program has no solution after 200 columns");
    }
}

/// The solution of three equations, by Cramer's rule.
fn solved(rows: [[f64; 3]; 3], values: [f64; 3]) -> [f64; 3] {
    let determinant = |m: [[f64; 3]; 3]| {
        m[0][0] * (m[1][1] * m[2][2] - m[1][2] * m[2][1]) - m[0][1] * (m[1][0] * m[2][2] - m[1][2] * m[2][0])
            + m[0][2] * (m[1][0] * m[2][1] - m[1][1] * m[2][0])
    };
    let all = determinant(rows);
    [0, 1, 2].map(|column| {
        let mut replaced = rows;
        replaced.iter_mut().zip(values).for_each(|(row, value)| row[column] = value);
        determinant(replaced) / all
    })
}

/// w of each track after a run with all devices in every round.
fn trained(federation: &Federation, tracks: Vec<Track>) -> Vec<[f64; 2]> {
    let model = ModelSpec::LINEAR.build(federation, Isa::detect()).unwrap();
    let trainer = Sgd::new(&*model);
    let mut exchange = Simulation::with_threads(&trainer, federation, NonZeroUsize::new(1)).unwrap();
    let tracks = tracks.into_iter().map(|track| Track { l2: 0.0, ..track });
    let builder = Plan::builder().rounds(ROUNDS).cohort(DEVICES).batch(EXAMPLES).learning_rate(0.05);
    let plan = builder.evaluate_every(ROUNDS).tracks(tracks).build().unwrap();
    let mut state = plan.start(7, &trainer);
    assert_eq!(state.tracks[0].params.len(), 2, "the model has no bias");
    train(&mut exchange, &plan, &mut state, &mut Records::default()).unwrap();
    state.tracks.iter().map(|track| [0, 1].map(|i| track.params.as_slice()[i].into())).collect()
}

#[test]
fn afl_reaches_the_minimax_optimum_of_a_linear_program_and_fed_avg_does_not() {
    for seed in 1..=5 {
        let problem = Regression::random(seed);
        let (least, largest) = problem.optimum();
        assert!(largest - least < 1e-9 && least > 0.1, "seed {seed}: between {least} and {largest}");
        let tracks = vec![Track::fed_avg(), track("afl", &[("lambda_rate", 0.02)])];
        let found = trained(&problem.federation(), tracks);
        let [fed_avg, afl] = [0, 1].map(|i| problem.worst(found[i]).1 / least - 1.0);
        assert!(afl.abs() < 1e-3, "seed {seed}: AFL is off by {afl} of the optimum");
        assert!(fed_avg > 1e-3, "seed {seed}: FedAvg is off by {fed_avg}");
    }
}
