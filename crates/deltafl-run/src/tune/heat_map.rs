//! A grid of values as an image. Darker is lower, and a frame marks the chosen value.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::drawing::{Drawing, Drawn, Scale};
use crate::text_table;

const INK: RGBColor = RGBColor(0x1b, 0x1d, 0x1f);
const SOFT: RGBColor = RGBColor(0x5c, 0x61, 0x66);
/// The colour of a cell without a value: the point diverged.
const NOTHING: RGBColor = RGBColor(0xe3, 0xe0, 0xda);
/// The colours of the lowest and highest values: one hue with increasing lightness, readable for
/// the colour-blind and in print.
const LOWEST: RGBColor = RGBColor(0x00, 0x4b, 0x75);
const HIGHEST: RGBColor = RGBColor(0xec, 0xf4, 0xf9);
/// Vermilion of Okabe and Ito's palette.
const CHOSEN: RGBColor = RGBColor(0xd5, 0x5e, 0x00);

/// Dimensions of the image.
const CELL: (u32, u32) = (92, 44);
const LEFT: u32 = 128;
const TOP: u32 = 56;
const BOTTOM: u32 = 70;
const RIGHT: u32 = 24;

/// A grid of values.
#[derive(Clone, Debug)]
pub struct HeatMap {
    /// The title.
    pub title: String,
    /// The parameter of the columns and its values.
    pub x: (&'static str, Vec<String>),
    /// The parameter of the rows and its values, from the top.
    pub y: (&'static str, Vec<String>),
    /// The values by row; `None` if a value is not finite.
    pub cells: Vec<Vec<Option<f64>>>,
    /// Row and column of each chosen cell.
    pub chosen: Vec<(usize, usize)>,
    /// The number of displayed decimals.
    pub decimals: usize,
}

impl Drawing for HeatMap {
    fn size(&self) -> (u32, u32) {
        let (columns, rows) = (self.x.1.len() as u32, self.y.1.len() as u32);
        (LEFT + CELL.0 * columns.max(4) + RIGHT, TOP + CELL.1 * rows + BOTTOM)
    }

    fn draw<DB: DrawingBackend>(&self, root: &DrawingArea<DB, Shift>, scale: Scale) -> Drawn<DB> {
        let text = |x: u32, y: u32, text: &str, size: u32, colour: RGBColor, place: Pos| {
            let style = scale.text(size, colour).pos(place);
            root.draw(&Text::new(text.to_owned(), (scale.px(x) as i32, scale.px(y) as i32), style))
        };
        let (left, middle) = (Pos::new(HPos::Left, VPos::Center), Pos::new(HPos::Center, VPos::Center));
        text(16, 18, &self.title, 15, INK, left)?;
        text(16, TOP - 14, self.y.0, 13, SOFT, left)?;
        for (r, row) in self.cells.iter().enumerate() {
            let y = TOP + CELL.1 * r as u32;
            let right = Pos::new(HPos::Right, VPos::Center);
            text(LEFT - 10, y + CELL.1 / 2, &self.y.1[r], 13, INK, right)?;
            for (c, &figure) in row.iter().enumerate() {
                self.cell(root, scale, (LEFT + CELL.0 * c as u32, y), figure)?;
            }
        }
        let below = TOP + CELL.1 * self.y.1.len() as u32;
        for (c, value) in self.x.1.iter().enumerate() {
            text(LEFT + CELL.0 * c as u32 + CELL.0 / 2, below + 14, value, 13, INK, middle)?;
        }
        let width = CELL.0 * self.x.1.len() as u32;
        text(LEFT + width / 2, below + 36, self.x.0, 13, SOFT, middle)?;
        text(16, below + 54, "Darker is lower; a frame marks the chosen value.", 12, SOFT, left)?;
        for &(r, c) in &self.chosen {
            let (x, y) = (LEFT + CELL.0 * c as u32, TOP + CELL.1 * r as u32);
            let corners = [(x, y), (x + CELL.0, y), (x + CELL.0, y + CELL.1), (x, y + CELL.1), (x, y)];
            let corners = corners.map(|(x, y)| (scale.px(x) as i32, scale.px(y) as i32));
            root.draw(&PathElement::new(corners.to_vec(), CHOSEN.stroke_width(scale.px(3))))?;
        }
        Ok(())
    }
}

impl HeatMap {
    fn cell<DB: DrawingBackend>(
        &self,
        root: &DrawingArea<DB, Shift>,
        scale: Scale,
        (x, y): (u32, u32),
        figure: Option<f64>,
    ) -> Drawn<DB> {
        let share = figure.map(|figure| self.share(figure));
        let colour = share.map_or(NOTHING, |share| mixed(LOWEST, HIGHEST, share));
        let at = |x: u32, y: u32| (scale.px(x) as i32, scale.px(y) as i32);
        root.draw(&Rectangle::new([at(x + 1, y + 1), at(x + CELL.0 - 1, y + CELL.1 - 1)], colour.filled()))?;
        let ink = if share.is_some_and(|share| share < 0.5) { WHITE } else { INK };
        let style = scale.text(14, ink).pos(Pos::new(HPos::Center, VPos::Center));
        let shown =
            figure.map_or_else(|| "diverged".to_owned(), |figure| text_table::number(figure, self.decimals));
        root.draw(&Text::new(shown, at(x + CELL.0 / 2, y + CELL.1 / 2), style))
    }

    /// Returns the position of a value between the lowest (0) and the highest (1) on a logarithmic
    /// scale. Values above four times the lowest count as the highest, so that one bad point does
    /// not hide the differences between good ones.
    fn share(&self, figure: f64) -> f64 {
        let all = || self.cells.iter().flatten().flatten().copied();
        let lowest = all().fold(f64::INFINITY, f64::min).max(f64::MIN_POSITIVE);
        let highest = all().fold(lowest, f64::max).min(4.0 * lowest);
        let span = (highest / lowest).ln();
        if span > 0.0 { ((figure.max(lowest) / lowest).ln() / span).min(1.0) } else { 0.0 }
    }
}

fn mixed(from: RGBColor, to: RGBColor, share: f64) -> RGBColor {
    let between = |a: u8, b: u8| (f64::from(a) + share * (f64::from(b) - f64::from(a))).round() as u8;
    RGBColor(between(from.0, to.0), between(from.1, to.1), between(from.2, to.2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bad_point_does_not_hide_the_differences_between_others() {
        let map = HeatMap {
            title: String::new(),
            x: ("", vec![String::new(); 4]),
            y: ("", vec![String::new()]),
            cells: vec![vec![Some(1.0), Some(2.0), Some(1e9), None]],
            chosen: Vec::new(),
            decimals: 1,
        };
        let percent = |figure: f64| (100.0 * map.share(figure)).round() as u32;
        assert_eq!([1.0, 2.0, 1e9].map(percent), [0, 50, 100]);
    }
}
