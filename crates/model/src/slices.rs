//! The slices of a Service become the candidates of each of its ports.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::address::{Family, parse_ip};
use crate::api;
use crate::names::{NamespacedName, Port, Protocol, Shared};
use crate::note::Note;

/// What we keep of an EndpointSlice. Two slices are equal when they say the same, in whatever order they say it.
#[derive(Debug, PartialEq, Eq)]
pub struct Slice {
    pub service: NamespacedName,
    ports: Box<[SlicePort]>,
    endpoints: Box<[SliceEndpoint]>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SlicePort {
    name: Arc<str>,
    protocol: Protocol,
    port: Port,
}

/// There are as many of these as pods in the cluster: every byte counts.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SliceEndpoint {
    ip: IpAddr,
    conditions: Conditions,
    node_hint: NodeHint,
    zone_hints: Option<Arc<Zones>>,
}

const _: () = assert!(size_of::<SliceEndpoint>() <= 32);

/// What the API says about an endpoint's state, and whether it is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions {
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
    /// On this node.
    pub local: bool,
}

/// Which nodes the controller would like an endpoint to be used from. This node's name never changes while we run,
/// so of all node hints one question is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeHint {
    Absent,
    ThisNode,
    OtherNodes,
}

/// Which zones the controller would like an endpoint to be used from. Few distinct values exist: they are shared.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Zones(Box<[Box<str>]>);

impl Zones {
    #[cfg(test)]
    pub(crate) fn of(names: &[&str]) -> Self {
        Self(names.iter().map(|name| (*name).into()).collect())
    }

    pub fn contain(&self, zone: &str) -> bool {
        self.0.iter().any(|hint| &**hint == zone)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|name| &**name)
    }
}

/// An endpoint of one service port, before anyone has decided whether it may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub ip: IpAddr,
    pub port: Port,
    pub conditions: Conditions,
    pub node_hint: NodeHint,
    pub zone_hints: Option<Arc<Zones>>,
}

/// The candidates of one port of a Service, ordered by their text.
#[derive(Debug, PartialEq, Eq)]
pub struct PortCandidates {
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub candidates: Vec<Candidate>,
}

/// What reading slices takes from the node it runs on.
#[derive(Debug)]
pub struct SliceReader<'a> {
    pub family: Family,
    /// Empty when unknown: then nothing is local.
    pub node_name: &'a str,
    pub names: &'a mut Shared<str>,
    pub zones: &'a mut Shared<Zones>,
    pub notes: &'a mut Vec<Note>,
}

