//! Bins of a histogram that are the same for every track and frame, so that two can be compared.

/// Equal bins from 0; the last one also counts its upper edge and what lies above.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bins {
    /// Width: 1, 2, 2.5 or 5 times a power of ten.
    pub(crate) step: f64,
    pub(crate) count: usize,
}

/// At most how many bins are wanted.
const WANTED: f64 = 40.0;
/// How near to an edge a value lies on it, in bins: values are stored as `f32`, and that of 0.39 is a little less.
const EDGE: f64 = 1e-5;

impl Bins {
    /// Bins that reach to the greatest finite value.
    pub(crate) fn over(values: impl Iterator<Item = f64>) -> Self {
        let greatest = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
        let greatest = if greatest > 0.0 { greatest } else { 1.0 };
        let rough = greatest / WANTED;
        let power = 10f64.powf(rough.log10().floor());
        let nice = [1.0, 2.0, 2.5, 5.0, 10.0]
            .into_iter()
            .find(|nice| nice * power * (1.0 + EDGE) >= rough)
            .unwrap_or(10.0);
        let step = nice * power;
        Self { step, count: ((greatest / step - EDGE).ceil() as usize).max(1) }
    }

    /// The height of each bin, over values and what each of them adds.
    pub(crate) fn heights(&self, values: impl Iterator<Item = (f64, f64)>) -> Vec<f64> {
        let mut heights = vec![0.0; self.count];
        for (value, height) in values {
            // A cast saturates: below 0 is the first bin, beyond the last or infinite the last one.
            let bin = (value / self.step + EDGE) as usize;
            heights[bin.min(self.count - 1)] += height;
        }
        heights
    }
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
}
