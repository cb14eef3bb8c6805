//! Follows one kind of objects for ever: lists it, watches it, and starts over when it can't know what it missed.
//!
//! ```text
//!                     ┌── refused ──▶ list in pages ──┐
//!   list as a stream ─┤                               ├─▶ watch ─┬─ ends ─▶ watch from where it ended
//!          ▲          └── goes on as a watch ─────────┘          │
//!          └──────────────────── 410, expired ───────────────────┘
//! ```
//!
//! A watch that worked and ends is resumed at once, within a second that spreads the nodes; so is one that is silent for
//! longer than bookmarks leave it. Waits that grow are for servers that refuse or do not answer.
//!
//! Objects are decoded one at a time into the few fields we read, and none is kept. One that can't be read is told and
//! skipped. No failure ends this; what was heard before stays in force meanwhile.

use std::cell::RefCell;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Method, Request};
use hyper::body::Incoming;
use model::event::Event;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout};

use crate::backoff::{Backoff, chance};
use crate::client::{Api, ApiError, Status, next_bytes, next_bytes_in_time};
use crate::items::Items;
use crate::resource::{Identity, Resource};

/// Whom all that is heard is told.
pub(crate) type Emit<'a> = RefCell<&'a mut dyn FnMut(Event)>;

const PAGE: &str = "500";

/// A watch that was answered and lasted for so long has worked.
const WORKING: Duration = Duration::from_secs(1);

/// Watches that worked are resumed within this time. It spreads the nodes whose watches an API server ended together.
const RESUME_SPREAD: Duration = Duration::from_secs(1);

/// A watch without a message for so long is abandoned: the connection is open, but nothing is behind it. The API server's
/// watch cache sends a bookmark every 60 s, at most 3 s late. A server that sends none has its watches resumed once in
/// this time: that is one request for each quiet watch and one new connection for all of them, or one each with HTTP/1.1.
/// With it comes a run of the exec plugin, where there is one.
const SILENCE_LIMIT: Duration = Duration::from_secs(75);

/// The longest time that a server may send us away for. The API server asks for seconds.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60);

/// No object comes near this: etcd refuses them at a few MiB.
const LONGEST_LINE: usize = 64 << 20;

/// How often the same failure is told.
const REMIND: Duration = Duration::from_secs(600);

pub(crate) struct ListWatch<'a> {
    api: &'a Api,
    resource: Resource,
    /// The version we have heard everything up to. Without one, a list comes first.
    position: Option<String>,
    /// Objects heard so far of a list that is not over.
    listing: Option<usize>,
    /// Whether there has been a list at all.
    synced: bool,
    /// Whether the server knows how to send a list as a stream, for all we know.
    streams: bool,
    /// Whether to ask for lists in pages: not if the last one took so long that its later pages were gone.
    pages: bool,
    backoff: Backoff,
    /// For answers after which a list has to come again. They say nothing about whether the server is there.
    relist_backoff: Backoff,
    /// What was last told to have failed, and when.
    trouble: Option<(String, Instant)>,
}

/// Why a turn came to nothing.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("watch ended: {0}")]
    Cut(ApiError),
    #[error("watch ended: no message for {} s", SILENCE_LIMIT.as_secs())]
    Silent,
    #[error("unable to decode the server's answer: {0}")]
    Garbled(#[from] serde_json::Error),
    #[error("an object without end")]
    TooLong,
    #[error("very short watch: watch lasted less than a second and no items received")]
    TooShort,
    #[error("the list ended before its end")]
    Unfinished,
    #[error("the list has no resourceVersion")]
    Unversioned,
}

impl<'a> ListWatch<'a> {
    pub(crate) fn new(api: &'a Api, resource: Resource) -> Self {
        Self {
            api,
            resource,
            position: None,
            listing: None,
            synced: false,
            streams: true,
            pages: true,
            backoff: Backoff::default(),
            relist_backoff: Backoff::default(),
            trouble: None,
        }
    }

