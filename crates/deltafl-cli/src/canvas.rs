//! Figures as SVG and as PNG, from one description.
//!
//! The letters of the PNG come from a font that travels inside a crate: a bare machine has none. The PNG is drawn at
//! four times the size and averaged down to twice the size, because plotters does not smooth thick lines.

use std::sync::Once;

use miette::{IntoDiagnostic, Result, miette};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::register_font;

/// Pixels of the PNG per unit of length.
const PIXELS: u32 = 2;
/// Samples per pixel, in each direction.
const SAMPLES: u32 = 2;

/// What a drawing says.
pub(crate) type Drawn<DB> = std::result::Result<(), DrawingAreaErrorKind<<DB as DrawingBackend>::ErrorType>>;

/// Something that can be drawn on any backend.
pub(crate) trait Drawing {
    /// Width and height, in units of length.
    fn size(&self) -> (u32, u32);

    /// Draws it on an area of that size, scaled.
    fn draw<DB: DrawingBackend>(&self, root: &DrawingArea<DB, Shift>, scale: Scale) -> Drawn<DB>;
}

/// Pixels per unit of length.
#[derive(Clone, Copy)]
pub(crate) struct Scale(u32);

impl Scale {
    /// A length in pixels.
    pub(crate) fn px(self, length: u32) -> u32 {
        self.0 * length
    }

    /// Text of a size and colour.
    pub(crate) fn text(self, size: u32, colour: RGBColor) -> TextStyle<'static> {
        ("sans-serif", self.px(size)).into_font().color(&colour)
    }
}

/// The drawing as SVG.
pub(crate) fn svg(drawing: &impl Drawing) -> Result<String> {
    let mut text = String::new();
    let backend = SVGBackend::with_string(&mut text, drawing.size());
    on_white(drawing, &backend.into_drawing_area(), 1)
        .map_err(|e| miette!("could not draw a figure: {e}"))?;
    Ok(text)
}

/// The drawing as PNG.
pub(crate) fn png(drawing: &impl Drawing) -> Result<Vec<u8>> {
    let scale = PIXELS * SAMPLES;
    let (width, height) = drawing.size();
    let (width, height) = (width * scale, height * scale);
    let mut samples = vec![0; 3 * width as usize * height as usize];
    let backend = BitMapBackend::with_buffer(&mut samples, (width, height));
    on_white(drawing, &backend.into_drawing_area(), scale)
        .map_err(|e| miette!("could not draw a figure: {e}"))?;
    let pixels = averaged(&samples, width as usize);

    let mut png = Vec::new();
    let mut encoder = png::Encoder::new(&mut png, width / SAMPLES, height / SAMPLES);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_compression(png::Compression::Balanced);
    let mut writer = encoder.write_header().into_diagnostic()?;
    writer.write_image_data(&pixels).into_diagnostic()?;
    writer.finish().into_diagnostic()?;
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
        assert!(registered.is_ok(), "the font of the crate is a font");
    });
    root.fill(&WHITE)?;
    drawing.draw(root, Scale(scale))?;
    root.present()
}

/// The mean of each square of samples.
fn averaged(samples: &[u8], width: usize) -> Vec<u8> {
    let side = SAMPLES as usize;
    let mut pixels = Vec::with_capacity(samples.len() / (side * side));
    for rows in samples.chunks_exact(3 * width * side) {
        for x in 0..width / side {
            for channel in 0..3 {
                let at = |dx: usize, dy: usize| u32::from(rows[3 * (dy * width + side * x + dx) + channel]);
                let sum: u32 = (0..side * side).map(|i| at(i % side, i / side)).sum();
                pixels.push((sum / (SAMPLES * SAMPLES)) as u8);
            }
        }
    }
    pixels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_averaged_in_squares() {
        let row = |a: u8, b: u8| [a, a, a, b, b, b];
        assert_eq!(averaged(&[row(0, 4), row(8, 12)].concat(), 2), [6, 6, 6]);
    }
}
