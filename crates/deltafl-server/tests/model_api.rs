//! The HTTP side: models per level, enrolment, limits.
#![allow(clippy::unwrap_used)]

mod support;
#[path = "field/watchdog.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod watchdog;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use deltafl::metrics::Figures;
use deltafl_device::enrolment::{AskError, ModelApi, enrol};
use deltafl_server::authority::Authority;
use deltafl_server::http::{Access, HttpLimits};
use deltafl_server::live::{Fresh, Role};
use deltafl_server::refusal::Refusal;
use deltafl_wire::card::{Card, CardLosses};
use deltafl_wire::enrolment::EnrolRequest;
use deltafl_wire::identity::{DeviceKeys, Token, hex};
use deltafl_wire::params_file::read_params;
use serde_json::Value;
use support::{TestServer, TestServerOptions, host, lines as lines_of, state};

fn plain() -> TestServerOptions {
    TestServerOptions { tls: false, access: Access::Anyone, ..TestServerOptions::default() }
}

fn url(hosted: &TestServer) -> String {
    format!("https://localhost:{}", hosted.address.port())
}

/// Says something on a connection of its own; the whole answer.
async fn say(address: SocketAddr, request: String) -> String {
    let asking = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    });
    asking.await.unwrap()
}

async fn get(address: SocketAddr, path: &str, headers: &str) -> String {
    say(address, format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n")).await
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("none")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_pulls_the_model_of_the_nearest_level() {
    let _limit = watchdog::start();
    let hosted = host(TestServerOptions::default()).await;
    let device = hosted.authority.issue_device(&"phone".parse().unwrap(), 0, 1).unwrap();
    let model_api = ModelApi::with_identity(&url(&hosted), &device);
    tokio::task::spawn_blocking(move || {
        let cards = model_api.models().unwrap();
        assert_eq!(cards.len(), 6, "three levels in two versions");
        let brief = |card: &Card| !matches!(&card.losses, CardLosses::Private { histograms, .. } if !histograms.is_empty());
        assert!(cards.iter().all(brief), "a list is short");
        for (theta, nearest, track) in [(0.9, 1.0, 0), (0.45, 0.5, 1), (0.001, 0.1, 2), (0.3, 0.1, 2)] {
            let card = model_api.card(theta).unwrap();
            assert_eq!((card.theta.get(), card.version), (nearest, 2));
            let (about, params) = read_params(&model_api.params(&card).unwrap()).unwrap();
            assert_eq!(params, state(2).tracks[track].params);
            assert_eq!((about.federation.as_str(), about.label.theta), ("demo", card.theta));
        }
        let known = |theta| model_api.card(theta).unwrap().losses;
        assert!(matches!(known(1.0), CardLosses::None { .. }), "FedAvg was not asked");
        let CardLosses::Private { measured, histograms } = known(0.5) else { panic!("private mode") };
        assert_eq!((measured.version, measured.devices), (1, 38), "one round before version 2");
        let median = measured.percentiles.iter().find(|p| p.percentile == 50).unwrap().bounds;
        assert!(median.lower < median.upper && median.upper < Some(4.0), "{median:?}");
        let whole: f64 = histograms[0].bins.iter().map(|bin| bin.share).sum();
        assert!((whole - 1.0).abs() < 0.02, "{whole}");

        assert_eq!(cards.iter().map(|card| card.held_out.len()).collect::<Vec<_>>(), [2; 6], "error and loss");
        let error = |theta| model_api.card(theta).unwrap().held_out.remove(0);
        let (everyone, tail) = (error(1.0), error(0.5));
        assert_eq!((everyone.measure.name(), everyone.version, everyone.devices), ("error", 0, 38), "as last told");
        // Errors of 0.10, 0.12 … 0.84, and a tenth better.
        let open: Vec<f64> = (0..38).map(|k| 0.1 + 0.02 * f64::from(k)).collect();
        for (told, better) in [(&everyone, 1.0), (&tail, 1.1)] {
            let open: Vec<f64> = open.iter().map(|error| error / better).collect();
            let open = Figures::unweighted(&open).unwrap();
            let exact = std::iter::once(open.mean).chain(open.percentiles);
            for (value, bounds) in exact.zip(told.figures.columns()) {
                let (lower, upper) = (bounds.lower.unwrap(), bounds.upper.unwrap());
                assert!(lower - 1e-9 <= value && value <= upper + 1e-9 && upper - lower < 0.011, "{value} {bounds:?}");
            }
        }

        let old = cards.iter().find(|card| card.version == 1).unwrap();
        assert_eq!(read_params(&model_api.params(old).unwrap()).unwrap().1, state(1).tracks[0].params);
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn models_are_for_unrevoked_devices_of_the_federation() {
    let _limit = watchdog::start();
    let hosted = host(TestServerOptions::default()).await;
    let name = "phone".parse().unwrap();
    let device = hosted.authority.issue_device(&name, 0, 1).unwrap();
    let stranger =
        Authority::generate("demo".parse().unwrap(), 1).unwrap().issue_device(&name, 0, 1).unwrap();
    let url = url(&hosted);
    let model_api = ModelApi::with_identity(&url, &device);
    let foreign = ModelApi::with_identity(&url, &stranger);
    let revocations = hosted.revocations.clone();
    let fingerprint = device.fingerprint();
    tokio::task::spawn_blocking(move || {
        assert!(model_api.card(0.5).is_ok());
        assert!(matches!(foreign.card(0.5), Err(AskError::Http(_))));
        revocations.replace([fingerprint].into());
        assert!(matches!(ModelApi::with_identity(&url, &device).card(0.5), Err(AskError::Http(_))));
    })
    .await
    .unwrap();

    let hosted = host(TestServerOptions { access: Access::Devices, ..plain() }).await;
    let answer = get(hosted.address, "/v1/federations/demo/models/0.5", "").await;
    assert_eq!(status(&answer), "403", "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_the_device_holds_is_not_sent_again() {
    let _limit = watchdog::start();
    let hosted = host(plain()).await;
    let path = "/v1/federations/demo/models/0.5";
    let first = get(hosted.address, path, "").await;
    assert_eq!(status(&first), "200");
    let line = first.lines().find(|line| line.starts_with("etag: ")).unwrap().to_owned();
    let etag = line.strip_prefix("etag: ").unwrap();
    let again = get(hosted.address, path, &format!("if-none-match: {etag}\r\n")).await;
    assert_eq!(status(&again), "304", "{again}");
    assert!(again.contains(etag) && again.ends_with("\r\n\r\n"), "{again}");
    let link = first.lines().find_map(|line| line.strip_prefix("link: <")).unwrap();
    let card = get(hosted.address, link.split('>').next().unwrap(), "").await;
    assert!(card.contains(etag.trim_matches('"')) && card.contains("\"losses\""), "{card}");
    let other = get(hosted.address, path, "if-none-match: \"other\"\r\n").await;
    assert_eq!(status(&other), "200");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_cannot_hand_out_a_roster_key_of_its_own() {
    let _limit = watchdog::start();
    let hosted = host(TestServerOptions::default()).await;
    let federation = hosted.authority.federation().clone();
    // The authority that made the token signs rosters with another key than this server names.
    let pinned = Authority::generate(federation.clone(), 1).unwrap().public_key();
    let token = Token::generate(hosted.authority.fingerprint(), pinned).unwrap();
    hosted.state.store.add_token(&federation, &token.hash(), 1, Duration::from_secs(60)).await.unwrap();
    let url = url(&hosted);
    let enrolled = tokio::task::spawn_blocking(move || enrol(&url, &token, "tablet".parse().unwrap()));
    let refused = enrolled.await.unwrap();
    assert!(matches!(refused, Err(AskError::OtherRosterKey)), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_enrols_a_device_that_made_its_own_keys() {
    let _limit = watchdog::start();
    let hosted = host(TestServerOptions::default()).await;
    let token = Token::generate(hosted.authority.fingerprint(), hosted.authority.public_key()).unwrap();
    let federation = hosted.authority.federation().clone();
    hosted.state.store.add_token(&federation, &token.hash(), 1, Duration::from_secs(60)).await.unwrap();
    let elsewhere = Authority::generate(federation.clone(), 1).unwrap();
    let foreign = Token::generate(elsewhere.fingerprint(), elsewhere.public_key()).unwrap();
    let url = url(&hosted);
    let device = tokio::task::spawn_blocking(move || {
        let refused = enrol(&url, &foreign, "tablet".parse().unwrap());
        assert!(matches!(refused, Err(AskError::OtherAuthority)), "{refused:?}");
        let device = enrol(&url, &token, "tablet".parse().unwrap()).unwrap();
        assert!(ModelApi::with_identity(&url, &device).card(0.5).is_ok(), "its certificate is good");
        let refused = enrol(&url, &token, "other".parse().unwrap());
        assert!(matches!(refused, Err(AskError::Refused { status: 403, .. })), "used up: {refused:?}");
        device
    })
    .await
    .unwrap();
    assert_eq!((device.name().as_str(), device.number()), ("tablet", 0));
    assert_eq!(device.authority_key(), hosted.authority.public_key());
    let enrolled = hosted.state.store.devices(&federation).await.unwrap();
    assert_eq!(enrolled.len(), 1);
    assert_eq!(enrolled[0].signing_key, device.signing_public());
    assert_eq!(enrolled[0].fingerprint, device.fingerprint());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_enrols_no_key_that_it_does_not_have() {
    let _limit = watchdog::start();
    let hosted = host(plain()).await;
    let token = Token::generate(hosted.authority.fingerprint(), hosted.authority.public_key()).unwrap();
    let federation = hosted.authority.federation().clone();
    hosted.state.store.add_token(&federation, &token.hash(), 9, Duration::from_secs(60)).await.unwrap();
    let (own, victim) = (DeviceKeys::generate().unwrap(), DeviceKeys::generate().unwrap());
    let asked = own.request("tablet".parse().unwrap());
    let request = |signing_key: [u8; 32], name: &str| EnrolRequest {
        token: token.reveal().to_string(),
        name: name.parse().unwrap(),
        tls_key: hex(&asked.tls_key),
        signing_key,
        proof: String::new(),
    };
    let victim_key = victim.request("victim".parse().unwrap()).signing_key;
    // The key of another device, signed with the own key; and a proof for another name.
    let stolen = request(victim_key, "tablet");
    let stolen = EnrolRequest { proof: hex(&own.sign(&stolen.message())), ..stolen };
    let other = request(asked.signing_key, "other").message();
    let moved = EnrolRequest { proof: hex(&own.sign(&other)), ..request(asked.signing_key, "tablet") };
    let honest = request(asked.signing_key, "tablet");
    let honest = EnrolRequest { proof: hex(&own.sign(&honest.message())), ..honest };
    for (request, expected) in [(stolen, "400"), (moved, "400"), (honest, "200")] {
        let body = serde_json::to_string(&request).unwrap();
        let length = body.len();
        let answer = say(
            hosted.address,
            format!(
                "POST /v1/enrol HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
            ),
        );
        let answer = answer.await;
        assert_eq!(status(&answer), expected, "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_make_no_sense_are_answered() {
    let _limit = watchdog::start();
    let hosted = host(plain()).await;
    let address = hosted.address;
    for (path, expected) in [
        ("/nowhere", "404"),
        ("/v1/federations/other/models/0.5", "404"),
        ("/v1/federations/demo/models/0.5?version=99", "404"),
        ("/v1/federations/demo/models/1.4", "400"),
        ("/v1/federations/demo/models/nan", "400"),
        ("/v1/federations/demo/models/x", "400"),
        ("/v1/federations/demo/models/0.5?version=-1", "400"),
        ("/v1/federations/demo/models/..%2F..%2Fetc", "400"),
    ] {
        let answer = get(address, path, "").await;
        assert_eq!(status(&answer), expected, "{path}: {answer}");
    }
    let post = |body: String| {
        let length = body.len();
        say(
            address,
            format!(
                "POST /v1/enrol HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
            ),
        )
    };
    for body in ["", "{}", "[1]", "{\"token\":\"x\",\"name\":\"a\",\"tls_key\":\"\",\"signing_key\":\"00\"}"]
    {
        let answer = post(body.to_owned()).await;
        assert_eq!(status(&answer), "400", "{body}: {answer}");
    }
    let answer = post(format!("{{\"token\":\"{}\"", "x".repeat(100_000))).await;
    assert_ne!(status(&answer), "200", "{answer}");
    let answer = say(address, "garbage\r\n\r\n".to_owned()).await;
    assert_eq!(status(&answer), "400", "{answer}");
    assert_eq!(status(&get(address, "/healthz", "").await), "200");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_or_greedy_visitor_is_turned_away_and_others_are_served() {
    let _limit = watchdog::start();
    let limits = HttpLimits {
        patience: Duration::from_millis(300),
        per_second: 0.001,
        burst: 5.0,
        ..HttpLimits::default()
    };
    let hosted = host(TestServerOptions { limits, ..plain() }).await;
    let refusals = hosted.state.refusals.get_or_init(Default::default);
    // The head of a request that never ends: the server hangs up, and `say` returns.
    let answer = say(hosted.address, "GET / HTTP/1.1\r\nx: ".to_owned()).await;
    assert_ne!(status(&answer), "200", "{answer}");
    // A body that never ends, and one of ten gigabytes.
    let body = |length: u64, begun: usize| {
        let head = format!("POST /v1/enrol HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
        head + &"x".repeat(begun)
    };
    for (length, begun, refusal) in [(100, 10, Refusal::Silent), (10 << 30, 20_000, Refusal::TooLong)] {
        let answer = say(hosted.address, body(length, begun)).await;
        assert_eq!((status(&answer), refusals.number_of(refusal)), ("400", 1), "{answer}");
    }
    let mut answers = Vec::new();
    for _ in 0..5 {
        answers.push(status(&get(hosted.address, "/healthz", "").await).to_owned());
    }
    assert_eq!(answers, ["200", "200", "200", "429", "429"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_bring_every_round_once_also_the_first_of_a_further_seed() {
    let _limit = watchdog::start();
    let hosted = host(plain()).await;
    let (address, live) = (hosted.address, hosted.state.live.clone());
    let listening = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(b"GET /v1/federations/demo/events HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        let lines = BufReader::new(stream).lines().map_while(Result::ok);
        let mut rounds = lines.filter_map(|line| {
            let event: Value = serde_json::from_str(line.strip_prefix("data: ")?).unwrap();
            let rounds = event["rounds"].as_array().unwrap().iter();
            Some(rounds.map(|round| [&round["seed"], &round["round"]].map(|n| n.as_u64().unwrap())).collect())
        });
        let mut next = || -> Vec<[u64; 2]> { rounds.next().unwrap() };
        assert_eq!(next(), [[1, 0], [1, 1]], "the rounds before");
        for round in 0..2 {
            let mut lines = lines_of(round);
            lines.iter_mut().for_each(|line| line.record.seed = 2);
            live.committed(Fresh { lines: &lines, phases: &[], losses: &[] });
            assert_eq!(next(), [[2, round]]);
        }
        live.presence(1, 1, 1);
        assert_eq!(next(), [[0; 2]; 0], "no round is new");
    });
    listening.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_and_metrics_say_how_the_server_fares() {
    let _limit = watchdog::start();
    let hosted = host(plain()).await;
    assert_eq!(status(&get(hosted.address, "/readyz", "").await), "200");
    hosted.state.live.role(Role::Standby);
    let unready = get(hosted.address, "/readyz", "").await;
    assert!(status(&unready) == "503" && unready.ends_with("standby\n"), "{unready}");
    assert_eq!(status(&get(hosted.address, "/healthz", "").await), "200", "alive all the same");
    hosted.state.live.presence(7, 5, 9);
    let text = get(hosted.address, "/metrics", "").await;
    for line in [
        "deltafl_devices_online 7",
        "deltafl_devices_enrolled 9",
        "deltafl_rounds_total 2",
        "deltafl_dropped_total 4",
        "deltafl_secagg_bytes_total{direction=\"up\"} 6000",
        "deltafl_refused_total{reason=\"handshake\"} 0",
        "deltafl_http_answers_total{status=\"2xx\"} 2",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}
