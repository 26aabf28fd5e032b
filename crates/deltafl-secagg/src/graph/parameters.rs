//! The degree k and threshold t that a graph needs.
//!
//! n devices are arranged on a ring in random order. Each device is connected to the k/2 devices on
//! either side. A device and its neighbours form its circle of k+1 devices. They hold shares of the
//! device's two secrets, and t of them recover either secret. c devices collude with the server and
//! are chosen before the order is. d devices drop out.
//!
//! **An actively malicious server** ([`against_active`]) chooses the drop-outs after it has seen
//! the graph, and may show different survivors to each device. Let x be the number of colluding
//! devices in the circle of a victim u. The server can see up to G graphs before it uses one of
//! them ([`GraphRule::graphs`](super::GraphRule::graphs)). The union bound covers all of them.
//!
//! ```text
//! A1  split view: the server obtains both secrets of a device. In its circle, k+1−x
//!     honest devices give one share each and x colluding ones two. This requires 2t ≤ k+1+x.
//!         P ≤ G · n · P[Hypergeometric(n−1, c, k) ≥ 2t − (k+1)]               ≤ 2^−41
//! A2  partition: the server obtains the sum of a part of the devices. Only devices of the
//!     same part help to open it. At the border of a part, a device has k/2 neighbours of its part
//!     on one side and only x' colluding ones on the other. This requires t ≤ k/2 + 1 + x'.
//!         P ≤ G · n · P[Hypergeometric(n−1, c, k/2) ≥ t − k/2 − 1]            ≤ 2^−41
//! A3  loss: a device has fewer than t neighbours left after honest drop-outs
//!         P ≤ n · P[Hypergeometric(n−1, d, k) ≥ k−t+1]                        ≤ 2^−20
//! ```
//!
//! `docs/src/explanation/secure-aggregation.md` contains the proof. If A1 and A2 do not occur, the
//! server learns at most one sum per slot. That sum contains more than (n−c)/2 − d honest devices,
//! independent of which devices the server claims have dropped out.
//!
//! **An honest-but-curious server** ([`against_curious`]; Bell et al. 2020, section 3) shows the
//! same messages to all devices, and devices drop out independently of the graph.
//!
//! ```text
//! C1  a device has t or more colluding neighbours, who can recover its secrets
//!         P ≤ n · P[Hypergeometric(n−1, c, k) ≥ t]                            ≤ 2^−41
//! C2  the honest survivors are disconnected, so that the server learns a partial sum
//!         P ≤ n(n−1)/2 · Π_{i<k} (c+d−i)/(n−i)                                ≤ 2^−41
//! C3  as A3
//! ```
//!
//! For C2: a single gap of colluding or dropped devices leaves the rest of the ring connected. To
//! disconnect it, two disjoint gaps of k/2 devices each are necessary. There are fewer than
//! n(n−1)/2 positions for them. The product is the probability that k given devices are all among
//! the c+d.
//!
//! The tails are exact sums. They use only operations that IEEE 754 rounds correctly, in a fixed
//! order. Therefore server and devices compute the same (k, t) on every machine.
//! `tests/parameters.py` recomputes them with integers.

/// log2 of the allowed probability of each of two privacy failures. Together they are 2⁻⁴⁰.
const PRIVACY_BITS: i32 = 41;
/// log2 of the allowed probability that the sum is lost.
const CORRECTNESS_BITS: i32 = 20;
/// The largest degree considered. For larger degrees, the weights below could exceed the range of
/// `f64`, and such a dense graph saves little.
const MAX_DEGREE: usize = 512;

/// Returns the smallest even k, with its smallest t, that bounds A1, A2 and A3 for n devices of
/// which `colluding` collude and `dropping` drop out, if the server chooses among `graphs` graphs.
/// Returns `None` if only the full graph is safe.
pub fn against_active(n: usize, colluding: usize, dropping: usize, graphs: usize) -> Option<(usize, usize)> {
    // Two circles that overlap on one side of the ring must not overlap on the other.
    degrees(n)
        .take_while(|k| k + k / 2 < n)
        .find_map(|k| active_threshold(n, colluding, dropping, graphs, k).map(|t| (k, t)))
}

