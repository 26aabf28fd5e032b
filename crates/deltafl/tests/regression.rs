//! Linear regression: its gradients against central differences, and what training on real numbers
//! comes to.
#![allow(clippy::unwrap_used)]

use std::num::NonZeroUsize;

use deltafl::algorithm::Track;
use deltafl::data::{DeviceExamples, Federation, FederationBuilder, FederationIndex, InputKind, Split};
use deltafl::exchange::{Simulation, SplitEvaluation};
use deltafl::kernel::{Aligned, Isa};
use deltafl::model::{Batch, Inputs, LINEAR, Model, ModelMismatch, ModelSpec, Regression, Step};
use deltafl::options::OptionValue;
use deltafl::stream::{Purpose, Stream};
use deltafl::task::{RegressionLoss, Targets, Task};
use deltafl::trainer::Sgd;
use deltafl::training::{Plan, Records, train};

const LOSSES: [RegressionLoss; 2] = [RegressionLoss::Squared, RegressionLoss::Huber(0.7)];

fn normals(count: usize, key: u64) -> Vec<f32> {
    let stream = &mut Stream::new(11, Purpose::Synthesis, 0, key);
    (0..count).map(|_| stream.normal() as f32).collect()
}

#[test]
fn gradient_is_the_slope_of_the_loss() {
    for (inputs, batch) in [(1, 1), (7, 3), (16, 10), (33, 17)] {
        let (x, y) = (normals(inputs * batch, 1), normals(batch, 2));
        let batch = Batch { inputs: Inputs::Dense(&x), targets: (&y).into() };
        for (loss, intercept) in LOSSES.into_iter().flat_map(|loss| [(loss, false), (loss, true)]) {
            for isa in Isa::available() {
                let model = Regression::new(inputs, loss, intercept, isa);
                let params = normals(model.num_params(), 3);
                check_gradient(&model, batch, &params, &format!("{loss:?} {intercept} {isa}"));
            }
        }
    }
}

fn check_gradient(model: &dyn Model, batch: Batch<'_>, params: &[f32], what: &str) {
    let mut scratch =
        Aligned::zeroed(model.scratch_len(batch.len()).max(model.step_scratch_len(batch.len())));
    let mut gradient = vec![f32::NAN; params.len()];
    let loss = model.gradient(params, batch, &mut gradient, &mut scratch);
    let at = |params: &[f32], scratch: &mut [f32]| {
        model.evaluate(params, batch, scratch).loss / batch.len() as f64
    };
    assert!((loss - at(params, &mut scratch)).abs() < 1e-12, "{what}");
    for i in 0..params.len() {
        let mut slope = |h: f32| {
            let mut moved = params.to_vec();
            moved[i] += h;
            (f64::from(moved[i]), at(&moved, &mut scratch))
        };
        let ((low, below), (high, above)) = (slope(-0.01), slope(0.01));
        // The loss is a square and a straight line: central differences are exact up to the kinks
        // of Huber's.
        let slope = (above - below) / (high - low);
        assert!((slope - f64::from(gradient[i])).abs() < 5e-3, "{what}: {slope}, not {}", gradient[i]);
    }
    let centre = normals(params.len(), 4);
    for mu in [0.0, 0.3] {
        let pull: Vec<f32> = centre.iter().map(|c| 0.5 * mu * c).collect();
        let step = Step { learning_rate: 0.5, l2: 0.1 + mu, pull: (mu > 0.0).then_some(&*pull), key: 0 };
        let mut working = params.to_vec();
        model.step(&mut working, batch, step, &mut scratch);
        for (((w, before), g), c) in working.iter().zip(params).zip(&gradient).zip(&centre) {
            let expected = before - 0.5 * (g + 0.1 * before + mu * (before - c));
            assert!((w - expected).abs() < 1e-5, "{what}: step with mu = {mu}");
        }
    }
}

/// y = 2a − b + 5 on every device; device k sees its own corner of the plane.
fn plane(devices: u32) -> Federation {
    let mut builder = FederationBuilder::of_values("plane", InputKind::Dense { dim: 2 });
    for k in 0..devices {
        let stream = &mut Stream::new(1, Purpose::Synthesis, 0, u64::from(k));
        let shift = stream.uniform(-1.0, 1.0) as f32;
        let (mut x, mut y) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            let (a, b) = (stream.normal() as f32 + shift, stream.normal() as f32 - shift);
            x.extend([a, b]);
            y.push(2.0 * a - b + 5.0);
        }
        let split = if k % 2 == 0 { Split::Train } else { Split::Test };
        builder.push(&format!("d{k}"), split, DeviceExamples::Dense(&x), &y).unwrap();
    }
    builder.build()
}

