//! The kind of a key, from the Rust type of its value.

use std::fmt;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};

use deltafl::cohort::Probability;
use deltafl::data::Normalise;
use deltafl::data::synthetic::{Fraction, Variance};
use deltafl::number::{NonNegative, Positive};
use deltafl::options::{Interval, OptionKind};
use deltafl::privacy::{Delta, Mechanism};
use deltafl::terms::{Clip, TrackSchedule, Weights};
use serde::de::{Deserialize, Deserializer, Error as _, Visitor};
use serde::forward_to_deserialize_any;

use crate::experiment::{DataSource, OneOrMore, SecureAggregation};

/// The values that a key accepts.
#[derive(Clone, Debug, PartialEq)]
pub enum KeyKind {
    /// A string.
    Text,
    /// A path or a table.
    PathOrTable,
    /// `true` or `false`.
    Truth,
    /// A whole number with its lower bound.
    Whole(u64),
    /// A real number.
    Real(Interval),
    /// One of these words.
    Word(Vec<String>),
    /// A value or a list of values.
    OneOrMore(Box<Self>),
    /// A list of this many values.
    List(Box<Self>, usize),
    /// A list of strings of any length.
    Texts,
    /// A list of layers.
    Layers,
}

impl fmt::Display for KeyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text => f.write_str("text"),
            Self::PathOrTable => f.write_str("a path, or a table"),
            Self::Truth => f.write_str("true or false"),
            Self::Whole(least) => write!(f, "whole number, {least} or above"),
            Self::Real(interval) => write!(f, "number {interval}"),
            Self::Word(words) => f.write_str(&words.join(", ")),
            Self::OneOrMore(kind) => write!(f, "{kind}; or a list of them"),
            Self::Texts => f.write_str("list of texts"),
            Self::Layers => f.write_str("list of layers"),
            Self::List(kind, count) => write!(f, "{count} of: {kind}"),
        }
    }
}

impl KeyKind {
    /// One of several words.
    pub(super) fn words<'a>(words: impl IntoIterator<Item = &'a str>) -> Self {
        Self::Word(words.into_iter().map(str::to_owned).collect())
    }
}

impl From<OptionKind> for KeyKind {
    fn from(kind: OptionKind) -> Self {
        match kind {
            OptionKind::Real(interval) => Self::Real(interval),
            OptionKind::Whole(least) => Self::Whole(least),
            OptionKind::Word(words) => Self::words(words.iter().copied()),
            OptionKind::Truth => Self::Truth,
            OptionKind::WholePair(least) => Self::List(Self::Whole(least).into(), 2),
        }
    }
}

/// A type of the values of a key.
pub(super) trait KeyType {
    fn kind() -> KeyKind;
}

macro_rules! key_types {
    ($($kind:expr => $($type:ty),+;)+) => {
        $($(impl KeyType for $type {
            fn kind() -> KeyKind {
                $kind
            }
        })+)+
    };
}

key_types! {
    KeyKind::Text => String;
    KeyKind::Texts => Vec<String>;
    KeyKind::PathOrTable => DataSource;
    KeyKind::Truth => bool;
    KeyKind::Whole(0) => u64;
    KeyKind::Whole(1) => NonZeroU32, NonZeroU64, NonZeroUsize;
    KeyKind::Real(Interval::POSITIVE) => Positive, Clip;
    KeyKind::Real(Interval::NON_NEGATIVE) => NonNegative, Variance;
    KeyKind::Real(Interval::UNIT) => Probability, Fraction;
    KeyKind::Real(Interval { least: 0.0, open: true, most: 1.0 }) => Delta;
    variants::<Self>() => Mechanism, Normalise, SecureAggregation, TrackSchedule, Weights;
}

impl<T: KeyType> KeyType for Option<T> {
    fn kind() -> KeyKind {
        T::kind()
    }
}

impl<T: KeyType> KeyType for OneOrMore<T> {
    fn kind() -> KeyKind {
        KeyKind::OneOrMore(T::kind().into())
    }
}

/// The names of the variants of an enum, which it passes to its deserializer.
fn variants<'de, T: Deserialize<'de>>() -> KeyKind {
    struct VariantNames<'a>(&'a mut &'static [&'static str]);

    impl<'de> Deserializer<'de> for VariantNames<'_> {
        type Error = serde::de::value::Error;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
            Err(Self::Error::custom("not an enum"))
        }

        fn deserialize_enum<V: Visitor<'de>>(
            self,
            _: &'static str,
            variants: &'static [&'static str],
            _: V,
        ) -> Result<V::Value, Self::Error> {
            *self.0 = variants;
            Err(Self::Error::custom("the names are recorded"))
        }

        forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
            unit_struct newtype_struct seq tuple tuple_struct map struct identifier ignored_any
        }
    }

    let mut names: &[&str] = &[];
    // The error is expected: only the names are of interest.
    let _ = T::deserialize(VariantNames(&mut names));
    KeyKind::words(names.iter().copied())
}
