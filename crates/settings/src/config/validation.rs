//! Checks a configuration and turns it into types, in one go and in the order and words of the reference.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time;

use ipnet::IpNet;
use model::address::{Family, parse_cidr, parse_ip};

use super::complete::Completed;
use super::v1alpha1::{FlushFrequency, KubeProxyConfiguration, KubeProxyConntrackConfiguration};
use super::{Client, Config, ConntrackSettings, DetectLocal, Ipvs, NodePortScope, ProxyMode};
use crate::duration::Duration;
use crate::go::{quote, split_host_port};
use crate::version::PREVIOUS_MINOR;

/// The longest pause between two changes of the rules; the reference would panic beyond it.
const LONGEST_MIN_SYNC_PERIOD: Duration = Duration::from_secs(3600);

/// Everything that is wrong, in one sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(String);

/// The configuration as the program uses it, or all that speaks against it.
pub fn validate(completed: Completed) -> Result<Config, Invalid> {
    let Completed { config: versioned, cluster_cidrs, gates, min_sync_is_default } = completed;
    let from = &versioned;
    let mut faults = Faults::under("KubeProxyConfiguration");
    let faulty = &mut faults;
    let section = from.section_of_mode();
    let mode = parse_mode(&from.mode);

    let iptables_bit = masquerade_bit(faulty, "KubeProxyIPTablesConfiguration", from.iptables.masquerade_bit);
    let ipvs = ipvs(faulty, from, mode);
    let masquerade_bit = match mode {
        Some(ProxyMode::Nftables) => {
            masquerade_bit(faulty, "KubeProxyNFTablesConfiguration", from.nftables.masquerade_bit)
        }
        Some(ProxyMode::Iptables | ProxyMode::Ipvs) | None => iptables_bit,
    };
    let conntrack = conntrack(faulty, &from.conntrack);
    let oom_score_adj = from.oom_score_adj.unwrap_or_default();
    if !(-1000..=1000).contains(&oom_score_adj) {
        let path = "KubeProxyLinuxConfiguration.OOMScoreAdj";
        faulty.invalid(path, oom_score_adj, "must be within the range [-1000, 1000]");
    }
    if mode.is_none() {
        let detail = "must be iptables, ipvs, nftables or blank (blank means the best-available proxy [currently iptables])";
        faulty.invalid("Mode.ProxyMode", from.mode.as_str(), detail);
    }
    let burst = at_least_zero(faulty, "ClientConnection.Burst", from.client_connection.burst);
    let config_sync_period = above_zero(faulty, "ConfigSyncPeriod", from.config_sync_period);
    let sync_period = above_zero(faulty, "SyncPeriod", section.sync);
    let min_sync_period = not_negative(faulty, "MinSyncPeriod", section.min_sync);
    if section.min_sync > LONGEST_MIN_SYNC_PERIOD {
        let detail = format!("must be less than or equal to {LONGEST_MIN_SYNC_PERIOD}");
        faulty.invalid("MinSyncPeriod", section.min_sync, &detail);
    }
    if section.min_sync > section.sync {
        let detail = "must be greater than or equal to KubeProxyConfiguration.MinSyncPeriod";
        faulty.invalid("SyncPeriod", section.min_sync, detail);
    }
    let bind_address = parse_ip(&from.bind_address).unwrap_or_else(|| {
        let detail = "not a valid textual representation of an IP address";
        faulty.invalid("BindAddress", from.bind_address.as_str(), detail);
        Family::V4.loopback()
    });
    let healthz_bind_address = match from.healthz_bind_address.as_str() {
        "" => None,
        address => listen_address(faulty, "HealthzBindAddress", address),
    };
    let metrics_bind_address = listen_address(faulty, "MetricsBindAddress", &from.metrics_bind_address);
    let node_port_addresses = node_port_addresses(faulty, from.node_port_addresses.as_deref().unwrap_or(&[]));
    show_hidden_metrics(faulty, &from.show_hidden_metrics_for_version);
    let detect_local = detect_local(faulty, from, &cluster_cidrs);

    faults.into_result()?;
    let client = Client {
        kubeconfig: from.client_connection.kubeconfig.clone(),
        accept_content_types: from.client_connection.accept_content_types.clone(),
        content_type: from.client_connection.content_type.clone(),
        qps: from.client_connection.qps,
        burst,
    };
    Ok(Config {
        mode: mode.expect("an unknown mode is a fault"),
        gates,
        client,
        hostname_override: from.hostname_override.clone(),
        bind_address,
        bind_address_hard_fail: from.bind_address_hard_fail,
        healthz_bind_address,
        metrics_bind_address: metrics_bind_address.expect("no address is a fault"),
        enable_profiling: from.enable_profiling,
        show_hidden_metrics: !from.show_hidden_metrics_for_version.is_empty(),
        masquerade_all: section.masquerade_all,
        masquerade_bit,
        localhost_node_ports: from.iptables.localhost_node_ports.unwrap_or_default(),
        sync_period,
        min_sync_period,
        min_sync_is_default,
        config_sync_period,
        detect_local,
        cluster_cidrs,
        node_port_addresses,
        conntrack,
        oom_score_adj,
        ipvs,
        winkernel_source_vip: from.winkernel.source_vip.clone(),
        versioned,
    })
}

