//! The picture of a field: the mean error against the 90th percentile, with the Pareto front.
//!
//! A cross shows the intervals of a method. Methods are numbered by their 90th percentile, and the
//! legend lists their names. A method far from the others is only listed, so that it does not
//! compress the scale.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::results::{FieldResults, MethodResult};
use crate::drawing::{Drawing, Drawn, Scale};
use crate::text_table;

const INK: RGBColor = RGBColor(0x1b, 0x1d, 0x1f);
const SOFT: RGBColor = RGBColor(0x5c, 0x61, 0x66);
const FAINT: RGBColor = RGBColor(0xd9, 0xd6, 0xd0);
/// Colours of Okabe and Ito's palette.
const DELTA: RGBColor = RGBColor(0x00, 0x72, 0xb2);
const FRONT: RGBColor = RGBColor(0xd5, 0x5e, 0x00);
const OTHER: RGBColor = RGBColor(0x6b, 0x6f, 0x73);

/// Dimensions of the image.
const PLOT: (u32, u32) = (560, 460);
const LEFT: u32 = 74;
const TOP: u32 = 52;
const BOTTOM: u32 = 62;
const LEGEND: u32 = 268;
const LINE: u32 = 17;

/// The picture.
pub(super) struct FieldPicture<'a> {
    results: &'a FieldResults,
    x: Axis,
    y: Axis,
}

/// The range of an axis, in displayed units.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Axis {
    from: f64,
    to: f64,
}

impl Axis {
    /// Returns an axis around the better three quarters of the values, and those near them.
    fn around(values: impl Iterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let Some((&least, &greatest)) = sorted.first().zip(sorted.last()) else {
            return Self { from: 0.0, to: 1.0 };
        };
        let near = sorted[((sorted.len() - 1) * 3).div_ceil(4)];
        let limit = near + 2.0 * (near - least);
        let shown = sorted.iter().rev().find(|value| **value <= limit).copied().unwrap_or(greatest);
        let room = if shown > least { 0.12 * (shown - least) } else { 0.05 * least.abs().max(1e-3) };
        Self { from: least - room, to: shown + room }
    }

    fn contains(self, value: f64) -> bool {
        (self.from..=self.to).contains(&value)
    }

    /// Returns the position of a value between 0 and 1.
    fn share(self, value: f64) -> f64 {
        (value.clamp(self.from, self.to) - self.from) / (self.to - self.from)
    }

    /// Returns round values inside of the range.
    fn ticks(self) -> Vec<f64> {
        let rough = (self.to - self.from) / 6.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        let first = (self.from / step).ceil() as i64;
        (first..).map(|i| i as f64 * step).take_while(|tick| *tick <= self.to).collect()
    }
}

impl<'a> FieldPicture<'a> {
    pub(super) fn new(results: &'a FieldResults) -> Self {
        let shown = |figure: fn(&MethodResult) -> f64| {
            Axis::around(results.methods.iter().map(|method| results.scale * figure(method)))
        };
        Self { results, x: shown(|method| method.mean.value), y: shown(|method| method.p90.value) }
    }

    /// Returns the position in the image, in units of length.
    fn place(&self, x: f64, y: f64) -> (f64, f64) {
        let (x, y) = (self.x.share(x), 1.0 - self.y.share(y));
        (f64::from(LEFT) + x * f64::from(PLOT.0), f64::from(TOP) + y * f64::from(PLOT.1))
    }

    fn point(&self, method: &MethodResult) -> [f64; 2] {
        [self.results.scale * method.mean.value, self.results.scale * method.p90.value]
    }

    fn is_shown(&self, method: &MethodResult) -> bool {
        let [x, y] = self.point(method);
        self.x.contains(x) && self.y.contains(y)
    }
}

fn colour(method: &MethodResult) -> RGBColor {
    if method.kind.starts_with("delta-fl") {
        DELTA
    } else if method.on_front {
        FRONT
    } else {
        OTHER
    }
}

