//! The HTTP interface of the server: the model API, enrolment, the live page, metrics and probes.
//!
//! | path | response |
//! |---|---|
//! | `GET /` | the live page |
//! | `GET /v1/federations` | the federations |
//! | `GET /v1/federations/NAME` | its state, as JSON |
//! | `GET /v1/federations/NAME/events` | the same, pushed (server-sent events) |
//! | `GET /v1/federations/NAME/rounds?from=T` | committed rounds |
//! | `GET /v1/federations/NAME/models` | the models: levels θ and versions |
//! | `GET /v1/federations/NAME/models/THETA` | the params of the nearest level, safetensors |
//! | `GET /v1/federations/NAME/models/THETA/card` | its model card |
//! | `GET /v1/authority` | the authority's certificate |
//! | `POST /v1/enrol` | enrols a device that has a token |
//! | `GET /metrics`, `/healthz`, `/readyz` | metrics for Prometheus, liveness and readiness probes |

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use deltafl_wire::identity::FederationName;
use tokio::sync::Notify;

use crate::authority::{Authority, Peer};
use crate::live;
use crate::live::{Live, Role};
use crate::refusal::Refusals;
use crate::store::Store;
use crate::{metrics, model_api};

mod answer;
mod enrol;
mod listen;
mod rate;

pub use answer::HttpError;
pub use listen::{HttpLimits, serve};

/// The size limit of a request body. The longest is an enrolment.
const LONGEST_BODY: usize = 16 << 10;

/// The clients that may pull models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Devices of the federation, identified by certificate.
    #[default]
    Devices,
    /// Any client that can reach the server.
    Anyone,
}

/// The enrolment of devices.
#[derive(Debug)]
pub struct Enrolment {
    /// The authority that certifies devices.
    pub authority: Arc<Authority>,
    /// The validity of certificates in days.
    pub days: u32,
    /// Notified of each enrolment, so that the roster is renewed immediately.
    pub enrolled: Arc<Notify>,
}

/// The state of the HTTP interface.
#[derive(Debug)]
pub struct HttpState {
    /// The federation.
    pub federation: FederationName,
    /// The committed rounds.
    pub store: Store,
    /// The live state.
    pub live: Live,
    /// The refusals of the gRPC service. A standby server has none.
    pub refusals: OnceLock<Arc<Refusals>>,
    /// Enrolment, if the authority's keys are on this server.
    pub enrolment: Option<Enrolment>,
    /// BLAKE3 of the data contract in hexadecimal, for model cards.
    pub contract: Option<String>,
    /// The clients that may pull models.
    pub access: Access,
    /// The number of responses by class of status.
    pub answered: ResponseCounts,
}

/// The number of responses by class of status, 1xx to 5xx.
#[derive(Debug, Default)]
pub struct ResponseCounts([AtomicU64; 5]);

