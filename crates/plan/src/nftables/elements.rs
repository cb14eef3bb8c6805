//! The elements of a service port, rendered from its routing.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use model::address::{Family, host_port};
use model::hashing::ClientHash;
use model::names::{Port, Protocol};
use model::routing::{self, Endpoint, Routing, Traffic};
use model::service::Addresses;

use crate::nftables::frontend_chains::FrontendChain;
use crate::nftables::hashing;
use crate::nftables::sets::{
    Balancer, Clients, Data, Element, ElementKey, EndpointList, ListOfFrontend, LookupBy, Set, Sticky, Type,
    protocol,
};
use crate::nftables::slots::{HASH_RANGE, MAX_SLOTS, SlotRange, assign, slot_range};
use crate::nftables::timeouts::rounded;

/// What the kernel holds for one service port.
#[derive(Clone, Debug)]
pub struct ElementUnit {
    pub routing: Arc<Routing>,
    balancer: Balancer,
    /// The id of its cluster list, which is even. Zero in the ipvs mode.
    id: u32,
    /// The endpoints in the slots of [`Routing::cluster`] and [`Routing::local`], repeated according to their weights. Empty in the
    /// ipvs mode.
    cluster: Arc<[Endpoint]>,
    local: Arc<[Endpoint]>,
}

/// An endpoint list that frontends use.
#[derive(Clone, Debug)]
pub struct UsedList {
    list: u32,
    /// The first slot.
    first: u32,
    slots: Arc<[Endpoint]>,
    /// The endpoints that clients keep; none without session affinity.
    sticky: Arc<[Endpoint]>,
}

impl UsedList {
    /// Adds the elements of the list, except for slots that one of the other lists has, too.
    pub fn elements_beyond(&self, others: &[Self], out: &mut Vec<Element>) {
        let Self { list, first, slots, sticky } = self;
        let other = others.iter().find(|other| (other.list, other.first) == (*list, *first));
        let mut before = other.map(|other| &*other.slots).unwrap_or_default().iter();
        for (slot, endpoint) in (*first..).zip(&**slots) {
            if before.next().is_some_and(|before| (before.ip, before.port) == (endpoint.ip, endpoint.port)) {
                continue;
            }
            let key = ElementKey::EMPTY.number(*list).slot(slot);
            out.push(Element::pair(Set::Endpoints, key, endpoint));
        }
        out.extend(sticky.iter().take(slots.len()).map(|endpoint| {
            let key = ElementKey::EMPTY.address(endpoint.ip).port(endpoint.port).number(*list);
            Element::pair(Set::StickyEndpoints, key, endpoint)
        }));
    }
}

/// What identifies a frontend in sets. Several service ports may claim it, and one gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrontendKey {
    /// `None` for a node port.
    pub ip: Option<IpAddr>,
    pub protocol: Protocol,
    pub port: Port,
}

/// The endpoints of a service port in the order of their slots. One with a greater weight than others lies in several.
#[derive(Clone, Copy, Debug, Default)]
pub struct SlotAssignment<'a> {
    pub cluster: &'a [Endpoint],
    pub local: &'a [Endpoint],
}

/// An element that several service ports may use: it stays until the last of them is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SharedElement {
    ClusterIp(IpAddr),
    Hairpin(IpAddr, Protocol, Port),
    /// Seconds of session affinity.
    Timeout(LookupBy, u32),
    /// In the ipvs mode.
    BoundIp(IpAddr),
    /// In the ipvs mode.
    HealthCheckPort(Port),
}

/// All frontends of a service port, without duplicates.
pub fn frontends(routing: &Routing) -> Vec<FrontendKey> {
    let at = |ip| FrontendKey { ip: Some(ip), protocol: routing.protocol, port: routing.port };
    let mut all: Vec<FrontendKey> = Vec::new();
    for frontend in routing.frontends() {
        let frontend = match frontend {
            routing::Frontend::ClusterIp(address)
            | routing::Frontend::ExternalIp(address)
            | routing::Frontend::LoadBalancerIp(address) => at(address.ip()),
            routing::Frontend::NodePort(port) => FrontendKey { ip: None, protocol: routing.protocol, port },
        };
        if !all.contains(&frontend) {
            all.push(frontend);
        }
    }
    all
}

