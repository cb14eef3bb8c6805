//! The settings of kube-proxy that affect packets.

use model::address::Family;
use model::local::{FromPod, NodePortAddresses};

use testkit::network::pod_cidr;

#[derive(Clone, Debug)]
pub struct Options {
    pub masquerade_all: bool,
    pub masquerade_bit: u32,
    pub detect_local: DetectLocal,
    /// Empty for all addresses of the node.
    pub node_port_addresses: &'static [&'static str],
}

/// How the proxy recognises traffic from pods: `detectLocalMode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetectLocal {
    /// Treats no traffic as coming from pods.
    No,
    PodCidr,
    Bridge(&'static str),
    InterfacePrefix(&'static str),
}

impl Default for Options {
    fn default() -> Self {
        Self {
            masquerade_all: false,
            masquerade_bit: 14,
            detect_local: DetectLocal::PodCidr,
            node_port_addresses: &[],
        }
    }
}

impl Options {
    pub fn node_port_addresses(&self, family: Family) -> NodePortAddresses {
        let cidrs: Vec<_> = self.node_port_addresses.iter().map(|cidr| cidr.parse().unwrap()).collect();
        NodePortAddresses::new(family, &cidrs)
    }

    pub fn from_pod(&self, family: Family) -> Option<FromPod> {
        match self.detect_local {
            DetectLocal::No => None,
            DetectLocal::PodCidr => Some(FromPod::Source(pod_cidr(family).parse().unwrap())),
            DetectLocal::Bridge(name) => Some(FromPod::Interface(name.into())),
            DetectLocal::InterfacePrefix(prefix) => Some(FromPod::InterfacePrefix(prefix.into())),
        }
    }
}
