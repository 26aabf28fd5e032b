//! GIFAIR under secure sums: the rank of a device follows from a histogram of the losses.
//!
//! ```text
//! minimise    Σ_k p_k F_k + λ Σ_{j<k} p_j p_k |F_j − F_k|
//! ω_k       = 1 + λ (2 C(F_k(w_t)) − 1)       C: distribution function of the losses, weighted by α
//! w_{t+1}   = w_t + Σ α_k ω_k (w_k − w_t) / Σ α_k ω_k
//! ```
//!
//! The rank r_k of GIFAIR is the number of devices with a smaller loss minus the number of devices
//! with a larger one, thus about m (2 C(F_k) − 1). No device needs the losses of the others for it,
//! only C. C is linear between five public edges: the mean loss of the previous round, and ±¾ and
//! ±1½ standard deviations from it. Devices report their bin, their loss and its square in the sum
//! of the updates, so the server learns C of the previous round and no single loss. The first two
//! rounds are FedAvg: the first one finds the edges, and the second one C. λ = 0 equals FedAvg to
//! the bit.

use super::{Algorithm, AlgorithmParts, Requires};
use crate::memory::AlgorithmState;
use crate::options::{Interval, OptionSpec};
use crate::selection::{LARGEST_SHARE, Learned, Needs, Selection, SummedTail, Weighting, WeightingKind};

/// GIFAIR with ranks from secure sums.
pub static GIFAIR_SUMS: Algorithm = Algorithm {
    kind: "gifair-sums",
    title: "GIFAIR in sums",
    about: "devices count by the rank of their loss in the histogram of the previous round, found in secure sums",
    options: &[OptionSpec::real(
        "rank_penalty",
        "λ",
        Interval::UNIT,
        0.5,
        "the weight of the differences of the losses, relative to the largest admissible one",
    )
    .with_levels()
    .with_grid(&[0.1, 0.5, 0.9])],
    build: |options| {
        let selection = Box::new(ByHistogram { penalty: options.real("rank_penalty")? });
        Ok(AlgorithmParts { selection, ..AlgorithmParts::default() })
    },
    weightings: &[&RANKED],
    corrections: &[],
    requires: Requires::Sums,
};

/// The edges of the histogram, in standard deviations from the mean.
const EDGES: [f64; 5] = [-1.5, -0.75, 0.0, 0.75, 1.5];
/// The largest reported loss, so that its square fits into a sum.
const LARGEST_LOSS: f64 = 1e3;

/// The numbers are λ, the mean, the deviation, and C at the edges.
static RANKED: WeightingKind = WeightingKind {
    name: "ranked",
    numbers: &["lambda", "mean", "deviation", "c.0", "c.1", "c.2", "c.3", "c.4"],
    needs_loss: true,
    is_valid: |numbers| {
        let shares = &numbers[3..];
        (0.0..=1.0).contains(&numbers[0])
            && numbers[2] >= 0.0
            && shares.is_sorted()
            && shares.iter().all(|share| (0.0..=1.0).contains(share))
    },
    share: |numbers, device| 1.0 + numbers[0] * (2.0 * distribution(numbers, device.loss) - 1.0),
    most: LARGEST_SHARE,
    reports: &["weight", "loss", "square", "bin.0", "bin.1", "bin.2", "bin.3", "bin.4", "bin.5"],
    report: |numbers, update, report| {
        let loss = update.device.loss.min(LARGEST_LOSS);
        report[..3].copy_from_slice(&[1.0, loss, loss * loss]);
        report[3 + EDGES.iter().filter(|&&edge| loss >= edge_at(numbers, edge)).count()] = 1.0;
    },
};

fn edge_at(numbers: &[f64], edge: f64) -> f64 {
    numbers[1] + edge * numbers[2]
}

/// Returns C at a loss: linear between the edges, and half of the outer mass beyond them. It is one
/// half if no histogram is known, or if the losses are equal.
fn distribution(numbers: &[f64], loss: f64) -> f64 {
    let shares = &numbers[3..];
    if numbers[2] <= 0.0 || shares[EDGES.len() - 1] - shares[0] <= 0.0 {
        return 0.5;
    }
    let place = (loss - numbers[1]) / numbers[2];
    match EDGES.iter().filter(|&&edge| place >= edge).count() {
        0 => shares[0] / 2.0,
        bin if bin == EDGES.len() => (1.0 + shares[bin - 1]) / 2.0,
        bin => {
            let between = (place - EDGES[bin - 1]) / (EDGES[bin] - EDGES[bin - 1]);
            shares[bin - 1] + between * (shares[bin] - shares[bin - 1])
        }
    }
}

