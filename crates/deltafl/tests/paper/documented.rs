//! The numbers of the figures of the documentation.

/// Writes the rows of a figure to docs/src/measurements/results if `UPDATE_DOCS` is set.
pub(crate) fn document(name: &str, heading: &str, lines: impl Iterator<Item = String>) {
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let text: String = std::iter::once(heading.to_owned()).chain(lines).map(|line| line + "\n").collect();
        std::fs::write(format!("../../docs/src/measurements/results/{name}.csv"), text).unwrap();
    }
}
