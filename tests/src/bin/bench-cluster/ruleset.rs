//! What the kernel holds on a node: the size of the ruleset of any kube-proxy.

use netlink::Family;
use netlink::nftables::NftablesSocket;
use testkit::namespace::Namespace;

pub struct RulesetSize {
    pub rules: usize,
    pub sets: usize,
    pub elements: usize,
}

/// Counts all tables of IPv4, which include those of `iptables-nft`. Takes seconds for 100,000 elements.
pub fn count(node: &Namespace) -> RulesetSize {
    node.enter(|| {
        let mut socket = NftablesSocket::open().unwrap();
        let mut size = RulesetSize { rules: 0, sets: 0, elements: 0 };
        for table in socket.tables(Family::Ipv4).unwrap() {
            size.rules += socket.rules(Family::Ipv4, &table.name).unwrap().len();
            for set in socket.sets(Family::Ipv4, &table.name).unwrap() {
                size.sets += 1;
                size.elements += socket.elements(Family::Ipv4, &table.name, &set.name, |_| ()).unwrap().len();
            }
        }
        size
    })
}
