//! Reads EndpointSlices, and merges those of a Service into the candidates of each of its ports.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::address::{Family, parse_ip};
use crate::api;
use crate::names::{Interner, NamespacedName, Port, Protocol};
use crate::note::Note;
use crate::weights::{SliceWeights, Weight};

/// The content of an EndpointSlice. Sorted, so that slices are equal if they differ only in order.
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

/// As numerous as the pods of the cluster, so its size matters.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SliceEndpoint {
    ip: IpAddr,
    conditions: Conditions,
    node_hint: NodeHint,
    weight: Weight,
    zone_hints: Option<Arc<Zones>>,
}

const _: () = assert!(size_of::<SliceEndpoint>() <= 32);

/// The conditions of an endpoint, and whether it is on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions {
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
    /// On this node.
    pub local: bool,
}

/// The nodes that should use an endpoint, according to the EndpointSlice controller. This node's name is constant, so all that
/// matters is whether the hints include it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeHint {
    Absent,
    ThisNode,
    OtherNodes,
}

/// The zones that should use an endpoint, according to the EndpointSlice controller. Sorted and without duplicates. There are
/// few distinct values, so they are interned.
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

/// An endpoint of one service port, whether or not traffic may use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub ip: IpAddr,
    pub port: Port,
    pub conditions: Conditions,
    pub node_hint: NodeHint,
    /// If it is zero, the conditions are those of a terminating endpoint.
    pub weight: Weight,
    pub zone_hints: Option<Arc<Zones>>,
}

/// The candidates of one port of a Service, sorted by their text.
#[derive(Debug, PartialEq, Eq)]
pub struct PortCandidates {
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub candidates: Vec<Candidate>,
}

/// Reads EndpointSlices of one family for this node.
#[derive(Debug)]
pub struct SliceReader<'a> {
    pub family: Family,
    /// If empty, no endpoint is local.
    pub node_name: &'a str,
    pub names: &'a mut Interner<str>,
    pub zones: &'a mut Interner<Zones>,
    pub notes: &'a mut Vec<Note>,
}

impl SliceReader<'_> {
    pub fn read(
        &mut self,
        slice: &api::EndpointSlice,
        service: NamespacedName,
        weights: &SliceWeights,
    ) -> Slice {
        let object = &slice.metadata;
        let mut ports: Vec<_> = slice.ports.iter().filter_map(|port| self.port(object, port)).collect();
        let endpoints = slice.endpoints.iter();
        let mut endpoints: Vec<_> =
            endpoints.filter_map(|endpoint| self.endpoint(object, endpoint, weights)).collect();
        ports.sort();
        // Stable, because `merge` depends on the order of endpoints with the same address.
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
        Some(SlicePort { name: self.names.intern(name), protocol, port: number })
    }

    fn endpoint(
        &mut self,
        object: &api::Metadata,
        endpoint: &api::SliceEndpoint,
        weights: &SliceWeights,
    ) -> Option<SliceEndpoint> {
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
        let (weight, ready) = (weights.of(ip), conditions.ready.unwrap_or(true));
        // Without weight it gets no new connections, as if it were terminating. Ready, it serves even if it says otherwise: it is
        // published though not ready.
        let is_drained = weight == 0 && ready;
        let local = !self.node_name.is_empty() && endpoint.node_name.as_deref() == Some(self.node_name);
        Some(SliceEndpoint {
            ip,
            conditions: Conditions {
                ready: ready && !is_drained,
                serving: conditions.serving.unwrap_or(true) || is_drained,
                terminating: conditions.terminating.unwrap_or(false) || is_drained,
                local,
            },
            weight,
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
        (!zones.is_empty()).then(|| self.zones.intern_owned(Zones(zones.into())))
    }
}

/// The candidates of a Service by port, from its slices in ascending order of their names.
///
/// While the controller moves a pod from one slice to another, both may contain its address and port. The last entry that is not
/// terminating wins, or the first one if all are.
pub fn merge<'a>(slices: impl Iterator<Item = &'a Slice>) -> Vec<PortCandidates> {
    let mut found: Vec<(&SlicePort, Keyed)> = Vec::new();
    for slice in slices {
        for port in &slice.ports {
            found.extend(slice.endpoints.iter().map(|endpoint| (port, Keyed::new(endpoint, port.port))));
        }
    }
    // Stable, so that entries with equal keys stay in the order of the slices.
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

/// A candidate with the text it is sorted by. As in upstream's rules, `10.0.0.17:80` comes before `10.0.0.6:80`.
struct Keyed {
    candidate: Candidate,
    text: [u8; Self::MAX_LENGTH],
    length: usize,
}

impl Keyed {
    /// `[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535`
    const MAX_LENGTH: usize = 47;

    fn new(endpoint: &SliceEndpoint, port: Port) -> Self {
        let mut text = [0; Self::MAX_LENGTH];
        let mut rest = text.as_mut_slice();
        write!(rest, "{}", SocketAddr::new(endpoint.ip, port.get())).expect("no address and port is longer");
        let length = Self::MAX_LENGTH - rest.len();
        let SliceEndpoint { ip, conditions, node_hint, weight, zone_hints } = endpoint.clone();
        Self { candidate: Candidate { ip, port, conditions, node_hint, weight, zone_hints }, text, length }
    }

    fn text(&self) -> &[u8] {
        self.text.split_at(self.length).0
    }
}
