//! What the proxy reads from its own Node object: addresses, and whether load balancers should still use the node.

use std::net::IpAddr;

use crate::address::{Family, parse_ip};
use crate::api;

/// The node's address in each family, and its primary family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeIps {
    pub v4: IpAddr,
    pub v6: IpAddr,
    pub primary: Family,
}

impl NodeIps {
    /// The bind address takes precedence unless it is unspecified, then the addresses of the Node object, then loopback.
    pub fn new(host_ips: &[IpAddr], bind_address: Option<IpAddr>) -> Self {
        let mut ips = Self { v4: Family::V4.loopback(), v6: Family::V6.loopback(), primary: Family::V4 };
        // In reverse, so that the first address is set last and determines the primary family.
        for ip in host_ips.iter().rev() {
            ips.prefer(*ip);
        }
        if let Some(ip) = bind_address.filter(|ip| !ip.is_unspecified()) {
            ips.prefer(ip);
        }
        ips
    }

    pub fn of(&self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }

    fn prefer(&mut self, ip: IpAddr) {
        self.primary = Family::of(ip);
        match self.primary {
            Family::V4 => self.v4 = ip,
            Family::V6 => self.v6 = ip,
        }
    }
}

/// The node's first address, internal before external, and its first address of the other family if there is one.
pub fn host_ips(node: &api::Node) -> Vec<IpAddr> {
    let of_type = |kind: &'static str| {
        let addresses = node.status.addresses.iter().filter(move |address| address.r#type == kind);
        addresses.filter_map(|address| parse_ip(&address.address))
    };
    let mut all = of_type("InternalIP").chain(of_type("ExternalIP"));
    let Some(first) = all.next() else { return Vec::new() };
    let second = all.find(|ip| Family::of(*ip) != Family::of(first));
    [Some(first), second].into_iter().flatten().collect()
}

/// Whether load balancers should send traffic to this node: not while it is being deleted.
pub fn is_eligible(node: &api::Node) -> bool {
    let is_deleting = |taint: &api::Taint| taint.key == "ToBeDeletedByClusterAutoscaler";
    node.metadata.deletion_timestamp.is_none() && !node.spec.taints.iter().any(is_deleting)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(addresses: &[(&str, &str)]) -> api::Node {
        let mut node = api::Node::default();
        node.status.addresses = addresses
            .iter()
            .map(|(kind, address)| api::NodeAddress { r#type: (*kind).into(), address: (*address).into() })
            .collect();
        node
    }

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn internal_addresses_precede_external_ones_and_each_family_occurs_once() {
        for (addresses, want) in [
            (&[][..], &[][..]),
            (&[("Hostname", "n1"), ("ExternalIP", "203.0.113.1"), ("InternalIP", "10.0.0.1")], &["10.0.0.1"]),
            (
                &[("InternalIP", "10.0.0.1"), ("InternalIP", "10.0.0.2"), ("ExternalIP", "2001:db8::1")],
                &["10.0.0.1", "2001:db8::1"],
            ),
            (&[("InternalIP", "fd00::1"), ("InternalIP", "10.0.0.1")], &["fd00::1", "10.0.0.1"]),
            (&[("InternalIP", "nonsense"), ("InternalIP", "10.0.0.01")], &["10.0.0.1"]),
        ] {
            assert_eq!(host_ips(&node(addresses)), ips(want), "{addresses:?}");
        }
    }

    #[test]
    fn the_bind_address_precedes_the_node_object_which_precedes_loopback() {
        let bind = |text: &str| Some(text.parse().unwrap());
        for (host, bind, want) in [
            (&[][..], None, ("127.0.0.1", "::1", Family::V4)),
            (&["10.0.0.1"], bind("0.0.0.0"), ("10.0.0.1", "::1", Family::V4)),
            (&["fd00::1", "10.0.0.1"], bind("::"), ("10.0.0.1", "fd00::1", Family::V6)),
            (&["10.0.0.1", "fd00::1"], bind("fd00::2"), ("10.0.0.1", "fd00::2", Family::V6)),
            (&["fd00::1"], bind("10.0.0.9"), ("10.0.0.9", "fd00::1", Family::V4)),
        ] {
            let found = NodeIps::new(&ips(host), bind);
            let found = (found.v4.to_string(), found.v6.to_string(), found.primary);
            assert_eq!(found, (want.0.into(), want.1.into(), want.2), "{host:?} {bind:?}");
        }
    }

    #[test]
    fn a_node_that_is_being_deleted_is_not_eligible() {
        let fine = node(&[]);
        assert!(is_eligible(&fine));
        let mut tainted = fine.clone();
        tainted.spec.taints.push(api::Taint { key: "ToBeDeletedByClusterAutoscaler".into() });
        assert!(!is_eligible(&tainted));
        let mut other_taint = fine.clone();
        other_taint.spec.taints.push(api::Taint { key: "node.kubernetes.io/unschedulable".into() });
        assert!(is_eligible(&other_taint));
        let mut deleted = fine;
        deleted.metadata.deletion_timestamp = Some("2026-11-15T18:00:00Z".into());
        assert!(!is_eligible(&deleted));
    }
}
