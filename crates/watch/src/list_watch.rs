//! Follows one resource for as long as the process runs: lists it, watches it, and lists it again when it may have missed
//! something.
//!
//! ```text
//!                      ┌── rejected ──▶ list in pages ──┐
//!   list as a stream ──┤                                ├─▶ watch ─┬─ ends ─▶ watch from where it ended
//!          ▲           └── continues as a watch ────────┘          │
//!          └──────────────────── 410, expired ────────────────────┘
//! ```
//!
//! A watch that worked and ends is resumed within a second, which spreads the nodes; so is one that stays silent for longer
//! than the interval of bookmarks. Delays grow only while the server rejects requests or does not answer.
//!
//! Each object is decoded into the few fields that the model reads, and none is kept. An object that cannot be decoded is
//! logged and skipped. No failure ends the loop, and events that were emitted stay in force until it recovers.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use hyper::body::Incoming;
use tokio::time::{Instant, timeout};

use crate::backoff::{Backoff, chance};
use crate::client::{Answer, Api, ApiError, next_bytes, next_bytes_in_time};
use crate::event_decoder::{Emit, EventDecoder, Unusable};
use crate::frames::Frames;
use crate::items::Items;
use crate::resource::Resource;
use crate::wire::Undecodable;

const PAGE_SIZE: &str = "500";

/// A watch that the server accepted and that lasted this long has worked.
const MIN_WATCH: Duration = Duration::from_secs(1);

/// A watch that worked is resumed within this time. It spreads the nodes whose watches an API server ended together.
const RESUME_SPREAD: Duration = Duration::from_secs(1);

/// A watch without a message for this long is abandoned: its connection is open, but the server behind it is gone. The API
/// server's watch cache sends a bookmark every 60 s, at most 3 s late. With a server that sends none, each quiet watch is
/// resumed once in this time, which costs one request per watch and one new connection for all of them (one each with
/// HTTP/1.1), and one run of the exec plugin if there is one.
const SILENCE_LIMIT: Duration = Duration::from_secs(75);

/// The longest `Retry-After` that is respected. The API server asks for seconds.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// An unchanged failure is logged again after this time.
const LOG_INTERVAL: Duration = Duration::from_secs(600);

pub(crate) struct ListWatch<'a> {
    api: &'a Api,
    decoder: EventDecoder,
    /// Whether to request lists as streams; false once the server has rejected one.
    streams: bool,
    /// Whether to request lists in pages; false if the later pages of the last list expired before they were read.
    pages: bool,
    backoff: Backoff,
    /// Delays lists that the server's answer made necessary. Such an answer proves that the server is there, so it must not
    /// grow `backoff`.
    relist_backoff: Backoff,
    /// The failure that was last logged, and when.
    logged_failure: Option<(String, Instant)>,
}

/// Why a list or a watch failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("watch ended: {0}")]
    ConnectionLost(ApiError),
    #[error("watch ended: no message for {} s", SILENCE_LIMIT.as_secs())]
    Silent,
    #[error("unable to decode the server's answer: {0}")]
    Undecodable(#[from] Undecodable),
    #[error("very short watch: watch lasted less than a second and no items received")]
    TooShort,
    #[error("the list ended before its end")]
    Incomplete,
    #[error("the list has no resourceVersion")]
    NoResourceVersion,
}

impl From<Unusable> for Failure {
    fn from(unusable: Unusable) -> Self {
        match unusable {
            Unusable::Api(error) => Self::Api(error),
            Unusable::Undecodable(error) => Self::Undecodable(error),
            Unusable::NoResourceVersion => Self::NoResourceVersion,
        }
    }
}

impl<'a> ListWatch<'a> {
    pub(crate) fn new(api: &'a Api, resource: Resource) -> Self {
        Self {
            api,
            decoder: EventDecoder::new(resource),
            streams: true,
            pages: true,
            backoff: Backoff::default(),
            relist_backoff: Backoff::default(),
            logged_failure: None,
        }
    }

    pub(crate) async fn follow(mut self, emit: &Emit<'_>) {
        let controller = self.decoder.resource.controller();
        tracing::info!("Starting {controller} controller");
        tracing::info!(controller, "Waiting for caches to sync");
        self.api.message(self.decoder.resource.name());
        loop {
            let outcome = match (&self.decoder.position, self.streams) {
                (Some(_), _) | (None, true) => self.stream(emit).await,
                (None, false) => self.list(emit).await,
            };
            let delay = outcome.unwrap_or_else(|failure| self.handle(&failure));
            self.api.delay(delay).await;
        }
    }

