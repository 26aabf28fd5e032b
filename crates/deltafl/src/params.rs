//! Parameters w, and their sums in fixed point.
//!
//! Floating-point addition depends on the order. With another number of threads, or over a network,
//! a simulation would end with different bits. A device therefore encodes its update as integers
//! modulo 2^64. Their sum is independent of the order, and secure aggregation can mask them:
//!
//! ```text
//! update of device k:  [ α_k·ω_k·(w_k − w)·2^24 …,  α_k·ω_k·2^16,  1,  0 ]
//! not admitted:        [ 0 …,                       0,             0,  0 ]
//! not finite:          [ 0 …,                       0,             0,  1 ]
//! ```
//!
//! Numbers that a weighting reports are between the update and the weight, as α_k·r·2^24.
//!
//! with ω_k = 1, or g'_ν(F_k − η) ∈ [0, 1] if the tail is smoothed. Half a unit of 2^-24, divided
//! by a weight of at least one example, is below the rounding of an `f32` parameter near 1. If
//! updates are clipped, w_k − w is first multiplied by min(1, C/‖w_k − w‖), but the weight is not.

mod spare;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, OnceLock};

use rayon::prelude::*;

use crate::kernel::{Granted, fixed_point};
use crate::terms::Clip;

use self::spare::Spare;

/// The content hash and length by which a question identifies params.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ParamsId {
    /// BLAKE3 of the entries (little-endian).
    pub hash: blake3::Hash,
    /// The number of entries d.
    pub len: u64,
}

/// The length from which several threads compute the entries of a vector. A shorter one takes about
/// a millisecond.
const LONG: usize = 1 << 20;
/// The number of entries that a thread computes at once.
const PART: usize = 1 << 17;

/// The memory of params and of sums that are no longer in use.
static SPARE_PARAMS: Spare<f32> = Spare::new();
static SPARE_SUMS: Spare<u64> = Spare::new();

/// The parameter vector w, shared and immutable.
#[derive(Clone)]
pub struct Params {
    /// A `Vec`, so that the vector of a server step is not copied.
    entries: Arc<Entries>,
    /// BLAKE3, computed on first use.
    hash: Arc<OnceLock<blake3::Hash>>,
}

/// The entries of params, whose memory is used again.
struct Entries(Vec<f32>);

impl Drop for Entries {
    fn drop(&mut self) {
        SPARE_PARAMS.keep(std::mem::take(&mut self.0));
    }
}

/// Equal bits: a NaN is equal to itself, and 0 is not −0.
impl PartialEq for Params {
    fn eq(&self, other: &Self) -> bool {
        self.is_same(other)
    }
}

impl fmt::Debug for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Params({} entries, {})", self.len(), &self.hash().to_hex()[..16])
    }
}

impl Params {
    /// Returns the entries.
    pub fn as_slice(&self) -> &[f32] {
        &self.entries.0
    }

    /// Returns the number of entries d.
    pub fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// Returns `true` if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.as_slice().is_empty()
    }

    /// Returns `true` if both have the same bits, for example tracks that have not diverged yet.
    /// Different vectors usually differ early, and equal ones usually share memory, so this is
    /// cheap.
    pub fn is_same(&self, other: &Self) -> bool {
        let bits = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
        Arc::ptr_eq(&self.entries, &other.entries)
            || (self.len() == other.len() && self.as_slice().iter().zip(other.as_slice()).all(bits))
    }

    /// Returns the id by which a question identifies these params.
    pub fn id(&self) -> ParamsId {
        ParamsId { hash: self.hash(), len: self.len() as u64 }
    }

    /// Returns BLAKE3 of the entries (little-endian).
    pub fn hash(&self) -> blake3::Hash {
        *self.hash.get_or_init(|| {
            let mut hasher = blake3::Hasher::new();
            let mut bytes = [0; 4096];
            for entries in self.as_slice().chunks(bytes.len() / 4) {
                for (bytes, entry) in bytes.chunks_exact_mut(4).zip(entries) {
                    bytes.copy_from_slice(&entry.to_le_bytes());
                }
                hasher.update(&bytes[..4 * entries.len()]);
            }
            hasher.finalize()
        })
    }
}

impl From<Vec<f32>> for Params {
    fn from(entries: Vec<f32>) -> Self {
        Self { entries: Arc::new(Entries(entries)), hash: Arc::default() }
    }
}

