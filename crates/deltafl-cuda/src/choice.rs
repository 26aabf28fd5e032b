//! Where a user wants devices to compute: `auto`, `cpu`, `cuda` or `cuda:N`.

use std::fmt;
use std::str::FromStr;

/// Where devices compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendChoice {
    /// A GPU if there is one that has kernels for the model, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// This GPU, or an error that says why not.
    Cuda {
        /// Its number.
        ordinal: usize,
    },
}

/// Not a place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{got:?} is not a place to compute: auto, cpu, cuda or cuda:N")]
pub struct UnknownBackend {
    /// What was given.
    pub got: String,
}

impl BackendChoice {
    /// The GPU to try, if any.
    pub fn ordinal(self) -> Option<usize> {
        match self {
            Self::Cpu => None,
            Self::Auto => Some(0),
            Self::Cuda { ordinal } => Some(ordinal),
        }
    }
}

impl FromStr for BackendChoice {
    type Err = UnknownBackend;

    fn from_str(text: &str) -> Result<Self, UnknownBackend> {
        let unknown = || UnknownBackend { got: text.to_owned() };
        match text.split_once(':') {
            None if text == "auto" => Ok(Self::Auto),
            None if text == "cpu" => Ok(Self::Cpu),
            None if text == "cuda" => Ok(Self::Cuda { ordinal: 0 }),
            Some(("cuda", number)) => {
                number.parse().map(|ordinal| Self::Cuda { ordinal }).map_err(|_| unknown())
            }
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for BackendChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda { ordinal } => write!(f, "cuda:{ordinal}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_read_back_as_they_are_written() {
        for text in ["auto", "cpu", "cuda:0", "cuda:3"] {
            assert_eq!(text.parse::<BackendChoice>().unwrap().to_string(), text);
        }
        assert_eq!("cuda".parse(), Ok(BackendChoice::Cuda { ordinal: 0 }));
    }

    #[test]
    fn anything_else_is_refused_by_name() {
        for text in ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0"] {
            let got = text.to_owned();
            assert_eq!(text.parse::<BackendChoice>(), Err(UnknownBackend { got }));
        }
    }
}
