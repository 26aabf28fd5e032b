//! The file form of [`Local`]: `epochs` or `steps` instead of [`Work`].

use std::fmt;
use std::num::{NonZeroU32, NonZeroUsize};

use serde::de::{DeserializeSeed, Error, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Decay, Local};
use crate::number::Positive;
use crate::trainer::Work;

/// The keys of a local update.
const KEYS: &[&str] = &["epochs", "steps", "batch", "learning_rate", "decay"];

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum LocalKey {
    Epochs,
    Steps,
    Batch,
    LearningRate,
    Decay,
}

impl Serialize for Local {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match self.work {
            Work::Epochs(epochs) => map.serialize_entry("epochs", &epochs)?,
            Work::Steps(steps) => map.serialize_entry("steps", &steps)?,
        }
        map.serialize_entry("batch", &self.batch)?;
        map.serialize_entry("learning_rate", &self.learning_rate)?;
        if let Some(decay) = self.decay {
            map.serialize_entry("decay", &decay)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Local {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_struct("Local", KEYS, LocalVisitor)
    }
}

struct LocalVisitor;

impl<'de> Visitor<'de> for LocalVisitor {
    type Value = Local;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table such as { epochs = 1, batch = 10, learning_rate = 0.1 }")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Local, A::Error> {
        let (mut work, mut batch, mut learning_rate, mut decay) = (None, None, None, None);
        while let Some(key) = map.next_key::<LocalKey>()? {
            match key {
                LocalKey::Epochs => {
                    work = Some(map.next_value_seed(WorkSeed { given: work, new: Work::Epochs })?);
                }
                LocalKey::Steps => {
                    work = Some(map.next_value_seed(WorkSeed { given: work, new: Work::Steps })?);
                }
                LocalKey::Batch => batch = Some(map.next_value::<NonZeroUsize>()?),
                LocalKey::LearningRate => learning_rate = Some(map.next_value::<Positive>()?),
                LocalKey::Decay => decay = Some(map.next_value::<Decay>()?),
            }
        }
        Ok(Local {
            work: work.ok_or_else(|| A::Error::custom("give either epochs or steps"))?,
            batch: batch.ok_or_else(|| A::Error::missing_field("batch"))?.get(),
            learning_rate: learning_rate.ok_or_else(|| A::Error::missing_field("learning_rate"))?.get(),
            decay,
        })
    }
}

/// Reads epochs or steps. It rejects the second of the two, so that the error has the place of its
/// value.
struct WorkSeed {
    given: Option<Work>,
    new: fn(u32) -> Work,
}

impl<'de> DeserializeSeed<'de> for WorkSeed {
    type Value = Work;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Work, D::Error> {
        let count = NonZeroU32::deserialize(deserializer)?;
        match self.given {
            None => Ok((self.new)(count.get())),
            Some(_) => Err(D::Error::custom("give either epochs or steps, not both")),
        }
    }
}
