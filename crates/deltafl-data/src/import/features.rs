//! Examples of numeric features from any importer, on the way to a federation.

use serde::{Deserialize, Serialize};

use super::error::{ImportError, ImportProblem};
use super::spool::{SortedRows, Spool, as_f32};
use super::{ImportTarget, Imported};
use crate::FederationWriter;
use crate::arrow_file::bytes_of;
use deltafl::data::{DeviceExamples, FeatureColumn, InputKind, Provenance, TableCoding, TargetKind};

/// Most features of an example.
pub(crate) const MOST_FEATURES: usize = 1 << 24;

/// The format of features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Features {
    /// One byte each if all are multiples of 1/255 in [0, 1], as in images; real numbers otherwise and
    /// in tables with named columns.
    #[default]
    Auto,
    /// Real numbers.
    Dense,
    /// Whole numbers from 0 to 255, one byte each; a model reads value / 255.
    GreyLevels,
}

/// Rows of features that are stored until the end of the input.
pub(crate) struct FeatureSpool {
    pub(crate) spool: Spool,
    dim: Option<usize>,
    /// Whether all features so far are multiples of 1/255 in [0, 1].
    is_grey: bool,
    pub(crate) features: Features,
    class_names: Vec<String>,
    columns: Vec<FeatureColumn>,
    coding: Option<TableCoding>,
    /// Whether targets are real numbers.
    valued: bool,
}

impl FeatureSpool {
    pub(crate) fn new(target: &ImportTarget, features: Features) -> Result<Self, ImportError> {
        let spool = Spool::new(&target.parent())?;
        Ok(Self {
            spool,
            dim: None,
            is_grey: true,
            features,
            class_names: Vec::new(),
            columns: Vec::new(),
            coding: None,
            valued: target.regression,
        })
    }

    /// Stores the names of the classes.
    pub(crate) fn set_class_names(&mut self, class_names: Vec<String>) {
        self.class_names = class_names;
    }

    /// Stores the conversion of the columns of a table.
    pub(crate) fn set_coding(
        &mut self,
        class_names: Vec<String>,
        columns: Vec<FeatureColumn>,
        coding: TableCoding,
    ) {
        self.class_names = class_names;
        self.columns = columns;
        self.coding = Some(coding);
    }

    /// Checks the features of an example against those of earlier examples.
    pub(crate) fn check(&mut self, row: &[f32]) -> Result<(), ImportProblem> {
        let expected = *self.dim.get_or_insert(row.len());
        if expected != row.len() || row.is_empty() {
            return Err(ImportProblem::Dim { expected: expected.max(1), got: row.len() });
        }
        // Without an early exit, the compiler checks many features at once.
        if !row.iter().fold(true, |all, x| all & x.is_finite()) {
            return Err(ImportProblem::NonFinite);
        }
        match self.features {
            Features::Dense => {}
            Features::Auto => {
                self.is_grey = self.is_grey && row.iter().fold(true, |all, &x| all & is_grey(x));
            }
            Features::GreyLevels => {
                if let Some(x) = row.iter().find(|&&x| !(0.0..=255.0).contains(&x) || x.fract() != 0.0) {
                    return Err(ImportProblem::GreyLevel(*x));
                }
            }
        }
        Ok(())
    }

    /// Appends an example with checked features.
    pub(crate) fn row(&mut self, device: u32, row: &[f32]) -> Result<(), ImportError> {
        self.spool.row(device, bytes_of(row))
    }

    /// Writes the federation.
    pub(crate) fn finish(
        self,
        target: &ImportTarget,
        mut source: Provenance,
    ) -> Result<Imported, ImportError> {
        let scale = match self.features {
            Features::GreyLevels => Some(1.0),
            // Ones and zeros of the columns of a table are not an image, and later rows may contain other
            // numbers.
            Features::Auto if self.is_grey && self.columns.is_empty() => Some(255.0),
            _ => None,
        };
        let dim = self.dim.unwrap_or_default();
        let sorted = self.spool.finish()?;
        let kind_of_target = if self.valued {
            TargetKind::Values
        } else {
            TargetKind::Classes(target.classes(sorted.highest_label())?.max(self.class_names.len()))
        };
        let roster = target.given_roster(&sorted.counts, &sorted.splits, &mut source)?;
        let kind = if scale.is_some() { InputKind::Bytes { dim } } else { InputKind::Dense { dim } };
        source.option("features", if scale.is_some() { "bytes" } else { "dense" });
        let mut writer =
            FederationWriter::create(&target.out, target.heading(&source.importer, kind, kind_of_target))?;
        if self.columns.iter().any(|column| !column.categories.is_empty()) {
            source.option("categories", "a feature per value, in the order of the values");
        }
        target.record(&mut writer, source);
        writer.class_names(self.class_names).feature_columns(self.columns);
        if let Some(coding) = self.coding {
            writer.coding(coding);
        }
        write_devices(&mut writer, sorted, &roster, scale, self.valued)?;
        Ok(Imported { manifest: writer.finish()?, out: target.out.clone() })
    }
}

fn write_devices(
    writer: &mut FederationWriter,
    mut sorted: SortedRows,
    roster: &[(usize, deltafl::data::Split)],
    scale: Option<f32>,
    valued: bool,
) -> Result<(), ImportError> {
    let (mut bytes, mut labels, mut values) = (Vec::new(), Vec::new(), Vec::new());
    let mut grey = Vec::new();
    for &(device, split) in roster {
        sorted.load(device, &mut bytes, &mut labels)?;
        as_f32(&bytes, &mut values);
        let inputs = match scale {
            None => DeviceExamples::Dense(&values),
            Some(scale) => {
                grey.clear();
                grey.extend(values.iter().map(|x| (x * scale + 0.5) as u8));
                DeviceExamples::Bytes(&grey)
            }
        };
        if valued {
            let values: Vec<f32> = labels.iter().map(|&bits| f32::from_bits(bits)).collect();
            writer.push(&sorted.ids[device], split, inputs, &values)?;
        } else {
            writer.push(&sorted.ids[device], split, inputs, &labels)?;
        }
    }
    Ok(())
}

/// Whether this is k/255 for a whole k in 0–255, bit by bit.
fn is_grey(x: f32) -> bool {
    GREY_LEVELS[usize::from((x * 255.0 + 0.5) as u8)].to_bits() == x.to_bits()
}

/// Returns k/255, rounded to the nearest `f32`.
const GREY_LEVELS: [f32; 256] = {
    let mut levels = [0.0; 256];
    let mut k = 0;
    while k < 256 {
        levels[k] = k as f32 / 255.0;
        k += 1;
    }
    levels
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiples_of_one_255th_are_grey_and_nothing_else_is() {
        for level in 0..=255u8 {
            let from_text: f32 = format!("{}", f64::from(level) / 255.0).parse().unwrap();
            assert!(is_grey(from_text), "{level}");
        }
        for x in [0.5, 0.1, -1.0 / 255.0, 256.0 / 255.0, f32::NAN] {
            assert!(!is_grey(x), "{x}");
        }
    }
}
