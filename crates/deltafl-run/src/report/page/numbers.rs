//! The numbers of the page: typed arrays in one compressed block, encoded in base64.
//!
//! A million values as JSON text would take 7 MB and parse slowly. Here they take two bytes each
//! before compression.

use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use serde::Serialize;

/// An array of the block, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Array {
    kind: NumberKind,
    /// The offset in bytes, a multiple of 8 because typed arrays in the browser must be aligned.
    offset: usize,
    length: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum NumberKind {
    F64,
    F32,
    U16,
}

/// Concatenated arrays.
#[derive(Default)]
pub(super) struct PageNumbers(Vec<u8>);

impl PageNumbers {
    pub(super) fn f64s(&mut self, values: &[f64]) -> Array {
        self.push(NumberKind::F64, values.len(), values.iter().flat_map(|value| value.to_le_bytes()))
    }

    pub(super) fn f32s(&mut self, values: &[f32]) -> Array {
        self.push(NumberKind::F32, values.len(), values.iter().flat_map(|value| value.to_le_bytes()))
    }

    pub(super) fn u16s(&mut self, values: &[u16]) -> Array {
        self.push(NumberKind::U16, values.len(), values.iter().flat_map(|value| value.to_le_bytes()))
    }

    fn push(&mut self, kind: NumberKind, length: usize, bytes: impl Iterator<Item = u8>) -> Array {
        let offset = self.0.len().next_multiple_of(8);
        self.0.resize(offset, 0);
        self.0.extend(bytes);
        Array { kind, offset, length }
    }

    /// Encodes the block as text for the page.
    pub(super) fn encoded(self) -> String {
        let mut deflated = ZlibEncoder::new(Vec::new(), Compression::default());
        let deflated = deflated.write_all(&self.0).and_then(|()| deflated.finish());
        STANDARD.encode(deflated.expect("writing to memory cannot fail"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_aligned() {
        let mut numbers = PageNumbers::default();
        assert_eq!(numbers.u16s(&[1, 2, 3]), Array { kind: NumberKind::U16, offset: 0, length: 3 });
        assert_eq!(numbers.f64s(&[0.5]), Array { kind: NumberKind::F64, offset: 8, length: 1 });
        assert_eq!(numbers.u16s(&[7]), Array { kind: NumberKind::U16, offset: 16, length: 1 });
    }
}
