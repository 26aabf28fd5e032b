//! TensorBoard's event files: TFRecord frames around `TensorBoardEvent` messages.
//!
//! ```text
//! record = length: u64 · masked CRC of length: u32 · data · masked CRC of data: u32     (little-endian)
//! masked = (crc ⋙ 15) + 0xa282ead8                                                      (CRC-32C)
//! ```

use std::io::{self, Write};

use prost::Message;

/// An event of a run: the part of TensorBoard's `TensorBoardEvent` that scalars need.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TensorBoardEvent {
    /// Wall time in seconds.
    #[prost(double, tag = "1")]
    pub(super) wall_time: f64,
    #[prost(int64, tag = "2")]
    pub(super) step: i64,
    /// The file version, in the first event of a file only.
    #[prost(string, optional, tag = "3")]
    pub(super) file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    pub(super) summary: Option<Scalars>,
}

/// TensorBoard's `Summary`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Scalars {
    #[prost(message, repeated, tag = "1")]
    pub(super) values: Vec<Scalar>,
}

/// A named number.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Scalar {
    #[prost(string, tag = "1")]
    pub(super) tag: String,
    #[prost(float, tag = "2")]
    pub(super) simple_value: f32,
}

impl TensorBoardEvent {
    /// Returns the first event of every file.
    pub(super) fn version() -> Self {
        Self { file_version: Some("brain.Event:2".to_owned()), ..Self::default() }
    }
}

/// Writes one record.
pub(super) fn write_record(out: &mut impl Write, event: &TensorBoardEvent) -> io::Result<()> {
    let data = event.encode_to_vec();
    let length = (data.len() as u64).to_le_bytes();
    out.write_all(&length)?;
    out.write_all(&masked(crc32c(&length)).to_le_bytes())?;
    out.write_all(&data)?;
    out.write_all(&masked(crc32c(&data)).to_le_bytes())
}

fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C (Castagnoli), bit by bit: an event has a few hundred bytes.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_crc32c() {
        // RFC 3720, appendix B.4, and the usual check value.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    }

    #[test]
    fn a_record_is_framed_as_in_tensorflow() {
        let mut record = Vec::new();
        write_record(&mut record, &TensorBoardEvent::version()).unwrap();
        // Field 3 has thirteen bytes. Wall time and step are zero and therefore omitted.
        assert_eq!(record[12..14], [0x1a, 13]);
        assert_eq!(&record[14..27], b"brain.Event:2");
        assert_eq!(record.len(), 8 + 4 + 15 + 4);
        assert_eq!(record[..8], 15u64.to_le_bytes());
    }
}
