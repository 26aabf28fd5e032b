//! Writes a federation of many small devices, device by device, and opens it.
//!
//! ```console
//! $ cargo run --release -p deltafl-data --example million_devices -- 1000000 /tmp/million
//! ```
//!
//! Each device has 10 examples of 16 features of two classes, whose means lie apart by a shift of
//! the device's own.

use std::time::Instant;

use deltafl::data::{DeviceExamples, InputKind, Split, TargetKind};
use deltafl::stream::{Purpose, Stream};
use deltafl_data::{FederationWriter, Heading};

const EXAMPLES: usize = 10;
const DIM: usize = 16;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    // Examples run in the tests too, without arguments.
    let (devices, out) = match &arguments[..] {
        [_, devices, out] => (devices.parse()?, out.into()),
        _ => (1_000, std::env::temp_dir().join(format!("deltafl-many-{}", std::process::id()))),
    };
    let start = Instant::now();
    write(devices, &out)?;
    println!("wrote {devices} devices in {:.2} s", start.elapsed().as_secs_f64());
    let start = Instant::now();
    let federation = deltafl_data::open(&out)?;
    println!("opened {} devices in {:.2} ms", federation.len(), start.elapsed().as_secs_f64() * 1e3);
    if arguments.len() < 3 {
        drop(federation);
        std::fs::remove_dir_all(&out)?;
    }
    Ok(())
}

fn write(devices: u64, out: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
    let heading = Heading {
        name: "many".to_owned(),
        kind: InputKind::Dense { dim: DIM },
        target: TargetKind::Classes(2),
    };
    let mut writer = FederationWriter::create(out, heading)?;
    let (mut values, mut labels) = (vec![0.0; EXAMPLES * DIM], vec![0; EXAMPLES]);
    for k in 0..devices {
        let mut stream = Stream::new(1, Purpose::Synthesis, 0, k);
        let shift = stream.uniform(-1.0, 1.0);
        for (row, label) in values.chunks_exact_mut(DIM).zip(&mut labels) {
            *label = stream.below(2) as u32;
            let side = if *label == 1 { 1.0 } else { -1.0 };
            row.iter_mut().for_each(|x| *x = (side * shift + stream.uniform(-1.0, 1.0)) as f32);
        }
        let split = if k % 2 == 0 { Split::Train } else { Split::Test };
        writer.push(&format!("device-{k}"), split, DeviceExamples::Dense(&values), &labels)?;
    }
    writer.finish()?;
    Ok(())
}
