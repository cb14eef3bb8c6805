//! What the kernel does with a packet, compared with what it should do: the same interpreters, run over the actual state.
//!
//! In the nftables mode this reads the sets, and takes for granted that the rules are the program's, which `verify` checks; in the
//! ipvs mode it also reads the virtual server. In the iptables mode it reads the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use model::address::Family;
use model::local::FromPod;
use serde::{Deserialize, Serialize};

use super::{Explanation, Fate, PodDetection, RuleContext};
use crate::iptables::interpreter::{self as iptables, NO_RECENT_CLIENTS, Tables};
use crate::mark::Mark;
use crate::nftables::interpreter::{self as nftables, Sets};
use crate::nftables::program::{Program, ProgramSettings};
use crate::nftables::timeouts;
use crate::walk::{Packet, PacketContext, Walk};

/// What the kernel does, and whether that agrees with the explanation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Live {
    pub agrees: bool,
    pub fate: Fate,
    pub endpoints: BTreeSet<SocketAddr>,
    /// The endpoints to which the packet is masqueraded.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub masqueraded: BTreeSet<SocketAddr>,
    /// Some random numbers lead to no endpoint: something is missing.
    pub may_miss: bool,
    /// Rules on the path that the interpreter does not understand: a foreign writer put them into our chains.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_understood: Vec<String>,
    /// If the kernel does not agree: rules of the other mode, which may serve the packet and are not followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_followed: Option<String>,
}

impl Live {
    fn new<Rule, Change>(explanation: &Explanation, walk: Walk<'_, Rule, Change>) -> Self {
        let forwarded = walk.paths.iter().filter(|path| path.is_forwarded());
        let found: BTreeMap<SocketAddr, bool> =
            forwarded.filter_map(|path| Some((path.endpoint?, path.is_masqueraded))).collect();
        let targets = explanation.endpoints.iter();
        let expected: BTreeMap<SocketAddr, bool> =
            targets.map(|target| (target.address, target.masquerade.is_some())).collect();
        let rest = walk.paths.iter().find(|path| !path.is_forwarded()).map(|path| Fate::from(path.verdict));
        let fate = if found.is_empty() { rest.unwrap_or(Fate::Untouched) } else { Fate::Forwarded };
        let otherwise = rest.filter(|_| fate == Fate::Forwarded);
        let masqueraded = found.iter().filter(|(_, is_masqueraded)| **is_masqueraded);
        Self {
            agrees: fate == explanation.fate
                && found == expected
                && otherwise == explanation.otherwise
                && walk.not_understood.is_empty(),
            fate,
            masqueraded: masqueraded.map(|(address, _)| *address).collect(),
            endpoints: found.into_keys().collect(),
            may_miss: otherwise.is_some(),
            not_understood: walk.not_understood,
            not_followed: None,
        }
    }

    /// Where there are no rules, nothing happens to a packet.
    pub fn without_rules(explanation: &Explanation) -> Self {
        Self {
            agrees: explanation.fate == Fate::Untouched,
            fate: Fate::Untouched,
            endpoints: BTreeSet::new(),
            masqueraded: BTreeSet::new(),
            may_miss: false,
            not_understood: Vec::new(),
            not_followed: None,
        }
    }
}

/// Where the kernel's sets lead the packet. `addresses` are all addresses of the node.
pub fn through_sets<S: Sets>(
    explanation: &Explanation,
    addresses: &[IpAddr],
    sets: &mut S,
) -> Result<Live, S::Error> {
    // Only the sets know which timeouts are in use; a chain that no packet reaches costs little.
    let program = Program::new(&explanation.settings(), &timeouts::all());
    let packet = explanation.packet();
    let walk = nftables::run(&program, &PacketContext::new(&packet, addresses), sets)?;
    Ok(Live::new(explanation, walk))
}

/// Where the kernel's rules lead the packet. `nat` and `filter` are what `iptables-save` prints for these tables.
pub fn through_rules(explanation: &Explanation, nat: &str, filter: &str, addresses: &[IpAddr]) -> Live {
    let tables = Tables::saved(nat, filter);
    let packet = explanation.packet();
    let walk = iptables::run(&tables, &PacketContext::new(&packet, addresses), NO_RECENT_CLIENTS);
    Live::new(explanation, walk)
}

impl Explanation {
    fn packet(&self) -> Packet {
        Packet {
            source: self.source,
            source_port: self.source_port,
            protocol: self.protocol,
            destination: self.destination,
            interface: self.context.interface.clone(),
        }
    }

    fn settings(&self) -> ProgramSettings {
        let RuleContext { from_pod, masquerade_all, mark, node_ports_everywhere, .. } = &self.context;
        ProgramSettings {
            family: Family::of(self.destination.ip()),
            balancer: self.mode.balancer(),
            mark: Mark::from_bits(*mark),
            masquerade_all: *masquerade_all,
            from_pod: from_pod.as_ref().and_then(|by| match by {
                PodDetection::Cidr(cidr) => cidr.parse().ok().map(FromPod::Source),
                PodDetection::Interface(name) => Some(FromPod::Interface(name.clone())),
                PodDetection::InterfacePrefix(prefix) => Some(FromPod::InterfacePrefix(prefix.clone())),
            }),
            node_ports_everywhere: *node_ports_everywhere,
            can_hash: true,
        }
    }
}
