//! The types of columns.

use super::super::metadata::{self, Damaged, MetadataTable, dictionary_encoding, field, of_type};

/// The deepest nesting of types.
const DEEPEST: usize = 32;

/// A column of a table, or the child of a nested column.
#[derive(Clone, Debug)]
pub(super) struct TableField {
    pub(super) name: String,
    /// The type of the values; of the values of the dictionary, if there is one.
    pub(super) of: ValueType,
    pub(super) dictionary: Option<Dictionary>,
    pub(super) children: Vec<Self>,
}

/// The dictionary of a column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dictionary {
    pub(super) id: i64,
    pub(super) index: WholeType,
}

/// A type of whole numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct WholeType {
    /// Bytes of a number: 1, 2, 4 or 8.
    pub(super) width: usize,
    pub(super) is_signed: bool,
}

/// The type of the values of a column.
#[derive(Clone, Copy, Debug)]
pub(super) enum ValueType {
    Null,
    Bool,
    Whole(WholeType),
    /// Bytes of a number: 2, 4 or 8.
    Float(usize),
    /// Bytes of an offset, 4 or 8, and whether the values are UTF-8.
    Variable {
        offset: usize,
        is_text: bool,
    },
    /// Views of strings or bytes.
    View {
        is_text: bool,
    },
    /// Bytes of a number, and the number of decimal places.
    Decimal {
        width: usize,
        scale: i32,
    },
    /// Bytes of a tick, and the number of ticks per day since 1970-01-01.
    Time {
        width: usize,
        per_day: f64,
    },
    /// Values of a fixed number of bytes that are not used.
    Fixed {
        name: &'static str,
    },
    /// Nested values, which are not used, with the number of their buffers without the validity.
    Nested {
        buffers: usize,
        has_validity: bool,
        name: &'static str,
    },
}

impl TableField {
    pub(super) fn parse(table: MetadataTable<'_>, depth: usize) -> Result<Self, Damaged> {
        if depth > DEEPEST {
            return Err(Damaged);
        }
        let name = String::from_utf8_lossy(table.string(field::NAME)?).into_owned();
        let dictionary = match table.table(field::DICTIONARY)? {
            None => None,
            Some(encoding) => Some(Dictionary {
                id: encoding.i64(dictionary_encoding::ID)?,
                index: match encoding.table(dictionary_encoding::INDEX_TYPE)? {
                    Some(index) => WholeType::parse(index)?,
                    None => WholeType { width: 4, is_signed: true },
                },
            }),
        };
        let children = table.tables(field::CHILDREN)?;
        let child = |i| Self::parse(children.get(i)?, depth + 1);
        let children = (0..children.len()).map(child).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { name, of: ValueType::parse(table)?, dictionary, children })
    }

    /// Returns the field, its child or its descendant that uses a dictionary.
    pub(super) fn with_dictionary(&self, id: i64) -> Option<&Self> {
        if self.dictionary.is_some_and(|dictionary| dictionary.id == id) {
            return Some(self);
        }
        self.children.iter().find_map(|child| child.with_dictionary(id))
    }
}

impl WholeType {
    fn parse(table: MetadataTable<'_>) -> Result<Self, Damaged> {
        let width = match table.i32(of_type::INT_BIT_WIDTH)? {
            8 => 1,
            16 => 2,
            32 => 4,
            64 => 8,
            _ => return Err(Damaged),
        };
        Ok(Self { width, is_signed: table.u8(of_type::INT_IS_SIGNED)? != 0 })
    }
}

impl ValueType {
    fn parse(table: MetadataTable<'_>) -> Result<Self, Damaged> {
        let of = table.u8(field::TYPE_TYPE)?;
        let details = || table.table(field::TYPE)?.ok_or(Damaged);
        let nested = |buffers, name| Self::Nested { buffers, has_validity: true, name };
        Ok(match of {
            metadata::TYPE_NULL => Self::Null,
            metadata::TYPE_INT => Self::Whole(WholeType::parse(details()?)?),
            metadata::TYPE_FLOATING_POINT => match details()?.i16(of_type::FLOAT_PRECISION)? {
                0 => Self::Float(2),
                metadata::SINGLE => Self::Float(4),
                2 => Self::Float(8),
                _ => return Err(Damaged),
            },
            metadata::TYPE_BINARY => Self::Variable { offset: 4, is_text: false },
            metadata::TYPE_UTF8 => Self::Variable { offset: 4, is_text: true },
            metadata::TYPE_LARGE_BINARY => Self::Variable { offset: 8, is_text: false },
            metadata::TYPE_LARGE_UTF8 => Self::Variable { offset: 8, is_text: true },
            metadata::TYPE_BINARY_VIEW => Self::View { is_text: false },
            metadata::TYPE_UTF8_VIEW => Self::View { is_text: true },
            metadata::TYPE_BOOL => Self::Bool,
            metadata::TYPE_DECIMAL => {
                let decimal = details()?;
                let width = match decimal.i32_or(of_type::DECIMAL_BIT_WIDTH, 128)? {
                    32 => 4,
                    64 => 8,
                    128 => 16,
                    256 => 32,
                    _ => return Err(Damaged),
                };
                Self::Decimal { width, scale: decimal.i32(of_type::DECIMAL_SCALE)? }
            }
            metadata::TYPE_DATE => match details()?.i16_or(of_type::UNIT, 1)? {
                0 => Self::Time { width: 4, per_day: 1.0 },
                1 => Self::Time { width: 8, per_day: 86_400e3 },
                _ => return Err(Damaged),
            },
            metadata::TYPE_TIMESTAMP => Self::Time {
                width: 8,
                per_day: match details()?.i16(of_type::UNIT)? {
                    0 => 86_400.0,
                    1 => 86_400e3,
                    2 => 86_400e6,
                    3 => 86_400e9,
                    _ => return Err(Damaged),
                },
            },
            metadata::TYPE_TIME => Self::Fixed { name: "times" },
            metadata::TYPE_DURATION => Self::Whole(WholeType { width: 8, is_signed: true }),
            metadata::TYPE_INTERVAL => Self::Fixed { name: "intervals" },
            metadata::TYPE_FIXED_SIZE_BINARY => Self::Fixed { name: "bytes" },
            metadata::TYPE_LIST | metadata::TYPE_LARGE_LIST => nested(1, "lists"),
            metadata::TYPE_MAP => nested(1, "maps"),
            metadata::TYPE_LIST_VIEW | metadata::TYPE_LARGE_LIST_VIEW => nested(2, "lists"),
            metadata::TYPE_FIXED_SIZE_LIST => nested(0, "lists"),
            metadata::TYPE_STRUCT => nested(0, "structs"),
            metadata::TYPE_UNION => {
                let is_dense = details()?.i16(of_type::UNIT)? == 1;
                Self::Nested { buffers: 1 + usize::from(is_dense), has_validity: false, name: "unions" }
            }
            metadata::TYPE_RUN_END_ENCODED => {
                Self::Nested { buffers: 0, has_validity: false, name: "runs of equal values" }
            }
            _ => return Err(Damaged),
        })
    }
}
