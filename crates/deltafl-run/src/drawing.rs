//! Figures as SVG and as PNG, from one description.
//!
//! The PNG text uses a font embedded in a crate, because a minimal machine has none. The PNG is
//! drawn at four times the size and averaged down to twice the size, because plotters does not
//! smooth thick lines.

use std::ops::Range;
use std::sync::Once;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::register_font;

/// Pixels of the PNG per unit of length.
const PIXELS: u32 = 2;
/// Samples per pixel, in each direction.
const SAMPLES: u32 = 2;

/// Bytes of a row that are processed together: whole pixels of the PNG.
const STRETCH: usize = 16 * 3 * SAMPLES as usize;
const WHITE_SAMPLES: [u8; STRETCH] = [255; STRETCH];

/// The reason why a figure cannot be drawn.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DrawingError {
    /// The drawing library failed.
    #[error("cannot draw a figure: {problem}")]
    Plot {
        /// The error message of the library.
        problem: String,
    },
    /// The PNG encoder failed.
    #[error("cannot encode a figure as PNG")]
    Png(#[from] png::EncodingError),
}

/// The result of drawing on a backend.
pub(crate) type Drawn<DB> = std::result::Result<(), DrawingAreaErrorKind<<DB as DrawingBackend>::ErrorType>>;

/// A drawing that is independent of the backend.
pub(crate) trait Drawing {
    /// Returns width and height, in units of length.
    fn size(&self) -> (u32, u32);

    /// Draws it on an area of that size, with the given scale.
    fn draw<DB: DrawingBackend>(&self, root: &DrawingArea<DB, Shift>, scale: Scale) -> Drawn<DB>;
}

/// Pixels per unit of length.
#[derive(Clone, Copy)]
pub(crate) struct Scale(u32);

impl Scale {
    /// Converts a length to pixels.
    pub(crate) fn px(self, length: u32) -> u32 {
        self.0 * length
    }

    /// Returns the text style for a size and colour.
    pub(crate) fn text(self, size: u32, colour: RGBColor) -> TextStyle<'static> {
        ("sans-serif", self.px(size)).into_font().color(&colour)
    }
}

/// Renders the drawing as SVG.
pub(crate) fn svg(drawing: &impl Drawing) -> Result<String, DrawingError> {
    let mut text = String::new();
    let backend = SVGBackend::with_string(&mut text, drawing.size());
    on_white(drawing, &backend.into_drawing_area(), 1)
        .map_err(|e| DrawingError::Plot { problem: e.to_string() })?;
    Ok(text)
}

/// Renders the drawing as PNG.
pub(crate) fn png(drawing: &impl Drawing) -> Result<Vec<u8>, DrawingError> {
    let scale = PIXELS * SAMPLES;
    let (width, height) = drawing.size();
    let (width, height) = (width * scale, height * scale);
    let mut samples = vec![0; 3 * width as usize * height as usize];
    let backend = BitMapBackend::with_buffer(&mut samples, (width, height));
    on_white(drawing, &backend.into_drawing_area(), scale)
        .map_err(|e| DrawingError::Plot { problem: e.to_string() })?;
    let pixels = averaged(&samples, width as usize);

    let mut png = Vec::new();
    let mut encoder = png::Encoder::new(&mut png, width / SAMPLES, height / SAMPLES);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_compression(png::Compression::Balanced);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&pixels)?;
    writer.finish()?;
    Ok(png)
}

fn on_white<DB: DrawingBackend>(
    drawing: &impl Drawing,
    root: &DrawingArea<DB, Shift>,
    scale: u32,
) -> Drawn<DB> {
    static FONT: Once = Once::new();
    FONT.call_once(|| {
        let registered = register_font("sans-serif", FontStyle::Normal, epaint_default_fonts::UBUNTU_LIGHT);
        assert!(registered.is_ok(), "the embedded font is valid");
    });
    root.fill(&WHITE)?;
    drawing.draw(root, Scale(scale))?;
    root.present()
}

/// Returns the mean of each square of samples.
fn averaged(samples: &[u8], width: usize) -> Vec<u8> {
    let side = SAMPLES as usize;
    let mut pixels = Vec::with_capacity(samples.len() / (side * side));
    for rows in samples.chunks_exact(3 * width * side) {
        let rows: Vec<&[u8]> = rows.chunks_exact(3 * width).collect();
        for start in (0..3 * width).step_by(STRETCH) {
            let stretch = start..(start + STRETCH).min(3 * width);
            let white = &WHITE_SAMPLES[..stretch.len()];
            // Most of a figure is white, and a comparison is faster than a mean.
            if rows.iter().all(|row| &row[stretch.clone()] == white) {
                pixels.extend_from_slice(&white[..stretch.len() / side]);
            } else {
                average_stretch(&rows, stretch, &mut pixels);
            }
        }
    }
    pixels
}

// Plain loops instead of iterator adapters: in unoptimised builds, such as tests, the adapters take
// most of the time of a report.
fn average_stretch(rows: &[&[u8]], stretch: Range<usize>, pixels: &mut Vec<u8>) {
    let side = SAMPLES as usize;
    let mut pixel = stretch.start;
    while pixel < stretch.end {
        for channel in pixel..pixel + 3 {
            let mut sum = 0;
            for row in rows {
                let mut sample = channel;
                while sample < channel + 3 * side {
                    sum += u32::from(row[sample]);
                    sample += 3;
                }
            }
            pixels.push((sum / (SAMPLES * SAMPLES)) as u8);
        }
        pixel += 3 * side;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_averaged_in_squares() {
        let row = |a: u8, b: u8| [a, a, a, b, b, b];
        assert_eq!(averaged(&[row(0, 4), row(8, 12)].concat(), 2), [6, 6, 6]);
    }

    #[test]
    fn white_stretches_stay_white_next_to_others() {
        // Two stretches and a remainder, all white except one black sample.
        let width = 2 * STRETCH / 3 + 4;
        for black in [0, STRETCH / 3 - 1, STRETCH / 3, width - 1] {
            let mut samples = vec![255; 3 * width * 2];
            samples[3 * black..3 * black + 3].fill(0);
            let expected: Vec<u8> =
                (0..width / 2).flat_map(|x| [if x == black / 2 { 191 } else { 255 }; 3]).collect();
            assert_eq!(averaged(&samples, width), expected, "black at {black}");
        }
    }
}
