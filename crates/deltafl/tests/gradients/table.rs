//! Every model of the table, with default and example options, against central differences of its
//! loss.

use std::collections::BTreeSet;

use deltafl::data::{
    BatchBuffer, DeviceExamples, Federation, FederationBuilder, FederationIndex, InputKind, Split,
    WordVectors,
};
use deltafl::kernel::{Aligned, Isa};
use deltafl::model::stack::Layer;
use deltafl::model::{Batch, MODELS, Model, ModelDefinition, ModelSpec, Step};
use deltafl::stream::{Purpose, Stream};
use deltafl::task::Targets;

/// Examples of the one device of each federation.
pub(crate) const EXAMPLES: usize = 6;

pub(crate) fn normals(count: usize) -> Vec<f32> {
    let stream = &mut Stream::new(13, Purpose::Synthesis, 0, count as u64);
    (0..count).map(|_| stream.normal() as f32).collect()
}

pub(crate) fn single<'a>(
    mut builder: FederationBuilder,
    examples: DeviceExamples<'_>,
    targets: impl Into<Targets<'a>>,
) -> Federation {
    builder.push("a", Split::Train, examples, targets).unwrap();
    builder.build()
}

/// A federation of each kind of inputs and targets. Values are counts, which every regression
/// accepts.
fn federations() -> Vec<Federation> {
    let labels = |classes: u32| (0..EXAMPLES as u32).map(|i| i % classes).collect::<Vec<_>>();
    let dense = |classes: usize| {
        let builder = FederationBuilder::new("dense", InputKind::Dense { dim: 5 }, classes);
        single(builder, DeviceExamples::Dense(&normals(5 * EXAMPLES)), &labels(classes as u32))
    };
    let values = FederationBuilder::of_values("values", InputKind::Dense { dim: 5 });
    let counts: Vec<f32> = (0..EXAMPLES).map(|i| (i % 4) as f32).collect();
    let images = FederationBuilder::new("images", InputKind::Bytes { dim: 256 }, 3);
    let bytes: Vec<u8> = normals(256 * EXAMPLES).iter().map(|x| (90.0 + 40.0 * x) as u8).collect();
    let mut words = FederationBuilder::new("words", InputKind::Tokens { len: 4, vocabulary: 11 }, 2);
    words.vectors(WordVectors { dim: 3, values: normals(33).into() });
    let ids: Vec<u32> = (0..4 * EXAMPLES as u32).map(|i| i * 7 % 11).collect();
    let rated = FederationBuilder::of_values("rated", InputKind::Tokens { len: 4, vocabulary: 11 });
    let shades = FederationBuilder::of_values("shades", InputKind::Dense { dim: 108 });
    let windows = FederationBuilder::new("windows", InputKind::Windows { len: 4, alphabet: 7 }, 7);
    let text: Vec<u8> = (0..EXAMPLES as u8 + 4).map(|i| i * 5 % 7).collect();
    vec![
        dense(2),
        dense(4),
        single(values, DeviceExamples::Dense(&normals(5 * EXAMPLES)), &counts),
        single(images, DeviceExamples::Bytes(&bytes), &labels(3)),
        single(words, DeviceExamples::Tokens(&ids), &labels(2)),
        single(rated, DeviceExamples::Tokens(&ids), &counts),
        // RGB images of side 6.
        single(shades, DeviceExamples::Dense(&normals(108 * EXAMPLES)), &counts),
        single(windows, DeviceExamples::Text(&text), Targets::IN_TEXT),
    ]
}

/// The model with its defaults, with the example of each option, and with all examples.
fn specs(model: &'static ModelDefinition) -> Vec<ModelSpec> {
    let examples: Vec<_> = model.options.iter().map(|option| (option.name, option.example)).collect();
    let one = examples.iter().map(|&example| model.spec_with([example]).unwrap());
    let all = model.spec_with(examples.iter().copied()).unwrap();
    let mut specs: Vec<_> =
        std::iter::once(model.spec()).chain(one.collect::<Vec<_>>()).chain([all]).collect();
    if model.kind == "stack" {
        specs.extend(super::stacks::LAYERS.map(|json| {
            let layers: Vec<Layer> = serde_json::from_str(json).unwrap();
            model.spec().with_layers(layers)
        }));
    }
    specs
}