/// The shared elements of a service port. An endpoint or an address may occur twice.
pub fn shared_elements(routing: &Routing, balancer: Balancer) -> impl Iterator<Item = SharedElement> {
    let endpoints = routing.cluster.iter().chain(&*routing.local).filter(|endpoint| endpoint.local);
    let hairpins =
        endpoints.map(|endpoint| SharedElement::Hairpin(endpoint.ip, routing.protocol, endpoint.port));
    let of_slots = (balancer == Balancer::Slots).then(|| slot_elements(routing));
    let of_ipvs = (balancer == Balancer::Ipvs).then(|| ipvs_elements(routing));
    [SharedElement::ClusterIp(routing.addresses.cluster_ip)]
        .into_iter()
        .chain(hairpins)
        .chain(of_slots.into_iter().flatten())
        .chain(of_ipvs.into_iter().flatten())
}

fn slot_elements(routing: &Routing) -> impl Iterator<Item = SharedElement> {
    let timeouts = routing.affinity.map(rounded).into_iter();
    timeouts.flat_map(|seconds| LookupBy::BOTH.map(|by| SharedElement::Timeout(by, seconds)))
}

fn ipvs_elements(routing: &Routing) -> impl Iterator<Item = SharedElement> {
    let Addresses { cluster_ip, external_ips, load_balancer_ips, .. } = &*routing.addresses;
    let ips = [cluster_ip].into_iter().chain(external_ips).chain(load_balancer_ips);
    let ports = routing.health_check_node_port.into_iter();
    ips.map(|ip| SharedElement::BoundIp(*ip)).chain(ports.map(SharedElement::HealthCheckPort))
}

impl ElementUnit {
    /// Renders a routing; endpoints keep the slots that they have in `before`.
    pub fn new(routing: Arc<Routing>, before: SlotAssignment<'_>, id: u32) -> Self {
        let slots = |before: &[Endpoint], endpoints: &Arc<[Endpoint]>, traffic: Traffic| {
            let weights = routing.weights(traffic);
            if routing.hash.is_some() && endpoints.len() > 1 {
                hashing::fill(endpoints, weights).into()
            } else {
                assign(before, endpoints, weights)
            }
        };
        let cluster = slots(before.cluster, &routing.cluster, Traffic::ToCluster);
        let local = slots(before.local, &routing.local, Traffic::ToLocal);
        let local = if cluster[..] == local[..] { cluster.clone() } else { local };
        Self { routing, balancer: Balancer::Slots, id, cluster, local }
    }

    /// Renders a routing for the ipvs mode, in which IPVS has the endpoints and session affinity.
    pub fn without_slots(routing: Arc<Routing>) -> Self {
        let (cluster, local) = Default::default();
        Self { routing, balancer: Balancer::Ipvs, id: 0, cluster, local }
    }

    /// The id of its cluster list.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The same unit with another id.
    pub fn with_id(&self, id: u32) -> Self {
        Self { id, ..self.clone() }
    }

    /// The number of endpoints without a slot, in the longer of the two lists.
    pub fn left_out(&self) -> usize {
        let Routing { cluster, local, .. } = &*self.routing;
        match self.balancer {
            Balancer::Slots => {
                let slots = if self.routing.hash.is_some() { HASH_RANGE.count as usize } else { MAX_SLOTS };
                cluster.len().max(local.len()).saturating_sub(slots)
            }
            Balancer::Ipvs => 0,
        }
    }

