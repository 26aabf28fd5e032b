//! Parameters between their flat order and their working form.

use crate::kernel::product::{Layout, PANEL};

/// Writes a matrix kept row by row panel by panel, zeros in the padding.
pub(super) fn to_panels(matrix: &[f32], rows: usize, columns: usize, panels: &mut [f32]) {
    panels.fill(0.0);
    let layout = Layout::panels(rows);
    for (i, row) in matrix.chunks_exact(columns).enumerate() {
        for (p, part) in row.chunks(PANEL).enumerate() {
            let at = layout.at(i, p * PANEL);
            panels[at..at + part.len()].copy_from_slice(part);
        }
    }
}

/// The inverse of [`to_panels`].
pub(super) fn from_panels(panels: &[f32], rows: usize, columns: usize, matrix: &mut [f32]) {
    let layout = Layout::panels(rows);
    for (i, row) in matrix.chunks_exact_mut(columns).enumerate() {
        for (p, part) in row.chunks_mut(PANEL).enumerate() {
            let at = layout.at(i, p * PANEL);
            part.copy_from_slice(&panels[at..at + part.len()]);
        }
    }
}
