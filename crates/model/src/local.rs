//! How to recognize traffic from local pods, and which addresses of the node serve node ports.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::address::Family;

/// The property of a packet that shows that a local pod sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromPod {
    Source(IpNet),
    Interface(String),
    InterfacePrefix(String),
}

impl FromPod {
    /// By source address, in the first CIDR of the family. `None` if there is none: pods are then not recognized.
    pub fn by_source(cidrs: &[IpNet], family: Family) -> Option<Self> {
        cidrs.iter().find(|cidr| Family::of_net(**cidr) == family).map(|cidr| Self::Source(cidr.trunc()))
    }
}

/// The addresses of the node that serve node ports in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePortAddresses {
    family: Family,
    /// Never empty.
    cidrs: Vec<IpNet>,
    /// Whether they include 127.0.0.0/8 or a part of it. Only IPv4 can serve node ports on loopback.
    pub contain_ipv4_loopback: bool,
}

impl NodePortAddresses {
    /// A family that has no CIDR is not restricted: all its addresses serve node ports.
    pub fn new(family: Family, cidrs: &[IpNet]) -> Self {
        let mut kept: Vec<IpNet> =
            cidrs.iter().copied().filter(|cidr| Family::of_net(*cidr) == family).collect();
        if kept.is_empty() {
            kept.push(family.everything());
        }
        // Upstream ignores what follows the first CIDR of prefix length 0.
        let seen = kept.iter().position(|cidr| cidr.prefix_len() == 0).map_or(kept.len(), |at| at + 1);
        let loopback: IpNet = IpNet::new_assert(IpAddr::from([127, 0, 0, 0]), 8);
        let contain_ipv4_loopback = kept
            .iter()
            .take(seen)
            .any(|cidr| loopback.contains(&cidr.addr()) || cidr.contains(&loopback.addr()));
        if let Some(everything) = kept.iter().copied().find(|cidr| cidr.prefix_len() == 0) {
            kept = vec![everything];
        }
        Self { family, cidrs: kept, contain_ipv4_loopback }
    }

    /// Whether every address of the node is included, also those that it gets later.
    pub fn match_all(&self) -> bool {
        self.cidrs.iter().any(|cidr| cidr.prefix_len() == 0)
    }

    /// Those of the node's addresses that serve node ports, without duplicates, in the order of the configured CIDRs.
    pub fn among(&self, interfaces: &[IpAddr]) -> Vec<IpAddr> {
        let mut found = Vec::new();
        for cidr in &self.cidrs {
            for ip in interfaces {
                if Family::of(*ip) == self.family && cidr.contains(ip) && !found.contains(ip) {
                    found.push(*ip);
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidrs(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn pods_are_recognized_by_the_first_cidr_of_the_family() {
        let pods = cidrs(&["fd00:10::/56", "10.244.1.7/16", "10.245.0.0/16"]);
        assert_eq!(
            FromPod::by_source(&pods, Family::V4),
            Some(FromPod::Source("10.244.0.0/16".parse().unwrap()))
        );
        assert_eq!(
            FromPod::by_source(&pods, Family::V6),
            Some(FromPod::Source("fd00:10::/56".parse().unwrap()))
        );
        assert_eq!(FromPod::by_source(&cidrs(&["10.0.0.0/8"]), Family::V6), None);
    }

    #[test]
    fn all_addresses_serve_node_ports_unless_their_family_is_restricted() {
        let restricted = cidrs(&["10.0.0.0/8", "192.168.0.0/16"]);
        for (family, given, match_all, loopback) in [
            (Family::V4, &[][..], true, true),
            (Family::V6, &[][..], true, false),
            (Family::V4, &restricted, false, false),
            (Family::V6, &restricted, true, false),
            (Family::V4, &cidrs(&["10.0.0.0/8", "0.0.0.0/0", "127.0.0.1/32"]), true, true),
            (Family::V4, &cidrs(&["127.0.0.0/16"]), false, true),
            (Family::V4, &cidrs(&["64.0.0.0/2"]), false, true),
        ] {
            let found = NodePortAddresses::new(family, given);
            assert_eq!(found.match_all(), match_all, "{family} {given:?}");
            assert_eq!(found.contain_ipv4_loopback, loopback, "{family} {given:?}");
        }
    }

    #[test]
    fn node_addresses_are_in_the_order_of_the_cidrs_without_duplicates() {
        let interfaces = ips(&["127.0.0.1", "192.168.0.2", "10.0.0.1", "fd00::1", "192.168.0.3"]);
        let addresses =
            NodePortAddresses::new(Family::V4, &cidrs(&["10.0.0.0/8", "192.168.0.0/16", "10.0.0.1/32"]));
        assert_eq!(addresses.among(&interfaces), ips(&["10.0.0.1", "192.168.0.2", "192.168.0.3"]));
        let all = NodePortAddresses::new(Family::V6, &[]);
        assert_eq!(all.among(&interfaces), ips(&["fd00::1"]));
    }
}
