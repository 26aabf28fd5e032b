//! The targets of examples: classes or real numbers.

use super::{Column, InputKind};
use crate::task::Targets;

/// The kind of target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetKind {
    /// A class below this number.
    Classes(usize),
    /// A real number.
    Values,
}

impl TargetKind {
    /// Returns the number of classes, or 0 for real numbers.
    pub fn classes(self) -> usize {
        match self {
            Self::Classes(classes) => classes,
            Self::Values => 0,
        }
    }
}

/// The targets of all examples.
#[derive(Clone, Debug)]
pub enum TargetColumn {
    /// Classes below 65,536.
    Few(Column<u16>),
    /// Classes.
    Many(Column<u32>),
    /// Real numbers.
    Values(Column<f32>),
    /// The next symbols of the text.
    InText,
}

impl TargetColumn {
    /// Returns the bytes of some targets in memory.
    pub(super) fn bytes(&self, range: std::ops::Range<usize>) -> &[u8] {
        match self {
            Self::Few(labels) => bytemuck::cast_slice(&labels[range]),
            Self::Many(labels) => bytemuck::cast_slice(&labels[range]),
            Self::Values(values) => bytemuck::cast_slice(&values[range]),
            Self::InText => &[],
        }
    }
}

/// The targets of one device.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DeviceTargets<'a> {
    Few(&'a [u16]),
    Many(&'a [u32]),
    Values(&'a [f32]),
    InText,
}

/// Targets that are being collected, in their stored form.
#[derive(Clone, Debug)]
pub enum TargetBuffer {
    /// Classes below 65,536.
    Few(Vec<u16>),
    /// Classes.
    Many(Vec<u32>),
    /// Real numbers.
    Values(Vec<f32>),
    /// None, because the text contains them.
    InText,
}

impl TargetBuffer {
    /// Creates an empty collection.
    pub fn new(kind: InputKind, target: TargetKind) -> Self {
        match (kind, target) {
            (InputKind::Windows { .. }, _) => Self::InText,
            (_, TargetKind::Values) => Self::Values(Vec::new()),
            (_, TargetKind::Classes(0..=0x1_0000)) => Self::Few(Vec::new()),
            (_, TargetKind::Classes(_)) => Self::Many(Vec::new()),
        }
    }

    /// Returns the number of targets.
    pub fn len(&self) -> usize {
        match self {
            Self::Few(labels) => labels.len(),
            Self::Many(labels) => labels.len(),
            Self::Values(values) => values.len(),
            Self::InText => 0,
        }
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of the targets from `first` on, in their stored form.
    pub fn bytes_from(&self, first: usize) -> &[u8] {
        match self {
            Self::Few(labels) => bytemuck::cast_slice(&labels[first..]),
            Self::Many(labels) => bytemuck::cast_slice(&labels[first..]),
            Self::Values(values) => bytemuck::cast_slice(&values[first..]),
            Self::InText => &[],
        }
    }

    /// Appends targets that were checked.
    ///
    /// # Panics
    /// If they are of a different kind: see [`Shape::count`](super::Shape::count).
    pub fn extend(&mut self, targets: Targets<'_>) {
        match (self, targets) {
            (Self::Few(column), Targets::Classes(labels)) => column.extend(labels.iter().map(|&y| y as u16)),
            (Self::Many(column), Targets::Classes(labels)) => column.extend_from_slice(labels),
            (Self::Values(column), Targets::Values(values)) => column.extend_from_slice(values),
            (Self::InText, _) => {}
            _ => unreachable!("the shape refuses targets of another kind"),
        }
    }

    /// Returns the column of these targets.
    pub fn into_column(self) -> TargetColumn {
        match self {
            Self::Few(labels) => TargetColumn::Few(labels.into()),
            Self::Many(labels) => TargetColumn::Many(labels.into()),
            Self::Values(values) => TargetColumn::Values(values.into()),
            Self::InText => TargetColumn::InText,
        }
    }
}

/// The targets of one device, copied.
#[derive(Clone, Debug, PartialEq)]
pub enum StoredTargets {
    /// One class per example. Empty for windows, whose classes are in the text.
    Classes(Vec<u32>),
    /// One real number per example.
    Values(Vec<f32>),
}

impl StoredTargets {
    /// Borrows the targets.
    pub fn lent(&self) -> Targets<'_> {
        match self {
            Self::Classes(classes) => Targets::Classes(classes),
            Self::Values(values) => Targets::Values(values),
        }
    }

    /// Returns the targets of some examples.
    pub fn picked(&self, examples: &[usize]) -> Self {
        match self {
            Self::Classes(classes) => Self::Classes(examples.iter().map(|&i| classes[i]).collect()),
            Self::Values(values) => Self::Values(examples.iter().map(|&i| values[i]).collect()),
        }
    }
}
