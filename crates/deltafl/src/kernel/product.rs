//! Matrix products C ← βC + A·B, small and skinny.
//!
//! A is read entry by entry and broadcast to a vector. B and C are read in vectors. A tile of C, up
//! to 12 rows × 2 vectors, stays in registers while k runs. Per step of k, two loads of B serve
//! every row, and one load of A serves both vectors.
//!
//! B and C are split into *panels* of 32 columns. In parameters each panel is contiguous, so that k
//! runs through memory in order. Activations are stored row by row, which only changes the strides.

#![allow(unsafe_code, unsafe_op_in_unsafe_fn)]

use super::dispatch::entry;
use super::simd::Simd;
pub(crate) use super::transpose::{transposed, transposed_into, transposed_only};

/// The columns of a panel.
pub(crate) const PANEL: usize = 32;
/// The number of columns is a multiple of this.
pub(crate) const COLUMNS: usize = 16;

/// The shape of m × k times k × n. `n` is a multiple of [`COLUMNS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
}

/// A matrix read entry by entry: (i, p) is at `i·row + p·column`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entries<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) row: usize,
    pub(crate) column: usize,
}

/// The layout of a matrix read in vectors: (i, j) is at `i·row + (j / 32)·panel + j % 32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) row: usize,
    pub(crate) panel: usize,
}

impl Layout {
    /// Row by row, `stride` floats each.
    pub(crate) const fn rows(stride: usize) -> Self {
        Self { row: stride, panel: PANEL }
    }

    /// Panel by panel, for a matrix of `rows` rows.
    pub(crate) const fn panels(rows: usize) -> Self {
        Self { row: PANEL, panel: rows * PANEL }
    }

    /// Returns the position of (i, j).
    pub(crate) const fn at(self, i: usize, j: usize) -> usize {
        i * self.row + (j / PANEL) * self.panel + j % PANEL
    }

    /// Returns the floats of an m × n matrix, from the first to the last.
    pub(crate) const fn extent(self, m: usize, n: usize) -> usize {
        if m == 0 || n == 0 { 0 } else { self.at(m - 1, n - 1) + 1 }
    }
}

/// Returns the floats of a matrix of `rows` × `columns`, panel by panel.
pub(crate) const fn panels_len(rows: usize, columns: usize) -> usize {
    columns.div_ceil(PANEL) * PANEL * rows
}

/// Rounds up to a multiple of [`COLUMNS`].
pub(crate) const fn padded(columns: usize) -> usize {
    columns.next_multiple_of(COLUMNS)
}

entry! {
    /// Computes C ← βC + A·B. With β = 0, C is not read.
    pub(crate) fn product(
        shape: Shape, a: Entries<'_>, b: &[f32], b_layout: Layout, c: &mut [f32], c_layout: Layout, beta: f32,
    ) = tiled, reference
}

entry! {
    /// Computes C ← βC + D + A·B, where D has the layout of C.
    pub(crate) fn product_plus(
        shape: Shape, a: Entries<'_>, b: &[f32], b_layout: Layout, c: &mut [f32], c_layout: Layout, beta: f32,
        d: &[f32],
    ) = tiled_plus, reference_plus
}

#[allow(clippy::too_many_arguments)]
fn reference_plus(
    shape: Shape,
    a: Entries<'_>,
    b: &[f32],
    b_layout: Layout,
    c: &mut [f32],
    c_layout: Layout,
    beta: f32,
    d: &[f32],
) {
    for i in 0..shape.m {
        for j in 0..shape.n {
            let at = c_layout.at(i, j);
            c[at] = beta * c[at] + d[at];
        }
    }
    reference(shape, a, b, b_layout, c, c_layout, 1.0);
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn tiled_plus<S: Simd>(
    _: S,
    shape: Shape,
    a: Entries<'_>,
    b: &[f32],
    b_layout: Layout,
    c: &mut [f32],
    c_layout: Layout,
    beta: f32,
    d: &[f32],
) {
    check(shape, a, b, b_layout, c, c_layout);
    assert!(d.len() >= c_layout.extent(shape.m, shape.n), "D is too short");
    multiply_plus::<S, true>(shape, a, b.as_ptr(), b_layout, c.as_mut_ptr(), c_layout, beta, d.as_ptr());
}

/// The plain product.
fn reference(
    shape: Shape,
    a: Entries<'_>,
    b: &[f32],
    b_layout: Layout,
    c: &mut [f32],
    c_layout: Layout,
    beta: f32,
) {
    for i in 0..shape.m {
        for j in 0..shape.n {
            let c = &mut c[c_layout.at(i, j)];
            let mut sum = if beta == 0.0 { 0.0 } else { beta * *c };
            for p in 0..shape.k {
                sum += a.values[i * a.row + p * a.column] * b[b_layout.at(p, j)];
            }
            *c = sum;
        }
    }
}

/// Computes the product tile by tile. The outer loop is over panels, so that one panel of B stays
/// in cache.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn tiled<S: Simd>(
    _: S,
    shape: Shape,
    a: Entries<'_>,
    b: &[f32],
    b_layout: Layout,
    c: &mut [f32],
    c_layout: Layout,
    beta: f32,
) {
    check(shape, a, b, b_layout, c, c_layout);
    multiply::<S>(shape, a, b.as_ptr(), b_layout, c.as_mut_ptr(), c_layout, beta);
}

