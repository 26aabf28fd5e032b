//! `glyphs`: handwriting in the 62 classes of EMNIST, drawn from stroke skeletons.
//!
//! A device is a writer. Most writers are similar, and a minority differs strongly. A model of the
//! mean serves the majority and fails the minority, which is the use case of Δ-FL. Images are 28 ×
//! 28 as in EMNIST: 255 is paper, 0 is ink, labels 0–9 are digits, 10–35 are A–Z, 36–61 are a–z.

mod hand;
mod pen;
mod strokes;

use std::num::NonZeroU32;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use self::hand::{DrawingBuffer, Hand, Manner};
pub use self::pen::SIDE;
pub use self::strokes::{CLASSES, SYMBOLS};
use super::weighted::Weighted;
use super::{ExamplesPerDevice, Fraction, assign_splits, odd_rank};
use crate::data::{DeviceExamples, Federation, FederationBuilder, InputKind};
use crate::stream::{Purpose, Stream};

/// A federation of writers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Glyphs {
    /// Number of writers.
    pub devices: NonZeroU32,
    /// The seed.
    pub seed: u64,
    /// Fraction of the writers that train; the others test.
    pub train: Fraction,
    /// Fraction of the writers that belong to the minority.
    pub odd: Fraction,
    /// Images per writer.
    pub examples: ExamplesPerDevice,
}

impl Default for Glyphs {
    fn default() -> Self {
        Self {
            devices: const { NonZeroU32::new(400).unwrap() },
            seed: 1,
            train: Fraction::HALF,
            odd: const { Fraction::new(0.16).unwrap() },
            // The counts of EMNIST in the paper's table of datasets.
            examples: const { ExamplesPerDevice::new(101, 179, 447).unwrap() },
        }
    }
}

/// The images of one writer.
struct WriterImages {
    id: String,
    images: Vec<u8>,
    labels: Vec<u32>,
}

impl Glyphs {
    /// Generates the federation, the same on any number of threads.
    pub fn build(&self) -> Federation {
        let devices = self.devices.get();
        let manners: Vec<Manner> = (0..devices).map(|device| self.manner(device)).collect();
        let splits = assign_splits(self.seed, &manners, self.train);
        let writers: Vec<WriterImages> =
            (0..devices).into_par_iter().map(|device| self.writer(device)).collect();
        let mut builder = FederationBuilder::new("glyphs", InputKind::Bytes { dim: SIDE * SIDE }, CLASSES);
        for (writer, split) in writers.iter().zip(splits) {
            builder
                .push(&writer.id, split, DeviceExamples::Bytes(&writer.images), &writer.labels)
                .expect("a writer has images and an identity of its own");
        }
        // The identity of a writer contains the manner, so the groups follow from the identities.
        let group = |(writer, manner): (&WriterImages, &Manner)| {
            let name = manner.suffix().trim_start_matches('-');
            (writer.id.clone(), if name.is_empty() { "usual" } else { name }.to_owned())
        };
        let groups: Vec<(String, String)> = writers.iter().zip(&manners).map(group).collect();
        builder.build().with_derived_groups(groups).expect("every writer has one of four manners")
    }

    fn manner(&self, device: u32) -> Manner {
        odd_rank(self.odd, device).map_or(Manner::Usual, |rank| Manner::ODD[rank % Manner::ODD.len()])
    }

    fn writer(&self, device: u32) -> WriterImages {
        let mut stream = Stream::new(self.seed, Purpose::Synthesis, 0, u64::from(device));
        let manner = self.manner(device);
        let hand = Hand::new(manner, &mut stream);
        let count = self.examples.draw(0.7, &mut stream) as usize;
        let labels = labels(count, &mut stream);
        let mut images = vec![0; count * SIDE * SIDE];
        let mut sheet = DrawingBuffer::default();
        for (image, &label) in images.chunks_exact_mut(SIDE * SIDE).zip(&labels) {
            hand.draw(label as usize, &mut sheet, &mut stream, image);
        }
        WriterImages { id: format!("w{device:05}{}", manner.suffix()), images, labels }
    }
}

