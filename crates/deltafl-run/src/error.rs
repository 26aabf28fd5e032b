//! Information that front ends need to report errors: who has to act, the fix, and the location in
//! a file.

use std::error::Error;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use deltafl_data::run_folder::{self, RunFolderError};

/// The party that has to act on an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller: an argument, an experiment or data is invalid.
    InvalidInput,
    /// No action is needed: another process uses a run folder, and a later call succeeds.
    Busy,
    /// An external failure, such as a full disk or an error in a user's trainer.
    Failure,
}

/// An error of this crate with additional information for front ends.
pub trait Explain: Error + Send + Sync + 'static {
    /// Returns the party that has to act.
    fn kind(&self) -> ErrorKind;

    /// Returns instructions to fix the error, in one or several lines.
    fn help(&self) -> Option<String>;

    /// Returns the invalid location in a text file, if there is one.
    fn excerpt(&self) -> Option<Excerpt<'_>>;
}

/// A location in a text file and the problem there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt<'a> {
    /// The file.
    pub path: &'a Path,
    /// The complete text of the file.
    pub text: &'a str,
    /// The bytes that are invalid.
    pub span: Range<usize>,
    /// The problem.
    pub problem: &'a str,
}

impl Excerpt<'_> {
    /// Returns the line and column of the first byte, counted from 1.
    pub fn line_and_column(&self) -> (usize, usize) {
        let before = &self.text[..self.span.start];
        let start = before.rfind('\n').map_or(0, |end| end + 1);
        (before.matches('\n').count() + 1, before[start..].chars().count() + 1)
    }

    /// Returns the text of the line that contains the first byte.
    pub fn line(&self) -> &str {
        let (line, _) = self.line_and_column();
        self.text.lines().nth(line - 1).unwrap_or_default()
    }
}

/// The reason why a file or a folder cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The path of a required folder is a file.
    #[error("{path} is a file, not a folder")]
    NotAFolder {
        /// The file.
        path: PathBuf,
    },
    /// A folder cannot be created.
    #[error("cannot create the folder {path}")]
    CreateFolder {
        /// The folder.
        path: PathBuf,
        /// The error of the file system.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {path}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the file system.
        source: io::Error,
    },
    /// A file or folder cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The error of the file system.
        source: io::Error,
    },
    /// A folder cannot be copied.
    #[error("cannot copy {from} to {to}")]
    Copy {
        /// The folder.
        from: PathBuf,
        /// The target folder.
        to: PathBuf,
        /// The error of the file system.
        source: io::Error,
    },
}

impl Explain for FileError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotAFolder { .. } => ErrorKind::InvalidInput,
            _ => ErrorKind::Failure,
        }
    }

    fn help(&self) -> Option<String> {
        matches!(self, Self::NotAFolder { .. }).then(|| "name a folder: --out DIR".to_owned())
    }

    fn excerpt(&self) -> Option<Excerpt<'_>> {
        None
    }
}

impl FileError {
    /// Returns a conversion of I/O errors that occur while `path` is written.
    pub(crate) fn write(path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Write { path, source }
    }

    /// Returns a conversion of I/O errors that occur while `path` is read.
    pub(crate) fn read(path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Read { path, source }
    }
}

/// Creates a folder and its parents.
///
/// # Errors
///
/// Fails if the path is a file, or if the folder cannot be created.
pub fn create_folder(path: &Path) -> Result<(), FileError> {
    if path.is_file() {
        return Err(FileError::NotAFolder { path: path.to_owned() });
    }
    fs::create_dir_all(path).map_err(|source| FileError::CreateFolder { path: path.to_owned(), source })
}

/// Writes a complete file.
pub(crate) fn write_file(path: &Path, contents: impl AsRef<[u8]>) -> Result<(), FileError> {
    fs::write(path, contents).map_err(FileError::write(path))
}

