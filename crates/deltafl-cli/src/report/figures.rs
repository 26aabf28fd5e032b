//! The figures of a report, as SVG and PNG: every kind that the paper shows.

use super::results::RunResults;
use crate::canvas;

pub(super) mod bins;
mod chart;
mod combined;
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
    fn drawn(&self) -> miette::Result<(String, Vec<u8>)> {
        match self {
            Self::Stack(charts) => both(&draw::Stack(charts)),
            Self::Grid(rows) => both(&draw::Grid(rows)),
        }
    }
}

fn both(drawing: &impl canvas::Drawing) -> miette::Result<(String, Vec<u8>)> {
    Ok((canvas::svg(drawing)?, canvas::png(drawing)?))
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
    plans.extend(combined::combined(runs));
    let drawn = |Plan { name, layout }: Plan| {
        let (svg, png) = layout.drawn()?;
        Ok(Figure { name, svg, png })
    };
    plans.into_iter().map(drawn).collect()
}

/// A name that every file system takes.
fn file_name(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' }).collect()
}
