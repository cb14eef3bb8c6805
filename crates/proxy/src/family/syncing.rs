//! The part of a family worker that syncs: the backend, when its next sync is due, and what it needs to know of the node.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use model::address::Family;
use model::local::NodePortAddresses;
use plan::explain;

use super::TakeOver;
use crate::backend::Backend;
use crate::rate_limit::{MinInterval, RateLimiter};
use settings::duration::Duration as GoDuration;

/// A sync runs this long after the last one even if nothing has changed.
const MAX_SYNC_INTERVAL: Duration = Duration::from_secs(3_600);

pub struct Syncing {
    family: Family,
    pub backend: Box<dyn Backend>,
    pub rate_limiter: RateLimiter,
    /// How packets traverse the rules of the backend.
    pub explain_settings: explain::Settings,
    /// Whether a sync has succeeded.
    pub has_synced: bool,
    /// To run after the first successful sync; `None` once it has begun.
    pub take_over: Option<TakeOver>,
    node_ports: NodePorts,
    /// When the backend has to log what it held back; `None` if it holds nothing back.
    log_due: Option<Instant>,
}

/// Where node ports are served.
struct NodePorts {
    addresses: NodePortAddresses,
    /// The node's addresses that serve them, as the backend knows them; empty if all addresses do.
    ips: Vec<IpAddr>,
}

impl Syncing {
    pub fn new(
        family: Family,
        backend: Box<dyn Backend>,
        (min_interval, sync_period): (MinInterval, Duration),
        node_port_addresses: NodePortAddresses,
        explain_settings: explain::Settings,
        take_over: TakeOver,
    ) -> Self {
        let (MinInterval::Fixed(min_sync) | MinInterval::Proportional(min_sync)) = min_interval;
        tracing::debug!(
            v = 2,
            ipFamily = %family,
            minSyncPeriod = %GoDuration::from(min_sync),
            syncPeriod = %GoDuration::from(sync_period),
            maxSyncPeriod = %GoDuration::from(MAX_SYNC_INTERVAL),
            "{} sync params", backend.title()
        );
        let mut rate_limiter = RateLimiter::new(min_interval, sync_period, MAX_SYNC_INTERVAL, Instant::now());
        rate_limiter.request();
        Self {
            family,
            backend,
            rate_limiter,
            explain_settings,
            has_synced: false,
            take_over: Some(take_over),
            node_ports: NodePorts { addresses: node_port_addresses, ips: Vec::new() },
            log_due: None,
        }
    }

    /// The time until a sync or a log line is due, if nothing changes before.
    pub fn time_until_due(&self, now: Instant) -> Duration {
        let log = self.log_due.map_or(Duration::MAX, |due| due.saturating_duration_since(now));
        self.rate_limiter.time_until_due(now).min(log)
    }

    /// Requests a sync that compares the kernel with the desired state.
    pub fn suspect_drift(&mut self) {
        self.backend.suspect_drift();
        self.rate_limiter.request();
    }

    /// Logs what the backend held back and is due.
    pub fn log_held_back(&mut self, now: Instant) {
        self.log_due = self.backend.log_due(now);
    }

    /// Returns the addresses among these that serve node ports. Only a change of those requests a sync: other addresses, those of
    /// pods' interfaces, change all the time.
    pub fn node_addresses_changed(&mut self, addresses: &[IpAddr]) -> Vec<IpAddr> {
        let NodePorts { addresses: serving, ips } = &mut self.node_ports;
        if serving.match_all() {
            return addresses.iter().copied().filter(|ip| Family::of(*ip) == self.family).collect();
        }
        let serving = serving.among(addresses);
        if serving != *ips {
            ips.clone_from(&serving);
            self.backend.set_node_port_ips(serving.clone());
            self.rate_limiter.request();
        }
        serving
    }
}
