//! A chart as data: two axes and layers. The module `draw` determines its appearance.

use plotters::style::RGBColor;

use super::palette::Look;

/// A chart.
pub(super) struct Chart {
    pub(super) x: ChartAxis,
    pub(super) y: ChartAxis,
    /// The layers, from back to front.
    pub(super) layers: Vec<Layer>,
}

/// An axis.
pub(super) struct ChartAxis {
    pub(super) label: String,
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) logarithmic: bool,
    /// The names of the positions 0, 1, 2, … of a categorical axis.
    pub(super) names: Vec<String>,
}

/// A layer of a chart. Layers with a name are listed in the legend.
pub(super) enum Layer {
    /// A line through points.
    Line { name: Option<String>, look: Look, points: Vec<(f64, f64)> },
    /// The area between two lines: (x, lower, upper).
    Band { colour: RGBColor, points: Vec<(f64, f64, f64)> },
    /// Bars from 0: (left edge, height).
    Bars { name: Option<String>, colour: RGBColor, width: f64, bars: Vec<(f64, f64)> },
    /// Dots.
    Dots { name: Option<String>, colour: RGBColor, points: Vec<(f64, f64)> },
    /// A vertical line with a label at its top.
    Mark { x: f64, look: Look, text: String, place: MarkPlace },
}

/// The position of a mark's label, chosen so that labels do not overlap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MarkPlace {
    /// Lines of text from the top.
    pub(super) row: u32,
    /// Whether the label is to the left of the line.
    pub(super) left: bool,
}

impl ChartAxis {
    /// Creates an axis from 0 to slightly above the greatest value. It starts slightly below the
    /// least value if that is negative.
    pub(super) fn from_zero(label: impl Into<String>, values: impl Iterator<Item = f64>) -> Self {
        let (least, greatest) = values
            .filter(|value| value.is_finite())
            .fold((0.0, 0.0), |(least, greatest): (f64, f64), value| (least.min(value), greatest.max(value)));
        let room = 0.08 * (greatest - least);
        let from = if least < 0.0 { least - room } else { 0.0 };
        let to = if greatest > 0.0 {
            greatest + room
        } else if least < 0.0 {
            0.0
        } else {
            1.0
        };
        Self { label: label.into(), from, to, logarithmic: false, names: Vec::new() }
    }

    /// Creates an axis around the values.
    pub(super) fn around(label: impl Into<String>, values: impl Iterator<Item = f64>) -> Self {
        let (from, to) = values
            .filter(|value| value.is_finite())
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(from, to), value| (from.min(value), to.max(value)));
        let (from, to) = if from <= to { (from, to) } else { (0.0, 1.0) };
        let room = if to > from { 0.05 * (to - from) } else { 0.5 };
        Self { label: label.into(), from: from - room, to: to + room, logarithmic: false, names: Vec::new() }
    }

    /// Creates a categorical axis with one position per name.
    pub(super) fn of_names(label: impl Into<String>, names: Vec<String>) -> Self {
        let to = names.len() as f64 - 0.5;
        Self { label: label.into(), from: -0.5, to, logarithmic: false, names }
    }

    /// Creates an axis around positive values. It is logarithmic if they span more than a factor of
    /// twenty.
    pub(super) fn around_sizes(label: &str, values: impl Iterator<Item = f64> + Clone) -> Self {
        let least = values.clone().fold(f64::INFINITY, f64::min).max(1.0);
        let greatest = values.clone().fold(1.0, f64::max);
        if greatest <= 20.0 * least {
            return Self::around(label, values);
        }
        Self {
            label: format!("{label} (logarithmic)"),
            from: least / 1.3,
            to: greatest * 1.3,
            logarithmic: true,
            names: Vec::new(),
        }
    }
}

impl Layer {
    /// Returns name and swatch in the legend.
    pub(super) fn legend(&self) -> Option<(&str, Swatch)> {
        match self {
            Self::Line { name, look, .. } => Some((name.as_deref()?, Swatch::Line(*look))),
            Self::Bars { name, colour, .. } => Some((name.as_deref()?, Swatch::Area(*colour))),
            Self::Dots { name, colour, .. } => Some((name.as_deref()?, Swatch::Dot(*colour))),
            Self::Band { .. } | Self::Mark { .. } => None,
        }
    }
}

/// The symbol before a name in the legend.
pub(super) enum Swatch {
    Line(Look),
    Area(RGBColor),
    Dot(RGBColor),
}
