//! Draws charts with plotters.

use plotters::coord::ranged1d::ValueFormatter;
use plotters::coord::types::RangedCoordf64;
use plotters::coord::{Shift, ranged1d::Ranged};
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::chart::{Chart, Layer, Swatch};
use super::combined::FigureRow;
use crate::drawing::{Drawing, Drawn, Scale};

const WIDTH: u32 = 760;
/// Height of a single chart. A figure of several is higher.
const HEIGHT: u32 = 400;
/// Height of a chart among several.
const STACKED: u32 = 250;

/// Width and height of a chart in a grid.
const CELL: (u32, u32) = (380, 270);
/// Height of the title of a row in a grid.
const ROW_TITLE: u32 = 30;

/// Height of a row of the legend, and of its letters.
const LEGEND_ROW: u32 = 22;
const LEGEND_TEXT: u32 = 14;
/// Left edge of a legend row.
const LEGEND_LEFT: u32 = 74;
/// Space between two names.
const LEGEND_GAP: u32 = 22;
/// Width of the symbol before a name.
const SWATCH: u32 = 32;

const INK: RGBColor = RGBColor(0x1b, 0x1d, 0x1f);
const SOFT: RGBColor = RGBColor(0x5c, 0x61, 0x66);
const RULE: RGBColor = RGBColor(0xe3, 0xe0, 0xda);

/// Charts below each other.
pub(super) struct Stack<'a>(pub(super) &'a [Chart]);

impl Drawing for Stack<'_> {
    fn size(&self) -> (u32, u32) {
        (WIDTH, if self.0.len() == 1 { HEIGHT } else { STACKED * self.0.len() as u32 })
    }

    fn draw<DB: DrawingBackend>(&self, root: &DrawingArea<DB, Shift>, scale: Scale) -> Drawn<DB> {
        for (area, chart) in root.split_evenly((self.0.len(), 1)).iter().zip(self.0) {
            draw_chart(area, chart, scale)?;
        }
        Ok(())
    }
}

/// Rows of charts, each with a title.
pub(super) struct ChartGrid<'a>(pub(super) &'a [FigureRow]);

impl ChartGrid<'_> {
    fn columns(&self) -> usize {
        self.0.iter().map(|row| row.charts.len()).max().unwrap_or(1)
    }
}

impl Drawing for ChartGrid<'_> {
    fn size(&self) -> (u32, u32) {
        (CELL.0 * self.columns() as u32, (ROW_TITLE + CELL.1) * self.0.len() as u32)
    }

    fn draw<DB: DrawingBackend>(&self, root: &DrawingArea<DB, Shift>, scale: Scale) -> Drawn<DB> {
        for (area, row) in root.split_evenly((self.0.len(), 1)).iter().zip(self.0) {
            let (title, charts) = area.split_vertically(scale.px(ROW_TITLE));
            let style = scale.text(16, INK).pos(Pos::new(HPos::Left, VPos::Center));
            let at = (scale.px(14) as i32, scale.px(ROW_TITLE) as i32 / 2);
            title.draw(&Text::new(row.title.clone(), at, style))?;
            for (cell, chart) in charts.split_evenly((1, self.columns())).iter().zip(&row.charts) {
                draw_chart(cell, chart, scale)?;
            }
        }
        Ok(())
    }
}

fn draw_chart<DB: DrawingBackend>(area: &DrawingArea<DB, Shift>, chart: &Chart, scale: Scale) -> Drawn<DB> {
    let entries = legend_entries(area, chart, scale)?;
    let rows = entries.last().map_or(1, |entry| entry.row + 1);
    let (legend, plot) = area.split_vertically(scale.px(8 + LEGEND_ROW * rows));
    for entry in &entries {
        draw_legend_entry(&legend, entry, scale)?;
    }
    // Numbers of five characters leave room for the name of the axis.
    let longest =
        [chart.y.from, chart.y.to].map(|end| tick(end.trunc()).len()).into_iter().max().unwrap_or(0);
    let labels = 62 + 8 * longest.saturating_sub(5) as u32;
    let mut builder = ChartBuilder::on(&plot);
    builder
        .margin_top(scale.px(6))
        .margin_left(scale.px(10))
        .margin_right(scale.px(20))
        .margin_bottom(scale.px(6))
        .x_label_area_size(scale.px(44))
        .y_label_area_size(scale.px(labels));
    let y = chart.y.from..chart.y.to;
    if chart.x.logarithmic {
        let x = (chart.x.from..chart.x.to).log_scale();
        draw_layers(&mut builder.build_cartesian_2d(x, y)?, chart, scale)
    } else {
        draw_layers(&mut builder.build_cartesian_2d(chart.x.from..chart.x.to, y)?, chart, scale)
    }
}

