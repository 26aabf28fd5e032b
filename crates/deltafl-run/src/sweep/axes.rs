//! The axes of a sweep: keys of an experiment with a list of values each.
//!
//! ```toml
//! [local]
//! learning_rate = [0.1, 0.3]        # a list for a key that takes one value
//!
//! [[algorithm]]
//! kind = "delta-fl"
//! theta = [[0.8], [0.5, 0.1]]       # a list of lists for a key that takes a list
//!
//! [sweep]                           # either, without touching the experiment
//! "model.l2" = [1e-6, 1e-4]
//! seeds = [1, 2, 3]
//!
//! [data.split]
//! seeds = [1, 2, 3, 4, 5]           # several splits of the devices: the same as seed = [1, 2, …]
//! ```

use deltafl_data::experiment::Experiment;
use toml_edit::{Array, DocumentMut, Item, TableLike, Value};

use super::SweepError;
use crate::experiment_file::value_of;

/// The table of a file that contains only axes.
pub(crate) const TABLE: &str = "sweep";

/// The key of the seed that splits the devices.
pub(crate) const SPLIT: &str = "data.split.seed";

/// The key with the seeds of several splits.
const SPLITS: &str = "data.split.seeds";

/// The table that describes the trainer or the algorithm of a program. Its lists are no axes.
const EXTERNAL: &str = "external";

/// A key and its values.
#[derive(Clone, Debug)]
pub struct SweepAxis {
    /// The dotted key.
    pub key: String,
    /// The values as TOML.
    pub values: Vec<Value>,
}

/// Returns the axes of a file: lists for keys that take one value, in file order, then those of
/// `[sweep]`.
pub(crate) fn of_document(document: &DocumentMut) -> Vec<SweepAxis> {
    let mut axes = Vec::new();
    for (name, item) in document.iter().filter(|(name, _)| *name != TABLE) {
        in_experiment(name, item, &mut axes);
    }
    if let Some(table) = document.get(TABLE).and_then(Item::as_table_like) {
        in_table("", table, &mut axes);
    }
    axes.iter_mut().filter(|axis| axis.key == SPLITS).for_each(|axis| axis.key = SPLIT.to_owned());
    axes
}

/// Removes the parts of a document that only describe axes.
pub(crate) fn remove_from(document: &mut DocumentMut) {
    document.remove(TABLE);
    let data = document.get_mut("data").and_then(Item::as_table_like_mut);
    let split = data.and_then(|data| data.get_mut("split")).and_then(Item::as_table_like_mut);
    split.and_then(|split| split.remove("seeds"));
}

/// Parses the axis of `--sweep key=a,b,c`. The values are TOML, or else strings.
pub(crate) fn of_argument(argument: &str) -> Result<SweepAxis, SweepError> {
    let Some((key, values)) = argument.split_once('=').filter(|(_, values)| !values.trim().is_empty()) else {
        return Err(SweepError::Argument { argument: argument.to_owned() });
    };
    let values = match format!("[{values}]").parse::<Value>() {
        Ok(Value::Array(array)) => bare(&array),
        _ => values.split(',').map(|value| value_of(value.trim())).collect(),
    };
    Ok(SweepAxis { key: key.trim().to_owned(), values })
}

/// Formats a value on one line.
pub(crate) fn formatted(value: &Value) -> String {
    match value {
        Value::String(text) => text.value().clone(),
        value => value.to_string().trim().to_owned(),
    }
}

/// Converts a value to JSON.
pub fn to_json(value: &Value) -> serde_json::Value {
    match value {
        Value::String(text) => text.value().as_str().into(),
        Value::Integer(number) => (*number.value()).into(),
        Value::Float(number) => (*number.value()).into(),
        Value::Boolean(is) => (*is.value()).into(),
        Value::Datetime(time) => time.value().to_string().into(),
        Value::Array(array) => array.iter().map(to_json).collect(),
        Value::InlineTable(table) => {
            table.iter().map(|(key, value)| (key.to_owned(), to_json(value))).collect()
        }
    }
}

fn in_experiment(key: &str, item: &Item, axes: &mut Vec<SweepAxis>) {
    let below = |name: &str| format!("{key}.{name}");
    match item {
        Item::ArrayOfTables(tables) => {
            for (i, table) in tables.iter().enumerate() {
                in_section(&below(&i.to_string()), table, axes);
            }
        }
        Item::Value(Value::Array(array)) if is_axis(key, array) => {
            axes.push(SweepAxis { key: key.to_owned(), values: bare(array) });
        }
        Item::Value(Value::Array(array)) => {
            let tables =
                array.iter().enumerate().filter_map(|(i, value)| Some((i, value.as_inline_table()?)));
            tables.for_each(|(i, table)| in_section(&below(&i.to_string()), table, axes));
        }
        item => {
            if let Some(table) = item.as_table_like() {
                in_section(key, table, axes);
            }
        }
    }
}

