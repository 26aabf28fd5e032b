//! Draws the dashboard on any backend.
//!
//! ```text
//! ┌ title ───────────────────────────────┐
//! │ progress, throughput, time left      │
//! ├ train loss ──────────────┬ tracks ───┤
//! │ a curve per track        │ tail, η   │
//! │                          │ error     │
//! └ keys ────────────────────┴───────────┘
//! ```

use deltafl::task::{Metric, Unit};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::Line;
use ratatui::widgets::{Axis, Block, Chart, Dataset, Gauge, GraphType, Paragraph, Row, Table};

use super::view::{TrackView, View};
use deltafl_run::paper::estimate::HumanDuration;

/// The colours of the tracks, in their order. Terminal colours match the background.
const COLOURS: [Color; 6] =
    [Color::Gray, Color::Blue, Color::Yellow, Color::Green, Color::Magenta, Color::Cyan];
/// The minimum height for curves.
const ROOM_FOR_CURVES: u16 = 12;
/// Columns of the track table.
const TABLE: u16 = 62;

/// Draws the whole screen.
pub(super) fn screen(frame: &mut Frame<'_>, view: &View) {
    let [title, progress, body, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(2),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let line = match view.seeds {
        0 => " reading the data".to_owned(),
        seeds => format!(" {} · seed {} ({} of {seeds})", view.title, view.seed, view.place),
    };
    frame.render_widget(Line::from(line).style(Style::new().add_modifier(Modifier::BOLD)), title);
    draw_progress(frame, view, progress);
    let body_of = |curves, table| Layout::horizontal([curves, table]).areas::<2>(body);
    if body.height < ROOM_FOR_CURVES {
        draw_tracks(frame, view, body);
    } else if body.width < 2 * TABLE {
        // Stacked layout: the table needs its border, its header and a line per track.
        let table = Constraint::Length(view.tracks.len() as u16 + 3);
        let [curves, tracks] = Layout::vertical([Constraint::Min(0), table]).areas(body);
        draw_curves(frame, view, curves);
        draw_tracks(frame, view, tracks);
    } else {
        let [curves, tracks] = body_of(Constraint::Min(0), Constraint::Length(TABLE));
        draw_curves(frame, view, curves);
        draw_tracks(frame, view, tracks);
    }
    let hint = if view.stopping {
        " finishing the round; again to quit at once"
    } else {
        " q or Ctrl-C: finish the round, save and stop"
    };
    frame.render_widget(Line::from(hint).style(Style::new().fg(Color::DarkGray)), keys);
}

fn draw_progress(frame: &mut Frame<'_>, view: &View, area: Rect) {
    let [bar, line] = Layout::vertical([Constraint::Length(1); 2]).areas(area);
    let planned = view.rounds_planned().max(1);
    let ratio = (view.rounds_done() as f64 / planned as f64).clamp(0.0, 1.0);
    let gauge = Gauge::default().ratio(ratio).gauge_style(Style::new().fg(Color::Blue));
    frame.render_widget(gauge.label(format!("{:.0} %", 100.0 * ratio)), bar);
    let pace = view.pace.map_or_else(
        || "waiting for the first round".to_owned(),
        |pace| {
            format!(
                "{:.1} rounds/s · {:.0} updates/s · {} left",
                pace.rounds_per_second,
                pace.updates_per_second,
                HumanDuration(pace.left)
            )
        },
    );
    frame.render_widget(Line::from(format!(" round {} of {} · {pace}", view.round, view.rounds)), line);
}

fn draw_curves(frame: &mut Frame<'_>, view: &View, area: Rect) {
    let block = Block::bordered().title(" train loss, weighted mean over devices ");
    let points = || view.tracks.iter().flat_map(|track| &track.losses);
    // A single point per track is not a curve.
    if points().count() < 2 * view.tracks.len().max(1) {
        let wait = format!("A curve begins with the next evaluation, every {} rounds.", view.evaluate_every);
        frame.render_widget(Paragraph::new(wait).block(block), area);
        return;
    }
    // The untrained model would compress the rest of the curves.
    let first = usize::from(view.tracks.iter().all(|track| track.losses.len() > 3));
    let curves: Vec<&[(f64, f64)]> = view.tracks.iter().map(|track| &track.losses[first..]).collect();
    let losses = || curves.iter().copied().flatten().map(|point| point.1);
    let lowest = losses().fold(f64::INFINITY, f64::min);
    let highest = losses().fold(f64::NEG_INFINITY, f64::max).max(lowest + 1e-9);
    let datasets = view.tracks.iter().zip(&curves).enumerate().map(|(t, (track, curve))| {
        Dataset::default()
            .name(track.label.as_str())
            .marker(Marker::Braille)
            .graph_type(GraphType::Line)
            .style(colour(t))
            .data(curve)
    });
    let x = Axis::default()
        .bounds([0.0, view.round.max(1) as f64])
        .labels(["0".to_owned(), format!("{} rounds", view.round)]);
    let middle = (lowest + highest) / 2.0;
    let y = Axis::default()
        .bounds([lowest, highest])
        .labels([lowest, middle, highest].map(|loss| format!("{loss:.3}")));
    let soft = Style::new().fg(Color::DarkGray);
    let chart = Chart::new(datasets.collect()).block(block).x_axis(x.style(soft)).y_axis(y.style(soft));
    let chart = chart.hidden_legend_constraints((Constraint::Percentage(50), Constraint::Percentage(60)));
    frame.render_widget(chart, area);
}

fn draw_tracks(frame: &mut Frame<'_>, view: &View, area: Rect) {
    let metric = view.task.primary();
    let heading = metric.heading();
    let header = ["track", "tail", "η", &heading, "median", "90th", "95th"];
    let widths = [16, 9, 8, 7, 6, 6, 6].map(Constraint::Length);
    let rows =
        view.tracks.iter().enumerate().map(|(t, track)| Row::new(cells(metric, track)).style(colour(t)));
    let header = Row::new(header).style(Style::new().add_modifier(Modifier::BOLD));
    let block =
        Block::bordered().title(format!(" tracks: tail, threshold, test {} over devices ", metric.title));
    frame.render_widget(Table::new(rows, widths).header(header).block(block), area);
}

fn cells(metric: &Metric, track: &TrackView) -> [String; 7] {
    let digits = if metric.unit == Unit::Share { 2 } else { 3 };
    let percent = |tau: u8| {
        let figure = track.error.and_then(|figures| figures.percentile(tau));
        figure.map_or_else(|| "–".to_owned(), |figure| format!("{:.digits$}", metric.display_value(figure)))
    };
    let tail = if track.cohort > 0 { format!("{}/{}", track.tail, track.cohort) } else { "–".to_owned() };
    [
        track.label.clone(),
        tail,
        track.eta.map_or_else(|| "–".to_owned(), |eta| format!("{eta:.4}")),
        track.error.map_or_else(
            || "–".to_owned(),
            |figures| format!("{:.digits$}", metric.display_value(figures.mean)),
        ),
        percent(50),
        percent(90),
        percent(95),
    ]
}

fn colour(track: usize) -> Style {
    Style::new().fg(COLOURS[track % COLOURS.len()])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use deltafl::metrics::Figures;
    use deltafl_data::experiment::Experiment;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    /// The expected screen of the view below. `UPDATE_GOLDEN=1` rewrites it.
    const GOLDEN: &str = include_str!("screen.txt");

    fn view() -> View {
        let experiment = Experiment::parse(
            "name = 'quickstart'\nseeds = [7, 8]\nrounds = 40\ncohort = 50\n[data]\nsource = { kind = 'glyphs' }\n\
             [model]\nkind = 'linear'\n[local]\nepochs = 1\nbatch = 10\nlearning_rate = 1\n\
             [[algorithm]]\nkind = 'fedavg'\n[[algorithm]]\nkind = 'delta-fl'\ntheta = [0.5, 0.1]\n",
        )
        .unwrap();
        let mut view = View::default();
        view.begin(&experiment, 8, 0, Duration::from_secs(1));
        view.round = 30;
        view.pace = Some(super::super::view::Pace {
            rounds_per_second: 2.5,
            updates_per_second: 212.0,
            left: Duration::from_secs(4),
        });
        for (t, track) in view.tracks.iter_mut().enumerate() {
            let slow = 1.0 + 0.3 * t as f64;
            track.losses =
                (0..4).map(|i| (f64::from(10 * i), slow * 4.0 * (-0.6 * f64::from(i)).exp())).collect();
            track.error = Figures::unweighted(&[0.1, 0.2, 0.3, 0.4 + 0.1 * t as f64]);
            (track.tail, track.cohort) = ([50, 26, 5][t], 50);
            track.eta = (t > 0).then_some(1.25 + t as f64);
        }
        view
    }

    fn drawn(view: &View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen(frame, view)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |y: u16| {
            let cells: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
            format!("{}\n", cells.trim_end())
        };
        (0..height).map(line).collect()
    }

    #[test]
    fn a_wide_terminal_shows_the_screen_of_the_golden_file() {
        let screen = drawn(&view(), 130, 20);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/src/dashboard/screen.txt"), &screen)
                .unwrap();
        } else {
            assert_eq!(screen, GOLDEN, "\n{screen}");
        }
    }

    #[test]
    fn a_narrow_terminal_stacks_the_same_values() {
        let screen = drawn(&view(), 80, 24);
        for part in [
            "quickstart · glyphs · linear · seed 8 (2 of 2)",
            "88 %",
            "round 30 of 40",
            "train loss",
            "26/50",
            "2.2500",
            "212 updates/s",
            "4.00 s left",
        ] {
            assert!(screen.contains(part), "{part}:\n{screen}");
        }
    }

    #[test]
    fn no_terminal_is_too_small_to_be_drawn_on() {
        for (width, height) in [(1, 1), (5, 3), (20, 6), (60, 10), (62, 17), (300, 100)] {
            drawn(&view(), width, height);
            drawn(&View::default(), width, height);
        }
    }

    #[test]
    fn before_the_second_evaluation_the_screen_shows_its_round() {
        let mut early = view();
        early.tracks.iter_mut().for_each(|track| track.losses.truncate(1));
        assert!(drawn(&early, 130, 20).contains("every 10 rounds"));
        assert!(drawn(&View::default(), 130, 20).contains("reading the data"));
    }
}
