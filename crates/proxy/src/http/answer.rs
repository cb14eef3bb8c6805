//! The answers that sites have in common, with the headers of the reference.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Response, StatusCode};

use super::Answer;

pub const TEXT: &str = "text/plain; charset=utf-8";
pub const HTML: &str = "text/html; charset=utf-8";
pub const JSON: &str = "application/json";

pub fn answer(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(body.into());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

/// Text that a browser must not take for anything else.
pub fn plain(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    nosniff(answer(status, TEXT, body))
}

pub fn not_found() -> Answer {
    plain(StatusCode::NOT_FOUND, "404 page not found\n")
}

pub fn nosniff(answer: Answer) -> Answer {
    with_header(answer, X_CONTENT_TYPE_OPTIONS, "nosniff")
}

/// Leaves out what no header can hold.
pub fn with_header(mut answer: Answer, name: HeaderName, value: &str) -> Answer {
    if let Ok(value) = HeaderValue::from_str(value) {
        answer.headers_mut().insert(name, value);
    }
    answer
}
