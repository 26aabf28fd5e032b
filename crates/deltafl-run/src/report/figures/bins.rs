//! Histogram bins that are the same for every track and frame, so that two can be compared.

/// Bins of equal width. The first bin includes all lower values. The last includes its upper edge
/// and all higher values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HistogramBins {
    /// The lower edge of the first bin, a multiple of the width.
    pub from: f64,
    /// Width: 1, 2, 2.5 or 5 times a power of ten.
    pub step: f64,
    pub count: usize,
    /// Whether there are values below the first bin, and above the last.
    pub open: [bool; 2],
}

/// The maximum number of bins.
const WANTED: f64 = 40.0;
/// The tolerance for values at an edge, in bins. Values are stored as `f32`, and the `f32` nearest
/// to 0.39 is slightly smaller.
const EDGE: f64 = 1e-5;
/// The share of outliers allowed outside the bins on either side, and their minimum distance as a
/// multiple of the range of all other values.
const FAR: (f64, f64) = (0.01, 3.0);

impl HistogramBins {
    /// Creates bins from 0 to the greatest finite value. They start at the least value if it is
    /// negative.
    ///
    /// Outliers are counted in the outermost bin. A single device that the model does not fit
    /// therefore does not compress all others into one bar.
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

    /// Returns the lower edge of a bin. For `count`, returns the end.
    pub(crate) fn edge(&self, bin: usize) -> f64 {
        self.from + bin as f64 * self.step
    }

    /// Clamps a value to the range of the bins.
    pub(crate) fn within(&self, value: f64) -> f64 {
        value.clamp(self.from, self.edge(self.count))
    }

    /// Returns the height of each bin for pairs of value and weight.
    pub(crate) fn heights(&self, values: impl Iterator<Item = (f64, f64)>) -> Vec<f64> {
        let mut heights = vec![0.0; self.count];
        for (value, height) in values {
            // The cast saturates: lower values are in the first bin, higher and infinite values in
            // the last.
            let bin = ((value - self.from) / self.step + EDGE) as usize;
            heights[bin.min(self.count - 1)] += height;
        }
        heights
    }

    /// Returns a note for the axis if the outermost bins contain outliers.
    pub(crate) fn note(&self) -> &'static str {
        match self.open {
            [false, false] => "",
            [true, false] => "; the first bar includes all lower values",
            [false, true] => "; the last bar includes all higher values",
            [true, true] => "; the outermost bars include all values beyond",
        }
    }
}

/// Returns a width at which at most [`WANTED`] bins cover the range.
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
        let bins = HistogramBins::over(values.iter().copied());
        assert!((bins.step - 0.01).abs() < 1e-9, "{bins:?}");
        let heights = bins.heights(values.iter().map(|&value| (value, 1.0)));
        assert_eq!((bins.count, heights[0], heights[10], heights[39]), (40, 1.0, 1.0, 3.0));
    }

    #[test]
    fn bins_over_no_values_are_valid() {
        let bins = HistogramBins::over(std::iter::empty());
        assert_eq!(bins.heights(std::iter::empty()).len(), bins.count);
    }

    #[test]
    fn negative_values_have_bins() {
        let bins = HistogramBins::over([-0.35, 0.1, 0.95].into_iter());
        assert!(bins.from <= -0.35 && bins.edge(bins.count) >= 0.95, "{bins:?}");
        assert_eq!(bins.open, [false, false]);
        let heights = bins.heights([(-0.35, 1.0), (0.95, 2.0)].into_iter());
        assert_eq!((heights[0], heights[bins.count - 1]), (1.0, 2.0));
    }

    #[test]
    fn an_outlier_does_not_widen_the_bins_and_is_counted_at_the_edge() {
        let values: Vec<f64> = (0..300).map(|k| f64::from(k) / 300.0).chain([-1e6]).collect();
        let bins = HistogramBins::over(values.iter().copied());
        assert!(bins.step < 0.2 && bins.open == [true, false], "{bins:?}");
        let heights = bins.heights(values.iter().map(|&value| (value, 1.0)));
        assert_eq!((heights[0], heights.iter().sum::<f64>()), (1.0, 301.0));
        assert!((bins.within(-1e6) - bins.from).abs() < 1e-12);
    }
}
