//! Packets that rules of the iptables mode count.

use std::fmt;

use super::Collector;
use super::text::{About, Entry, MetricType, Stability};

/// The kernel's counters; `None` if they cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packets {
    pub ct_state_invalid_dropped: Option<u64>,
    pub localhost_nodeports_accepted: Option<u64>,
}

/// Reads them at each scrape.
pub struct PacketCounts {
    read: Box<dyn FnMut() -> Packets + Send>,
}

impl PacketCounts {
    pub fn new(read: impl FnMut() -> Packets + Send + 'static) -> Self {
        Self { read: Box::new(read) }
    }
}

impl fmt::Debug for PacketCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacketCounts").finish_non_exhaustive()
    }
}

const DROPPED: About = About {
    name: "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
    help: "packets dropped by iptables to work around conntrack problems",
    kind: MetricType::Counter,
    stability: Some(Stability::Alpha),
};

const ACCEPTED: About = About {
    name: "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
    help: "Number of packets accepted on nodeports of loopback interface",
    kind: MetricType::Counter,
    stability: Some(Stability::Alpha),
};

#[allow(clippy::cast_precision_loss, reason = "counts are floats to Prometheus")]
impl Collector for PacketCounts {
    fn entries(&mut self) -> Vec<Entry> {
        let packets = (self.read)();
        let counts =
            [(DROPPED, packets.ct_state_invalid_dropped), (ACCEPTED, packets.localhost_nodeports_accepted)];
        let entry = |(about, count): (About, Option<u64>)| {
            let mut entry = Entry::new(about);
            entry.sample([], count? as f64);
            Some(entry)
        };
        counts.into_iter().filter_map(entry).collect()
    }
}
