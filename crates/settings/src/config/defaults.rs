//! What a field means that a file leaves out or sets to its zero value.

use model::address::{Family, parse_ip};

use super::v1alpha1::KubeProxyConfiguration;
use crate::duration::Duration;

pub const HEALTHZ_PORT: i32 = 10256;
pub const METRICS_PORT: i32 = 10249;

impl KubeProxyConfiguration {
    /// The configuration of an empty file.
    pub fn with_defaults() -> Self {
        let mut config = Self::default();
        config.apply_defaults();
        config
    }

    /// Order matters: the listeners follow the family of the bind address.
    pub fn apply_defaults(&mut self) {
        or(&mut self.bind_address, "0.0.0.0");
        let v6 = parse_ip(&self.bind_address).is_some_and(|ip| Family::of(ip) == Family::V6);
        or(&mut self.healthz_bind_address, if v6 { "::" } else { "0.0.0.0" });
        or(&mut self.metrics_bind_address, if v6 { "::1" } else { "127.0.0.1" });
        add_port(&mut self.healthz_bind_address, HEALTHZ_PORT);
        add_port(&mut self.metrics_bind_address, METRICS_PORT);

        or(&mut self.client_connection.content_type, "application/vnd.kubernetes.protobuf");
        if self.client_connection.qps == 0.0 {
            self.client_connection.qps = 5.0;
        }
        if self.client_connection.burst == 0 {
            self.client_connection.burst = 10;
        }
        or_period(&mut self.config_sync_period, 15 * 60);
        self.oom_score_adj.get_or_insert(-999);

        self.iptables.masquerade_bit.get_or_insert(14);
        self.iptables.localhost_node_ports.get_or_insert(true);
        or_period(&mut self.iptables.sync_period, 30);
        or_period(&mut self.iptables.min_sync_period, 1);
        or_period(&mut self.ipvs.sync_period, 30);
        self.nftables.masquerade_bit.get_or_insert(14);
        or_period(&mut self.nftables.sync_period, 30);
        or_period(&mut self.nftables.min_sync_period, 1);

        self.conntrack.max_per_core.get_or_insert(32 * 1024);
        self.conntrack.min.get_or_insert(128 * 1024);
        self.conntrack.tcp_established_timeout.get_or_insert(Duration::from_secs(24 * 3600));
        self.conntrack.tcp_close_wait_timeout.get_or_insert(Duration::from_secs(3600));

        or(&mut self.logging.format, "text");
        if self.logging.flush_frequency.duration == Duration::ZERO {
            self.logging.flush_frequency = Duration::from_secs(5).into();
        }
    }
}

/// Makes `address:port` of a bare address; anything else already has a port, or validation will say so.
pub fn add_port(address: &mut String, port: i32) {
    if parse_ip(address).is_none() {
        return;
    }
    *address =
        if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") };
}

fn or(text: &mut String, default: &str) {
    if text.is_empty() {
        default.clone_into(text);
    }
}

fn or_period(period: &mut Duration, seconds: i64) {
    if *period == Duration::ZERO {
        *period = Duration::from_secs(seconds);
    }
}
