//! The paper's numbers, from its data: these tests run where the data folder lies beside the project
//! (`../shared/data`, or `DELTAFL_SHARED_DATA`).
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use deltafl::data::{Federation, FederationIndex, InputKind};
use deltafl_data::import::{Features, ImportTarget, idx, leaf, sent140, shakespeare};
use tempfile::TempDir;

/// The data folder; without it the test says so and passes.
fn shared() -> Option<PathBuf> {
    let folder = match std::env::var_os("DELTAFL_SHARED_DATA") {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"),
    };
    if !folder.is_dir() {
        println!("skipped: {} is not there", folder.display());
        return None;
    }
    Some(folder)
}

fn target(dir: &TempDir, min_examples: u64) -> ImportTarget {
    let mut target = ImportTarget::new(dir.path().join("federation"));
    target.split.min_examples = min_examples;
    target
}

/// Smallest, median and largest number of examples.
fn spread(federation: &Federation) -> (u64, u64, u64) {
    let mut counts: Vec<u64> = federation.devices().map(|k| federation.example_count(k)).collect();
    counts.sort_unstable();
    (counts[0], counts[counts.len() / 2], counts[counts.len() - 1])
}

#[test]
fn shakespeare_gives_the_papers_devices() {
    let Some(shared) = shared() else { return };
    let dir = TempDir::new().unwrap();
    let imported = shakespeare::import(&shared.join("shakespeare/pg100.txt.gz"), &target(&dir, 100)).unwrap();
    let federation = imported.open().unwrap();
    assert_eq!((imported.manifest.devices, imported.manifest.examples), (1089, 4_290_683));
    assert_eq!(spread(&federation), (101, 1288, 66963));
    federation.verify().unwrap();
}

fn femnist(shared: &std::path::Path) -> idx::IdxFiles {
    idx::IdxFiles {
        images: shared.join("femnist/femnist-images-idx3-ubyte.gz"),
        labels: shared.join("femnist/femnist-labels-idx1-ubyte.gz"),
        devices: Some(shared.join("femnist/femnist-writers.tsv")),
    }
}

#[test]
fn emnist_has_403_writers_with_more_than_100_images() {
    let Some(shared) = shared() else { return };
    let dir = TempDir::new().unwrap();
    let imported = idx::import(&femnist(&shared), &target(&dir, 100)).unwrap();
    assert_eq!((imported.manifest.devices, imported.manifest.classes), (403, 62));
    assert_eq!(imported.manifest.input, InputKind::Bytes { dim: 784 });
    imported.open().unwrap().verify().unwrap();
}

#[test]
fn leaf_shards_hold_the_images_of_the_idx_files() {
    let Some(shared) = shared() else { return };
    let (dir, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let all = idx::import(&femnist(&shared), &target(&dir, 0)).unwrap().open().unwrap();
    let shard = |part| shared.join(format!("femnist/leaf-all_data_5_niid_05_keep_0_{part}_9.json.gz"));
    let imported =
        leaf::import(&[shard("train"), shard("test")], Features::Auto, &target(&other, 0)).unwrap();
    let shards = imported.open().unwrap();
    assert_eq!((shards.len(), shards.kind()), (5, InputKind::Bytes { dim: 784 }));
    for k in shards.devices() {
        let same = all.devices().find(|&j| all.id(j) == shards.id(k)).unwrap();
        assert_eq!(contents(&shards, k), contents(&all, same), "{}", shards.id(k));
    }
}

/// What a model sees of a device.
fn contents(federation: &Federation, device: FederationIndex) -> String {
    let examples = federation.examples(device);
    let mut buffer = deltafl::data::BatchBuffer::default();
    format!("{:?}", buffer.gather(&examples, 0..examples.len()))
}

fn tweets(
    shared: &std::path::Path,
    features: sent140::TweetFeatures,
    by_addressee: bool,
) -> sent140::TweetOptions {
    sent140::TweetOptions {
        vectors: shared.join("glove/glove.6B.50d.subset.txt.gz"),
        features,
        lowercase: true,
        columns: by_addressee.then(|| sent140::TweetColumns {
            device: "addressee".into(),
            label: "label".into(),
            text: "text".into(),
        }),
    }
}

#[test]
fn tweets_have_426_addressees_with_more_than_50() {
    let Some(shared) = shared() else { return };
    let dir = TempDir::new().unwrap();
    let options = tweets(&shared, sent140::TweetFeatures::Tokens, true);
    let file = shared.join("sent140/sent140-by-addressee-min50.tsv.gz");
    let imported = sent140::import(&[file], &options, &target(&dir, 50)).unwrap();
    assert_eq!((imported.manifest.devices, imported.manifest.classes), (426, 2));
    let federation = imported.open().unwrap();
    assert_eq!(federation.vectors().unwrap().dim, 50);
    federation.verify().unwrap();
}

#[test]
fn leafs_tweets_by_author_are_read_as_mean_vectors() {
    let Some(shared) = shared() else { return };
    let dir = TempDir::new().unwrap();
    let options = tweets(&shared, sent140::TweetFeatures::MeanVector, false);
    let file = shared.join("sent140/leaf-all_data_niid_05_keep_3_test_9.json.gz");
    let imported = sent140::import(&[file], &options, &target(&dir, 0)).unwrap();
    assert_eq!((imported.manifest.devices, imported.manifest.examples), (7086, 8692));
    assert_eq!(imported.manifest.input, InputKind::Dense { dim: 50 });
}