impl Drawing for FieldPicture<'_> {
    fn size(&self) -> (u32, u32) {
        let legend = TOP + LINE * (self.results.methods.len() as u32 + 3);
        (LEFT + PLOT.0 + LEGEND, (TOP + PLOT.1 + BOTTOM).max(legend))
    }

    fn draw<DB: DrawingBackend>(&self, root: &DrawingArea<DB, Shift>, scale: Scale) -> Drawn<DB> {
        let px = |(x, y): (f64, f64)| {
            let unit = f64::from(scale.px(1));
            ((x * unit).round() as i32, (y * unit).round() as i32)
        };
        let text = |at: (f64, f64), text: &str, size: u32, colour: RGBColor, h: HPos, v: VPos| {
            root.draw(&Text::new(text.to_owned(), px(at), scale.text(size, colour).pos(Pos::new(h, v))))
        };
        let line = |from: (f64, f64), to: (f64, f64), colour: RGBColor, width: u32| {
            root.draw(&PathElement::new(vec![px(from), px(to)], colour.stroke_width(scale.px(width))))
        };
        let results = self.results;
        let (left, bottom) = (f64::from(LEFT), f64::from(TOP + PLOT.1));
        let right = f64::from(LEFT + PLOT.0);
        let title = format!("{}, {} model, {} rounds", results.dataset, results.model, results.rounds);
        text((16.0, 20.0), &title, 15, INK, HPos::Left, VPos::Center)?;
        for tick in self.x.ticks() {
            let (x, _) = self.place(tick, self.y.from);
            line((x, f64::from(TOP)), (x, bottom), FAINT, 1)?;
            text((x, bottom + 14.0), &label(tick, self.x), 12, SOFT, HPos::Center, VPos::Center)?;
        }
        for tick in self.y.ticks() {
            let (_, y) = self.place(self.x.from, tick);
            line((left, y), (right, y), FAINT, 1)?;
            text((left - 8.0, y), &label(tick, self.y), 12, SOFT, HPos::Right, VPos::Center)?;
        }
        let axis = |figure: &str| format!("{figure} of the test {}", results.metric);
        text(((left + right) / 2.0, bottom + 36.0), &axis("mean"), 13, INK, HPos::Center, VPos::Center)?;
        text((16.0, f64::from(TOP) - 12.0), &axis("90th percentile"), 13, INK, HPos::Left, VPos::Center)?;

        // The front, as steps: a method on it is better than everything above and to the right.
        let mut front: Vec<[f64; 2]> = results
            .methods
            .iter()
            .filter(|m| m.on_front && self.is_shown(m))
            .map(|m| self.point(m))
            .collect();
        front.sort_by(|a, b| a[0].total_cmp(&b[0]));
        for pair in front.windows(2) {
            let ([x0, y0], [x1, y1]) = (pair[0], pair[1]);
            line(self.place(x0, y0), self.place(x1, y0), FRONT, 1)?;
            line(self.place(x1, y0), self.place(x1, y1), FRONT, 1)?;
        }
        for method in results.methods.iter().filter(|method| self.is_shown(method)) {
            let [x, y] = self.point(method);
            let pale = RGBColor(0xc4, 0xc1, 0xbb);
            let [low, high] = method.mean.interval.map(|bound| self.place(results.scale * bound, y));
            line(low, high, pale, 1)?;
            let [low, high] = method.p90.interval.map(|bound| self.place(x, results.scale * bound));
            line(low, high, pale, 1)?;
        }
        let mut labels: Vec<(f64, f64)> = Vec::new();
        for (m, method) in results.methods.iter().enumerate() {
            if !self.is_shown(method) {
                continue;
            }
            let [x, y] = self.point(method);
            let at = self.place(x, y);
            let radius = scale.px(if method.on_front { 5 } else { 4 }) as i32;
            root.draw(&Circle::new(px(at), radius, colour(method).filled()))?;
            // The first of eight places around the dot that no other number occupies.
            let around =
                [(11.0, -9.0), (-11.0, -9.0), (11.0, 10.0), (-11.0, 10.0), (15.0, 0.0), (-15.0, 0.0)];
            let more =
                [(0.0, -15.0), (0.0, 16.0), (24.0, -18.0), (-24.0, -18.0), (24.0, 19.0), (-24.0, 19.0)];
            let is_free = |place: &(f64, f64)| {
                labels
                    .iter()
                    .all(|other| (other.0 - place.0).abs() > 13.0 || (other.1 - place.1).abs() > 12.0)
            };
            let mut places = around.iter().chain(&more).map(|(dx, dy)| (at.0 + dx, at.1 + dy));
            let place = places.find(is_free).unwrap_or((at.0 + 11.0, at.1 - 9.0));
            labels.push(place);
            text(place, &(m + 1).to_string(), 12, colour(method), HPos::Center, VPos::Center)?;
        }
        self.legend(root, scale)
    }
}

impl FieldPicture<'_> {
    fn legend<DB: DrawingBackend>(&self, root: &DrawingArea<DB, Shift>, scale: Scale) -> Drawn<DB> {
        let x = (LEFT + PLOT.0 + 18) as i32;
        let text = |x: i32, row: u32, text: String, colour: RGBColor, h: HPos| {
            let at = (scale.px(x as u32) as i32, scale.px(TOP + LINE * row) as i32);
            let style = scale.text(12, colour).pos(Pos::new(h, VPos::Center));
            root.draw(&Text::new(text, at, style))
        };
        for (m, method) in self.results.methods.iter().enumerate() {
            let row = m as u32;
            text(x + 16, row, (m + 1).to_string(), colour(method), HPos::Right)?;
            let beyond = if self.is_shown(method) { "" } else { " (outside)" };
            text(x + 24, row, format!("{}{beyond}", method.name), colour(method), HPos::Left)?;
        }
        let below = self.results.methods.len() as u32;
        text(x, below + 1, "line: Pareto front; crosses: 95 % intervals".to_owned(), SOFT, HPos::Left)?;
        text(x, below + 2, "over splits and devices".to_owned(), SOFT, HPos::Left)
    }
}

/// Formats a tick with as many decimals as the range needs.
fn label(tick: f64, axis: Axis) -> String {
    let decimals = (1.0 - (axis.to - axis.from).log10().floor()).clamp(0.0, 6.0) as usize;
    text_table::number(tick, decimals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_method_far_from_the_others_does_not_compress_the_scale() {
        let axis = Axis::around([1.0, 1.1, 1.2, 1.25, 1.3, 90.0].into_iter());
        assert!(axis.contains(1.0) && axis.contains(1.3) && !axis.contains(90.0), "{axis:?}");
        let all = Axis::around([1.0, 1.1, 1.2, 1.4].into_iter());
        assert!(all.contains(1.0) && all.contains(1.4), "{all:?}");
        assert!(Axis::around([2.0, f64::INFINITY].into_iter()).contains(2.0));
    }

    #[test]
    fn ticks_are_round_and_inside_of_the_range() {
        let ticks = Axis { from: 12.3, to: 18.9 }.ticks();
        assert_eq!(ticks, [14.0, 16.0, 18.0]);
    }
}
