//! Draws charts with plotters.

use plotters::coord::ranged1d::ValueFormatter;
use plotters::coord::types::RangedCoordf64;
use plotters::coord::{Shift, ranged1d::Ranged};
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::chart::{Chart, Layer, Swatch};
use crate::canvas::{Drawing, Drawn, Scale};

const WIDTH: u32 = 760;
/// Of one chart; a figure of several is higher.
const HEIGHT: u32 = 400;
/// Of a chart among several.
const STACKED: u32 = 250;

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

fn draw_chart<DB: DrawingBackend>(area: &DrawingArea<DB, Shift>, chart: &Chart, scale: Scale) -> Drawn<DB> {
    let (legend, plot) = area.split_vertically(scale.px(30));
    draw_legend(&legend, chart, scale)?;
    let mut builder = ChartBuilder::on(&plot);
    builder
        .margin_top(scale.px(6))
        .margin_left(scale.px(10))
        .margin_right(scale.px(20))
        .margin_bottom(scale.px(6))
        .x_label_area_size(scale.px(44))
        .y_label_area_size(scale.px(62));
    let y = chart.y.from..chart.y.to;
    if chart.x.logarithmic {
        let x = (chart.x.from..chart.x.to).log_scale();
        draw_layers(&mut builder.build_cartesian_2d(x, y)?, chart, scale)
    } else {
        draw_layers(&mut builder.build_cartesian_2d(chart.x.from..chart.x.to, y)?, chart, scale)
    }
}

fn draw_legend<DB: DrawingBackend>(area: &DrawingArea<DB, Shift>, chart: &Chart, scale: Scale) -> Drawn<DB> {
    let style = scale.text(14, INK).pos(Pos::new(HPos::Left, VPos::Center));
    let px = |length: u32| scale.px(length) as i32;
    let (mut x, y) = (px(74), px(18));
    for (name, swatch) in chart.layers.iter().filter_map(Layer::legend) {
        match swatch {
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
                area.draw(&Rectangle::new(
                    [(x + px(4), y - px(6)), (x + px(24), y + px(6))],
                    colour.mix(0.55).filled(),
                ))?;
            }
            Swatch::Dot(colour) => area.draw(&Circle::new((x + px(18), y), px(4), colour.filled()))?,
        }
        area.draw(&Text::new(name.to_owned(), (x + px(32), y), style.clone()))?;
        let (width, _) = area.estimate_text_size(name, &style)?;
        x += px(54) + width as i32;
    }
    Ok(())
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
    context
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(RULE.stroke_width(scale.px(1)))
        .axis_style(SOFT.stroke_width(scale.px(1)))
        .set_all_tick_mark_size(scale.px(4))
        .label_style(scale.text(13, SOFT))
        .axis_desc_style(scale.text(14, INK))
        .x_labels(8)
        .y_labels(7)
        .x_label_formatter(&|x| tick(*x))
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
        Layer::Mark { x, colour, text } => {
            let ends = vec![(*x, chart.y.from), (*x, chart.y.to)];
            let (dash, gap) = (scale.px(3), scale.px(3));
            let stroke = colour.stroke_width(scale.px(1));
            context.draw_series(DashedLineSeries::new(ends, dash, gap, stroke))?;
            // On the side where there is room.
            let left = *x < (chart.x.from + chart.x.to) / 2.0;
            let (side, gap) = if left { (HPos::Left, 4) } else { (HPos::Right, -4) };
            let style = scale.text(12, *colour).pos(Pos::new(side, VPos::Top));
            let shift = (gap * scale.px(1) as i32, scale.px(3) as i32);
            let label = EmptyElement::at((*x, chart.y.to)) + Text::new(text.clone(), shift, style);
            context.draw_series([label])?;
        }
    }
    Ok(())
}

/// A number on an axis, without trailing zeros.
fn tick(value: f64) -> String {
    let text = format!("{value:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_carry_no_trailing_zeros() {
        assert_eq!([tick(20.0), tick(0.25), tick(-0.00001), tick(1e6)], ["20", "0.25", "0", "1000000"]);
    }
}