    pub fn slots(&self) -> SlotAssignment<'_> {
        SlotAssignment { cluster: &self.cluster, local: &self.local }
    }

    /// What connections of these clients to a frontend get; `None` if the frontend has no list of its own for them.
    fn traffic_of(&self, frontend: &FrontendKey, clients: Clients) -> Option<Traffic> {
        let routing = &self.routing;
        match clients {
            Clients::All if self.is_cluster_ip(frontend) => Some(routing.internal),
            Clients::All => Some(routing.external),
            Clients::Inside => self.keeps_clients(frontend).then(|| routing.external_from_inside()),
        }
    }

    /// Whether the clients of a frontend keep their address.
    fn keeps_clients(&self, frontend: &FrontendKey) -> bool {
        self.routing.preserves_client && !self.is_cluster_ip(frontend)
    }

    fn slots_for(&self, traffic: Traffic) -> Option<&[Endpoint]> {
        match traffic {
            Traffic::ToCluster => Some(&self.cluster),
            Traffic::ToLocal => Some(&self.local),
            Traffic::RejectNoEndpoints | Traffic::DropNoLocalEndpoints => None,
        }
    }

    /// How the clients of a list are hashed to its slots. A list with one endpoint needs no table.
    fn hash(&self, slots: &[Endpoint]) -> Option<ClientHash> {
        self.routing.hash.filter(|_| slots.len() > 1)
    }

    /// The slot range of a list.
    fn range(&self, slots: &[Endpoint]) -> Option<SlotRange> {
        if self.hash(slots).is_some() { Some(HASH_RANGE) } else { slot_range(slots.len()) }
    }

    fn is_cluster_ip(&self, frontend: &FrontendKey) -> bool {
        frontend.ip == Some(self.routing.addresses.cluster_ip)
    }

    /// Its endpoint lists that are used by a frontend which the service port gets.
    pub fn lists(&self, is_owned: impl Fn(&FrontendKey) -> bool) -> Vec<UsedList> {
        if self.balancer == Balancer::Ipvs {
            return Vec::new();
        }
        let used: Vec<Traffic> = frontends(&self.routing)
            .iter()
            .filter(|frontend| is_owned(frontend))
            .flat_map(|frontend| Clients::BOTH.map(|clients| self.traffic_of(frontend, clients)))
            .flatten()
            .collect();
        let is_sticky = self.routing.affinity.is_some();
        let list =
            |list: EndpointList, traffic: Traffic, slots: &Arc<[Endpoint]>, endpoints: &Arc<[Endpoint]>| {
                let SlotRange { first, .. } = self.range(slots).filter(|_| used.contains(&traffic))?;
                let sticky = if is_sticky { endpoints.clone() } else { Arc::default() };
                Some(UsedList { list: list.of(self.id), first, slots: slots.clone(), sticky })
            };
        let Routing { cluster, local, .. } = &*self.routing;
        let lists = [
            list(EndpointList::Cluster, Traffic::ToCluster, &self.cluster, cluster),
            list(EndpointList::Local, Traffic::ToLocal, &self.local, local),
        ];
        lists.into_iter().flatten().collect()
    }

    /// Adds the elements of one frontend that the service port gets. Those of one set are sorted.
    pub fn elements_of(&self, frontend: &FrontendKey, out: &mut Vec<Element>) {
        match self.balancer {
            Balancer::Slots => self.slot_elements_of(frontend, out),
            Balancer::Ipvs => self.ipvs_elements_of(frontend, out),
        }
        let routing = &self.routing;
        if frontend.ip.is_some_and(|ip| routing.addresses.load_balancer_ips.contains(&ip)) {
            firewall(routing, frontend.key(), out);
        }
    }

    /// Adds the elements of a frontend whose endpoints IPVS has.
    fn ipvs_elements_of(&self, frontend: &FrontendKey, out: &mut Vec<Element>) {
        let (key, by) = (frontend.key(), frontend.lookup_by());
        out.push(Element::new(Set::Frontends(by), key));
        out.extend(self.keeps_clients(frontend).then(|| Element::new(Set::ExternalLocal(by), key)));
    }

    fn slot_elements_of(&self, frontend: &FrontendKey, out: &mut Vec<Element>) {
        let routing = &self.routing;
        let (key, by) = (frontend.key(), frontend.lookup_by());
        let traffic = if self.is_cluster_ip(frontend) { routing.internal } else { routing.external };
        let lists = Clients::BOTH.map(|clients| {
            let slots = self.slots_for(self.traffic_of(frontend, clients)?)?;
            let range = self.range(slots)?;
            Some(match self.hash(slots) {
                Some(hash) => FrontendChain::Hash(by, clients, hash),
                None => FrontendChain::Draw(by, clients, range),
            })
        });
        if let [draw, inside] = lists
            && (draw.is_some() || inside.is_some())
        {
            let list = list_of(traffic).of(self.id);
            let first = self.first(frontend, draw);
            out.push(Element::new(Set::Frontends(by), key));
            out.push(Element {
                set: Set::Lists(by, Clients::All),
                key,
                data: Some(Data::List(ListOfFrontend { list, first, draw })),
            });
            let from_inside = self.traffic_of(frontend, Clients::Inside).filter(|_| inside.is_some());
            out.extend(from_inside.map(|traffic| Element {
                set: Set::Lists(by, Clients::Inside),
                key,
                data: Some(Data::List(ListOfFrontend {
                    list: list_of(traffic).of(self.id),
                    first,
                    draw: inside,
                })),
            }));
            out.extend(routing.affinity.map(rounded).map(|seconds| Element {
                set: Set::Sticky(by),
                key,
                data: Some(Data::Sticky(Sticky { list, seconds })),
            }));
        }
        let (is_refused, is_dropped) = match traffic {
            Traffic::ToCluster | Traffic::ToLocal => (false, false),
            Traffic::RejectNoEndpoints => (true, false),
            Traffic::DropNoLocalEndpoints => (true, true),
        };
        out.extend(is_refused.then(|| Element::new(Set::NoEndpoints(by), key)));
        out.extend(is_dropped.then(|| Element::new(Set::NoLocalEndpoints(by), key)));
    }

    /// The first chain for packets to a frontend.
    fn first(&self, frontend: &FrontendKey, draw: Option<FrontendChain>) -> FrontendChain {
        let by = frontend.lookup_by();
        match draw {
            _ if self.keeps_clients(frontend) => FrontendChain::ExternalLocal(by),
            _ if !self.is_cluster_ip(frontend) => FrontendChain::External(by),
            Some(FrontendChain::Draw(_, _, range)) if self.routing.affinity.is_none() => {
                FrontendChain::ClusterIp(range)
            }
            _ => FrontendChain::StickyClusterIp,
        }
    }
}

