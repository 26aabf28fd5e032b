//! The model API: a device chooses its θ and receives the model of the nearest level.
//!
//! A model trained at θ suits every mixture of devices with conformity of at least θ. Of two
//! equally near levels the server therefore returns the lower one.

use std::sync::Arc;

use axum::extract::{Extension, Json, Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use deltafl::superquantile::Conformity;
use deltafl_wire::card::{Card, CardLosses, HeldOutFigures};
use serde::Deserialize;

use crate::http::{Access, Client, HttpError, HttpState};
use crate::store::ModelRow;

/// The requested version and seed.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct ModelQuery {
    version: Option<u64>,
    seed: Option<u64>,
}

/// Returns the row with the nearest level among those of one version.
fn nearest<'a>(rows: &'a [ModelRow], theta: Conformity, wanted: &ModelQuery) -> Option<&'a ModelRow> {
    let of_run = |row: &&ModelRow| wanted.seed.is_none_or(|seed| row.seed == seed);
    let version = wanted.version.or_else(|| rows.iter().filter(of_run).map(|row| row.round).max())?;
    let distance = |row: &ModelRow| (row.label.theta.get() - theta.get()).abs();
    rows.iter().filter(of_run).filter(|row| row.round == version).min_by(|a, b| {
        distance(a).total_cmp(&distance(b)).then(a.label.theta.get().total_cmp(&b.label.theta.get()))
    })
}

/// Returns the card of a row's model.
fn card_of(state: &HttpState, row: &ModelRow) -> Card {
    let losses = row.losses.as_ref().map(|known| (known.version, &known.distribution));
    Card {
        federation: state.federation.to_string(),
        theta: row.label.theta,
        algorithm: row.label.algorithm.clone(),
        version: row.round,
        seed: row.seed,
        blake3: row.blob.to_string(),
        bytes: row.bytes,
        eta: row.eta,
        contract: state.contract.clone(),
        losses: CardLosses::from_distribution(losses),
        held_out: row.held_out.as_ref().map(HeldOutFigures::from_evaluation).unwrap_or_default(),
    }
}

/// Lists the models: levels and versions.
pub(crate) async fn models(
    State(state): State<Arc<HttpState>>,
    Extension(client): Extension<Client>,
    Path(federation): Path<String>,
) -> Result<Json<Vec<Card>>, HttpError> {
    let rows = rows(&state, &client, &federation).await?;
    Ok(Json(rows.iter().map(|row| card_of(&state, row).in_brief()).collect()))
}

/// Returns the card of the model of the nearest level.
pub(crate) async fn card(
    State(state): State<Arc<HttpState>>,
    Extension(client): Extension<Client>,
    Path((federation, theta)): Path<(String, String)>,
    Query(wanted): Query<ModelQuery>,
) -> Result<Json<Card>, HttpError> {
    let rows = rows(&state, &client, &federation).await?;
    let row = nearest(&rows, level(&theta)?, &wanted).ok_or(HttpError::NotFound)?;
    Ok(Json(card_of(&state, row)))
}

/// Returns the params of the nearest level.
pub(crate) async fn model(
    State(state): State<Arc<HttpState>>,
    Extension(client): Extension<Client>,
    Path((federation, theta)): Path<(String, String)>,
    Query(wanted): Query<ModelQuery>,
    headers: HeaderMap,
) -> Result<Response, HttpError> {
    let rows = rows(&state, &client, &federation).await?;
    let row = nearest(&rows, level(&theta)?, &wanted).ok_or(HttpError::NotFound)?;
    let etag = format!("\"{}\"", row.blob);
    let said = [
        (header::ETAG.as_str(), etag.clone()),
        (header::CACHE_CONTROL.as_str(), "private, no-cache".to_owned()),
        ("deltafl-theta", row.label.theta.to_string()),
        ("deltafl-version", row.round.to_string()),
        (header::LINK.as_str(), card_link(&federation, row)),
    ];
    if is_known(&headers, &etag) {
        return Ok((StatusCode::NOT_MODIFIED, said).into_response());
    }
    let bytes = state.store.blob(&row.blob).await?;
    Ok((said, [(header::CONTENT_TYPE, "application/octet-stream")], bytes).into_response())
}

