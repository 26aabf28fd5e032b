//! Reports generated from run folders: tables, figures and one self-contained page.
//!
//! This module reads no clock and draws no random numbers. Two reports of one run are identical to
//! the byte.

use std::path::{Path, PathBuf};

use deltafl_data::experiment::Experiment;

mod cohorts;
mod device_evaluations;
mod distribution;
mod figures;
mod headline;
mod measure;
mod page;
mod results;
mod saved_metrics;
mod spread;
mod tables;
pub mod tracks;

pub use results::ResultsError;

use crate::drawing::DrawingError;
use crate::error::{ErrorKind, Excerpt, Explain, FileError, create_folder, write_file};
use crate::run_names;
use results::RunResults;

/// The reason why a report cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// A run cannot be read.
    #[error("could not read the run in {path}")]
    Run {
        /// The run folder.
        path: PathBuf,
        /// The error of its results.
        source: ResultsError,
    },
    /// A file cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A figure cannot be drawn.
    #[error(transparent)]
    Drawing(#[from] DrawingError),
}

impl Explain for ReportError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Run { source: ResultsError::Folder(error), .. } => error.kind(),
            Self::File(error) => error.kind(),
            Self::Run { .. } | Self::Drawing(_) => ErrorKind::Failure,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            Self::Run { source: ResultsError::Folder(error), .. } => error.help(),
            Self::File(error) => error.help(),
            Self::Run { .. } | Self::Drawing(_) => None,
        }
    }

    fn excerpt(&self) -> Option<Excerpt<'_>> {
        None
    }
}

/// Whether a report has figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReportFigures {
    /// As SVG and PNG files.
    #[default]
    Drawn,
    /// No figures, only tables and page, which is faster.
    Omitted,
}

/// Renders the page of a field. Each entry is a name and its runs, one per method with the name of
/// the method. The runs of an entry must have evaluated the same devices after the same rounds.
pub(crate) fn field_page(
    entries: &[(String, Vec<(String, PathBuf)>)],
    (caption, rows): &(String, Vec<Vec<String>>),
) -> Result<String, ReportError> {
    let read = |(name, methods): &(String, Vec<(String, PathBuf)>)| {
        let mut runs = Vec::new();
        for (method, folder) in methods {
            let run = RunResults::read(folder)
                .map_err(|source| ReportError::Run { path: folder.clone(), source })?;
            runs.push((method.clone(), run));
        }
        Ok(RunResults::combined(name, runs))
    };
    let runs = entries.iter().map(read).collect::<Result<Vec<_>, ReportError>>()?;
    Ok(page::page_with_text_table(&runs.into_iter().flatten().collect::<Vec<_>>(), caption, rows))
}

/// Draws the error of the devices against ε over runs that differ in it, as SVG. Returns `None` if
/// no two runs have different ε.
///
/// # Errors
///
/// Fails if a run cannot be read, or if the chart cannot be drawn.
pub fn error_by_epsilon(runs: &[PathBuf]) -> Result<Option<String>, ReportError> {
    let read = |run: &PathBuf| {
        RunResults::read(run).map_err(|source| ReportError::Run { path: run.clone(), source })
    };
    let runs = runs.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    Ok(figures::error_by_epsilon(&runs)?)
}

/// The files of a report.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ReportPaths {
    /// The page.
    pub page: PathBuf,
    /// Tables as Markdown, LaTeX and CSV.
    pub tables: Vec<PathBuf>,
    /// Figures as SVG and PNG.
    pub figures: Vec<PathBuf>,
}

/// Writes `report.html`, `tables.*` and, unless omitted, `figures/` into `out`.
///
/// # Errors
///
/// Fails if a run cannot be read, or if a file cannot be drawn or written.
pub fn write_report(runs: &[&Path], out: &Path, figures: ReportFigures) -> Result<ReportPaths, ReportError> {
    let folders = runs;
    let read = |run: &&Path| {
        RunResults::read(run).map_err(|source| ReportError::Run { path: run.to_path_buf(), source })
    };
    let mut runs = runs.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let named: Vec<(&Path, &Experiment)> =
        folders.iter().copied().zip(runs.iter().map(|run| &run.experiment)).collect();
    let names = run_names::distinct(&named);
    runs.iter_mut().zip(names).for_each(|(run, name)| run.name = name);
    let tables: Vec<_> = tables::tables(&runs).into_iter().chain(saved_metrics::tables(&runs)).collect();
    let write = |name: &str, contents: &[u8]| -> Result<PathBuf, FileError> {
        let path = out.join(name);
        write_file(&path, contents)?;
        Ok(path)
    };
    create_folder(out)?;
    let table_files = vec![
        write("tables.md", (tables::markdown(&tables) + &tables::idle_rounds(&runs)).as_bytes())?,
        write("tables.tex", tables::latex(&tables).as_bytes())?,
        write("tables.csv", &tables::csv(&runs).map_err(FileError::write(&out.join("tables.csv")))?)?,
    ];
    let mut figure_files = Vec::new();
    if figures == ReportFigures::Drawn {
        create_folder(&out.join("figures"))?;
        for figure in figures::figures(&runs)? {
            figure_files.push(write(&format!("figures/{}.svg", figure.name), figure.svg.as_bytes())?);
            figure_files.push(write(&format!("figures/{}.png", figure.name), &figure.png)?);
        }
    }
    let page = write("report.html", page::page(&runs, &tables).as_bytes())?;
    Ok(ReportPaths { page, tables: table_files, figures: figure_files })
}
