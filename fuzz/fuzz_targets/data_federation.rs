//! Opens a federation folder with arbitrary bytes as its examples or its device table.
#![no_main]

use deltafl::data::{BatchBuffer, DeviceExamples, FederationBuilder, FederationIndex, InputKind, Split};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|files: (&[u8], bool)| {
    let (bytes, is_table) = files;
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut builder = FederationBuilder::new("fuzz", InputKind::Tokens { len: 2, vocabulary: 3 }, 2);
    builder.push("a", Split::Train, DeviceExamples::Tokens(&[0, 1, 2, 0]), &[0, 1]).expect("a valid device");
    let folder = dir.path().join("federation");
    deltafl_data::save(&builder.build(), &folder).expect("a temporary folder");
    let name = if is_table { "devices.arrow" } else { "examples.arrow" };
    std::fs::write(folder.join(name), bytes).expect("a temporary file");
    let Ok(federation) = deltafl_data::open(&folder) else { return };
    let _ = federation.verify();
    for k in 0..federation.len() as u32 {
        let examples = federation.examples(FederationIndex(k));
        let mut buffer = BatchBuffer::default();
        let batch = buffer.gather(&examples, 0..examples.len());
        assert!(batch.targets.classes().iter().all(|&label| label < 2));
        assert!(batch.inputs.tokens().iter().all(|&token| token < 3));
    }
});