fn in_section(key: &str, table: &dyn TableLike, axes: &mut Vec<SweepAxis>) {
    for (name, item) in table.iter().filter(|(name, _)| *name != EXTERNAL) {
        in_experiment(&format!("{key}.{name}"), item, axes);
    }
}

/// Collects the axes of `[sweep]`, where every list is an axis. TOML parses a dotted key without
/// quotes as a table.
fn in_table(key: &str, table: &dyn TableLike, axes: &mut Vec<SweepAxis>) {
    for (name, item) in table.iter() {
        let key = if key.is_empty() { name.to_owned() } else { format!("{key}.{name}") };
        match (item.as_array(), item.as_table_like()) {
            (Some(array), _) => axes.push(SweepAxis { key, values: bare(array) }),
            (None, Some(table)) => in_table(&key, table, axes),
            // A single value is an axis of length one.
            (None, None) => {
                axes.push(SweepAxis { key, values: item.as_value().into_iter().cloned().collect() });
            }
        }
    }
}

/// Returns whether a list is nested one level deeper than the key requires.
fn is_axis(key: &str, array: &Array) -> bool {
    let nested = array.iter().all(Value::is_array) && !array.is_empty();
    nested || !Experiment::takes_list(key)
}

/// Returns the values without surrounding whitespace and comments.
fn bare(array: &Array) -> Vec<Value> {
    let bare = |value: &Value| {
        let mut value = value.clone();
        value.decor_mut().clear();
        value
    };
    array.iter().map(bare).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axes(text: &str) -> Vec<(String, Vec<String>)> {
        let document: DocumentMut = text.parse().unwrap();
        let axes = of_document(&document).into_iter();
        axes.map(|axis| (axis.key, axis.values.iter().map(formatted).collect())).collect()
    }

    fn axis(key: &str, values: &[&str]) -> (String, Vec<String>) {
        (key.to_owned(), values.iter().map(|&value| value.to_owned()).collect())
    }

    #[test]
    fn a_list_sweeps_a_key_of_one_value_and_a_list_of_lists_a_key_of_lists() {
        let found = axes(
            "seeds = [1, 2]\nrounds = [3, 4] # why\n[model]\nchannels = [[4, 8], [8, 16]]\n\
             [[algorithm]]\nkind = 'fedavg'\n[[algorithm]]\ntheta = [0.8, 0.5]\neta_every = [1, 5]\n\
             [[algorithm]]\ntheta = [[0.8], [0.5, 0.1]]\n",
        );
        let expected = [
            axis("rounds", &["3", "4"]),
            axis("model.channels", &["[4, 8]", "[8, 16]"]),
            axis("algorithm.1.eta_every", &["1", "5"]),
            axis("algorithm.2.theta", &["[0.8]", "[0.5, 0.1]"]),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn the_sweep_table_accepts_quoted_and_dotted_keys() {
        let found = axes(
            "rounds = 3\n[sweep]\n'local.batch' = [10, 32]\nlocal.learning_rate = [0.1]\nseeds = [1, 2]\n",
        );
        let expected = [
            axis("local.batch", &["10", "32"]),
            axis("local.learning_rate", &["0.1"]),
            axis("seeds", &["1", "2"]),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn the_seeds_of_splits_sweep_the_seed_of_the_split() {
        let found = axes("seeds = [1, 2]\n[data]\nsplit = { train = 0.5, seeds = [1, 2, 3] }\n");
        assert_eq!(found, [axis("data.split.seed", &["1", "2", "3"])]);
        let mut document: DocumentMut = "[data.split]\ntrain = 0.5\nseeds = [1, 2]\n".parse().unwrap();
        remove_from(&mut document);
        assert_eq!(document.to_string(), "[data.split]\ntrain = 0.5\n");
    }

    #[test]
    fn inline_tables_are_swept_as_well() {
        let found = axes("algorithm = [{ kind = 'delta-fl', theta = 0.5, nu = [0, 0.1] }]\n");
        assert_eq!(found, [axis("algorithm.0.nu", &["0", "0.1"])]);
    }

    #[test]
    fn the_lists_of_a_program_are_not_swept() {
        let found = axes(
            "[model]\nkind = 'external'\nexternal = { shape = [1, 28, 28] }\nl2 = [0, 1]\n[[algorithm]]\n\
             kind = 'fedavg'\n[algorithm.external]\nreplaces = ['weight', 'server-step']\n",
        );
        assert_eq!(found, [axis("model.l2", &["0", "1"])]);
    }

    #[test]
    fn an_argument_accepts_toml_or_strings() {
        let values =
            |argument: &str| of_argument(argument).unwrap().values.iter().map(formatted).collect::<Vec<_>>();
        assert_eq!(values("x=0.1, 1e-3"), ["0.1", "1e-3"]);
        assert_eq!(values("model.kind=linear,conv-net"), ["linear", "conv-net"]);
        assert_eq!(values("algorithm.1.theta=[0.8],[0.5, 0.1]"), ["[0.8]", "[0.5, 0.1]"]);
        assert!(of_argument("x=").is_err() && of_argument("x").is_err());
    }
}
