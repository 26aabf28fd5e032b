//! Keys that were renamed: the error for an old name contains the new one.

use toml::de::DeTable;

use super::InvalidExperiment;

/// The tables that contain a key, its old name and its new one.
const RENAMED: [(&[&str], &str, &str); 3] = [
    (&["data", "split"], "min_points", "min_examples"),
    (&["data", "split", "within"], "min_points", "min_examples"),
    (&["data", "source"], "points", "examples"),
];

/// Fails at the first key with an old name.
pub(super) fn refuse_old_keys(file: &DeTable<'_>) -> Result<(), InvalidExperiment> {
    RENAMED.iter().try_for_each(|&(tables, old, new)| {
        let inside = tables.iter().try_fold(file, |table, name| table.get(*name)?.get_ref().as_table());
        match inside.and_then(|table| table.get_key_value(old)) {
            None => Ok(()),
            Some((key, _)) => {
                let message =
                    format!("`{old}` is called `{new}` now: write `{new} = …`, with the same value");
                Err(InvalidExperiment::new(message, key.span()))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use crate::experiment::Experiment;

    #[test]
    fn an_old_key_is_refused_at_its_line_with_the_present_name() {
        let refused = |data: &str| {
            let text = format!("name = 'a'\nrounds = 3\n[data]\n{data}\n");
            let error = Experiment::parse(&text).unwrap_err();
            (error.line(&text), error.message)
        };
        for data in [
            "source = 'd'\nsplit = { train = 0.5, min_points = 100 }",
            "source = 'd'\n[data.split.within]\nmin_points = 5",
            "source = 'd'\nsplit.min_points = [5, 10]",
        ] {
            let line = 3 + data.lines().position(|line| line.contains("min_points")).unwrap() + 1;
            let message =
                "`min_points` is called `min_examples` now: write `min_examples = …`, with the same value";
            assert_eq!(refused(data), (line, message.to_owned()), "{data}");
        }
        let (line, message) =
            refused("source = { kind = 'glyphs', points = { min = 1, median = 2, max = 3 } }");
        assert!(line == 4 && message.starts_with("`points` is called `examples` now"), "{line} {message}");
    }
}
