//! The conversion of a table to examples: its columns with their types and constants.
//!
//! The importers record it, so that other tables can be converted in the same way. A
//! [`DataContract`](super::DataContract) contains it.

use serde::{Deserialize, Serialize};

/// The category of missing words.
pub const MISSING: &str = "(missing)";

/// A column of a table from which features were derived.
///
/// A column of numbers is one feature, or two if [`FeatureColumn::indicator`] is set. A column of
/// categories is a feature per category, which is 1 if the category occurs. Other values are 0 in
/// all of them, or 1 in the additional last feature if [`FeatureColumn::other`] is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeatureColumn {
    /// Its name.
    pub name: String,
    /// The categories. Empty for a column of numbers or dates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub categories: Vec<String>,
    /// Whether a last feature is 1 for values that are not among the categories.
    #[serde(default, skip_serializing_if = "is_false")]
    pub other: bool,
    /// Whether the values are dates, which become days since 1970-01-01.
    #[serde(default, skip_serializing_if = "is_false")]
    pub date: bool,
    /// The number that replaces a missing value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fill: Option<f32>,
    /// Whether a second feature of a column of numbers is 1 for a missing value.
    #[serde(default, skip_serializing_if = "is_false")]
    pub indicator: bool,
}

impl FeatureColumn {
    /// Creates a column of numbers.
    pub fn number(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Creates a column of categories.
    pub fn of_categories(name: impl Into<String>, categories: Vec<String>) -> Self {
        Self { name: name.into(), categories, ..Self::default() }
    }

    /// Returns the number of features.
    pub fn width(&self) -> usize {
        match self.categories.len() {
            0 => 1 + usize::from(self.indicator),
            categories => categories + usize::from(self.other),
        }
    }

    /// Whether the column is one feature without any conversion.
    pub fn is_plain(&self) -> bool {
        self.categories.is_empty() && !self.date && !self.indicator && self.fill.is_none()
    }
}

/// The treatment of missing values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MissingRule {
    /// A missing value is an error.
    #[default]
    Error,
    /// A row with a missing value is left out.
    Drop,
    /// A missing number becomes the mean of its column, a missing word a separate category.
    Mean,
    /// As [`Self::Mean`], and a further feature is 1 where a number is missing.
    Category,
}

impl MissingRule {
    /// Returns its name in options and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Drop => "drop",
            Self::Mean => "mean",
            Self::Category => "category",
        }
    }
}

/// The units of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TextUnit {
    /// Words: runs of letters, digits, `_` and `'`, and each of `. , ! ? ;`.
    #[default]
    Words,
    /// Characters.
    Characters,
    /// The tokens of a tokenizer of Hugging Face.
    Tokens,
}

/// The conversion of texts to tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextCoding {
    /// The columns of text, which are joined by a space.
    pub columns: Vec<String>,
    /// The units.
    #[serde(default)]
    pub unit: TextUnit,
    /// Whether letters are converted to lower case.
    pub lowercase: bool,
    /// Whether a unit that is not in the vocabulary is skipped. Otherwise it becomes token 0.
    pub skip_unknown: bool,
    /// The contents of `tokenizer.json`, for [`TextUnit::Tokens`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<String>,
}

/// A column that is not used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IgnoredColumn {
    /// Its name.
    pub name: String,
    /// The reason.
    pub reason: String,
}

/// The width, height and channels of images, whose pixels are stored channel by channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageShape {
    /// Pixels per row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// 1 for grey images, 3 for red, green and blue.
    pub channels: usize,
}

impl ImageShape {
    /// Returns the number of features.
    pub fn features(&self) -> usize {
        self.width.saturating_mul(self.height).saturating_mul(self.channels)
    }
}

/// The roles of the columns of a table, and the conversion of everything but the features.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableCoding {
    /// The column of the device, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The column of the label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The treatment of missing values.
    #[serde(default)]
    pub missing: MissingRule,
    /// The conversion of texts, if the examples are texts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<TextCoding>,
    /// The shape of images, if the examples are images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageShape>,
    /// The columns that are not used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignored: Vec<IgnoredColumn>,
}

fn is_false(value: &bool) -> bool {
    !value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_width_of_a_column_counts_its_additional_features() {
        let words = FeatureColumn::of_categories("kind", vec!["a".into(), "b".into()]);
        assert_eq!((words.width(), FeatureColumn { other: true, ..words }.width()), (2, 3));
        let number = FeatureColumn::number("area");
        assert!(number.is_plain());
        let filled = FeatureColumn { fill: Some(0.5), indicator: true, ..number.clone() };
        assert_eq!((number.width(), filled.width(), filled.is_plain()), (1, 2, false));
    }
}
