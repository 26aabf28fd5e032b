//! The live page in a real browser.
#![allow(clippy::unwrap_used)]

mod support;

#[path = "../../deltafl-cli/tests/command/report/browser.rs"]
#[allow(dead_code, unreachable_pub)]
mod browser;
#[path = "field/watchdog.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod watchdog;

use std::path::Path;

use browser::Browser;
use deltafl::training::PrivacySpent;
use deltafl_server::http::Access;
use deltafl_server::live::{Fresh, Role};
use deltafl_server::serve::{PhasePurpose, Status};
use deltafl_server::store::PublishedLosses;
use support::{TestServerOptions, held_out, host, lines, losses, phases};

/// Waits until an element says something.
fn wait_for(browser: &mut Browser, selector: &str, text: &str) {
    let (selector, text) = (serde_json::json!(selector), serde_json::json!(text));
    browser.value(&format!(
        "new Promise((done) => {{ const look = () => document.querySelector({selector}).innerText.includes({text}) \
         ? done(true) : setTimeout(look, 20); look(); }})"
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_follows_a_federation_on_any_screen() {
    let _limit = watchdog::start();
    let hosted =
        host(TestServerOptions { tls: false, access: Access::Anyone, ..TestServerOptions::default() }).await;
    let live = hosted.state.live.clone();
    live.role(Role::Leading);
    live.presence(38, 36, 41);
    for round in 2..20 {
        let mut lines = lines(round);
        for (i, line) in lines.iter_mut().enumerate() {
            line.seconds = 1.4 + (round % 4) as f64 * 0.3;
            // The last level comes to nothing in three rounds.
            line.record.tail = if i == 2 && round < 5 { 0 } else { line.record.tail.max(1) };
            if round % 5 == 0 {
                line.record.evaluations = vec![held_out(round, i)];
            }
            line.record.privacy = Some(PrivacySpent {
                epsilon_server: Some(0.5 * (round + 1) as f64),
                epsilon_readers: 0.1 * (round + 1) as f64,
                delta: 1e-6,
                clip: 0.5,
                unclipped: 0.5,
            });
            line.record.eta = (i > 0).then(|| (2.0 + i as f64) / (1.0 + 0.1 * round as f64));
        }
        let known: Vec<_> = losses(round)
            .iter()
            .map(|known| known.as_ref().and_then(PublishedLosses::from_distribution))
            .collect();
        live.committed(Fresh { lines: &lines, phases: &phases(), losses: &known });
    }
    let mut status = Status::default();
    status.turn_to((1, 20), PhasePurpose::Losses);
    let address = hosted.address;
    let watched = live.clone();
    tokio::task::spawn_blocking(move || {
        let Some(mut browser) = Browser::visit(&format!("http://{address}/")) else { return };
        assert_eq!(browser.text("h1"), "demo");
        assert!(browser.text("#about").contains("private mode"), "{}", browser.text("#about"));
        assert_eq!(browser.text("#done"), "20 / 40");
        assert_eq!(browser.text("#online"), "38 / 41");
        assert_eq!(browser.value("document.querySelectorAll('#eta path.line').length"), 2, "FedAvg has no η");
        assert_eq!(browser.value("document.getElementById('loss-section').hidden"), true, "private mode");
        assert_eq!(
            browser.value("document.querySelectorAll('#privacy path.line').length"),
            2,
            "two observers"
        );
        let spent = browser.text("#privacy-note");
        assert!(
            spent.contains("10.0 against the server") && spent.contains("2.00 against readers"),
            "{spent}"
        );
        assert!(browser.text("#timeline").contains("38 of 40 −2"), "{}", browser.text("#timeline"));

        assert_eq!(
            browser.text("#idle"),
            "Δ-FL θ=0.1: 3 of the last 20 rounds did not change the model: the tail was empty in 3."
        );

        // Percentiles per level, within their bounds.
        assert_eq!(
            browser.value("document.querySelectorAll('#spread svg').length"),
            2,
            "FedAvg was not asked"
        );
        let spread = browser.text("#spread");
        assert!(spread.contains("Δ-FL θ=0.5") && spread.contains("median 0.7"), "{spread}");
        assert_eq!(browser.value("document.querySelectorAll('#losses path.line').length"), 2);
        let line = "document.querySelector('#losses path.line').getAttribute('d')";
        let median = browser.value(line);
        browser.value("document.querySelectorAll('#which input')[2].click()");
        assert_ne!(browser.value(line), median, "the 90th percentile is another line");

        // The error on examples held out, of every level.
        assert_eq!(browser.value("document.getElementById('error-section').hidden"), false);
        assert_eq!(browser.value("document.querySelectorAll('#error path.line').length"), 3);
        assert!(
            browser.text("#error-note").contains("90th percentile of the error"),
            "{}",
            browser.text("#error-note")
        );

        // The phases of a round, and where devices dropped out.
        browser.value("document.querySelector('#timeline summary').click()");
        let round = browser.text("#timeline details[open]");
        assert!(round.contains("masked answers") && round.contains("38 of 40"), "{round}");

        // Pushed, not asked for.
        status.enter("masked answers", 40);
        status.count_answer();
        watched.status(&status);
        wait_for(&mut browser, "#phase", "losses: masked answers, 1 of 40 devices have answered");
        status.enter("unmask", 1);
        watched.status(&status);
        wait_for(&mut browser, "#phases", "−39");
        watched.committed(Fresh { lines: &lines(20), phases: &[], losses: &[] });
        wait_for(&mut browser, "#done", "21 / 40");
        wait_for(&mut browser, "#timeline", "21");

        // The knob, with the keyboard.
        browser.value("document.getElementById('knob').focus()");
        assert!(browser.text("#choice").starts_with("FedAvg"), "{}", browser.text("#choice"));
        browser.press("Home", 36);
        assert!(browser.text("#choice").starts_with("Δ-FL θ=0.1"), "{}", browser.text("#choice"));
        assert!(browser.text("#command").contains("--theta 0.01"), "{}", browser.text("#command"));

        let pictures = Path::new(env!("CARGO_TARGET_TMPDIR"));
        for (name, width, scheme) in [
            ("wide", 1280, "light"),
            ("usual", 1200, "light"),
            ("phone", 360, "light"),
            ("dark", 1280, "dark"),
        ] {
            browser.screen(width, 900);
            browser.prefer(scheme);
            let wider = browser.value("document.documentElement.scrollWidth > window.innerWidth");
            assert_eq!(wider, false, "{name} scrolls sideways");
            std::fs::write(pictures.join(format!("live-{name}.png")), browser.picture()).unwrap();
        }
        // Rounds without percentiles are not rounds in which no cohort was asked.
        let forget = "state.rounds.forEach((round) => { round.losses = round.losses.map(() => null); })";
        browser.value(&format!("{forget}; drawSpread()"));
        let note = browser.text("#spread");
        assert!(note.contains("No percentiles: they need the losses of at least 5 devices"), "{note}");
        assert_eq!(browser.complaints, Vec::<String>::new());
    })
    .await
    .unwrap();
}
