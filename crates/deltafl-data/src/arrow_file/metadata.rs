//! The part of Arrow's metadata that the files use: slots of tables, and a reader of flatbuffers
//! from untrusted sources.
//!
//! The definitions are those of `Schema.fbs`, `Message.fbs` and `File.fbs` of the Arrow format.

use flatbuffers::VOffsetT;

/// The slots of a table `Footer`.
pub(super) mod footer {
    pub(in super::super) const VERSION: super::VOffsetT = 4;
    pub(in super::super) const SCHEMA: super::VOffsetT = 6;
    pub(in super::super) const DICTIONARIES: super::VOffsetT = 8;
    pub(in super::super) const RECORD_BATCHES: super::VOffsetT = 10;
}

/// The slots of a table `Message`.
pub(super) mod message {
    pub(in super::super) const VERSION: super::VOffsetT = 4;
    pub(in super::super) const HEADER_TYPE: super::VOffsetT = 6;
    pub(in super::super) const HEADER: super::VOffsetT = 8;
    pub(in super::super) const BODY_LENGTH: super::VOffsetT = 10;
}

/// The slots of a table `RecordBatch`.
pub(super) mod record_batch {
    pub(in super::super) const LENGTH: super::VOffsetT = 4;
    pub(in super::super) const NODES: super::VOffsetT = 6;
    pub(in super::super) const BUFFERS: super::VOffsetT = 8;
    pub(in super::super) const COMPRESSION: super::VOffsetT = 10;
    pub(in super::super) const VARIADIC_COUNTS: super::VOffsetT = 12;
}

/// The slots of a table `DictionaryBatch`.
pub(super) mod dictionary_batch {
    pub(in super::super) const ID: super::VOffsetT = 4;
    pub(in super::super) const DATA: super::VOffsetT = 6;
    pub(in super::super) const IS_DELTA: super::VOffsetT = 8;
}

/// The slots of a table `BodyCompression`.
pub(super) mod compression {
    pub(in super::super) const CODEC: super::VOffsetT = 4;
}

/// The slots of a table `DictionaryEncoding`.
pub(super) mod dictionary_encoding {
    pub(in super::super) const ID: super::VOffsetT = 4;
    pub(in super::super) const INDEX_TYPE: super::VOffsetT = 6;
}

/// The slots of a table `Schema`.
pub(super) mod schema {
    pub(in super::super) const ENDIANNESS: super::VOffsetT = 4;
    pub(in super::super) const FIELDS: super::VOffsetT = 6;
    pub(in super::super) const CUSTOM_METADATA: super::VOffsetT = 8;
}

/// The slots of a table `KeyValue`.
pub(super) mod key_value {
    pub(in super::super) const KEY: super::VOffsetT = 4;
    pub(in super::super) const VALUE: super::VOffsetT = 6;
}

/// The slots of a table `Field`.
pub(super) mod field {
    pub(in super::super) const NAME: super::VOffsetT = 4;
    pub(in super::super) const TYPE_TYPE: super::VOffsetT = 8;
    pub(in super::super) const TYPE: super::VOffsetT = 10;
    pub(in super::super) const DICTIONARY: super::VOffsetT = 12;
    pub(in super::super) const CHILDREN: super::VOffsetT = 14;
}

/// The slots of the tables of types.
pub(super) mod of_type {
    pub(in super::super) const INT_BIT_WIDTH: super::VOffsetT = 4;
    pub(in super::super) const INT_IS_SIGNED: super::VOffsetT = 6;
    pub(in super::super) const FLOAT_PRECISION: super::VOffsetT = 4;
    pub(in super::super) const LIST_SIZE: super::VOffsetT = 4;
    /// The unit of dates, timestamps and intervals, and the mode of unions.
    pub(in super::super) const UNIT: super::VOffsetT = 4;
    pub(in super::super) const DECIMAL_SCALE: super::VOffsetT = 6;
    pub(in super::super) const DECIMAL_BIT_WIDTH: super::VOffsetT = 8;
}

