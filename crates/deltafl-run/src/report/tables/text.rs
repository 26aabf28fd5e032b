//! Tables as Markdown and LaTeX.

use std::fmt::Write as _;

use super::Table;
use crate::report::results::RunResults;

/// Renders the tables as Markdown.
pub(in crate::report) fn markdown(tables: &[Table]) -> String {
    let mut text = String::new();
    for table in tables {
        let _ = writeln!(text, "**{}**\n", markdown_escaped(&table.caption));
        let columns: Vec<String> = table.columns.iter().map(|column| markdown_escaped(column)).collect();
        let _ = writeln!(text, "| | {} |", columns.join(" | "));
        let _ = writeln!(text, "|---|{}", "---:|".repeat(table.columns.len()));
        for (r, row) in table.rows.iter().enumerate() {
            let _ = write!(text, "| {} |", markdown_escaped(&row.label));
            for c in 0..table.columns.len() {
                let cell = match table.cell(r, c) {
                    (mean, Some(std)) => format!("{mean} ± {std}"),
                    (mean, None) => mean,
                };
                let bold = if table.is_best(r, c) { "**" } else { "" };
                let _ = write!(text, " {bold}{cell}{bold} |");
            }
            text.push('\n');
        }
        text.push('\n');
    }
    text
}

/// Renders a list item per track with rounds that changed nothing, or an empty string without such
/// rounds.
pub(in crate::report) fn idle_rounds(runs: &[RunResults]) -> String {
    let mut text = String::new();
    for run in runs {
        for (track, idle) in run.tracks.iter().zip(&run.idle).filter(|(_, idle)| idle.idle() > 0) {
            let label =
                if runs.len() > 1 { format!("{}: {}", run.name, track.label) } else { track.label.clone() };
            let _ = writeln!(text, "- {}: {idle}.", markdown_escaped(&label));
        }
    }
    text
}

/// Renders the tables as LaTeX for `booktabs`.
pub(in crate::report) fn latex(tables: &[Table]) -> String {
    let mut text = String::from("% Needs \\usepackage{booktabs}.\n");
    for table in tables {
        let _ = writeln!(
            text,
            "\\begin{{table}}\n  \\centering\n  \\caption{{{}.}}",
            latex_escaped(&table.caption)
        );
        let _ = writeln!(text, "  \\begin{{tabular}}{{l{}}}\n    \\toprule", "r".repeat(table.columns.len()));
        let columns: Vec<String> = table.columns.iter().map(|column| latex_escaped(column)).collect();
        let _ = writeln!(text, "    & {} \\\\\n    \\midrule", columns.join(" & "));
        for (r, row) in table.rows.iter().enumerate() {
            let _ = write!(text, "    {}", latex_escaped(&row.label));
            for c in 0..table.columns.len() {
                let (mean, std) = table.cell(r, c);
                let mean = if table.is_best(r, c) { format!("\\textbf{{{mean}}}") } else { mean };
                let std = std.map_or_else(String::new, |std| format!(" $\\pm$ {std}"));
                let _ = write!(text, " & {mean}{std}");
            }
            text.push_str(" \\\\\n");
        }
        text.push_str("    \\bottomrule\n  \\end{tabular}\n\\end{table}\n");
    }
    text
}

fn markdown_escaped(text: &str) -> String {
    text.replace('|', "\\|").replace('_', "\\_").replace('*', "\\*")
}

fn latex_escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '\\' => escaped.push_str("\\textbackslash{}"),
            '&' | '%' | '$' | '#' | '_' | '{' | '}' => {
                escaped.push('\\');
                escaped.push(c);
            }
            '²' => escaped.push_str("$^2$"),
            '~' => escaped.push_str("\\textasciitilde{}"),
            '^' => escaped.push_str("\\textasciicircum{}"),
            'Δ' => escaped.push_str("$\\Delta$"),
            'θ' => escaped.push_str("$\\theta$"),
            'η' => escaped.push_str("$\\eta$"),
            'ν' => escaped.push_str("$\\nu$"),
            'λ' => escaped.push_str("$\\lambda$"),
            _ => escaped.push(c),
        }
    }
    escaped.replace("F\\_$\\theta$", "$F_\\theta$")
}
