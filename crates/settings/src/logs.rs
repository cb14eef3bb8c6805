//! A `tracing` subscriber that logs as klog does.
//!
//! ```text
//!   tracing::debug!(v = 2, …) ─▶ Klog ─▶ Record ─▶ text or JSON ─▶ Streams
//! ```
//!
//! The level of an event is its severity, the field `v` its verbosity. Call sites use `info` for verbosities 0 and 1,
//! `debug` for 2 and 3 and `trace` above, so that `tracing` can skip disabled events by their level.

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

/// The target of messages that the text format does not quote.
pub const PLAIN: &str = "plain";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    #[default]
    Text,
    Json,
}

/// Validated settings of the logger.
#[derive(Clone, Debug)]
pub struct LogSettings {
    pub format: Format,
    pub verbosity: u32,
    /// File patterns and their verbosity. The first match applies if it is higher than `verbosity`.
    pub vmodule: Vec<(String, u32)>,
    pub flush_frequency: Duration,
    /// Write info messages to standard output, through a buffer of this many bytes.
    pub split: Option<usize>,
    /// Log warnings and errors only.
    pub quiet: bool,
}

impl Default for LogSettings {
    /// The settings until the configuration is known.
    fn default() -> Self {
        let (format, vmodule, split) = (Format::Text, Vec::new(), None);
        Self { format, verbosity: 0, vmodule, flush_frequency: Duration::from_secs(5), split, quiet: false }
    }
}

impl LogSettings {
    /// The highest verbosity that is logged for a source file.
    fn threshold(&self, file: Option<&str>) -> u32 {
        let own = file.and_then(|file| vmodule::verbosity(&self.vmodule, file));
        self.verbosity.max(own.unwrap_or_default())
    }
}

/// A handle of the logger of the process.
#[derive(Clone)]
pub struct Logs(Arc<Logger>);

struct Logger {
    settings: RwLock<LogSettings>,
    streams: Mutex<Streams>,
    zone: TimeZone,
    pid: u32,
}

impl Logs {
    /// Starts logging with the default settings.
    pub fn install() -> Result<Self, SetGlobalDefaultError> {
        let logs = Self::to(Streams::standard(None));
        tracing::subscriber::set_global_default(Klog(logs.clone()))?;
        Ok(logs)
    }

    fn to(streams: Streams) -> Self {
        Self(Arc::new(Logger {
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

    /// A logger that is not installed, for tests.
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

    /// Writes buffered messages. Must be called before the process exits.
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

    // A panic while the lock is held leaves at most a truncated line, so poisoning is ignored.
    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.0.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Logs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Logs").finish_non_exhaustive()
    }
}

/// The subscriber. It filters by call site first, then by event.
struct Klog(Logs);

impl Subscriber for Klog {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.enabled(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let settings = self.0.0.settings.read().unwrap_or_else(PoisonError::into_inner);
        let lowest = if metadata.fields().field("v").is_some() {
            lowest_verbosity(*metadata.level())
        } else {
            implied_verbosity(metadata)
        };
        metadata.is_event() && u64::from(settings.threshold(metadata.file())) >= lowest
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let settings = self.0.0.settings.read().unwrap_or_else(PoisonError::into_inner);
        let highest = settings.vmodule.iter().map(|(_, level)| *level).fold(settings.verbosity, u32::max);
        Some(match highest {
            0..=1 => LevelFilter::INFO,
            2..=3 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        })
    }

    fn event(&self, event: &Event<'_>) {
        let logger = &self.0.0;
        let settings = logger.settings.read().unwrap_or_else(PoisonError::into_inner);
        let metadata = event.metadata();
        let always = *metadata.level() <= Level::WARN;
        if !always && settings.quiet {
            return;
        }
        if !always && verbosity(event) > u64::from(settings.threshold(metadata.file())) {
            return;
        }
        let record = Record::of(event);
        let now = Timestamp::now().to_zoned(logger.zone.clone());
        let (line, is_info) = match settings.format {
            Format::Text => (record.text(&now, logger.pid), record.severity == Severity::Info),
            Format::Json => (record.json(&now), record.severity != Severity::Error),
        };
        self.0.streams().write(&line, is_info);
    }

    // Spans are not logged.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &SpanRecord<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The lowest `v` of events of this level, by the convention above.
fn lowest_verbosity(level: Level) -> u64 {
    match level {
        Level::ERROR | Level::WARN | Level::INFO => 0,
        Level::DEBUG => 2,
        Level::TRACE => 4,
    }
}

#[cfg(test)]
mod tests;
