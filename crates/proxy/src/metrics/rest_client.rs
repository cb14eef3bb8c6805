//! Metrics of requests to the API server, as upstream's client counts them.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use http::Method;
use watch::client::{Exchange, Observer};

use super::Metrics;

#[allow(clippy::cast_precision_loss, reason = "sizes are floats to Prometheus")]
impl Observer for Metrics {
    fn answered(&self, exchange: &Exchange<'_>) {
        let Exchange { verb, host, code, took, request_bytes, is_watch } = *exchange;
        let verb = verb.as_str();
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        self.rest_client_requests.increment([&code, host, verb]);
        // The duration of a watch says nothing about the latency of the API server.
        if !is_watch {
            self.rest_client_request_duration.observe([host, verb], took.as_secs_f64());
            self.rest_client_request_size.observe([host, verb], request_bytes as f64);
        }
    }

    fn throttled(&self, verb: &Method, host: &str, waited: Duration) {
        self.rest_client_rate_limiter_duration.observe([host, verb.as_str()], waited.as_secs_f64());
    }

    fn received(&self, verb: &Method, host: &str, bytes: u64) {
        self.rest_client_response_size.observe([host, verb.as_str()], bytes as f64);
    }
    fn message(&self, resource: &'static str) {
        let mut messages = self.watch_messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.insert(resource, Instant::now());
    }
}