impl SliceReader<'_> {
    /// The slice's content, for the Service it names.
    pub fn read(&mut self, slice: &api::EndpointSlice, service: NamespacedName) -> Slice {
        let object = &slice.metadata;
        let mut ports: Vec<_> = slice.ports.iter().filter_map(|port| self.port(object, port)).collect();
        let mut endpoints: Vec<_> =
            slice.endpoints.iter().filter_map(|endpoint| self.endpoint(object, endpoint)).collect();
        ports.sort();
        // A stable sort: among endpoints of one address, which comes last still decides (see `merge`).
        endpoints.sort_by_key(|endpoint| endpoint.ip);
        Slice { service, ports: ports.into(), endpoints: endpoints.into() }
    }

    fn port(&mut self, object: &api::Metadata, port: &api::EndpointPort) -> Option<SlicePort> {
        let Some(name) = &port.name else {
            self.notes.push(Note::new("Ignoring port with nil name", object));
            return None;
        };
        let number = port.port.unwrap_or(0);
        if number == 0 {
            self.notes.push(Note::new("Ignoring invalid endpoint port", object).with("portName", name));
            return None;
        }
        let Some(number) = Port::from_api(number) else {
            self.notes.push(Note::new("Ignoring endpoint port outside 1-65535", object).with("port", number));
            return None;
        };
        let Some(protocol) = Protocol::from_api(port.protocol.as_deref()) else {
            let protocol = port.protocol.as_deref().unwrap_or_default();
            self.notes.push(
                Note::new("Ignoring endpoint port with unknown protocol", object).with("protocol", protocol),
            );
            return None;
        };
        Some(SlicePort { name: self.names.share(name), protocol, port: number })
    }

    fn endpoint(&mut self, object: &api::Metadata, endpoint: &api::Endpoint) -> Option<SliceEndpoint> {
        let Some(text) = endpoint.addresses.first() else {
            self.notes.push(Note::new("Ignoring endpoint with no addresses", object));
            return None;
        };
        let Some(ip) = parse_ip(text).filter(|ip| Family::of(*ip) == self.family) else {
            self.notes.push(
                Note::new("Ignoring endpoint whose address is not of the slice's type", object)
                    .with("address", text),
            );
            return None;
        };
        let conditions = &endpoint.conditions;
        let local = !self.node_name.is_empty() && endpoint.node_name.as_deref() == Some(self.node_name);
        Some(SliceEndpoint {
            ip,
            conditions: Conditions {
                ready: conditions.ready.unwrap_or(true),
                serving: conditions.serving.unwrap_or(true),
                terminating: conditions.terminating.unwrap_or(false),
                local,
            },
            node_hint: self.node_hint(&endpoint.hints.for_nodes),
            zone_hints: self.zone_hints(&endpoint.hints.for_zones),
        })
    }

    fn node_hint(&self, hints: &[api::Hint]) -> NodeHint {
        if hints.is_empty() {
            NodeHint::Absent
        } else if hints.iter().any(|hint| hint.name == self.node_name) {
            NodeHint::ThisNode
        } else {
            NodeHint::OtherNodes
        }
    }

    fn zone_hints(&mut self, hints: &[api::Hint]) -> Option<Arc<Zones>> {
        let mut zones: Vec<Box<str>> = hints.iter().map(|hint| hint.name.as_str().into()).collect();
        zones.sort();
        zones.dedup();
        (!zones.is_empty()).then(|| self.zones.share_owned(Zones(zones.into())))
    }
}

/// All endpoints of a Service by port, from its slices in ascending order of their names.
///
/// One address and port may stand in several slices while a pod moves between them. A terminating entry never
/// replaces another one; any other entry does, so the last one seen counts.
pub fn merge<'a>(slices: impl Iterator<Item = &'a Slice>) -> Vec<PortCandidates> {
    let mut found: Vec<(&SlicePort, Keyed)> = Vec::new();
    for slice in slices {
        for port in &slice.ports {
            found.extend(slice.endpoints.iter().map(|endpoint| (port, Keyed::new(endpoint, port.port))));
        }
    }
    // Stable, so equal keys stay in the order they were seen in.
    found.sort_by(|(a_port, a), (b_port, b)| {
        (&a_port.name, a_port.protocol, a.text()).cmp(&(&b_port.name, b_port.protocol, b.text()))
    });

    let mut ports: Vec<PortCandidates> = Vec::new();
    for (port, Keyed { candidate, .. }) in found {
        let current = match ports.last_mut() {
            Some(last) if last.name == port.name && last.protocol == port.protocol => last,
            Some(_) | None => ports.push_mut(PortCandidates {
                name: port.name.clone(),
                protocol: port.protocol,
                candidates: Vec::new(),
            }),
        };
        match current.candidates.last_mut() {
            Some(last) if (last.ip, last.port) == (candidate.ip, candidate.port) => {
                if !candidate.conditions.terminating {
                    *last = candidate;
                }
            }
            Some(_) | None => current.candidates.push(candidate),
        }
    }
    ports
}

/// A candidate with the text it is sorted by: `10.0.0.17:80` comes before `10.0.0.6:80`, as users see in the rules.
struct Keyed {
    candidate: Candidate,
    text: [u8; Self::LONGEST],
    length: usize,
}

impl Keyed {
    /// `[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535`
    const LONGEST: usize = 47;

    fn new(endpoint: &SliceEndpoint, port: Port) -> Self {
        let mut text = [0; Self::LONGEST];
        let mut rest = text.as_mut_slice();
        write!(rest, "{}", SocketAddr::new(endpoint.ip, port.get()))
            .expect("LONGEST is the longest there is");
        let length = Self::LONGEST - rest.len();
        let SliceEndpoint { ip, conditions, node_hint, zone_hints } = endpoint.clone();
        Self { candidate: Candidate { ip, port, conditions, node_hint, zone_hints }, text, length }
    }

    fn text(&self) -> &[u8] {
        self.text.split_at(self.length).0
    }
}
