//! The metric of each declared group of devices: its mean over the devices of the group.

use std::collections::HashMap;

use deltafl::data::{Federation, Split};
use deltafl::exchange::SplitEvaluation;
use deltafl::metrics::OverSeeds;
use deltafl::task::Metric;
use deltafl_data::run_folder::{GroupFigures, Groups};

use crate::text_table;

/// Computes the mean of the metric over the devices of each group, and its mean and deviation over
/// seeds, from one evaluation of the devices of a split per seed. Returns `None` if devices declare
/// no groups.
pub fn figures(federation: &Federation, split: Split, seeds: &[SplitEvaluation]) -> Option<Groups> {
    let first = seeds.first()?;
    let groups: HashMap<&str, &str> = federation
        .devices()
        .filter_map(|device| Some((federation.id(device), federation.group(device)?)))
        .collect();
    let of_group = |name: &String| {
        let is_member = |i: &usize| groups.get(first.devices[*i].id.as_str()) == Some(&name.as_str());
        let members: Vec<usize> = (0..first.devices.len()).filter(is_member).collect();
        let of_track = |track: usize| {
            let mean = |seed: &SplitEvaluation| {
                let sum: f64 = members.iter().map(|&i| seed.tracks[track][i].primary()).sum();
                sum / members.len() as f64
            };
            OverSeeds::new(&seeds.iter().map(mean).collect::<Vec<f64>>())
        };
        let values = (0..first.tracks.len()).map(of_track).collect::<Option<Vec<_>>>()?;
        Some(GroupFigures { name: name.clone(), devices: members.len() as u64, values })
            .filter(|group| group.devices > 0)
    };
    let groups: Vec<GroupFigures> = federation.group_names().iter().filter_map(of_group).collect();
    (!groups.is_empty()).then_some(Groups { split, groups })
}

/// Renders a table for a terminal: a row per group, a column per track.
pub fn rendered(groups: &Groups, metric: &'static Metric, tracks: &[String]) -> String {
    let header = [String::new(), "devices".to_owned()].into_iter().chain(tracks.iter().cloned());
    let mut rows: Vec<Vec<String>> = vec![header.collect()];
    let digits =
        text_table::decimals(metric, groups.groups.iter().flat_map(|g| g.values.iter().map(|v| v.mean)));
    for group in &groups.groups {
        let values = group.values.iter().map(|&value| text_table::formatted(metric, value, digits));
        rows.push([group.name.clone(), group.devices.to_string()].into_iter().chain(values).collect());
    }
    let title = format!("By group: {} of its {} devices on average", metric.heading(), groups.split.name());
    format!("\n{title}\n\n{}", text_table::aligned(&rows))
}

#[cfg(test)]
mod tests {
    use deltafl::data::{DeviceExamples, FederationBuilder, InputKind};
    use deltafl::exchange::{EvaluatedDevice, Evaluation};
    use deltafl::task::Task;

    use super::*;

    #[test]
    fn the_figure_of_a_group_is_the_mean_over_its_devices() {
        let mut builder = FederationBuilder::new("x", InputKind::Dense { dim: 1 }, 2);
        for id in ["a", "b", "c"] {
            builder.push(id, Split::Test, DeviceExamples::Dense(&[1.0]), &[0]).unwrap();
        }
        builder.push("t", Split::Train, DeviceExamples::Dense(&[1.0]), &[0]).unwrap();
        let groups = [("a", "north"), ("b", "north"), ("c", "south"), ("t", "south")];
        let groups = groups.map(|(id, group)| (id.to_owned(), group.to_owned()));
        let federation = builder.build().with_groups(groups).unwrap();
        let evaluation = SplitEvaluation {
            split: Split::Test,
            task: Task::Classes,
            devices: ["a", "b", "c"].map(|id| EvaluatedDevice { id: id.into(), examples: 1 }).into(),
            tracks: vec![[0.0, 1.0, 0.75].map(|error| Evaluation::of_primary(1.0, error)).to_vec()],
        };
        let found = figures(&federation, Split::Test, &[evaluation]).unwrap();
        let told: Vec<(&str, u64, f64)> = found
            .groups
            .iter()
            .map(|group| (group.name.as_str(), group.devices, group.values[0].mean))
            .collect();
        assert_eq!(told, [("north", 2, 0.5), ("south", 1, 0.75)]);
    }
}
