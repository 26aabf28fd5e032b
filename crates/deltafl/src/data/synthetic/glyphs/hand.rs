//! A writer's hand: the transformation of a skeleton into a writer's letter, and of a letter into
//! one drawing.
//!
//! ```text
//! knots ─▶ + the writer's own shape ─▶ + jitter ─▶ curve ─▶ size, slant, turn ─▶ + tremor ─▶ ink
//!             (fixed per letter)      (per drawing)                              (per drawing)
//! ```
//!
//! Most hands are similar. A minority writes in one of three other styles: letters that lean
//! backwards, turned paper, or a heavy pen.

use super::pen::{PenPoint, SIDE, Trace};
use super::strokes::{self, CLASSES, Knot, MAX_KNOTS};
use crate::stream::Stream;

/// The style of a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Manner {
    /// The usual style.
    Usual,
    /// Letters that lean far to the left.
    Backhand,
    /// Turned paper.
    Turned,
    /// A heavy pen, with smaller letters that lean to the left.
    Heavy,
}

impl Manner {
    /// The styles of the minority.
    pub(super) const ODD: [Self; 3] = [Self::Backhand, Self::Turned, Self::Heavy];

    /// Returns the suffix of the writer's identity, empty for the usual style.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            Self::Usual => "",
            Self::Backhand => "-backhand",
            Self::Turned => "-turned",
            Self::Heavy => "-heavy",
        }
    }
}

/// A writer's hand.
#[derive(Debug)]
pub(super) struct Hand {
    /// Tangent of the angle from the vertical; positive leans to the right.
    slant: f32,
    /// The rotation of the whole letter, in radians.
    turn: f32,
    /// Height of a capital, in pixels.
    height: f32,
    /// The width relative to the skeleton.
    aspect: f32,
    /// Radius of the nib, in pixels.
    pen: f32,
    /// Darkness of the ink, up to 1.
    ink: f32,
    /// The standard deviation of a knot between drawings, in hundredths of the height.
    jitter: f32,
    /// The standard deviation of a chord's end, in pixels.
    tremor: f32,
    /// The writer's offset of letters from the centre, in pixels.
    drift: PenPoint,
    /// The writer's shape of each class, and its deviation from the skeleton.
    letters: Vec<WriterLetter>,
}

/// A writer's version of one class.
#[derive(Debug)]
struct WriterLetter {
    shape: usize,
    offsets: [PenPoint; MAX_KNOTS],
}

/// Memory for one drawing, reused.
#[derive(Debug, Default)]
pub(super) struct DrawingBuffer {
    knots: Vec<Knot>,
    trace: Trace,
}

impl Hand {
    /// Draws a hand of this style.
    pub(super) fn new(manner: Manner, stream: &mut Stream) -> Self {
        let mut normal = |mean: f32, deviation: f32| mean + deviation * stream.normal() as f32;
        let mut hand = Self {
            slant: normal(0.12, 0.08),
            turn: normal(0.0, 0.05),
            height: normal(15.5, 0.7).clamp(13.0, 18.0),
            aspect: normal(1.0, 0.08).clamp(0.75, 1.3),
            pen: normal(0.95, 0.18).clamp(0.65, 1.4),
            ink: normal(0.95, 0.05).clamp(0.75, 1.0),
            jitter: normal(2.0, 0.5).clamp(1.0, 4.0),
            tremor: normal(0.10, 0.03).clamp(0.02, 0.25),
            drift: PenPoint { x: normal(0.0, 0.3), y: normal(0.0, 0.3) },
            letters: Vec::new(),
        };
        match manner {
            Manner::Usual => {}
            Manner::Backhand => hand.slant = normal(-0.65, 0.08),
            Manner::Turned => hand.turn = normal(-0.60, 0.07),
            Manner::Heavy => {
                hand.pen = normal(1.5, 0.12).clamp(1.2, 1.8);
                hand.height = normal(14.0, 0.6).clamp(12.5, 15.5);
                hand.slant = normal(-0.50, 0.08);
            }
        }
        let (usual, own) = if manner == Manner::Usual { (0.92, 1.5) } else { (0.85, 2.2) };
        hand.letters = (0..CLASSES).map(|class| WriterLetter::new(class, usual, own, stream)).collect();
        hand
    }

