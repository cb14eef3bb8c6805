//! What the rules of this mode in the kernel do, whether upstream wrote them or we: clients may depend on it when another mode
//! takes over.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use model::address::Family;

use crate::iptables::chains::{FORWARD, Jump, NODE_PORTS, SERVICES, is_ours};
use crate::iptables::listing::Listing;
use crate::iptables::saved_rule::SavedRule;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresentRules {
    /// Whether node ports are served at 127.0.0.1.
    pub serves_localhost: bool,
    /// The addresses that serve node ports; `None` if all do.
    pub node_port_ips: Option<BTreeSet<IpAddr>>,
    /// Whether forwarded packets without a connection are dropped.
    pub drops_invalid: bool,
    /// Whether the policy of the kernel's own chain is to drop.
    pub forward_drops: bool,
    /// The number of chains, of rules in them, and of jumps to them.
    pub objects: usize,
}

impl PresentRules {
    /// Parses what `iptables-save` prints for the two tables. `None` if there are no rules of this mode.
    pub fn read(family: Family, filter: &str, nat: &str) -> Option<Self> {
        let forward_drops = filter.lines().any(|line| line.starts_with(":FORWARD DROP"));
        let [filter, nat] = [filter, nat].map(Listing::parse);
        let to_node_ports = nat.0.get(SERVICES)?.iter().map(|rule| SavedRule::parse(rule));
        let to_node_ports: Vec<SavedRule<'_>> =
            to_node_ports.filter(|rule| rule.target() == Some(NODE_PORTS)).collect();
        let is_everywhere = to_node_ports.iter().any(|rule| rule.value("--dst-type") == Some("LOCAL"));
        let addresses = to_node_ports.iter().filter_map(|rule| rule.value("-d")?.parse::<IpNet>().ok());
        let ips: BTreeSet<IpAddr> = addresses.filter(|_| !is_everywhere).map(|net| net.addr()).collect();
        let excludes_loopback = to_node_ports
            .iter()
            .flat_map(|rule| &rule.options)
            .any(|option| option.is_negated && (option.name, option.value) == ("-d", "127.0.0.0/8"));
        let at_loopback = (is_everywhere && !excludes_loopback) || ips.iter().any(IpAddr::is_loopback);
        let mut forwarding = filter.0.get(FORWARD).into_iter().flatten();
        Some(Self {
            serves_localhost: family == Family::V4 && at_loopback,
            node_port_ips: (!is_everywhere).then_some(ips),
            drops_invalid: forwarding.any(|rule| rule.contains("--ctstate INVALID")),
            forward_drops,
            objects: objects(&filter) + objects(&nat),
        })
    }
}

fn objects(Listing(chains): &Listing) -> usize {
    let jumps = chains.values().flatten().filter(|rule| Jump::own().any(|jump| jump.rule() == **rule));
    let ours = chains.iter().filter(|(chain, _)| is_ours(chain));
    jumps.count() + ours.map(|(_, rules)| 1 + rules.len()).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_say_which_addresses_serve_node_ports() {
        let everywhere = "-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS";
        let not_loopback = "-A KUBE-SERVICES ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS";
        let at_two = "-A KUBE-SERVICES -d 192.0.2.1/32 -j KUBE-NODEPORTS\n-A KUBE-SERVICES -d 127.0.0.1/32 -j KUBE-NODEPORTS";
        let ips = |ips: &[&str]| Some(ips.iter().map(|ip| ip.parse().unwrap()).collect::<BTreeSet<IpAddr>>());
        for (nat, serves_localhost, node_port_ips) in [
            (everywhere, true, None),
            (not_loopback, false, None),
            (at_two, true, ips(&["127.0.0.1", "192.0.2.1"])),
            (":KUBE-SERVICES - [0:0]", false, ips(&[])),
        ] {
            let found = PresentRules::read(Family::V4, "", nat).unwrap();
            assert_eq!(
                (found.serves_localhost, found.node_port_ips),
                (serves_localhost, node_port_ips),
                "{nat}"
            );
        }
        assert_eq!(PresentRules::read(Family::V4, "", ":POSTROUTING ACCEPT [0:0]"), None);
    }

    #[test]
    fn the_filter_table_says_what_is_dropped() {
        let filter = ":FORWARD DROP [0:0]\n:KUBE-FORWARD - [0:0]\n-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP";
        let found = PresentRules::read(Family::V4, filter, ":KUBE-SERVICES - [0:0]").unwrap();
        assert!(found.forward_drops && found.drops_invalid);
        assert_eq!(found.objects, 3);
    }
}
