//! The figures of a report, as SVG and PNG, of every kind shown in the paper.

use std::collections::HashMap;

use super::results::RunResults;
use crate::drawing::{self, DrawingError};

pub(super) mod bins;
mod by_epsilon;
mod chart;
mod combined;
mod draw;
mod eta_every;
mod kinds;
mod palette;
mod several;

use chart::Chart;

/// A figure in both formats.
pub(super) struct Figure {
    /// The name of its files, without extension.
    pub(super) name: String,
    pub(super) svg: String,
    pub(super) png: Vec<u8>,
}

/// A figure to be drawn.
struct FigurePlan {
    name: String,
    layout: FigureLayout,
}

/// The layout of charts in a figure.
enum FigureLayout {
    /// Charts below each other.
    Stack(Vec<Chart>),
    /// Rows of charts with titles.
    ChartGrid(Vec<combined::FigureRow>),
}

impl FigureLayout {
    fn drawn(&self) -> Result<(String, Vec<u8>), DrawingError> {
        match self {
            Self::Stack(charts) => both(&draw::Stack(charts)),
            Self::ChartGrid(rows) => both(&draw::ChartGrid(rows)),
        }
    }
}

fn both(drawing: &impl drawing::Drawing) -> Result<(String, Vec<u8>), DrawingError> {
    Ok((drawing::svg(drawing)?, drawing::png(drawing)?))
}

/// Draws all figures of a run. For several runs, draws the charts that compare them. Their other
/// figures are in their separate reports.
pub(super) fn figures(runs: &[RunResults]) -> Result<Vec<Figure>, DrawingError> {
    let mut plans = match runs {
        [run] => kinds::of_run(run),
        runs => several::side_by_side(runs),
    };
    plans.extend(eta_every::eta_every(runs));
    plans.extend(by_epsilon::by_epsilon(runs));
    plans.extend(combined::combined(runs));
    number_namesakes(&mut plans);
    let drawn = |FigurePlan { name, layout }: FigurePlan| {
        let (svg, png) = layout.drawn()?;
        Ok(Figure { name, svg, png })
    };
    plans.into_iter().map(drawn).collect()
}

/// Draws the primary measure against ε over runs that differ in it. Returns `None` if they do not.
pub(super) fn error_by_epsilon(runs: &[RunResults]) -> Result<Option<String>, DrawingError> {
    let first = by_epsilon::by_epsilon(runs).into_iter().next();
    first.map(|plan| Ok(plan.layout.drawn()?.0)).transpose()
}

/// Adds numbers to figures with the same name, such as the train losses of two tasks.
fn number_namesakes(plans: &mut [FigurePlan]) {
    let mut met: HashMap<String, usize> = HashMap::new();
    for plan in plans {
        let times = met.entry(plan.name.clone()).or_default();
        *times += 1;
        if *times > 1 {
            plan.name = format!("{}-{times}", plan.name);
        }
    }
}