    /// Draws a symbol of a class with this hand.
    pub(super) fn draw(
        &self,
        class: usize,
        sheet: &mut DrawingBuffer,
        stream: &mut Stream,
        image: &mut [u8],
    ) {
        let letter = &self.letters[class];
        sheet.trace.clear();
        let mut offsets = letter.offsets.iter();
        for stroke in &strokes::shapes(class)[letter.shape].strokes {
            sheet.knots.clear();
            sheet.knots.extend(stroke.knots.iter().zip(&mut offsets).map(|(knot, own)| Knot {
                x: knot.x + own.x + self.jitter * stream.normal() as f32,
                y: knot.y + own.y + self.jitter * stream.normal() as f32,
                corner: knot.corner,
            }));
            sheet.trace.stroke(&sheet.knots, stroke.closed);
        }
        self.place(&mut sheet.trace, stream);
        let pen = self.pen * (1.0 + 0.06 * stream.normal() as f32);
        sheet.trace.draw(pen, self.ink, image);
    }

    /// Scales, slants and rotates a trace, and centres it in the image.
    fn place(&self, trace: &mut Trace, stream: &mut Stream) {
        let mut normal = |deviation: f32| deviation * stream.normal() as f32;
        let (sin, cos) = (self.turn + normal(0.04)).sin_cos();
        let slant = self.slant + normal(0.05);
        let height = self.height * (1.0 + normal(0.05)) / 100.0;
        let width = height * self.aspect * (1.0 + normal(0.05));
        let drift = PenPoint { x: self.drift.x + normal(0.5), y: self.drift.y + normal(0.5) };
        trace.map(|point| {
            let (x, y) = (width * point.x - slant * height * point.y, height * point.y);
            PenPoint { x: cos * x - sin * y, y: sin * x + cos * y }
        });
        trace.map(|point| PenPoint { x: point.x + normal(self.tremor), y: point.y + normal(self.tremor) });

        let (low, high) = trace.bounds();
        // As in EMNIST, no ink is near the border: a letter that is too large is drawn smaller.
        let room = SIDE as f32 - 2.0 * (MARGIN + self.pen);
        let scale = (room / (high.x - low.x).max(high.y - low.y)).min(1.0);
        let middle = PenPoint { x: 0.5 * (low.x + high.x), y: 0.5 * (low.y + high.y) };
        let slack = |low: f32, high: f32| 0.5 * (room - scale * (high - low));
        let within = |drift: f32, slack: f32| SIDE as f32 / 2.0 + drift.clamp(-slack, slack);
        let (x, y) = (within(drift.x, slack(low.x, high.x)), within(drift.y, slack(low.y, high.y)));
        trace.map(|point| PenPoint {
            x: x + scale * (point.x - middle.x),
            y: y + scale * (point.y - middle.y),
        });
    }
}

/// The number of white pixels at the border.
const MARGIN: f32 = 2.5;

impl WriterLetter {
    /// Draws the usual shape with probability `usual`, with knots moved by a deviation `own`.
    fn new(class: usize, usual: f64, own: f32, stream: &mut Stream) -> Self {
        let others = strokes::shapes(class).len() as u64 - 1;
        let shape = match others {
            0 => 0,
            _ if stream.unit() < usual => 0,
            _ => 1 + stream.below(others) as usize,
        };
        let mut offset = || own * stream.normal() as f32;
        Self { shape, offsets: std::array::from_fn(|_| PenPoint { x: offset(), y: offset() }) }
    }
}
