//! Logging as klog does it, behind `tracing`.
//!
//! ```text
//!   tracing::debug!(v = 2, …) ─▶ Klog ─▶ Record ─▶ text or JSON ─▶ Streams
//! ```
//!
//! The level of an event is its severity and the field `v` its verbosity: `info` for 0 and 1, `debug` for 2 and 3,
//! `trace` above. That lets `tracing` skip what is switched off by looking at one number.

mod record;
mod stream;
mod vmodule;

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record as SpanRecord};
use tracing::subscriber::{Interest, SetGlobalDefaultError};
use tracing::{Event, Level, Metadata, Subscriber};

use record::{Record, Severity, implied_verbosity, verbosity};
use stream::Streams;

/// The target of messages that the text form does not quote.
pub const PLAIN: &str = "plain";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    #[default]
    Text,
    Json,
}

/// How to log; valid already.
#[derive(Clone, Debug)]
pub struct LogSettings {
    pub format: Format,
    pub verbosity: u32,
    /// File patterns with their verbosity; the first match counts, and only where it says more.
    pub vmodule: Vec<(String, u32)>,
    pub flush_frequency: Duration,
    /// Information to standard output, through a buffer of that many bytes.
    pub split: Option<usize>,
    /// Nothing but warnings and errors.
    pub quiet: bool,
}

impl Default for LogSettings {
    /// What holds until the configuration is known.
    fn default() -> Self {
        let (format, vmodule, split) = (Format::Text, Vec::new(), None);
        Self { format, verbosity: 0, vmodule, flush_frequency: Duration::from_secs(5), split, quiet: false }
    }
}

impl LogSettings {
    /// The highest verbosity at which something from the file is told.
    fn threshold(&self, file: Option<&str>) -> u32 {
        let own = file.and_then(|file| vmodule::verbosity(&self.vmodule, file));
        self.verbosity.max(own.unwrap_or_default())
    }
}

/// The logger of the process. Cloning gives another handle on the same one.
#[derive(Clone)]
pub struct Logs(Arc<Shared>);

struct Shared {
    settings: RwLock<LogSettings>,
    streams: Mutex<Streams>,
    zone: TimeZone,
    pid: u32,
}

impl Logs {
    /// Starts logging with the default settings; from here on every thread may log.
    pub fn install() -> Result<Self, SetGlobalDefaultError> {
        let logs = Self::to(Streams::standard(None));
        tracing::subscriber::set_global_default(Klog(logs.clone()))?;
        Ok(logs)
    }

    fn to(streams: Streams) -> Self {
        Self(Arc::new(Shared {
            settings: RwLock::default(),
            streams: Mutex::new(streams),
            zone: TimeZone::system(),
            pid: std::process::id(),
        }))
    }

    pub fn apply(&self, settings: LogSettings) -> io::Result<()> {
        if settings.split.is_some() {
            *self.streams() = Streams::standard(settings.split);
        }
        if settings.split.is_some_and(|buffer| buffer > 0) {
            self.flush_every(settings.flush_frequency)?;
        }
        *self.0.settings.write().unwrap_or_else(PoisonError::into_inner) = settings;
        tracing::callsite::rebuild_interest_cache();
        Ok(())
    }

    /// A handle on a logger that receives nothing.
    pub fn unused() -> Self {
        Self::to(Streams::standard(None))
    }

    pub fn verbosity(&self) -> u32 {
        self.0.settings.read().unwrap_or_else(PoisonError::into_inner).verbosity
    }

    /// Changes the verbosity while running.
    pub fn set_verbosity(&self, verbosity: u32) {
        self.0.settings.write().unwrap_or_else(PoisonError::into_inner).verbosity = verbosity;
        tracing::callsite::rebuild_interest_cache();
    }

    /// Writes out what is still buffered: before the process ends.
    pub fn flush(&self) {
        self.streams().flush();
    }

    fn flush_every(&self, period: Duration) -> io::Result<()> {
        let logs = self.clone();
        std::thread::Builder::new().name("log-flush".to_owned()).spawn(move || {
            loop {
                std::thread::sleep(period);
                logs.flush();
            }
        })?;
        Ok(())
    }

    // A panic elsewhere while logging leaves nothing half done that would matter here.
    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.0.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Logs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Logs").finish_non_exhaustive()
    }
}

/// The subscriber: decides per call site whether it is worth formatting, then per event.
struct Klog(Logs);

impl Subscriber for Klog {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.enabled(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let settings = self.0.0.settings.read().unwrap_or_else(PoisonError::into_inner);
        let least = if metadata.fields().field("v").is_some() {
            least_verbosity(*metadata.level())
        } else {
            implied_verbosity(metadata)
        };
        metadata.is_event() && u64::from(settings.threshold(metadata.file())) >= least
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let settings = self.0.0.settings.read().unwrap_or_else(PoisonError::into_inner);
        let most = settings.vmodule.iter().map(|(_, level)| *level).fold(settings.verbosity, u32::max);
        Some(match most {
            0..=1 => LevelFilter::INFO,
            2..=3 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        })
    }

    fn event(&self, event: &Event<'_>) {
        let shared = &self.0.0;
        let settings = shared.settings.read().unwrap_or_else(PoisonError::into_inner);
        let metadata = event.metadata();
        let always = *metadata.level() <= Level::WARN;
        if !always && settings.quiet {
            return;
        }
        if !always && verbosity(event) > u64::from(settings.threshold(metadata.file())) {
            return;
        }
        let record = Record::of(event);
        let now = Timestamp::now().to_zoned(shared.zone.clone());
        let (line, is_info) = match settings.format {
            Format::Text => (record.text(&now, shared.pid), record.severity == Severity::Info),
            Format::Json => (record.json(&now), record.severity != Severity::Error),
        };
        self.0.streams().write(&line, is_info);
    }

    // Spans are not logged, so they are not kept.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &SpanRecord<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The smallest `v` that events of the level carry, by the convention above.
fn least_verbosity(level: Level) -> u64 {
    match level {
        Level::ERROR | Level::WARN | Level::INFO => 0,
        Level::DEBUG => 2,
        Level::TRACE => 4,
    }
}

#[cfg(test)]
mod tests;
