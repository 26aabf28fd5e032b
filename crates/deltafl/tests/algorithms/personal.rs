//! Personal models: their evaluation beside the shared one.

use deltafl::algorithm::{APFL, Algorithm, DITTO, FINE_TUNING};
use deltafl::data::{BatchBuffer, DeviceExamples, FederationBuilder, InputKind};
use deltafl::exchange::SplitEvaluation;

use super::small::{devices, small_plan};
use super::*;

/// Devices that hold out every third of their examples, for testing and again for validation, and
/// one that has test examples only.
fn split_devices() -> Federation {
    let whole = devices();
    let mut builder = FederationBuilder::new("split", InputKind::Dense { dim: 60 }, whole.classes());
    for k in whole.split(Split::Train) {
        let (examples, mut buffer) = (whole.examples(k), BatchBuffer::default());
        for split in [Split::Train, Split::Test, Split::Validation] {
            let rows: Vec<usize> =
                (0..examples.len()).filter(|i| (i % 3 == 0) == (split != Split::Train)).collect();
            let batch = buffer.gather(&examples, rows.iter().copied());
            let labels: Vec<u32> = rows.iter().map(|&i| examples.label(i)).collect();
            let inputs = DeviceExamples::Dense(batch.inputs.dense());
            builder.push(whole.id(k), split, inputs, &labels).unwrap();
        }
    }
    let stranger = whole.split(Split::Test)[0];
    let (examples, mut buffer) = (whole.examples(stranger), BatchBuffer::default());
    let batch = buffer.gather(&examples, 0..examples.len());
    let labels: Vec<u32> = (0..examples.len()).map(|i| examples.label(i)).collect();
    builder.push("stranger", Split::Test, DeviceExamples::Dense(batch.inputs.dense()), &labels).unwrap();
    builder.build()
}

fn track_of(algorithm: &Algorithm, model: &'static str) -> Track {
    let options = algorithm.options_with([("evaluate", OptionValue::Word(model))]).unwrap();
    Track::from_options(algorithm, &options, 1e-4).unwrap()
}

/// The last evaluations of the train, test and validation devices.
fn evaluated(tracks: Vec<Track>) -> [SplitEvaluation; 3] {
    let federation = split_devices();
    let model = ModelSpec::LINEAR.build(&federation, Isa::detect()).unwrap();
    let trainer = Sgd::new(&*model);
    let mut exchange = Simulation::with_threads(&trainer, &federation, NonZeroUsize::new(2)).unwrap();
    let plan = small_plan(tracks).into_builder().rounds(30).cohort(6).evaluate_every(30).build().unwrap();
    let mut records = Records::default();
    train(&mut exchange, &plan, &mut plan.start(7, &trainer), &mut records).unwrap();
    let (_, splits) = records.evaluations.pop().unwrap();
    splits.try_into().unwrap()
}

#[test]
fn personal_models_serve_their_devices_better_than_the_shared_one() {
    let tracks = vec![
        Track { l2: 1e-4, ..Track::fed_avg() },
        track_of(&DITTO, "shared"),
        track_of(&DITTO, "personal"),
        track_of(&FINE_TUNING, "personal"),
        track_of(&APFL, "personal"),
    ];
    let [_, evaluation, _] = evaluated(tracks);
    let stranger = evaluation.devices.iter().position(|device| device.id == "stranger").unwrap();
    let [fed_avg, shared, ditto, tuned, mixed] = [0, 1, 2, 3, 4].map(|i| &evaluation.tracks[i]);
    assert_eq!(fed_avg, shared);
    let mean = |devices: &[deltafl::exchange::Evaluation]| {
        devices.iter().map(|device| device.loss).sum::<f64>() / devices.len() as f64
    };
    for personal in [ditto, tuned, mixed] {
        assert!(mean(personal) < 0.9 * mean(shared), "{} {}", mean(personal), mean(shared));
        assert_eq!(personal[stranger], shared[stranger], "a device without training examples");
    }
}

#[test]
fn validation_examples_are_evaluated_with_the_personal_models() {
    let tracks = [&DITTO, &FINE_TUNING, &APFL].map(|algorithm| track_of(algorithm, "personal"));
    let [_, test, validation] = evaluated(Vec::from(tracks));
    // The two splits hold the same examples.
    for (of_test, of_validation) in test.tracks.iter().zip(&validation.tracks) {
        assert!(of_test.starts_with(of_validation));
    }
}
