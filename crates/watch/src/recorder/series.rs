//! Which notices are the same thing happening again. Decides what is to be written; writes nothing.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{Notice, Regarding};

/// What is quiet for so long is over.
const QUIET: SignedDuration = SignedDuration::from_mins(6);
/// A series that goes on is told again so often.
const REFRESH: SignedDuration = SignedDuration::from_mins(30);

#[derive(Debug)]
pub struct Series {
    instance: String,
    known: BTreeMap<Key, Known>,
}

/// What makes two notices the same. The note does not: it may tell a time or a port.
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
    /// The event as first written.
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
    /// What has changed of an event that should be there already.
    pub patch: Option<Value>,
    pub event: Value,
}

impl Series {
    pub fn new(host_name: &str) -> Self {
        Self { instance: format!("kube-proxy-{host_name}"), known: BTreeMap::new() }
    }

    /// The first occurrence is written, the second makes it a series, and later ones are only counted.
    pub fn hear(&mut self, notice: Notice, now: Timestamp) -> Option<Write> {
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

    /// Forgets what is over, and writes the final or the present count of what became a series.
    pub fn sweep(&mut self, now: Timestamp) -> Vec<Write> {
        let mut writes = Vec::new();
        self.known.retain(|key, known| {
            let is_over = now.duration_since(known.last) > QUIET;
            let is_due = is_over || now.duration_since(known.written) > REFRESH;
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

    /// Events about what has no namespace live in this one.
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
    fn an_event_says_what_the_reference_says() {
        let write = Series::new("host").hear(starting(), at(0)).unwrap();
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
    fn an_event_about_a_service_lives_in_its_namespace() {
        let service = Regarding::Service(NamespacedName::new("shop", "web"));
        let write = Series::new("host").hear(Notice { regarding: service, ..starting() }, at(0)).unwrap();
        assert_eq!(write.namespace, "shop");
        assert_eq!(
            write.event["regarding"],
            json!({"apiVersion": "v1", "kind": "Service", "name": "web", "namespace": "shop"})
        );
    }

    #[test]
    fn the_second_time_makes_a_series_and_later_ones_only_count() {
        let mut series = Series::new("host");
        let first = series.hear(starting(), at(0)).unwrap();
        let second = series.hear(Notice { note: "again".into(), ..starting() }, at(1)).unwrap();
        assert_eq!((first.patch, &second.name), (None, &first.name));
        assert_eq!(
            second.patch,
            Some(json!({"series": {"count": 2, "lastObservedTime": "2023-11-14T22:14:20.123456Z"}}))
        );
        assert_eq!(series.hear(starting(), at(2)), None);
        assert_eq!(series.sweep(at(8)), [], "six minutes of peace are not over");
        let last = series.sweep(at(9));
        assert_eq!(last[0].patch.as_ref().unwrap()["series"]["count"], 3);
        assert_eq!(last[0].event["series"]["count"], 3, "made again whole if it is gone");
        assert_eq!(series.hear(starting(), at(10)).unwrap().patch, None, "a new event");
    }

    #[test]
    fn a_series_without_end_is_told_every_half_hour() {
        let mut series = Series::new("host");
        let told: Vec<i64> = (0..65)
            .filter(|minute| {
                let heard = series.hear(starting(), at(*minute)).is_some();
                heard | !series.sweep(at(*minute)).is_empty()
            })
            .collect();
        assert_eq!(told, [0, 1, 32, 63]);
    }

    #[test]
    fn what_happened_once_is_forgotten_in_silence() {
        let mut series = Series::new("host");
        series.hear(starting(), at(0));
        assert_eq!(series.sweep(at(7)), []);
        assert!(series.known.is_empty());
    }
}