/// A name in the legend and its position.
struct LegendEntry<'a> {
    name: &'a str,
    swatch: Swatch,
    /// Its left end, in units of length.
    x: u32,
    /// The row, counted from the top.
    row: u32,
}

/// Arranges the legend in rows as wide as the chart.
fn legend_entries<'a, DB: DrawingBackend>(
    area: &DrawingArea<DB, Shift>,
    chart: &'a Chart,
    scale: Scale,
) -> Result<Vec<LegendEntry<'a>>, DrawingAreaErrorKind<DB::ErrorType>> {
    let style = scale.text(LEGEND_TEXT, INK);
    let mut names = Vec::new();
    let mut widths = Vec::new();
    for (name, swatch) in chart.layers.iter().filter_map(Layer::legend) {
        let (width, _) = area.estimate_text_size(name, &style)?;
        widths.push(SWATCH + width / scale.px(1));
        names.push((name, swatch));
    }
    let places = wrapped(&widths, area.dim_in_pixel().0 / scale.px(1));
    let entry = |((name, swatch), (x, row))| LegendEntry { name, swatch, x, row };
    Ok(names.into_iter().zip(places).map(entry).collect())
}

/// Returns left edge and row of entries of these widths, in as many rows as required.
fn wrapped(widths: &[u32], line: u32) -> Vec<(u32, u32)> {
    let (mut x, mut row) = (LEGEND_LEFT, 0);
    let place = |&width: &u32| {
        if x > LEGEND_LEFT && x + width > line {
            (x, row) = (LEGEND_LEFT, row + 1);
        }
        let place = (x, row);
        x += width + LEGEND_GAP;
        place
    };
    widths.iter().map(place).collect()
}

fn draw_legend_entry<DB: DrawingBackend>(
    area: &DrawingArea<DB, Shift>,
    entry: &LegendEntry<'_>,
    scale: Scale,
) -> Drawn<DB> {
    let px = |length: u32| scale.px(length) as i32;
    let (x, y) = (px(entry.x), px(LEGEND_ROW * entry.row + 18));
    match &entry.swatch {
        Swatch::Line(look) => {
            let stroke = look.colour.stroke_width(scale.px(2));
            let ends = [(x, y), (x + px(26), y)];
            match look.dash {
                None => area.draw(&PathElement::new(ends.to_vec(), stroke))?,
                Some((dash, gap)) => {
                    area.draw(&DashedPathElement::new(ends, scale.px(dash), scale.px(gap), stroke))?;
                }
            }
        }
        Swatch::Area(colour) => {
            let corners = [(x + px(4), y - px(6)), (x + px(24), y + px(6))];
            area.draw(&Rectangle::new(corners, colour.mix(0.55).filled()))?;
        }
        Swatch::Dot(colour) => area.draw(&Circle::new((x + px(18), y), px(4), colour.filled()))?,
    }
    let style = scale.text(LEGEND_TEXT, INK).pos(Pos::new(HPos::Left, VPos::Center));
    area.draw(&Text::new(entry.name.to_owned(), (x + px(SWATCH), y), style))
}

/// Draws axes and layers on any pair of coordinates.
fn draw_layers<DB, X>(
    context: &mut ChartContext<'_, DB, Cartesian2d<X, RangedCoordf64>>,
    chart: &Chart,
    scale: Scale,
) -> Drawn<DB>
where
    DB: DrawingBackend,
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let wide = context.plotting_area().dim_in_pixel().0 > scale.px(450);
    context
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(RULE.stroke_width(scale.px(1)))
        .axis_style(SOFT.stroke_width(scale.px(1)))
        .set_all_tick_mark_size(scale.px(4))
        .label_style(scale.text(13, SOFT))
        .axis_desc_style(scale.text(14, INK))
        .x_labels(if chart.x.names.is_empty() { if wide { 8 } else { 5 } } else { chart.x.names.len() })
        .y_labels(7)
        .x_label_formatter(&|x| if chart.x.names.is_empty() { tick(*x) } else { named(&chart.x.names, *x) })
        .y_label_formatter(&|y| tick(*y))
        .x_desc(chart.x.label.as_str())
        .y_desc(chart.y.label.as_str())
        .draw()?;
    for layer in &chart.layers {
        draw_layer(context, chart, layer, scale)?;
    }
    Ok(())
}