/// The endpoint list that traffic to a frontend uses, or would use if it had endpoints.
fn list_of(traffic: Traffic) -> EndpointList {
    match traffic {
        Traffic::ToCluster | Traffic::RejectNoEndpoints => EndpointList::Cluster,
        Traffic::ToLocal | Traffic::DropNoLocalEndpoints => EndpointList::Local,
    }
}

pub(super) fn sort_from(start: usize, elements: &mut [Element]) {
    if let Some(new) = elements.get_mut(start..) {
        new.sort_unstable();
    }
}

/// The sources that may use a load-balancer IP. If the node may, then so may packets that have that IP as their source: the
/// node may send them to itself.
fn firewall(routing: &Routing, key: ElementKey, out: &mut Vec<Element>) {
    let addresses = &routing.addresses;
    if addresses.source_ranges.is_empty() {
        return;
    }
    let own =
        addresses.load_balancer_ips.iter().filter(|_| routing.ranges_admit_node).map(|ip| IpNet::from(*ip));
    let ranges: Vec<IpNet> = addresses.source_ranges.iter().copied().chain(own).collect();
    out.push(Element::new(Set::Firewalled, key));
    let start = out.len();
    // The kernel rejects overlapping ranges.
    out.extend(IpNet::aggregate(&ranges).iter().map(|range| {
        Element::new(Set::AllowedSources, key.address(range.network()).address(range.broadcast()))
    }));
    sort_from(start, out);
}

