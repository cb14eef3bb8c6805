//! The rules that do not depend on Services, and the settings that all rules depend on.

use std::net::IpAddr;

use model::address::Family;
use model::local::{FromPod, NodePortAddresses};

use crate::iptables::chains::{
    EXTERNAL_SERVICES, FIREWALL, FORWARD, MARK_MASQ, NODE_PORTS, POSTROUTING, PROXY_FIREWALL, SERVICES,
};
use crate::iptables::quoting::word;
use crate::mark::Mark;

/// What the rules of one family depend on, besides Services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSettings {
    pub family: Family,
    pub mark: Mark,
    pub masquerade_all: bool,
    /// How rules recognize traffic from pods; without it, some rules are left out.
    pub from_pod: Option<FromPod>,
    /// As configured; see [`RuleSettings::serves_localhost`] for whether it has an effect.
    pub localhost_node_ports: bool,
    pub node_port_addresses: NodePortAddresses,
    pub abilities: Abilities,
}

/// What the commands and the kernel of this machine support.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// Whether `iptables` knows `MASQUERADE --random-fully`.
    pub random_fully: bool,
    /// Whether conntrack accepts TCP segments outside of the window: then INVALID packets must not be dropped.
    pub tcp_liberal: bool,
    pub counters: Counters,
}

/// Which of the named packet counters the kernel has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub invalid_dropped: bool,
    pub localhost_node_ports: bool,
}

pub const INVALID_DROPPED: &str = "ct_state_invalid_dropped_pkts";
pub const LOCALHOST_NODE_PORTS: &str = "localhost_nps_accepted_pkts";

/// A chain, and a rule without `-A` and the chain.
pub type Fixed = (&'static str, String);

/// In upstream's order.
pub const NAT_CHAINS: [&str; 4] = [SERVICES, NODE_PORTS, POSTROUTING, MARK_MASQ];
const FILTER_CHAINS: [&str; 5] = [SERVICES, EXTERNAL_SERVICES, FORWARD, NODE_PORTS, PROXY_FIREWALL];

impl RuleSettings {
    /// Whether node ports are served at 127.0.0.1; IPv6 cannot route from loopback to a pod.
    pub fn serves_localhost(&self) -> bool {
        self.localhost_node_ports
            && self.family == Family::V4
            && self.node_port_addresses.contain_ipv4_loopback
    }

    /// Without kubelet's chain if we have no rule for it.
    pub fn filter_chains(&self) -> impl Iterator<Item = &'static str> {
        FILTER_CHAINS.into_iter().chain(self.serves_localhost().then_some(FIREWALL))
    }

    /// The rules of the nat table before those of Services.
    pub fn masquerading(&self) -> Vec<Fixed> {
        let mark = self.mark;
        let random = if self.abilities.random_fully { " --random-fully" } else { "" };
        let why = r#"-m comment --comment "kubernetes service traffic requiring SNAT""#;
        vec![
            (POSTROUTING, format!("-m mark ! --mark {mark}/{mark} -j RETURN")),
            (POSTROUTING, format!("-j MARK --xor-mark {mark}")),
            (POSTROUTING, format!("{why} -j MASQUERADE{random}")),
            (MARK_MASQ, format!("-j MARK --or-mark {mark}")),
        ]
    }

    /// The rules of the filter table before those of Services. Node ports at localhost need `route_localnet`, and with it other
    /// hosts could reach what listens on localhost.
    pub fn martians(&self) -> Vec<Fixed> {
        let rule = r#"-m comment --comment "block incoming localnet connections" -d 127.0.0.0/8 ! -s 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"#;
        if self.serves_localhost() { vec![(FIREWALL, rule.into())] } else { Vec::new() }
    }

    /// The rules of the filter table after those of Services.
    pub fn forwarding(&self) -> Vec<Fixed> {
        let mark = self.mark;
        let mut rules = Vec::new();
        if !self.abilities.tcp_liberal {
            let counted = counted(self.abilities.counters.invalid_dropped, INVALID_DROPPED);
            rules.push((FORWARD, format!("-m conntrack --ctstate INVALID{counted} -j DROP")));
        }
        let marked = r#"-m comment --comment "kubernetes forwarding rules""#;
        let known = r#"-m comment --comment "kubernetes forwarding conntrack rule""#;
        rules.push((FORWARD, format!("{marked} -m mark --mark {mark}/{mark} -j ACCEPT")));
        rules.push((FORWARD, format!("{known} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")));
        rules
    }

    /// The node's addresses that serve node ports, and those that are configured but cannot: loopback addresses, unless node
    /// ports are served at localhost.
    pub fn node_port_ips(&self, interfaces: &[IpAddr]) -> (Vec<IpAddr>, Vec<IpAddr>) {
        let serves_localhost = self.serves_localhost();
        let asked_for = self.node_port_addresses.among(interfaces).into_iter();
        asked_for.partition(|ip| serves_localhost || !ip.is_loopback())
    }

    /// The last rules of nat KUBE-SERVICES: packets to the node itself may be for a node port.
    pub fn tail(&self, node_port_ips: &[IpAddr]) -> Vec<String> {
        let why = r#"-m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain""#;
        if !self.node_port_addresses.match_all() {
            return node_port_ips.iter().map(|ip| format!("{why} -d {ip} -j {NODE_PORTS}")).collect();
        }
        let but = match self.family {
            Family::V4 if self.serves_localhost() => "",
            Family::V4 => " ! -d 127.0.0.0/8",
            Family::V6 => " ! -d ::1/128",
        };
        vec![format!("{why} -m addrtype --dst-type LOCAL{but} -j {NODE_PORTS}")]
    }

    /// The options that match traffic from pods.
    pub fn from_pod(&self) -> Option<String> {
        self.from_pod.as_ref().map(|from| match from {
            FromPod::Source(cidr) => format!("-s {cidr}"),
            FromPod::Interface(name) => format!("-i {}", word(name)),
            FromPod::InterfacePrefix(prefix) => format!("-i {}", word(&format!("{prefix}+"))),
        })
    }
}

/// The options that count packets; empty if the counter does not exist.
fn counted(exists: bool, counter: &str) -> String {
    if exists { format!(" -m nfacct --nfacct-name {counter}") } else { String::new() }
}
