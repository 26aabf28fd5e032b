//! Images: decoding of PNG and JPEG, and the down-scaling of LEAF.
//!
//! LEAF reduced NIST's 128×128 images with Pillow's `thumbnail(…, ANTIALIAS)`. This is a Lanczos
//! filter of radius 3, stretched by the scale, first along rows and then along columns, in 8 bits
//! with coefficients of 22 fractional bits. The same arithmetic gives the same grey levels. (Pillow
//! since 7.0 averages blocks of 2×2 first. Copies of the data set made with it differ by a fraction
//! of a level on average.)

use std::io::Cursor;

use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;

use super::error::ImportProblem;

/// An image of grey levels, row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GreyImage {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) pixels: Vec<u8>,
}

/// Most pixels of an image.
const LARGEST: usize = 1 << 24;

/// An image of grey levels or colours, pixel by pixel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DecodedImage {
    pub(crate) width: usize,
    pub(crate) height: usize,
    /// Whether a pixel is three bytes: red, green and blue. Otherwise it is one.
    pub(crate) is_colour: bool,
    pixels: Vec<u8>,
}

/// Decodes a PNG or a JPEG. Transparency is ignored. An image whose colours are all grey is grey.
pub(crate) fn decode(bytes: &[u8]) -> Result<DecodedImage, ImportProblem> {
    let image = if bytes.starts_with(&[0xff, 0xd8]) { decode_jpeg(bytes)? } else { decode_png(bytes)? };
    if image.is_colour && image.pixels.chunks_exact(3).all(|p| p[0] == p[1] && p[1] == p[2]) {
        return Ok(image.into_grey().into());
    }
    Ok(image)
}

impl From<GreyImage> for DecodedImage {
    fn from(GreyImage { width, height, pixels }: GreyImage) -> Self {
        Self { width, height, is_colour: false, pixels }
    }
}

impl DecodedImage {
    /// Returns the luminance of colours (ITU-R 601-2).
    pub(crate) fn into_grey(self) -> GreyImage {
        let Self { width, height, is_colour, pixels } = self;
        let pixels = if is_colour { pixels.chunks_exact(3).map(luminance).collect() } else { pixels };
        GreyImage { width, height, pixels }
    }

    /// Returns the red, green and blue parts.
    pub(crate) fn into_channels(self) -> [GreyImage; 3] {
        let Self { width, height, is_colour, pixels } = self;
        [0, 1, 2].map(|channel| {
            let pixels = match is_colour {
                true => pixels.iter().skip(channel).step_by(3).copied().collect(),
                false => pixels.clone(),
            };
            GreyImage { width, height, pixels }
        })
    }
}

fn decode_jpeg(bytes: &[u8]) -> Result<DecodedImage, ImportProblem> {
    let broken = |error: zune_jpeg::errors::DecodeErrors| ImportProblem::Image(error.to_string());
    let most = LARGEST.isqrt();
    let options = DecoderOptions::default()
        .set_max_width(4 * most)
        .set_max_height(4 * most)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = zune_jpeg::JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(broken)?;
    let info = decoder.info().ok_or_else(|| ImportProblem::Image("a JPEG without a header".to_owned()))?;
    let (width, height) = (usize::from(info.width), usize::from(info.height));
    if width * height > LARGEST {
        return Err(ImportProblem::TooLong { what: "an image", limit: LARGEST });
    }
    let pixels = decoder.decode().map_err(broken)?;
    if pixels.len() != 3 * width * height || pixels.is_empty() {
        return Err(ImportProblem::Image("a JPEG with colours of another kind".to_owned()));
    }
    Ok(DecodedImage { width, height, is_colour: true, pixels })
}

fn decode_png(bytes: &[u8]) -> Result<DecodedImage, ImportProblem> {
    let broken = |error: png::DecodingError| ImportProblem::Image(error.to_string());
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), png::Limits { bytes: 4 * LARGEST });
    decoder.set_transformations(png::Transformations::EXPAND | png::Transformations::STRIP_16);
    let mut reader = decoder.read_info().map_err(broken)?;
    let (width, height) = (reader.info().width as usize, reader.info().height as usize);
    let size = reader.output_buffer_size().filter(|&size| size <= 4 * LARGEST);
    let mut data = vec![0; size.ok_or(ImportProblem::TooLong { what: "an image", limit: LARGEST })?];
    let frame = reader.next_frame(&mut data).map_err(broken)?;
    let data = &data[..frame.buffer_size()];
    let (is_colour, pixels) = match frame.color_type {
        png::ColorType::Grayscale => (false, data.to_vec()),
        png::ColorType::GrayscaleAlpha => (false, data.chunks_exact(2).map(|p| p[0]).collect()),
        png::ColorType::Rgb => (true, data.to_vec()),
        png::ColorType::Rgba => (true, data.chunks_exact(4).flat_map(|p| [p[0], p[1], p[2]]).collect()),
        png::ColorType::Indexed => return Err(ImportProblem::Image("palette without colours".to_owned())),
    };
    Ok(DecodedImage { width, height, is_colour, pixels })
}

