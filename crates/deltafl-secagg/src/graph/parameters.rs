//! How many neighbours a device needs: degree k and threshold t.
//!
//! n devices stand on a ring in random order, each joined to the k/2 on either side; with itself they are its
//! circle of k+1, who hold shares of its two secrets, and t of them recover either. c devices collude with the
//! server and are chosen before the order is; d drop out.
//!
//! **A server that lies** ([`against_active`]) chooses who drops out after it has seen the graph, and may show
//! each device survivors of its own. Let x be the colluding devices in the circle of a victim u.
//!
//! ```text
//! A1  split view: both secrets of some device. Of its circle, k+1−x honest devices give one share
//!     each and x colluding ones two: it takes 2t ≤ k+1+x.
//!         P ≤ n · P[Hypergeometric(n−1, c, k) ≥ 2t − (k+1)]                   ≤ 2^−41
//! A2  parts: the sum of some of the devices, cut off from the others. Only devices of the same part
//!     help to open one. Where two parts meet, or a part ends, a device has nobody of its own on one
//!     side but x' colluding ones among those k/2: it takes t ≤ k/2 + 1 + x'.
//!         P ≤ n · P[Hypergeometric(n−1, c, k/2) ≥ t − k/2 − 1]                ≤ 2^−41
//! A3  loss: some device has fewer than t neighbours left of those that nobody drove out
//!         P ≤ n · P[Hypergeometric(n−1, d, k) ≥ k−t+1]                        ≤ 2^−20
//! ```
//!
//! `docs/src/explanation/secure-aggregation.md` has the proof: with A1 and A2 the server learns at most one sum in a slot, of
//! more than (n−c)/2 − d honest devices, whoever it says to have dropped out.
//!
//! **A server that is honest but curious** ([`against_curious`]; Bell et al. 2020, section 3) shows all devices
//! the same, and devices drop out without regard to the graph.
//!
//! ```text
//! C1  some device has t or more colluding neighbours, who then hold its secrets
//!         P ≤ n · P[Hypergeometric(n−1, c, k) ≥ t]                            ≤ 2^−41
//! C2  the honest survivors fall apart, so that the server learns the sum of a part
//!         P ≤ n(n−1)/2 · Π_{i<k} (c+d−i)/(n−i)                                ≤ 2^−41
//! C3  as A3
//! ```
//!
//! For C2: with one gap of colluding or dropped devices in the ring, however wide, the rest still hangs
//! together the other way round. It takes two disjoint gaps of k/2 devices each; there are fewer than n(n−1)/2
//! places for them, and the product is the chance that k given devices are all among the c+d.
//!
//! The tails are exact sums. They use only the four operations that IEEE 754 rounds correctly, in a fixed
//! order, so that server and devices on any machine arrive at the same (k, t). `tests/parameters.py` computes
//! them anew with integers.

/// log2 of the allowed privacy loss for each of two events: together 2⁻⁴⁰.
const PRIVACY_BITS: i32 = 41;
/// log2 of the allowed chance that the sum is lost.
const CORRECTNESS_BITS: i32 = 20;
/// The largest degree tried. Beyond it the weights below could leave the range of `f64`, and a graph so dense
/// saves little.
const MAX_DEGREE: usize = 512;

/// The smallest even k, and for it the smallest t, that keep A1, A2 and A3 in bounds for n devices of which
/// `colluding` collude and `dropping` drop out. `None` when only the full graph will do.
pub fn against_active(n: usize, colluding: usize, dropping: usize) -> Option<(usize, usize)> {
    // Two circles that meet on one side of the ring must not meet on the other.
    degrees(n)
        .take_while(|k| k + k / 2 < n)
        .find_map(|k| active_threshold(n, colluding, dropping, k).map(|t| (k, t)))
}

/// The smallest even k, and for it the smallest t, that keep C1, C2 and C3 in bounds for n devices of which
/// `colluding` collude and `dropping` drop out. `None` when only the full graph will do.
pub fn against_curious(n: usize, colluding: usize, dropping: usize) -> Option<(usize, usize)> {
    degrees(n)
        .filter(|&k| disconnection(n, colluding + dropping, k) <= bound(PRIVACY_BITS))
        .find_map(|k| curious_threshold(n, colluding, dropping, k).map(|t| (k, t)))
}

fn degrees(n: usize) -> impl Iterator<Item = usize> {
    (2..=MAX_DEGREE.min(n.saturating_sub(2))).step_by(2)
}

