//! What is to be predicted of the examples: their classes, or real numbers.

use serde::{Deserialize, Serialize};

use super::{Column, InputKind};
use crate::task::Targets;

/// What is to be predicted of an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetKind {
    /// One of so many classes.
    Classes(usize),
    /// A real number.
    Values,
}

impl TargetKind {
    /// Number of classes; 0 for real numbers.
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
    /// The symbols that follow in the text.
    InText,
}

/// A column of the table from which features were made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeatureColumn {
    /// Its name.
    pub name: String,
    /// The categories, one feature each that is 1 where the category occurs; empty for a column of numbers, which is one
    /// feature.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub categories: Vec<String>,
}

impl TargetColumn {
    /// The bytes of some targets, as they lie in memory.
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

/// Targets that are being collected, as they are stored.
#[derive(Clone, Debug)]
pub enum TargetBuffer {
    /// Classes below 65,536.
    Few(Vec<u16>),
    /// Classes.
    Many(Vec<u32>),
    /// Real numbers.
    Values(Vec<f32>),
    /// None: they stand in the text.
    InText,
}

impl TargetBuffer {
    /// No targets yet.
    pub fn new(kind: InputKind, target: TargetKind) -> Self {
        match (kind, target) {
            (InputKind::Windows { .. }, _) => Self::InText,
            (_, TargetKind::Values) => Self::Values(Vec::new()),
            (_, TargetKind::Classes(0..=0x1_0000)) => Self::Few(Vec::new()),
            (_, TargetKind::Classes(_)) => Self::Many(Vec::new()),
        }
    }

    /// Number of targets.
    pub fn len(&self) -> usize {
        match self {
            Self::Few(labels) => labels.len(),
            Self::Many(labels) => labels.len(),
            Self::Values(values) => values.len(),
            Self::InText => 0,
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of the targets from `first` on, as they are stored.
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
    /// When they are of another kind: see [`Shape::count`](super::Shape::count).
    pub fn extend(&mut self, targets: Targets<'_>) {
        match (self, targets) {
            (Self::Few(column), Targets::Classes(labels)) => column.extend(labels.iter().map(|&y| y as u16)),
            (Self::Many(column), Targets::Classes(labels)) => column.extend_from_slice(labels),
            (Self::Values(column), Targets::Values(values)) => column.extend_from_slice(values),
            (Self::InText, _) => {}
            _ => unreachable!("the shape refuses targets of another kind"),
        }
    }

    /// The column of these targets.
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
    /// A class each; empty for windows, whose classes stand in the text.
    Classes(Vec<u32>),
    /// A real number each.
    Values(Vec<f32>),
}

impl StoredTargets {
    /// Lends them.
    pub fn lent(&self) -> Targets<'_> {
        match self {
            Self::Classes(classes) => Targets::Classes(classes),
            Self::Values(values) => Targets::Values(values),
        }
    }

    /// Those of some examples.
    pub fn picked(&self, examples: &[usize]) -> Self {
        match self {
            Self::Classes(classes) => Self::Classes(examples.iter().map(|&i| classes[i]).collect()),
            Self::Values(values) => Self::Values(examples.iter().map(|&i| values[i]).collect()),
        }
    }
}