fn draw_layer<DB, X>(
    context: &mut ChartContext<'_, DB, Cartesian2d<X, RangedCoordf64>>,
    chart: &Chart,
    layer: &Layer,
    scale: Scale,
) -> Drawn<DB>
where
    DB: DrawingBackend,
    X: Ranged<ValueType = f64>,
{
    let finite = |points: &[(f64, f64)]| -> Vec<(f64, f64)> {
        points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite()).collect()
    };
    match layer {
        Layer::Line { look, points, .. } => {
            let stroke = look.colour.stroke_width(scale.px(2));
            match look.dash {
                None => context.draw_series(LineSeries::new(finite(points), stroke))?,
                Some((dash, gap)) => {
                    let (dash, gap) = (scale.px(dash), scale.px(gap));
                    context.draw_series(DashedLineSeries::new(finite(points), dash, gap, stroke))?
                }
            };
            // A single point has no line.
            if let [only] = finite(points)[..] {
                context.draw_series([Circle::new(only, scale.px(3), look.colour.filled())])?;
            }
        }
        Layer::Band { colour, points } => {
            let lower = points.iter().map(|&(x, lower, _)| (x, lower));
            let upper = points.iter().rev().map(|&(x, _, upper)| (x, upper));
            let outline = finite(&lower.chain(upper).collect::<Vec<_>>());
            context.draw_series([Polygon::new(outline, colour.mix(0.15).filled())])?;
        }
        Layer::Bars { colour, width, bars, .. } => {
            let bar = |&(left, height): &(f64, f64)| {
                Rectangle::new([(left, 0.0), (left + width, height)], colour.mix(0.55).filled())
            };
            context.draw_series(bars.iter().filter(|bar| bar.1 > 0.0).map(bar))?;
        }
        Layer::Dots { colour, points, .. } => {
            let dot = |at: (f64, f64)| Circle::new(at, scale.px(3), colour.mix(0.5).filled());
            context.draw_series(finite(points).into_iter().map(dot))?;
        }
        Layer::Mark { x, look, text, place } => {
            let ends = vec![(*x, chart.y.from), (*x, chart.y.to)];
            let stroke = look.colour.stroke_width(scale.px(1));
            match look.dash {
                None => context.draw_series(LineSeries::new(ends, stroke))?,
                Some((dash, gap)) => {
                    context.draw_series(DashedLineSeries::new(ends, scale.px(dash), scale.px(gap), stroke))?
                }
            };
            let (side, gap) = if place.left { (HPos::Right, -4) } else { (HPos::Left, 4) };
            let style = scale.text(12, look.colour).pos(Pos::new(side, VPos::Top));
            let shift = (gap * scale.px(1) as i32, scale.px(3 + 14 * place.row) as i32);
            // White background, so that lines of other marks do not cross the text.
            let (width, height) = context.plotting_area().estimate_text_size(text, &style)?;
            let left = if place.left { shift.0 - width as i32 } else { shift.0 };
            let box_of_text = [(left, shift.1), (left + width as i32, shift.1 + height as i32)];
            let label = EmptyElement::at((*x, chart.y.to))
                + Rectangle::new(box_of_text, WHITE.filled())
                + Text::new(text.clone(), shift, style);
            context.draw_series([label])?;
        }
    }
    Ok(())
}

/// Returns the name at a position of a categorical axis, or an empty string between positions.
fn named(names: &[String], x: f64) -> String {
    let place = x.round();
    let name = if (x - place).abs() < 1e-6 && place >= 0.0 { names.get(place as usize) } else { None };
    name.map_or_else(String::new, |name| {
        if name.chars().count() > 14 { name.chars().take(13).chain(['…']).collect() } else { name.clone() }
    })
}

/// Formats a number on an axis without trailing zeros. Long numbers use scientific notation.
fn tick(value: f64) -> String {
    let without_zeros = |text: &str| text.trim_end_matches('0').trim_end_matches('.').to_owned();
    let size = value.abs();
    if size >= 1e7 || (size < 1e-3 && size > 1e-9) {
        let text = format!("{value:.3e}");
        let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
        return format!("{}e{power}", without_zeros(digits));
    }
    let text = without_zeros(&format!("{value:.4}"));
    if text == "-0" { "0".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wide_legend_continues_in_the_next_row() {
        let places = wrapped(&[200, 200, 200, 900, 100], 700);
        assert_eq!(places, [(74, 0), (296, 0), (74, 1), (74, 2), (74, 3)]);
        let line = 700;
        let fits = |(&width, &(x, _)): (&u32, &(u32, u32))| x + width <= line || x == LEGEND_LEFT;
        assert!([200, 200, 200, 900, 100].iter().zip(&places).all(fits));
    }

    #[test]
    fn ticks_have_no_trailing_zeros() {
        assert_eq!([tick(20.0), tick(0.25), tick(-1e-12), tick(1e6)], ["20", "0.25", "0", "1000000"]);
        assert_eq!([tick(8e10), tick(-8.5e10), tick(2.5e-5)], ["8e10", "-8.5e10", "2.5e-5"]);
    }
}