fn parse_mode(mode: &str) -> Option<ProxyMode> {
    match mode {
        "iptables" => Some(ProxyMode::Iptables),
        "ipvs" => Some(ProxyMode::Ipvs),
        "nftables" => Some(ProxyMode::Nftables),
        _ => None,
    }
}

fn masquerade_bit(faults: &mut Faults, section: &str, bit: Option<i32>) -> u8 {
    let bit = bit.unwrap_or_default();
    u8::try_from(bit).ok().filter(|bit| *bit <= 31).unwrap_or_else(|| {
        faults.invalid(&format!("{section}.MasqueradeBit"), bit, "must be within the range [0, 31]");
        0
    })
}

/// Told about in ipvs mode alone; the other modes never look at it.
fn ipvs(faults: &mut Faults, config: &KubeProxyConfiguration, mode: Option<ProxyMode>) -> Ipvs {
    let mut unread = Faults::under("");
    let faults = if mode == Some(ProxyMode::Ipvs) { faults } else { &mut unread };
    let from = &config.ipvs;
    let path = |field: &str| format!("KubeProxyIPVSConfiguration.{field}");
    let tcp_timeout = not_negative(faults, &path("TCPTimeout"), from.tcp_timeout);
    let tcp_fin_timeout = not_negative(faults, &path("TCPFinTimeout"), from.tcp_fin_timeout);
    let udp_timeout = not_negative(faults, &path("UDPTimeout"), from.udp_timeout);
    let mut exclude_cidrs = Vec::new();
    for (index, cidr) in from.exclude_cidrs.iter().flatten().enumerate() {
        match parse_cidr(cidr) {
            Some(cidr) => exclude_cidrs.push(cidr),
            None => {
                let path = path(&format!("ExcludeCidrs[{index}]"));
                faults.invalid(&path, cidr.as_str(), "must be a valid CIDR");
            }
        }
    }
    let scheduler = from.scheduler.clone();
    Ipvs { scheduler, exclude_cidrs, strict_arp: from.strict_arp, tcp_timeout, tcp_fin_timeout, udp_timeout }
}

fn conntrack(faults: &mut Faults, from: &KubeProxyConntrackConfiguration) -> ConntrackSettings {
    let path = |field: &str| format!("KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.{field}");
    let established = from.tcp_established_timeout.unwrap_or_default();
    let close_wait = from.tcp_close_wait_timeout.unwrap_or_default();
    // Struct fields are evaluated in this order, which is the order of the reference.
    ConntrackSettings {
        max_per_core: at_least_zero(faults, &path("MaxPerCore"), from.max_per_core.unwrap_or_default()),
        min: at_least_zero(faults, &path("Min"), from.min.unwrap_or_default()),
        tcp_established_timeout: not_negative(faults, &path("TCPEstablishedTimeout"), established),
        tcp_close_wait_timeout: not_negative(faults, &path("TCPCloseWaitTimeout"), close_wait),
        tcp_be_liberal: from.tcp_be_liberal,
        udp_timeout: not_negative(faults, &path("UDPTimeout"), from.udp_timeout),
        udp_stream_timeout: not_negative(faults, &path("UDPStreamTimeout"), from.udp_stream_timeout),
    }
}

fn at_least_zero(faults: &mut Faults, path: &str, value: i32) -> u32 {
    u32::try_from(value).unwrap_or_else(|_| {
        faults.invalid(path, value, "must be greater than or equal to 0");
        0
    })
}

fn not_negative(faults: &mut Faults, path: &str, value: Duration) -> time::Duration {
    value.to_std().unwrap_or_else(|| {
        faults.invalid(path, value, "must be greater than or equal to 0");
        time::Duration::ZERO
    })
}

fn above_zero(faults: &mut Faults, path: &str, value: Duration) -> time::Duration {
    value.to_std().filter(|duration| !duration.is_zero()).unwrap_or_else(|| {
        faults.invalid(path, value, "must be greater than 0");
        time::Duration::ZERO
    })
}

fn listen_address(faults: &mut Faults, path: &str, text: &str) -> Option<SocketAddr> {
    let Ok((host, port)) = split_host_port(text) else {
        faults.invalid(path, text, "must be IP:port");
        return None;
    };
    let ip: Option<IpAddr> = parse_ip(host);
    if ip.is_none() {
        faults.invalid(path, host, "must be a valid IP");
    }
    let number = port.parse::<u16>().ok().filter(|port| *port != 0);
    if number.is_none() {
        faults.invalid(path, port, "must be a valid port");
    }
    Some(SocketAddr::new(ip?, number?))
}

fn node_port_addresses(faults: &mut Faults, texts: &[String]) -> NodePortScope {
    if texts == ["primary"] {
        return NodePortScope::Primary;
    }
    let mut cidrs = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        let path = format!("NodePortAddresses[{index}]");
        if text == "primary" {
            faults.invalid(&path, text.as_str(), "can't use both 'primary' and CIDRs");
            break;
        }
        match parse_cidr(text) {
            Some(cidr) => cidrs.push(cidr),
            None => faults.invalid(&path, text.as_str(), "must be a valid CIDR"),
        }
    }
    NodePortScope::Cidrs(cidrs)
}