/// `MetadataVersion.V5`.
pub(super) const V5: i16 = 4;
/// `MessageHeader.Schema`.
pub(super) const HEADER_SCHEMA: u8 = 1;
/// `MessageHeader.DictionaryBatch`.
pub(super) const HEADER_DICTIONARY_BATCH: u8 = 2;
/// `MessageHeader.RecordBatch`.
pub(super) const HEADER_RECORD_BATCH: u8 = 3;
/// `Type.Int`.
pub(super) const TYPE_INT: u8 = 2;
/// `Type.FloatingPoint`.
pub(super) const TYPE_FLOATING_POINT: u8 = 3;
/// `Type.Utf8`.
pub(super) const TYPE_UTF8: u8 = 5;
/// `Type.FixedSizeList`.
pub(super) const TYPE_FIXED_SIZE_LIST: u8 = 16;
/// `Type.Null`.
pub(super) const TYPE_NULL: u8 = 1;
/// `Type.Binary`.
pub(super) const TYPE_BINARY: u8 = 4;
/// `Type.Bool`.
pub(super) const TYPE_BOOL: u8 = 6;
/// `Type.Decimal`.
pub(super) const TYPE_DECIMAL: u8 = 7;
/// `Type.Date`.
pub(super) const TYPE_DATE: u8 = 8;
/// `Type.Time`.
pub(super) const TYPE_TIME: u8 = 9;
/// `Type.Timestamp`.
pub(super) const TYPE_TIMESTAMP: u8 = 10;
/// `Type.Interval`.
pub(super) const TYPE_INTERVAL: u8 = 11;
/// `Type.List`.
pub(super) const TYPE_LIST: u8 = 12;
/// `Type.Struct`.
pub(super) const TYPE_STRUCT: u8 = 13;
/// `Type.Union`.
pub(super) const TYPE_UNION: u8 = 14;
/// `Type.FixedSizeBinary`.
pub(super) const TYPE_FIXED_SIZE_BINARY: u8 = 15;
/// `Type.Map`.
pub(super) const TYPE_MAP: u8 = 17;
/// `Type.Duration`.
pub(super) const TYPE_DURATION: u8 = 18;
/// `Type.LargeBinary`.
pub(super) const TYPE_LARGE_BINARY: u8 = 19;
/// `Type.LargeUtf8`.
pub(super) const TYPE_LARGE_UTF8: u8 = 20;
/// `Type.LargeList`.
pub(super) const TYPE_LARGE_LIST: u8 = 21;
/// `Type.RunEndEncoded`.
pub(super) const TYPE_RUN_END_ENCODED: u8 = 22;
/// `Type.BinaryView`.
pub(super) const TYPE_BINARY_VIEW: u8 = 23;
/// `Type.Utf8View`.
pub(super) const TYPE_UTF8_VIEW: u8 = 24;
/// `Type.ListView`.
pub(super) const TYPE_LIST_VIEW: u8 = 25;
/// `Type.LargeListView`.
pub(super) const TYPE_LARGE_LIST_VIEW: u8 = 26;
/// `Precision.SINGLE`.
pub(super) const SINGLE: i16 = 1;

/// An offset of the metadata points outside of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Damaged;

/// A table. Every access checks its bounds, and none allocates.
#[derive(Clone, Copy, Debug)]
pub(super) struct MetadataTable<'b> {
    buffer: &'b [u8],
    at: usize,
}

impl<'b> MetadataTable<'b> {
    /// Returns the root table of a buffer.
    pub(super) fn root(buffer: &'b [u8]) -> Result<Self, Damaged> {
        Self::pointed_to(buffer, 0)
    }

    /// Returns the table that the offset at `at` points to.
    fn pointed_to(buffer: &'b [u8], at: usize) -> Result<Self, Damaged> {
        Ok(Self { buffer, at: target(buffer, at)? })
    }

    /// Returns the place of a field, or `None` if it has its default.
    fn field(self, slot: VOffsetT) -> Result<Option<usize>, Damaged> {
        let back = i64::from(i32::from_le_bytes(number(self.buffer, self.at)?));
        let vtable = usize::try_from(self.at as i64 - back).map_err(|_| Damaged)?;
        if slot >= u16::from_le_bytes(number(self.buffer, vtable)?) {
            return Ok(None);
        }
        let offset = u16::from_le_bytes(number(self.buffer, vtable.saturating_add(slot.into()))?);
        Ok((offset != 0).then_some(self.at + usize::from(offset)))
    }

    /// Returns the bytes of a number.
    fn scalar<const N: usize>(self, slot: VOffsetT) -> Result<[u8; N], Damaged> {
        self.field(slot)?.map_or(Ok([0; N]), |at| number(self.buffer, at))
    }

    /// Returns a number of 8 bits, with the default 0.
    pub(super) fn u8(self, slot: VOffsetT) -> Result<u8, Damaged> {
        self.scalar(slot).map(u8::from_le_bytes)
    }

    /// Returns a number of 16 bits, with the default 0.
    pub(super) fn i16(self, slot: VOffsetT) -> Result<i16, Damaged> {
        self.scalar(slot).map(i16::from_le_bytes)
    }

