//! Arrow files and streams of other programs: every flat type, nulls, dictionaries, views, compression.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::builder::StringDictionaryBuilder;
use arrow_array::types::{Float16Type, Int8Type};
use arrow_array::{
    ArrayRef, ArrowPrimitiveType, BooleanArray, Date32Array, Date64Array, Decimal128Array, Float16Array,
    Float64Array, Int8Array, Int64Array, LargeStringArray, NullArray, RecordBatch, StringArray,
    StringViewArray, TimestampMillisecondArray, UInt16Array,
};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use deltafl::data::{BatchBuffer, Federation, FederationIndex, MissingRule};
use deltafl_data::import::table::{TableColumns, TableFormat};
use deltafl_data::import::{Features, ImportError, ImportTarget, Imported, auto, table};
use tempfile::TempDir;

/// The form of a file.
#[derive(Clone, Copy, Debug)]
enum Form {
    File,
    Stream,
}

/// Writes batches of the same columns.
fn arrow(form: Form, compression: Option<CompressionType>, batches: &[RecordBatch]) -> Vec<u8> {
    let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
    let (mut bytes, schema) = (Vec::new(), batches[0].schema());
    match form {
        Form::File => {
            let mut writer = FileWriter::try_new_with_options(&mut bytes, &schema, options).unwrap();
            batches.iter().for_each(|batch| writer.write(batch).unwrap());
            writer.finish().unwrap();
        }
        Form::Stream => {
            let mut writer = StreamWriter::try_new_with_options(&mut bytes, &schema, options).unwrap();
            batches.iter().for_each(|batch| writer.write(batch).unwrap());
            writer.finish().unwrap();
        }
    }
    bytes
}

fn write(dir: &Path, bytes: &[u8]) -> PathBuf {
    let path = dir.join("f.arrow");
    std::fs::write(&path, bytes).unwrap();
    path
}

fn import(dir: &TempDir, bytes: &[u8], columns: &TableColumns) -> Result<Imported, ImportError> {
    let path = write(dir.path(), bytes);
    let target = ImportTarget::new(dir.path().join("out"));
    table::import_files(&[path], TableFormat::Arrow, columns, Features::Dense, &target)
}

fn opened(imported: &Imported) -> Federation {
    let federation = imported.open().unwrap();
    federation.verify().unwrap();
    federation
}

fn inputs(federation: &Federation, k: FederationIndex) -> Vec<f32> {
    let examples = federation.examples(k);
    BatchBuffer::default().gather(&examples, 0..examples.len()).inputs.dense().to_vec()
}

fn columns() -> TableColumns {
    TableColumns {
        device: Some("clinic".into()),
        label: "y".into(),
        missing: MissingRule::Mean,
        dates: ["born", "died", "seen"].map(str::to_owned).to_vec(),
        ..TableColumns::default()
    }
}

/// Two rows of every flat type. The strings of the second row are longer than a view stores.
fn batch(first_clinic: &str) -> RecordBatch {
    let day = 86_400_000;
    let half = |x: f32| <Float16Type as ArrowPrimitiveType>::Native::from_f32(x);
    let mut sex = StringDictionaryBuilder::<Int8Type>::new();
    sex.append("M").unwrap();
    sex.append("F").unwrap();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("clinic", Arc::new(StringViewArray::from(vec![first_clinic, "a clinic with a long name"]))),
        ("sex", Arc::new(sex.finish())),
        ("kind", Arc::new(LargeStringArray::from(vec![Some("flat"), None]))),
        ("cost", Arc::new(Decimal128Array::from(vec![12_345, -50]).with_precision_and_scale(9, 2).unwrap())),
        ("half", Arc::new(Float16Array::from_iter_values([1.5, -0.25].map(half)))),
        ("real", Arc::new(Float64Array::from(vec![Some(2.5), None]))),
        ("small", Arc::new(Int8Array::from(vec![-7, 7]))),
        ("wide", Arc::new(UInt16Array::from(vec![60_000, 1]))),
        ("smokes", Arc::new(BooleanArray::from(vec![true, false]))),
        ("born", Arc::new(Date32Array::from(vec![10, 20]))),
        ("died", Arc::new(Date64Array::from(vec![2 * day, 3 * day]))),
        ("seen", Arc::new(TimestampMillisecondArray::from(vec![day / 2, 3 * day]))),
        ("nothing", Arc::new(NullArray::new(2))),
        ("y", Arc::new(Int64Array::from(vec![0, 1]))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true)))
        .unwrap()
}

