//! The packed corpus of a fuzz target, for the ordinary tests: each unit is its length as four
//! bytes (little-endian) and its bytes. `scripts/fuzz` writes the files. `fuzz/regressions` contains
//! the units that crashed a target once.

use std::path::PathBuf;

/// Returns the units of a target. If `UPDATE_CORPUS` is set, adds `seeds` to its file first.
pub(crate) fn units(target: &str, seeds: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let fuzz = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let path = fuzz.join(format!("corpus/{target}.units"));
    let mut units = unpack(&std::fs::read(&path).unwrap_or_default());
    if std::env::var_os("UPDATE_CORPUS").is_some() {
        units.extend(seeds.iter().cloned());
        units.sort();
        units.dedup();
        units.sort_by_key(Vec::len);
        let pack = |unit: &Vec<u8>| [&(unit.len() as u32).to_le_bytes(), unit.as_slice()].concat();
        let packed: Vec<u8> = units.iter().flat_map(pack).collect();
        std::fs::write(&path, packed).expect("the corpus is writable");
    }
    assert!(!units.is_empty(), "{} contains no unit", path.display());
    units
        .extend(unpack(&std::fs::read(fuzz.join(format!("regressions/{target}.units"))).unwrap_or_default()));
    units
}

fn unpack(mut packed: &[u8]) -> Vec<Vec<u8>> {
    let mut units = Vec::new();
    while let Some((length, rest)) = packed.split_first_chunk::<4>() {
        let (unit, rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
        units.push(unit.to_vec());
        packed = rest;
    }
    units
}