/// Returns the link to the card of a model (RFC 8288).
fn card_link(federation: &str, row: &ModelRow) -> String {
    let ModelRow { round, seed, label, .. } = row;
    let path =
        format!("/v1/federations/{federation}/models/{}/card?version={round}&seed={seed}", label.theta);
    format!("<{path}>; rel=\"describedby\"; type=\"application/json\"")
}

/// Returns `true` if the client already has this version (RFC 9110, section 13.1.2).
fn is_known(headers: &HeaderMap, etag: &str) -> bool {
    let known = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    known
        .flat_map(|list| list.split(','))
        .map(str::trim)
        .any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag)
}

fn level(theta: &str) -> Result<Conformity, HttpError> {
    let number: f64 = theta.parse().map_err(|_| HttpError::Bad("θ is a number in (0, 1]"))?;
    Conformity::try_from(number).map_err(|_| HttpError::Bad("θ is a number in (0, 1]"))
}

async fn rows(state: &HttpState, client: &Client, federation: &str) -> Result<Vec<ModelRow>, HttpError> {
    if federation != state.federation.as_str() {
        return Err(HttpError::NotFound);
    }
    let known = client.0.as_ref().is_some_and(|peer| peer.federation == state.federation);
    if state.access == Access::Devices && !known {
        return Err(HttpError::Forbidden("models are for devices of the federation: show a certificate"));
    }
    Ok(state.store.models(&state.federation).await?)
}

#[cfg(test)]
mod tests {
    use deltafl::algorithm::TrackLabel;

    use super::*;
    use crate::store::BlobHash;

    fn rows() -> Vec<ModelRow> {
        let row = |round: u64, theta: f64| ModelRow {
            seed: 1,
            round,
            label: TrackLabel {
                name: "Δ-FL".to_owned(),
                algorithm: "delta-fl".to_owned(),
                theta: theta.try_into().unwrap(),
            },
            eta: None,
            losses: None,
            held_out: None,
            blob: BlobHash::for_bytes(&[round as u8]),
            bytes: 1,
        };
        vec![row(20, 1.0), row(20, 0.5), row(20, 0.25), row(10, 1.0), row(10, 0.1)]
    }

    #[test]
    fn the_nearest_level_of_the_newest_version_is_given_and_the_lower_of_two() {
        let rows = rows();
        let given = |theta: f64, wanted: ModelQuery| {
            nearest(&rows, theta.try_into().unwrap(), &wanted).map(|row| (row.round, row.label.theta.get()))
        };
        assert_eq!(given(0.01, ModelQuery::default()), Some((20, 0.25)));
        assert_eq!(given(0.375, ModelQuery::default()), Some((20, 0.25)));
        assert_eq!(given(0.75, ModelQuery::default()), Some((20, 0.5)));
        assert_eq!(given(0.76, ModelQuery::default()), Some((20, 1.0)));
        assert_eq!(given(0.5, ModelQuery { version: Some(10), seed: None }), Some((10, 0.1)));
        assert_eq!(given(0.5, ModelQuery { version: Some(11), seed: None }), None);
        assert_eq!(given(0.5, ModelQuery { version: None, seed: Some(2) }), None);
    }

    #[test]
    fn an_etag_is_known_in_a_list_weak_or_as_a_star() {
        let known = |text: &'static str| {
            is_known(&HeaderMap::from_iter([(header::IF_NONE_MATCH, text.parse().unwrap())]), "\"ab\"")
        };
        for text in ["\"ab\"", "\"x\", \"ab\"", "W/\"ab\"", "*"] {
            assert!(known(text), "{text}");
        }
        assert!(!known("\"abc\"") && !known("ab"));
    }
}
