//! Tells the cluster what happened to us, as objects of `events.k8s.io/v1`.
//!
//! ```text
//!   anyone ── Notice ──▶ queue ──▶ series ── what to write ──▶ API server
//! ```
//!
//! Telling never waits and never fails; at worst nobody hears of it. The same thing happening again within minutes is
//! one event that counts.

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

const QUEUE: usize = 1000;
const TRIES: usize = 12;
const PAUSE: Duration = Duration::from_secs(10);
/// How often to look for series that are over.
const SWEEP: Duration = Duration::from_secs(60);

/// Something that happened, in the words of the reference.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Notice {
    pub regarding: Regarding,
    pub severity: Severity,
    pub reason: &'static str,
    pub action: &'static str,
    pub note: String,
}

/// What it happened to.
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

/// Takes notices from any thread.
#[derive(Clone, Debug)]
pub struct Recorder {
    /// Nothing where there is no API server.
    queue: Option<Sender<(Notice, Timestamp)>>,
    unsent: Arc<Unsent>,
}

/// Delivers what the recorders took.
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

/// What is recorded before the other half is at work waits in the queue.
pub fn recorder(host_name: &str) -> (Recorder, Poster) {
    let (queue, inbox) = channel(QUEUE);
    let unsent = Arc::<Unsent>::default();
    let poster = Poster { inbox, unsent: unsent.clone(), series: Series::new(host_name) };
    (Recorder { queue: Some(queue), unsent }, poster)
}

impl Recorder {
    /// Where there is no API server, the log has to do.
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

    /// Gives what was recorded a last chance, before the process ends.
    pub fn flush(&self, patience: Duration) {
        let waiting = self.unsent.fewer.wait_timeout_while(self.unsent.lock(), patience, |count| *count > 0);
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
        let mut sweep = interval_at(Instant::now() + SWEEP, SWEEP);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut nobody_left = false;
        loop {
            tokio::select! {
                notice = self.inbox.recv(), if !nobody_left => match notice {
                    Some((notice, at)) => {
                        if let Some(write) = self.series.hear(notice, at) {
                            deliver(api, &write).await;
                        }
                        self.unsent.one_less();
                    }
                    None => nobody_left = true,
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

/// Tries for two minutes while nobody answers. What the server refuses, it would refuse again.
async fn deliver(api: &Api, write: &Write) {
    for attempt in 1..=TRIES {
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
        if attempt < TRIES {
            tokio::time::sleep(PAUSE.mul_f64(1.0 + chance() / 4.0)).await;
        }
    }
    tracing::error!(event = write.name, "Unable to write event (retry limit exceeded!)");
}

async fn attempt_once(api: &Api, write: &Write) -> Result<(), ApiError> {
    if let Some(patch) = &write.patch {
        let path = format!("{}/{}", path(write), escape(&write.name));
        let patched =
            api.ask(request(Method::PATCH, &path, "application/strategic-merge-patch+json", patch)).await;
        // An event lives for an hour. One that is gone is made again, count and all.
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
    // Always an address: what is not ours in it is escaped.
    *request.uri_mut() = path.parse().unwrap_or_default();
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    request
}
