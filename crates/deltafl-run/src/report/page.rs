//! The page: one HTML file that needs no network.
//!
//! Charts are drawn by plotly.js, in its smallest distribution that has bars and lines
//! (`page/plotly`). Small values are stored as JSON, large arrays in one compressed block (see
//! [`data`]). The library is compressed, too.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use deltafl::data::Split;
use deltafl_data::run_folder::IdleRounds;

use super::headline::headline;
use super::results::RunResults;
use super::tables::{Compared, Table};
use super::tracks::TrackInfo;
use crate::idle_rounds;

mod data;
mod devices;
mod numbers;

const TEMPLATE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const PLOTLY: &[u8] = include_bytes!("page/plotly/plotly-basic.min.js.gz");
const SCRIPTS: [&str; 6] = [
    include_str!("page/read.js"),
    include_str!("page/look.js"),
    include_str!("page/charts.js"),
    include_str!("page/devices.js"),
    include_str!("page/controls.js"),
    include_str!("page/start.js"),
];

/// Renders the page of some runs.
pub(super) fn page(runs: &[RunResults], tables: &[Table]) -> String {
    with_tables(runs, tables.iter().map(table_html).collect())
}

/// Renders the page of some runs with one table of text: its caption, and its rows with the heading
/// first.
pub(super) fn page_with_text_table(runs: &[RunResults], caption: &str, rows: &[Vec<String>]) -> String {
    let mut html =
        format!("<div class=\"scroll\"><table class=\"figures\">\n<caption>{}</caption>\n", escaped(caption));
    for (r, row) in rows.iter().enumerate() {
        html.push_str(if r == 0 { "<thead><tr>" } else { "<tr>" });
        for (c, cell) in row.iter().enumerate() {
            let (open, close) = match (r, c) {
                (0, _) => ("<th scope=\"col\">", "</th>"),
                (_, 0) => ("<th scope=\"row\">", "</th>"),
                _ => ("<td>", "</td>"),
            };
            let _ = write!(html, "{open}{}{close}", escaped(cell));
        }
        html.push_str(if r == 0 { "</tr></thead>\n<tbody>\n" } else { "</tr>\n" });
    }
    html.push_str("</tbody></table></div>\n");
    with_tables(runs, html)
}

fn with_tables(runs: &[RunResults], tables: String) -> String {
    let data = data::page_data(runs);
    let title = runs.iter().map(|run| run.name.as_str()).collect::<Vec<_>>().join(", ");
    let parts = [
        ("{{title}}", escaped(&title)),
        ("{{headlines}}", headlines(runs)),
        ("{{tables}}", tables),
        ("{{experiments}}", runs.iter().map(|run| experiment_html(run, runs.len() == 1)).collect()),
        ("{{style}}", STYLE.to_owned()),
        ("{{plotly}}", STANDARD.encode(PLOTLY)),
        ("{{data}}", data.json),
        ("{{numbers}}", data.numbers),
        ("{{script}}", format!("(() => {{\n\"use strict\";\n{}}})();\n", SCRIPTS.concat())),
    ];
    filled(TEMPLATE, &parts)
}

/// Replaces each placeholder of the template once. Inserted text is not searched for placeholders.
fn filled(template: &str, parts: &[(&str, String)]) -> String {
    let mut page =
        String::with_capacity(template.len() + parts.iter().map(|(_, part)| part.len()).sum::<usize>());
    let mut rest = template;
    while let Some(start) = rest.find("{{") {
        let Some(end) = rest[start..].find("}}").map(|end| start + end + 2) else { break };
        page.push_str(&rest[..start]);
        let mark = &rest[start..end];
        let part = parts.iter().find(|(name, _)| *name == mark);
        page.push_str(part.map_or(mark, |(_, part)| part));
        rest = &rest[end..];
    }
    page.push_str(rest);
    page
}

fn headlines(runs: &[RunResults]) -> String {
    let mut html = String::new();
    for (i, run) in runs.iter().enumerate() {
        let headline = headline(run);
        let seeds =
            if run.seeds.len() == 1 { "1 seed".to_owned() } else { format!("{} seeds", run.seeds.len()) };
        let _ = write!(
            html,
            "<div class=\"headline\" data-run=\"{i}\"{}>\n<h1>{}.</h1>\n<p class=\"meta\">{} · {} · {} model · {} rounds · {seeds} · {}</p>\n",
            if i > 0 { " hidden" } else { "" },
            escaped(&headline.sentence),
            escaped(&run.name),
            escaped(&run.dataset),
            escaped(&run.model),
            run.rounds_done(),
            escaped(&devices(run).join(" · ")),
        );
        if let Some(price) = headline.price {
            let _ = writeln!(html, "<p class=\"meta price\">{}</p>", escaped(&price));
        }
        let caveats =
            headline.caveat.into_iter().chain(untested(run)).chain(deployed(run)).chain(idle_rounds(run));
        for caveat in caveats {
            let _ = writeln!(html, "<p class=\"caveat\">{}</p>", escaped(&caveat));
        }
        html.push_str("</div>\n");
    }
    html
}

