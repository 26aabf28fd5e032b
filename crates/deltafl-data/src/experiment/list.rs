//! A value or a list of them.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{F64Deserializer, I64Deserializer, SeqAccessDeserializer};
use serde::de::{IntoDeserializer, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// At least one value; in a file either `x` or `[x, y, …]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct OneOrMore<T>(Vec<T>);

impl<T> OneOrMore<T> {
    /// Returns the values in order.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.0.iter()
    }

    /// Returns the values in order.
    pub fn as_slice(&self) -> &[T] {
        &self.0
    }
}

impl<T> From<T> for OneOrMore<T> {
    fn from(value: T) -> Self {
        Self(vec![value])
    }
}

impl<T> TryFrom<Vec<T>> for OneOrMore<T> {
    type Error = EmptyList;

    fn try_from(values: Vec<T>) -> Result<Self, EmptyList> {
        if values.is_empty() { Err(EmptyList) } else { Ok(Self(values)) }
    }
}

/// A list is empty that must not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected at least one value")]
pub struct EmptyList;

impl<'a, T> IntoIterator for &'a OneOrMore<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

// By hand: the errors of an untagged enum contain neither the reason nor the place.
impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMore<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OneOrMoreVisitor(PhantomData))
    }
}

struct OneOrMoreVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for OneOrMoreVisitor<T> {
    type Value = OneOrMore<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number or a list of numbers")
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Self::Value, E> {
        let value: F64Deserializer<E> = value.into_deserializer();
        T::deserialize(value).map(OneOrMore::from)
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Self::Value, E> {
        let value: I64Deserializer<E> = value.into_deserializer();
        T::deserialize(value).map(OneOrMore::from)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Self::Value, A::Error> {
        let values = Vec::deserialize(SeqAccessDeserializer::new(seq))?;
        OneOrMore::try_from(values).map_err(serde::de::Error::custom)
    }
}
