//! Records events as objects of `events.k8s.io/v1`.
//!
//! ```text
//!   any thread ── Notice ──▶ queue ──▶ series ── Write ──▶ API server
//! ```
//!
//! Recording never blocks and never fails; at worst the event is dropped. An event that repeats within minutes becomes a
//! series with a count.

mod series;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request};
use jiff::Timestamp;
use model::names::NamespacedName;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::backoff::chance;
use crate::client::{Api, ApiError};
use crate::list_watch::escape;
use series::{Series, Write};

const QUEUE_CAPACITY: usize = 1000;
const ATTEMPTS: usize = 12;
const RETRY_DELAY: Duration = Duration::from_secs(10);
/// How often to finish series that have ended.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// An event, with the texts of upstream.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Notice {
    pub regarding: Regarding,
    pub severity: Severity,
    pub reason: &'static str,
    pub action: &'static str,
    pub note: String,
}

/// The object that an event is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Regarding {
    Node(String),
    Service(NamespacedName),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    Normal,
    Warning,
}

impl Severity {
    fn name(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

impl Regarding {
    fn kind(&self) -> &'static str {
        match self {
            Self::Node(_) => "Node",
            Self::Service(_) => "Service",
        }
    }
}

/// Accepts notices from any thread.
#[derive(Clone, Debug)]
pub struct Recorder {
    /// `None` if there is no API server.
    queue: Option<Sender<(Notice, Timestamp)>>,
    unsent: Arc<Unsent>,
}

/// Writes the notices of all recorders to the API server.
#[derive(Debug)]
pub struct Poster {
    inbox: Receiver<(Notice, Timestamp)>,
    unsent: Arc<Unsent>,
    series: Series,
}

#[derive(Debug, Default)]
struct Unsent {
    count: Mutex<usize>,
    fewer: Condvar,
}

/// Notices that are recorded before the poster runs wait in the queue.
pub fn recorder(host_name: &str) -> (Recorder, Poster) {
    let (queue, inbox) = channel(QUEUE_CAPACITY);
    let unsent = Arc::<Unsent>::default();
    let poster = Poster { inbox, unsent: unsent.clone(), series: Series::new(host_name) };
    (Recorder { queue: Some(queue), unsent }, poster)
}

impl Recorder {
    /// Logs notices, for proxies without an API server.
    pub fn to_log() -> Self {
        Self { queue: None, unsent: Arc::default() }
    }

    pub fn record(&self, notice: Notice) {
        let Some(queue) = &self.queue else {
            let object = match &notice.regarding {
                Regarding::Node(name) => name.clone(),
                Regarding::Service(name) => name.to_string(),
            };
            let (kind, r#type) = (notice.regarding.kind(), notice.severity.name());
            let Notice { reason, action, note, .. } = notice;
            tracing::info!(object, kind, "type" = r#type, reason, action, note, "Event occurred");
            return;
        };
        *self.unsent.lock() += 1;
        if queue.try_send((notice, Timestamp::now())).is_err() {
            self.unsent.one_less();
        }
    }

    /// Waits until all notices have been written, at most for `timeout`. For the end of the process.
    pub fn flush(&self, timeout: Duration) {
        let waiting = self.unsent.fewer.wait_timeout_while(self.unsent.lock(), timeout, |count| *count > 0);
        drop(waiting);
    }
}

impl Unsent {
    fn lock(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn one_less(&self) {
        let mut count = self.lock();
        *count = count.saturating_sub(1);
        self.fewer.notify_all();
    }
}

impl Poster {
    pub(crate) async fn post(mut self, api: &Api) {
        let mut sweep = interval_at(Instant::now() + SWEEP_INTERVAL, SWEEP_INTERVAL);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_closed = false;
        loop {
            tokio::select! {
                notice = self.inbox.recv(), if !is_closed => match notice {
                    Some((notice, at)) => {
                        if let Some(write) = self.series.add(notice, at) {
                            deliver(api, &write).await;
                        }
                        self.unsent.one_less();
                    }
                    None => is_closed = true,
                },
                _ = sweep.tick() => {
                    for write in self.series.sweep(Timestamp::now()) {
                        deliver(api, &write).await;
                    }
                }
            }
        }
    }
}

/// Retries for two minutes if the server does not answer. A rejected event is not retried.
async fn deliver(api: &Api, write: &Write) {
    for attempt in 1..=ATTEMPTS {
        match attempt_once(api, write).await {
            Ok(()) => return,
            Err(ApiError::Refused { code: 409, message, .. }) => {
                tracing::trace!(v = 5, err = message, "Server rejected event (will not retry!)");
                return;
            }
            Err(error @ ApiError::Refused { .. }) => {
                tracing::error!(err = %error, event = write.name, "Server rejected event (will not retry!)");
                return;
            }
            Err(error @ ApiError::Unanswered(_)) if attempt == 1 => {
                tracing::error!(err = %error, "Unable to write event (may retry after sleeping)");
            }
            Err(ApiError::Unanswered(_)) => {}
        }
        if attempt < ATTEMPTS {
            tokio::time::sleep(RETRY_DELAY.mul_f64(1.0 + chance() / 4.0)).await;
        }
    }
    tracing::error!(event = write.name, "Unable to write event (retry limit exceeded!)");
}

async fn attempt_once(api: &Api, write: &Write) -> Result<(), ApiError> {
    if let Some(patch) = &write.patch {
        let path = format!("{}/{}", path(write), escape(&write.name));
        let patched =
            api.ask(request(Method::PATCH, &path, "application/strategic-merge-patch+json", patch)).await;
        // Events expire after an hour. One that has expired is created again with its count.
        if patched.as_ref().err().and_then(ApiError::code) != Some(404) {
            return patched.map(drop);
        }
    }
    api.ask(request(Method::POST, &path(write), "application/json", &write.event)).await.map(drop)
}

fn path(write: &Write) -> String {
    format!("/apis/events.k8s.io/v1/namespaces/{}/events", escape(&write.namespace))
}

fn request(
    method: Method,
    path: &str,
    content_type: &'static str,
    body: &serde_json::Value,
) -> Request<Vec<u8>> {
    let mut request = Request::new(body.to_string().into_bytes());
    *request.method_mut() = method;
    // Always parses: variable parts are escaped.
    *request.uri_mut() = path.parse().unwrap_or_default();
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recording_never_blocks_and_what_exceeds_the_queue_is_dropped() {
        let (recorder, poster) = recorder("host");
        for _ in 0..QUEUE_CAPACITY + 100 {
            recorder.record(Notice {
                regarding: Regarding::Node("n1".into()),
                severity: Severity::Warning,
                reason: "FailedToStartMetricServer",
                action: "StartKubeProxy",
                note: "address already in use".into(),
            });
        }
        assert_eq!(poster.inbox.len(), QUEUE_CAPACITY);
        assert_eq!(*recorder.unsent.lock(), QUEUE_CAPACITY, "dropped notices must not hold up `flush`");
        recorder.flush(Duration::ZERO);
    }
}
