//! Error responses as JSON with the reason.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::store::StoreError;

/// The reason for which a request failed. Internal errors are logged and not sent.
#[derive(Debug)]
#[non_exhaustive]
pub enum HttpError {
    /// The path, federation or version does not exist.
    NotFound,
    /// The request is invalid, with the reason.
    Bad(&'static str),
    /// The certificate is missing or not permitted.
    Forbidden(&'static str),
    /// The token or the name was refused.
    Refused(&'static str),
    /// Too many requests.
    TooMany,
    /// An internal error.
    Internal,
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        let (status, reason) = match self {
            Self::NotFound => (StatusCode::NOT_FOUND, "there is nothing here"),
            Self::Bad(reason) => (StatusCode::BAD_REQUEST, reason),
            Self::Forbidden(reason) => (StatusCode::FORBIDDEN, reason),
            Self::Refused(reason) => (StatusCode::CONFLICT, reason),
            Self::TooMany => (StatusCode::TOO_MANY_REQUESTS, "too many requests; retry later"),
            Self::Internal => (StatusCode::SERVICE_UNAVAILABLE, "internal error; try again"),
        };
        (status, Json(json!({ "error": reason }))).into_response()
    }
}

impl From<StoreError> for HttpError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NoFederation { .. } => Self::NotFound,
            StoreError::TokenRefused => Self::Forbidden("the token is not valid, used up or expired"),
            StoreError::DeviceExists { .. } => Self::Refused("a device of this name is enrolled already"),
            error => {
                tracing::error!(error = deltafl_wire::chain(&error), "a request failed");
                Self::Internal
            }
        }
    }
}
