//! Names that are valid in a certificate: one label of a host name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The maximum length of a label in a certificate.
const LONGEST: usize = 63;

/// The error of a text that is not a valid name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{got:?} is not a valid name: use 1 to 63 of a–z, 0–9, '-' and '_', with a letter or digit at both ends"
)]
pub struct InvalidName {
    /// The given text.
    pub got: String,
}

fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    let ends = bytes.first().zip(bytes.last());
    bytes.len() <= LONGEST
        && ends.is_some_and(|(&first, &last)| plain(first) && plain(last))
        && bytes.iter().all(|&byte| plain(byte) || byte == b'-' || byte == b'_')
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Returns the name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = InvalidName;

            fn from_str(text: &str) -> Result<Self, InvalidName> {
                Self::try_from(text.to_owned())
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidName;

            fn try_from(text: String) -> Result<Self, InvalidName> {
                if is_name(&text) { Ok(Self(text)) } else { Err(InvalidName { got: text }) }
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0
            }
        }
    };
}

name! {
    /// The name of a device. Only its certificate proves it.
    DeviceName
}

name! {
    /// The name of a federation.
    FederationName
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_label_of_a_host_name() {
        for name in ["a", "phone-17", "f0123_45", "0", &"x".repeat(63)] {
            assert_eq!(name.parse::<DeviceName>().unwrap().as_str(), name);
        }
        for text in ["", "-a", "a-", "_", "a.b", "A", "é", "a b", "a/b", "a\0", &"x".repeat(64)] {
            assert!(text.parse::<FederationName>().is_err(), "{text:?}");
        }
    }
}