fn show_hidden_metrics(faults: &mut Faults, version: &str) {
    if version.is_empty() || version == PREVIOUS_MINOR {
        return;
    }
    let inner = format!(
        "showHiddenMetricsForVersion: Invalid value: {}: must be omitted or have the value '{PREVIOUS_MINOR}'; \
         only the previous minor version is allowed",
        quote(version)
    );
    let detail = format!("invalid showHiddenMetricsForVersion: {inner}");
    faults.invalid("ShowHiddenMetricsForVersion", version, &detail);
}

fn detect_local(faults: &mut Faults, config: &KubeProxyConfiguration, cidrs: &[String]) -> DetectLocal {
    let (bridge, prefix) =
        (&config.detect_local.bridge_interface, &config.detect_local.interface_name_prefix);
    match config.detect_local_mode.as_str() {
        "ClusterCIDR" => DetectLocal::ClusterCidr(cluster_cidrs(faults, cidrs)),
        "NodeCIDR" => DetectLocal::NodeCidr,
        "BridgeInterface" => {
            if bridge.is_empty() {
                faults.invalid("DetectLocalConfiguration.InterfaceName", "", "must not be empty");
            }
            DetectLocal::BridgeInterface(bridge.clone())
        }
        "InterfaceNamePrefix" => {
            if prefix.is_empty() {
                faults.invalid("DetectLocalConfiguration.InterfacePrefix", "", "must not be empty");
            }
            DetectLocal::InterfaceNamePrefix(prefix.clone())
        }
        other => {
            faults.tell(
                "DetectLocalMode",
                format_args!(
                    "Unsupported value: {}: supported values: \"ClusterCIDR\", \"NodeCIDR\", \
                     \"BridgeInterface\", \"InterfaceNamePrefix\", \"\"",
                    quote(other)
                ),
            );
            DetectLocal::NodeCidr
        }
    }
}

/// None, one, or one of each family.
fn cluster_cidrs(faults: &mut Faults, texts: &[String]) -> Vec<IpNet> {
    const PATH: &str = "DetectLocalConfiguration.ClusterCIDRs";
    let parsed: Vec<_> = texts.iter().map(|text| parse_cidr(text)).collect();
    let one_of_each = match parsed[..] {
        [Some(a), Some(b)] => Family::of_net(a) != Family::of_net(b),
        [_, _] | [_] | [] => true,
        _ => false,
    };
    if !one_of_each {
        let detail = "must be a either a single CIDR or dual-stack pair of CIDRs (e.g. [10.100.0.0/16, fde4:8dba:82e1::/48]";
        faults.invalid(PATH, texts, detail);
        return Vec::new();
    }
    for (index, (text, cidr)) in texts.iter().zip(&parsed).enumerate() {
        if cidr.is_none() {
            let detail = "must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)";
            faults.invalid(&format!("{PATH}[{index}]"), text.as_str(), detail);
        }
    }
    parsed.into_iter().flatten().collect()
}

/// What has been found wrong so far, each with the path of its field.
#[derive(Debug)]
pub(super) struct Faults {
    root: &'static str,
    told: Vec<String>,
}

impl Faults {
    pub(super) fn under(root: &'static str) -> Self {
        Self { root, told: Vec::new() }
    }

    pub(super) fn invalid(&mut self, path: &str, value: impl Shown, detail: &str) {
        self.tell(path, format_args!("Invalid value: {}: {detail}", value.shown()));
    }

    pub(super) fn forbidden(&mut self, path: &str, detail: &str) {
        self.tell(path, format_args!("Forbidden: {detail}"));
    }

    pub(super) fn required(&mut self, path: &str, detail: &str) {
        self.tell(path, format_args!("Required value: {detail}"));
    }

    fn tell(&mut self, path: &str, what: fmt::Arguments<'_>) {
        self.told.push(format!("{}.{path}: {what}", self.root));
    }

    /// Several are put in brackets.
    pub(super) fn into_result(self) -> Result<(), Invalid> {
        match self.told.as_slice() {
            [] => Ok(()),
            [one] => Err(Invalid(one.clone())),
            several => Err(Invalid(format!("[{}]", several.join(", ")))),
        }
    }
}

/// A value as an error shows it: text quoted, numbers bare, lists as JSON.
pub(super) trait Shown {
    fn shown(&self) -> String;
}

impl Shown for &str {
    fn shown(&self) -> String {
        quote(self)
    }
}

impl Shown for Duration {
    fn shown(&self) -> String {
        quote(&self.to_string())
    }
}

impl Shown for FlushFrequency {
    fn shown(&self) -> String {
        if self.as_nanos { self.duration.as_nanos().to_string() } else { self.duration.shown() }
    }
}

impl Shown for i32 {
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Shown for u32 {
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Shown for &[String] {
    fn shown(&self) -> String {
        let items: Vec<_> = self.iter().map(|item| quote(item)).collect();
        format!("[{}]", items.join(","))
    }
}
