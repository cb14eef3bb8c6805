//! The desired virtual servers. Each follows from the desired table: the service port that gets the frontend decides.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use model::address::Family;
use model::hashing::ClientHash;
use model::names::{Port, Protocol};
use model::routing::{Endpoint, Routing, Traffic};
use model::weights::DEFAULT_WEIGHT;

use crate::ipvs::servers::{HASH_FALLBACK, HASH_PORT, PERSISTENT, RealServer, VirtualAddress, VirtualServer};
use crate::nftables::desired::DesiredTable;
use crate::nftables::desired_sets::DesiredSets;
use crate::nftables::elements::FrontendKey;
use crate::nftables::interpreter::{Sets, Slots, WeightedServers};
use crate::nftables::sets::{Element, ElementKey, Set};

/// The scheduler that hashes clients.
pub const HASH_SCHEDULER: &str = "mh";

/// What virtual servers depend on, besides Services and addresses. Constant while the proxy runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSettings {
    pub scheduler: Arc<str>,
    /// The scheduler for endpoints with weights.
    pub weighted_scheduler: Arc<str>,
    /// Virtual servers at these addresses belong to others, and stay.
    pub exclude_cidrs: Vec<IpNet>,
}

impl ServerSettings {
    pub fn new(scheduler: &str, exclude_cidrs: Vec<IpNet>) -> Self {
        let weighted = match scheduler {
            "rr" => "wrr",
            "lc" => "wlc",
            other => other,
        };
        Self { scheduler: scheduler.into(), weighted_scheduler: weighted.into(), exclude_cidrs }
    }
}

/// What the kernel should hold at the address of a virtual server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredVirtual {
    pub server: VirtualServer,
    /// With their weights; never zero.
    pub real_servers: BTreeMap<RealServer, u32>,
}

/// The desired virtual servers of one family.
#[derive(Clone, Copy, Debug)]
pub struct DesiredServers<'a> {
    pub table: &'a DesiredTable,
    pub settings: &'a ServerSettings,
}

impl DesiredServers<'_> {
    /// The virtual server at an address. A frontend with this address precedes a node port on it.
    pub fn at(&self, address: &VirtualAddress) -> Option<DesiredVirtual> {
        let (routing, traffic) = routing_at(self.table, address)?;
        Some(DesiredVirtual {
            server: self.server(routing),
            real_servers: endpoints(routing, traffic).map(|(it, weight)| (it.into(), weight)).collect(),
        })
    }

    /// All virtual servers.
    pub fn all(&self) -> BTreeMap<VirtualAddress, DesiredVirtual> {
        let frontends = self.table.frontends();
        let addresses = frontends.flat_map(|frontend| addresses(frontend, self.table.node_port_ips()));
        addresses.filter_map(|address| Some((address, self.at(&address)?))).collect()
    }

    /// While IPVS changes the scheduler, new connections fail. So it stays the same, whatever the weights are.
    fn server(&self, routing: &Routing) -> VirtualServer {
        let ServerSettings { scheduler, weighted_scheduler, .. } = self.settings;
        let persistent = if routing.affinity.is_some() { PERSISTENT } else { 0 };
        let scheduler = match routing.hash {
            Some(_) => HASH_SCHEDULER.into(),
            None if routing.weights.is_some() => weighted_scheduler.clone(),
            None => scheduler.clone(),
        };
        // As in upstream, it also hashes the port if it is the scheduler for all Services.
        let hashes_port = &*scheduler == HASH_SCHEDULER && routing.hash != Some(ClientHash::Address);
        let hash_port = if hashes_port { HASH_PORT } else { 0 };
        let fallback = if routing.hash.is_some() { HASH_FALLBACK } else { 0 };
        VirtualServer {
            scheduler,
            flags: persistent | hash_port | fallback,
            timeout: routing.affinity.unwrap_or_default(),
        }
    }
}

