//! The Gaussian-mixture figure of the paper (figure 3). Its three panels show the positions of the
//! models, the mixtures on which each model is better, and the losses over P_θ.

use std::path::{Path, PathBuf};

use deltafl::illustration::{Illustration, MixtureLoss, Point};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::drawing::{self, Drawing, Drawn, Scale};
use crate::error::{create_folder, write_file};
use crate::report::ReportError;

const INK: RGBColor = RGBColor(0x1b, 0x1d, 0x1f);
const RULE: RGBColor = RGBColor(0xc9, 0xc6, 0xc0);
/// Blue and vermilion of Okabe and Ito's colour-blind-safe palette.
const FULL: RGBColor = RGBColor(0x00, 0x72, 0xb2);
const THETA: RGBColor = RGBColor(0xd5, 0x5e, 0x00);

/// Draws the figure as `illustration.svg` and `illustration.png` in a folder. Returns the paths.
///
/// # Errors
///
/// Fails if a file cannot be drawn or written.
pub fn write_illustration(illustration: &Illustration, out: &Path) -> Result<[PathBuf; 2], ReportError> {
    create_folder(out)?;
    let panels = Panels(illustration);
    let paths = ["illustration.svg", "illustration.png"].map(|name| out.join(name));
    write_file(&paths[0], drawing::svg(&panels)?)?;
    write_file(&paths[1], drawing::png(&panels)?)?;
    Ok(paths)
}

/// The figure.
struct Panels<'a>(&'a Illustration);

impl Drawing for Panels<'_> {
    fn size(&self) -> (u32, u32) {
        (1140, 380)
    }

    fn draw<DB: DrawingBackend>(&self, root: &DrawingArea<DB, Shift>, scale: Scale) -> Drawn<DB> {
        let panels = root.split_evenly((1, 3));
        let title = |area: &DrawingArea<DB, Shift>, text: &str| {
            let style = scale.text(15, INK).pos(Pos::new(HPos::Center, VPos::Top));
            let middle = (area.dim_in_pixel().0 / 2) as i32;
            area.draw(&Text::new(text.to_owned(), (middle, scale.px(12) as i32), style))
        };
        title(&panels[0], "Devices and models")?;
        title(&panels[1], "Which model is better on a mixture π")?;
        title(&panels[2], &format!("Loss on mixtures of P_θ, θ = {:.2}", self.0.theta.get()))?;
        let below = |area: &DrawingArea<DB, Shift>| {
            area.margin(scale.px(40), scale.px(14), scale.px(18), scale.px(18))
        };
        self.positions(&below(&panels[0]), scale)?;
        self.simplex(&below(&panels[1]), scale)?;
        self.histogram(&below(&panels[2]), scale)
    }
}

