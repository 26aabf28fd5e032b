//! `deltafl tune`: the grid search of the paper.

use std::fs;

use serde_json::Value;

use super::workdir::{self, Workdir, runs};

const TUNE: &str = "tune x.toml --rates 0.01,0.1,0.3 --decays 0.5,1 --l2 1e-6,1e-3,1e-1 \
    --set local.decay.factor=1 --set local.decay.every=2 --set rounds=4 --out t";

fn json(workdir: &Workdir, words: &str) -> Value {
    serde_json::from_str(&workdir.printed(words)).unwrap()
}

/// Returns the axis value of the point with the lowest figure, the first of equal ones.
fn best(points: &Value, axis: &str, figure: impl Fn(&Value) -> f64) -> f64 {
    let points = points.as_array().unwrap();
    let lowest = points.iter().map(&figure).fold(f64::INFINITY, f64::min);
    let point = points.iter().find(|point| figure(point).total_cmp(&lowest).is_eq()).unwrap();
    point["settings"][axis].as_f64().unwrap()
}

#[test]
fn the_rate_is_chosen_by_train_loss_and_the_penalty_by_held_out_devices() {
    let workdir = workdir::workdir();
    let chosen = json(&workdir, &format!("{TUNE} --json"));
    let rate = json(&workdir, "sweep list t/rate --json");
    let loss = |point: &Value| point["tracks"][0]["train_loss"]["mean"]["mean"].as_f64().unwrap();
    assert_eq!(rate.as_array().unwrap().len(), 6);
    assert_eq!(rate[0]["tracks"].as_array().unwrap().len(), 1, "FedAvg alone");
    assert!(rate[0]["tracks"][0]["validation"].is_null(), "every train device trains");
    assert_eq!(chosen["learning_rate"], best(&rate, "local.learning_rate", loss));
    assert_eq!(chosen["decay"], best(&rate, "local.decay.factor", loss));

    let l2 = json(&workdir, "sweep list t/l2 --json");
    for track in 0..3 {
        let p90 = |point: &Value| point["tracks"][track]["validation"]["p90"]["mean"].as_f64().unwrap();
        assert_eq!(chosen["l2"][track]["l2"], best(&l2, "model.l2", p90), "track {track}");
    }

    // The file is complete and documents the origin of its values.
    let tuned = fs::read_to_string(workdir.path("t/tuned.toml")).unwrap();
    assert!(tuned.starts_with("# Tuned by `deltafl tune`") && tuned.contains("held out"), "{tuned}");
    workdir.printed("run t/tuned.toml --set rounds=1 --out r -q");
    let run = fs::read_to_string(workdir.path("r/experiment.toml")).unwrap();
    assert!(
        run.contains(&format!("learning_rate = {:?}", chosen["learning_rate"].as_f64().unwrap())),
        "{run}"
    );
    assert!(run.contains("validation = 0.0"), "all train devices train again: {run}");
}

#[test]
fn the_heat_maps_show_every_figure_and_a_frame() {
    let workdir = workdir::workdir();
    let printed = workdir.printed(&format!("{TUNE} -q"));
    let rate = json(&workdir, "sweep list t/rate --json");
    let svg = fs::read_to_string(workdir.path("t/rate.svg")).unwrap();
    for point in rate.as_array().unwrap() {
        let loss = format!("{:.4}", point["tracks"][0]["train_loss"]["mean"]["mean"].as_f64().unwrap());
        assert!(svg.contains(&loss) && printed.contains(&loss), "{loss}: {printed}");
    }
    assert!(svg.contains("#D55E00"), "the frame of the best");
    for track in ["FedAvg", "θ=0.5", "θ=0.2"] {
        assert!(fs::read_to_string(workdir.path("t/l2.svg")).unwrap().contains(track), "{track}");
    }
    for name in ["rate", "l2"] {
        assert!(fs::read(workdir.path(&format!("t/{name}.png"))).unwrap().starts_with(b"\x89PNG"));
    }
}

#[test]
fn a_search_continues_where_it_stopped() {
    let workdir = workdir::workdir();
    workdir.printed(&format!("{TUNE} -q"));
    let before = fs::read(workdir.path("t/tuned.toml")).unwrap();
    let rate = workdir.path("t/rate");
    let written =
        |run: &String| fs::metadata(rate.join(run).join("summary.json")).unwrap().modified().unwrap();
    let mut kept = runs(&rate);
    let lost = kept.remove(2);
    let times: Vec<_> = kept.iter().map(written).collect();
    fs::remove_dir_all(rate.join(&lost)).unwrap();
    workdir.printed(&format!("{TUNE} -q"));
    assert_eq!(kept.iter().map(written).collect::<Vec<_>>(), times, "a finished point was trained again");
    assert!(rate.join(&lost).join("summary.json").exists());
    assert_eq!(fs::read(workdir.path("t/tuned.toml")).unwrap(), before);
}

#[test]
fn experiments_that_cannot_be_tuned_are_rejected() {
    let workdir = workdir::workdir();
    assert!(workdir.refusal("tune x.toml --decays 0.5").contains("does not decay"));
    assert!(workdir.refusal("tune x.toml --rates 0").contains("out of range"));
    let text = fs::read_to_string(workdir.path("x.toml")).unwrap();
    fs::write(workdir.path("unsplit.toml"), text.replace("split = {", "# split = {")).unwrap();
    assert!(workdir.refusal("tune unsplit.toml").contains("--set data.split.train=0.5"));
}

#[test]
fn data_that_was_split_at_the_import_can_be_tuned() {
    let experiment = "name = 'x'\nrounds = 1\ncohort = 3\n[data]\nsource = 's'\n[model]\nkind = 'linear'\n[local]\nepochs = 1\n\
        batch = 10\nlearning_rate = 0.1\n[[algorithm]]\nkind = 'fedavg'\n";
    let workdir = Workdir::with(experiment);
    workdir.printed("data synth glyphs --devices 16 --seed 5 --out d");
    workdir.printed("data split d --train 0.5 --out s");
    let told = workdir.printed("tune x.toml --rates 0.1 --l2 1e-6,1e-3 --out t -q");
    assert!(told.contains("deltafl run t/tuned.toml --out runs/x-tuned"), "{told}");
}