#[inline(always)]
fn check(shape: Shape, a: Entries<'_>, b: &[f32], b_layout: Layout, c: &[f32], c_layout: Layout) {
    let Shape { m, n, k } = shape;
    assert!(n.is_multiple_of(COLUMNS), "columns come in multiples of 16");
    assert!(b.len() >= b_layout.extent(k, n) && c.len() >= c_layout.extent(m, n), "B or C is too short");
    assert!(k == 0 || m == 0 || a.values.len() > (m - 1) * a.row + (k - 1) * a.column, "A is too short");
}

/// Computes the product on pointers to matrices of `shape`.
#[inline(always)]
pub(crate) unsafe fn multiply<S: Simd>(
    shape: Shape,
    a: Entries<'_>,
    b: *const f32,
    b_layout: Layout,
    c: *mut f32,
    c_layout: Layout,
    beta: f32,
) {
    multiply_plus::<S, false>(shape, a, b, b_layout, c, c_layout, beta, std::ptr::null());
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn multiply_plus<S: Simd, const PLUS: bool>(
    shape: Shape,
    a: Entries<'_>,
    b: *const f32,
    b_layout: Layout,
    c: *mut f32,
    c_layout: Layout,
    beta: f32,
    d: *const f32,
) {
    let Shape { m, n, k } = shape;
    if m == 0 {
        return;
    }
    // Blocks of nearly equal height: 16 rows are 8 + 8, not 12 + 4.
    let height = m.div_ceil(m.div_ceil(S::ROWS));
    let mut j = 0;
    while j < n {
        let room = (PANEL - j % PANEL).min(n - j);
        let wide = room >= 2 * S::LANES;
        let (b, c) = (b.add(b_layout.at(0, j)), c.add(c_layout.at(0, j)));
        let d = if PLUS { d.add(c_layout.at(0, j)) } else { d };
        let mut i = 0;
        while i < m {
            let tile = Tile {
                a: Rows { first: a.values.as_ptr().add(i * a.row), row: a.row, column: a.column },
                b,
                b_row: b_layout.row,
                c: c.add(i * c_layout.row),
                c_row: c_layout.row,
                k,
                beta,
                d: if PLUS { d.add(i * c_layout.row) } else { d },
            };
            let rows = height.min(m - i);
            if wide {
                tile.run::<S, 2, PLUS>(rows);
            } else {
                tile.run::<S, 1, PLUS>(rows);
            }
            i += rows;
        }
        j += if wide { 2 * S::LANES } else { S::LANES };
    }
}

/// Some rows of A, read entry by entry.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) first: *const f32,
    pub(crate) row: usize,
    pub(crate) column: usize,
}

impl Rows {
    /// Computes sums + A·B over `k` columns of these rows. Vector v of row p of B is at `b[v] +
    /// p·b_row`.
    #[inline(always)]
    pub(crate) unsafe fn add_product<S: Simd, const ROWS: usize, const WIDE: usize>(
        self,
        k: usize,
        b: [*const f32; WIDE],
        b_row: usize,
        mut sums: [[S::V; WIDE]; ROWS],
    ) -> [[S::V; WIDE]; ROWS] {
        // Row 3j + i is read at pointer j plus 0, 1 or 2 strides, which needs no extra instruction.
        let mut a = [self.first; 4];
        for (j, a) in a.iter_mut().enumerate() {
            *a = self.first.wrapping_add(3 * j * self.row);
        }
        for p in 0..k {
            let mut row = [S::zero(); WIDE];
            for (row, b) in row.iter_mut().zip(b) {
                *row = S::load(b.add(p * b_row));
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                let x = S::splat(*a[i / 3].add(i % 3 * self.row));
                for (sum, row) in sums.iter_mut().zip(row) {
                    *sum = S::fma(x, row, *sum);
                }
            }
            for a in &mut a {
                *a = a.wrapping_add(self.column);
            }
        }
        sums
    }
}

/// The operands of one tile of C.
#[derive(Clone, Copy)]
struct Tile {
    a: Rows,
    b: *const f32,
    b_row: usize,
    c: *mut f32,
    c_row: usize,
    k: usize,
    beta: f32,
    d: *const f32,
}