/// Returns the number of evaluated devices per split, or the size of the cohorts that sent
/// histograms. The split of the tables is first.
fn devices(run: &RunResults) -> Vec<String> {
    if let Some((fewest, most)) = run.cohorts {
        let devices = if fewest == most { fewest.to_string() } else { format!("{fewest} to {most}") };
        return vec![format!("deployed, cohorts of {devices} devices")];
    }
    let mut splits: Vec<(Split, usize)> = Vec::new();
    for measured in &run.measured {
        let split = measured.measure.split();
        if splits.iter().all(|(known, _)| *known != split) {
            splits.push((split, measured.devices.len()));
        }
    }
    splits.iter().map(|(split, devices)| format!("{devices} {} devices", split.name())).collect()
}

fn untested(run: &RunResults) -> Option<String> {
    let said = "The federation has no test devices: these are the devices that trained. Hold some back with [data.split] in \
                the experiment, or with `deltafl data split`.";
    (!run.tested()).then(|| said.to_owned())
}

/// Returns a note on the accuracy of a deployed run, whose devices do not send individual results.
fn deployed(run: &RunResults) -> Option<String> {
    let said = "Deployed: the cohorts of some rounds sent secure sums of histograms over examples that were not used for \
                training. No device sent individual results. Curves and bars show the midpoints of the known intervals; \
                bands, ranges and tables give their bounds. Each evaluation used another cohort.";
    run.cohorts.map(|_| said.to_owned())
}

/// Returns a sentence per track with rounds that changed nothing. It includes the likely reason if
/// most rounds changed nothing.
fn idle_rounds(run: &RunResults) -> Vec<String> {
    let tracks = run.tracks.iter().zip(&run.idle).filter(|(_, idle)| idle.idle() > 0);
    let sentence = |(track, idle): (&TrackInfo, &IdleRounds)| {
        let hint = idle_rounds::hint(idle, &run.experiment, track)
            .map_or_else(String::new, |hint| format!("; {hint}"));
        format!("{}: {idle}{hint}.", track.label)
    };
    tracks.map(sentence).collect()
}

fn table_html(table: &Table) -> String {
    let mut html = format!(
        "<div class=\"scroll\"><table class=\"figures\">\n<caption>{}</caption>\n",
        escaped(&table.caption)
    );
    let of_rows = if table.compared == Compared::Rows { "Class" } else { "Track" };
    let _ = write!(html, "<thead><tr><th scope=\"col\">{of_rows}</th>");
    for column in &table.columns {
        let _ = write!(html, "<th scope=\"col\">{}</th>", escaped(column));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for (r, row) in table.rows.iter().enumerate() {
        let _ = write!(html, "<tr><th scope=\"row\">{}</th>", escaped(&row.label));
        for c in 0..table.columns.len() {
            let (mean, std) = table.cell(r, c);
            let std = std.map_or_else(String::new, |std| format!("<span class=\"std\"> ± {std}</span>"));
            let class = if table.is_best(r, c) { " class=\"best\"" } else { "" };
            let _ = write!(html, "<td{class}>{mean}{std}</td>");
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody></table></div>\n");
    html
}

fn experiment_html(run: &RunResults, open: bool) -> String {
    format!(
        "<details{}><summary>{}</summary><pre tabindex=\"0\"><code>{}</code></pre></details>\n",
        if open { " open" } else { "" },
        escaped(&run.name),
        escaped(&run.experiment.to_toml())
    )
}

/// Escapes text for HTML, in an element or a quoted attribute.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn placeholders_in_inserted_text_are_kept() {
        let parts = [("{{a}}", "{{b}}".to_owned()), ("{{b}}", "x".to_owned())];
        assert_eq!(filled("<{{a}}|{{b}}|{{c}}>", &parts), "<{{b}}|x|{{c}}>");
    }

    #[test]
    fn the_readme_of_the_charting_library_has_its_version() {
        let mut script = String::new();
        flate2::read::GzDecoder::new(PLOTLY).read_to_string(&mut script).unwrap();
        let version = script.split_once("minified) v").and_then(|(_, rest)| rest.split_once('\n'));
        let (version, _) = version.expect("the header of the script has its version");
        let readme = include_str!("page/plotly/README.md");
        assert!(readme.contains(&format!("| version | {version} |")), "{version}: {readme}");
    }
}
