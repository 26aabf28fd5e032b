//! Imports a table as `deltafl data import auto` does, for measurements: `import_table FILE
//! FOLDER`.

use std::path::PathBuf;

use deltafl_data::import::{Features, ImportError, ImportTarget, auto, table};

fn main() -> Result<(), ImportError> {
    let paths: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [source, out] = &paths[..] else {
        eprintln!("usage: import_table FILE FOLDER");
        std::process::exit(2);
    };
    let sources = [source.clone()];
    let found = auto::inspect(&sources, &auto::AutoOptions::default())?;
    let target = ImportTarget { regression: found.regression, ..ImportTarget::new(out) };
    let imported = table::import_files(&sources, found.format, &found.table, Features::Auto, &target)?;
    println!("{} devices, {} examples", imported.manifest.devices, imported.manifest.examples);
    Ok(())
}
