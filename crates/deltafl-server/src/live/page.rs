//! The page and the JSON that it displays.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::header;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt as _};

use super::held_out::PublicRound;
use super::{About, Now, RoundView};
use crate::http::{Access, ClientAddress, HttpError, HttpState};
use crate::quota::AddressQuota;

/// The maximum number of concurrent event streams.
const LISTENERS: usize = 200;
/// The maximum number of concurrent event streams of one address, or of one /64 of IPv6.
const LISTENERS_PER_ADDRESS: usize = 50;
/// The maximum number of rounds in one response.
const MOST_ROUNDS: u32 = 1000;

/// The state of a federation.
#[derive(Serialize)]
pub(crate) struct Snapshot {
    about: About,
    now: Now,
    rounds: Vec<RoundView>,
    /// Whether models are public or restricted to devices.
    public: bool,
}

pub(crate) async fn page() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], include_str!("page.html"))
}

pub(crate) async fn style() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/css; charset=utf-8")], include_str!("page.css"))
}

pub(crate) async fn script() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/javascript; charset=utf-8")], include_str!("page.js"))
}

/// The federations of this server.
pub(crate) async fn federations(State(state): State<Arc<HttpState>>) -> Json<Vec<About>> {
    Json(vec![state.live.about().clone()])
}

pub(crate) async fn snapshot(
    State(state): State<Arc<HttpState>>,
    Path(federation): Path<String>,
) -> Result<Json<Snapshot>, HttpError> {
    known(&state, &federation)?;
    let live = &state.live;
    let public = state.access == Access::Anyone;
    Ok(Json(Snapshot { about: live.about().clone(), now: live.now(), rounds: live.rounds(), public }))
}

/// The first round and the seed of a request.
#[derive(Debug, Deserialize)]
pub(crate) struct From {
    #[serde(default)]
    from: u64,
    #[serde(default)]
    seed: Option<u64>,
}

pub(crate) async fn rounds(
    State(state): State<Arc<HttpState>>,
    Path(federation): Path<String>,
    Query(wanted): Query<From>,
) -> Result<Json<Vec<PublicRound>>, HttpError> {
    known(&state, &federation)?;
    let seed = match wanted.seed {
        Some(seed) => seed,
        None => first_seed(&state).await?,
    };
    let rounds = state.store.rounds(&state.federation, seed, wanted.from, MOST_ROUNDS).await?;
    Ok(Json(rounds.into_iter().map(PublicRound::from_committed).collect()))
}

async fn first_seed(state: &HttpState) -> Result<u64, HttpError> {
    let experiment = state.store.federation(&state.federation).await?.experiment;
    experiment.and_then(|experiment| experiment.seeds().iter().next().copied()).ok_or(HttpError::NotFound)
}

/// Sends the progress of the current round whenever it changes, and the committed rounds: first all
/// that the page shows, because a client that connects again has missed some, and then new ones.
pub(crate) async fn events(
    State(state): State<Arc<HttpState>>,
    Path(federation): Path<String>,
    Extension(ClientAddress(address)): Extension<ClientAddress>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, HttpError> {
    static LISTENING: AtomicUsize = AtomicUsize::new(0);
    static QUOTA: LazyLock<Arc<AddressQuota>> = LazyLock::new(|| AddressQuota::new(LISTENERS_PER_ADDRESS));
    known(&state, &federation)?;
    let counted = QUOTA.take(address).ok_or(HttpError::TooMany)?;
    if LISTENING.fetch_add(1, Ordering::Relaxed) >= LISTENERS {
        LISTENING.fetch_sub(1, Ordering::Relaxed);
        return Err(HttpError::TooMany);
    }
    let leaving = (Leaving(&LISTENING), counted);
    let live = state.live.clone();
    let mut sent = None;
    let changes = WatchStream::new(live.watch()).map(move |now| {
        let _here = &leaving;
        let rounds = live.rounds_after(sent);
        sent = rounds.last().map(RoundView::key).or(sent);
        Ok(Event::default().json_data(Change { now, rounds }).unwrap_or_default())
    });
    Ok(Sse::new(changes).keep_alive(KeepAlive::new().interval(Duration::from_secs(15))))
}

#[derive(Serialize)]
struct Change {
    now: Now,
    rounds: Vec<RoundView>,
}

/// Frees the slot of an event stream when it ends.
struct Leaving(&'static AtomicUsize);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn known(state: &HttpState, federation: &str) -> Result<(), HttpError> {
    if federation == state.federation.as_str() { Ok(()) } else { Err(HttpError::NotFound) }
}
