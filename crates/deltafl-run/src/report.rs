//! `deltafl report`: tables, figures and one self-contained page, from run folders alone.
//!
//! Nothing here asks a clock or draws a random number: two reports of one run are the same bytes.

use std::fs;
use std::path::{Path, PathBuf};

use deltafl_data::experiment::Experiment;
use miette::{Context, IntoDiagnostic};

#[path = "report/cohorts.rs"]
mod cohorts;
#[path = "report/figures.rs"]
mod figures;
#[path = "report/headline.rs"]
mod headline;
#[path = "report/measure.rs"]
mod measure;
#[path = "report/page.rs"]
mod page;
#[path = "report/results.rs"]
mod results;
#[path = "report/spread.rs"]
mod spread;
#[path = "report/tables.rs"]
mod tables;
#[path = "report/tracks.rs"]
pub(crate) mod tracks;

use crate::error::{bad_input, make_folder};
use crate::run_list::RunList;
use crate::run_names;
use results::RunResults;

/// Write tables, figures and one interactive page of runs
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  deltafl report runs/emnist-linear && open runs/emnist-linear/report.html\n  deltafl report sweeps/quickstart"
)]
pub(crate) struct Args {
    /// Run folders, or the folder of a sweep; several runs are set side by side
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Where to write [default: the folder of the run or of the sweep]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Draw no figures: tables and page alone, which is quicker
    #[arg(long)]
    no_figures: bool,
    /// Print the paths written as JSON
    #[arg(long)]
    json: bool,
}

/// What a report consists of.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct ReportPaths {
    /// The page.
    pub(crate) page: PathBuf,
    /// Tables as Markdown, LaTeX and CSV.
    pub(crate) tables: Vec<PathBuf>,
    /// Figures as SVG and PNG.
    pub(crate) figures: Vec<PathBuf>,
}

pub(crate) fn run(args: Args) -> miette::Result<()> {
    let RunList { runs, sweep } = RunList::of(&args.runs)?;
    let runs: Vec<&Path> = runs.iter().map(PathBuf::as_path).collect();
    let out = match (&args.out, &sweep, runs.as_slice()) {
        (Some(out), ..) | (None, Some(out), _) => out.as_path(),
        (None, None, [run]) => run,
        (None, None, _) => {
            let message = format!("a report of {} runs needs a folder of its own", runs.len());
            return Err(bad_input(message).help("add --out DIR").into());
        }
    };
    let paths = write_parts(&runs, out, !args.no_figures)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&paths).into_diagnostic()?);
    } else {
        for table in &paths.tables {
            println!("{}", table.display());
        }
        if !args.no_figures {
            println!("{} ({} files)", out.join("figures").display(), paths.figures.len());
        }
        println!("{}", paths.page.display());
    }
    Ok(())
}

/// Writes `report.html`, `tables.*` and `figures/` into `out`.
pub(crate) fn write_report(runs: &[&Path], out: &Path) -> miette::Result<ReportPaths> {
    write_parts(runs, out, true)
}

/// The same, with figures or without.
pub(crate) fn write_parts(runs: &[&Path], out: &Path, draw: bool) -> miette::Result<ReportPaths> {
    let folders = runs;
    let mut runs = runs.iter().map(|run| RunResults::read(run)).collect::<miette::Result<Vec<_>>>()?;
    let named: Vec<(&Path, &Experiment)> =
        folders.iter().copied().zip(runs.iter().map(|run| &run.experiment)).collect();
    let names = run_names::distinct(&named);
    runs.iter_mut().zip(names).for_each(|(run, name)| run.name = name);
    let tables = tables::tables(&runs);
    let write = |name: &str, contents: &[u8]| -> miette::Result<PathBuf> {
        let path = out.join(name);
        fs::write(&path, contents).into_diagnostic().wrap_err_with(|| path.display().to_string())?;
        Ok(path)
    };
    make_folder(out)?;
    let table_files = vec![
        write("tables.md", (tables::markdown(&tables) + &tables::idle_rounds(&runs)).as_bytes())?,
        write("tables.tex", tables::latex(&tables).as_bytes())?,
        write("tables.csv", tables::csv(&runs)?.as_bytes())?,
    ];
    let mut figure_files = Vec::new();
    if draw {
        make_folder(&out.join("figures"))?;
    }
    for figure in if draw { figures::figures(&runs)? } else { Vec::new() } {
        figure_files.push(write(&format!("figures/{}.svg", figure.name), figure.svg.as_bytes())?);
        figure_files.push(write(&format!("figures/{}.png", figure.name), &figure.png)?);
    }
    let page = write("report.html", page::page(&runs, &tables)?.as_bytes())?;
    Ok(ReportPaths { page, tables: table_files, figures: figure_files })
}