/// The number of fraction bits of an entry α_k·ω_k·(w_k − w).
const UPDATE_BITS: i32 = 24;
/// The number of fraction bits of a weight α_k·ω_k.
const WEIGHT_BITS: i32 = 16;
/// The number of entries after the update: weight of the tail, devices in it, devices refused.
const FOOTER: usize = 3;

/// The encoding of an update as integers.
#[derive(Clone, Copy, Debug)]
pub struct UpdateCode {
    /// The largest magnitude of an entry, so that no sum over the cohort can overflow.
    limit: f64,
    clip: Option<Clip>,
}

/// A sum of encoded updates. Most fit into 32 bits, so that less is copied from a GPU.
#[derive(Clone, Copy, Debug)]
pub enum EncodedSum<'a> {
    /// Entries of 32 bits.
    Narrow(&'a [i32]),
    /// Entries of 64 bits.
    Wide(&'a [i64]),
}

/// A device's update is not finite, or too large for the sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("entry {entry} of the update is not finite or too large")]
pub struct NonFiniteUpdate {
    /// The first such entry.
    pub entry: usize,
}

impl UpdateCode {
    /// Creates the code for a sum over at most `members` devices.
    pub fn new(members: usize) -> Self {
        Self { limit: 2f64.powi(62) / members.max(1) as f64, clip: None }
    }

    /// Sets the clipping of updates. `None` disables it.
    pub fn clipped(self, clip: Option<Clip>) -> Self {
        Self { clip, ..self }
    }

    /// Returns the maximum norm of an update, unbounded if `None`.
    pub fn clip(&self) -> Option<Clip> {
        self.clip
    }

    /// Returns the largest magnitude of an encoded entry. A device with a larger one is refused.
    pub fn limit(&self) -> f64 {
        self.limit
    }

    /// Returns the factor 2^24 by which an entry is multiplied before it is rounded.
    pub fn scale() -> f64 {
        2f64.powi(UPDATE_BITS)
    }

    /// Returns the length of an encoded update of d parameters.
    pub fn len(params: usize) -> usize {
        params + FOOTER
    }

    /// Returns ‖local − params‖² after clipping.
    pub fn squared_norm(&self, params: &[f32], local: &[f32]) -> f64 {
        let norm = norm(Granted::best(), &[(local, params)]);
        let factor = self.clip.map_or(1.0, |clip| clip.factor(norm));
        (factor * norm).powi(2)
    }

    /// Returns `true` if reported numbers fit into a sum.
    pub fn fits(&self, reports: &[f64]) -> bool {
        reports.iter().all(|number| (number * 2f64.powi(UPDATE_BITS)).abs() <= self.limit)
    }

    /// Adds reported numbers, which must fit, between the update and the footer.
    pub fn add_reports(reports: &[f64], sum: &mut [u64]) {
        let end = sum.len() - FOOTER;
        for (sum, number) in sum[end - reports.len()..end].iter_mut().zip(reports) {
            let code = (number * 2f64.powi(UPDATE_BITS)).round_ties_even();
            *sum = sum.wrapping_add(code as i64 as u64);
        }
    }

    /// Counts a device that has no update to add.
    pub fn refuse(sum: &mut [u64]) {
        let refused = sum.len() - 1;
        sum[refused] = sum[refused].wrapping_add(1);
    }

    /// Returns a sum of zeros of this length.
    pub fn zeros(len: usize) -> Vec<u64> {
        let Some(mut sum) = SPARE_SUMS.take(len) else { return vec![0; len] };
        in_parts(&mut sum, |_, sum| sum.fill(0));
        sum
    }

    /// Adds the sum of updates that a backend has encoded and added itself. `weights` contains α·ω
    /// of each device in it.
    pub fn add_encoded(encoded: EncodedSum<'_>, weights: &[f64], sum: &mut [u64]) {
        let (update, footer) = sum.split_at_mut(sum.len() - FOOTER);
        match encoded {
            EncodedSum::Narrow(encoded) => add_integers(encoded, update),
            EncodedSum::Wide(encoded) => add_integers(encoded, update),
        }
        for &weight in weights {
            Self::count(weight, footer);
        }
    }

    /// Counts a device of this weight α·ω in the footer.
    fn count(weight: f64, footer: &mut [u64]) {
        footer[0] = footer[0].wrapping_add((weight * 2f64.powi(WEIGHT_BITS)).round_ties_even() as u64);
        footer[1] = footer[1].wrapping_add(1);
    }

    /// Adds α·ω·(local − params) to `sum`. A refused update is counted instead, and its entries are
    /// not added.
    pub fn add(
        &self,
        params: &[f32],
        local: &[f32],
        weight: f64,
        sum: &mut [u64],
    ) -> Result<(), NonFiniteUpdate> {
        self.add_parts(&[(local, params)], weight, sum)
    }

    /// Adds an answer of several vectors, each with the vector from which it is a change.
    pub fn add_parts(
        &self,
        parts: &[(&[f32], &[f32])],
        weight: f64,
        sum: &mut [u64],
    ) -> Result<(), NonFiniteUpdate> {
        let (mut update, footer) = sum.split_at_mut(sum.len() - FOOTER);
        let kernel = Granted::best();
        let factor = self.clip.map_or(1.0, |clip| clip.factor(norm(kernel, parts)));
        let scale = weight * factor * 2f64.powi(UPDATE_BITS);
        let mut largest = 0.0;
        for (local, params) in parts {
            fixed_point::raise_to_largest(kernel, local, params, scale, &mut largest);
        }
        if largest > self.limit {
            let too_large = |(new, old): (&f32, &f32)| {
                let size = fixed_point::scaled(*new, *old, scale).abs();
                size.is_nan() || size > self.limit
            };
            let entries = parts.iter().flat_map(|(local, params)| local.iter().zip(*params));
            let entry = { entries }.position(too_large).unwrap_or(0);
            footer[2] = footer[2].wrapping_add(1);
            return Err(NonFiniteUpdate { entry });
        }
        for (local, params) in parts {
            let (part, behind) = std::mem::take(&mut update).split_at_mut(local.len());
            update = behind;
            if largest < fixed_point::LARGEST {
                fixed_point::add_rounded(kernel, local, params, scale, part);
                continue;
            }
            for (sum, (new, old)) in part.iter_mut().zip(local.iter().zip(*params)) {
                let code = fixed_point::scaled(*new, *old, scale).round_ties_even();
                *sum = sum.wrapping_add(code as i64 as u64);
            }
        }
        Self::count(weight, footer);
        Ok(())
    }
}

/// Adds integers to a sum, modulo 2^64.
fn add_integers<T: Copy + Into<i64> + Sync>(encoded: &[T], sum: &mut [u64]) {
    in_parts(sum, |start, sum| {
        for (sum, &encoded) in sum.iter_mut().zip(encoded.get(start..).unwrap_or_default()) {
            *sum = sum.wrapping_add(encoded.into() as u64);
        }
    });
}

/// Computes ‖w_k − w‖ in the same order on every machine.
fn norm(kernel: Granted, parts: &[(&[f32], &[f32])]) -> f64 {
    let mut squares = 0.0;
    for (local, params) in parts {
        fixed_point::add_squares(kernel, local, params, &mut squares);
    }
    squares.sqrt()
}

/// The sum of the updates of a cohort.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpdateSum {
    values: Vec<u64>,
    reports: usize,
}

