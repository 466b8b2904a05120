//! Errors as Google's interfaces answer them.

use axum::body::to_bytes;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use phalanx_launch::store::StoreError;
use serde_json::json;

/// More of an answer of the server itself is no message.
const MOST_BYTES: usize = 4096;

/// An error with its status.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    reason: &'static str,
    pub(crate) message: String,
}

impl ApiError {
    fn new(status: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            status,
            reason,
            message,
        }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "INVALID_ARGUMENT", message)
    }

    pub(super) fn precondition(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "FAILED_PRECONDITION", message)
    }

    /// What the server itself answers to a request that no route has seen, such as one that is too large.
    pub(super) async fn of(response: Response) -> Self {
        let status = response.status();
        let text = to_bytes(response.into_body(), MOST_BYTES).await;
        let text = text.unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let message = match text.trim() {
            "" => status.to_string(),
            text => format!("the request cannot be read: {text}"),
        };
        Self::new(status, "INVALID_ARGUMENT", message)
    }

    pub(super) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NOT_FOUND", message)
    }

    pub(super) fn no_method(message: impl Into<String>) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "UNIMPLEMENTED", message)
    }

    pub(super) fn exists(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "ALREADY_EXISTS", message)
    }

    pub(super) fn aborted(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "ABORTED", message)
    }

    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE", message)
    }

    pub(super) fn unauthenticated(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED", message)
    }

    pub(super) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "PERMISSION_DENIED", message)
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        let message = error.to_string();
        match error {
            StoreError::NoJob(_) => Self::not_found(message),
            StoreError::Exists(_) => Self::exists(message),
            StoreError::Refused(_) => Self::precondition(message),
            _ => Self::new(StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL", message),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = json!({"error": {
            "code": self.status.as_u16(),
            "message": self.message,
            "status": self.reason,
        }});
        let json = [(header::CONTENT_TYPE, "application/json; charset=utf-8")];
        (self.status, json, body.to_string()).into_response()
    }
}
