//! Transposition of matrices, in blocks that fit in registers.

#![allow(unsafe_code, unsafe_op_in_unsafe_fn)]

use super::dispatch::entry;
use super::product::{Layout, padded};
use super::simd::Simd;

entry! {
    /// Computes Bᵀ panel by panel, `columns × rows`, from B of `rows × columns`. Columns of Bᵀ
    /// after `rows` are zero.
    pub(crate) fn transposed(rows: usize, columns: usize, from: &[f32], layout: Layout, to: &mut [f32])
        = transposed_panels, transposed_panels_reference
}

entry! {
    /// Computes Bᵀ in the layout `to_layout`, `columns × rows`, from B of `rows × columns`. Columns
    /// of Bᵀ after `rows` are zero, up to a multiple of [`COLUMNS`].
    pub(crate) fn transposed_into(
        rows: usize, columns: usize, from: &[f32], layout: Layout, to: &mut [f32], to_layout: Layout,
    ) = transposed_padded, transposed_padded_reference
}

entry! {
    /// Computes Bᵀ in the layout `to_layout`, `columns × rows`, and writes nothing else.
    pub(crate) fn transposed_only(
        rows: usize, columns: usize, from: &[f32], layout: Layout, to: &mut [f32], to_layout: Layout,
    ) = transposed_exact, transposed_exact_reference
}

fn transposed_panels_reference(rows: usize, columns: usize, from: &[f32], layout: Layout, to: &mut [f32]) {
    transposed_reference(rows, columns, from, layout, to, Layout::panels(columns), padded(rows));
}

#[inline(always)]
unsafe fn transposed_panels<S: Simd>(
    simd: S,
    rows: usize,
    columns: usize,
    from: &[f32],
    layout: Layout,
    to: &mut [f32],
) {
    transposed_blocks(simd, rows, columns, from, layout, to, Layout::panels(columns), padded(rows));
}

fn transposed_padded_reference(
    rows: usize,
    columns: usize,
    from: &[f32],
    layout: Layout,
    to: &mut [f32],
    to_layout: Layout,
) {
    transposed_reference(rows, columns, from, layout, to, to_layout, padded(rows));
}

#[inline(always)]
unsafe fn transposed_padded<S: Simd>(
    simd: S,
    rows: usize,
    columns: usize,
    from: &[f32],
    layout: Layout,
    to: &mut [f32],
    to_layout: Layout,
) {
    transposed_blocks(simd, rows, columns, from, layout, to, to_layout, padded(rows));
}

fn transposed_exact_reference(
    rows: usize,
    columns: usize,
    from: &[f32],
    layout: Layout,
    to: &mut [f32],
    to_layout: Layout,
) {
    transposed_reference(rows, columns, from, layout, to, to_layout, rows);
}

#[inline(always)]
unsafe fn transposed_exact<S: Simd>(
    simd: S,
    rows: usize,
    columns: usize,
    from: &[f32],
    layout: Layout,
    to: &mut [f32],
    to_layout: Layout,
) {
    transposed_blocks(simd, rows, columns, from, layout, to, to_layout, rows);
}

fn transposed_reference(
    rows: usize,
    columns: usize,
    from: &[f32],
    layout: Layout,
    to: &mut [f32],
    to_layout: Layout,
    width: usize,
) {
    for j in 0..columns {
        for i in 0..width {
            to[to_layout.at(j, i)] = if i < rows { from[layout.at(i, j)] } else { 0.0 };
        }
    }
}

/// Transposes blocks in registers, and incomplete blocks through a copy with zeros. The columns of
/// Bᵀ from `rows` to `width` are zero.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn transposed_blocks<S: Simd>(
    _: S,
    rows: usize,
    columns: usize,
    from: &[f32],
    layout: Layout,
    to: &mut [f32],
    to_layout: Layout,
    width: usize,
) {
    assert!(from.len() >= layout.extent(rows, columns) && to.len() >= to_layout.extent(columns, width));
    let block = S::LANES;
    for j in (0..columns).step_by(block) {
        let across = block.min(columns - j);
        for i in (0..width).step_by(block) {
            let (down, wide) = (block.min(rows.saturating_sub(i)), block.min(width - i));
            if down == block && across == block {
                let (from, to) =
                    (from.as_ptr().add(layout.at(i, j)), to.as_mut_ptr().add(to_layout.at(j, i)));
                S::transpose(from, layout.row, to, to_layout.row);
                continue;
            }
            let (mut part, mut turned) = ([0.0; BLOCK * BLOCK], [0.0; BLOCK * BLOCK]);
            for (r, row) in part.chunks_exact_mut(block).take(down).enumerate() {
                row[..across].copy_from_slice(&from[layout.at(i + r, j)..][..across]);
            }
            S::transpose(part.as_ptr(), block, turned.as_mut_ptr(), block);
            for (c, row) in turned.chunks_exact(block).take(across).enumerate() {
                to[to_layout.at(j + c, i)..][..wide].copy_from_slice(&row[..wide]);
            }
        }
    }
}

/// The most lanes of a vector.
const BLOCK: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::product::panels_len;
    use crate::kernel::{Granted, Isa};
    use crate::stream::{Purpose, Stream};

    #[test]
    fn transposing_twice_gives_the_matrix_back() {
        let stream = &mut Stream::new(1, Purpose::Synthesis, 0, 0);
        for isa in Isa::available() {
            for (rows, columns) in [(1, 1), (16, 16), (17, 40), (128, 96), (33, 5)] {
                let mut from = vec![0.0; panels_len(rows, columns)];
                for i in 0..rows {
                    for j in 0..columns {
                        from[Layout::panels(rows).at(i, j)] = stream.unit() as f32;
                    }
                }
                let (mut to, mut back) = (vec![0.0; panels_len(columns, rows)], vec![0.0; from.len()]);
                transposed(Granted::new(isa), rows, columns, &from, Layout::panels(rows), &mut to);
                transposed(Granted::new(isa), columns, rows, &to, Layout::panels(columns), &mut back);
                assert_eq!(from, back, "{isa} {rows} × {columns}");
            }
        }
    }

    #[test]
    fn a_transposed_matrix_of_rows_has_zeros_after_its_last_column() {
        for isa in Isa::available() {
            let from: Vec<f32> = (0..21 * 48).map(|i| i as f32).collect();
            let mut to = vec![7.0; 40 * 32];
            transposed_into(Granted::new(isa), 21, 40, &from, Layout::rows(48), &mut to, Layout::rows(32));
            for (i, x) in to.iter().enumerate() {
                let expected = if i % 32 < 21 { from[i % 32 * 48 + i / 32] } else { 0.0 };
                assert_eq!(*x, expected, "{isa} {i}");
            }
            let mut only = vec![7.0; 40 * 21 + 1];
            transposed_only(Granted::new(isa), 21, 40, &from, Layout::rows(48), &mut only, Layout::rows(21));
            for (i, x) in only.iter().enumerate() {
                let expected = if i < 40 * 21 { from[i % 21 * 48 + i / 21] } else { 7.0 };
                assert_eq!(*x, expected, "{isa} {i}");
            }
        }
    }
}