    /// Runs one watch to its end, preceded by a list as a stream if there is no position. Returns the delay before the next.
    async fn stream(&mut self, emit: &Emit<'_>) -> Result<Duration, Failure> {
        let requested = Duration::from_secs_f64(300.0 * (1.0 + chance()));
        let seconds = requested.as_secs().to_string();
        let mut query =
            vec![("allowWatchBookmarks", "true"), ("timeoutSeconds", &seconds), ("watch", "true")];
        let position = self.decoder.position.clone();
        match &position {
            Some(version) => query.push(("resourceVersion", version)),
            // From the most recent state, so that a second list never goes back in time.
            None => query.extend([("resourceVersionMatch", "NotOlderThan"), ("sendInitialEvents", "true")]),
        }
        let answer = self.api.send(self.request(&query), true).await?;
        let generation = answer.generation;
        self.recovered();
        self.api.message(self.decoder.resource.name());
        if position.is_none() {
            self.decoder.begin_list(emit);
        }
        let started = Instant::now();
        let mut received = false;
        let ended = self.receive(answer, emit, &mut received).await;
        let lasted = started.elapsed();
        let worked = self.decoder.listing.is_none() && (received || lasted >= MIN_WATCH);
        if worked {
            self.backoff.reset();
        }
        if let Err(Failure::Silent) = ended {
            self.api.renew_connection(generation).await;
        }
        match ended {
            Ok(()) if self.decoder.listing.is_some() => return Err(Failure::Incomplete),
            Ok(()) if !worked => return Err(Failure::TooShort),
            Ok(()) => {}
            Err(failure @ (Failure::ConnectionLost(_) | Failure::Silent)) if worked => {
                self.log(&failure, true, Instant::now())
            }
            Err(failure) => return Err(failure),
        }
        // Each node requested a timeout of its own, so watches that reached it do not end together.
        let timed_out = lasted + MIN_WATCH >= requested;
        Ok(if timed_out { Duration::ZERO } else { RESUME_SPREAD.mul_f64(chance()) })
    }

    /// Applies the events of a watch until it ends. Sets `received` with the first one.
    async fn receive(
        &mut self,
        Answer { mut body, wire, .. }: Answer,
        emit: &Emit<'_>,
        received: &mut bool,
    ) -> Result<(), Failure> {
        let silence_limit = SILENCE_LIMIT + RESUME_SPREAD.mul_f64(chance());
        let mut frames = Frames::new(wire);
        while let Some(bytes) = next_chunk(&mut body, silence_limit).await? {
            frames.push(&bytes);
            while let Some(frame) = frames.next()? {
                self.api.message(self.decoder.resource.name());
                self.decoder.receive(&wire.event(&frame)?, emit)?;
                *received = true;
            }
        }
        Ok(())
    }