    pub(crate) async fn follow(mut self, emit: &Emit<'_>) {
        let controller = self.resource.controller();
        tracing::info!("Starting {controller} controller");
        tracing::info!(controller, "Waiting for caches to sync");
        self.api.message(self.resource.name());
        loop {
            let turn = match (&self.position, self.streams) {
                (Some(_), _) | (None, true) => self.stream(emit).await,
                (None, false) => self.list(emit).await,
            };
            let pause = turn.unwrap_or_else(|failure| self.learn(&failure));
            self.api.rest(pause).await;
        }
    }

    /// One watch from beginning to end, which begins with a list if we need one. Returns how long to wait for the next.
    async fn stream(&mut self, emit: &Emit<'_>) -> Result<Duration, Failure> {
        let lasts = Duration::from_secs_f64(300.0 * (1.0 + chance()));
        let seconds = lasts.as_secs().to_string();
        let mut query =
            vec![("allowWatchBookmarks", "true"), ("timeoutSeconds", &seconds), ("watch", "true")];
        let position = self.position.clone();
        match &position {
            Some(version) => query.push(("resourceVersion", version)),
            // From the most recent state, and never from an older one than we have seen.
            None => query.extend([("resourceVersionMatch", "NotOlderThan"), ("sendInitialEvents", "true")]),
        }
        let (body, generation) = self.api.send(self.request(&query), true).await?;
        self.recovered();
        self.api.message(self.resource.name());
        if position.is_none() {
            self.begin_list(emit);
        }
        let started = Instant::now();
        let mut received = false;
        let ended = self.receive(body, emit, &mut received).await;
        let lasted = started.elapsed();
        let worked = self.listing.is_none() && (received || lasted >= WORKING);
        if worked {
            self.backoff.reset();
        }
        if let Err(Failure::Silent) = ended {
            self.api.renew_connection(generation).await;
        }
        match ended {
            Ok(()) if self.listing.is_some() => return Err(Failure::Unfinished),
            Ok(()) if !worked => return Err(Failure::TooShort),
            Ok(()) => {}
            Err(failure @ (Failure::Cut(_) | Failure::Silent)) if worked => {
                self.complain(&failure, true, Instant::now())
            }
            Err(failure) => return Err(failure),
        }
        // Each node asked for another time, so that those that are over do not come together.
        let is_over = lasted + WORKING >= lasts;
        Ok(if is_over { Duration::ZERO } else { RESUME_SPREAD.mul_f64(chance()) })
    }

    /// Applies what a watch brings until it ends. `received` becomes true with the first message.
    async fn receive(&mut self, body: Incoming, emit: &Emit<'_>, received: &mut bool) -> Result<(), Failure> {
        let silence_limit = SILENCE_LIMIT + RESUME_SPREAD.mul_f64(chance());
        let mut lines = Lines { body, buffer: BytesMut::new(), searched: 0, silence_limit };
        while let Some(line) = lines.next().await? {
            self.api.message(self.resource.name());
            self.hear(&line, emit)?;
            *received = true;
        }
        Ok(())
    }

