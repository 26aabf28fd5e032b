//! Tests of the page in a real browser.

use std::fs;
use std::path::Path;

use serde_json::json;

use super::browser::Browser;
use super::{printed, run_folders, text, trained_run};

/// The left arrow key.
const LEFT: (&str, u32) = ("ArrowLeft", 37);

fn trained_page() -> Option<Browser> {
    Browser::open(&trained_run().path.join("report.html"))
}

/// Writes an image of the page to `target/tmp` for inspection.
pub(crate) fn keep(name: &str, picture: &[u8]) {
    keep_as(&format!("report-{name}.png"), picture);
}

fn keep_as(name: &str, bytes: &[u8]) {
    fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name), bytes).unwrap();
}

#[test]
fn the_theta_slider_shows_the_percentiles_of_the_summary() {
    let summary = &trained_run().summary;
    let Some(mut browser) = trained_page() else { return };
    browser.value("document.getElementById('theta').focus()");
    browser.value("document.getElementById('theta').value = 3; document.getElementById('theta').dispatchEvent(new Event('input'))");
    browser.settle();
    // From the last level back to FedAvg, with the keyboard.
    for track in [3, 2, 1] {
        let shown = browser
            .value("[...document.querySelectorAll('[data-figure^=track]')].map((cell) => cell.textContent)");
        let f = summary.tracks[track].test.unwrap();
        let expected: Vec<String> = [f.mean, f.p20, f.p50, f.p60, f.p80, f.p90, f.p95]
            .iter()
            .map(|x| format!("{:.2}", 100.0 * x.mean))
            .collect();
        assert_eq!(shown, json!(expected), "track {track}");
        let bars = browser.value("document.getElementById('histogram').data[0].name");
        assert!(bars.as_str().unwrap().contains(&summary.tracks[track].theta.to_string()), "{bars}");
        browser.press(LEFT.0, LEFT.1);
    }
    assert!(browser.text("#gains-lead").contains("Move the θ slider"));
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn search_finds_a_device_and_hovering_shows_its_values() {
    let Some(mut browser) = trained_page() else { return };
    let id = browser
        .value("JSON.parse(document.getElementById('data').textContent).runs[0].measures[0].devices.ids[5]");
    let id = id.as_str().unwrap();
    browser.value("document.getElementById('search').focus()");
    browser.enter(id);
    assert!(browser.text("#found").contains(id));
    browser.press("Enter", 13);
    assert_eq!(browser.text("#device-name"), id);
    assert!(browser.text("#device-note").contains("examples; test error after 20 rounds"));

    browser.value("document.getElementById('search').value = 'nobody'; document.getElementById('search').dispatchEvent(new Event('input'))");
    assert!(browser.text("#found-count").contains("No device"));

    let (hover, at) = hovered(&mut browser);
    assert!(hover.contains(at[2][1].as_str().unwrap()) && hover.contains("examples"), "{hover} {at}");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// Points at the most isolated device of the chart until its values are displayed. A chart that was
/// just scrolled into view may be redrawn, so the pointer is moved again to the new position.
fn hovered(browser: &mut Browser) -> (String, serde_json::Value) {
    for _ in 0..100 {
        let at = browser.value(
            "(() => { const chart = document.getElementById('scatter'); chart.scrollIntoView({ behavior: 'instant', block: 'center' }); \
             const trace = chart.data.findIndex((t) => t.x.length > 0); const { xaxis, yaxis } = chart._fullLayout; \
             const box = chart.getBoundingClientRect(); const d = chart.data[trace]; \
             const places = chart.data.flatMap((t) => [...t.x].map((x, k) => [xaxis.c2p(x), yaxis.c2p(t.y[k])])); \
             const room = (k) => Math.min(...places.map(([x, y]) => Math.hypot(x - xaxis.c2p(d.x[k]), y - yaxis.c2p(d.y[k]))).filter((r) => r > 0)); \
             const alone = (k) => places.filter(([x, y]) => x === xaxis.c2p(d.x[k]) && y === yaxis.c2p(d.y[k])).length === 1; \
             const k = [...d.x].map((_, k) => k).filter(alone).reduce((a, b) => room(b) > room(a) ? b : a); \
             return [box.left + xaxis._offset + xaxis.c2p(d.x[k]), box.top + yaxis._offset + yaxis.c2p(d.y[k]), d.customdata[k]]; })()",
        );
        let (x, y) = (at[0].as_f64().unwrap(), at[1].as_f64().unwrap());
        browser.point_at(x - 3.0, y);
        browser.point_at(x, y);
        // Ten frames are sufficient for a chart that is not being redrawn.
        let hover = browser.value(
            "new Promise((done) => { let frames = 10; const look = () => { \
             const text = document.querySelector('#scatter .hoverlayer').textContent; \
             text || frames-- === 0 ? done(text) : requestAnimationFrame(look); }; look(); })",
        );
        // The pointer may have passed a neighbour whose values are still displayed.
        let (text, id) = (hover.as_str().unwrap(), at[2][0].as_str().unwrap());
        if text.starts_with(id) {
            return (text.to_owned(), at);
        }
    }
    panic!("no values were displayed under the pointer");
}

#[test]
fn the_page_is_readable_on_dark_and_narrow_screens() {
    let Some(mut browser) = trained_page() else { return };
    // Text and background colours in light and dark mode. Readable text has a contrast of at least
    // 7.
    let contrast = "(() => { const part = (c) => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; }; \
         const light = (text) => { const [r, g, b] = text.match(/[\\d.]+/g).map(Number); return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b); }; \
         const style = getComputedStyle(document.body); const [a, b] = [light(style.color), light(style.backgroundColor)]; \
         return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), b, document.getElementById('curves').layout.font.color]; })()";
    let light = browser.value(contrast);
    keep("light", &browser.picture());
    browser.prefer("dark");
    let dark = browser.value(contrast);
    keep("dark", &browser.picture());
    for seen in [&light, &dark] {
        assert!(seen[0].as_f64().unwrap() > 7.0, "{seen}");
    }
    assert!(dark[1].as_f64().unwrap() < 0.05 && light[1].as_f64().unwrap() > 0.9, "{light} {dark}");
    assert_ne!(light[2], dark[2], "the charts follow");

    // The button overrides the preferred colour scheme.
    browser.value("document.getElementById('theme').click()");
    browser.settle();
    assert_eq!(browser.value("document.documentElement.dataset.theme"), "light");

    browser.screen(360, 740);
    let fits = "new Promise((done) => { const look = () => [...document.querySelectorAll('.chart .main-svg')] \
         .every((chart) => chart.getBoundingClientRect().width <= 360) ? done(true) : requestAnimationFrame(look); look(); })";
    assert_eq!(browser.value(fits), true);
    let width = browser.value("document.documentElement.scrollWidth");
    assert!(width.as_u64().unwrap() <= 360, "the page scrolls sideways: {width}");
    keep("narrow", &browser.picture());
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// For every visible chart: whether it contains a drawing, and its width.
const DRAWN: &str = "[...document.querySelectorAll('.chart')].filter((chart) => chart.offsetParent !== null) \
     .map((chart) => { const drawing = chart.querySelector('.main-svg'); \
     return [chart.id, drawing !== null && chart.querySelectorAll('.points path, .js-line').length > 0, \
     drawing?.getBoundingClientRect().width ?? 0]; })";

#[test]
fn a_print_shows_every_chart_at_the_width_of_the_paper() {
    let Some(mut browser) = trained_page() else { return };
    browser.prefer("dark");
    // The page is printed before the charting library is loaded and before any scrolling.
    browser.value(
        "delete window.Plotly; document.querySelectorAll('.chart').forEach((chart) => { const fresh = chart.cloneNode(false); \
         fresh.classList.remove('js-plotly-plot'); chart.replaceWith(fresh); })",
    );
    browser.value("dispatchEvent(new Event('beforeprint'))");
    let charts = browser.value(DRAWN);
    let charts = charts.as_array().unwrap();
    assert_eq!(charts.len(), 5, "histogram, scatter, curves, sizes and tails: {charts:?}");
    let paper = 180.0 / 25.4 * 96.0;
    for chart in charts {
        assert_eq!(chart[1], true, "{chart} is blank");
        assert!(chart[2].as_f64().unwrap() <= paper + 1.0, "{chart} is wider than the paper, {paper}");
    }
    assert_eq!(browser.value("document.documentElement.dataset.theme"), "light");
    keep_as("report-print.pdf", &browser.printed());
    browser.value("dispatchEvent(new Event('afterprint'))");
    browser.settle();
    assert_eq!(browser.value("document.documentElement.dataset.theme"), "dark");
    let widths = browser.value("document.querySelector('#curves .main-svg').getBoundingClientRect().width");
    assert!(widths.as_f64().unwrap() > paper, "the screen has its width again: {widths}");
}

#[test]
fn the_headline_selects_the_level_with_the_lowest_p90_within_one_point_of_the_mean() {
    let summary = &trained_run().summary;
    let figures: Vec<_> = summary.tracks.iter().map(|track| track.test.unwrap()).collect();
    let within = (1..4).filter(|&t| figures[t].mean.mean <= figures[0].mean.mean + 0.01);
    let best = within.min_by(|&a, &b| figures[a].p90.mean.total_cmp(&figures[b].p90.mean)).unwrap_or(0);
    let page = fs::read_to_string(trained_run().path.join("report.html")).unwrap();
    assert!(page.contains("mean is at most one point above FedAvg’s"));
    assert!(page.contains(&format!("\"best\":{best},")), "track {best}");
}

#[test]
fn the_round_slider_updates_every_figure() {
    let Some(mut browser) = trained_page() else { return };
    // Not the baseline, for which there are no gains.
    browser.value("document.getElementById('theta').value = 2; document.getElementById('theta').dispatchEvent(new Event('input'))");
    browser.settle();
    let before = browser.text("#percentiles");
    browser.value("document.getElementById('frame').focus()");
    browser.press(LEFT.0, LEFT.1);
    assert_eq!(browser.text("#frame-out"), "16 rounds");
    assert!(browser.text("#gains-lead").contains("After 16 rounds"));
    assert_ne!(browser.text("#percentiles"), before);
    assert!(browser.text("#curves-lead").contains("2 seeds, and the band is one standard deviation"));
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn the_page_of_a_deployed_run_shows_bounds_and_no_device() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("deployed");
    let summary = run_folders::deployed(&run);
    printed(&["report", text(&run)]);
    let listed = printed(&["runs", text(folder.path())]);
    assert!(listed.contains("FedAvg ") && listed.contains('–'), "{listed}");
    assert!(!run.join("figures/test-error-examples.svg").exists(), "no device's examples are known");
    assert!(
        run.join("figures/test-error-p90.svg").exists() && run.join("figures/test-loss-mean.svg").exists()
    );

    let Some(mut browser) = Browser::open(&run.join("report.html")) else { return };
    let theta = "document.getElementById('theta')";
    browser.value(&format!("{theta}.value = 2; {theta}.dispatchEvent(new Event('input'))"));
    browser.settle();
    let shown = browser
        .value("[...document.querySelectorAll('[data-figure^=track]')].map((cell) => cell.textContent)");
    let told = &summary.tracks[2].held_out[0];
    assert_eq!((told.version, told.devices), (20, 20));
    let expected: Vec<String> = told.measures["error"]
        .columns()
        .iter()
        .map(|bounds| {
            let [lower, upper] =
                [bounds.lower, bounds.upper].map(|bound| format!("{:.1}", 100.0 * bound.unwrap()));
            // Bounds that are written alike are shown as one number.
            if lower == upper { lower } else { format!("{lower}–{upper}") }
        })
        .collect();
    assert_eq!(shown, json!(expected));
    assert!(browser.text("header").contains("deployed, cohorts of 20 devices"), "{}", browser.text("header"));
    assert!(browser.text("header").contains("No device sent individual results"));
    let hidden = "['gains', 'device-sizes'].map((id) => document.getElementById(id).hidden)";
    assert_eq!(browser.value(hidden), json!([true, true]));
    assert_eq!(
        browser.value("document.getElementById('curves').data.length"),
        9,
        "a band and a line per track"
    );
    assert!(browser.text("#curves-lead").contains("The band shows the bounds"));
    assert_eq!(browser.value("document.getElementById('frame').max"), "5", "0, 4, 8, 12, 16 and 20 rounds");
    browser.screen(1200, 900);
    let width = browser.value("document.documentElement.scrollWidth");
    assert!(width.as_u64().unwrap() <= 1200, "bounds are wide, and the page scrolls sideways: {width}");
    browser.screen(1280, 900);
    keep("deployed", &browser.picture());
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn a_page_of_two_thousand_devices_stays_below_eight_megabytes_and_opens() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    run_folders::made_up(&run, 2000, 100);
    printed(&["report", text(&run)]);
    let page = run.join("report.html");
    let size = fs::metadata(&page).unwrap().len();
    assert!(size < 8_000_000, "{size} bytes");
    let Some(mut browser) = Browser::open(&page) else { return };
    let interactive = browser.value("Number(document.documentElement.dataset.interactive)");
    println!("{size} bytes, interactive after {interactive} ms");
    assert!(browser.text("#gains-lead").contains("of 1000 devices"));
    let lead = browser.text("#curves-lead");
    assert!(lead.starts_with("One seed") && !lead.contains("band"), "{lead}");
    assert_eq!(browser.complaints, Vec::<String>::new());
}