impl SharedElement {
    pub fn element(&self) -> Element {
        match *self {
            Self::ClusterIp(ip) => Element::new(Set::ClusterIps, ElementKey::EMPTY.address(ip)),
            Self::Hairpin(ip, protocol, port) => {
                let pair = ElementKey::EMPTY.address(ip).address(ip);
                Element::new(Set::Hairpin, pair.protocol(protocol).port(port))
            }
            Self::Timeout(by, seconds) => Element {
                set: Set::Timeouts(by),
                key: ElementKey::EMPTY.number(seconds),
                data: Some(Data::AffinityChain(seconds)),
            },
            Self::BoundIp(ip) => Element::new(Set::BoundIps, ElementKey::EMPTY.address(ip)),
            // Load balancers use HTTP.
            Self::HealthCheckPort(port) => {
                Element::new(Set::HealthCheckPorts, ElementKey::EMPTY.protocol(Protocol::Tcp).port(port))
            }
        }
    }
}

impl Element {
    /// The frontend that the element belongs to.
    pub fn frontend(&self, family: Family) -> Option<FrontendKey> {
        let by = match self.set {
            Set::Frontends(by)
            | Set::ExternalLocal(by)
            | Set::Lists(by, _)
            | Set::Sticky(by)
            | Set::NoEndpoints(by)
            | Set::NoLocalEndpoints(by) => by,
            Set::Firewalled | Set::AllowedSources => LookupBy::Address,
            Set::ServiceCidrs
            | Set::NodePortIps
            | Set::ClusterIps
            | Set::Hairpin
            | Set::BoundIps
            | Set::HealthCheckPorts
            | Set::FirstChains(_)
            | Set::DrawChains(..)
            | Set::Endpoints
            | Set::StickyEndpoints
            | Set::Affinity
            | Set::Timeouts(_) => return None,
        };
        FrontendKey::from_key(self.key.as_bytes(), by, family).map(|(frontend, _)| frontend)
    }

    /// The endpoint that an element of [`Set::Hairpin`] belongs to: its key is the endpoint's address, then a key like that
    /// of a frontend.
    pub fn hairpin(&self, family: Family) -> Option<(Protocol, (IpAddr, Port))> {
        let (_, rest) = self.key.as_bytes().split_at_checked(Type::Address.length(family))?;
        let (endpoint, _) =
            FrontendKey::from_key(rest, LookupBy::Address, family).filter(|_| self.set == Set::Hairpin)?;
        Some((endpoint.protocol, (endpoint.ip?, endpoint.port)))
    }
}

impl FrontendKey {
    /// The frontend at the start of a key, and the rest of the key.
    pub fn from_key(key: &[u8], by: LookupBy, family: Family) -> Option<(Self, &[u8])> {
        let (ip, rest) = match (by, family) {
            (LookupBy::NodePort, _) => (None, key),
            (LookupBy::Address, Family::V4) => {
                let (ip, rest) = key.split_first_chunk::<4>()?;
                (Some(IpAddr::from(*ip)), rest)
            }
            (LookupBy::Address, Family::V6) => {
                let (ip, rest) = key.split_first_chunk::<16>()?;
                (Some(IpAddr::from(*ip)), rest)
            }
        };
        let (&[number, _, _, _], rest) = rest.split_first_chunk::<4>()?;
        let (&[high, low, _, _], rest) = rest.split_first_chunk::<4>()?;
        let port = Port::from_api(u16::from_be_bytes([high, low]).into())?;
        Some((Self { ip, protocol: protocol(number)?, port }, rest))
    }

    pub fn key(&self) -> ElementKey {
        let key = ElementKey::EMPTY;
        let key = self.ip.map_or(key, |ip| key.address(ip));
        key.protocol(self.protocol).port(self.port)
    }

    pub fn lookup_by(&self) -> LookupBy {
        if self.ip.is_some() { LookupBy::Address } else { LookupBy::NodePort }
    }
}

impl fmt::Display for FrontendKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ip {
            Some(ip) => write!(f, "{}/{}", host_port(ip, self.port.get()), self.protocol),
            None => write!(f, "node port {}/{}", self.port, self.protocol),
        }
    }
}
