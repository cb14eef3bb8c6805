//! Validates a configuration and converts it to typed values, with upstream's errors in upstream's order.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time;

use ipnet::IpNet;
use model::address::{Family, parse_cidr, parse_ip};

use super::complete::Completed;
use super::v1alpha1::{FlushFrequency, KubeProxyConfiguration, KubeProxyConntrackConfiguration};
use super::{Client, Config, ConntrackSettings, DetectLocalMode, IpvsSettings, NodePortScope, ProxyMode};
use crate::duration::Duration;
use crate::go::{quote, split_host_port};
use crate::version::PREVIOUS_MINOR;

/// Upstream does not check this limit, and panics above it.
const MAX_MIN_SYNC_PERIOD: Duration = Duration::from_secs(3600);

/// All errors in a configuration, formatted as upstream's `field.ErrorList`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(String);

/// The typed configuration, or all its errors.
pub fn validate(completed: Completed) -> Result<Config, Invalid> {
    let Completed { config: versioned, cluster_cidrs, gates, min_sync_is_default } = completed;
    let from = &versioned;
    let mut field_errors = FieldErrors::under("KubeProxyConfiguration");
    let errors = &mut field_errors;
    let section = from.mode_settings();
    let mode = parse_mode(&from.mode);

    let iptables_bit = masquerade_bit(errors, "KubeProxyIPTablesConfiguration", from.iptables.masquerade_bit);
    let ipvs = ipvs(errors, from, mode);
    let masquerade_bit = match mode {
        Some(ProxyMode::Nftables) => {
            masquerade_bit(errors, "KubeProxyNFTablesConfiguration", from.nftables.masquerade_bit)
        }
        Some(ProxyMode::Iptables | ProxyMode::Ipvs) | None => iptables_bit,
    };
    let conntrack = conntrack(errors, &from.conntrack);
    let oom_score_adj = from.oom_score_adj.unwrap_or_default();
    if !(-1000..=1000).contains(&oom_score_adj) {
        let path = "KubeProxyLinuxConfiguration.OOMScoreAdj";
        errors.invalid(path, oom_score_adj, "must be within the range [-1000, 1000]");
    }
    if mode.is_none() {
        let detail = "must be iptables, ipvs, nftables or blank (blank means the best-available proxy [currently iptables])";
        errors.invalid("Mode.ProxyMode", from.mode.as_str(), detail);
    }
    let burst = at_least_zero(errors, "ClientConnection.Burst", from.client_connection.burst);
    let config_sync_period = above_zero(errors, "ConfigSyncPeriod", from.config_sync_period);
    let sync_period = above_zero(errors, "SyncPeriod", section.sync);
    let min_sync_period = not_negative(errors, "MinSyncPeriod", section.min_sync);
    if section.min_sync > MAX_MIN_SYNC_PERIOD {
        let detail = format!("must be less than or equal to {MAX_MIN_SYNC_PERIOD}");
        errors.invalid("MinSyncPeriod", section.min_sync, &detail);
    }
    if section.min_sync > section.sync {
        let detail = "must be greater than or equal to KubeProxyConfiguration.MinSyncPeriod";
        errors.invalid("SyncPeriod", section.min_sync, detail);
    }
    let bind_address = parse_ip(&from.bind_address).unwrap_or_else(|| {
        let detail = "not a valid textual representation of an IP address";
        errors.invalid("BindAddress", from.bind_address.as_str(), detail);
        Family::V4.loopback()
    });
    let healthz_bind_address = match from.healthz_bind_address.as_str() {
        "" => None,
        address => listen_address(errors, "HealthzBindAddress", address),
    };
    let metrics_bind_address = listen_address(errors, "MetricsBindAddress", &from.metrics_bind_address);
    let node_port_addresses = node_port_addresses(errors, from.node_port_addresses.as_deref().unwrap_or(&[]));
    show_hidden_metrics(errors, &from.show_hidden_metrics_for_version);
    let detect_local = detect_local(errors, from, &cluster_cidrs);

    field_errors.into_result()?;
    let client = Client {
        kubeconfig: from.client_connection.kubeconfig.clone(),
        accept_content_types: from.client_connection.accept_content_types.clone(),
        content_type: from.client_connection.content_type.clone(),
        qps: from.client_connection.qps,
        burst,
    };
    Ok(Config {
        mode: mode.expect("an unknown mode is an error"),
        gates,
        client,
        hostname_override: from.hostname_override.clone(),
        bind_address,
        bind_address_hard_fail: from.bind_address_hard_fail,
        healthz_bind_address,
        metrics_bind_address: metrics_bind_address.expect("a missing address is an error"),
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

fn masquerade_bit(errors: &mut FieldErrors, section: &str, bit: Option<i32>) -> u8 {
    let bit = bit.unwrap_or_default();
    u8::try_from(bit).ok().filter(|bit| *bit <= 31).unwrap_or_else(|| {
        errors.invalid(&format!("{section}.MasqueradeBit"), bit, "must be within the range [0, 31]");
        0
    })
}

/// Reports errors in ipvs mode only: the other modes do not use these settings.
fn ipvs(errors: &mut FieldErrors, config: &KubeProxyConfiguration, mode: Option<ProxyMode>) -> IpvsSettings {
    let mut ignored = FieldErrors::under("");
    let errors = if mode == Some(ProxyMode::Ipvs) { errors } else { &mut ignored };
    let from = &config.ipvs;
    let path = |field: &str| format!("KubeProxyIPVSConfiguration.{field}");
    let tcp_timeout = not_negative(errors, &path("TCPTimeout"), from.tcp_timeout);
    let tcp_fin_timeout = not_negative(errors, &path("TCPFinTimeout"), from.tcp_fin_timeout);
    let udp_timeout = not_negative(errors, &path("UDPTimeout"), from.udp_timeout);
    let mut exclude_cidrs = Vec::new();
    for (index, cidr) in from.exclude_cidrs.iter().flatten().enumerate() {
        match parse_cidr(cidr) {
            Some(cidr) => exclude_cidrs.push(cidr),
            None => {
                let path = path(&format!("ExcludeCidrs[{index}]"));
                errors.invalid(&path, cidr.as_str(), "must be a valid CIDR");
            }
        }
    }
    let scheduler = from.scheduler.clone();
    IpvsSettings {
        scheduler,
        exclude_cidrs,
        strict_arp: from.strict_arp,
        tcp_timeout,
        tcp_fin_timeout,
        udp_timeout,
    }
}

fn conntrack(errors: &mut FieldErrors, from: &KubeProxyConntrackConfiguration) -> ConntrackSettings {
    let path = |field: &str| format!("KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.{field}");
    let established = from.tcp_established_timeout.unwrap_or_default();
    let close_wait = from.tcp_close_wait_timeout.unwrap_or_default();
    // Fields are evaluated in the order written here, which gives upstream's order of errors.
    ConntrackSettings {
        max_per_core: at_least_zero(errors, &path("MaxPerCore"), from.max_per_core.unwrap_or_default()),
        min: at_least_zero(errors, &path("Min"), from.min.unwrap_or_default()),
        tcp_established_timeout: not_negative(errors, &path("TCPEstablishedTimeout"), established),
        tcp_close_wait_timeout: not_negative(errors, &path("TCPCloseWaitTimeout"), close_wait),
        tcp_be_liberal: from.tcp_be_liberal,
        udp_timeout: not_negative(errors, &path("UDPTimeout"), from.udp_timeout),
        udp_stream_timeout: not_negative(errors, &path("UDPStreamTimeout"), from.udp_stream_timeout),
    }
}

fn at_least_zero(errors: &mut FieldErrors, path: &str, value: i32) -> u32 {
    u32::try_from(value).unwrap_or_else(|_| {
        errors.invalid(path, value, "must be greater than or equal to 0");
        0
    })
}

fn not_negative(errors: &mut FieldErrors, path: &str, value: Duration) -> time::Duration {
    value.to_std().unwrap_or_else(|| {
        errors.invalid(path, value, "must be greater than or equal to 0");
        time::Duration::ZERO
    })
}

fn above_zero(errors: &mut FieldErrors, path: &str, value: Duration) -> time::Duration {
    value.to_std().filter(|duration| !duration.is_zero()).unwrap_or_else(|| {
        errors.invalid(path, value, "must be greater than 0");
        time::Duration::ZERO
    })
}

fn listen_address(errors: &mut FieldErrors, path: &str, text: &str) -> Option<SocketAddr> {
    let Ok((host, port)) = split_host_port(text) else {
        errors.invalid(path, text, "must be IP:port");
        return None;
    };
    let ip: Option<IpAddr> = parse_ip(host);
    if ip.is_none() {
        errors.invalid(path, host, "must be a valid IP");
    }
    let number = port.parse::<u16>().ok().filter(|port| *port != 0);
    if number.is_none() {
        errors.invalid(path, port, "must be a valid port");
    }
    Some(SocketAddr::new(ip?, number?))
}

fn node_port_addresses(errors: &mut FieldErrors, texts: &[String]) -> NodePortScope {
    if texts == ["primary"] {
        return NodePortScope::Primary;
    }
    let mut cidrs = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        let path = format!("NodePortAddresses[{index}]");
        if text == "primary" {
            errors.invalid(&path, text.as_str(), "can't use both 'primary' and CIDRs");
            break;
        }
        match parse_cidr(text) {
            Some(cidr) => cidrs.push(cidr),
            None => errors.invalid(&path, text.as_str(), "must be a valid CIDR"),
        }
    }
    NodePortScope::Cidrs(cidrs)
}

fn show_hidden_metrics(errors: &mut FieldErrors, version: &str) {
    if version.is_empty() || version == PREVIOUS_MINOR {
        return;
    }
    let inner = format!(
        "showHiddenMetricsForVersion: Invalid value: {}: must be omitted or have the value '{PREVIOUS_MINOR}'; \
         only the previous minor version is allowed",
        quote(version)
    );
    let detail = format!("invalid showHiddenMetricsForVersion: {inner}");
    errors.invalid("ShowHiddenMetricsForVersion", version, &detail);
}

fn detect_local(
    errors: &mut FieldErrors,
    config: &KubeProxyConfiguration,
    cidrs: &[String],
) -> DetectLocalMode {
    let (bridge, prefix) =
        (&config.detect_local.bridge_interface, &config.detect_local.interface_name_prefix);
    match config.detect_local_mode.as_str() {
        "ClusterCIDR" => DetectLocalMode::ClusterCidr(cluster_cidrs(errors, cidrs)),
        "NodeCIDR" => DetectLocalMode::NodeCidr,
        "BridgeInterface" => {
            if bridge.is_empty() {
                errors.invalid("DetectLocalConfiguration.InterfaceName", "", "must not be empty");
            }
            DetectLocalMode::BridgeInterface(bridge.clone())
        }
        "InterfaceNamePrefix" => {
            if prefix.is_empty() {
                errors.invalid("DetectLocalConfiguration.InterfacePrefix", "", "must not be empty");
            }
            DetectLocalMode::InterfaceNamePrefix(prefix.clone())
        }
        other => {
            errors.push(
                "DetectLocalMode",
                format_args!(
                    "Unsupported value: {}: supported values: \"ClusterCIDR\", \"NodeCIDR\", \
                     \"BridgeInterface\", \"InterfaceNamePrefix\", \"\"",
                    quote(other)
                ),
            );
            DetectLocalMode::NodeCidr
        }
    }
}

/// No range, one range, or one range of each family.
fn cluster_cidrs(errors: &mut FieldErrors, texts: &[String]) -> Vec<IpNet> {
    const PATH: &str = "DetectLocalConfiguration.ClusterCIDRs";
    let parsed: Vec<_> = texts.iter().map(|text| parse_cidr(text)).collect();
    let one_of_each = match parsed[..] {
        [Some(a), Some(b)] => Family::of_net(a) != Family::of_net(b),
        [_, _] | [_] | [] => true,
        _ => false,
    };
    if !one_of_each {
        let detail = "must be a either a single CIDR or dual-stack pair of CIDRs (e.g. [10.100.0.0/16, fde4:8dba:82e1::/48]";
        errors.invalid(PATH, texts, detail);
        return Vec::new();
    }
    for (index, (text, cidr)) in texts.iter().zip(&parsed).enumerate() {
        if cidr.is_none() {
            let detail = "must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)";
            errors.invalid(&format!("{PATH}[{index}]"), text.as_str(), detail);
        }
    }
    parsed.into_iter().flatten().collect()
}

/// The errors found so far, in the format of upstream's `field.ErrorList`.
#[derive(Debug)]
pub(super) struct FieldErrors {
    root: &'static str,
    errors: Vec<String>,
}

impl FieldErrors {
    pub(super) fn under(root: &'static str) -> Self {
        Self { root, errors: Vec::new() }
    }

    pub(super) fn invalid(&mut self, path: &str, value: impl ErrorValue, detail: &str) {
        self.push(path, format_args!("Invalid value: {}: {detail}", value.error_text()));
    }

    pub(super) fn forbidden(&mut self, path: &str, detail: &str) {
        self.push(path, format_args!("Forbidden: {detail}"));
    }

    pub(super) fn required(&mut self, path: &str, detail: &str) {
        self.push(path, format_args!("Required value: {detail}"));
    }

    fn push(&mut self, path: &str, message: fmt::Arguments<'_>) {
        self.errors.push(format!("{}.{path}: {message}", self.root));
    }

    pub(super) fn into_result(self) -> Result<(), Invalid> {
        match self.errors.as_slice() {
            [] => Ok(()),
            [one] => Err(Invalid(one.clone())),
            several => Err(Invalid(format!("[{}]", several.join(", ")))),
        }
    }
}

/// A value as an error prints it: quoted text, plain numbers, JSON lists.
pub(super) trait ErrorValue {
    fn error_text(&self) -> String;
}

impl ErrorValue for &str {
    fn error_text(&self) -> String {
        quote(self)
    }
}

impl ErrorValue for Duration {
    fn error_text(&self) -> String {
        quote(&self.to_string())
    }
}

impl ErrorValue for FlushFrequency {
    fn error_text(&self) -> String {
        if self.as_nanos { self.duration.as_nanos().to_string() } else { self.duration.error_text() }
    }
}

impl ErrorValue for i32 {
    fn error_text(&self) -> String {
        self.to_string()
    }
}

impl ErrorValue for u32 {
    fn error_text(&self) -> String {
        self.to_string()
    }
}

impl ErrorValue for &[String] {
    fn error_text(&self) -> String {
        let items: Vec<_> = self.iter().map(|item| quote(item)).collect();
        format!("[{}]", items.join(","))
    }
}
