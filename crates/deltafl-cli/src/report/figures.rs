//! The figures of a report, as SVG and PNG: every kind that the paper shows.

use super::results::RunResults;
use crate::canvas;

pub(super) mod bins;
mod chart;
mod draw;
mod eta_every;
mod kinds;
mod palette;
mod several;

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

/// Draws every figure of a run; of several runs, the charts in which they stand side by side. The figures of each are those
/// of its own report.
pub(super) fn figures(runs: &[RunResults]) -> miette::Result<Vec<Figure>> {
    let mut plans = match runs {
        [run] => kinds::of_run(run),
        runs => several::side_by_side(runs),
    };
    plans.extend(eta_every::eta_every(runs));
    plans
        .into_iter()
        .map(|Plan { name, charts }| {
            let stack = draw::Stack(&charts);
            Ok(Figure { svg: canvas::svg(&stack)?, png: canvas::png(&stack)?, name })
        })
        .collect()
}
