//! SCAFFOLD: control variates correct the drift of a device's data from the population (Karimireddy
//! et al., 2020, option II).
//!
//! ```text
//! device k:   w ← w − γ (∇f_k(w; ξ) − c_k + c)                       K steps from w_t
//!             c_k⁺ = c_k − c + (w_t − w_k) / (K γ)
//! server:     w_{t+1} = w_t + γ_g · mean of (w_k − w_t)
//!             c ← c + |S_t| / N · mean of (c_k⁺ − c_k)
//! ```
//!
//! c_k stays on its device: in its memory, and in a deployment on its disk. Means use the weights
//! of the devices, and equal those of the paper with `weights = "uniform"`.

use super::{Algorithm, AlgorithmParts, Requires};
use crate::memory::AlgorithmState;
use crate::options::{Interval, OptionDefault, OptionKind, OptionSpec, OptionValue};
use crate::params::{Params, UpdateSum};
use crate::selection::EVERYONE;
use crate::server_step::{ServerStep, ServerStepInput};
use crate::trainer::{Correction, LocalResult};

/// SCAFFOLD.
pub static SCAFFOLD: Algorithm = Algorithm {
    kind: "scaffold",
    title: "SCAFFOLD",
    about: "federated averaging with control variates, which correct the drift of each local step",
    options: &[OptionSpec {
        name: "global_rate",
        symbol: "γ_g",
        kind: OptionKind::Real(Interval::POSITIVE),
        default: OptionDefault::Value(OptionValue::Real(1.0)),
        usual: None,
        levels: false,
        about: "step size of the server along the mean update",
        example: OptionValue::Real(1.0),
        grid: &[],
    }],
    build: |options| {
        let server = Box::new(Control { rate: options.real("global_rate")? });
        Ok(AlgorithmParts { correction: Some(&CONTROL_VARIATE), server, ..AlgorithmParts::default() })
    },
    weightings: &[&EVERYONE],
    corrections: &[&CONTROL_VARIATE],
    requires: Requires::Sums,
};

/// The name of c in the track's memory and of c_k in the device's memory.
const CONTROL: &str = "control";

/// c − c_k is added to every gradient.
pub static CONTROL_VARIATE: Correction = Correction {
    name: "control-variate",
    sent: &[CONTROL],
    drift: |sent, own, drift| {
        drift.copy_from_slice(sent[0].as_slice());
        if let Some(control) = own.vector(CONTROL) {
            drift.iter_mut().zip(control.as_slice()).for_each(|(drift, own)| *drift -= own);
        }
    },
    finish,
};

/// Computes c_k⁺ and its difference from c_k.
fn finish(trained: &LocalResult<'_>, own: &mut AlgorithmState, changes: &mut [f32]) {
    let LocalResult { params, local, sent, steps, learning_rate, .. } = *trained;
    let per_step = 1.0 / (steps as f64 * f64::from(learning_rate));
    let moved = params.iter().zip(local).map(|(&from, &to)| (f64::from(from) - f64::from(to)) * per_step);
    for ((change, moved), &control) in changes.iter_mut().zip(moved).zip(sent[0].as_slice()) {
        *change = (moved - f64::from(control)) as f32;
    }
    let next = match own.vector(CONTROL) {
        Some(before) => before.as_slice().iter().zip(&*changes).map(|(own, change)| own + change).collect(),
        None => changes.to_vec(),
    };
    own.set_vector(CONTROL, next.into());
}

/// The server step.
#[derive(Clone, Copy, Debug)]
struct Control {
    rate: f64,
}

impl ServerStep for Control {
    fn apply(
        &self,
        at: &ServerStepInput<'_>,
        sum: &UpdateSum,
        memory: &mut AlgorithmState,
    ) -> Option<Params> {
        let params = at.params.as_slice();
        let mut mean = sum.mean()?;
        let moved: Vec<f32> = params
            .iter()
            .zip(mean.by_ref())
            .map(|(&w, step)| (f64::from(w) + self.rate * step) as f32)
            .collect();
        let share = sum.tail() as f64 / at.devices as f64;
        let zero = vec![0.0; params.len()];
        let control = memory.vector(CONTROL).map_or(&zero[..], Params::as_slice);
        let control: Vec<f32> =
            control.iter().zip(mean).map(|(&c, change)| (f64::from(c) + share * change) as f32).collect();
        memory.set_vector(CONTROL, control.into());
        Some(moved.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::UpdateCode;

    #[test]
    fn a_device_keeps_its_control_and_tells_the_change() {
        let sent = [Params::from(vec![0.5, -1.0])];
        let mut own = AlgorithmState::default();
        let mut drift = [0.0; 2];
        (CONTROL_VARIATE.drift)(&sent, &own, &mut drift);
        assert_eq!(drift, [0.5, -1.0], "a new device has no control of its own");
        let trained = LocalResult {
            params: &[1.0, 1.0],
            local: &[0.0, 1.5],
            sent: &sent,
            steps: 4,
            learning_rate: 0.125,
            proximal: 0.0,
        };
        let mut changes = [0.0; 2];
        (CONTROL_VARIATE.finish)(&trained, &mut own, &mut changes);
        // (w_t − w_k) / (K γ) is (2, −1). Minus c this is (1.5, 0).
        assert_eq!(changes, [1.5, 0.0]);
        assert_eq!(own.vector(CONTROL).unwrap().as_slice(), [1.5, 0.0]);
        (CONTROL_VARIATE.drift)(&sent, &own, &mut drift);
        assert_eq!(drift, [-1.0, -1.0]);
        (CONTROL_VARIATE.finish)(&trained, &mut own, &mut changes);
        assert_eq!((changes, own.vector(CONTROL).unwrap().as_slice()), ([1.5, 0.0], &[3.0, 0.0][..]));
    }

    #[test]
    fn the_server_moves_by_the_means_and_its_control_by_the_share_of_devices() {
        let params = Params::from(vec![1.0]);
        let mut sum = vec![0; UpdateCode::len(2)];
        let code = UpdateCode::new(2);
        for (local, change) in [(2.0, 4.0), (4.0, 0.0)] {
            code.add_parts(&[(&[local], params.as_slice()), (&[change], &[0.0])], 1.0, &mut sum).unwrap();
        }
        let sum = UpdateSum::new(sum, 2).unwrap();
        let mut memory = AlgorithmState::default();
        let moved = Control { rate: 0.5 }.apply(
            &ServerStepInput { params: &params, devices: 10, learning_rate: 0.1 },
            &sum,
            &mut memory,
        );
        assert_eq!(moved.unwrap().as_slice(), [2.0]);
        // The mean change is 2, from 2 of 10 devices.
        assert_eq!(memory.vector(CONTROL).unwrap().as_slice(), [0.4]);
    }
}
