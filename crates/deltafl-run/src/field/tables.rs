//! The table of a field: for a terminal, as Markdown, as CSV and for the page.

use std::fmt::Write as _;

use super::FieldResults;
use super::results::MethodResult;
use super::statistics::{Estimate, LEVELS};
use crate::text_table;

/// Renders the table for a terminal, in two parts that fit its width.
pub(super) fn rendered(results: &FieldResults) -> String {
    let rows = rows(results);
    let part = |columns: &[usize]| {
        let of_row = |row: &Vec<String>| columns.iter().map(|&c| row[c].clone()).collect::<Vec<_>>();
        text_table::aligned(&rows.iter().map(of_row).collect::<Vec<_>>())
    };
    let all = rows.first().map_or(0, Vec::len);
    let second: Vec<usize> = [0].into_iter().chain(FIRST_PART..all).collect();
    format!(
        "{}\n\n{}\n{}\n{}",
        caption(results),
        part(&(0..FIRST_PART).collect::<Vec<_>>()),
        part(&second),
        notes(results)
    )
}

/// The columns of the first part on a terminal.
const FIRST_PART: usize = 7;

/// Renders the table as Markdown.
pub(super) fn markdown(results: &FieldResults) -> String {
    let rows = rows(results);
    let mut text = format!("{}.\n\n", caption(results));
    for (r, row) in rows.iter().enumerate() {
        let _ = writeln!(text, "| {} |", row.join(" | "));
        if r == 0 {
            let _ = writeln!(text, "|---|{}", "---:|".repeat(row.len() - 1));
        }
    }
    let _ = write!(text, "\n{}", notes(results));
    text
}

/// Returns the caption and the rows for the page, the heading first.
pub(super) fn markdown_rows(results: &FieldResults) -> (String, Vec<Vec<String>>) {
    (format!("{}. {}", caption(results), notes(results).trim_end().replace('\n', " ")), rows(results))
}

/// Renders all numbers as CSV. Values are not scaled.
pub(super) fn csv(results: &FieldResults) -> String {
    let mut text = String::from(
        "method,kind,secure_sums,learning_rate,options,mean,mean_low,mean_high,p90,p90_low,p90_high,\
         mean_change,mean_change_low,mean_change_high,p90_change,p90_change_low,p90_change_high,\
         deviation,worst_tenth,gini,f_0.8,f_0.5,f_0.1,rounds_to_target,sums_to_target,bytes_to_target,on_front\n",
    );
    for method in &results.methods {
        let options: Vec<String> =
            method.tuned.options.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let three = |estimate: Option<Estimate>| match estimate {
            Some(Estimate { value, interval: [low, high] }) => format!("{value},{low},{high}"),
            None => ",,".to_owned(),
        };
        let number = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
        let objectives: Vec<String> = method.objectives.iter().map(|value| number(*value)).collect();
        let change = |f: usize| three(method.change.map(|changes| changes[f]));
        let _ = writeln!(
            text,
            "\"{}\",{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}",
            method.name,
            method.kind,
            method.secure_sums,
            method.tuned.learning_rate,
            options.join(";"),
            three(Some(method.mean)),
            three(Some(method.p90)),
            change(0),
            change(1),
            method.deviation,
            method.worst_tenth,
            method.gini,
            objectives.join(","),
            number(method.to_target.map(|cost| cost.rounds)),
            number(method.to_target.map(|cost| cost.sums)),
            number(method.to_target.map(|cost| cost.bytes)),
            method.on_front,
        );
    }
    text
}

fn caption(results: &FieldResults) -> String {
    let splits =
        if results.splits == 1 { "1 split".to_owned() } else { format!("{} splits", results.splits) };
    format!(
        "Test {} of {} methods after {} rounds of {} devices, {splits} of {} ({} test devices), {} model",
        results.metric,
        results.methods.len(),
        results.rounds,
        results.cohort,
        results.dataset,
        results.devices,
        results.model
    )
}

fn notes(results: &FieldResults) -> String {
    let target = text_table::number(results.scale * results.target, results.decimals);
    format!(
        "* is on the Pareto front of mean and 90th percentile. Intervals are 95 %, over splits and devices.\n\
         Rounds, sums and bytes are those until the mean {} is {target}.\n",
        results.metric
    )
}

/// Returns the rows, the heading first.
fn rows(results: &FieldResults) -> Vec<Vec<String>> {
    let mut heading: Vec<String> =
        ["method", "tuned", "mean", "95 %", "p90", "95 %", "p90 − FedAvg", "std", "worst tenth", "Gini"]
            .map(str::to_owned)
            .to_vec();
    heading.extend(LEVELS.map(|theta| format!("F_{theta}")));
    heading.extend(["rounds", "sums", "MB", "secure"].map(str::to_owned));
    let objectives = results.methods.iter().flat_map(|method| method.objectives).flatten();
    let digits = text_table::places(objectives).max(3);
    let body = results.methods.iter().map(|method| row(results, method, digits));
    [heading].into_iter().chain(body).collect()
}

/// Returns the row of a method, with this many decimals of F_θ.
fn row(results: &FieldResults, method: &MethodResult, digits: usize) -> Vec<String> {
    let shown = |value: f64| text_table::number(results.scale * value, results.decimals);
    let between = |estimate: Estimate| estimate.interval.map(shown).join("–");
    let mark = if method.on_front { "* " } else { "" };
    let mut tuned = format!("γ={}", method.tuned.learning_rate);
    method.tuned.options.iter().for_each(|(name, value)| {
        let _ = write!(tuned, " {name}={value}");
    });
    let change = |[_, p90]: [Estimate; 2]| {
        let [low, high] = p90.interval.map(|bound| signed(results, bound));
        format!("{} ({low} to {high})", signed(results, p90.value))
    };
    let mut row = vec![
        format!("{mark}{}", method.name),
        tuned,
        shown(method.mean.value),
        between(method.mean),
        shown(method.p90.value),
        between(method.p90),
        method.change.map_or_else(|| "–".to_owned(), change),
        shown(method.deviation),
        shown(method.worst_tenth),
        format!("{:.3}", method.gini),
    ];
    let dash = || "–".to_owned();
    row.extend(method.objectives.map(|value| value.map_or_else(dash, |value| format!("{value:.digits$}"))));
    row.extend(match method.to_target {
        Some(cost) => {
            [format!("{:.0}", cost.rounds), format!("{:.0}", cost.sums), format!("{:.1}", cost.bytes / 1e6)]
        }
        None => [dash(), dash(), dash()],
    });
    row.push(if method.secure_sums { "yes" } else { "no" }.to_owned());
    row
}

fn signed(results: &FieldResults, value: f64) -> String {
    let shown = text_table::number(results.scale * value.abs(), results.decimals);
    format!("{}{shown}", if value < 0.0 { "−" } else { "+" })
}
