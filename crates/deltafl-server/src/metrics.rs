//! `/metrics` in the text format of Prometheus.

use std::fmt::{Display, Write as _};
use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;

use crate::http::HttpState;
use crate::live::Role;
use crate::refusal::Refusal;

pub(crate) async fn metrics(State(state): State<Arc<HttpState>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text(&state))
}

fn text(state: &HttpState) -> String {
    let (now, totals) = (state.live.now(), state.live.totals());
    let mut out = String::new();
    let mut gauge = |name, help, value: &dyn Display| one(&mut out, "gauge", name, help, value);
    let leads = now.role != Role::Standby; // After the last round it still holds the lease.
    gauge("deltafl_leading", "1 if this server runs the rounds, or ran the last one", &u8::from(leads));
    gauge("deltafl_devices_enrolled", "Devices enrolled and not revoked", &now.enrolled);
    gauge("deltafl_devices_online", "Devices connected", &now.online);
    gauge("deltafl_devices_ready", "Devices connected that can be drawn", &now.ready);
    gauge("deltafl_rounds_done", "Rounds committed in the run", &now.committed);
    gauge("deltafl_rounds_planned", "Rounds of the run", &state.live.about().rounds);
    let mut counter = |name, help, value: &dyn Display| one(&mut out, "counter", name, help, value);
    counter("deltafl_rounds_total", "Rounds that this server committed", &totals.rounds);
    counter("deltafl_round_seconds_total", "Seconds that they took", &totals.seconds);
    counter(
        "deltafl_key_setups_total",
        "Key set-ups of secure aggregation: rounds, and attempts",
        &now.setups,
    );
    counter("deltafl_dropped_total", "Devices that vanished from cohorts", &totals.dropped);
    family(
        &mut out,
        "deltafl_secagg_bytes_total",
        "Bytes of secure aggregation",
        "direction",
        [("up", totals.bytes_up), ("down", totals.bytes_down)],
    );
    let of = |refusal| state.refusals.get().map_or(0, |refusals| refusals.number_of(refusal));
    let refused = Refusal::ALL.map(|refusal| (refusal.name(), of(refusal)));
    family(&mut out, "deltafl_refused_total", "Connections and messages turned away", "reason", refused);
    let answered = [("1xx", 1), ("2xx", 2), ("3xx", 3), ("4xx", 4), ("5xx", 5)];
    let answered = answered.map(|(class, hundreds)| (class, state.answered.number_of(hundreds)));
    family(&mut out, "deltafl_http_answers_total", "Requests answered over HTTP", "status", answered);
    out
}

fn one(out: &mut String, kind: &str, name: &str, help: &str, value: &dyn Display) {
    let written = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
    written.expect("writing to a string cannot fail");
}

fn family<const N: usize>(
    out: &mut String,
    name: &str,
    help: &str,
    label: &str,
    values: [(&'static str, u64); N],
) {
    write!(out, "# HELP {name} {help}\n# TYPE {name} counter\n").expect("writing to a string cannot fail");
    for (value, count) in values {
        writeln!(out, "{name}{{{label}=\"{value}\"}} {count}").expect("writing to a string cannot fail");
    }
}
