//! `deltafl paper`: the paper's pairs by name, on small federations instead of its data.

use std::fs;

use super::workdir::{self, checkpoints, runs};

/// Options that make a pair small.
const SMALL: &str =
    "--seeds 2 --rounds 3 --set cohort=6 --set data.split.min_examples=0 --set evaluate_every=2";

#[test]
fn a_pair_is_trained_and_compared_with_the_papers_tables() {
    let workdir = workdir::workdir();
    workdir.printed("data synth glyphs --devices 24 --examples 20,30,60 --out data/emnist");
    let output = workdir.run(&format!("paper emnist-linear {SMALL}"));
    let (printed, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    let at = |text: &str| said.find(text).unwrap_or_else(|| panic!("{text}: {said}"));
    assert!(at("6 rounds at") < at("seed 1, round 0"), "the estimate comes first: {said}");
    assert!(said.contains("and 6 evaluations at") && said.contains("for 4 tracks: about"), "{said}");

    for figure in ["34.38 ± 0.38", "49.66 ± 0.67", "48.44 ± 0.38", "50.34 ± 0.95", "FedAvg", "Δ-FL θ=0.1"]
    {
        assert!(printed.contains(figure), "{figure}: {printed}");
    }
    assert!(printed.contains("The paper trained 3000 rounds, this run 3."), "{printed}");
    assert!(printed.contains("The paper had 1730 devices, this federation 24"), "{printed}");
    let tables = fs::read_to_string(workdir.path("runs/paper/paper.md")).unwrap();
    assert!(tables.contains("| FedAvg |") && tables.contains("34.38 ± 0.38"), "{tables}");
    assert!(workdir.path("runs/paper/emnist-linear/report.html").exists());

    // The results are those of the summary.
    let json = workdir.printed(&format!("paper emnist-linear {SMALL} --json"));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let summary = fs::read_to_string(workdir.path("runs/paper/emnist-linear/summary.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    for track in 0..4 {
        assert_eq!(json[0]["tracks"][track]["p90"], summary["tracks"][track]["test"]["p90"]);
    }
    assert_eq!(json[0]["tracks"][2]["p90_of_paper"]["mean"], 0.4844);
}

#[test]
fn splits_are_runs_of_their_own_and_differences_are_paired_by_split_and_seed() {
    let workdir = workdir::workdir();
    workdir.printed("data synth glyphs --devices 24 --examples 20,30,60 --out data/emnist");
    let paper = format!("paper emnist-linear {SMALL} --splits 2 -q");
    // Two shards train the four runs, and the whole command adds none.
    workdir.printed(&format!("{paper} --shard 1/2"));
    let folder = workdir.path("runs/paper/splits/emnist-linear");
    assert_eq!(runs(&folder).len(), 2);
    workdir.printed(&format!("{paper} --shard 2/2"));
    let bits: Vec<_> = runs(&folder).iter().map(|run| checkpoints(&folder.join(run))).collect();
    assert_eq!(bits.len(), 4);
    let printed = workdir.printed(&paper);
    assert!(printed.contains("4 runs on splits 1, 2 of the devices"), "{printed}");
    assert!(printed.contains("The paper, one split: Δ-FL θ=0.5 − FedAvg is -1.22 in the 90th"), "{printed}");
    assert_eq!(bits, runs(&folder).iter().map(|run| checkpoints(&folder.join(run))).collect::<Vec<_>>());

    // The difference is the mean over splits of the differences of their runs.
    let json: serde_json::Value = serde_json::from_str(&workdir.printed(&format!("{paper} --json"))).unwrap();
    let figure = |run: &str, track: usize| {
        let summary = fs::read_to_string(folder.join(run).join("summary.json")).unwrap();
        let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
        summary["tracks"][track]["test"]["p90"]["mean"].as_f64().unwrap()
    };
    let all: Vec<f64> = runs(&folder).iter().map(|run| figure(run, 2) - figure(run, 0)).collect();
    let difference = &json[0]["tracks"][2]["differences"]["p90"];
    let found = difference["over"]["mean"].as_f64().unwrap();
    assert!((found - all.iter().sum::<f64>() / 4.0).abs() < 1e-12, "{difference} {all:?}");
    assert!(json[0]["tracks"][0]["figures"]["small_std"]["std_over_splits"].is_f64(), "{json}");
}

#[test]
fn an_interrupted_pair_continues_to_the_same_bits() {
    let workdir = workdir::workdir();
    workdir.printed("data synth glyphs --devices 24 --examples 20,30,60 --out data/emnist");
    let paper = format!("paper emnist-linear {SMALL} --set rounds=12 -q --out");
    workdir.printed(&format!("{paper} whole"));
    // The state after a kill: an unfinished seed and no summary.
    workdir.printed(&format!("{paper} torn"));
    let torn = workdir.path("torn/emnist-linear");
    fs::remove_file(torn.join("checkpoint/seed-2.safetensors")).unwrap();
    fs::remove_file(torn.join("summary.json")).unwrap();
    let said = workdir.printed(&format!("{paper} torn --estimate"));
    assert!(said.contains("12 rounds at") && said.contains("7 evaluations"), "{said}");
    workdir.printed(&format!("{paper} torn"));
    assert_eq!(checkpoints(&workdir.path("whole/emnist-linear")), checkpoints(&torn));
    assert!(workdir.printed(&format!("{paper} torn --estimate")).contains("emnist-linear: finished"));
    // A run can be extended, but not shortened.
    let said = workdir.refusal(&format!("{} torn", paper.replace("rounds=12", "rounds=11")));
    assert!(said.contains("has already done 12 rounds"), "{said}");
}

#[test]
fn without_a_pair_all_pairs_with_available_data_run() {
    let workdir = workdir::workdir();
    let said = workdir.refusal("paper");
    for how in ["data import shakespeare", "data import emnist", "data fetch sent140", "--data DIR"] {
        assert!(said.contains(how), "{how}: {said}");
    }
    let said = workdir.refusal("paper sent140-lstm --data elsewhere");
    assert!(said.contains("--features tokens --out elsewhere/sent140"), "{said}");

    // The folder created by `data fetch`, and a federation named directly.
    workdir.printed("data synth roles --devices 16 --examples 20,30,60 --out data/shakespeare/federation");
    let estimate =
        "--estimate --rounds 2 --seeds 1 --set cohort=2 --set data.split.min_examples=0 --set model.hidden=4";
    let printed = workdir.printed(&format!("paper {estimate}"));
    assert!(printed.contains("shakespeare-gru: 2 rounds at"), "{printed}");
    assert!(printed.contains("emnist-linear: skipped"), "{printed}");
    // `--all` requires the data of all pairs.
    let said = workdir.refusal(&format!("paper --all {estimate}"));
    let missing = "there is no data for emnist-linear, emnist-convnet, sent140-linear, sent140-lstm in data";
    assert!(
        said.replace(['\n', '│'], " ").split_whitespace().collect::<Vec<_>>().join(" ").contains(missing),
        "{said}"
    );
    let printed =
        workdir.printed(&format!("paper shakespeare-gru {estimate} --data data/shakespeare/federation"));
    assert!(printed.contains("shakespeare-gru: 2 rounds"), "{printed}");
    assert!(!workdir.path("runs").exists(), "an estimate writes no files");
}

#[test]
fn the_experiment_can_be_printed_and_run_by_hand() {
    let workdir = workdir::workdir();
    let printed = workdir.printed("paper sent140-lstm --print");
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments/paper/sent140-lstm.toml");
    assert_eq!(printed, fs::read_to_string(file).unwrap());
    let said = workdir.refusal("paper emnist-lstm");
    assert!(said.contains("emnist-linear") && said.contains("shakespeare-gru"), "{said}");
}
