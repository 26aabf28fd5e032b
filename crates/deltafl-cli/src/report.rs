//! `deltafl report`: writes tables, figures and one self-contained page.

use std::path::{Path, PathBuf};

use deltafl_run::report::{ReportFigures, write_report};
use deltafl_run::run_list::RunList;
use miette::IntoDiagnostic;

use crate::error::{bad_input, explained};

/// Write tables, figures and one interactive page for runs
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  deltafl report runs/emnist-linear && open runs/emnist-linear/report.html\n  deltafl report sweeps/quickstart"
)]
pub(crate) struct Args {
    /// Run folders, or the folder of a sweep; several runs are compared
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// The target folder [default: the folder of the run or of the sweep]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Draw no figures, only tables and page, which is faster
    #[arg(long)]
    no_figures: bool,
    /// Print the paths written as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> miette::Result<()> {
    let RunList { runs, sweep, left_out } = RunList::find(&args.runs).map_err(explained)?;
    if left_out > 0 {
        eprintln!("{left_out} points are omitted: they are not evaluated yet");
    }
    let runs: Vec<&Path> = runs.iter().map(PathBuf::as_path).collect();
    let out = match (&args.out, &sweep, runs.as_slice()) {
        (_, _, []) => return Err(bad_input("there is no evaluated run yet").into()),
        (Some(out), ..) | (None, Some(out), _) => out.as_path(),
        (None, None, [run]) => run,
        (None, None, _) => {
            let message = format!("a report of {} runs needs a separate folder", runs.len());
            return Err(bad_input(message).help("add --out DIR").into());
        }
    };
    let figures = if args.no_figures { ReportFigures::Omitted } else { ReportFigures::Drawn };
    let paths = write_report(&runs, out, figures).map_err(explained)?;
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
