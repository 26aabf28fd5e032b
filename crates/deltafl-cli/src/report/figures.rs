//! The figures of a report, as SVG and PNG: every kind that the paper shows.

use super::results::RunResults;
use crate::canvas;

pub(super) mod bins;
mod chart;
mod draw;
mod eta_every;
mod kinds;
mod palette;

use chart::Chart;

/// A figure in both formats.
pub(super) struct Figure {
    /// Of its files, without extension.
    pub(super) name: String,
    pub(super) svg: String,
    pub(super) png: Vec<u8>,
}

/// A figure to be drawn: charts below each other.
struct Plan {
    name: String,
    charts: Vec<Chart>,
}

/// Draws every figure of some runs. With several runs, the name of a figure starts with that of its run.
pub(super) fn figures(runs: &[RunResults]) -> miette::Result<Vec<Figure>> {
    let mut plans: Vec<Plan> = Vec::new();
    for (i, run) in runs.iter().enumerate() {
        let prefix =
            if runs.len() > 1 { format!("{}-{}-", i + 1, file_name(&run.name)) } else { String::new() };
        for mut plan in kinds::of_run(run) {
            plan.name.insert_str(0, &prefix);
            plans.push(plan);
        }
    }
    plans.extend(eta_every::eta_every(runs));
    plans
        .into_iter()
        .map(|Plan { name, charts }| {
            let stack = draw::Stack(&charts);
            Ok(Figure { svg: canvas::svg(&stack)?, png: canvas::png(&stack)?, name })
        })
        .collect()
}

/// A name that every file system takes.
fn file_name(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' }).collect()
}
