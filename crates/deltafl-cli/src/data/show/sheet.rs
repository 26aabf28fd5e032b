//! A contact sheet: a row of images per device, a column per class.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use deltafl::data::{BatchBuffer, Federation, FederationIndex, ImageShape};
use miette::{IntoDiagnostic, Result, WrapErr};

/// The minimum number of columns if there are few classes.
const COLUMNS: usize = 30;

/// Pixels between two images.
const GAP: usize = 2;

/// The grey level of the gaps and of missing images.
const BLANK: u8 = 232;

/// An image of grey levels or colours, row by row.
pub(super) struct Sheet {
    width: usize,
    height: usize,
    /// The shape of a cell.
    shape: ImageShape,
    /// The pixels: a byte each, or red, green and blue.
    pixels: Vec<u8>,
}

/// Returns the shape of the images of a federation: that of their import, or square. Returns `None`
/// if the inputs are not images.
fn shape(federation: &Federation, dim: usize) -> Option<ImageShape> {
    let side = dim.isqrt();
    let square = ImageShape { width: side, height: side, channels: 1 };
    let imported = federation.coding().and_then(|coding| coding.image);
    Some(imported.unwrap_or(square)).filter(|shape| shape.features() == dim)
}

impl Sheet {
    /// Creates the sheet of these devices. Returns `None` if the inputs are not images.
    pub(super) fn new(
        federation: &Federation,
        dim: usize,
        devices: &[(FederationIndex, f64)],
    ) -> Option<Self> {
        let shape = shape(federation, dim).filter(|_| !devices.is_empty())?;
        let per_class = COLUMNS.div_ceil(federation.classes());
        let columns = per_class * federation.classes();
        let across = |cells: usize| cells * (shape.width + GAP) + GAP;
        let down = |cells: usize| cells * (shape.height + GAP) + GAP;
        let (width, height) = (across(columns), down(devices.len()));
        let mut sheet = Self { width, height, shape, pixels: vec![BLANK; width * height * shape.channels] };
        let mut buffer = BatchBuffer::default();
        for (row, &(device, _)) in devices.iter().enumerate() {
            let examples = federation.examples(device);
            let mut shown = vec![0; federation.classes()];
            for i in 0..examples.len() {
                let label = examples.label(i) as usize;
                if shown[label] < per_class {
                    let image = buffer.gather(&examples, i..i + 1).inputs.dense();
                    sheet.place(image, across(label * per_class + shown[label]), down(row));
                    shown[label] += 1;
                }
            }
        }
        Some(sheet)
    }

    /// Copies an image of features in [0, 1], channel by channel, to a position.
    fn place(&mut self, image: &[f32], left: usize, top: usize) {
        let ImageShape { width, height, channels } = self.shape;
        for (i, value) in image.iter().enumerate() {
            let (channel, row, column) = (i / (width * height), i / width % height, i % width);
            let pixel = (top + row) * self.width + left + column;
            self.pixels[pixel * channels + channel] = (255.0 * value).round().clamp(0.0, 255.0) as u8;
        }
    }

    /// Writes the sheet as a PNG file.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let context = || format!("cannot write {}", path.display());
        let file = File::create(path).into_diagnostic().wrap_err_with(context)?;
        let mut encoder = png::Encoder::new(BufWriter::new(file), self.width as u32, self.height as u32);
        let is_grey = self.shape.channels == 1;
        encoder.set_color(if is_grey { png::ColorType::Grayscale } else { png::ColorType::Rgb });
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header().into_diagnostic().wrap_err_with(context)?;
        writer.write_image_data(&self.pixels).into_diagnostic().wrap_err_with(context)?;
        writer.finish().into_diagnostic().wrap_err_with(context)
    }
}

#[cfg(test)]
mod tests {
    use deltafl::data::{DeviceExamples, FederationBuilder, InputKind, Split};

    use super::*;

    #[test]
    fn an_image_is_in_the_column_of_its_class_and_the_row_of_its_device() {
        let mut builder = FederationBuilder::new("t", InputKind::Bytes { dim: 4 }, 40);
        builder.push("a", Split::Train, DeviceExamples::Bytes(&[9; 4]), &[0]).unwrap();
        builder.push("b", Split::Test, DeviceExamples::Bytes(&[7; 4]), &[39]).unwrap();
        let sheet =
            Sheet::new(&builder.build(), 4, &[(FederationIndex(0), 0.0), (FederationIndex(1), 0.0)]).unwrap();
        assert_eq!((sheet.width, sheet.height), (40 * 4 + 2, 2 * 4 + 2));
        let at = |x: usize, y: usize| sheet.pixels[y * sheet.width + x];
        assert_eq!((at(2, 2), at(3, 3), at(4, 4)), (9, 9, BLANK));
        assert_eq!((at(39 * 4 + 2, 6), at(2, 6)), (7, BLANK));
    }

    #[test]
    fn inputs_that_are_not_square_have_no_sheet() {
        let mut builder = FederationBuilder::new("t", InputKind::Bytes { dim: 3 }, 1);
        builder.push("a", Split::Train, DeviceExamples::Bytes(&[9; 3]), &[0]).unwrap();
        assert!(Sheet::new(&builder.build(), 3, &[(FederationIndex(0), 0.0)]).is_none());
    }
}
