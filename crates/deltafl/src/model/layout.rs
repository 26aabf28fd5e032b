//! Conversion of parameters between flat order and working form, and sections of scratch memory.

use crate::kernel::product::{Layout, PANEL, padded};

/// Rounds a section up to whole cache lines.
pub(super) const fn section(len: usize) -> usize {
    len.next_multiple_of(16)
}

/// Splits off the next section in whole cache lines, so that the rest stays aligned.
pub(super) fn take<'a>(memory: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    let (taken, rest) = std::mem::take(memory).split_at_mut(section(len));
    *memory = rest;
    &mut taken[..len]
}

/// Returns the floats of sections of these lengths.
pub(super) fn sections_len<const N: usize>(lens: [usize; N]) -> usize {
    lens.map(section).iter().sum()
}

/// Splits off sections of these lengths.
pub(super) fn take_sections<'a, const N: usize>(
    memory: &mut &'a mut [f32],
    lens: [usize; N],
) -> [&'a mut [f32]; N] {
    lens.map(|len| take(memory, len))
}

/// Writes a row-major matrix panel by panel, with zeros in the padding.
pub(super) fn to_panels(matrix: &[f32], rows: usize, columns: usize, panels: &mut [f32]) {
    let layout = Layout::panels(rows);
    for (i, row) in matrix.chunks_exact(columns).enumerate() {
        // The compiler knows the length of whole panels.
        let (whole, rest) = row.as_chunks::<PANEL>();
        for (p, part) in whole.iter().enumerate() {
            panels[layout.at(i, p * PANEL)..][..PANEL].copy_from_slice(part);
        }
        if !rest.is_empty() {
            let (part, padding) =
                panels[layout.at(i, whole.len() * PANEL)..][..PANEL].split_at_mut(rest.len());
            part.copy_from_slice(rest);
            padding.fill(0.0);
        }
    }
}

/// The inverse of [`to_panels`].
pub(super) fn from_panels(panels: &[f32], rows: usize, columns: usize, matrix: &mut [f32]) {
    let layout = Layout::panels(rows);
    for (i, row) in matrix.chunks_exact_mut(columns).enumerate() {
        let (whole, rest) = row.as_chunks_mut::<PANEL>();
        for (p, part) in whole.iter_mut().enumerate() {
            part.copy_from_slice(&panels[layout.at(i, p * PANEL)..][..PANEL]);
        }
        if !rest.is_empty() {
            rest.copy_from_slice(&panels[layout.at(i, whole.len() * PANEL)..][..rest.len()]);
        }
    }
}

/// The gates of a recurrent layer: `count` of `hidden` units each, padded to a multiple of
/// `multiple`, contiguously.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gates {
    pub(super) count: usize,
    pub(super) hidden: usize,
    pub(super) multiple: usize,
}

impl Gates {
    /// Returns the units of a gate, padded.
    pub(super) const fn units(self) -> usize {
        self.hidden.next_multiple_of(self.multiple)
    }

    /// Returns the columns of all gates, padded.
    pub(super) const fn columns(self) -> usize {
        padded(self.count * self.units())
    }

    /// Returns the rows of the flat matrices.
    pub(super) const fn rows(self) -> usize {
        self.count * self.hidden
    }

    /// Returns the column of a flat row.
    fn column(self, row: usize) -> usize {
        row / self.hidden * self.units() + row % self.hidden
    }

    /// Writes a flat vector with an entry per gate and unit.
    pub(super) fn load_vector(self, flat: &[f32], to: &mut [f32]) {
        flat.iter().enumerate().for_each(|(row, &w)| to[self.column(row)] = w);
    }

    /// The inverse of [`Self::load_vector`].
    pub(super) fn store_vector(self, from: &[f32], flat: &mut [f32]) {
        flat.iter_mut().enumerate().for_each(|(row, w)| *w = from[self.column(row)]);
    }

    /// Writes a flat matrix, a row per gate and unit, as its transpose: a row per input.
    pub(super) fn load(self, flat: &[f32], layout: Layout, to: &mut [f32]) {
        for (row, inputs) in flat.chunks_exact(flat.len() / self.rows()).enumerate() {
            inputs.iter().enumerate().for_each(|(i, &w)| to[layout.at(i, self.column(row))] = w);
        }
    }

    /// The inverse of [`Self::load`].
    pub(super) fn store(self, from: &[f32], layout: Layout, flat: &mut [f32]) {
        for (row, inputs) in flat.chunks_exact_mut(flat.len() / self.rows()).enumerate() {
            inputs.iter_mut().enumerate().for_each(|(i, w)| *w = from[layout.at(i, self.column(row))]);
        }
    }
}

/// Writes a flat matrix as its transpose, panel by panel.
pub(super) fn load_transposed(flat: &[f32], inputs: usize, layout: Layout, to: &mut [f32]) {
    for (row, entries) in flat.chunks_exact(inputs).enumerate() {
        entries.iter().enumerate().for_each(|(i, &w)| to[layout.at(i, row)] = w);
    }
}

/// The inverse of [`load_transposed`].
pub(super) fn store_transposed(from: &[f32], inputs: usize, layout: Layout, flat: &mut [f32]) {
    for (row, entries) in flat.chunks_exact_mut(inputs).enumerate() {
        entries.iter_mut().enumerate().for_each(|(i, w)| *w = from[layout.at(i, row)]);
    }
}

/// Splits a slice into consecutive parts of the given lengths.
pub(super) fn split<const N: usize>(mut values: &[f32], lens: [usize; N]) -> [&[f32]; N] {
    lens.map(|len| {
        let (part, rest) = values.split_at(len);
        values = rest;
        part
    })
}

/// Splits a mutable slice into consecutive parts of the given lengths.
pub(super) fn split_mut<const N: usize>(mut values: &mut [f32], lens: [usize; N]) -> [&mut [f32]; N] {
    lens.map(|len| {
        let (part, rest) = std::mem::take(&mut values).split_at_mut(len);
        values = rest;
        part
    })
}