/// The names of the mean, the deviation and C in the track's memory.
const NAMES: [&str; 7] =
    ["rank.mean", "rank.deviation", "rank.c.0", "rank.c.1", "rank.c.2", "rank.c.3", "rank.c.4"];

/// Weighs devices by their rank in the histogram of the previous round.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ByHistogram {
    penalty: f64,
}

impl Selection for ByHistogram {
    fn needs(&self, _round: u64, _memory: &AlgorithmState) -> Needs {
        Needs::Nothing
    }

    fn learn(&self, _round: u64, _learned: Learned<'_>, _memory: &mut AlgorithmState) {}

    fn weighting(&self, memory: &AlgorithmState) -> Weighting {
        // Entries of one half represent an unknown histogram.
        let stored =
            NAMES.map(|name| memory.number(name).unwrap_or(if name.contains(".c.") { 0.5 } else { 0.0 }));
        let numbers: Vec<f64> = [self.penalty].into_iter().chain(stored).collect();
        Weighting::new(&RANKED, &numbers).unwrap_or_else(Weighting::everyone)
    }

    fn observe(&self, summed: &SummedTail<'_>, memory: &mut AlgorithmState) {
        let [weight, loss, square, bins @ ..] = summed.reports else { return };
        if *weight <= 0.0 {
            return;
        }
        let had_edges = memory.number(NAMES[1]).is_some_and(|deviation| deviation > 0.0);
        let mean = loss / weight;
        // Below this relative size the difference is rounding.
        let variance = square / weight - mean * mean;
        let deviation = if variance > 1e-9 * mean * mean { variance.sqrt() } else { 0.0 };
        memory.set_number(NAMES[0], mean);
        memory.set_number(NAMES[1], deviation);
        let mut below = 0.0;
        for (name, bin) in NAMES[2..].iter().zip(bins) {
            below += bin / weight;
            // Without a deviation all edges are equal, and the bins contain no information.
            memory.set_number(name, if had_edges { below.clamp(0.0, 1.0) } else { 0.5 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selection::{DeviceFacts, UpdateFacts};

    /// The weights of devices with these losses in the last of some rounds, all of which have them.
    fn shares(penalty: f64, losses: &[f64], rounds: usize) -> Vec<f64> {
        let (selection, mut memory) = (ByHistogram { penalty }, AlgorithmState::default());
        let mut shares = Vec::new();
        for round in 0..rounds {
            let weighting = selection.weighting(&memory);
            let device = |&loss: &f64| DeviceFacts { loss, steps: 1, examples: 1, group: 0 };
            shares = losses.iter().map(|loss| weighting.share(&device(loss))).collect();
            let mut reports = vec![0.0; weighting.kind().reports.len()];
            for (loss, &share) in losses.iter().zip(&shares) {
                let update = UpdateFacts { device: device(loss), share, squared_norm: 1.0 };
                reports.iter_mut().zip(weighting.report(&update)).for_each(|(sum, number)| *sum += number);
            }
            let tail_weight = losses.len() as f64;
            let answered = losses.len() as u64;
            selection.observe(
                &SummedTail { round: round as u64, answered, tail_weight, reports: &reports },
                &mut memory,
            );
        }
        shares
    }

    #[test]
    fn shares_approach_those_of_the_ranks() {
        let losses: Vec<f64> = (0..40).map(|k| 1.0 + 0.05 * f64::from(k)).collect();
        assert!(shares(0.8, &losses, 1).iter().all(|share| (share - 1.0).abs() < 1e-12), "FedAvg at first");
        for (k, share) in shares(0.8, &losses, 5).into_iter().enumerate() {
            let rank = 2.0 * k as f64 - 39.0;
            let exact = 1.0 + 0.8 * rank / 39.0;
            assert!((share - exact).abs() < 0.1, "device {k}: {share} instead of {exact}");
        }
        assert!(shares(0.0, &losses, 5).iter().all(|share| (share - 1.0).abs() < 1e-12));
    }

    #[test]
    fn equal_losses_have_equal_shares() {
        let found = shares(0.9, &[2.0; 7], 5);
        assert!(found.iter().all(|share| share.to_bits() == found[0].to_bits()), "{found:?}");
    }
}
