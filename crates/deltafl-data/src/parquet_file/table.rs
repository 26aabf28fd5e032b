//! Flat tables: columns of strings and numbers with a name.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as PhysicalType};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::FileReader as _;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{Type, TypePtr};

use super::batch::{LeafBatch, LeafValues};
use super::columns::{self, Leaf, LeafType};

/// Rows read at a time.
const BATCH: usize = 8192;

/// The values of a column.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum TableColumn {
    /// Strings.
    Text(Vec<String>),
    /// Whole numbers of 32 bits.
    U32(Vec<u32>),
    /// Whole numbers of 64 bits.
    U64(Vec<u64>),
    /// Real numbers.
    F64(Vec<f64>),
    /// Real numbers, some of which are missing.
    OptionalF64(Vec<Option<f64>>),
}

impl TableColumn {
    /// Returns the number of values.
    pub fn len(&self) -> usize {
        match self {
            Self::Text(values) => values.len(),
            Self::U32(values) => values.len(),
            Self::U64(values) => values.len(),
            Self::F64(values) => values.len(),
            Self::OptionalF64(values) => values.len(),
        }
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the values of a column of the same type.
    ///
    /// # Panics
    ///
    /// If the types differ.
    pub fn append(&mut self, other: Self) {
        match (self, other) {
            (Self::Text(values), Self::Text(other)) => values.extend(other),
            (Self::U32(values), Self::U32(other)) => values.extend(other),
            (Self::U64(values), Self::U64(other)) => values.extend(other),
            (Self::F64(values), Self::F64(other)) => values.extend(other),
            (Self::OptionalF64(values), Self::OptionalF64(other)) => values.extend(other),
            _ => panic!("the columns have different types"),
        }
    }

    fn schema(&self, name: &str) -> Result<TypePtr, ParquetError> {
        let (physical, logical) = match self {
            Self::Text(_) => (PhysicalType::BYTE_ARRAY, Some(LogicalType::String)),
            Self::U32(_) => (PhysicalType::INT32, Some(LogicalType::integer(32, false))),
            Self::U64(_) => (PhysicalType::INT64, Some(LogicalType::integer(64, false))),
            Self::F64(_) | Self::OptionalF64(_) => (PhysicalType::DOUBLE, None),
        };
        let optional = matches!(self, Self::OptionalF64(_));
        let repetition = if optional { Repetition::OPTIONAL } else { Repetition::REQUIRED };
        let field = Type::primitive_type_builder(name, physical);
        Ok(Arc::new(field.with_repetition(repetition).with_logical_type(logical).build()?))
    }

    fn write<W: Write + Send>(
        &self,
        group: &mut SerializedRowGroupWriter<'_, W>,
    ) -> Result<(), ParquetError> {
        let missing = || ParquetError::General("the table has more columns than its schema".to_owned());
        let mut column = group.next_column()?.ok_or_else(missing)?;
        match self {
            Self::Text(values) => {
                let values: Vec<ByteArray> = values.iter().map(|text| text.as_str().into()).collect();
                column.typed::<ByteArrayType>().write_batch(&values, None, None)?;
            }
            Self::U32(values) => {
                let values: Vec<i32> = values.iter().map(|&value| value as i32).collect();
                column.typed::<Int32Type>().write_batch(&values, None, None)?;
            }
            Self::U64(values) => {
                let values: Vec<i64> = values.iter().map(|&value| value as i64).collect();
                column.typed::<Int64Type>().write_batch(&values, None, None)?;
            }
            Self::F64(values) => {
                column.typed::<DoubleType>().write_batch(values, None, None)?;
            }
            Self::OptionalF64(values) => {
                let present: Vec<f64> = values.iter().copied().flatten().collect();
                let levels: Vec<i16> = values.iter().map(|value| value.is_some().into()).collect();
                column.typed::<DoubleType>().write_batch(&present, Some(&levels), None)?;
            }
        }
        column.close()
    }
}

/// Writes a table, one row group after the other.
pub struct TableWriter<W: Write + Send>(SerializedFileWriter<W>);

impl<W: Write + Send> std::fmt::Debug for TableWriter<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableWriter").finish_non_exhaustive()
    }
}

impl<W: Write + Send> TableWriter<W> {
    /// Starts a file with columns of these names and types, and metadata of keys and values.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn new<N: AsRef<str>>(
        file: W,
        columns: &[(N, TableColumn)],
        metadata: &[(&str, String)],
        compression: Compression,
    ) -> Result<Self, ParquetError> {
        let fields = columns.iter().map(|(name, column)| column.schema(name.as_ref()));
        let fields = fields.collect::<Result<Vec<_>, _>>()?;
        let schema = Type::group_type_builder("table").with_fields(fields).build()?;
        let metadata = metadata.iter().map(|(key, value)| KeyValue::new((*key).to_owned(), value.clone()));
        let properties = WriterProperties::builder()
            .set_compression(compression)
            .set_key_value_metadata(Some(metadata.collect()))
            .build();
        Ok(Self(SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties))?))
    }

    /// Writes rows as one row group.
    ///
    /// # Errors
    ///
    /// If the file cannot be written, or if the columns differ from those of the file.
    pub fn write<N: AsRef<str>>(&mut self, columns: &[(N, TableColumn)]) -> Result<(), ParquetError> {
        let mut group = self.0.next_row_group()?;
        columns.iter().try_for_each(|(_, column)| column.write(&mut group))?;
        group.close()?;
        Ok(())
    }

    /// Writes the end of the file.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn finish(self) -> Result<(), ParquetError> {
        self.0.close()?;
        Ok(())
    }
}

