//! Enrolment: a device that has a token gets a certificate and a number.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::header;
use axum::response::IntoResponse;
use deltafl_secagg::identity::{DeviceId, Roster};
use serde::{Deserialize, Serialize};

use super::{House, Problem};
use crate::identity::{
    DeviceName, DeviceRequest, FederationName, Fingerprint, Token, from_bytes_hex, hexadecimal, to_pem,
};
use crate::store::NewDevice;

/// The authority's keys are not on this server.
const NOT_HERE: Problem = Problem::Forbidden("devices do not enrol here: ask whoever keeps the authority");

/// What a device sends.
#[derive(Serialize, Deserialize)]
pub struct EnrolRequest {
    /// Its token.
    pub token: String,
    /// What it wants to be called.
    pub name: DeviceName,
    /// The public half of its TLS key, an uncompressed point of P-256, in hexadecimal.
    pub tls_key: String,
    /// The public half of its Ed25519 key, in hexadecimal.
    #[serde(with = "hexadecimal")]
    pub signing_key: [u8; 32],
}

/// What it gets.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EnrolAnswer {
    /// The federation that it is a device of.
    pub federation: FederationName,
    /// Its number on the roster.
    pub number: u32,
    /// Its certificate, PEM.
    pub certificate: String,
    /// The authority's certificate, PEM.
    pub authority: String,
    /// The key that rosters are signed with, in hexadecimal.
    #[serde(with = "hexadecimal")]
    pub authority_key: [u8; 32],
}

/// The authority's certificate: what a device with a token compares with the fingerprint in it.
pub(super) async fn authority(State(house): State<Arc<House>>) -> Result<impl IntoResponse, Problem> {
    let enrolment = house.enrolment.as_ref().ok_or(NOT_HERE)?;
    let pem = to_pem(&[enrolment.authority.certificate()]);
    Ok(([(header::CONTENT_TYPE, "application/x-pem-file")], pem))
}

pub(super) async fn enrol(
    State(house): State<Arc<House>>,
    request: Result<Json<EnrolRequest>, JsonRejection>,
) -> Result<Json<EnrolAnswer>, Problem> {
    let enrolment = house.enrolment.as_ref().ok_or(NOT_HERE)?;
    let Json(request) = request.map_err(|_| Problem::Bad("not an enrolment request"))?;
    let token: Token = request.token.parse().map_err(|_| Problem::Bad("not a token"))?;
    let tls_key = from_bytes_hex(&request.tls_key).ok_or(Problem::Bad("not a TLS key"))?;
    if Roster::new().add(DeviceId(0), &request.signing_key).is_err() {
        return Err(Problem::Bad("not a sound Ed25519 key"));
    }
    let asked = DeviceRequest { name: request.name, tls_key, signing_key: request.signing_key };
    let mut certified = enrolment
        .authority
        .certify(&asked, 0, enrolment.days)
        .map_err(|_| Problem::Bad("these keys cannot be certified"))?;
    let device = NewDevice {
        name: asked.name,
        number: None,
        signing_key: asked.signing_key,
        fingerprint: Fingerprint::of(&certified.certificate),
    };
    // The certificate leaves the server only if the token holds.
    certified.number = house.store.redeem(&house.federation, &token.hash(), &device).await?;
    enrolment.newcomers.notify_one();
    tracing::info!(number = certified.number, "a device enrolled");
    Ok(Json(EnrolAnswer {
        federation: house.federation.clone(),
        number: certified.number,
        certificate: to_pem(&[&certified.certificate]),
        authority: to_pem(&[&certified.authority]),
        authority_key: certified.authority_key,
    }))
}
