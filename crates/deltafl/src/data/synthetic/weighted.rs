//! Draws from a finite set with weights.

use crate::stream::Stream;

/// A distribution over `0..n`.
#[derive(Clone, Debug)]
pub(super) struct Weighted {
    /// The cumulative sum of the weights, including each item.
    cumulative: Vec<f64>,
}

impl Weighted {
    /// Creates a distribution. The weights must be finite, not negative and not all zero.
    pub(super) fn new(weights: impl IntoIterator<Item = f64>) -> Self {
        let mut total = 0.0;
        let add = |weight: f64| {
            total += weight;
            total
        };
        Self { cumulative: weights.into_iter().map(add).collect() }
    }

    /// Draws an item in O(log n).
    pub(super) fn draw(&self, stream: &mut Stream) -> usize {
        let last = self.cumulative.len() - 1;
        let at = stream.uniform(0.0, self.cumulative[last]);
        self.cumulative.partition_point(|&upper| upper <= at).min(last)
    }
}

/// Creates Zipf's law for `n` items: the weight of the r-th most frequent is 1/r.
pub(super) fn zipf(n: usize) -> impl Iterator<Item = f64> + Clone {
    (1..=n).map(|rank| 1.0 / rank as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::Purpose;

    #[test]
    fn items_come_as_often_as_their_weights_say() {
        let weighted = Weighted::new([1.0, 0.0, 3.0]);
        let mut stream = Stream::new(1, Purpose::Synthesis, 0, 0);
        let mut counts = [0; 3];
        (0..4000).for_each(|_| counts[weighted.draw(&mut stream)] += 1);
        assert!(counts[1] == 0 && (900..1100).contains(&counts[0]), "{counts:?}");
    }
}
