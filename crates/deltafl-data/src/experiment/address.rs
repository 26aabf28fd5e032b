//! The content address of an experiment, and the keys whose values are lists.

use super::{Experiment, ExperimentFile};
use deltafl::algorithm::ALGORITHMS;
use deltafl::model::MODELS;
use deltafl::options::OptionKind;
use deltafl::terms::TrackSchedule;

/// Hexadecimal digits of an address: 64 bits, enough for a billion experiments without a collision.
const DIGITS: usize = 16;

impl Experiment {
    /// Returns the start of BLAKE3 of the experiment with every default, without its name and the
    /// values of the machine. Two files that train the same have the same address, except that the
    /// address of a model depends on whether an option is given.
    ///
    /// ```
    /// # let text = "name = 'a'\nrounds = 3\ncohort = 5\n[data]\nsource = 'd'\n[model]\nkind = 'linear'\n[local]\nepochs = 1\n\
    /// # batch = 10\nlearning_rate = 0.5\n[[algorithm]]\nkind = 'fedavg'\n";
    /// # let read = |text: &str| deltafl_data::experiment::Experiment::parse(text).unwrap();
    /// let experiment = read(text);
    /// let spelt_out = read(&text.replace("name = 'a'", "name = 'b'\nevaluate_every = 10"));
    /// assert_eq!(experiment.address(), spelt_out.address());
    /// assert_ne!(experiment.address(), read(&text.replace("0.5", "0.25")).address());
    /// ```
    pub fn address(&self) -> String {
        let is_default = self.0.tracks == Some(TrackSchedule::Together) && !self.is_private();
        let tracks = self.0.tracks.filter(|_| !is_default);
        let is_old = self.0.resolved.as_ref().is_some_and(|resolved| resolved.normalise.is_none());
        let (model, data) = (self.0.model.canonical(), self.0.data.canonical(is_old));
        let of_run =
            ExperimentFile { name: String::new(), tracks, model, data, resolved: None, ..self.0.clone() };
        let mut hex = blake3::hash(Self(of_run).to_toml().as_bytes()).to_hex().to_string();
        hex.truncate(DIGITS);
        hex
    }

    /// Whether the value of a dotted key, such as `seeds` or `algorithm.0.theta`, is a list.
    pub fn takes_list(key: &str) -> bool {
        let mut parts = key.split('.');
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some("seeds" | "algorithm"), None, ..) => true,
            (Some("data"), Some("split"), Some("given"), Some("train" | "validation" | "test")) => true,
            // Residuals contain layers as well.
            (Some("model"), Some("layers"), ..) => key.ends_with("layers"),
            (Some("model"), Some(option), None, _) => {
                let mut options = MODELS.iter().flat_map(|model| model.options);
                let pair = |kind: OptionKind| matches!(kind, OptionKind::WholePair(_));
                options.any(|spec| spec.name == option && pair(spec.kind))
            }
            (Some("algorithm"), Some(index), Some(option), None) => {
                let levels =
                    ALGORITHMS.iter().flat_map(|algorithm| algorithm.options).filter(|spec| spec.levels);
                index.parse::<usize>().is_ok() && levels.into_iter().any(|spec| spec.name == option)
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An experiment with every kind of key.
    const FULL: &str = r#"
name = "full"
seeds = [1, 2]
rounds = 3
cohort = 5
[data]
source = { kind = "glyphs", devices = 10 }
split = { train = 0.5 }
[model]
kind = "conv-net"
channels = [4, 8]
[local]
epochs = 1
batch = 10
learning_rate = 0.1
decay = { factor = 0.5, every = 2 }
[availability]
drop_out = 0.1
diurnal = { period = 10, low = 0.5 }
[[algorithm]]
kind = "delta-fl"
theta = [0.5, 0.1]
l2 = 1e-3
"#;

    #[test]
    fn the_keys_that_take_lists_are_those_written_as_lists() {
        let experiment = Experiment::parse(FULL).unwrap();
        let value: toml::Value = toml::from_str(&experiment.to_toml()).unwrap();
        let mut lists = Vec::new();
        walk("", &value, &mut lists);
        lists.sort();
        assert_eq!(lists, ["algorithm", "algorithm.0.theta", "model.channels", "seeds"]);
        assert!(lists.iter().all(|key| Experiment::takes_list(key)));
        for split in ["train", "validation", "test"] {
            assert!(Experiment::takes_list(&format!("data.split.given.{split}")), "a list of devices");
        }
    }

    /// Collects the keys of lists, and checks that no other key accepts one.
    fn walk(key: &str, value: &toml::Value, lists: &mut Vec<String>) {
        let below = |name: &str| if key.is_empty() { name.to_owned() } else { format!("{key}.{name}") };
        match value {
            toml::Value::Table(table) => {
                table.iter().for_each(|(name, value)| walk(&below(name), value, lists));
            }
            toml::Value::Array(values) => {
                lists.push(key.to_owned());
                let tables = values.iter().enumerate().filter(|(_, value)| value.is_table());
                tables.for_each(|(i, value)| walk(&below(&i.to_string()), value, lists));
            }
            _ => assert!(!Experiment::takes_list(key), "{key}"),
        }
    }
}
