//! The defaults of fields that are missing or have their zero value.

use model::address::{Family, parse_ip};

use super::v1alpha1::KubeProxyConfiguration;
use crate::duration::Duration;

pub const HEALTHZ_PORT: i32 = 10256;
pub const METRICS_PORT: i32 = 10249;

impl KubeProxyConfiguration {
    /// The configuration that an empty file yields.
    pub fn with_defaults() -> Self {
        let mut config = Self::default();
        config.apply_defaults();
        config
    }

    /// The order matters: the defaults of the listeners depend on the family of the bind address.
    pub fn apply_defaults(&mut self) {
        set_default(&mut self.bind_address, "0.0.0.0");
        let v6 = parse_ip(&self.bind_address).is_some_and(|ip| Family::of(ip) == Family::V6);
        set_default(&mut self.healthz_bind_address, if v6 { "::" } else { "0.0.0.0" });
        set_default(&mut self.metrics_bind_address, if v6 { "::1" } else { "127.0.0.1" });
        add_port(&mut self.healthz_bind_address, HEALTHZ_PORT);
        add_port(&mut self.metrics_bind_address, METRICS_PORT);

        set_default(&mut self.client_connection.content_type, "application/vnd.kubernetes.protobuf");
        if self.client_connection.qps == 0.0 {
            self.client_connection.qps = 5.0;
        }
        if self.client_connection.burst == 0 {
            self.client_connection.burst = 10;
        }
        set_default_period(&mut self.config_sync_period, 15 * 60);
        self.oom_score_adj.get_or_insert(-999);

        self.iptables.masquerade_bit.get_or_insert(14);
        self.iptables.localhost_node_ports.get_or_insert(true);
        set_default_period(&mut self.iptables.sync_period, 30);
        set_default_period(&mut self.iptables.min_sync_period, 1);
        set_default_period(&mut self.ipvs.sync_period, 30);
        self.nftables.masquerade_bit.get_or_insert(14);
        set_default_period(&mut self.nftables.sync_period, 30);
        set_default_period(&mut self.nftables.min_sync_period, 1);

        self.conntrack.max_per_core.get_or_insert(32 * 1024);
        self.conntrack.min.get_or_insert(128 * 1024);
        self.conntrack.tcp_established_timeout.get_or_insert(Duration::from_secs(24 * 3600));
        self.conntrack.tcp_close_wait_timeout.get_or_insert(Duration::from_secs(3600));

        set_default(&mut self.logging.format, "text");
        if self.logging.flush_frequency.duration == Duration::ZERO {
            self.logging.flush_frequency = Duration::from_secs(5).into();
        }
    }
}

/// Appends the port to an IP address. Any other text is left alone: it has a port, or validation rejects it.
pub fn add_port(address: &mut String, port: i32) {
    if parse_ip(address).is_none() {
        return;
    }
    *address =
        if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") };
}

fn set_default(text: &mut String, default: &str) {
    if text.is_empty() {
        default.clone_into(text);
    }
}

fn set_default_period(period: &mut Duration, seconds: i64) {
    if *period == Duration::ZERO {
        *period = Duration::from_secs(seconds);
    }
}