#[test]
fn every_model_of_the_table_has_the_gradient_of_its_loss() {
    let federations = federations();
    for model in MODELS.iter().filter(|model| !model.tasks.is_empty()) {
        let mut served = BTreeSet::new();
        for spec in specs(model) {
            for federation in &federations {
                let Ok(built) = spec.build(federation, Isa::Reference) else { continue };
                served.insert(built.task().name());
                let mut buffer = BatchBuffer::default();
                let batch = buffer.gather(&federation.examples(FederationIndex(0)), 0..EXAMPLES);
                for isa in Isa::available() {
                    let built = spec.build(federation, isa).unwrap();
                    check(&*built, batch, &format!("{spec:?} on {} {isa}", federation.name()));
                }
            }
        }
        assert_eq!(served, model.tasks.iter().copied().collect(), "tasks of {}", model.kind);
    }
}

pub(crate) fn check(model: &dyn Model, batch: Batch<'_>, what: &str) {
    let stream = &mut Stream::new(17, Purpose::Init, 0, 0);
    let mut params = vec![0.0; model.num_params()];
    model.init(stream, &mut params);
    params.iter_mut().for_each(|w| *w += stream.uniform(-0.1, 0.1) as f32);
    let len = model.scratch_len(batch.len()).max(model.step_scratch_len(batch.len()));
    let mut scratch = Aligned::zeroed(len);
    let mut working = Aligned::zeroed(model.working_len());
    let mut gradient = vec![f32::NAN; params.len()];
    let loss = model.gradient(&params, batch, &mut gradient, &mut scratch);
    let mut loss_at = |params: &[f32]| {
        model.load(params, &mut working);
        model.evaluate(&working, batch, &mut scratch).loss / batch.len() as f64
    };
    assert!((loss - loss_at(&params)).abs() < 1e-5 * loss.abs().max(1.0), "{what}: loss");
    let norm = gradient.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
    for _ in 0..20 {
        let direction: Vec<f32> = params.iter().map(|_| stream.normal() as f32).collect();
        let length = direction.iter().map(|d| f64::from(*d).powi(2)).sum::<f64>().sqrt();
        let step = 2e-3;
        let mut moved = |by: f64| {
            let along = |(w, d): (&f32, &f32)| (f64::from(*w) + by * f64::from(*d) / length) as f32;
            loss_at(&params.iter().zip(&direction).map(along).collect::<Vec<_>>())
        };
        let slope = (moved(step) - moved(-step)) / (2.0 * step);
        let product = gradient.iter().zip(&direction).map(|(g, d)| f64::from(*g) * f64::from(*d));
        let expected = product.sum::<f64>() / length;
        let tolerance = 2e-3 * norm.max(0.1);
        assert!((slope - expected).abs() < tolerance, "{what}: slope {slope}, not {expected}");
    }
    // A step with dropout is random.
    if !model.draws_in_steps() {
        check_step(model, batch, &params, &gradient, what);
    }
}

/// A step is w − γ(g + λw) + p.
fn check_step(model: &dyn Model, batch: Batch<'_>, params: &[f32], gradient: &[f32], what: &str) {
    let pull: Vec<f32> = (0..params.len()).map(|i| (i % 5) as f32 * 0.01).collect();
    let (mut working, mut working_pull) =
        (Aligned::zeroed(model.working_len()), Aligned::zeroed(model.working_len()));
    let mut scratch = Aligned::zeroed(model.step_scratch_len(batch.len()));
    scratch.fill(7.0);
    model.load(params, &mut working);
    model.load(&pull, &mut working_pull);
    let step = Step { learning_rate: 0.5, l2: 0.01, pull: Some(&working_pull), key: 0 };
    model.step(&mut working, batch, step, &mut scratch);
    let mut stepped = vec![f32::NAN; params.len()];
    model.store(&working, &mut stepped);
    for (i, w) in stepped.iter().enumerate() {
        let expected = params[i] - 0.5 * (gradient[i] + 0.01 * params[i]) + pull[i];
        assert!((w - expected).abs() < 2e-5 * expected.abs().max(1.0), "{what}: step, entry {i}");
    }
}