/// A table in memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParquetTable {
    /// Named columns of equal length. Columns with values of another type are omitted.
    pub columns: Vec<(String, TableColumn)>,
    /// Keys and values of the file.
    pub metadata: Vec<(String, String)>,
}

impl ParquetTable {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// If it cannot be read or is damaged.
    pub fn read(path: &Path) -> Result<Self, ParquetError> {
        let file = columns::open(File::open(path)?)?;
        let metadata = file.metadata().file_metadata();
        let schema = metadata.schema_descr();
        let mut table = Self::default();
        for pair in metadata.key_value_metadata().into_iter().flatten() {
            table.metadata.push((pair.key.clone(), pair.value.clone().unwrap_or_default()));
        }
        let mut leaves = Vec::new();
        for (i, field) in schema.root_schema().get_fields().iter().enumerate() {
            if let Some((leaf, column)) = Leaf::find(schema, i).ok().and_then(empty_column) {
                leaves.push(leaf);
                table.columns.push((field.name().to_owned(), column));
            }
        }
        columns::for_each_batch(
            &file,
            &leaves,
            BATCH,
            |error| error,
            |batches| {
                let columns = table.columns.iter_mut().zip(batches);
                columns.into_iter().try_for_each(|((_, column), batch)| append(column, batch))
            },
        )?;
        Ok(table)
    }

    /// Returns a column.
    pub fn column(&self, name: &str) -> Option<&TableColumn> {
        self.columns.iter().find(|(known, _)| known == name).map(|(_, column)| column)
    }

    /// Returns the value of a key.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.metadata.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }
}

/// Returns an empty column for the values of a leaf, or `None` if a table cannot contain them.
fn empty_column(leaf: Leaf) -> Option<(Leaf, TableColumn)> {
    if leaf.list || leaf.in_struct {
        return None;
    }
    let column = match leaf.of {
        LeafType::Utf8 => TableColumn::Text(Vec::new()),
        LeafType::UInt32 => TableColumn::U32(Vec::new()),
        LeafType::UInt64 => TableColumn::U64(Vec::new()),
        LeafType::Float64 if leaf.is_required() => TableColumn::F64(Vec::new()),
        LeafType::Float64 => TableColumn::OptionalF64(Vec::new()),
        _ => return None,
    };
    Some((leaf, column))
}

/// Appends the rows of a batch.
fn append(column: &mut TableColumn, batch: &LeafBatch) -> Result<(), ParquetError> {
    let null = || ParquetError::General("a column of the table has nulls".to_owned());
    match (column, &batch.values) {
        (TableColumn::OptionalF64(column), LeafValues::F64(values)) => {
            column.extend((0..batch.rows()).map(|row| batch.range(row).next().map(|i| values[i])));
        }
        _ if batch.has_missing() => return Err(null()),
        (TableColumn::F64(column), LeafValues::F64(values)) => column.extend(values),
        (TableColumn::U32(column), LeafValues::I32(values)) => {
            column.extend(values.iter().map(|&value| value as u32));
        }
        (TableColumn::U64(column), LeafValues::I64(values)) => {
            column.extend(values.iter().map(|&value| value as u64));
        }
        (TableColumn::Text(column), LeafValues::Bytes(values)) => {
            for value in values {
                column.push(value.as_utf8()?.to_owned());
            }
        }
        _ => return Err(ParquetError::General("a column has values of another type".to_owned())),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_survives_to_the_bit() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let columns = vec![
            ("text", TableColumn::Text(vec!["a".into(), "å".into(), String::new()])),
            ("u32", TableColumn::U32(vec![0, 7, u32::MAX])),
            ("u64", TableColumn::U64(vec![0, 7, u64::MAX])),
            ("f64", TableColumn::F64(vec![0.1, f64::MIN_POSITIVE, -0.0])),
            ("optional", TableColumn::OptionalF64(vec![Some(1.0 / 3.0), None, Some(0.0)])),
        ];
        let metadata = [("key", "value".to_owned())];
        let mut writer =
            TableWriter::new(file.reopen().unwrap(), &columns, &metadata, Compression::SNAPPY).unwrap();
        writer.write(&columns).unwrap();
        writer.write(&columns).unwrap();
        writer.finish().unwrap();
        let table = ParquetTable::read(file.path()).unwrap();
        assert_eq!(table.value("key"), Some("value"));
        for ((name, mut column), (read_name, read)) in columns.into_iter().zip(table.columns) {
            column.append(column.clone());
            assert_eq!((name.to_owned(), column), (read_name, read));
        }
    }
}