/// Returns the smallest even k, with its smallest t, that bounds C1, C2 and C3 for n devices of
/// which `colluding` collude and `dropping` drop out. Returns `None` if only the full graph is
/// safe.
pub fn against_curious(n: usize, colluding: usize, dropping: usize) -> Option<(usize, usize)> {
    degrees(n)
        .filter(|&k| disconnection(n, colluding + dropping, k) <= bound(PRIVACY_BITS))
        .find_map(|k| curious_threshold(n, colluding, dropping, k).map(|t| (k, t)))
}

fn degrees(n: usize) -> impl Iterator<Item = usize> {
    (2..=MAX_DEGREE.min(n.saturating_sub(2))).step_by(2)
}

/// Returns the smallest t that bounds A1 and A2, if it also bounds A3.
fn active_threshold(n: usize, colluding: usize, dropping: usize, graphs: usize, k: usize) -> Option<usize> {
    let (circle, side) = (tails(n - 1, colluding, k), tails(n - 1, colluding, k / 2));
    let union = n as f64 * graphs as f64;
    let holds = |t: usize| {
        let (split, part) = (2 * t - (k + 1), t - k / 2 - 1);
        union * circle[split.min(k + 1)] <= bound(PRIVACY_BITS)
            && union * side[part.min(k / 2 + 1)] <= bound(PRIVACY_BITS)
    };
    let t = (k / 2 + 1..=k).find(|&t| holds(t))?;
    keeps_the_sum(n, dropping, k, t).then_some(t)
}

/// Returns the smallest t that bounds C1, if it also bounds C3.
fn curious_threshold(n: usize, colluding: usize, dropping: usize, k: usize) -> Option<usize> {
    let captured = tails(n - 1, colluding, k);
    let t = (1..=k).find(|&t| n as f64 * captured[t] <= bound(PRIVACY_BITS))?;
    keeps_the_sum(n, dropping, k, t).then_some(t)
}

fn keeps_the_sum(n: usize, dropping: usize, k: usize, t: usize) -> bool {
    n as f64 * tails(n - 1, dropping, k)[k - t + 1] <= bound(CORRECTNESS_BITS)
}

/// Returns 2^−bits.
fn bound(bits: i32) -> f64 {
    0.5f64.powi(bits)
}

/// Returns the union bound on C2.
fn disconnection(n: usize, removed: usize, k: usize) -> f64 {
    let places = (n * (n - 1) / 2) as f64;
    (0..k).fold(places, |p, i| p * removed.saturating_sub(i) as f64 / (n - i) as f64)
}

/// Returns P[X ≥ t] for t = 0..=k+1, where X counts the marked elements among k drawn from
/// `population` of which `marked` are marked.
pub(crate) fn tails(population: usize, marked: usize, k: usize) -> Vec<f64> {
    let marked = marked.min(population);
    let lowest = k.saturating_sub(population - marked);
    let highest = marked.min(k);
    // Probabilities relative to that of the smallest count. Their sum normalises them.
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

    /// Returns (k, t) if a share of 1/`one_in` of the devices colludes and the same share drops
    /// out.
    fn at(n: usize, one_in: usize) -> Option<(usize, usize)> {
        against_curious(n, n / one_in, n / one_in)
    }

    #[test]
    fn parameters_for_an_honest_but_curious_server_match_known_answers() {
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
    fn tails_of_a_small_urn_match_values_computed_by_hand() {
        // Two of five are marked, three are drawn: P[X = 0, 1, 2] = 1/10, 6/10, 3/10.
        let tails = tails(5, 2, 3);
        for (tail, by_hand) in tails.iter().zip([1.0, 0.9, 0.3, 0.0, 0.0]) {
            assert!((tail - by_hand).abs() < 1e-15, "{tails:?}");
        }
    }

    #[test]
    fn tails_are_right_if_every_draw_contains_marked_elements() {
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
    fn no_sparse_graph_is_safe_if_half_collude() {
        assert_eq!(at(100, 2), None);
        assert_eq!(against_active(100, 50, 50, 1), None);
        assert_eq!(against_curious(2, 0, 0), None);
        assert_eq!(against_active(2, 0, 0, 1), None);
    }
}
