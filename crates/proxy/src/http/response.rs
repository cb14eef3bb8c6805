//! Responses that several sites use, with upstream's headers.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Response, StatusCode};

use super::ServerResponse;

pub const TEXT: &str = "text/plain; charset=utf-8";
pub const HTML: &str = "text/html; charset=utf-8";
pub const JSON: &str = "application/json";

pub fn response(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> ServerResponse {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Plain text that a browser must not interpret as another type.
pub fn plain(status: StatusCode, body: impl Into<Bytes>) -> ServerResponse {
    nosniff(response(status, TEXT, body))
}

pub fn not_found() -> ServerResponse {
    plain(StatusCode::NOT_FOUND, "404 page not found\n")
}

pub fn nosniff(response: ServerResponse) -> ServerResponse {
    with_header(response, X_CONTENT_TYPE_OPTIONS, "nosniff")
}

/// Leaves out a value that is invalid in a header.
pub fn with_header(mut response: ServerResponse, name: HeaderName, value: &str) -> ServerResponse {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
    response
}
