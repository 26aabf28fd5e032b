//! The error of a noisy quantile, by simulation.

use super::noise::NoiseTooLarge;
use super::{Mechanism, PrivacyPlan};
use crate::question::Ask;
use crate::stream::{Purpose, Stream};
use crate::superquantile::private::{LossRange, PrivateQuantile, Search};
use crate::superquantile::{Conformity, DeviceLoss};

/// The number of simulated searches.
const SEARCHES: u64 = 100;

/// Returns the root mean square of the error of the kept mass: a noisy search for the
/// (1−θ)-quantile keeps θ of the devices plus or minus this share, if `members` devices answer. The
/// losses are log-normal.
///
/// # Errors
///
/// The noise of one device would be too large.
pub fn quantile_error(plan: &PrivacyPlan, theta: Conformity, members: u32) -> Result<f64, NoiseTooLarge> {
    let mut stream = Stream::new(1, Purpose::Noise, 0, 0);
    let mut squares = 0.0;
    for _ in 0..SEARCHES {
        let losses: Vec<f64> = (0..members).map(|_| (0.5 * stream.normal()).exp()).collect();
        let mut search = Search::new(PrivateQuantile::Tree, theta, None, &LossRange::default());
        let Some(query) = search.query() else { continue };
        let mut sum = vec![0; query.len()];
        for loss in losses.iter().filter_map(|&loss| DeviceLoss::new(loss, 1.0).ok()) {
            query.answer(loss, &mut sum);
        }
        let noise = plan.noise(&Ask::Quantile(query), 0, plan.clip.start, true, members)?;
        let samples = match plan.mechanism {
            Mechanism::Distributed => members.into(),
            Mechanism::Central => plan.honest().into(),
        };
        let deviation = noise.deviation(samples);
        let counts: Vec<f64> = sum.iter().map(|&count| count as f64 + deviation * stream.normal()).collect();
        if search.take_noisy(&counts).is_ok() {
            let eta = search.eta().unwrap_or(0.0);
            let kept = losses.iter().filter(|&&loss| loss >= eta).count() as f64 / f64::from(members);
            squares += (kept - theta.get()).powi(2);
        }
    }
    Ok((squares / SEARCHES as f64).sqrt())
}