impl Panels<'_> {
    /// Draws the left panel: the means μ_k, w₁ and w_θ.
    fn positions<DB: DrawingBackend>(&self, area: &DrawingArea<DB, Shift>, scale: Scale) -> Drawn<DB> {
        let mut chart = ChartBuilder::on(area).build_cartesian_2d(-0.7..4.7, -2.0..3.2)?;
        let at = |p: Point| (p[0], p[1]);
        let [a, b, c] = self.0.means.map(at);
        let side = ShapeStyle::from(&RULE).stroke_width(scale.px(1));
        chart.draw_series([PathElement::new(vec![a, b, c, a], side)])?;
        let dot = |point, colour: RGBColor| Circle::new(point, scale.px(5), colour.filled());
        let name = |text: &str, (x, y): (f64, f64), colour, above: bool| {
            let place = Pos::new(HPos::Center, if above { VPos::Bottom } else { VPos::Top });
            let y = if above { y + 0.14 } else { y - 0.14 };
            Text::new(text.to_owned(), (x, y), scale.text(14, colour).pos(place))
        };
        for (k, &mean) in self.0.means.iter().enumerate() {
            let mean = at(mean);
            chart.draw_series([dot(mean, INK)])?;
            chart.draw_series([name(&format!("device {}", k + 1), mean, INK, k == 1)])?;
        }
        let (full, theta) = (at(self.0.w_full), at(self.0.w_theta));
        chart.draw_series([dot(full, FULL), dot(theta, THETA)])?;
        chart.draw_series([name("model of θ = 1", full, FULL, true)])?;
        let label = format!("model of θ = {:.2}", self.0.theta.get());
        chart.draw_series([name(&label, theta, THETA, false)])?;
        Ok(())
    }

    /// Draws the middle panel: the simplex of mixtures, coloured by the model with the smaller
    /// loss, and the border of P_θ.
    fn simplex<DB: DrawingBackend>(&self, area: &DrawingArea<DB, Shift>, scale: Scale) -> Drawn<DB> {
        let mut chart = ChartBuilder::on(area).build_cartesian_2d(-0.12..1.12, -0.22..1.0)?;
        let gap = |mixture: &MixtureLoss| mixture.full - mixture.theta;
        let largest = self.0.simplex.iter().map(|m| gap(m).abs()).fold(f64::MIN_POSITIVE, f64::max);
        let dots = self.0.simplex.iter().map(|mixture| {
            let share = gap(mixture) / largest;
            let colour = if share > 0.0 { THETA } else { FULL };
            let style = colour.mix(0.12 + 0.88 * share.abs()).filled();
            Circle::new(corner_to_plane(mixture.pi), scale.px(3), style)
        });
        chart.draw_series(dots)?;
        let frame = ShapeStyle::from(&INK).stroke_width(scale.px(2));
        chart.draw_series([PathElement::new(frame_of_p_theta(self.0.theta.get()), frame)])?;
        let name = |text: &str, pi, place| {
            Text::new(text.to_owned(), corner_to_plane(pi), scale.text(13, INK).pos(place))
        };
        let below = Pos::new(HPos::Center, VPos::Top);
        chart.draw_series([
            name("  only device 1", [1.0, -0.05, 0.05], below),
            name("only device 3  ", [0.05, -0.05, 1.0], below),
            name("only device 2", [-0.025, 1.05, -0.025], Pos::new(HPos::Center, VPos::Bottom)),
        ])?;
        let legend =
            |text: &str, x, colour| Text::new(text.to_owned(), (x, -0.16), scale.text(13, colour).pos(below));
        chart.draw_series([
            legend("θ = 1 better", 0.15, FULL),
            legend("frame: P_θ", 0.5, INK),
            legend(&format!("θ = {:.2} better", self.0.theta.get()), 0.85, THETA),
        ])?;
        Ok(())
    }

    /// Draws the right panel: the losses of both models over mixtures drawn from P_θ.
    fn histogram<DB: DrawingBackend>(&self, area: &DrawingArea<DB, Shift>, scale: Scale) -> Drawn<DB> {
        let histogram = &self.0.histogram;
        let highest = histogram.full.iter().chain(&histogram.theta).copied().max().unwrap_or(1);
        let (from, to) = (histogram.edges[0], histogram.edges[histogram.edges.len() - 1]);
        let mut chart = ChartBuilder::on(area)
            .x_label_area_size(scale.px(40))
            .y_label_area_size(scale.px(48))
            .build_cartesian_2d(from..to, 0.0..1.12 * f64::from(highest))?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(RULE.mix(0.6).stroke_width(scale.px(1)))
            .axis_style(ShapeStyle::from(&RULE).stroke_width(scale.px(1)))
            .label_style(scale.text(12, INK))
            .axis_desc_style(scale.text(13, INK))
            .x_desc("loss")
            .y_desc("mixtures")
            .y_label_formatter(&|count| format!("{count:.0}"))
            .draw()?;
        for (counts, colour, text) in [
            (&histogram.full, FULL, "model of θ = 1".to_owned()),
            (&histogram.theta, THETA, format!("model of θ = {:.2}", self.0.theta.get())),
        ] {
            let bar = |(i, &count): (usize, &u32)| {
                let (left, right) = (histogram.edges[i], histogram.edges[i + 1]);
                Rectangle::new([(left, 0.0), (right, f64::from(count))], colour.mix(0.45).filled())
            };
            chart
                .draw_series(counts.iter().enumerate().map(bar))?
                .label(text)
                .legend(move |(x, y)| Circle::new((x + scale.px(8) as i32, y), scale.px(5), colour.filled()));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .label_font(scale.text(13, INK))
            .legend_area_size(scale.px(22))
            .margin(scale.px(8))
            .draw()
    }
}

/// Maps a mixture to a point in a triangle with devices 1 and 3 at the bottom.
fn corner_to_plane(pi: [f64; 3]) -> (f64, f64) {
    (0.5 * pi[1] + pi[2], 0.866 * pi[1])
}

/// Returns the border of P_θ = { π : π_k ≤ 1/(3θ) }, a polygon inside the simplex.
fn frame_of_p_theta(theta: f64) -> Vec<(f64, f64)> {
    let most = (1.0 / (3.0 * theta)).min(1.0);
    let rest = 1.0 - most;
    let mut corners = Vec::new();
    for (k, next, last) in [(0, 1, 2), (1, 2, 0), (2, 0, 1)] {
        // With π_k at its bound, the others share the rest, each below the bound as well.
        for of_next in [(rest - most).max(0.0), rest.min(most)] {
            let mut pi = [0.0; 3];
            (pi[k], pi[next], pi[last]) = (most, of_next, rest - of_next);
            corners.push(corner_to_plane(pi));
        }
    }
    let (x, y) = corners.iter().fold((0.0, 0.0), |(x, y), c| (x + c.0 / 6.0, y + c.1 / 6.0));
    corners.sort_by(|a, b| (a.1 - y).atan2(a.0 - x).total_cmp(&(b.1 - y).atan2(b.0 - x)));
    corners.push(corners[0]);
    corners
}