/// The reason why a run folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// A file of the run cannot be decoded.
    #[error("the run folder is damaged")]
    Damaged(#[source] Box<RunFolderError>),
    /// Rounds were trained, but no device was evaluated.
    #[error("{path} holds no evaluation, though {rounds} rounds were trained")]
    NotEvaluated {
        /// The run folder.
        path: PathBuf,
        /// Rounds trained.
        rounds: u64,
    },
    /// Any other error of the run folder.
    #[error(transparent)]
    Other(Box<RunFolderError>),
}

impl From<RunFolderError> for FolderError {
    fn from(error: RunFolderError) -> Self {
        match error {
            RunFolderError::Malformed { .. }
            | RunFolderError::Checkpoint { .. }
            | RunFolderError::Devices { .. } => Self::Damaged(Box::new(error)),
            RunFolderError::NotEvaluated { path } => {
                let lines = run_folder::read_rounds(&path).unwrap_or_default();
                match lines.iter().map(|line| line.record.round + 1).max() {
                    Some(rounds) => Self::NotEvaluated { path, rounds },
                    None => Self::Other(Box::new(RunFolderError::NotEvaluated { path })),
                }
            }
            error => Self::Other(Box::new(error)),
        }
    }
}

impl Explain for FolderError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Damaged(_) | Self::NotEvaluated { .. } => ErrorKind::InvalidInput,
            Self::Other(error) => match **error {
                RunFolderError::Locked { .. } => ErrorKind::Busy,
                RunFolderError::Io { .. } => ErrorKind::Failure,
                _ => ErrorKind::InvalidInput,
            },
        }
    }

    fn help(&self) -> Option<String> {
        let error = match self {
            Self::Damaged(_) => return None,
            Self::NotEvaluated { path, .. } => {
                return Some(format!(
                    "devices of a served run do not report their losses and errors. If they hold examples out \
                     (under [data] split = {{ within = {{ train = 0.8 }} }}), their cohorts send histograms.\n\
                     Its models can be evaluated on examples of this machine:\n  deltafl evaluate {} --data DIR\n\
                     and by each device on its own: deltafl model try",
                    shell_quoted(&path.display().to_string())
                ));
            }
            Self::Other(error) => error,
        };
        Some(match &**error {
            RunFolderError::Exists { .. } => {
                "add --resume to continue it, or --out DIR to train somewhere else".to_owned()
            }
            RunFolderError::NotAFolder { .. } => "name a folder: --out DIR".to_owned(),
            RunFolderError::Shorter { .. } => {
                "a run can be made longer, not shorter: ask for more rounds, or train into another --out"
                    .to_owned()
            }
            RunFolderError::Missing { .. } => {
                "`deltafl run` without --resume starts a run; `deltafl runs DIR` lists those below a folder"
                    .to_owned()
            }
            RunFolderError::Changed { differences, .. } => {
                let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "(nothing)".to_owned());
                let lines: Vec<String> = differences
                    .iter()
                    .map(|d| format!("{}: {} → {}", d.key, shown(&d.before), shown(&d.now)))
                    .collect();
                format!("{}\nrestore these, or train the new experiment into another --out", lines.join("\n"))
            }
            RunFolderError::NotEvaluated { .. } => {
                "its first evaluation is written when training starts: train it, or continue with \
                 `deltafl run … --resume`"
                    .to_owned()
            }
            _ => return None,
        })
    }

    fn excerpt(&self) -> Option<Excerpt<'_>> {
        None
    }
}

/// Quotes a word for a shell.
pub fn shell_quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=,:@".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_returns_its_line_and_column() {
        let text = "é = 1\ncohort = 0\n";
        let start = text.find('0').unwrap();
        let excerpt = Excerpt { path: Path::new("x.toml"), text, span: start..start + 1, problem: "zero" };
        assert_eq!((excerpt.line_and_column(), excerpt.line()), ((2, 10), "cohort = 0"));
    }
}
