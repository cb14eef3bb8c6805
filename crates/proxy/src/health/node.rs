//! `/healthz` and `/livez`: whether rules keep up with the cluster, and whether this node is eligible for traffic.
//!
//! ```text
//!   families ── queued, synced ───┐
//!                                 ├─▶ State ── now ──▶ Report ─▶ JSON
//!   this Node ── eligible ────────┘
//! ```
//!
//! A family is unhealthy when a sync was due and none has succeeded for twice the sync period. A family without changes is
//! healthy. This is upstream's rule, and all that `/livez` checks.
//!
//! `/healthz` also fails until every family has completed its first sync. Upstream's succeeds from the start, so that a rolling
//! update continues although the rules of a node were never written.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::StatusCode;
use jiff::Timestamp;
use model::address::Family;
use model::api;
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::http::listen::ListenError;
use crate::http::response::{JSON, nosniff, not_found, response};
use crate::http::{Http, OnBindFailure, Reply, ServerRequest, ServerResponse, Site};
use crate::metrics::Metrics;

/// The taint of a node that the cluster autoscaler is about to delete.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// Serves `/healthz` and `/livez`. Returns an error only if `hard_fail` is set and the port cannot be bound.
pub fn serve(
    http: &Http,
    address: SocketAddr,
    hard_fail: bool,
    health: Arc<NodeHealth>,
) -> Result<(), ListenError> {
    let log = |error: &ListenError| {
        let address = error.address;
        let error = format!("failed to start proxy healthz on {address}: {error}");
        tracing::error!(err = error, "Healthz server failed");
    };
    tracing::debug!(v = 5, %address, "Starting healthz HTTP server");
    http.serve_forever(address, health, OnBindFailure { is_fatal: hard_fail, log })
}

/// The health of this node's proxy. Any thread may update and read it.
#[derive(Debug)]
pub struct NodeHealth {
    state: Mutex<State>,
    metrics: Arc<Metrics>,
}

impl NodeHealth {
    /// The health of a proxy that is to serve these families.
    pub fn new(
        sync_period: Duration,
        families: impl IntoIterator<Item = Family>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { state: Mutex::new(State::new(sync_period * 2, families)), metrics }
    }

    /// The family's sync loop begins.
    pub fn started(&self, family: Family) {
        self.state().started(family, Moment::now());
    }

    /// A sync is due from now on, unless one was due before.
    pub fn queued(&self, family: Family) {
        self.state().queued(family, Moment::now());
    }

    /// A sync succeeded.
    pub fn synced(&self, family: Family) {
        self.state().synced(family, Moment::now());
    }

    /// Applies this node's object. When it is deleted, the last state remains.
    pub fn node_applied(&self, node: &api::Node) {
        self.state().node_is_eligible = is_eligible(node);
    }

    /// Whether no sync is overdue, regardless of the node's eligibility.
    pub fn is_healthy(&self) -> bool {
        self.state().is_healthy(Moment::now())
    }

    // No update leaves the state inconsistent, even if it panics.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Site for NodeHealth {
    fn reply(&self, request: &ServerRequest) -> Reply {
        let (probe, counter) = match request.uri().path() {
            "/healthz" => (Probe::Healthz, &self.metrics.proxy_healthz),
            "/livez" => (Probe::Livez, &self.metrics.proxy_livez),
            _ => return Reply::Now(not_found()),
        };
        let response = self.state().report(probe, Moment::now()).response();
        counter.increment([response.status().as_str()]);
        Reply::Now(response)
    }
}

/// A point in time on the monotonic clock and on the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Moment {
    instant: Instant,
    time: Timestamp,
}

