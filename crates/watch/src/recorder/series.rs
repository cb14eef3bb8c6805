//! Groups notices that repeat into series, and decides what to write.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{Notice, Regarding};

/// A series ends after this time without another notice.
const SERIES_TIMEOUT: SignedDuration = SignedDuration::from_mins(6);
/// The count of a series that continues is written this often.
const REFRESH_INTERVAL: SignedDuration = SignedDuration::from_mins(30);

#[derive(Debug)]
pub struct Series {
    instance: String,
    known: BTreeMap<Key, Known>,
}

/// Identifies notices of the same series. Does not include the note, which may contain a time or a port.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    kind: &'static str,
    namespace: String,
    name: String,
    severity: &'static str,
    reason: &'static str,
    action: &'static str,
}

#[derive(Debug)]
struct Known {
    /// The event as it was first written.
    event: Value,
    name: String,
    count: u32,
    last: Timestamp,
    written: Timestamp,
}

/// An event to be written.
#[derive(Debug, PartialEq)]
pub struct Write {
    pub namespace: String,
    pub name: String,
    /// The changes, if the event should exist already.
    pub patch: Option<Value>,
    pub event: Value,
}

impl Series {
    pub fn new(host_name: &str) -> Self {
        Self { instance: format!("kube-proxy-{host_name}"), known: BTreeMap::new() }
    }

    /// The first notice is written, the second makes it a series, and later ones are only counted.
    pub fn add(&mut self, notice: Notice, now: Timestamp) -> Option<Write> {
        let key = Key::of(&notice);
        if let Some(known) = self.known.get_mut(&key) {
            known.count += 1;
            known.last = now;
            return (known.count == 2).then(|| known.write(&key, now));
        }
        let name = format!("{}.{:x}", key.name, now.as_nanosecond());
        let event = self.event(&key, &name, notice, now);
        let known = self.known.entry(key);
        let write =
            Write { namespace: known.key().home(), name: name.clone(), patch: None, event: event.clone() };
        known.or_insert(Known { event, name, count: 1, last: now, written: now });
        Some(write)
    }

    /// Removes series that have ended, and returns the final or current counts to write.
    pub fn sweep(&mut self, now: Timestamp) -> Vec<Write> {
        let mut writes = Vec::new();
        self.known.retain(|key, known| {
            let is_over = now.duration_since(known.last) > SERIES_TIMEOUT;
            let is_due = is_over || now.duration_since(known.written) > REFRESH_INTERVAL;
            if is_due && known.count > 1 {
                writes.push(known.write(key, now));
            }
            !is_over
        });
        writes
    }

    fn event(&self, key: &Key, name: &str, notice: Notice, now: Timestamp) -> Value {
        let mut regarding = json!({"apiVersion": "v1", "kind": key.kind, "name": key.name});
        if let (false, Some(fields)) = (key.namespace.is_empty(), regarding.as_object_mut()) {
            fields.insert("namespace".into(), key.namespace.clone().into());
        }
        json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": key.home()},
            "eventTime": micro_time(now),
            "reportingController": "kube-proxy",
            "reportingInstance": self.instance,
            "deprecatedSource": {},
            "type": key.severity,
            "reason": key.reason,
            "action": key.action,
            "regarding": regarding,
            "note": notice.note,
        })
    }
}

impl Known {
    fn write(&mut self, key: &Key, now: Timestamp) -> Write {
        self.written = now;
        let series = json!({"count": self.count, "lastObservedTime": micro_time(self.last)});
        let mut event = self.event.clone();
        if let Some(fields) = event.as_object_mut() {
            fields.insert("series".into(), series.clone());
        }
        let patch = Some(json!({"series": series}));
        Write { namespace: key.home(), name: self.name.clone(), patch, event }
    }
}

