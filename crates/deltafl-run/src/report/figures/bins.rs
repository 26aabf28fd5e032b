//! Bins of a histogram that are the same for every track and frame, so that two can be compared.

/// Equal bins; the first also counts what lies below it, and the last its upper edge and what lies above.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bins {
    /// The lower edge of the first bin, a multiple of the width.
    pub from: f64,
    /// Width: 1, 2, 2.5 or 5 times a power of ten.
    pub step: f64,
    pub count: usize,
    /// Whether values lie below the first bin, and above the last.
    pub open: [bool; 2],
}

/// At most how many bins are wanted.
const WANTED: f64 = 40.0;
/// How near to an edge a value lies on it, in bins: values are stored as `f32`, and that of 0.39 is a little less.
const EDGE: f64 = 1e-5;
/// The share of the values, on either side, that may lie outside where they lie far off, and how far that is: so many
/// times as far as all others reach.
const FAR: (f64, f64) = (0.01, 3.0);

impl Bins {
    /// Bins from 0, or from the least value where one is negative, to the greatest finite value.
    ///
    /// A few values far off are counted in the bin at the edge: a single device of which the model knows nothing shall not
    /// squeeze all others into one bar.
    pub(crate) fn over(values: impl Iterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| {
            let last = sorted.len().saturating_sub(1);
            sorted.get((share * last as f64).round() as usize).copied().unwrap_or(0.0)
        };
        let (low, high) = (at(FAR.0).min(0.0), at(1.0 - FAR.0).max(0.0));
        let reach = FAR.1 * (high - low);
        let (least, greatest) = (at(0.0).min(0.0), at(1.0).max(0.0));
        let (from, to) = (
            if reach > 0.0 { least.max(low - reach) } else { least },
            if reach > 0.0 { greatest.min(high + reach) } else { greatest },
        );
        let (from, to) = if to > from { (from, to) } else { (0.0, 1.0) };
        let step = width(to - from);
        let from = step * (from / step + EDGE).floor();
        let count = (((to - from) / step - EDGE).ceil() as usize).max(1);
        let end = from + count as f64 * step;
        Self { from, step, count, open: [least < from - EDGE * step, greatest > end + EDGE * step] }
    }

    /// The lower edge of a bin; of `count`, the end.
    pub(crate) fn edge(&self, bin: usize) -> f64 {
        self.from + bin as f64 * self.step
    }

    /// A value, or the nearest one within the bins.
    pub(crate) fn within(&self, value: f64) -> f64 {
        value.clamp(self.from, self.edge(self.count))
    }

    /// The height of each bin, over values and what each of them adds.
    pub(crate) fn heights(&self, values: impl Iterator<Item = (f64, f64)>) -> Vec<f64> {
        let mut heights = vec![0.0; self.count];
        for (value, height) in values {
            // A cast saturates: below is the first bin, beyond the last or infinite the last one.
            let bin = ((value - self.from) / self.step + EDGE) as usize;
            heights[bin.min(self.count - 1)] += height;
        }
        heights
    }

    /// What to add to the name of the axis where bins at the edge hold more than they are wide.
    pub(crate) fn note(&self) -> &'static str {
        match self.open {
            [false, false] => "",
            [true, false] => "; the first bar also counts what lies below",
            [false, true] => "; the last bar also counts what lies above",
            [true, true] => "; the bars at the edges also count what lies beyond",
        }
    }
}

/// A width at which at most [`WANTED`] bins reach so far.
fn width(reach: f64) -> f64 {
    let rough = reach / WANTED;
    let power = 10f64.powf(rough.log10().floor());
    let nice = [1.0, 2.0, 2.5, 5.0, 10.0];
    nice.into_iter().find(|nice| nice * power * (1.0 + EDGE) >= rough).unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_counted_once() {
        let values = [0.0, 0.1, f64::from(0.39f32), 0.4, f64::INFINITY];
        let bins = Bins::over(values.iter().copied());
        assert!((bins.step - 0.01).abs() < 1e-9, "{bins:?}");
        let heights = bins.heights(values.iter().map(|&value| (value, 1.0)));
        assert_eq!((bins.count, heights[0], heights[10], heights[39]), (40, 1.0, 1.0, 3.0));
    }

    #[test]
    fn bins_of_nothing_are_bins() {
        let bins = Bins::over(std::iter::empty());
        assert_eq!(bins.heights(std::iter::empty()).len(), bins.count);
    }

    #[test]
    fn values_below_zero_have_bins() {
        let bins = Bins::over([-0.35, 0.1, 0.95].into_iter());
        assert!(bins.from <= -0.35 && bins.edge(bins.count) >= 0.95, "{bins:?}");
        assert_eq!(bins.open, [false, false]);
        let heights = bins.heights([(-0.35, 1.0), (0.95, 2.0)].into_iter());
        assert_eq!((heights[0], heights[bins.count - 1]), (1.0, 2.0));
    }

    #[test]
    fn one_value_far_off_squeezes_nobody_and_is_counted_at_the_edge() {
        let values: Vec<f64> = (0..300).map(|k| f64::from(k) / 300.0).chain([-1e6]).collect();
        let bins = Bins::over(values.iter().copied());
        assert!(bins.step < 0.2 && bins.open == [true, false], "{bins:?}");
        let heights = bins.heights(values.iter().map(|&value| (value, 1.0)));
        assert_eq!((heights[0], heights.iter().sum::<f64>()), (1.0, 301.0));
        assert!((bins.within(-1e6) - bins.from).abs() < 1e-12);
    }
}
