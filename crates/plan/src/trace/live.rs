//! What a packet would meet in the kernel as it is, to be held against what it should meet.
//!
//! In nftables mode this asks the sets; that the rules are the program's is for others to see. In iptables mode it
//! follows the rules themselves.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use model::names::{Port, Protocol};
use serde::{Deserialize, Serialize};

use super::{Explanation, Fate, Origin};
use crate::nftables::elements::Frontend;
use crate::nftables::sets::{Bank, Key, Set};
use crate::nftables::slots::{Draw, tables};

/// What the kernel would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    pub fate: Fate,
    pub endpoints: BTreeSet<SocketAddr>,
    /// By chance it is forwarded or not: something is missing.
    pub may_miss: bool,
}

impl Observed {
    pub fn forwarded(endpoints: BTreeSet<SocketAddr>, may_miss: bool) -> Self {
        Self { fate: Fate::Forwarded, endpoints, may_miss }
    }

    pub fn stopped(fate: Fate) -> Self {
        Self { fate, endpoints: BTreeSet::new(), may_miss: false }
    }
}

/// What the kernel would do, and whether that is what it should.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Live {
    pub agrees: bool,
    pub fate: Fate,
    pub endpoints: BTreeSet<SocketAddr>,
    pub may_miss: bool,
    /// Rules of another mode that were not followed, if it does not agree: they may be those that serve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_followed: Option<String>,
}

impl Live {
    pub fn new(explanation: &Explanation, observed: Observed) -> Self {
        let Observed { fate, endpoints, may_miss } = observed;
        let expected: BTreeSet<_> = explanation.endpoints.iter().map(|target| target.address).collect();
        Self {
            agrees: fate == explanation.fate && endpoints == expected && !may_miss,
            fate,
            endpoints,
            may_miss,
            not_followed: None,
        }
    }
}

/// The sets of the kernel's table.
pub trait Sets {
    type Error;

    fn contains(&mut self, set: Set, key: Key) -> Result<bool, Self::Error>;

    /// What a map leads to from these keys, as far as it has them.
    fn endpoints(&mut self, map: Set, keys: Vec<Key>) -> Result<Vec<(IpAddr, Port)>, Self::Error>;

    /// Whether source ranges let an address use a frontend.
    fn admits(&mut self, frontend: Key, source: IpAddr) -> Result<bool, Self::Error>;

    fn has_service_cidr_of(&mut self, ip: IpAddr) -> Result<bool, Self::Error>;

    /// The addresses that serve node ports; nothing if all of the node's do.
    fn node_port_ips(&mut self) -> Result<Option<BTreeSet<IpAddr>>, Self::Error>;
}

/// What sets lead a packet to.
pub fn through_sets<S: Sets>(explanation: &Explanation, sets: &mut S) -> Result<Observed, S::Error> {
    Walk::new(explanation, sets)?.course()
}

struct Walk<'a, S> {
    sets: &'a mut S,
    explanation: &'a Explanation,
    at_address: Key,
    at_node_port: Key,
    is_at_node_port_address: bool,
    is_at_cluster_ip: bool,
}

impl<'a, S: Sets> Walk<'a, S> {
    fn new(explanation: &'a Explanation, sets: &'a mut S) -> Result<Self, S::Error> {
        let to = explanation.destination;
        // Nothing has port zero, so nothing is found there.
        let key = |ip: Option<IpAddr>| {
            Port::from_api(to.port().into())
                .map_or(Key::EMPTY, |port| Frontend { ip, protocol: explanation.transport(), port }.key())
        };
        let is_at_node_port_address = match sets.node_port_ips()? {
            Some(ips) => ips.contains(&to.ip()),
            None => explanation.to_this_node && !to.ip().is_loopback(),
        };
        Ok(Self {
            at_address: key(Some(to.ip())),
            at_node_port: key(None),
            is_at_node_port_address,
            is_at_cluster_ip: sets.contains(Set::ClusterIps, Key::EMPTY.address(to.ip()))?,
            explanation,
            sets,
        })
    }

    fn course(mut self) -> Result<Observed, S::Error> {
        if self.sets.contains(Set::Firewalled, self.at_address)?
            && !self.sets.admits(self.at_address, self.explanation.source)?
        {
            return Ok(Observed::stopped(Fate::Dropped));
        }
        let endpoints = self.translation()?;
        if !endpoints.is_empty() {
            return Ok(Observed::forwarded(endpoints, false));
        }
        let (from_node, to_node) = (self.explanation.origin == Origin::Node, self.explanation.to_this_node);
        let mut fate = None;
        if from_node || !to_node {
            fate = self.check(Bank::Addresses)?.or(self.check_cluster_ips()?);
        }
        if fate.is_none() && to_node {
            let at_node_port = if self.is_at_node_port_address { self.check(Bank::NodePorts)? } else { None };
            fate = at_node_port.or(self.check(Bank::Addresses)?);
        }
        Ok(Observed::stopped(fate.unwrap_or(Fate::Untouched)))
    }

    fn key(&self, bank: Bank) -> Key {
        match bank {
            Bank::Addresses => self.at_address,
            Bank::NodePorts => self.at_node_port,
        }
    }

    fn translation(&mut self) -> Result<BTreeSet<SocketAddr>, S::Error> {
        let bank = if self.sets.contains(Set::Frontends(Bank::Addresses), self.at_address)? {
            Bank::Addresses
        } else if self.is_at_node_port_address
            && self.sets.contains(Set::Frontends(Bank::NodePorts), self.at_node_port)?
        {
            Bank::NodePorts
        } else {
            return Ok(BTreeSet::new());
        };
        let key = self.key(bank);
        let is_inside = match self.explanation.origin {
            Origin::Node | Origin::Pod => true,
            Origin::Elsewhere | Origin::Untold => false,
        };
        let is_cluster_ip = bank == Bank::Addresses && self.is_at_cluster_ip;
        let short_circuit =
            is_inside && !is_cluster_ip && self.sets.contains(Set::ExternalLocal(bank), key)?;
        let map = if short_circuit { Set::EndpointsInside(bank) } else { Set::Endpoints(bank) };
        // Tables are filled from their first slot on, so that one look tells which of them is in use.
        for Draw { first, count } in tables() {
            if self.sets.endpoints(map, vec![key.slot(first)])?.is_empty() {
                continue;
            }
            let slots = (first..first.saturating_add(count)).map(|slot| key.slot(slot));
            let found = self.sets.endpoints(map, slots.collect())?;
            return Ok(found.into_iter().map(|(ip, port)| SocketAddr::new(ip, port.get())).collect());
        }
        Ok(BTreeSet::new())
    }

    fn check(&mut self, bank: Bank) -> Result<Option<Fate>, S::Error> {
        let key = self.key(bank);
        if self.sets.contains(Set::NoEndpoints(bank), key)? {
            return Ok(Some(Fate::Refused));
        }
        Ok(self.sets.contains(Set::NoLocalEndpoints(bank), key)?.then_some(Fate::Dropped))
    }

    fn check_cluster_ips(&mut self) -> Result<Option<Fate>, S::Error> {
        if self.is_at_cluster_ip {
            return Ok(Some(Fate::Refused));
        }
        Ok(self.sets.has_service_cidr_of(self.explanation.destination.ip())?.then_some(Fate::Dropped))
    }
}

impl Explanation {
    fn transport(&self) -> Protocol {
        match &*self.protocol {
            "udp" => Protocol::Udp,
            "sctp" => Protocol::Sctp,
            _ => Protocol::Tcp,
        }
    }
}
