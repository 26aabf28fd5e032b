//! A device with its own trainer and its own examples: a line through points that never leave it.
//!
//! ```text
//! cargo run -p deltafl-server --example embedded &
//! for k in 0 1 2 3; do cargo run -p deltafl-device --example own_trainer -- 127.0.0.1:7700 sensor-$k & done
//! ```

use std::error::Error;
use std::ops::Range;
use std::sync::Arc;

use deltafl::data::Examples;
use deltafl::memory::AlgorithmState;
use deltafl::model::Score;
use deltafl::stream::Stream;
use deltafl::trainer::{LocalTask, LocalTrainer, TrainerError, Worker};
use deltafl_device::{Consent, Device, DeviceData, ServerEndpoint, ServerTrust};
use deltafl_wire::loopback;

/// y = a·x + b, by gradient descent on the squared error over the points (x, y) of this device.
struct Line(Vec<[f32; 2]>);

struct LineWorker<'a>(&'a [[f32; 2]], [f32; 2]);

impl LineWorker<'_> {
    /// x, and a·x + b − y, of a point.
    fn residual(&self, i: usize) -> (f32, f32) {
        let (&[x, y], [a, b]) = (&self.0[i], self.1);
        (x, a * x + b - y)
    }
}

impl LocalTrainer for Line {
    fn num_params(&self) -> usize {
        2
    }

    fn init(&self, _: &mut Stream, params: &mut [f32]) {
        params.fill(0.0);
    }

    fn worker(&self) -> Box<dyn Worker + '_> {
        Box::new(LineWorker(&self.0, [0.0; 2]))
    }
}

impl Worker for LineWorker<'_> {
    fn load(&mut self, params: &[f32]) {
        self.1.copy_from_slice(params);
    }

    fn score(&mut self, _: &Examples<'_>, block: Range<usize>) -> Result<Score, TrainerError> {
        let loss = block.map(|i| f64::from(0.5 * self.residual(i).1.powi(2))).sum();
        Ok(Score { loss, ..Score::default() })
    }

    fn update(
        &mut self,
        task: &LocalTask<'_>,
        _: &mut AlgorithmState,
        stream: &mut Stream,
    ) -> Result<&[f32], TrainerError> {
        let LocalTask { params, examples, plan, .. } = *task;
        self.load(params);
        for _ in 0..plan.examples(examples.len() as u64) {
            let (x, r) = self.residual(stream.below(examples.len() as u64) as usize);
            self.1[0] -= plan.learning_rate * r * x;
            self.1[1] -= plan.learning_rate * r;
        }
        Ok(&self.1)
    }
}

/// Takes part until it is dropped. The points lie on y = 2x + `shift`.
pub(crate) async fn take_part(
    server: String,
    name: &str,
    shift: f32,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let line = Line((0..20).map(|i| i as f32 / 20.0).map(|x| [x, 2.0 * x + shift]).collect());
    let data = DeviceData::held_by_trainer(name, line.0.len())?;
    let server = ServerEndpoint { address: server, trust: ServerTrust::Loopback };
    // A demonstration: a device in the field draws its batches for itself, among more devices.
    let consent = Consent { min_cohort: 3, reproducible: true, ..Consent::default() };
    Ok(Device::new(server, loopback::credentials(name), consent).run(Arc::new(line), data).await?)
}

#[allow(dead_code, reason = "a test takes the rest in as a module")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut args = std::env::args().skip(1);
    let (Some(server), Some(name)) = (args.next(), args.next()) else { return Err("HOST:PORT NAME".into()) };
    take_part(server, &name, 0.5).await
}
