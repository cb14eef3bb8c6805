//! The family worker: the thread of one IP family. It applies events, answers queries, and syncs when that is due. It owns the
//! family's store and backend, so that these need no lock.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kernel::inspection::DesiredState;
use kernel::nftables::CounterOwners;
use model::address::Family;
use model::backlog::Update;
use model::cluster::{Cluster, Here};
use model::note::Note;
use plan::explain::Explanation;
use watch::recorder::{Notice, Recorder, Regarding, Severity};

use super::drift::DriftWatch;
use super::inbox::{Inbox, InboxContents};
use super::report::EventCounts;
use super::syncer::Syncer;
use super::{FamilyHandle, Start};
use crate::debug_api::packet_query::{PacketQuery, route_source};
use crate::metrics::Metrics;

/// The timeout of the inbox while nothing is due.
const MAX_INBOX_WAIT: Duration = Duration::from_secs(3_600);

#[derive(Debug)]
pub struct Worker {
    family: Family,
    cluster: Cluster,
    /// All addresses of the node, of both families.
    node_addresses: Arc<[IpAddr]>,
    events: EventCounts,
    metrics: Arc<Metrics>,
    recorder: Recorder,
    /// For threads that the worker starts.
    handle: FamilyHandle,
    /// `None` until everything about the node is known.
    syncer: Option<Syncer>,
}

impl Worker {
    pub fn new(here: Here, metrics: Arc<Metrics>, recorder: Recorder, handle: FamilyHandle) -> Self {
        Self {
            family: here.family,
            cluster: Cluster::new(here),
            node_addresses: Arc::default(),
            events: EventCounts::new(metrics.clone()),
            metrics,
            recorder,
            handle,
            syncer: None,
        }
    }

    /// Never returns.
    pub fn run(mut self, inbox: &Inbox) {
        loop {
            let timeout = self.syncer.as_ref().map_or(MAX_INBOX_WAIT, |syncer| {
                if syncer.should_preload(&self.cluster) {
                    return Duration::ZERO;
                }
                syncer.time_until_due(Instant::now())
            });
            self.receive(inbox.take(timeout.min(MAX_INBOX_WAIT)));
            self.preload();
            self.sync_if_due(Instant::now());
            if let Some(syncer) = &mut self.syncer {
                syncer.on_timer(Instant::now());
            }
        }
    }

    fn receive(&mut self, contents: InboxContents) {
        let InboxContents { mut backlog, start, node_addresses, drift, other_modes_removed, queries } =
            contents;
        self.apply(&backlog.take());
        if let Some(addresses) = node_addresses {
            self.node_addresses = addresses;
            self.syncer.iter_mut().for_each(|syncer| syncer.node_addresses_changed(&self.node_addresses));
        }
        if let Some(start) = start {
            self.start(*start);
        }
        if let Some(syncer) = &mut self.syncer {
            drift.into_iter().for_each(|drift| syncer.drifted(drift));
            if other_modes_removed {
                syncer.other_modes_removed(&self.cluster);
            }
        }
        queries.into_iter().for_each(|query| query(self));
    }

    /// Applies a whole backlog: until then the cluster may be inconsistent.
    fn apply(&mut self, updates: &[Update]) {
        let was_complete = self.cluster.is_complete();
        for update in updates {
            self.cluster.apply_update(update).into_iter().for_each(|note| self.report(note));
        }
        self.events.add_new(&self.cluster);
        // An incomplete cluster cannot be synced. Its completion requests a sync even if that has nothing to change.
        let has_changes = self.cluster.has_changes() || !was_complete;
        if !updates.is_empty()
            && has_changes
            && self.cluster.is_complete()
            && let Some(syncer) = &mut self.syncer
        {
            syncer.request();
        }
    }

    fn report(&self, note: Note) {
        let Note { message, object, detail, event } = note;
        let (field, value) = detail.unwrap_or_default();
        tracing::error!(ipFamily = %self.family, object, field, value, "{message}");
        if let Some((service, reason)) = event {
            self.recorder.record(Notice {
                regarding: Regarding::Service(service),
                severity: Severity::Warning,
                reason,
                action: "Balance",
                note: format!("{message} ({field}: {value:?})"),
            });
        }
    }

    fn start(&mut self, start: Start) {
        self.cluster.set_node_ip(start.node_ip);
        let take_over = start.take_over;
        let handle = self.handle.clone();
        let take_over = Box::new(move || {
            take_over();
            handle.other_modes_removed();
        });
        let handle = self.handle.clone();
        let drift = DriftWatch::new(self.family, move |drift| handle.drifted(drift));
        let start = Start { take_over, ..start };
        let syncer = self.syncer.insert(Syncer::new(self.family, start, drift, self.metrics.clone()));
        syncer.node_addresses_changed(&self.node_addresses);
        syncer.listen_for_drift();
    }

    /// Loads Services before the first lists have ended, if enough have arrived.
    fn preload(&mut self) {
        if let Some(syncer) = &mut self.syncer
            && syncer.should_preload(&self.cluster)
        {
            syncer.preload(&mut self.cluster);
        }
    }

    fn sync_if_due(&mut self, now: Instant) {
        let Some(syncer) = &mut self.syncer else { return };
        if !syncer.begin_if_due(now) {
            return;
        }
        let (family, mode) = (self.family, syncer.mode());
        if !self.cluster.is_complete() {
            tracing::debug!(v = 2, ipFamily = %family, "Not syncing {mode} until Services and Endpoints have been received from master");
            return;
        }
        tracing::debug!(v = 2, ipFamily = %family, "Syncing {mode} rules");
        syncer.sync(&mut self.cluster);
        self.events.set_pending(&self.cluster);
    }

    pub fn explain(&self, query: &PacketQuery) -> Result<Explanation, String> {
        let ready = self.syncer.as_ref().filter(|_| self.cluster.is_complete());
        let syncer = ready.ok_or("the proxy has only just started: try again in a moment")?;
        let packet = query.packet(&self.node_addresses, self.cluster.node_ip(), route_source);
        let packet = packet.map_err(|error| error.to_string())?;
        syncer.explain(&packet, &self.node_addresses, &self.cluster)
    }

    /// The desired state; `None` before the first successful sync.
    pub fn desired(&self) -> Option<DesiredState> {
        self.syncer.as_ref().and_then(Syncer::desired)
    }

    /// The service ports and endpoints whose new connections the kernel counts.
    pub fn counter_owners(&self) -> CounterOwners {
        self.syncer.as_ref().map(Syncer::counter_owners).unwrap_or_default()
    }
}
