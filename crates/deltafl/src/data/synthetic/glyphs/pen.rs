//! A pen on paper: smooth curves through knots, drawn as anti-aliased ink.

use super::strokes::Knot;

/// Pixels per side of an image.
pub const SIDE: usize = 28;

/// Chords per span between two knots, each of about a pixel.
const PIECES: usize = 4;

/// A point on the paper, in pixels. y grows downwards.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct PenPoint {
    pub(super) x: f32,
    pub(super) y: f32,
}

/// The curve of the pen as chords.
#[derive(Debug, Default)]
pub(super) struct Trace {
    points: Vec<PenPoint>,
    /// The end of each stroke in `points`.
    ends: Vec<usize>,
}

impl Trace {
    /// Removes all strokes.
    pub(super) fn clear(&mut self) {
        self.points.clear();
        self.ends.clear();
    }

    /// Adds a stroke: a Catmull–Rom curve through the knots, with breaks at the corners.
    pub(super) fn stroke(&mut self, knots: &[Knot], closed: bool) {
        let n = knots.len();
        let corner = |i: usize| knots[i].corner || (!closed && (i == 0 || i + 1 == n));
        let at = |i: usize| PenPoint { x: knots[i % n].x, y: knots[i % n].y };
        let spans = if closed { n } else { n - 1 };
        self.points.push(at(0));
        for i in 0..spans {
            let (from, to) = (at(i), at(i + 1));
            let before = if corner(i) { from.mirrored_at(to) } else { at(i + n - 1) };
            let after = if corner((i + 1) % n) { to.mirrored_at(from) } else { at(i + 2) };
            for piece in 1..=PIECES {
                let t = piece as f32 / PIECES as f32;
                self.points.push(catmull_rom([before, from, to, after], t));
            }
        }
        self.ends.push(self.points.len());
    }

    /// Moves every point.
    pub(super) fn map(&mut self, mut f: impl FnMut(PenPoint) -> PenPoint) {
        self.points.iter_mut().for_each(|point| *point = f(*point));
    }

    /// Returns the smallest and the largest coordinates.
    pub(super) fn bounds(&self) -> (PenPoint, PenPoint) {
        let first = self.points.first().copied().unwrap_or_default();
        self.points.iter().fold((first, first), |(low, high), point| {
            (
                PenPoint { x: low.x.min(point.x), y: low.y.min(point.y) },
                PenPoint { x: high.x.max(point.x), y: high.y.max(point.y) },
            )
        })
    }

    /// Draws the trace with a round nib of this radius: 255 is paper, 0 is ink.
    pub(super) fn draw(&self, radius: f32, ink: f32, image: &mut [u8]) {
        let mut nearest = [f32::INFINITY; SIDE * SIDE]; // squared distance to the trace
        let mut start = 0;
        for &end in &self.ends {
            for chord in self.points[start..end].windows(2) {
                mark(chord[0], chord[1], radius + 1.0, &mut nearest);
            }
            start = end;
        }
        for (pixel, squared) in image.iter_mut().zip(nearest) {
            // The nib covers a pixel whose centre is half a pixel inside its rim, and half of a
            // pixel on it.
            let cover = (radius + 0.5 - squared.sqrt()).clamp(0.0, 1.0);
            *pixel = (255.0 * (1.0 - ink * cover)).round() as u8;
        }
    }
}

impl PenPoint {
    /// Returns the reflection of `other` at `self`.
    fn mirrored_at(self, other: Self) -> Self {
        Self { x: 2.0 * self.x - other.x, y: 2.0 * self.y - other.y }
    }
}

/// Returns the point at t ∈ [0, 1] between the second and the third of four knots.
fn catmull_rom(p: [PenPoint; 4], t: f32) -> PenPoint {
    let (t2, t3) = (t * t, t * t * t);
    let weights = [
        0.5 * (-t3 + 2.0 * t2 - t),
        0.5 * (3.0 * t3 - 5.0 * t2 + 2.0),
        0.5 * (-3.0 * t3 + 4.0 * t2 + t),
        0.5 * (t3 - t2),
    ];
    p.iter().zip(weights).fold(PenPoint::default(), |sum, (point, weight)| PenPoint {
        x: sum.x + weight * point.x,
        y: sum.y + weight * point.y,
    })
}

/// Lowers the squared distance of the pixels within `reach` of the chord from a to b.
fn mark(a: PenPoint, b: PenPoint, reach: f32, nearest: &mut [f32; SIDE * SIDE]) {
    let pixels = |low: f32, high: f32| {
        let first = (low - reach).floor().clamp(0.0, SIDE as f32) as usize;
        let last = (high + reach).ceil().clamp(0.0, SIDE as f32) as usize;
        first..last
    };
    let (dx, dy) = (b.x - a.x, b.y - a.y);
    let per_length = 1.0 / (dx * dx + dy * dy).max(1e-12);
    for row in pixels(a.y.min(b.y), a.y.max(b.y)) {
        let y = row as f32 + 0.5 - a.y;
        for column in pixels(a.x.min(b.x), a.x.max(b.x)) {
            let x = column as f32 + 0.5 - a.x;
            let along = ((x * dx + y * dy) * per_length).clamp(0.0, 1.0);
            let (off_x, off_y) = (x - along * dx, y - along * dy);
            let pixel = &mut nearest[row * SIDE + column];
            *pixel = pixel.min(off_x * off_x + off_y * off_y);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn knot(x: f32, y: f32) -> Knot {
        Knot { x, y, corner: false }
    }

    #[test]
    fn a_horizontal_line_inks_the_rows_under_the_nib() {
        let mut trace = Trace::default();
        trace.stroke(&[knot(5.0, 14.0), knot(20.0, 14.0)], false);
        let mut image = [0; SIDE * SIDE];
        trace.draw(1.0, 1.0, &mut image);
        let column = |row: usize| image[row * SIDE + 12];
        // The line follows the edge between rows 13 and 14, half a pixel from both centres.
        assert_eq!([12, 13, 14, 15].map(column), [255, 0, 0, 255]);
        assert_eq!(image[13 * SIDE], 255);
    }

    #[test]
    fn a_closed_curve_returns_to_its_first_knot() {
        let mut trace = Trace::default();
        trace.stroke(&[knot(5.0, 5.0), knot(20.0, 5.0), knot(20.0, 20.0), knot(5.0, 20.0)], true);
        assert_eq!(trace.points.first(), trace.points.last());
    }

    #[test]
    fn a_curve_passes_through_its_knots() {
        let mut trace = Trace::default();
        trace.stroke(&[knot(5.0, 5.0), knot(20.0, 7.0), knot(9.0, 20.0)], false);
        assert!(trace.points.contains(&PenPoint { x: 20.0, y: 7.0 }));
    }
}