impl ResponseCounts {
    /// Returns the number of responses of the class `hundreds`.
    pub fn number_of(&self, hundreds: usize) -> u64 {
        self.0.get(hundreds.wrapping_sub(1)).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    fn count(&self, status: StatusCode) {
        if let Some(count) = self.0.get(usize::from(status.as_u16() / 100).wrapping_sub(1)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The device at the other end, if it presented a certificate.
#[derive(Clone, Debug)]
pub(crate) struct Client(pub(crate) Option<Peer>);

/// The address of the other end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientAddress(pub(crate) std::net::IpAddr);

/// The OpenAPI document. A test compares it with the routes.
const OPEN_API: &str = include_str!("../openapi.json");

/// A path, its method in lower case, and its handler.
type Route = (&'static str, &'static str, MethodRouter<Arc<HttpState>>);

/// The paths of `openapi.json`.
fn interface() -> Vec<Route> {
    vec![
        ("/v1/federations", "get", get(live::federations)),
        ("/v1/federations/{federation}", "get", get(live::snapshot)),
        ("/v1/federations/{federation}/events", "get", get(live::events)),
        ("/v1/federations/{federation}/rounds", "get", get(live::rounds)),
        ("/v1/federations/{federation}/models", "get", get(model_api::models)),
        ("/v1/federations/{federation}/models/{theta}", "get", get(model_api::model)),
        ("/v1/federations/{federation}/models/{theta}/card", "get", get(model_api::card)),
        ("/v1/authority", "get", get(enrol::authority)),
        ("/v1/enrol", "post", post(enrol::enrol)),
        ("/v1/openapi.json", "get", get(async || ([(header::CONTENT_TYPE, "application/json")], OPEN_API))),
        ("/metrics", "get", get(metrics::metrics)),
        ("/healthz", "get", get(async || "alive\n")),
        ("/readyz", "get", get(ready)),
    ]
}

/// All paths.
pub fn router(state: Arc<HttpState>) -> Router {
    let page = Router::new()
        .route("/", get(live::page))
        .route("/page.css", get(live::style))
        .route("/page.js", get(live::script));
    interface()
        .into_iter()
        .fold(page, |router, (path, _, answer)| router.route(path, answer))
        .fallback(async || HttpError::NotFound)
        .layer(DefaultBodyLimit::max(LONGEST_BODY))
        .layer(middleware::from_fn_with_state(Arc::clone(&state), finish))
        .with_state(state)
}

/// Returns whether the server can accept devices: the database responds and this server leads. A
/// load balancer avoids standby servers.
async fn ready(State(state): State<Arc<HttpState>>) -> Response {
    let unready = |why: &'static str| (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    match state.store.ping().await {
        Err(_) => unready("the database does not answer\n"),
        Ok(()) if state.live.now().role == Role::Standby => unready("standby\n"),
        Ok(()) => "ready\n".into_response(),
    }
}

/// Counts the response and adds a content security policy that blocks foreign resources.
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use deltafl::evaluation::{CohortEvaluation, Measure, answer, answer_len};
    use deltafl::exchange::Evaluation;
    use deltafl::task::Task;
    use deltafl_wire::card::{Card, CardLosses, FEWEST_SHOWN, HeldOutFigures};
    use deltafl_wire::enrolment::{EnrolAnswer, EnrolRequest};
    use serde::Serialize;
    use serde_json::Value;

    use super::*;

    fn document() -> Value {
        serde_json::from_str(OPEN_API).unwrap()
    }

    #[test]
    fn the_document_has_the_paths_and_methods_of_the_routes_and_no_others() {
        let document = document();
        let paths = document["paths"].as_object().unwrap();
        let documented: BTreeSet<(String, String)> = paths
            .iter()
            .flat_map(|(path, item)| {
                item.as_object().unwrap().keys().map(|method| (path.clone(), method.clone()))
            })
            .collect();
        let routed: BTreeSet<(String, String)> =
            interface().into_iter().map(|(path, method, _)| (path.to_owned(), method.to_owned())).collect();
        assert_eq!(documented, routed);
        for (path, item) in paths {
            let named: BTreeSet<&str> =
                path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).collect();
            let (_, call) = item.as_object().unwrap().iter().next().unwrap();
            let parameters = call["parameters"].as_array().into_iter().flatten();
            let described: BTreeSet<&str> = parameters
                .filter(|parameter| parameter["in"] == "path")
                .map(|parameter| parameter["name"].as_str().unwrap())
                .collect();
            assert_eq!(named, described, "{path}");
        }
    }

    /// Compares the fields of a value with those of its schema.
    fn check(schema: &str, value: &impl Serialize) {
        let (document, value) = (document(), serde_json::to_value(value).unwrap());
        let schema = &document["components"]["schemas"][schema];
        let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
        assert_eq!(keys(&value), keys(&schema["properties"]));
        for required in schema["required"].as_array().unwrap() {
            assert!(value.get(required.as_str().unwrap()).is_some(), "{required}");
        }
    }

    #[test]
    fn the_schemas_have_the_fields_of_what_is_sent() {
        let mut sum = vec![0; answer_len(&Measure::of_task(Task::Classes))];
        for _ in 0..FEWEST_SHOWN {
            let device = Evaluation::of_primary(1.0, 0.5);
            answer(&Measure::of_task(Task::Classes), Task::Classes, &device, &mut sum);
        }
        let held_out =
            HeldOutFigures::from_evaluation(&CohortEvaluation::new(20, Task::Classes, &sum).unwrap());
        check("HeldOut", &held_out[0]);
        check("Bounds", &held_out[0].figures.mean);
        check(
            "Card",
            &Card {
                federation: "clinics".to_owned(),
                theta: 0.5.try_into().unwrap(),
                algorithm: "delta-fl".to_owned(),
                version: 20,
                seed: 1,
                blake3: String::new(),
                bytes: 1,
                eta: None,
                contract: Some(String::new()),
                losses: CardLosses::from_distribution(None),
                held_out,
            },
        );
        let (token, name) = (String::new(), "ward-1".parse().unwrap());
        let proof = String::new();
        check(
            "EnrolRequest",
            &EnrolRequest { token, name, tls_key: String::new(), signing_key: [0; 32], proof },
        );
        check(
            "EnrolAnswer",
            &EnrolAnswer {
                federation: "clinics".parse().unwrap(),
                number: 0,
                certificate: String::new(),
                authority: String::new(),
                authority_key: [0; 32],
            },
        );
        let about = live::About {
            federation: String::new(),
            experiment: String::new(),
            model: String::new(),
            open: false,
            rounds: 1,
            cohort: 1,
            tracks: Vec::new(),
        };
        check("About", &about);
    }
}