fn trained(spec: &ModelSpec) -> (Vec<f32>, SplitEvaluation) {
    let federation = plane(20);
    let model = spec.build(&federation, Isa::detect()).unwrap();
    let trainer = Sgd::new(&*model);
    let mut exchange = Simulation::with_threads(&trainer, &federation, NonZeroUsize::new(2)).unwrap();
    let plan = Plan::builder().rounds(60).cohort(5).batch(5).evaluate_every(60);
    let plan = plan.track(Track::fed_avg()).build().unwrap();
    let (mut state, mut records) = (plan.start(1, &trainer), Records::default());
    train(&mut exchange, &plan, &mut state, &mut records).unwrap();
    let (_, last) = records.evaluations.pop().unwrap();
    let test = last.into_iter().find(|evaluation| evaluation.split == Split::Test).unwrap();
    (state.tracks[0].params.as_slice().to_vec(), test)
}

#[test]
fn a_plane_is_learned_with_an_intercept_and_not_without() {
    for huber in [None, Some(("huber", OptionValue::Real(1.0)))] {
        let linear = |intercept| {
            LINEAR.spec_with([("intercept", OptionValue::Truth(intercept))].into_iter().chain(huber)).unwrap()
        };
        let (params, test) = trained(&linear(true));
        for (got, expected) in params.iter().zip([2.0, -1.0, 5.0]) {
            assert!((got - expected).abs() < 0.02, "{params:?}");
        }
        assert_eq!(test.task.name(), "regression");
        assert!(test.tracks[0].iter().all(|device| device.primary() < 0.05 && device.metrics[2] > 0.99));
        let (_, flat) = trained(&linear(false));
        assert!(flat.tracks[0].iter().any(|device| device.primary() > 1.0));
    }
}

#[test]
fn models_of_classes_refuse_real_numbers_and_huber_refuses_classes() {
    let federation = plane(2);
    let refused =
        |spec: ModelSpec, federation: &Federation| spec.build(federation, Isa::detect()).err().unwrap();
    assert_eq!(refused(ModelSpec::LOGISTIC, &federation), ModelMismatch::NeedsClasses { model: "logistic" });
    let huber = |delta| LINEAR.spec_with([("huber", OptionValue::Real(delta))]);
    assert_eq!(huber(f64::NAN).unwrap_err().to_string(), "huber: expected a number above 0, got NaN");
    let refusal = ModelMismatch::OptionNeedsValues { model: "linear", option: "huber" };
    let mut classes = FederationBuilder::new("classes", InputKind::Dense { dim: 1 }, 2);
    classes.push("a", Split::Train, DeviceExamples::Dense(&[1.0]), &[1]).unwrap();
    assert_eq!(refused(huber(1.0).unwrap(), &classes.build()), refusal);
}

#[test]
fn more_than_65536_classes_keep_their_labels() {
    let mut builder = FederationBuilder::new("wide", InputKind::Dense { dim: 1 }, 70_000);
    builder.push("a", Split::Train, DeviceExamples::Dense(&[1.0, 2.0]), &[69_999, 3]).unwrap();
    let federation = builder.build();
    assert_eq!(
        (federation.examples(FederationIndex(0)).label(0), federation.examples(FederationIndex(0)).label(1)),
        (69_999, 3)
    );
    let model = ModelSpec::LINEAR.build(&federation, Isa::detect()).unwrap();
    assert_eq!((model.num_params(), model.task()), (70_000, Task::Classes));
    let params = vec![0.0; 70_000];
    let mut working = Aligned::zeroed(model.working_len());
    model.load(&params, &mut working);
    let mut scratch = Aligned::zeroed(model.scratch_len(2));
    let batch = Batch { inputs: Inputs::Dense(&[1.0, 2.0]), targets: Targets::Classes(&[69_999, 3]) };
    let score = model.evaluate(&working, batch, &mut scratch);
    assert!((score.loss - 2.0 * 70_000f64.ln()).abs() < 1e-2, "{}", score.loss);
}