#[test]
fn every_form_compression_and_flat_type_is_read() {
    let batches = [batch("a clinic with a long name"), batch("b")];
    for form in [Form::File, Form::Stream] {
        for compression in [None, Some(CompressionType::LZ4_FRAME), Some(CompressionType::ZSTD)] {
            let dir = TempDir::new().unwrap();
            let imported = import(&dir, &arrow(form, compression, &batches), &columns()).unwrap();
            let federation = opened(&imported);
            let long =
                federation.devices().find(|&k| federation.id(k) == "a clinic with a long name").unwrap();
            assert_eq!(federation.example_count(long), 3, "{form:?} {compression:?}");
            // sex F, M; kind flat, missing; then one feature per number; smokes false, true; dates.
            #[rustfmt::skip]
            let first = [0.0, 1.0, 1.0, 0.0, 123.45, 1.5, 2.5, -7.0, 60_000.0, 0.0, 1.0, 10.0, 2.0, 0.5];
            #[rustfmt::skip]
            let second = [1.0, 0.0, 0.0, 1.0, -0.5, -0.25, 2.5, 7.0, 1.0, 1.0, 0.0, 20.0, 3.0, 3.0];
            let expected = [first, second, second].concat();
            assert_eq!(inputs(&federation, long), expected, "{form:?} {compression:?}");
        }
    }
}

#[test]
fn a_file_is_inspected_like_any_table() {
    let dir = TempDir::new().unwrap();
    let clinics = StringArray::from((0..30).map(|i| format!("clinic {}", i % 3)).collect::<Vec<_>>());
    let ages = Float64Array::from((0..30).map(|i| f64::from(i * 7 % 13)).collect::<Vec<_>>());
    let outcome = StringArray::from((0..30).map(|i| ["ill", "well"][i % 2]).collect::<Vec<_>>());
    let columns: Vec<(&str, ArrayRef)> =
        vec![("clinic", Arc::new(clinics)), ("age", Arc::new(ages)), ("outcome", Arc::new(outcome))];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    for form in [Form::File, Form::Stream] {
        let path = write(dir.path(), &arrow(form, None, std::slice::from_ref(&batch)));
        let found = auto::inspect(&[path], &auto::AutoOptions::default()).unwrap();
        assert_eq!(found.format, TableFormat::Arrow);
        assert_eq!((found.table.device.as_deref(), &found.table.label[..]), (Some("clinic"), "outcome"));
        assert_eq!(found.table.numbers, ["age"]);
    }
}

#[test]
fn what_is_missing_is_named_with_its_row() {
    let dir = TempDir::new().unwrap();
    let bytes = arrow(Form::File, None, &[batch("a"), batch("b")]);
    let strict = TableColumns { missing: MissingRule::Error, ..columns() };
    let refused = import(&dir, &bytes, &strict).unwrap_err().to_string();
    assert!(refused.contains("row 0: the value of column \"nothing\" is missing"), "{refused}");
    let strict = TableColumns {
        features: vec!["small".into(), "real".into()],
        missing: MissingRule::Error,
        ..columns()
    };
    let refused = import(&dir, &bytes, &strict).unwrap_err().to_string();
    assert!(refused.contains("row 1: the value of column \"real\" is missing"), "{refused}");
    assert!(!dir.path().join("out").exists());
}

#[test]
fn a_file_is_refused_wherever_it_is_cut() {
    for form in [Form::File, Form::Stream] {
        let whole = arrow(form, Some(CompressionType::ZSTD), &[batch("a"), batch("b")]);
        // A stream may end without its end mark, after a whole message.
        for len in (0..whole.len()).step_by(37) {
            let dir = TempDir::new().unwrap();
            match import(&dir, &whole[..len], &columns()) {
                Err(error) => {
                    assert!(error.to_string().contains("f.arrow"), "{error}");
                    assert!(!dir.path().join("out").exists());
                }
                Ok(_) => assert!(matches!(form, Form::Stream), "{len} of {} bytes", whole.len()),
            }
        }
    }
}

#[test]
fn no_changed_byte_makes_the_reader_panic() {
    for (form, compression) in [(Form::File, None), (Form::Stream, Some(CompressionType::LZ4_FRAME))] {
        let whole = arrow(form, compression, &[batch("a")]);
        for at in (0..whole.len()).step_by(3) {
            let mut changed = whole.clone();
            changed[at] ^= 1 << (at % 8);
            let dir = TempDir::new().unwrap();
            if let Ok(imported) = import(&dir, &changed, &columns()) {
                opened(&imported);
            }
        }
    }
}

#[test]
fn other_files_are_named() {
    let columns = columns();
    for (bytes, expected) in [
        (&b""[..], "`ARROW1` is missing at byte 0"),
        (b"a,b\n1,2\n", "`ARROW1` is missing at byte 0"),
        (b"ARROW1\0\0", "`ARROW1` is missing at byte"),
        (b"\xff\xff\xff\xff\xff\xff\xff\x7f", "outside the file"),
        (b"\xff\xff\xff\xff\x00\x00\x00\x00", "the schema at byte 0 is damaged"),
    ] {
        let dir = TempDir::new().unwrap();
        let refused = import(&dir, bytes, &columns).unwrap_err().to_string();
        assert!(
            refused.contains("not an Arrow file that can be read") && refused.contains(expected),
            "{refused}"
        );
    }
}
