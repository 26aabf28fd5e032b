//! The selection of a fuzz target. A program contains the targets of one area, and the environment
//! variable `FUZZ_TARGET` names the one to run.

use std::process;
use std::sync::OnceLock;

/// The name of a target and its body.
pub(crate) type Target = (&'static str, fn(&[u8]));

/// Selects the target. Without `FUZZ_TARGET`, prints the names of the targets and exits.
pub(crate) fn select(targets: &[Target]) {
    // The hook of libFuzzer aborts at panics that the readers catch. Others abort without it, too.
    drop(std::panic::take_hook());
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    if let Some(&(_, body)) = targets.iter().find(|(known, _)| *known == name) {
        SELECTED.get_or_init(|| body);
        return;
    }
    targets.iter().for_each(|(name, _)| println!("{name}"));
    process::exit(if name.is_empty() { 0 } else { 2 })
}

/// Runs the selected target.
pub(crate) fn run(data: &[u8]) {
    SELECTED.get().expect("selected at the start")(data);
}

static SELECTED: OnceLock<fn(&[u8])> = OnceLock::new();