/// The node's addresses that count in the ipvs mode: as in upstream, those of the family without loopback and IPv6 link-local ones.
pub fn usable_node_ips(ips: &[IpAddr], family: Family) -> impl Iterator<Item = IpAddr> {
    let is_link_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let of_family = ips.iter().copied().filter(move |ip| Family::of(*ip) == family);
    of_family.filter(move |ip| !ip.is_loopback() && !is_link_local(ip))
}

/// The addresses of the virtual servers of a frontend: its own, or for a node port all these.
pub fn addresses(frontend: &FrontendKey, node_port_ips: &[IpAddr]) -> Vec<VirtualAddress> {
    let FrontendKey { ip, protocol, port } = *frontend;
    let at = |ip| VirtualAddress { ip, protocol, port };
    match ip {
        Some(ip) => vec![at(ip)],
        None => node_port_ips.iter().copied().map(at).collect(),
    }
}

fn routing_at<'a>(table: &'a DesiredTable, address: &VirtualAddress) -> Option<(&'a Routing, Traffic)> {
    let VirtualAddress { ip, protocol, port } = *address;
    if let Some(unit) = table.owner_unit(&FrontendKey { ip: Some(ip), protocol, port }) {
        let routing = &*unit.routing;
        let is_cluster_ip = ip == routing.addresses.cluster_ip;
        return Some((routing, if is_cluster_ip { routing.internal } else { routing.external }));
    }
    let unit = table.owner_unit(&FrontendKey { ip: None, protocol, port })?;
    table.node_port_ips().contains(&ip).then(|| (&*unit.routing, unit.routing.external))
}

/// The endpoints of a virtual server, with their weights: 1 if no endpoint of the Service has one. Otherwise also those that are alike,
/// so that only one real server changes when only one weight does.
fn endpoints(routing: &Routing, traffic: Traffic) -> impl Iterator<Item = (&Endpoint, u32)> {
    let list = list(traffic);
    let weights = routing.given_weights(list).iter().copied();
    let other = if routing.weights.is_some() { DEFAULT_WEIGHT } else { 1 };
    routing.endpoints(list).iter().zip(weights.chain(std::iter::repeat(other)).map(u32::from))
}

/// As in upstream, IPVS cannot distinguish clients: with policy Local all of them get the local endpoints or, if there are none, those
/// of the cluster.
fn list(traffic: Traffic) -> Traffic {
    match traffic {
        Traffic::ToLocal => Traffic::ToLocal,
        Traffic::ToCluster | Traffic::RejectNoEndpoints | Traffic::DropNoLocalEndpoints => Traffic::ToCluster,
    }
}

impl From<&Endpoint> for RealServer {
    fn from(endpoint: &Endpoint) -> Self {
        Self { ip: endpoint.ip, port: endpoint.port }
    }
}

/// The desired sets and the desired virtual servers, for the interpreter.
#[derive(Debug)]
pub struct DesiredIpvs<'a> {
    sets: DesiredSets<'a>,
    table: &'a DesiredTable,
}

impl<'a> DesiredIpvs<'a> {
    pub fn new(table: &'a DesiredTable) -> Self {
        Self { sets: DesiredSets::new(table), table }
    }
}

impl Sets for DesiredIpvs<'_> {
    type Error = Infallible;

    fn find(&mut self, set: Set, key: ElementKey) -> Result<Option<Element>, Infallible> {
        self.sets.find(set, key)
    }

    fn slots(&mut self, list: u32) -> Result<Slots, Infallible> {
        self.sets.slots(list)
    }

    fn real_servers(
        &mut self,
        protocol: Protocol,
        destination: SocketAddr,
    ) -> Result<Option<WeightedServers>, Infallible> {
        let Some(port) = Port::from_api(destination.port().into()) else { return Ok(None) };
        let address = VirtualAddress { ip: destination.ip(), protocol, port };
        let to = |(it, weight): (&Endpoint, u32)| (SocketAddr::new(it.ip, it.port.get()), weight);
        Ok(routing_at(self.table, &address)
            .map(|(routing, traffic)| endpoints(routing, traffic).map(to).collect()))
    }
}