    /// Requests a list in pages, from a server that does not send lists as streams.
    async fn list(&mut self, emit: &Emit<'_>) -> Result<Duration, Failure> {
        let mut next = String::new();
        loop {
            let mut query = Vec::new();
            if self.pages {
                query.push(("limit", PAGE_SIZE));
            }
            match (next.as_str(), self.decoder.synced) {
                // The first list may come from the server's cache. Later ones must not go back in time.
                ("", false) => query.push(("resourceVersion", "0")),
                ("", true) => {}
                (next, _) => query.push(("continue", next)),
            }
            let Answer { mut body, wire, .. } = self.api.send(self.request(&query), false).await?;
            self.recovered();
            if next.is_empty() {
                self.decoder.begin_list(emit);
            }
            let mut items = Items::new(wire);
            let mut size = 0;
            while let Some(bytes) = next_bytes_in_time(&mut body).await? {
                size += bytes.len() as u64;
                items.push(&bytes, &mut |item| self.decoder.apply(item, emit))?;
            }
            self.api.received(&Method::GET, size);
            let meta = items.finish()?;
            if meta.r#continue.is_empty() {
                self.pages = true;
                self.decoder.end_list(meta.resource_version, emit)?;
                return Ok(Duration::ZERO);
            }
            next = meta.r#continue;
        }
    }

    fn request(&self, query: &[(&str, &str)]) -> Request<Vec<u8>> {
        let selectors = self.decoder.resource.selectors();
        let selectors = selectors.iter().map(|(key, value)| (*key, value.as_str()));
        let mut query: Vec<_> = query.iter().copied().chain(selectors).collect();
        query.sort_unstable();
        let query: Vec<_> = query.iter().map(|(key, value)| format!("{key}={}", escape(value))).collect();
        let mut request = Request::new(Vec::new());
        // Always parses: the path is a constant, and all parameters are escaped.
        *request.uri_mut() =
            format!("{}?{}", self.decoder.resource.path(), query.join("&")).parse().unwrap_or_default();
        request
    }

    /// Logs the failure, decides whether a list has to come next, and returns the delay before the next attempt.
    fn handle(&mut self, failure: &Failure) -> Duration {
        let was_list = self.decoder.position.is_none();
        self.decoder.listing = None;
        let mut min_delay = Duration::ZERO;
        let mut must_relist = false;
        match failure {
            Failure::Api(ApiError::Refused { code, reason, message, retry_after }) => {
                min_delay = retry_after.unwrap_or_default().min(MAX_RETRY_AFTER);
                match code {
                    // Authentication, authorization, a missing resource, overload: none says that streams are unsupported.
                    401 | 403 | 404 | 429 => {}
                    410 => must_relist = true,
                    _ if reason == "Expired" || message.contains("Too large resource version") => {
                        must_relist = true;
                    }
                    400..=499 if was_list && self.streams => {
                        let r#type = self.decoder.resource.type_name();
                        tracing::debug!(
                            v = 2,
                            err = message,
                            "type" = r#type,
                            "Falling back to regular list"
                        );
                        self.streams = false;
                        return Duration::ZERO;
                    }
                    _ => {}
                }
            }
            // A watch from the same position would receive the same bytes.
            Failure::Undecodable(_) => must_relist = true,
            Failure::Api(ApiError::Unanswered(_))
            | Failure::ConnectionLost(_)
            | Failure::Silent
            | Failure::TooShort
            | Failure::Incomplete
            | Failure::NoResourceVersion => {}
        }
        let now = Instant::now();
        // Watches break and expire in normal operation: no error as long as the next one works.
        let is_routine = match failure {
            Failure::ConnectionLost(_) | Failure::Silent => true,
            Failure::Api(_) => must_relist && !was_list,
            Failure::Undecodable(_)
            | Failure::TooShort
            | Failure::Incomplete
            | Failure::NoResourceVersion => false,
        };
        self.log(failure, is_routine, now);
        let backoff = if must_relist { &mut self.relist_backoff } else { &mut self.backoff };
        let delay = backoff.failed(now.into_std(), chance()).max(min_delay);
        if must_relist {
            self.start_over(was_list);
        }
        delay
    }

    /// Logs a failure as an error if it differs from the last one or was last logged long ago.
    fn log(&mut self, failure: &Failure, is_routine: bool, now: Instant) {
        let (err, r#type) = (failure.to_string(), self.decoder.resource.type_name());
        if is_routine {
            tracing::debug!(v = 2, err, "type" = r#type, "Watch ended, starting another");
        } else if self
            .logged_failure
            .as_ref()
            .is_none_or(|(last, when)| *last != err || now - *when > LOG_INTERVAL)
        {
            tracing::error!(err, "type" = r#type, "Failed to watch");
            self.logged_failure = Some((err, now));
        }
    }

    /// Makes a list come next.
    fn start_over(&mut self, was_list: bool) {
        self.decoder.position = None;
        // The later pages of a list expire after a while: request the next one as a whole.
        self.pages &= !was_list || self.streams;
    }

    fn recovered(&mut self) {
        if self.logged_failure.take().is_some() {
            tracing::info!("type" = self.decoder.resource.type_name(), "Watching again");
        }
    }
}

/// The next bytes of a watch, or `None` at its end.
async fn next_chunk(body: &mut Incoming, silence_limit: Duration) -> Result<Option<Bytes>, Failure> {
    let bytes = timeout(silence_limit, next_bytes(body)).await;
    bytes.map_err(|_| Failure::Silent)?.map_err(Failure::ConnectionLost)
}

/// Percent-encodes the value of a query parameter.
pub(crate) fn escape(text: &str) -> String {
    let escape = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(escape).collect()
}

#[cfg(test)]
mod tests;