fn luminance(rgb: &[u8]) -> u8 {
    let [r, g, b] = [rgb[0], rgb[1], rgb[2]].map(u32::from);
    ((19595 * r + 38470 * g + 7471 * b + 0x8000) >> 16) as u8
}

impl GreyImage {
    /// Returns the image in another size.
    pub(crate) fn resized(&self, width: usize, height: usize) -> Self {
        let rows = resample(&self.pixels, self.width, width);
        let columns = resample(&transposed(&rows, width), self.height, height);
        Self { width, height, pixels: transposed(&columns, height) }
    }
}

/// Fractional bits of a coefficient.
const PRECISION: u32 = 22;

/// Scales every row of `from` pixels to `to` pixels.
fn resample(pixels: &[u8], from: usize, to: usize) -> Vec<u8> {
    let taps: Vec<Taps> = (0..to).map(|i| Taps::new(i, from, to)).collect();
    let mut out = Vec::with_capacity(pixels.len() / from.max(1) * to);
    for row in pixels.chunks_exact(from.max(1)) {
        for tap in &taps {
            let half = 1i32 << (PRECISION - 1);
            let covered = row[tap.first..].iter().zip(&tap.coefficients);
            let sum = covered.fold(half, |sum, (&pixel, &c)| sum.wrapping_add(i32::from(pixel) * c));
            out.push((sum >> PRECISION).clamp(0, 255) as u8);
        }
    }
    out
}

/// The input pixels of one output pixel.
struct Taps {
    first: usize,
    coefficients: Vec<i32>,
}

impl Taps {
    fn new(i: usize, from: usize, to: usize) -> Self {
        let scale = from as f64 / to as f64;
        let stretch = scale.max(1.0);
        let support = 3.0 * stretch;
        let centre = (i as f64 + 0.5) * scale;
        let first = (centre - support + 0.5).max(0.0) as usize;
        let end = ((centre + support + 0.5) as usize).min(from);
        let weights: Vec<f64> = (first..end).map(|x| lanczos((x as f64 - centre + 0.5) / stretch)).collect();
        let total: f64 = weights.iter().sum();
        let fixed = |weight: &f64| (weight / total * f64::from(1 << PRECISION)).round() as i32;
        Self { first, coefficients: weights.iter().map(fixed).collect() }
    }
}

/// sinc(x)·sinc(x/3) on (−3, 3).
fn lanczos(x: f64) -> f64 {
    let sinc = |x: f64| {
        if x.abs() < 1e-12 { 1.0 } else { (std::f64::consts::PI * x).sin() / (std::f64::consts::PI * x) }
    };
    if x.abs() < 3.0 { sinc(x) * sinc(x / 3.0) } else { 0.0 }
}

/// Transposes an image.
fn transposed(pixels: &[u8], width: usize) -> Vec<u8> {
    let height = pixels.len() / width.max(1);
    (0..width).flat_map(|x| (0..height).map(move |y| pixels[y * width + x])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pattern with soft and hard edges.
    fn pattern() -> GreyImage {
        let level = |x: usize, y: usize| match (x, y) {
            (_, 100..) => 255,
            (50..60, 20..90) => 0,
            _ => ((3 * x * x + 7 * y + x * y) % 256) as u8,
        };
        let pixels = (0..128).flat_map(|y| (0..128).map(move |x| level(x, y))).collect();
        GreyImage { width: 128, height: 128, pixels }
    }

    #[test]
    fn shrinking_gives_pillows_grey_levels() {
        // Pillow: Image.fromarray(pattern).resize((28, 28), Image.LANCZOS)
        let small = pattern().resized(28, 28);
        let row = |y: usize| &small.pixels[28 * y..28 * (y + 1)];
        assert_eq!(
            row(0),
            [
                30, 131, 131, 130, 126, 133, 135, 116, 117, 128, 114, 138, 137, 120, 117, 122, 126, 124, 109,
                126, 133, 125, 125, 114, 120, 139, 136, 99
            ]
        );
        assert_eq!(
            row(13),
            [
                141, 124, 133, 127, 123, 126, 130, 132, 138, 141, 114, 4, 2, 105, 130, 129, 129, 127, 122,
                119, 116, 134, 125, 132, 122, 144, 124, 125
            ]
        );
        assert_eq!(small.pixels.iter().map(|&level| u32::from(level)).sum::<u32>(), 117_358);
    }

    #[test]
    fn a_broken_image_is_an_error() {
        assert!(matches!(decode(b"not a png"), Err(ImportProblem::Image(_))));
        assert!(matches!(decode(b""), Err(ImportProblem::Image(_))));
        assert!(matches!(decode(b"\xff\xd8\xff\xe0 not a jpeg"), Err(ImportProblem::Image(_))));
    }
}
