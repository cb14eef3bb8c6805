//! The configuration: where it comes from, what it may hold, and what the rest of the program is given.
//!
//! ```text
//!   flags ─┐
//!          ├─▶ complete ─▶ KubeProxyConfiguration ─▶ validation ─▶ Config
//!   file  ─┘               as written, no gaps                     as types
//! ```

mod complete;
pub mod defaults;
mod document;
mod logging;
mod scalars;
pub mod v1alpha1;
mod validation;
pub mod yaml;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;

use crate::gates::Gates;

pub use complete::{Completed, complete};
pub use logging::log_settings;
pub use v1alpha1::KubeProxyConfiguration;
pub use validation::{Invalid, validate};

/// A configuration that has been found valid. Nothing in it needs to be checked again.
#[derive(Clone, Debug)]
pub struct Config {
    pub mode: ProxyMode,
    pub gates: Gates,
    pub client: Client,
    /// As configured; the node's name is this trimmed and in lower case, or else the host's.
    pub hostname_override: String,
    /// The node's primary IP, unless unspecified.
    pub bind_address: IpAddr,
    /// A listener that fails is the end.
    pub bind_address_hard_fail: bool,
    pub healthz_bind_address: Option<SocketAddr>,
    pub metrics_bind_address: SocketAddr,
    pub enable_profiling: bool,
    pub show_hidden_metrics: bool,
    pub masquerade_all: bool,
    /// The bit of the packet mark, for the mode in force.
    pub masquerade_bit: u8,
    pub localhost_node_ports: bool,
    pub sync_period: Duration,
    pub min_sync_period: Duration,
    /// Nobody asked for it: a mode that knows a better pause may use that.
    pub min_sync_is_default: bool,
    pub config_sync_period: Duration,
    pub detect_local: DetectLocal,
    /// As written, since only the ClusterCIDR mode insists that they are ranges.
    pub cluster_cidrs: Vec<String>,
    pub node_port_addresses: NodePortScope,
    pub conntrack: ConntrackSettings,
    pub oom_score_adj: i32,
    pub ipvs: Ipvs,
    /// Means nothing on Linux, but an address of the wrong family is worth a warning.
    pub winkernel_source_vip: String,
    /// The same as it was written: for `--write-config-to` and `/configz`.
    pub versioned: KubeProxyConfiguration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyMode {
    Iptables,
    Ipvs,
    Nftables,
}

/// How to talk to the API server.
#[derive(Clone, Debug, PartialEq)]
pub struct Client {
    /// Empty: none.
    pub kubeconfig: String,
    pub accept_content_types: String,
    pub content_type: String,
    /// Negative: no limit.
    pub qps: f32,
    pub burst: u32,
}

/// How to tell that traffic comes from a pod of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DetectLocal {
    /// At most one range of each family.
    ClusterCidr(Vec<IpNet>),
    NodeCidr,
    BridgeInterface(String),
    InterfaceNamePrefix(String),
}

/// Which addresses of the node serve node ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortScope {
    /// Those within; all, if there are no ranges.
    Cidrs(Vec<IpNet>),
    Primary,
}

/// Zero leaves the kernel's value alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConntrackSettings {
    pub max_per_core: u32,
    pub min: u32,
    pub tcp_established_timeout: Duration,
    pub tcp_close_wait_timeout: Duration,
    pub tcp_be_liberal: bool,
    pub udp_timeout: Duration,
    pub udp_stream_timeout: Duration,
}

/// Means something in ipvs mode only; elsewhere what is not valid is left out. Zero leaves a timeout alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipvs {
    pub scheduler: String,
    pub exclude_cidrs: Vec<IpNet>,
    pub strict_arp: bool,
    pub tcp_timeout: Duration,
    pub tcp_fin_timeout: Duration,
    pub udp_timeout: Duration,
}