impl Moment {
    fn now() -> Self {
        Self { instant: Instant::now(), time: Timestamp::now() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probe {
    Healthz,
    Livez,
}

#[derive(Debug)]
struct State {
    /// A sync that has been due for this long makes its family unhealthy.
    sync_timeout: Duration,
    /// Every family that the proxy is to serve.
    families: BTreeMap<Family, FamilyState>,
    node_is_eligible: bool,
}

#[derive(Debug, Default)]
struct FamilyState {
    /// When the sync loop began, or the last sync succeeded.
    updated: Option<Timestamp>,
    /// Since when a sync is due.
    pending: Option<Instant>,
    /// Whether a sync has ever succeeded.
    has_synced: bool,
}

impl State {
    fn new(sync_timeout: Duration, families: impl IntoIterator<Item = Family>) -> Self {
        let families = families.into_iter().map(|family| (family, FamilyState::default())).collect();
        Self { sync_timeout, families, node_is_eligible: false }
    }

    fn started(&mut self, family: Family, now: Moment) {
        let has_synced = false;
        self.families.insert(family, FamilyState { updated: Some(now.time), pending: None, has_synced });
    }

    fn queued(&mut self, family: Family, now: Moment) {
        self.families.entry(family).or_default().pending.get_or_insert(now.instant);
    }

    fn synced(&mut self, family: Family, now: Moment) {
        let has_synced = true;
        self.families.insert(family, FamilyState { updated: Some(now.time), pending: None, has_synced });
    }

    /// Whether no sync is overdue, which is upstream's definition.
    fn is_healthy(&self, now: Moment) -> bool {
        self.families.values().all(|family| !family.is_overdue(self.sync_timeout, now))
    }

    fn report(&self, probe: Probe, now: Moment) -> Report {
        let is_healthy = |state: &FamilyState| {
            let is_ready = match probe {
                Probe::Healthz => state.has_synced,
                Probe::Livez => true,
            };
            is_ready && !state.is_overdue(self.sync_timeout, now)
        };
        let status: BTreeMap<_, _> = self
            .families
            .iter()
            .filter_map(|(family, state)| {
                Some((*family, FamilyReport { last_updated: state.updated?, healthy: is_healthy(state) }))
            })
            .collect();
        let healthy = self.families.values().all(is_healthy);
        let node_eligible = match probe {
            Probe::Healthz => Some(self.node_is_eligible),
            Probe::Livez => None,
        };
        let newest = status.values().map(|family| family.last_updated).max();
        let serving = healthy && node_eligible != Some(false);
        let last_updated = if serving { Some(now.time) } else { newest };
        Report { last_updated, current_time: now.time, node_eligible, healthy, status }
    }
}

impl FamilyState {
    /// Nothing is overdue before the sync loop has begun.
    fn is_overdue(&self, timeout: Duration, now: Moment) -> bool {
        let is_late = |since: Instant| now.instant.saturating_duration_since(since) >= timeout;
        self.updated.is_some() && self.pending.is_some_and(is_late)
    }
}

fn is_eligible(node: &api::Node) -> bool {
    node.metadata.deletion_timestamp.is_none()
        && node.spec.taints.iter().all(|taint| taint.key != TO_BE_DELETED)
}

/// The response to a probe.
#[derive(Debug, PartialEq, Eq)]
struct Report {
    last_updated: Option<Timestamp>,
    current_time: Timestamp,
    /// `None` for `/livez`.
    node_eligible: Option<bool>,
    healthy: bool,
    status: BTreeMap<Family, FamilyReport>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FamilyReport {
    last_updated: Timestamp,
    healthy: bool,
}

impl Report {
    fn response(&self) -> ServerResponse {
        let is_serving = self.healthy && self.node_eligible != Some(false);
        let status = if is_serving { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        nosniff(response(status, JSON, serde_json::to_vec(self).unwrap_or_default()))
    }
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match &self.last_updated {
            Some(time) => map.serialize_entry("lastUpdated", &Text(time))?,
            // The zero of Go's times.
            None => map.serialize_entry("lastUpdated", "0001-01-01T00:00:00Z")?,
        }
        map.serialize_entry("currentTime", &Text(self.current_time))?;
        if let Some(eligible) = self.node_eligible {
            map.serialize_entry("nodeEligible", &eligible)?;
        }
        map.serialize_entry("healthy", &self.healthy)?;
        if !self.status.is_empty() {
            let status: BTreeMap<_, _> =
                self.status.iter().map(|(family, report)| (family.to_string(), report)).collect();
            map.serialize_entry("status", &status)?;
        }
        map.end()
    }
}

impl Serialize for FamilyReport {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("lastUpdated", &Text(self.last_updated))?;
        map.serialize_entry("healthy", &self.healthy)?;
        map.end()
    }
}

/// Serializes a value as its text.
struct Text<T>(T);

impl<T: fmt::Display> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The state of a dual-stack proxy at the start, with a timeout of a minute, and the time then.
    fn start() -> (State, Moment) {
        let time = "2026-11-15T18:27:49.76569412Z".parse().unwrap();
        let mut state = State::new(60 * SECOND, Family::BOTH);
        state.node_is_eligible = true;
        (state, Moment { instant: Instant::now(), time })
    }

    impl Moment {
        fn after(self, seconds: u32) -> Self {
            Self { instant: self.instant + SECOND * seconds, time: self.time + SECOND * seconds }
        }
    }

    fn response(state: &State, probe: Probe, now: Moment) -> (u16, String) {
        let response = state.report(probe, now).response();
        (response.status().as_u16(), String::from_utf8(response.into_body().to_vec()).unwrap())
    }

    #[test]
    fn a_family_is_unhealthy_once_a_sync_has_been_due_for_too_long() {
        use Family::{V4, V6};
        let (mut state, t) = start();
        assert!(state.is_healthy(t), "nothing has begun");
        state.queued(V6, t);
        assert!(state.is_healthy(t.after(600)), "an event before the sync loop begins does not count");
        state.started(V4, t);
        state.started(V6, t);
        assert!(state.is_healthy(t.after(600)), "nothing to do");
        state.queued(V4, t.after(600));
        state.queued(V4, t.after(630));
        assert!(state.is_healthy(t.after(659)));
        assert!(!state.is_healthy(t.after(660)), "the first event counts");
        state.synced(V6, t.after(660));
        assert!(!state.is_healthy(t.after(660)), "the success of one family does not count for the other");
        state.synced(V4, t.after(661));
        assert!(state.is_healthy(t.after(800)));
    }

    #[test]
    fn healthz_fails_until_every_family_has_synced_and_livez_once_a_sync_is_overdue() {
        use Family::{V4, V6};
        let (mut state, t) = start();
        let status = |state: &State, now| {
            [Probe::Healthz, Probe::Livez].map(|probe| state.report(probe, now).response().status().as_u16())
        };
        assert_eq!(status(&state, t), [503, 200], "no sync loop has begun");
        state.started(V4, t);
        state.started(V6, t);
        assert_eq!(status(&state, t.after(3_600)), [503, 200], "nothing was listed yet, so no sync is due");
        state.queued(V4, t.after(3_600));
        state.queued(V6, t.after(3_600));
        state.synced(V6, t.after(3_601));
        assert_eq!(status(&state, t.after(3_659)), [503, 200], "only one family has synced");
        assert_eq!(status(&state, t.after(3_660)), [503, 503], "its first sync has failed for too long");
        state.synced(V4, t.after(3_661));
        assert_eq!(status(&state, t.after(9_000)), [200, 200]);
        state.queued(V6, t.after(9_000));
        assert_eq!(
            status(&state, t.after(9_059)),
            [200, 200],
            "a later failure changes nothing for a minute"
        );
        assert_eq!(status(&state, t.after(9_060)), [503, 503]);
        state.node_is_eligible = false;
        state.synced(V6, t.after(9_061));
        assert_eq!(status(&state, t.after(9_061)), [503, 200], "the node is about to be deleted");
    }

    proptest::proptest! {
        /// Attempts at a sync, each of one family, some seconds after the one before.
        #[test]
        fn health_fails_once_a_family_has_not_synced_for_the_timeout(
            attempts in proptest::collection::vec((proptest::bool::ANY, proptest::bool::ANY, 0_u32..90), 0..40)
        ) {
            let (mut state, mut now) = start();
            Family::BOTH.into_iter().for_each(|family| state.started(family, now));
            let mut failing_since: BTreeMap<Family, Moment> = BTreeMap::new();
            let mut synced: Vec<Family> = Vec::new();
            for (is_v4, succeeds, pause) in attempts {
                let family = if is_v4 { Family::V4 } else { Family::V6 };
                state.queued(family, now);
                if succeeds {
                    state.synced(family, now);
                    failing_since.remove(&family);
                    synced.push(family);
                } else {
                    failing_since.entry(family).or_insert(now);
                }
                now = now.after(pause);
                let is_late = |since: &Moment| now.instant - since.instant >= 60 * SECOND;
                let lives = !failing_since.values().any(is_late);
                let is_ready = lives && Family::BOTH.iter().all(|family| synced.contains(family));
                proptest::prop_assert_eq!(state.report(Probe::Livez, now).healthy, lives);
                proptest::prop_assert_eq!(state.report(Probe::Healthz, now).healthy, is_ready);
            }
        }
    }

    #[test]
    fn probes_get_the_responses_of_upstream() {
        let (mut state, t) = start();
        state.node_is_eligible = false;
        let now = r#""currentTime":"2026-11-15T18:27:49.76569412Z""#;
        let zero =
            format!(r#"{{"lastUpdated":"0001-01-01T00:00:00Z",{now},"nodeEligible":false,"healthy":false}}"#);
        assert_eq!(response(&state, Probe::Healthz, t), (503, zero), "the node is not known yet");
        let live = format!(r#"{{"lastUpdated":"2026-11-15T18:27:49.76569412Z",{now},"healthy":true}}"#);
        assert_eq!(response(&state, Probe::Livez, t), (200, live));

        state.node_is_eligible = true;
        state.synced(Family::V6, t.after(1));
        state.synced(Family::V4, t);
        let later = concat!(
            r#"{"lastUpdated":"2026-11-15T18:27:51.76569412Z","currentTime":"2026-11-15T18:27:51.76569412Z","#,
            r#""nodeEligible":true,"healthy":true,"status":{"#,
            r#""IPv4":{"lastUpdated":"2026-11-15T18:27:49.76569412Z","healthy":true},"#,
            r#""IPv6":{"lastUpdated":"2026-11-15T18:27:50.76569412Z","healthy":true}}}"#,
        );
        assert_eq!(response(&state, Probe::Healthz, t.after(2)), (200, later.to_owned()));

        state.queued(Family::V4, t.after(2));
        let overdue = concat!(
            r#"{"lastUpdated":"2026-11-15T18:27:50.76569412Z","currentTime":"2026-11-15T18:28:51.76569412Z","#,
            r#""healthy":false,"status":{"#,
            r#""IPv4":{"lastUpdated":"2026-11-15T18:27:49.76569412Z","healthy":false},"#,
            r#""IPv6":{"lastUpdated":"2026-11-15T18:27:50.76569412Z","healthy":true}}}"#,
        );
        assert_eq!(response(&state, Probe::Livez, t.after(62)), (503, overdue.to_owned()));
        assert_eq!(response(&state, Probe::Healthz, t.after(62)).0, 503);
    }

    #[test]
    fn a_node_that_is_about_to_be_deleted_is_not_eligible() {
        let node = |deleted: Option<&str>, taints: &[&str]| {
            let mut node = api::Node::default();
            node.metadata.deletion_timestamp = deleted.map(str::to_owned);
            node.spec.taints = taints.iter().map(|key| api::Taint { key: (*key).to_owned() }).collect();
            node
        };
        for (node, want) in [
            (node(None, &[]), true),
            (node(None, &["node.kubernetes.io/unschedulable"]), true),
            (node(None, &["other", "ToBeDeletedByClusterAutoscaler"]), false),
            (node(Some("2026-11-15T18:27:49Z"), &[]), false),
        ] {
            assert_eq!(is_eligible(&node), want, "{node:?}");
        }
    }
}