impl Key {
    fn of(notice: &Notice) -> Self {
        let (namespace, name) = match &notice.regarding {
            Regarding::Node(name) => (String::new(), name.clone()),
            Regarding::Service(service) => (service.namespace.to_string(), service.name.to_string()),
        };
        let (severity, kind) = (notice.severity.name(), notice.regarding.kind());
        Self { kind, namespace, name, severity, reason: notice.reason, action: notice.action }
    }

    /// The namespace of events about cluster-scoped objects.
    fn home(&self) -> String {
        if self.namespace.is_empty() { "default".into() } else { self.namespace.clone() }
    }
}

fn micro_time(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

#[cfg(test)]
mod tests {
    use model::names::NamespacedName;

    use super::super::Severity;
    use super::*;

    fn at(minutes: i64) -> Timestamp {
        Timestamp::from_microsecond(1_700_000_000_123_456).unwrap() + SignedDuration::from_mins(minutes)
    }

    fn starting() -> Notice {
        Notice {
            regarding: Regarding::Node("n1".into()),
            severity: Severity::Normal,
            reason: "Starting",
            action: "StartKubeProxy",
            note: String::new(),
        }
    }

    #[test]
    fn an_event_has_the_fields_of_upstreams() {
        let write = Series::new("host").add(starting(), at(0)).unwrap();
        assert_eq!(
            write.event,
            json!({
                "apiVersion": "events.k8s.io/v1",
                "kind": "Event",
                "metadata": {"name": "n1.17979cfe3d85ca00", "namespace": "default"},
                "eventTime": "2023-11-14T22:13:20.123456Z",
                "reportingController": "kube-proxy",
                "reportingInstance": "kube-proxy-host",
                "deprecatedSource": {},
                "type": "Normal",
                "reason": "Starting",
                "action": "StartKubeProxy",
                "regarding": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
                "note": "",
            })
        );
    }

    #[test]
    fn an_event_about_a_service_is_in_its_namespace() {
        let service = Regarding::Service(NamespacedName::new("shop", "web"));
        let write = Series::new("host").add(Notice { regarding: service, ..starting() }, at(0)).unwrap();
        assert_eq!(write.namespace, "shop");
        assert_eq!(
            write.event["regarding"],
            json!({"apiVersion": "v1", "kind": "Service", "name": "web", "namespace": "shop"})
        );
    }

    #[test]
    fn the_second_notice_makes_a_series_and_later_ones_are_counted() {
        let mut series = Series::new("host");
        let first = series.add(starting(), at(0)).unwrap();
        let second = series.add(Notice { note: "again".into(), ..starting() }, at(1)).unwrap();
        assert_eq!((first.patch, &second.name), (None, &first.name));
        assert_eq!(
            second.patch,
            Some(json!({"series": {"count": 2, "lastObservedTime": "2023-11-14T22:14:20.123456Z"}}))
        );
        assert_eq!(series.add(starting(), at(2)), None);
        assert_eq!(series.sweep(at(8)), [], "six minutes of peace are not over");
        let last = series.sweep(at(9));
        assert_eq!(last[0].patch.as_ref().unwrap()["series"]["count"], 3);
        assert_eq!(last[0].event["series"]["count"], 3, "made again whole if it is gone");
        assert_eq!(series.add(starting(), at(10)).unwrap().patch, None, "a new event");
    }

    #[test]
    fn a_series_without_end_is_written_every_half_hour() {
        let mut series = Series::new("host");
        let written: Vec<i64> = (0..65)
            .filter(|minute| {
                let added = series.add(starting(), at(*minute)).is_some();
                added | !series.sweep(at(*minute)).is_empty()
            })
            .collect();
        assert_eq!(written, [0, 1, 32, 63]);
    }

    #[test]
    fn a_single_notice_is_removed_without_a_write() {
        let mut series = Series::new("host");
        series.add(starting(), at(0));
        assert_eq!(series.sweep(at(7)), []);
        assert!(series.known.is_empty());
    }
}
