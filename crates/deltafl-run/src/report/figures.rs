//! The figures of a report, as SVG and PNG: every kind that the paper shows.

use std::collections::HashMap;

use super::results::RunResults;
use crate::drawing::{self, DrawingError};

pub(super) mod bins;
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
    /// Of its files, without extension.
    pub(super) name: String,
    pub(super) svg: String,
    pub(super) png: Vec<u8>,
}

/// A figure to be drawn.
struct Plan {
    name: String,
    layout: Layout,
}

/// How charts stand in a figure.
enum Layout {
    /// Below each other.
    Stack(Vec<Chart>),
    /// In rows with titles.
    Grid(Vec<combined::Row>),
}

impl Layout {
    fn drawn(&self) -> Result<(String, Vec<u8>), DrawingError> {
        match self {
            Self::Stack(charts) => both(&draw::Stack(charts)),
            Self::Grid(rows) => both(&draw::Grid(rows)),
        }
    }
}

fn both(drawing: &impl drawing::Drawing) -> Result<(String, Vec<u8>), DrawingError> {
    Ok((drawing::svg(drawing)?, drawing::png(drawing)?))
}

/// Draws every figure of a run; of several runs, the charts in which they stand side by side. The figures of each are those
/// of its own report.
pub(super) fn figures(runs: &[RunResults]) -> Result<Vec<Figure>, DrawingError> {
    let mut plans = match runs {
        [run] => kinds::of_run(run),
        runs => several::side_by_side(runs),
    };
    plans.extend(eta_every::eta_every(runs));
    plans.extend(combined::combined(runs));
    number_namesakes(&mut plans);
    let drawn = |Plan { name, layout }: Plan| {
        let (svg, png) = layout.drawn()?;
        Ok(Figure { name, svg, png })
    };
    plans.into_iter().map(drawn).collect()
}

/// Tells figures of one name apart: the train losses of two tasks are two figures.
fn number_namesakes(plans: &mut [Plan]) {
    let mut met: HashMap<String, usize> = HashMap::new();
    for plan in plans {
        let times = met.entry(plan.name.clone()).or_default();
        *times += 1;
        if *times > 1 {
            plan.name = format!("{}-{times}", plan.name);
        }
    }
}
