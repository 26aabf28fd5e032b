//! The keys in which two experiments differ.

use std::collections::{BTreeMap, BTreeSet};

use deltafl::data::Normalise;

use super::Experiment;
use crate::run_folder::ChangedKey;

impl Experiment {
    /// Returns the keys in which another experiment differs.
    pub fn differences(&self, now: &Self) -> Vec<ChangedKey> {
        let before = flattened(self);
        let now = flattened(now);
        let keys: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
        keys.into_iter()
            .filter(|key| before.get(*key) != now.get(*key))
            .map(|key| ChangedKey {
                key: key.clone(),
                before: before.get(key).cloned(),
                now: now.get(key).cloned(),
            })
            .collect()
    }
}

/// Returns dotted keys and their values, with the effective normalisation and without switches of
/// the model that are off.
fn flattened(experiment: &Experiment) -> BTreeMap<String, String> {
    fn walk(key: &str, value: &toml::Value, flat: &mut BTreeMap<String, String>) {
        let below = |name: &str| if key.is_empty() { name.to_owned() } else { format!("{key}.{name}") };
        match value {
            toml::Value::Table(table) => {
                table.iter().for_each(|(name, value)| walk(&below(name), value, flat));
            }
            toml::Value::Array(values) if values.iter().any(toml::Value::is_table) => {
                values.iter().enumerate().for_each(|(i, value)| walk(&below(&i.to_string()), value, flat));
            }
            value => {
                flat.insert(key.to_owned(), value.to_string());
            }
        }
    }
    let mut flat = BTreeMap::new();
    let mut file = experiment.0.clone();
    file.model = file.model.canonical();
    let resolved = file.resolved.as_mut().and_then(|resolved| resolved.normalise.take());
    file.data.normalise = file.data.normalise.or(resolved).or(Some(Normalise::None));
    let value = toml::Value::try_from(file).expect("an experiment has string keys and finite numbers");
    walk("", &value, &mut flat);
    flat
}
