//! Enrolment: a device with a token receives a certificate and a number.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::header;
use axum::response::IntoResponse;
use deltafl_secagg::identity::{DeviceId, KeyRoster};
use deltafl_wire::enrolment::{EnrolAnswer, EnrolRequest};
use deltafl_wire::identity::{DeviceRequest, Fingerprint, Token, from_bytes_hex, from_hex, to_pem};

use super::{HttpError, HttpState};

use crate::store::NewDevice;

/// The error if the authority's keys are not on this server.
const NOT_HERE: HttpError =
    HttpError::Forbidden("devices do not enrol here: ask the operator of the authority");

/// Returns the authority's certificate. A device compares it with the fingerprint in its token.
pub(super) async fn authority(State(state): State<Arc<HttpState>>) -> Result<impl IntoResponse, HttpError> {
    let enrolment = state.enrolment.as_ref().ok_or(NOT_HERE)?;
    let pem = to_pem(&[enrolment.authority.certificate()]);
    Ok(([(header::CONTENT_TYPE, "application/x-pem-file")], pem))
}

pub(super) async fn enrol(
    State(state): State<Arc<HttpState>>,
    request: Result<Json<EnrolRequest>, JsonRejection>,
) -> Result<Json<EnrolAnswer>, HttpError> {
    let enrolment = state.enrolment.as_ref().ok_or(NOT_HERE)?;
    let Json(request) = request.map_err(|_| HttpError::Bad("invalid enrolment request"))?;
    let token: Token = request.token.parse().map_err(|_| HttpError::Bad("invalid token"))?;
    let tls_key = from_bytes_hex(&request.tls_key).ok_or(HttpError::Bad("invalid TLS key"))?;
    let mut key = KeyRoster::new();
    if key.add(DeviceId(0), &request.signing_key).is_err() {
        return Err(HttpError::Bad("invalid Ed25519 key"));
    }
    let proof: [u8; 64] = from_hex(&request.proof).ok_or(HttpError::Bad("invalid proof"))?;
    if !key.verifies(DeviceId(0), &request.message(), &proof) {
        return Err(HttpError::Bad("the request is not signed with its Ed25519 key"));
    }
    let asked = DeviceRequest { name: request.name, tls_key, signing_key: request.signing_key };
    let mut certified = enrolment
        .authority
        .certify(&asked, 0, enrolment.days)
        .map_err(|_| HttpError::Bad("these keys cannot be certified"))?;
    let device = NewDevice {
        name: asked.name,
        number: None,
        signing_key: asked.signing_key,
        fingerprint: Fingerprint::for_certificate(&certified.certificate),
    };
    // The certificate leaves the server only if the token is valid.
    certified.number = state.store.redeem(&state.federation, &token.hash(), &device).await?;
    enrolment.enrolled.notify_one();
    tracing::info!(number = certified.number, "a device enrolled");
    Ok(Json(EnrolAnswer {
        federation: state.federation.clone(),
        number: certified.number,
        certificate: to_pem(&[&certified.certificate]),
        authority: to_pem(&[&certified.authority]),
        authority_key: certified.authority_key,
    }))
}
