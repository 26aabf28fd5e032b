//! Errors with a message and instructions for the user.
//!
//! Exit codes for scripts: 2 for invalid input (an argument, an experiment, data), 1 for a failure
//! (such as a full disk), and 130 for a command stopped by Ctrl-C or a termination signal.

use std::ffi::OsString;
use std::sync::OnceLock;

use deltafl_data::run_folder::RunFolderError;
use deltafl_run::error::{ErrorKind, Explain, FolderError, shell_quoted};
use miette::{Diagnostic, LabeledSpan, NamedSource, Report, SourceCode};
use serde::Serialize;

/// An error caused by invalid input, not by the environment.
#[derive(Debug)]
pub(crate) struct BadInput {
    message: String,
    help: Option<String>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
    place: Option<Box<FilePlace>>,
}

/// A location in a file.
#[derive(Debug)]
struct FilePlace {
    source: NamedSource<String>,
    label: LabeledSpan,
}

/// Creates an error for invalid input.
pub(crate) fn bad_input(message: impl Into<String>) -> BadInput {
    BadInput { message: message.into(), help: None, source: None, place: None }
}

impl BadInput {
    /// Adds instructions to fix the error.
    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Adds the underlying error.
    pub(crate) fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Adds the location in a settings file.
    #[cfg(feature = "net")]
    pub(crate) fn at(mut self, path: &std::path::Path, text: &str, label: LabeledSpan) -> Self {
        let source = NamedSource::new(path.display().to_string(), text.to_owned()).with_language("toml");
        self.place = Some(Box::new(FilePlace { source, label }));
        self
    }
}

impl std::fmt::Display for BadInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for BadInput {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

impl Diagnostic for BadInput {
    fn help<'a>(&'a self) -> Option<Box<dyn std::fmt::Display + 'a>> {
        self.help.as_ref().map(|help| Box::new(help) as _)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.place.as_ref().map(|place| &place.source as _)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        self.place.as_ref().map(|place| Box::new(std::iter::once(place.label.clone())) as _)
    }
}

/// An error of the application that miette can render.
#[derive(Debug)]
pub(crate) struct Explained {
    error: Box<dyn std::error::Error + Send + Sync>,
    is_invalid_input: bool,
    help: Option<String>,
    place: Option<Box<FilePlace>>,
}

/// Creates a report of an error of the application.
pub(crate) fn explained(error: impl Explain) -> Report {
    let place = error.excerpt().map(|excerpt| {
        let source = NamedSource::new(excerpt.path.display().to_string(), excerpt.text.to_owned());
        let label = LabeledSpan::new_with_span(Some(excerpt.problem.to_owned()), excerpt.span.clone());
        Box::new(FilePlace { source: source.with_language("toml"), label })
    });
    let (is_invalid_input, help) = (error.kind() == ErrorKind::InvalidInput, error.help());
    Explained { error: Box::new(error), is_invalid_input, help, place }.into()
}

/// A report of an error, with its fix.
#[cfg(feature = "net")]
pub(crate) fn reported(
    error: impl std::error::Error + Send + Sync + 'static,
    is_invalid_input: bool,
    help: Option<String>,
) -> Report {
    Explained { error: Box::new(error), is_invalid_input, help, place: None }.into()
}

/// Creates a report of an error of a run folder.
pub(crate) fn folder_error(error: RunFolderError) -> Report {
    explained(FolderError::from(error))
}

impl std::fmt::Display for Explained {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Explained {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl Diagnostic for Explained {
    fn help<'a>(&'a self) -> Option<Box<dyn std::fmt::Display + 'a>> {
        self.help.as_ref().map(|help| Box::new(help) as _)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.place.as_ref().map(|place| &place.source as _)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        self.place.as_ref().map(|place| Box::new(std::iter::once(place.label.clone())) as _)
    }
}

/// The user stopped the command before its end. The command has already printed its messages.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

impl Diagnostic for Interrupted {}

/// Reports the point at which a command was stopped. People receive a message on standard error,
/// programs an object `{"interrupted": …}` on standard output.
pub(crate) fn interrupted(json: bool, place: &impl Serialize, go_on: &str) -> Report {
    if json {
        let object = serde_json::json!({ "interrupted": place, "resume": go_on });
        println!("{}", serde_json::to_string_pretty(&object).unwrap_or_default());
    } else {
        eprintln!("stopped; nothing is lost. Continue with\n  {go_on}");
    }
    Interrupted.into()
}

/// The arguments of the command, without its name. Empty if the library is embedded in another
/// program.
static WORDS: OnceLock<Vec<OsString>> = OnceLock::new();

/// Stores the arguments of the command for [`same_command`].
pub(crate) fn note_words(words: &[OsString]) {
    let _ = WORDS.set(words.iter().skip(1).cloned().collect());
}

/// Returns the command line of this process, for the user to run again.
pub(crate) fn same_command() -> String {
    let words = WORDS.get().into_iter().flatten().map(|word| shell_quoted(&word.to_string_lossy()));
    std::iter::once("deltafl".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

/// Returns the exit code for an error.
pub(crate) fn exit_code(report: &Report) -> u8 {
    let invalid = |explained: &Explained| explained.is_invalid_input;
    if report.downcast_ref::<BadInput>().is_some() || report.downcast_ref().is_some_and(invalid) {
        2
    } else if report.downcast_ref::<Interrupted>().is_some() {
        130
    } else {
        1
    }
}
