//! A deployed federation for the Python package.

use miette::{GraphicalReportHandler, GraphicalTheme, Report};

use crate::error;

pub mod deployed;

/// Columns of a message.
const WIDTH: usize = 120;

/// Why something could not be done, in the words of the command.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Whose fault it is.
    pub kind: FailureKind,
    /// For people: several lines, those of the file that is wrong among them.
    pub message: String,
}

/// Whose fault a failure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureKind {
    /// Something that was given is wrong.
    BadInput,
    /// The world: a full disk, a trainer that failed.
    Failed,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<Report> for Failure {
    fn from(report: Report) -> Self {
        let kind = if error::exit_code(&report) == 2 { FailureKind::BadInput } else { FailureKind::Failed };
        let mut message = String::new();
        let plain = GraphicalReportHandler::new_themed(GraphicalTheme::unicode_nocolor())
            .with_width(WIDTH)
            .with_links(false);
        if plain.render_report(&mut message, &*report).is_err() {
            message = report.to_string();
        }
        let message = message.trim();
        Self { kind, message: message.strip_prefix("× ").unwrap_or(message).to_owned() }
    }
}

impl From<error::BadInput> for Failure {
    fn from(error: error::BadInput) -> Self {
        Report::from(error).into()
    }
}