    /// Returns a number of 32 bits, with the default 0.
    pub(super) fn i32(self, slot: VOffsetT) -> Result<i32, Damaged> {
        self.scalar(slot).map(i32::from_le_bytes)
    }

    /// Returns a number of 16 bits with another default.
    pub(super) fn i16_or(self, slot: VOffsetT, default: i16) -> Result<i16, Damaged> {
        if self.field(slot)?.is_some() { self.i16(slot) } else { Ok(default) }
    }

    /// Returns a number of 32 bits with another default.
    pub(super) fn i32_or(self, slot: VOffsetT, default: i32) -> Result<i32, Damaged> {
        if self.field(slot)?.is_some() { self.i32(slot) } else { Ok(default) }
    }

    /// Returns a number of 64 bits, with the default 0.
    pub(super) fn i64(self, slot: VOffsetT) -> Result<i64, Damaged> {
        self.scalar(slot).map(i64::from_le_bytes)
    }

    /// Returns a table, or `None` if it is absent.
    pub(super) fn table(self, slot: VOffsetT) -> Result<Option<Self>, Damaged> {
        self.field(slot)?.map(|at| Self::pointed_to(self.buffer, at)).transpose()
    }

    /// Returns the bytes of a string, empty if it is absent.
    pub(super) fn string(self, slot: VOffsetT) -> Result<&'b [u8], Damaged> {
        let (at, len) = self.items(slot, 1)?;
        Ok(&self.buffer[at..at + len])
    }

    /// Returns a vector of tables, empty if it is absent.
    pub(super) fn tables(self, slot: VOffsetT) -> Result<Tables<'b>, Damaged> {
        let (at, len) = self.items(slot, 4)?;
        Ok(Tables { buffer: self.buffer, at, len })
    }

    /// Returns a vector of structs of `N` numbers of 64 bits, empty if it is absent.
    pub(super) fn structs<const N: usize>(self, slot: VOffsetT) -> Result<Structs<'b, N>, Damaged> {
        let (at, len) = self.items(slot, 8 * N)?;
        Ok(Structs(&self.buffer[at..at + 8 * N * len]))
    }

    /// Returns the place of the items of a vector inside the buffer, and their number.
    fn items(self, slot: VOffsetT, size: usize) -> Result<(usize, usize), Damaged> {
        let Some(at) = self.field(slot)? else { return Ok((0, 0)) };
        let at = target(self.buffer, at)?;
        let len = u32::from_le_bytes(number(self.buffer, at)?) as usize;
        let bytes = len.checked_mul(size).ok_or(Damaged)?;
        let end = (at + 4).checked_add(bytes).ok_or(Damaged)?;
        if end > self.buffer.len() { Err(Damaged) } else { Ok((at + 4, len)) }
    }
}

/// A vector of tables.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tables<'b> {
    buffer: &'b [u8],
    at: usize,
    len: usize,
}

impl<'b> Tables<'b> {
    pub(super) fn len(self) -> usize {
        self.len
    }

    /// Returns a table.
    pub(super) fn get(self, i: usize) -> Result<MetadataTable<'b>, Damaged> {
        if i >= self.len {
            return Err(Damaged);
        }
        MetadataTable::pointed_to(self.buffer, self.at + 4 * i)
    }
}

/// A vector of structs of `N` numbers of 64 bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Structs<'b, const N: usize>(&'b [u8]);

impl<const N: usize> Structs<'_, N> {
    pub(super) fn len(self) -> usize {
        self.0.len() / (8 * N)
    }

    /// Returns the numbers of a struct.
    pub(super) fn get(self, i: usize) -> Result<[i64; N], Damaged> {
        let mut numbers = [0; N];
        for (j, value) in numbers.iter_mut().enumerate() {
            *value = i64::from_le_bytes(number(self.0, 8 * (N * i + j))?);
        }
        Ok(numbers)
    }
}

/// Returns the place that the offset at `at` points to.
fn target(buffer: &[u8], at: usize) -> Result<usize, Damaged> {
    let target = at.checked_add(u32::from_le_bytes(number(buffer, at)?) as usize).ok_or(Damaged)?;
    if target < buffer.len() { Ok(target) } else { Err(Damaged) }
}

/// Returns the bytes of the number at `at`.
fn number<const N: usize>(buffer: &[u8], at: usize) -> Result<[u8; N], Damaged> {
    buffer.get(at..).and_then(|rest| rest.first_chunk()).copied().ok_or(Damaged)
}