/// A sum of updates whose length does not match the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the sum of updates has {got} entries, expected {expected}")]
pub struct WrongLength {
    /// The expected number of entries.
    pub expected: usize,
    /// The actual number of entries.
    pub got: usize,
}

impl UpdateSum {
    /// Decodes the sum of encoded updates of `params` parameters.
    pub fn new(sum: Vec<u64>, params: usize) -> Result<Self, WrongLength> {
        Self::with_reports(sum, params, 0)
    }

    /// Creates the sum of updates with this weighted mean and this weight of the tail.
    pub fn from_mean(mean: &[f64], tail_weight: f64) -> Self {
        let mut values = vec![0; UpdateCode::len(mean.len())];
        let footer = mean.len();
        values[footer] = (tail_weight * 2f64.powi(WEIGHT_BITS)).round_ties_even() as u64;
        values[footer + 1] = tail_weight.round() as u64;
        Self { values, reports: 0 }.with_mean(mean)
    }

    /// Decodes the sum of encoded updates of `params` parameters with this many reported numbers.
    pub fn with_reports(values: Vec<u64>, params: usize, reports: usize) -> Result<Self, WrongLength> {
        let (expected, got) = (UpdateCode::len(params) + reports, values.len());
        if got == expected { Ok(Self { values, reports }) } else { Err(WrongLength { expected, got }) }
    }

