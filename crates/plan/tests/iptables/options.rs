//! What the node of an example is like, and how it was configured.

use std::net::IpAddr;

use ipnet::IpNet;
use model::address::Family;
use model::cluster::Here;
use model::hashing::MAX_HASHED;
use model::local::{FromPod, NodePortAddresses};
use plan::iptables::program::{Abilities, Counters, RuleSettings};
use plan::mark::Mark;
use serde::Deserialize;

/// What an example may differ in; the defaults are those of all examples.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Options {
    pub family: String,
    pub masquerade_all: bool,
    pub detect_local: DetectLocal,
    pub localhost_node_ports: bool,
    pub node_port_addresses: Vec<String>,
    pub nfacct: bool,
    pub tcp_be_liberal: bool,
    pub random_fully: bool,
    #[serde(rename = "allowServiceExternalIPs")]
    pub allow_service_external_ips: bool,
    /// The example that comes before this one.
    pub after: Option<String>,
    pub delete: Vec<String>,
    /// The example whose text is expected.
    pub same_as: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DetectLocal {
    pub cluster_cidrs: Vec<String>,
    pub bridge_interface: Option<String>,
    pub interface_name_prefix: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        let cluster_cidrs = ["10.244.0.0/16", "fd00:10:244::/48"].map(String::from).into();
        Self {
            family: "IPv4".into(),
            masquerade_all: false,
            detect_local: DetectLocal { cluster_cidrs, ..DetectLocal::default() },
            localhost_node_ports: true,
            node_port_addresses: Vec::new(),
            nfacct: true,
            tcp_be_liberal: false,
            random_fully: true,
            allow_service_external_ips: true,
            after: None,
            delete: Vec::new(),
            same_as: None,
        }
    }
}

impl Options {
    pub fn v6() -> Self {
        Self { family: "IPv6".into(), ..Self::default() }
    }

    pub fn family(&self) -> Family {
        Family::from_api(&self.family).unwrap()
    }

    /// Node-1.
    pub fn here(&self) -> Here {
        let family = self.family();
        Here {
            family,
            node_name: "node-1".into(),
            node_ip: match family {
                Family::V4 => "192.168.0.2".parse().unwrap(),
                Family::V6 => "fd00:192:168::2".parse().unwrap(),
            },
            serve_external_ips: self.allow_service_external_ips,
            max_hashed: MAX_HASHED,
            started: "2026-01-01T00:00:00Z".parse().unwrap(),
        }
    }

    pub fn settings(&self) -> RuleSettings {
        let family = self.family();
        let detect = &self.detect_local;
        let interface = detect.bridge_interface.clone().map(FromPod::Interface);
        let prefix = detect.interface_name_prefix.clone().map(FromPod::InterfacePrefix);
        RuleSettings {
            family,
            mark: Mark::from_bit(14).unwrap(),
            masquerade_all: self.masquerade_all,
            from_pod: interface
                .or(prefix)
                .or_else(|| FromPod::by_source(&cidrs(&detect.cluster_cidrs), family)),
            localhost_node_ports: self.localhost_node_ports,
            node_port_addresses: NodePortAddresses::new(family, &cidrs(&self.node_port_addresses)),
            abilities: Abilities {
                random_fully: self.random_fully,
                tcp_liberal: self.tcp_be_liberal,
                counters: Counters { invalid_dropped: self.nfacct, localhost_node_ports: self.nfacct },
            },
        }
    }
}

fn cidrs(texts: &[String]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// The addresses of node-1.
pub fn interfaces() -> Vec<IpAddr> {
    ["127.0.0.1", "::1", "192.168.0.2", "fd00:192:168::2", "192.168.1.2"].map(|ip| ip.parse().unwrap()).into()
}
