//! Tests of `deltafl export`.

use std::fs::{self, File};
use std::path::Path;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::RowAccessor;
use prost::Message;

use super::{TrainedRun, printed, text, trained_run};

/// An event as read by TensorBoard. The fields are those of its `event.proto` and `summary.proto`.
#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, tag = "3")]
    file_version: String,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
}

#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, tag = "2")]
    simple_value: f32,
}

/// Parses the records of an event file.
fn events(path: &Path) -> Vec<Event> {
    let bytes = fs::read(path).unwrap();
    let mut rest = bytes.as_slice();
    let mut events = Vec::new();
    while !rest.is_empty() {
        let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
        events.push(Event::decode(&rest[12..12 + length]).unwrap());
        rest = &rest[12 + length + 4..];
    }
    events
}

#[test]
fn event_files_contain_every_value_of_a_track() {
    let TrainedRun { path, summary, .. } = trained_run();
    let folder = tempfile::tempdir().unwrap();
    let told = printed(&["export", text(path), "--format", "tensorboard", "--out", text(folder.path())]);
    assert_eq!(told.lines().count(), 4 * 2);
    let p90 = |seed: u32| {
        let file = format!("delta-fl-theta-0.5/seed-{seed}/events.out.tfevents.0000000000.deltafl");
        let events = events(&folder.path().join(file));
        assert_eq!(events[0].file_version, "brain.Event:2");
        assert!(events.windows(2).all(|pair| pair[0].step <= pair[1].step));
        assert_eq!(events.iter().filter(|event| event.step > 0).count(), 20 + 5, "rounds and evaluations");
        let values = |event: &Event| event.summary.clone().unwrap_or_default().value;
        let last: Vec<Value> = events.iter().filter(|event| event.step == 20).flat_map(values).collect();
        assert!(last.iter().any(|value| value.tag == "round/eta"));
        assert!(last.iter().any(|value| value.tag == "objective"));
        f64::from(last.iter().find(|value| value.tag == "test_error/p90").unwrap().simple_value)
    };
    let expected = summary.tracks[2].test.unwrap().p90.mean;
    assert!(((p90(1) + p90(2)) / 2.0 - expected).abs() < 1e-6);
}

#[test]
fn csv_and_parquet_contain_the_same_rows() {
    let run = &trained_run().path;
    let folder = tempfile::tempdir().unwrap();
    for format in ["csv", "parquet"] {
        printed(&["export", text(run), "--format", format, "--out", text(folder.path())]);
    }
    // 6 evaluations, 2 seeds, 4 tracks, 40 devices; 20 rounds.
    for (table, rows, real) in [
        ("devices", 6 * 2 * 4 * 40, "error"),
        ("evaluations", 6 * 2 * 4 * 2, "p90"),
        ("rounds", 20 * 2 * 4, "tail_weight"),
    ] {
        let mut csv = csv::Reader::from_path(folder.path().join(format!("{table}.csv"))).unwrap();
        let column = csv.headers().unwrap().iter().position(|name| name == real).unwrap();
        let from_csv: Vec<f64> = csv.records().map(|row| row.unwrap()[column].parse().unwrap()).collect();
        let file = File::open(folder.path().join(format!("{table}.parquet"))).unwrap();
        let reader = SerializedFileReader::new(file).unwrap();
        let from_parquet: Vec<f64> =
            reader.get_row_iter(None).unwrap().map(|row| row.unwrap().get_double(column).unwrap()).collect();
        assert_eq!(from_csv.len(), rows);
        assert!(from_csv.iter().zip(&from_parquet).all(|(a, b)| a.to_bits() == b.to_bits()));
        assert_eq!(from_parquet.len(), rows);
    }
}

#[test]
fn the_exported_objective_of_the_last_evaluation_equals_that_of_the_summary() {
    let TrainedRun { path, summary, .. } = trained_run();
    let folder = tempfile::tempdir().unwrap();
    printed(&["export", text(path), "--format", "csv", "--out", text(folder.path())]);
    let mut csv = csv::Reader::from_path(folder.path().join("evaluations.csv")).unwrap();
    let header = csv.headers().unwrap().clone();
    let at = |name: &str| header.iter().position(|column| column == name).unwrap();
    let rows: Vec<csv::StringRecord> = csv.records().map(Result::unwrap).collect();
    for (label, track) in ["FedAvg", "Δ-FL θ=0.8", "Δ-FL θ=0.5", "Δ-FL θ=0.1"].iter().zip(&summary.tracks)
    {
        let of_track = |split: &str| {
            rows.iter()
                .filter(|row| {
                    &row[at("track")] == *label && &row[at("round")] == "20" && &row[at("split")] == split
                })
                .collect::<Vec<_>>()
        };
        let objectives: Vec<f64> =
            of_track("train").iter().map(|row| row[at("objective")].parse().unwrap()).collect();
        let objective = track.objective.unwrap();
        assert_eq!(objectives.len(), 2);
        assert!((objectives.iter().sum::<f64>() / 2.0 - objective.mean).abs() < 1e-12);
        let mean = track.train_loss.unwrap().mean.mean;
        if *label == "FedAvg" {
            assert!((objective.mean - mean).abs() < 1e-9, "at θ = 1 the objective is the mean");
        } else {
            assert!(objective.mean > mean, "{label}: {} is a mean over the worst", objective.mean);
        }
        assert!(of_track("test").iter().all(|row| row[at("objective")].is_empty()));
    }
}