    /// Returns Σ α_k·r over the tail for each number r that devices report.
    pub fn reports(&self) -> Vec<f64> {
        let end = self.values.len() - FOOTER;
        let decoded = |&sum: &u64| sum as i64 as f64 * 2f64.powi(-UPDATE_BITS);
        self.values[end - self.reports..end].iter().map(decoded).collect()
    }

    /// Returns Σ α_k·ω_k over the tail.
    pub fn tail_weight(&self) -> f64 {
        self.footer(0) as f64 * 2f64.powi(-WEIGHT_BITS)
    }

    /// Replaces the weighted mean of the updates. The weight stays, and so do the reports.
    #[must_use]
    pub fn with_mean(mut self, mean: &[f64]) -> Self {
        let scale = self.tail_weight() * 2f64.powi(UPDATE_BITS);
        for (sum, entry) in self.values.iter_mut().zip(mean) {
            *sum = (entry * scale).round_ties_even() as i64 as u64;
        }
        self
    }

    /// Returns the weighted mean of the updates, or `None` if the sum contains no device.
    pub fn mean(&self) -> Option<impl Iterator<Item = f64> + '_> {
        let (entries, scale) = self.encoded_mean()?;
        Some(entries.iter().map(move |&sum| sum as i64 as f64 * scale))
    }

    /// Returns the weighted mean of the updates in the memory of the sum, or `None` if it contains
    /// no device.
    pub(crate) fn into_mean(mut self) -> Option<Vec<f64>> {
        let (entries, scale) = self.encoded_mean()?;
        let len = entries.len();
        let sums = std::mem::take(&mut self.values);
        Some(sums.into_iter().take(len).map(|sum| sum as i64 as f64 * scale).collect())
    }

    /// Returns the encoded sum of the updates, and the factor of an entry of their weighted mean.
    fn encoded_mean(&self) -> Option<(&[u64], f64)> {
        let weight = self.tail_weight();
        let entries = &self.values[..self.values.len() - FOOTER - self.reports];
        (weight > 0.0).then(|| (entries, 2f64.powi(-UPDATE_BITS) / weight))
    }

    /// |S_t'|, the number of devices in the tail.
    pub fn tail(&self) -> u64 {
        self.footer(1)
    }

    /// Returns the number of devices with a refused update.
    pub fn refused(&self) -> u64 {
        self.footer(2)
    }

    /// Computes w + Σ α_k ω_k (w_k − w) / Σ α_k ω_k (Algorithm 2, line 9). Returns `None` if the
    /// tail is empty.
    pub fn applied_to(&self, params: &Params) -> Option<Params> {
        let (entries, scale) = self.encoded_mean()?;
        let mut moved = SPARE_PARAMS.take(params.len()).unwrap_or_else(|| vec![0.0; params.len()]);
        in_parts(&mut moved, |start, moved| {
            let from = params.as_slice()[start..].iter().zip(&entries[start..]);
            for (new, (&w, &sum)) in moved.iter_mut().zip(from) {
                *new = (f64::from(w) + sum as i64 as f64 * scale) as f32;
            }
        });
        Some(moved.into())
    }

    fn footer(&self, i: usize) -> u64 {
        self.values[self.values.len() - FOOTER + i]
    }
}

impl Drop for UpdateSum {
    fn drop(&mut self) {
        SPARE_SUMS.keep(std::mem::take(&mut self.values));
    }
}

/// Computes the entries of a vector in place. Several threads compute parts of a long vector. The
/// function receives the index of the first entry of a part.
fn in_parts<T: Send>(entries: &mut [T], compute: impl Fn(usize, &mut [T]) + Sync) {
    if entries.len() < LONG {
        return compute(0, entries);
    }
    entries.par_chunks_mut(PART).enumerate().for_each(|(i, entries)| compute(i * PART, entries));
}

/// Adds `other` into `sum`, entry by entry, modulo 2^64.
pub fn add_wrapping(sum: &mut [u64], other: &[u64]) {
    for (sum, other) in sum.iter_mut().zip(other) {
        *sum = sum.wrapping_add(*other);
    }
}