    /// A whole list, for servers that can't send it as a stream.
    async fn list(&mut self, emit: &Emit<'_>) -> Result<Duration, Failure> {
        let mut next = String::new();
        loop {
            let mut query = Vec::new();
            if self.pages {
                query.push(("limit", PAGE));
            }
            match (next.as_str(), self.synced) {
                // The first one may be a little old, which spares the server. Later ones must not lead back in time.
                ("", false) => query.push(("resourceVersion", "0")),
                ("", true) => {}
                (next, _) => query.push(("continue", next)),
            }
            let (mut body, _) = self.api.send(self.request(&query), false).await?;
            self.recovered();
            if next.is_empty() {
                self.begin_list(emit);
            }
            let mut items = Items::default();
            let mut size = 0;
            while let Some(bytes) = next_bytes_in_time(&mut body).await? {
                size += bytes.len() as u64;
                items.push(&bytes, &mut |item| self.apply(item, emit));
            }
            self.api.received(&Method::GET, size);
            let meta = items.finish()?;
            if meta.r#continue.is_empty() {
                self.pages = true;
                self.end_list(meta.resource_version, emit)?;
                return Ok(Duration::ZERO);
            }
            next = meta.r#continue;
        }
    }

    fn request(&self, query: &[(&str, &str)]) -> Request<Vec<u8>> {
        let selectors = self.resource.selectors();
        let selectors = selectors.iter().map(|(key, value)| (*key, value.as_str()));
        let mut query: Vec<_> = query.iter().copied().chain(selectors).collect();
        query.sort_unstable();
        let query: Vec<_> = query.iter().map(|(key, value)| format!("{key}={}", escape(value))).collect();
        let mut request = Request::new(Vec::new());
        // Always an address: the path is ours, and everything else in it is escaped.
        *request.uri_mut() =
            format!("{}?{}", self.resource.path(), query.join("&")).parse().unwrap_or_default();
        request
    }

    /// One line of a watch.
    fn hear(&mut self, line: &[u8], emit: &Emit<'_>) -> Result<(), Failure> {
        #[derive(Deserialize)]
        struct Line<'a> {
            r#type: &'a str,
            #[serde(borrow)]
            object: &'a RawValue,
        }
        let Line { r#type, object } = serde_json::from_slice(line)?;
        let object = object.get();
        match r#type {
            "ADDED" | "MODIFIED" => self.apply(object.as_bytes(), emit),
            "DELETED" => {
                let gone = Identity::of(object)?;
                tell(emit, self.resource.deleted(&gone));
            }
            "BOOKMARK" => {
                let mark = Identity::of(object)?;
                if mark.ends_list() && self.listing.is_some() {
                    return self.end_list(mark.resource_version, emit);
                }
            }
            "ERROR" => {
                let status: Status = serde_json::from_str(object)?;
                return Err(ApiError::from_status(status).into());
            }
            other => tracing::warn!("type" = other, "Unknown watch event"),
        }
        // Until a list is over it is no place to go on from.
        if self.listing.is_none()
            && let Ok(Identity { resource_version, .. }) = Identity::of(object)
            && !resource_version.is_empty()
        {
            self.position = Some(resource_version);
        }
        Ok(())
    }

    fn apply(&mut self, object: &[u8], emit: &Emit<'_>) {
        if let Some(count) = &mut self.listing {
            *count += 1;
        }
        let decoded = std::str::from_utf8(object).map_err(|error| error.to_string()).and_then(|object| {
            self.resource.applied(object).map_err(|error| {
                let who = Identity::of(object).unwrap_or_default();
                format!("{}/{}: {error}", who.namespace, who.name)
            })
        });
        match decoded {
            Ok(event) => tell(emit, event),
            Err(err) => {
                tracing::error!(err, "type" = self.resource.type_name(), "Skipping an unreadable object")
            }
        }
    }

    fn begin_list(&mut self, emit: &Emit<'_>) {
        self.listing = Some(0);
        if let Some(event) = self.resource.listing() {
            tell(emit, event);
        }
    }

    fn end_list(&mut self, version: String, emit: &Emit<'_>) -> Result<(), Failure> {
        if version.is_empty() {
            return Err(Failure::Unversioned);
        }
        let count = self.listing.take().unwrap_or_default();
        self.position = Some(version);
        if let Some(event) = self.resource.listed(count) {
            tell(emit, event);
        }
        tracing::debug!(v = 2, "type" = self.resource.type_name(), count, "Caches populated");
        if !self.synced {
            self.synced = true;
            tracing::info!(controller = self.resource.controller(), "Caches are synced");
        }
        Ok(())
    }

    /// Draws the consequences of a failure, and says how long to wait, unless there is a better way to try at once.
    fn learn(&mut self, failure: &Failure) -> Duration {
        let was_list = self.position.is_none();
        self.listing = None;
        let mut at_least = Duration::ZERO;
        let mut must_relist = false;
        match failure {
            Failure::Api(ApiError::Refused { code, reason, message, retry_after }) => {
                at_least = retry_after.unwrap_or_default().min(LONGEST_RETRY_AFTER);
                match code {
                    // Nothing about streams: who we are, what we may, whether there is such a thing at all.
                    401 | 403 | 404 | 429 => {}
                    410 => must_relist = true,
                    _ if reason == "Expired" || message.contains("Too large resource version") => {
                        must_relist = true;
                    }
                    400..=499 if was_list && self.streams => {
                        let r#type = self.resource.type_name();
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
            // The same words would come again from the same place.
            Failure::Garbled(_) | Failure::TooLong => must_relist = true,
            Failure::Api(ApiError::Unanswered(_))
            | Failure::Cut(_)
            | Failure::Silent
            | Failure::TooShort
            | Failure::Unfinished
            | Failure::Unversioned => {}
        }
        let now = Instant::now();
        // A watch that breaks or grows too old is nothing to worry anyone with, as long as the next one works.
        let is_routine = match failure {
            Failure::Cut(_) | Failure::Silent => true,
            Failure::Api(_) => must_relist && !was_list,
            Failure::Garbled(_)
            | Failure::TooLong
            | Failure::TooShort
            | Failure::Unfinished
            | Failure::Unversioned => false,
        };
        self.complain(failure, is_routine, now);
        let backoff = if must_relist { &mut self.relist_backoff } else { &mut self.backoff };
        let pause = backoff.failed(now.into_std(), chance()).max(at_least);
        if must_relist {
            self.start_over(was_list);
        }
        pause
    }

    /// Tells what is new or has not been told for long.
    fn complain(&mut self, failure: &Failure, is_routine: bool, now: Instant) {
        let (err, r#type) = (failure.to_string(), self.resource.type_name());
        if is_routine {
            tracing::debug!(v = 2, err, "type" = r#type, "Watch ended, starting another");
        } else if self.trouble.as_ref().is_none_or(|(told, when)| *told != err || now - *when > REMIND) {
            tracing::error!(err, "type" = r#type, "Failed to watch");
            self.trouble = Some((err, now));
        }
    }

    /// A list comes next.
    fn start_over(&mut self, was_list: bool) {
        self.position = None;
        // The later pages of a list are gone after a while: ask for it in one piece.
        self.pages &= !was_list || self.streams;
    }

    fn recovered(&mut self) {
        if self.trouble.take().is_some() {
            tracing::info!("type" = self.resource.type_name(), "Watching again");
        }
    }
}

fn tell(emit: &Emit<'_>, event: Event) {
    (emit.borrow_mut())(event);
}

/// For the value of a parameter: everything but what needs no escape anywhere.
pub(crate) fn escape(text: &str) -> String {
    let escape = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(escape).collect()
}

/// The lines of a body as they arrive. What comes after the last line's end is no line.
struct Lines {
    body: Incoming,
    buffer: BytesMut,
    /// How far there is no end of a line.
    searched: usize,
    /// The longest that nothing may arrive.
    silence_limit: Duration,
}

impl Lines {
    async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            let unseen = self.buffer.get(self.searched..).unwrap_or_default();
            if let Some(end) = unseen.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(self.searched + end + 1);
                self.searched = 0;
                return Ok(Some(line.freeze()));
            }
            self.searched = self.buffer.len();
            if self.searched > LONGEST_LINE {
                return Err(Failure::TooLong);
            }
            let bytes = timeout(self.silence_limit, next_bytes(&mut self.body)).await;
            match bytes.map_err(|_| Failure::Silent)?.map_err(Failure::Cut)? {
                Some(bytes) => self.buffer.extend_from_slice(&bytes),
                None => return Ok(None),
            }
        }
    }
}

#[cfg(test)]
mod tests;