/// The smallest t that keeps A1 and A2 in bounds, if it keeps A3 in bounds too.
fn active_threshold(n: usize, colluding: usize, dropping: usize, k: usize) -> Option<usize> {
    let (circle, side) = (tails(n - 1, colluding, k), tails(n - 1, colluding, k / 2));
    let union = n as f64;
    let holds = |t: usize| {
        let (split, part) = (2 * t - (k + 1), t - k / 2 - 1);
        union * circle[split.min(k + 1)] <= bound(PRIVACY_BITS)
            && union * side[part.min(k / 2 + 1)] <= bound(PRIVACY_BITS)
    };
    let t = (k / 2 + 1..=k).find(|&t| holds(t))?;
    keeps_the_sum(n, dropping, k, t).then_some(t)
}

/// The smallest t that keeps C1 in bounds, if it keeps C3 in bounds too.
fn curious_threshold(n: usize, colluding: usize, dropping: usize, k: usize) -> Option<usize> {
    let captured = tails(n - 1, colluding, k);
    let t = (1..=k).find(|&t| n as f64 * captured[t] <= bound(PRIVACY_BITS))?;
    keeps_the_sum(n, dropping, k, t).then_some(t)
}

fn keeps_the_sum(n: usize, dropping: usize, k: usize, t: usize) -> bool {
    n as f64 * tails(n - 1, dropping, k)[k - t + 1] <= bound(CORRECTNESS_BITS)
}

/// 2^−bits.
fn bound(bits: i32) -> f64 {
    0.5f64.powi(bits)
}

/// The union bound on C2.
fn disconnection(n: usize, removed: usize, k: usize) -> f64 {
    let places = (n * (n - 1) / 2) as f64;
    (0..k).fold(places, |p, i| p * removed.saturating_sub(i) as f64 / (n - i) as f64)
}

/// P[X ≥ t] for t = 0..=k+1, where X counts the marked among k drawn from `population` with `marked` marked.
pub(crate) fn tails(population: usize, marked: usize, k: usize) -> Vec<f64> {
    let marked = marked.min(population);
    let lowest = k.saturating_sub(population - marked);
    let highest = marked.min(k);
    // Chances relative to that of the lowest count; their sum normalises them.
    let mut weights = vec![0.0; k + 2];
    weights[lowest] = 1.0;
    for x in lowest..highest {
        let rise = (marked - x) as f64 * (k - x) as f64;
        let fall = (x + 1) as f64 * (population - marked + x + 1 - k) as f64;
        weights[x + 1] = weights[x] * rise / fall;
    }
    let total: f64 = weights.iter().sum();
    let mut tail = 0.0;
    for weight in weights.iter_mut().rev() {
        tail += *weight;
        *weight = tail / total;
    }
    weights
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (k, t) when a share of 1/`one_in` of the devices colludes and as many drop out.
    fn at(n: usize, one_in: usize) -> Option<(usize, usize)> {
        against_curious(n, n / one_in, n / one_in)
    }

    #[test]
    fn the_known_answers_for_an_honest_but_curious_server_are_met() {
        assert_eq!(at(100, 20), Some((12, 6)));
        assert_eq!(at(1_000, 20), Some((30, 17)));
        assert_eq!(at(10_000, 20), Some((34, 20)));
        assert_eq!(at(100, 10), Some((22, 11)));
        assert_eq!(at(1_000, 10), Some((48, 27)));
        assert_eq!(at(10_000, 10), Some((54, 31)));
        assert_eq!(at(100, 5), Some((40, 21)));
        assert_eq!(at(1_000, 5), Some((98, 54)));
        assert_eq!(at(10_000, 5), Some((122, 67)));
    }

    #[test]
    fn tails_of_a_small_urn_are_those_counted_by_hand() {
        // Two of five are marked, three are drawn: P[X = 0, 1, 2] = 1/10, 6/10, 3/10.
        let tails = tails(5, 2, 3);
        for (tail, by_hand) in tails.iter().zip([1.0, 0.9, 0.3, 0.0, 0.0]) {
            assert!((tail - by_hand).abs() < 1e-15, "{tails:?}");
        }
    }

    #[test]
    fn draws_that_must_hit_marked_ones_are_counted_right() {
        // Four of five are marked and three are drawn: at least two are marked.
        let tails = tails(5, 4, 3);
        assert!((tails[2] - 1.0).abs() < 1e-15);
        assert!((tails[3] - 0.4).abs() < 1e-15);
    }

    #[test]
    fn two_gaps_need_as_many_removed_devices_as_the_degree() {
        assert!(disconnection(100, 11, 12) == 0.0);
        assert!(disconnection(100, 12, 12) > 0.0);
    }

    #[test]
    fn no_sparse_graph_carries_a_colluding_half() {
        assert_eq!(at(100, 2), None);
        assert_eq!(against_active(100, 50, 50), None);
        assert_eq!(against_curious(2, 0, 0), None);
        assert_eq!(against_active(2, 0, 0), None);
    }
}
