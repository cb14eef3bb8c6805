//! The configuration: reading it from flags or a file, defaults, validation, and the validated form.
//!
//! ```text
//!   flags ─┐
//!          ├─▶ complete ─▶ KubeProxyConfiguration ─▶ validation ─▶ Config
//!   file  ─┘               as written, with defaults               typed
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

/// A validated configuration.
#[derive(Clone, Debug)]
pub struct Config {
    pub mode: ProxyMode,
    pub gates: Gates,
    pub client: Client,
    /// As configured. The node's name is this, trimmed and in lower case, or the host name if it is empty.
    pub hostname_override: String,
    /// The node's primary IP, unless unspecified.
    pub bind_address: IpAddr,
    /// Exit if a listener cannot bind, instead of retrying.
    pub bind_address_hard_fail: bool,
    pub healthz_bind_address: Option<SocketAddr>,
    pub metrics_bind_address: SocketAddr,
    pub enable_profiling: bool,
    pub show_hidden_metrics: bool,
    pub masquerade_all: bool,
    /// The bit of the packet mark, from the section of the configured mode.
    pub masquerade_bit: u8,
    pub localhost_node_ports: bool,
    pub sync_period: Duration,
    pub min_sync_period: Duration,
    /// See [`Completed::min_sync_is_default`].
    pub min_sync_is_default: bool,
    pub config_sync_period: Duration,
    pub detect_local: DetectLocalMode,
    /// Not parsed: only the ClusterCIDR mode requires them to be valid.
    pub cluster_cidrs: Vec<String>,
    pub node_port_addresses: NodePortScope,
    pub conntrack: ConntrackSettings,
    pub oom_score_adj: i32,
    pub ipvs: IpvsSettings,
    /// Not used on Linux, but upstream warns if its family is wrong.
    pub winkernel_source_vip: String,
    /// The versioned form, for `--write-config-to` and `/configz`.
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
    /// Empty if there is none.
    pub kubeconfig: String,
    pub accept_content_types: String,
    pub content_type: String,
    /// Negative for no limit.
    pub qps: f32,
    pub burst: u32,
}

/// How to recognize traffic from pods of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DetectLocalMode {
    /// At most one range of each family.
    ClusterCidr(Vec<IpNet>),
    NodeCidr,
    BridgeInterface(String),
    InterfaceNamePrefix(String),
}

/// Which addresses of the node serve node ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortScope {
    /// The addresses within these ranges; all addresses if empty.
    Cidrs(Vec<IpNet>),
    Primary,
}

/// Zero leaves the kernel's value unchanged.
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

/// Used in ipvs mode only: in other modes it is not validated, and invalid values are dropped. A timeout of zero leaves
/// the kernel's value unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpvsSettings {
    pub scheduler: String,
    pub exclude_cidrs: Vec<IpNet>,
    pub strict_arp: bool,
    pub tcp_timeout: Duration,
    pub tcp_fin_timeout: Duration,
    pub udp_timeout: Duration,
}
