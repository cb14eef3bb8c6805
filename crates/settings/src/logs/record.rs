//! Formats a `tracing` event as klog does, as text or JSON.

use std::error::Error;
use std::fmt::{self, Write as _};

use jiff::Zoned;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata};

use super::PLAIN;
use crate::go::quote;

#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) severity: Severity,
    pub(super) verbosity: u64,
    pub(super) file: &'static str,
    pub(super) line: u32,
    pub(super) message: String,
    /// Upstream logs this message with `Infof`, which the text format does not quote.
    pub(super) plain: bool,
    pub(super) fields: Vec<(&'static str, Value)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Severity {
    #[default]
    Info,
    Warning,
    Error,
}

#[derive(Debug, PartialEq)]
pub(super) enum Value {
    Text(String),
    /// Numbers, booleans, lists and maps, which both formats print as JSON.
    Json(String),
}

impl Record {
    pub(super) fn of(event: &Event<'_>) -> Self {
        let metadata = event.metadata();
        let mut record = Self {
            severity: match *metadata.level() {
                Level::ERROR => Severity::Error,
                Level::WARN => Severity::Warning,
                _ => Severity::Info,
            },
            verbosity: verbosity(event),
            file: metadata.file().unwrap_or("unknown"),
            line: metadata.line().unwrap_or_default(),
            plain: metadata.target() == PLAIN,
            ..Self::default()
        };
        event.record(&mut record);
        if record.severity == Severity::Error {
            // klog prints the error before the other fields.
            record.fields.sort_by_key(|(name, _)| *name != "err");
        }
        record
    }

    /// `I1115 18:27:24.372589    6131 server.rs:274] "Wrote configuration" file="/tmp/config"`
    pub(super) fn text(&self, time: &Zoned, pid: u32) -> String {
        let severity = match self.severity {
            Severity::Info => 'I',
            Severity::Warning => 'W',
            Severity::Error => 'E',
        };
        let mut line = format!(
            "{severity}{:02}{:02} {:02}:{:02}:{:02}.{:06} {pid:7} {}:{}] ",
            time.month(),
            time.day(),
            time.hour(),
            time.minute(),
            time.second(),
            time.subsec_nanosecond() / 1000,
            self.file.rsplit('/').next().unwrap_or(self.file),
            self.line,
        );
        line.push_str(&if self.plain { self.message.clone() } else { quote(&self.message) });
        for (name, value) in &self.fields {
            line.push(' ');
            line.push_str(name);
            line.push('=');
            match value {
                Value::Text(text) if text.contains('\n') => push_lines(&mut line, text),
                Value::Text(text) => line.push_str(&quote(text)),
                Value::Json(text) => line.push_str(text),
            }
        }
        line.push('\n');
        line
    }

    /// `{"ts":1794778339614.0957,"caller":"proxy/server.rs:72","msg":"…","v":0,"file":"…"}`
    pub(super) fn json(&self, time: &Zoned) -> String {
        // Milliseconds with a fraction, as a double like upstream's.
        #[allow(clippy::cast_precision_loss)]
        let millis = time.timestamp().as_nanosecond() as f64 / 1e6;
        let mut line = format!("{{\"ts\":{millis},\"caller\":\"{}:{}\"", caller(self.file), self.line);
        push_pair(&mut line, "msg", &json_text(&self.message));
        if self.severity != Severity::Error {
            push_pair(&mut line, "v", &self.verbosity.to_string());
        }
        for (name, value) in &self.fields {
            match value {
                Value::Text(text) => push_pair(&mut line, name, &json_text(text)),
                Value::Json(text) => push_pair(&mut line, name, text),
            }
        }
        line.push_str("}\n");
        line
    }

    fn push_json(&mut self, field: &Field, json: String) {
        if field.name() != "v" {
            self.fields.push((field.name(), Value::Json(json)));
        }
    }
}

/// The value of the field `v`, without formatting the other fields.
pub(super) fn verbosity(event: &Event<'_>) -> u64 {
    struct Verbosity(u64);
    impl Visit for Verbosity {
        fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}

        fn record_u64(&mut self, field: &Field, value: u64) {
            if field.name() == "v" {
                self.0 = value;
            }
        }

        fn record_i64(&mut self, field: &Field, value: i64) {
            self.record_u64(field, value.unsigned_abs());
        }
    }
    let mut verbosity = Verbosity(implied_verbosity(event.metadata()));
    event.record(&mut verbosity);
    verbosity.0
}

/// The verbosity of an event without the field `v`, such as one of a library.
pub(super) fn implied_verbosity(metadata: &Metadata<'_>) -> u64 {
    match *metadata.level() {
        Level::ERROR | Level::WARN | Level::INFO => 0,
        Level::DEBUG => 6,
        Level::TRACE => 8,
    }
}

/// klog's format of a multi-line value.
fn push_lines(line: &mut String, text: &str) {
    line.push_str("<\n");
    for part in text.strip_suffix('\n').unwrap_or(text).split('\n') {
        line.push('\t');
        line.push_str(part);
        line.push('\n');
    }
    line.push_str(" >");
}

/// The last directory and the file, as upstream prints them; `src` is skipped.
fn caller(file: &str) -> String {
    let mut parts = file.rsplit('/').filter(|part| *part != "src");
    match (parts.next(), parts.next()) {
        (Some(file), Some(directory)) => format!("{directory}/{file}"),
        _ => file.to_owned(),
    }
}

fn push_pair(line: &mut String, name: &str, json: &str) {
    // Writing to a string cannot fail.
    let _ = write!(line, ",{}:{json}", json_text(name));
}

fn json_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

impl Visit for Record {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        if field.name() == "message" {
            self.message = text;
        } else {
            self.fields.push((field.name(), as_json(&text).unwrap_or(Value::Text(text))));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.message);
        } else {
            self.fields.push((field.name(), Value::Text(value.to_owned())));
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.push_json(field, value.to_string());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push_json(field, value.to_string());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.push_json(field, value.to_string());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push_json(field, value.to_string());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.fields.push((field.name(), Value::Text(value.to_string())));
    }
}

/// klog prints lists and maps as JSON; their `Debug` output is JSON if they contain only strings, numbers and booleans.
fn as_json(text: &str) -> Option<Value> {
    if !text.starts_with(['[', '{']) {
        return None;
    }
    let value: serde_json::Value = serde_json::from_str(text).ok()?;
    Some(Value::Json(value.to_string()))
}

#[cfg(test)]
mod tests;
