//! The defences that the environment switches off. Only tests compile this file, so that the
//! sources of the crate read no environment.

use std::sync::OnceLock;

use super::{Defence, Defences};

/// Returns every defence except those named in `DELTAFL_WITHOUT`.
pub(super) fn switched() -> Defences {
    static SWITCHED: OnceLock<Defences> = OnceLock::new();
    *SWITCHED.get_or_init(|| {
        let names = std::env::var("DELTAFL_WITHOUT").unwrap_or_default();
        let off = Defence::NAMES.iter().filter(|(name, _)| names.split(',').any(|off| off == *name));
        off.fold(Defences::ALL, |all, (_, defence)| all.without(*defence))
    })
}
