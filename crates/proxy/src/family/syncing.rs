//! What syncs: the backend, when its next sync is due, and what of the node it has to know.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use model::address::Family;
use model::local::NodePortAddresses;
use plan::explain;

use super::TakeOver;
use crate::backend::Backend;
use crate::pace::{Pace, Pause};
use settings::duration::Duration as GoDuration;

/// Without any reason for one, a sync is made once in a while.
const LONGEST_PAUSE: Duration = Duration::from_secs(3_600);

pub struct Syncing {
    family: Family,
    pub backend: Box<dyn Backend>,
    pub pace: Pace,
    /// How packets go through the rules of the backend.
    pub tracing: explain::Settings,
    /// Whether the kernel has held what it should.
    pub has_synced: bool,
    /// What to do after the first sync.
    pub take_over: Option<TakeOver>,
    node_ports: NodePorts,
    /// When the backend has something to log that it held back.
    log_due: Option<Instant>,
}

/// Where node ports are served.
struct NodePorts {
    addresses: NodePortAddresses,
    /// The node's addresses that serve them, as the backend knows them; empty where all do.
    ips: Vec<IpAddr>,
}

impl Syncing {
    pub fn new(
        family: Family,
        backend: Box<dyn Backend>,
        (pause, sync_period): (Pause, Duration),
        node_port_addresses: NodePortAddresses,
        tracing: explain::Settings,
        take_over: TakeOver,
    ) -> Self {
        let (Pause::Always(min_sync) | Pause::InProportion(min_sync)) = pause;
        tracing::debug!(
            v = 2,
            ipFamily = %family,
            minSyncPeriod = %GoDuration::from(min_sync),
            syncPeriod = %GoDuration::from(sync_period),
            maxSyncPeriod = %GoDuration::from(LONGEST_PAUSE),
            "{} sync params", backend.title()
        );
        let mut pace = Pace::new(pause, sync_period, LONGEST_PAUSE, Instant::now());
        pace.ask();
        Self {
            family,
            backend,
            pace,
            tracing,
            has_synced: false,
            take_over: Some(take_over),
            node_ports: NodePorts { addresses: node_port_addresses, ips: Vec::new() },
            log_due: None,
        }
    }

    /// How long nothing has to be done here, if nothing changes.
    pub fn wait(&self, now: Instant) -> Duration {
        let log = self.log_due.map_or(Duration::MAX, |due| due.saturating_duration_since(now));
        self.pace.wait(now).min(log)
    }

    /// The next sync compares everything.
    pub fn distrust(&mut self) {
        self.backend.distrust();
        self.pace.ask();
    }

    /// Logs what the backend held back, as far as that is due.
    pub fn log_held_back(&mut self, now: Instant) {
        self.log_due = self.backend.report(now);
    }

    /// Returns the addresses among these that serve node ports. A change of them is a reason for a sync; other addresses, those of
    /// pods' interfaces, come and go all the time.
    pub fn node_addresses_changed(&mut self, addresses: &[IpAddr]) -> Vec<IpAddr> {
        let NodePorts { addresses: serving, ips } = &mut self.node_ports;
        if serving.match_all() {
            return addresses.iter().copied().filter(|ip| Family::of(*ip) == self.family).collect();
        }
        let serving = serving.among(addresses);
        if serving != *ips {
            ips.clone_from(&serving);
            self.backend.move_to(serving.clone());
            self.pace.ask();
        }
        serving
    }
}