impl Tile {
    #[inline(always)]
    unsafe fn run<S: Simd, const WIDE: usize, const PLUS: bool>(self, rows: usize) {
        match rows {
            1 => self.fill::<S, 1, WIDE, PLUS>(),
            2 => self.fill::<S, 2, WIDE, PLUS>(),
            3 => self.fill::<S, 3, WIDE, PLUS>(),
            4 => self.fill::<S, 4, WIDE, PLUS>(),
            5 if S::ROWS >= 5 => self.fill::<S, 5, WIDE, PLUS>(),
            6 if S::ROWS >= 6 => self.fill::<S, 6, WIDE, PLUS>(),
            7 if S::ROWS >= 7 => self.fill::<S, 7, WIDE, PLUS>(),
            8 if S::ROWS >= 8 => self.fill::<S, 8, WIDE, PLUS>(),
            9 if S::ROWS >= 9 => self.fill::<S, 9, WIDE, PLUS>(),
            10 if S::ROWS >= 10 => self.fill::<S, 10, WIDE, PLUS>(),
            11 if S::ROWS >= 11 => self.fill::<S, 11, WIDE, PLUS>(),
            12 if S::ROWS >= 12 => self.fill::<S, 12, WIDE, PLUS>(),
            _ => unreachable!("a tile has at most ROWS rows"),
        }
    }

    #[inline(always)]
    unsafe fn fill<S: Simd, const ROWS: usize, const WIDE: usize, const PLUS: bool>(self) {
        let mut sums = [[S::zero(); WIDE]; ROWS];
        // Load C first, so that its memory arrives while the previous tile is still summed.
        if PLUS || self.beta != 0.0 {
            let beta = S::splat(self.beta);
            for (i, sums) in sums.iter_mut().enumerate() {
                for (v, sum) in sums.iter_mut().enumerate() {
                    let at = i * self.c_row + v * S::LANES;
                    let c = S::load(self.c.add(at));
                    *sum = if PLUS { S::fma(beta, c, S::load(self.d.add(at))) } else { S::mul(beta, c) };
                }
            }
        }
        let mut b = [self.b; WIDE];
        for (v, b) in b.iter_mut().enumerate() {
            *b = b.add(v * S::LANES);
        }
        let sums = self.a.add_product::<S, ROWS, WIDE>(self.k, b, self.b_row, sums);
        for (i, sums) in sums.iter().enumerate() {
            for (v, &sum) in sums.iter().enumerate() {
                S::store(self.c.add(i * self.c_row + v * S::LANES), sum);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Granted, Isa};
    use crate::stream::{Purpose, Stream};

    fn random(len: usize, stream: &mut Stream) -> Vec<f32> {
        (0..len).map(|_| stream.uniform(-1.0, 1.0) as f32).collect()
    }

    fn run(isa: Isa, shape: Shape, layouts: [Layout; 2], a_by_column: bool, beta: f32) -> Vec<f32> {
        let stream = &mut Stream::new(1, Purpose::Synthesis, 0, shape.m as u64);
        let Shape { m, n, k } = shape;
        let values = random(m * k + 1, stream);
        let (row, column) = if a_by_column { (1, m) } else { (k, 1) };
        let b = random(layouts[0].extent(k, n), stream);
        let mut c = random(layouts[1].extent(m, n), stream);
        product(
            Granted::new(isa),
            shape,
            Entries { values: &values, row, column },
            &b,
            layouts[0],
            &mut c,
            layouts[1],
            beta,
        );
        c
    }

    #[test]
    fn every_instruction_set_agrees_with_the_plain_product_at_odd_sizes() {
        for (m, n, k) in
            [(1, 16, 1), (5, 16, 7), (10, 64, 9), (13, 48, 33), (16, 112, 20), (25, 32, 3), (4, 16, 0)]
        {
            let shape = Shape { m, n, k };
            let layouts = [[Layout::panels(k), Layout::rows(n)], [Layout::rows(n), Layout::panels(m)]];
            for (layouts, beta) in layouts.into_iter().zip([0.0, 0.75]) {
                let expected = run(Isa::Reference, shape, layouts, beta == 0.0, beta);
                for isa in Isa::available() {
                    let got = run(isa, shape, layouts, beta == 0.0, beta);
                    let worst = expected.iter().zip(&got).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    assert!(worst < 1e-5, "{isa} {shape:?}: off by {worst}");
                }
            }
        }
    }

    #[test]
    fn a_matrix_is_added_on_every_instruction_set() {
        let shape = Shape { m: 13, n: 48, k: 5 };
        let (b_layout, c_layout) = (Layout::rows(48), Layout::panels(13));
        let run = |isa| {
            let stream = &mut Stream::new(1, Purpose::Synthesis, 0, 0);
            let (values, b) = (random(13 * 5, stream), random(b_layout.extent(5, 48), stream));
            let [mut c, d] = [(); 2].map(|()| random(c_layout.extent(13, 48), stream));
            let mut expected = c.clone();
            let a = Entries { values: &values, row: 5, column: 1 };
            product(Granted::new(isa), shape, a, &b, b_layout, &mut expected, c_layout, 0.75);
            product_plus(Granted::new(isa), shape, a, &b, b_layout, &mut c, c_layout, 0.75, &d);
            for i in 0..13 {
                for at in (0..48).map(|j| c_layout.at(i, j)) {
                    assert!((c[at] - expected[at] - d[at]).abs() < 1e-5, "{isa}");
                }
            }
        };
        Isa::available().for_each(run);
    }
}
