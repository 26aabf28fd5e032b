//! The bodies of the fuzz targets of files, also run by ordinary tests of `deltafl-data`. No input may
//! cause a panic. An imported federation opens and verifies, and a parsed value survives serialisation.

use std::path::Path;

use deltafl::data::{
    BatchBuffer, DeviceExamples, Federation, FederationBuilder, FederationIndex, InputKind, MissingRule,
    Split,
};
use deltafl::kernel::Isa;
use deltafl_data::experiment::Experiment;
use deltafl_data::import::table::{Dialect, TableColumns, TableFormat};
use deltafl_data::import::{
    Features, ImportError, ImportTarget, Imported, auto, emnist, idx, images, leaf, npz, parquet, sent140,
    shakespeare, table,
};
use deltafl_data::run_folder::{checkpoint_bytes, state_of_checkpoint};

/// The name of a target and its body.
pub(crate) type Target = (&'static str, fn(&[u8]));

/// The targets.
pub(crate) const TARGETS: &[Target] = &[
    ("data_arrow", arrow),
    ("data_auto", inspected),
    ("data_checkpoint", checkpoint),
    ("data_emnist", |bytes| import(bytes, |path, target| emnist::import(path, path, target))),
    ("data_experiment", experiment),
    ("data_federation", federation),
    ("data_idx", idx_files),
    ("data_images", image_folder),
    ("data_json_lines", json_lines),
    ("data_leaf", |bytes| {
        import(bytes, |path, target| leaf::import(&[path.to_owned()], Features::Auto, target));
    }),
    ("data_npz", npz_archive),
    ("data_parquet", parquet_file),
    ("data_sent140", tweets),
    ("data_shakespeare", |bytes| import(bytes, shakespeare::import)),
    ("data_table", csv),
];

/// Calls `import` with a file that contains these bytes.
fn import(bytes: &[u8], import: impl FnOnce(&Path, &ImportTarget) -> Result<Imported, ImportError>) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("input");
    std::fs::write(&path, bytes).expect("a temporary file");
    if let Ok(imported) = import(&path, &ImportTarget::new(dir.path().join("out"))) {
        let federation = imported.open().expect("an imported federation opens");
        federation.verify().expect("an imported federation matches its hash");
    }
}

/// Imports an Arrow file or stream.
fn arrow(bytes: &[u8]) {
    let columns = TableColumns { label: "y".into(), missing: MissingRule::Mean, ..TableColumns::default() };
    import(bytes, |path, target| {
        table::import_files(&[path.to_owned()], TableFormat::Arrow, &columns, Features::Auto, target)
    });
}

/// Inspects a table of any format and imports it.
fn inspected(bytes: &[u8]) {
    import(bytes, |path, target| {
        let paths = [path.to_owned()];
        let found = auto::inspect(&paths, &auto::AutoOptions::default())?;
        let target = ImportTarget { regression: found.regression, ..target.clone() };
        table::import_files(&paths, found.format, &found.table, Features::Auto, &target)
    });
}

/// Decodes a checkpoint.
fn checkpoint(bytes: &[u8]) {
    if let Ok(state) = state_of_checkpoint(bytes)
        && let Ok(written) = checkpoint_bytes(&state)
    {
        let again = state_of_checkpoint(&written).expect("a serialised value can be parsed");
        assert_eq!(checkpoint_bytes(&again).expect("written above"), written);
    }
}

/// Parses an experiment file, and builds its model for two small federations.
fn experiment(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let experiment = match Experiment::parse(text) {
        Ok(experiment) => experiment,
        Err(error) => {
            error.line(text);
            return;
        }
    };
    let written = experiment.to_toml();
    let again = Experiment::parse(&written).expect("a serialised value can be parsed");
    assert_eq!(again.to_toml(), written);
    let _ = (experiment.address(), experiment.privacy_cost(1000));
    for inputs in [InputKind::Bytes { dim: 64 }, InputKind::Tokens { len: 4, vocabulary: 5 }] {
        let empty: Federation = FederationBuilder::new("fuzz", inputs, 3).build();
        let _ = experiment.model().spec().build(&empty, Isa::Reference);
    }
}

/// Opens a federation folder. The first byte selects the file that contains the other bytes.
fn federation(bytes: &[u8]) {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut builder = FederationBuilder::new("fuzz", InputKind::Tokens { len: 2, vocabulary: 3 }, 2);
    builder.push("a", Split::Train, DeviceExamples::Tokens(&[0, 1, 2, 0]), &[0, 1]).expect("a valid device");
    let folder = dir.path().join("federation");
    deltafl_data::save(&builder.build(), &folder).expect("a temporary folder");
    let name = ["examples.arrow", "devices.arrow", "federation.toml"][usize::from(choice % 3)];
    std::fs::write(folder.join(name), bytes).expect("a temporary file");
    let Ok(federation) = deltafl_data::open(&folder) else { return };
    let _ = federation.verify();
    for k in 0..federation.len() as u32 {
        let examples = federation.examples(FederationIndex(k));
        let _ = BatchBuffer::default().gather(&examples, 0..examples.len());
    }
}

/// Imports IDX files. The images, the labels and the table of devices have the same bytes.
fn idx_files(bytes: &[u8]) {
    import(bytes, |path, target| {
        let own = |devices| idx::IdxFiles { images: path.to_owned(), labels: path.to_owned(), devices };
        idx::import(&own(Some(path.to_owned())), target).or_else(|_| idx::import(&own(None), target))
    });
}

/// Imports a folder with one image.
fn image_folder(bytes: &[u8]) {
    import(bytes, |path, target| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let class = folder.path().join("class");
        std::fs::create_dir(&class).expect("a new folder");
        std::fs::copy(path, class.join("1.png")).expect("a copy");
        images::import_folder(folder.path(), images::ImageOptions::default(), target)
    });
}

/// Imports JSON lines with a column of text.
fn json_lines(bytes: &[u8]) {
    let columns = TableColumns { texts: vec!["t".into()], ..labelled_by_device() };
    import(bytes, |path, target| {
        table::import_files(&[path.to_owned()], TableFormat::JsonLines, &columns, Features::Auto, target)
    });
}

/// Imports an archive of NumPy.
fn npz_archive(bytes: &[u8]) {
    let arrays = npz::NpzArrays { x: "x".into(), y: "y".into(), device: None };
    import(bytes, |path, target| npz::import(path, &arrays, Features::Auto, target));
}

/// Imports a Parquet file.
fn parquet_file(bytes: &[u8]) {
    let columns = TableColumns { label: "y".into(), ..TableColumns::default() };
    import(bytes, |path, target| parquet::import(&[path.to_owned()], &columns, Features::Auto, target));
}

/// Imports tweets and word vectors. The bytes before the first NUL are the tweets, the rest the vectors.
fn tweets(bytes: &[u8]) {
    let cut = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    import(&bytes[..cut], |path, target| {
        let vectors = path.with_file_name("vectors");
        std::fs::write(&vectors, bytes.get(cut + 1..).unwrap_or_default()).expect("a temporary file");
        let features = sent140::TweetFeatures::Tokens;
        let options = sent140::TweetOptions { vectors, features, lowercase: true, columns: None };
        sent140::import(&[path.to_owned()], &options, target)
    });
}

/// Imports a CSV file with a header.
fn csv(bytes: &[u8]) {
    import(bytes, |path, target| {
        table::import(path, Dialect::Csv, &labelled_by_device(), Features::Auto, target)
    });
}

fn labelled_by_device() -> TableColumns {
    TableColumns { device: Some("d".into()), label: "y".into(), ..TableColumns::default() }
}