/// Draws the symbols of a writer: half of them digits, as in EMNIST, with frequencies per writer.
fn labels(count: usize, stream: &mut Stream) -> Vec<u32> {
    let share = |class: usize| if class < 10 { 0.5 / 10.0 } else { 0.5 / 52.0 };
    let symbols = Weighted::new((0..CLASSES).map(|class| share(class) * (0.4 * stream.normal()).exp()));
    (0..count).map(|_| symbols.draw(stream) as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{BatchBuffer, FederationIndex};

    fn small() -> Glyphs {
        Glyphs { devices: NonZeroU32::new(60).unwrap(), ..Glyphs::default() }
    }

    /// Draws the images of a writer, 1 for paper and 0 for ink, with their labels.
    fn images(federation: &Federation, device: FederationIndex) -> (Vec<f32>, Vec<u32>) {
        let examples = federation.examples(device);
        let mut buffer = BatchBuffer::default();
        let batch = buffer.gather(&examples, 0..examples.len());
        (batch.inputs.dense().to_vec(), batch.targets.classes().to_vec())
    }

    #[test]
    fn any_number_of_threads_draws_the_same_bytes() {
        let on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| small().build().hash().to_owned())
        };
        assert_eq!(on(1), on(3));
        assert_ne!(on(1), Glyphs { seed: 2, ..small() }.build().hash());
    }

    #[test]
    fn the_draw_of_a_seed_never_changes() {
        let mut hasher = blake3::Hasher::new();
        for device in 0..4 {
            let WriterImages { id, images, labels } = small().writer(device);
            hasher.update(id.as_bytes()).update(&images);
            labels.iter().for_each(|label| _ = hasher.update(&label.to_le_bytes()));
        }
        assert_eq!(&hasher.finalize().to_hex()[..16], "8aba723aefe9937f");
    }

    #[test]
    fn the_first_writers_are_the_same_however_many_follow() {
        let few = Glyphs { devices: NonZeroU32::new(5).unwrap(), ..small() }.build();
        let many = small().build();
        assert_eq!(few.id(FederationIndex(4)), many.id(FederationIndex(4)));
        assert_eq!(images(&few, FederationIndex(4)), images(&many, FederationIndex(4)));
    }

    #[test]
    fn every_class_appears_and_half_of_the_images_are_digits() {
        let federation = small().build();
        let mut counts = [0u32; CLASSES];
        for device in federation.devices() {
            images(&federation, device).1.iter().for_each(|&label| counts[label as usize] += 1);
        }
        assert!(counts.iter().all(|&count| count > 0), "{counts:?}");
        let digits: u32 = counts[..10].iter().sum();
        let share = f64::from(digits) / f64::from(counts.iter().sum::<u32>());
        assert!((0.42..0.58).contains(&share), "{share}");
    }

    #[test]
    fn every_image_has_ink_inside_white_margins() {
        let federation = small().build();
        for device in federation.devices() {
            let (images, labels) = images(&federation, device);
            for (image, label) in images.chunks_exact(SIDE * SIDE).zip(labels) {
                let ink: f32 = image.iter().map(|paper| 1.0 - paper).sum::<f32>() / (SIDE * SIDE) as f32;
                assert!((0.003..0.3).contains(&ink), "{device:?}, class {label}: ink {ink}");
                let border =
                    |i: usize| i / SIDE < 2 || i / SIDE >= SIDE - 2 || i % SIDE < 2 || i % SIDE >= SIDE - 2;
                assert!(
                    image.iter().enumerate().all(|(i, &x)| !border(i) || x > 0.99),
                    "{device:?}, class {label}"
                );
            }
        }
    }

    #[test]
    fn odd_writers_are_farther_from_the_mean_image_than_usual_ones() {
        let federation = small().build();
        let mut sums = vec![[0.0f32; SIDE * SIDE]; 10];
        let mut counts = [0.0f32; 10];
        let digits = |device| {
            let (images, labels) = images(&federation, device);
            let digits =
                |(image, label): (&[f32], u32)| (label < 10).then(|| (image.to_vec(), label as usize));
            images.chunks_exact(SIDE * SIDE).zip(labels).filter_map(digits).collect::<Vec<_>>()
        };
        for (image, label) in federation.devices().flat_map(digits) {
            counts[label] += 1.0;
            sums[label].iter_mut().zip(&image).for_each(|(sum, x)| *sum += x);
        }
        let distance = |device| {
            let digits = digits(device);
            let squared = |(image, label): &(Vec<f32>, usize)| -> f32 {
                let mean = sums[*label].iter().map(|sum| sum / counts[*label]);
                image.iter().zip(mean).map(|(x, mean)| (x - mean) * (x - mean)).sum()
            };
            digits.iter().map(squared).sum::<f32>() / digits.len() as f32
        };
        let (odd, usual): (Vec<FederationIndex>, Vec<FederationIndex>) =
            federation.devices().partition(|&device| federation.id(device).contains('-'));
        let mean = |devices: &[FederationIndex]| {
            devices.iter().map(|&k| distance(k)).sum::<f32>() / devices.len() as f32
        };
        assert_eq!(odd.len(), 9);
        assert!(mean(&odd) > 1.15 * mean(&usual), "{} {}", mean(&odd), mean(&usual));
    }
}
