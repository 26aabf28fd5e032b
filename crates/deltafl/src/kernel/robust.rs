//! Order statistics and distances of updates: plain loops, compiled for each instruction set.

#![allow(unsafe_code)]

use super::dispatch::plain_entry;

/// Entries of an update that are sorted at once.
pub(crate) const COLUMNS: usize = 16;
/// Independent partial sums of a distance.
const LANES: usize = 8;

plain_entry! {
    /// Sorts each column of finite numbers.
    pub(crate) fn sort_columns(rows: &mut [[f64; COLUMNS]]) = merge_exchange
}

plain_entry! {
    /// Adds ‖a − b‖² to `sum`.
    pub(crate) fn add_squared_distance(a: &[f64], b: &[f64], sum: &mut f64) = squared_distance
}

plain_entry! {
    /// Adds `factor` times each entry to `sums`.
    pub(crate) fn add_scaled(entries: &[f64], factor: f64, sums: &mut [f64]) = scaled
}

/// Merge exchange (Knuth, "The Art of Computer Programming", 5.2.2, Algorithm M): the pairs do not
/// depend on the numbers, so all columns are sorted together.
#[inline(always)]
fn merge_exchange(rows: &mut [[f64; COLUMNS]]) {
    let half = rows.len().next_power_of_two() / 2;
    let mut p = half;
    while p > 0 {
        let (mut q, mut r, mut d) = (half, 0, p);
        loop {
            for i in (0..rows.len().saturating_sub(d)).filter(|i| i & p == r) {
                let (first, second) = rows.split_at_mut(i + d);
                for (a, b) in first[i].iter_mut().zip(&mut second[0]) {
                    let (low, high) = (if *b < *a { *b } else { *a }, if *b < *a { *a } else { *b });
                    (*a, *b) = (low, high);
                }
            }
            if q == p {
                break;
            }
            (d, q, r) = (q - p, q / 2, p);
        }
        p /= 2;
    }
}

#[inline(always)]
fn squared_distance(a: &[f64], b: &[f64], total: &mut f64) {
    let (mut lanes, both) = ([0.0; LANES], a.chunks_exact(LANES).zip(b.chunks_exact(LANES)));
    let rest = a.len() - a.len() % LANES;
    for (a, b) in both {
        for (sum, (a, b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *sum += (a - b) * (a - b);
        }
    }
    let tail: f64 = a[rest..].iter().zip(&b[rest..]).map(|(a, b)| (a - b) * (a - b)).sum();
    *total += lanes.iter().sum::<f64>() + tail;
}

#[inline(always)]
fn scaled(entries: &[f64], factor: f64, sums: &mut [f64]) {
    sums.iter_mut().zip(entries).for_each(|(sum, entry)| *sum += factor * entry);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Granted, Isa};

    fn numbers(len: usize) -> Vec<f64> {
        (0..len).map(|i| ((i * i) as f64 * 0.7).sin()).collect()
    }

    #[test]
    fn columns_are_sorted_for_any_number_of_rows() {
        for isa in Isa::available() {
            for len in 0..40 {
                let values = numbers(len * COLUMNS);
                let mut rows: Vec<[f64; COLUMNS]> =
                    values.chunks_exact(COLUMNS).map(|row| row.try_into().unwrap()).collect();
                sort_columns(Granted::new(isa), &mut rows);
                for column in 0..COLUMNS {
                    let mut expected: Vec<f64> =
                        values.iter().skip(column).step_by(COLUMNS).copied().collect();
                    expected.sort_unstable_by(f64::total_cmp);
                    let sorted: Vec<f64> = rows.iter().map(|row| row[column]).collect();
                    assert_eq!(sorted, expected, "{isa}, {len} rows");
                }
            }
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let (a, b) = (numbers(101), numbers(202)[101..].to_vec());
        let run = |isa| {
            let (mut distance, mut sums) = (0.0, b.clone());
            add_squared_distance(Granted::new(isa), &a, &b, &mut distance);
            add_scaled(Granted::new(isa), &a, 0.3, &mut sums);
            (distance, sums)
        };
        Isa::available().for_each(|isa| assert_eq!(run(isa), run(Isa::Reference), "{isa}"));
        let plain: f64 = a.iter().zip(&b).map(|(a, b)| (a - b).powi(2)).sum();
        assert!((run(Isa::Reference).0 / plain - 1.0).abs() < 1e-12);
    }
}
