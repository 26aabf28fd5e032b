//! The name of an experiment and of its folder.

use serde::{Deserialize, Deserializer};

/// The reason why a text is not a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a name is also that of a folder: it {0}")]
pub struct InvalidFolderName(&'static str);

/// Checks that a text can be the name of a folder, on this and on other systems.
///
/// ```
/// use deltafl_data::experiment::check_name;
/// assert!(check_name("quickstart").is_ok());
/// assert!(check_name("../elsewhere").is_err());
/// ```
pub fn check_name(name: &str) -> Result<(), InvalidFolderName> {
    let refused = [
        (name.trim().is_empty(), "must not be empty"),
        (name.trim() != name, "must not begin or end with a blank"),
        (name.contains(['/', '\\']), "must not contain / or \\"),
        (name.starts_with('.'), "must not begin with a dot"),
        (name.contains(char::is_control), "must not contain control characters"),
    ];
    match refused.into_iter().find(|(wrong, _)| *wrong) {
        Some((_, why)) => Err(InvalidFolderName(why)),
        None => Ok(()),
    }
}

/// Deserialises a checked name.
pub(super) fn checked<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let name = String::deserialize(deserializer)?;
    check_name(&name).map_err(serde::de::Error::custom)?;
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_leave_their_folder_or_are_none_are_refused() {
        for wrong in
            ["", "  ", " a", "a ", "..", ".", ".hidden", "../evil", "/etc", "a/b", "a\\b", "a\nb", "a\0"]
        {
            assert!(check_name(wrong).is_err(), "{wrong:?}");
        }
        for right in ["a", "emnist-linear", "t rounds=3 model.l2=1e-3", "Δ-FL", "a..b"] {
            assert!(check_name(right).is_ok(), "{right:?}");
        }
    }
}
