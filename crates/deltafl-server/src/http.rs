//! The HTTP side of the server: the knob, enrolment, the live page, metrics and probes.
//!
//! | path | answers |
//! |---|---|
//! | `GET /` | the live page |
//! | `GET /v1/federations` | the federations |
//! | `GET /v1/federations/NAME` | where it stands, as JSON |
//! | `GET /v1/federations/NAME/events` | the same, pushed (server-sent events) |
//! | `GET /v1/federations/NAME/rounds?from=T` | committed rounds |
//! | `GET /v1/federations/NAME/models` | the models: levels θ and versions |
//! | `GET /v1/federations/NAME/models/THETA` | the params of the nearest level, safetensors |
//! | `GET /v1/federations/NAME/models/THETA/card` | what is known of it |
//! | `GET /v1/authority` | the authority's certificate |
//! | `POST /v1/enrol` | enrols a device that has a token |
//! | `GET /metrics`, `/healthz`, `/readyz` | for Prometheus and for whoever restarts servers |

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use deltafl_wire::identity::FederationName;
use tokio::sync::Notify;

use crate::authority::{Authority, Peer};
use crate::live;
use crate::live::{Live, Role};
use crate::refusal::Refusals;
use crate::store::Store;
use crate::{knob, metrics};

mod answer;
mod enrol;
mod listen;
mod rate;

pub use answer::Problem;
pub use listen::{HttpLimits, serve};

/// A request never has a longer body: the longest is an enrolment.
const LONGEST_BODY: usize = 16 << 10;

/// Who may pull models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Devices of the federation, by their certificate.
    #[default]
    Devices,
    /// Whoever can reach the server.
    Anyone,
}

/// What enrols devices.
#[derive(Debug)]
pub struct Enrolment {
    /// Certifies them.
    pub authority: Arc<Authority>,
    /// For how many days.
    pub days: u32,
    /// Hears of each device that enrols, so that the roster need not wait.
    pub enrolled: Arc<Notify>,
}

/// All that the HTTP side shows.
#[derive(Debug)]
pub struct HttpState {
    /// The federation.
    pub federation: FederationName,
    /// What is committed.
    pub store: Store,
    /// What is going on.
    pub live: Live,
    /// What the gRPC side refused, once there is one: a server that stands by has none.
    pub refusals: OnceLock<Arc<Refusals>>,
    /// Where the authority is at hand.
    pub enrolment: Option<Enrolment>,
    /// Who may pull models.
    pub access: Access,
    /// Requests answered, by the hundreds of their status.
    pub answered: Answered,
}

/// Requests answered, by class of status: 1xx to 5xx.
#[derive(Debug, Default)]
pub struct Answered([AtomicU64; 5]);

impl Answered {
    /// How many answers were of the class `hundreds`.
    pub fn of(&self, hundreds: usize) -> u64 {
        self.0.get(hundreds.wrapping_sub(1)).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    fn count(&self, status: StatusCode) {
        if let Some(count) = self.0.get(usize::from(status.as_u16() / 100).wrapping_sub(1)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The device at the other end, where it showed a certificate.
#[derive(Clone, Debug)]
pub(crate) struct Client(pub(crate) Option<Peer>);

/// Every path.
pub fn router(state: Arc<HttpState>) -> Router {
    Router::new()
        .route("/", get(live::page))
        .route("/page.css", get(live::style))
        .route("/page.js", get(live::script))
        .route("/v1/federations", get(live::federations))
        .route("/v1/federations/{federation}", get(live::snapshot))
        .route("/v1/federations/{federation}/events", get(live::events))
        .route("/v1/federations/{federation}/rounds", get(live::rounds))
        .route("/v1/federations/{federation}/models", get(knob::models))
        .route("/v1/federations/{federation}/models/{theta}", get(knob::model))
        .route("/v1/federations/{federation}/models/{theta}/card", get(knob::card))
        .route("/v1/authority", get(enrol::authority))
        .route("/v1/enrol", post(enrol::enrol))
        .route("/metrics", get(metrics::metrics))
        .route("/healthz", get(async || "alive\n"))
        .route("/readyz", get(ready))
        .fallback(async || Problem::NotFound)
        .layer(DefaultBodyLimit::max(LONGEST_BODY))
        .layer(middleware::from_fn_with_state(Arc::clone(&state), finish))
        .with_state(state)
}

/// Whether devices are to be sent here: whether the database answers and this server leads. A load balancer keeps away from one
/// that stands by.
async fn ready(State(state): State<Arc<HttpState>>) -> Response {
    let unready = |why: &'static str| (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    match state.store.ping().await {
        Err(_) => unready("the database does not answer\n"),
        Ok(()) if state.live.now().role == Role::Standby => unready("standby\n"),
        Ok(()) => "ready\n".into_response(),
    }
}

/// Counts the answer, and tells browsers to load nothing from elsewhere.
async fn finish(State(state): State<Arc<HttpState>>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    state.answered.count(response.status());
    let policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                  base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}
