//! The sets and maps of the program, and their elements.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use model::address::Family;
use model::names::{Port, Protocol};
use model::routing::Endpoint;

use crate::nftables::frontend_chains::FrontendChain;

/// A set or map of the table. A frontend is an address, a protocol and a port that clients use; node ports are frontends
/// without an address and have sets of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Set {
    ClusterIps,
    ServiceCidrs,
    NodePortIps,
    /// Frontends that have endpoints for any client, or all in the ipvs mode; counts new connections.
    Frontends(LookupBy),
    /// Frontends whose clients keep their address (external traffic policy Local), in the ipvs mode.
    ExternalLocal(LookupBy),
    /// Maps frontends to their endpoint list, and to the chains that use it.
    Lists(LookupBy, Clients),
    /// Maps the numbers of first chains in `Lists` to the chains.
    FirstChains(LookupBy),
    /// Maps the numbers of chains in `Lists` that draw a slot to the chains. If they shared a map with first chains, the kernel
    /// would see a loop.
    DrawChains(LookupBy, Clients),
    /// Maps endpoint list and slot to an endpoint; counts new connections.
    Endpoints,
    /// Maps frontends with session affinity to their endpoint list and timeout.
    Sticky(LookupBy),
    /// Every endpoint of a list with session affinity. Only these are added to `Affinity`, or used from it.
    StickyEndpoints,
    /// Maps endpoint list and client to the endpoint that the client used last. Rules add its elements.
    Affinity,
    /// Maps each timeout in use to the chain that updates `Affinity` with it.
    Timeouts(LookupBy),
    /// Frontends without endpoints that this node may use.
    NoEndpoints(LookupBy),
    /// Those of them that have endpoints on other nodes: they are not rejected, but dropped.
    NoLocalEndpoints(LookupBy),
    /// Load-balancer frontends with source ranges.
    Firewalled,
    /// Frontends, each with a source range that may use it.
    AllowedSources,
    /// Connections of an endpoint to itself.
    Hairpin,
    /// The addresses of `kube-ipvs0`.
    BoundIps,
    /// The health check node ports of Services.
    HealthCheckPorts,
}

/// How rules look up a frontend: by its address, or as a node port. Each has sets of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LookupBy {
    /// `address . protocol . port`
    Address,
    /// `protocol . port`, on the addresses that serve node ports
    NodePort,
}

/// What chooses the endpoint of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balancer {
    /// The program itself, by random slots: the nftables mode.
    Slots,
    /// IPVS, between the hooks of the program: the ipvs mode.
    Ipvs,
}

/// Whose connections to a frontend use an endpoint list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Clients {
    /// Those of all clients or, with external traffic policy Local, of those from outside.
    All,
    /// Those of pods and of the node itself, to which policy Local does not apply.
    Inside,
}

impl Clients {
    pub const BOTH: [Self; 2] = [Self::All, Self::Inside];
}

/// The type of one field of a key or of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Address,
    Protocol,
    Port,
    /// A random number.
    Slot,
    /// An id, the number of a chain, or a number of seconds. `nft` has no better type for a plain number than `mark`.
    Number,
    /// A chain to go to.
    Verdict,
}

/// How the kernel uses the elements of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetKind {
    Plain,
    /// Each element counts the packets that match it.
    Counting,
    /// Elements are ranges of the last field.
    Ranges,
    /// Rules add elements that expire.
    Dynamic,
    /// The elements are part of the program.
    Fixed,
}

impl Set {
    /// The sets that always exist. [`Set::NodePortIps`] exists only if node ports are restricted to some addresses, and in the ipvs
    /// mode.
    pub fn fixed(balancer: Balancer) -> Vec<Self> {
        match balancer {
            Balancer::Slots => Self::of_slots().collect(),
            Balancer::Ipvs => Self::of_ipvs().into(),
        }
    }

    fn of_ipvs() -> [Self; 10] {
        use LookupBy::{Address, NodePort};
        [
            Self::ClusterIps,
            Self::BoundIps,
            Self::HealthCheckPorts,
            Self::Firewalled,
            Self::AllowedSources,
            Self::Hairpin,
            Self::Frontends(Address),
            Self::Frontends(NodePort),
            Self::ExternalLocal(Address),
            Self::ExternalLocal(NodePort),
        ]
    }

    fn of_slots() -> impl Iterator<Item = Self> {
        let paired = [
            Self::Frontends,
            Self::FirstChains,
            |by| Self::Lists(by, Clients::All),
            |by| Self::Lists(by, Clients::Inside),
            |by| Self::DrawChains(by, Clients::All),
            |by| Self::DrawChains(by, Clients::Inside),
            Self::Sticky,
            Self::Timeouts,
            Self::NoEndpoints,
            Self::NoLocalEndpoints,
        ];
        let alone = [
            Self::ClusterIps,
            Self::ServiceCidrs,
            Self::Endpoints,
            Self::StickyEndpoints,
            Self::Affinity,
            Self::Firewalled,
            Self::AllowedSources,
            Self::Hairpin,
        ];
        alone
            .into_iter()
            .chain(paired.into_iter().flat_map(|set| [set(LookupBy::Address), set(LookupBy::NodePort)]))
    }

    pub fn name(self) -> &'static str {
        use LookupBy::{Address, NodePort};
        match self {
            Self::ClusterIps => "cluster-ips",
            Self::ServiceCidrs => "service-cidrs",
            Self::NodePortIps => "nodeport-ips",
            Self::Frontends(Address) => "frontends",
            Self::Frontends(NodePort) => "nodeports",
            Self::ExternalLocal(Address) => "external-local",
            Self::ExternalLocal(NodePort) => "nodeports-local",
            Self::Lists(Address, Clients::All) => "lists",
            Self::Lists(NodePort, Clients::All) => "nodeport-lists",
            Self::Lists(Address, Clients::Inside) => "lists-inside",
            Self::Lists(NodePort, Clients::Inside) => "nodeport-lists-inside",
            Self::FirstChains(Address) => "first-chains",
            Self::FirstChains(NodePort) => "nodeport-first-chains",
            Self::DrawChains(Address, Clients::All) => "draw-chains",
            Self::DrawChains(NodePort, Clients::All) => "nodeport-draw-chains",
            Self::DrawChains(Address, Clients::Inside) => "draw-chains-inside",
            Self::DrawChains(NodePort, Clients::Inside) => "nodeport-draw-chains-inside",
            Self::Endpoints => "endpoints",
            Self::Sticky(Address) => "sticky",
            Self::Sticky(NodePort) => "nodeport-sticky",
            Self::StickyEndpoints => "sticky-endpoints",
            Self::Affinity => "affinity",
            Self::Timeouts(Address) => "affinity-timeouts",
            Self::Timeouts(NodePort) => "nodeport-affinity-timeouts",
            Self::NoEndpoints(Address) => "no-endpoints",
            Self::NoEndpoints(NodePort) => "nodeport-no-endpoints",
            Self::NoLocalEndpoints(Address) => "no-local-endpoints",
            Self::NoLocalEndpoints(NodePort) => "nodeport-no-local-endpoints",
            Self::Firewalled => "firewalled",
            Self::AllowedSources => "allowed-sources",
            Self::Hairpin => "hairpin",
            Self::BoundIps => "bound-ips",
            Self::HealthCheckPorts => "health-check-ports",
        }
    }

    pub fn key(self) -> Vec<Type> {
        use Type::{Address, Number, Port, Protocol, Slot};
        match self {
            Self::ClusterIps | Self::ServiceCidrs | Self::NodePortIps | Self::BoundIps => vec![Address],
            Self::Frontends(by)
            | Self::ExternalLocal(by)
            | Self::Lists(by, _)
            | Self::Sticky(by)
            | Self::NoEndpoints(by)
            | Self::NoLocalEndpoints(by) => by.key().into(),
            Self::Endpoints => vec![Number, Slot],
            Self::StickyEndpoints => vec![Address, Port, Number],
            Self::Affinity => vec![Number, Address],
            Self::FirstChains(_) | Self::DrawChains(..) | Self::Timeouts(_) => vec![Number],
            Self::Firewalled => LookupBy::Address.key().into(),
            Self::AllowedSources => [LookupBy::Address.key(), &[Address]].concat(),
            Self::Hairpin => vec![Address, Address, Protocol, Port],
            Self::HealthCheckPorts => LookupBy::NodePort.key().into(),
        }
    }

    /// Empty for a set; the types of the values for a map.
    pub fn data(self) -> &'static [Type] {
        match self {
            Self::Endpoints | Self::StickyEndpoints => &[Type::Address, Type::Port],
            Self::Lists(..) => &[Type::Number, Type::Number, Type::Number, Type::Number],
            Self::Sticky(_) => &[Type::Number, Type::Number, Type::Number],
            Self::Affinity => &[Type::Protocol, Type::Address, Type::Port],
            Self::FirstChains(_) | Self::DrawChains(..) | Self::Timeouts(_) => &[Type::Verdict],
            Self::ClusterIps
            | Self::ServiceCidrs
            | Self::NodePortIps
            | Self::Frontends(_)
            | Self::ExternalLocal(_)
            | Self::NoEndpoints(_)
            | Self::NoLocalEndpoints(_)
            | Self::Firewalled
            | Self::AllowedSources
            | Self::Hairpin
            | Self::BoundIps
            | Self::HealthCheckPorts => &[],
        }
    }

    pub fn kind(self) -> SetKind {
        match self {
            Self::Frontends(_) | Self::Endpoints => SetKind::Counting,
            Self::ServiceCidrs | Self::AllowedSources => SetKind::Ranges,
            Self::Affinity => SetKind::Dynamic,
            Self::FirstChains(_) | Self::DrawChains(..) => SetKind::Fixed,
            Self::ClusterIps
            | Self::NodePortIps
            | Self::ExternalLocal(_)
            | Self::Lists(..)
            | Self::Sticky(_)
            | Self::StickyEndpoints
            | Self::Timeouts(_)
            | Self::NoEndpoints(_)
            | Self::NoLocalEndpoints(_)
            | Self::Firewalled
            | Self::Hairpin
            | Self::BoundIps
            | Self::HealthCheckPorts => SetKind::Plain,
        }
    }

    /// The comment that `nft list` shows.
    pub fn comment(self) -> &'static str {
        match self {
            Self::ClusterIps => "active cluster IPs",
            Self::ServiceCidrs => "where cluster IPs come from",
            Self::NodePortIps => "addresses that serve node ports",
            Self::Frontends(LookupBy::Address) => "what clients connect to; counts new connections",
            Self::Frontends(LookupBy::NodePort) => "node ports that have endpoints; counts new connections",
            Self::ExternalLocal(_) => "external traffic policy Local",
            Self::Lists(_, Clients::All) => {
                "service port, endpoint list, first chain, chain that draws a slot"
            }
            Self::Lists(_, Clients::Inside) => {
                "the same for traffic from inside to external addresses with policy Local"
            }
            Self::FirstChains(_) => "where packets to a frontend go, by the number of the first chain",
            Self::DrawChains(..) => "the chains that draw a slot, by number",
            Self::Endpoints => "where connections go, by endpoint list and slot; counts new connections",
            Self::Sticky(_) => "session affinity: service port, endpoint list, seconds",
            Self::StickyEndpoints => "endpoints that clients may stick to, by endpoint list",
            Self::Affinity => "where a client went before, by endpoint list",
            Self::Timeouts(_) => "the chains that update @affinity, by seconds",
            Self::NoEndpoints(_) => "no endpoints: refused, or dropped if other nodes have some",
            Self::NoLocalEndpoints(_) => "no endpoints on this node: dropped",
            Self::Firewalled => "load-balancer IPs with source ranges",
            Self::AllowedSources => "who may use those",
            Self::Hairpin => "connections to the pod they come from",
            Self::BoundIps => "addresses of kube-ipvs0",
            Self::HealthCheckPorts => "where load balancers check this node",
        }
    }
}

impl LookupBy {
    pub const BOTH: [Self; 2] = [Self::Address, Self::NodePort];

    /// The name of the chain that updates [`Set::Affinity`] with this timeout.
    pub fn affinity_chain(self, seconds: u32) -> String {
        format!("{}{seconds}", self.affinity_chain_prefix())
    }

    /// The timeout of a chain with such a name.
    pub fn affinity_chain_seconds(self, chain: &str) -> Option<u32> {
        let seconds = chain.strip_prefix(self.affinity_chain_prefix())?.parse().ok()?;
        (self.affinity_chain(seconds) == chain).then_some(seconds)
    }

    fn affinity_chain_prefix(self) -> &'static str {
        match self {
            Self::Address => "learn-",
            Self::NodePort => "nodeport-learn-",
        }
    }

    fn key(self) -> &'static [Type] {
        match self {
            Self::Address => &[Type::Address, Type::Protocol, Type::Port],
            Self::NodePort => &[Type::Protocol, Type::Port],
        }
    }
}

/// One element of a set, or of a map if it has data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Element {
    pub set: Set,
    pub key: ElementKey,
    pub data: Option<Data>,
}

/// The value of an element of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Data {
    Endpoint(IpAddr, Port),
    List(ListOfFrontend),
    /// The chain that a number in [`Set::Lists`] leads to.
    Chain(FrontendChain),
    Sticky(Sticky),
    /// The chain that updates [`Set::Affinity`] with this timeout in seconds.
    AffinityChain(u32),
}

/// The value of an element of [`Set::Lists`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListOfFrontend {
    /// The id of the endpoint list: see [`EndpointList`].
    pub list: u32,
    /// The chain that packets to the frontend go to first.
    pub first: FrontendChain,
    /// The chain that draws a slot of the list, or hashes the client to one; `None` if the list has no endpoints.
    pub draw: Option<FrontendChain>,
}

/// The value of an element of [`Set::Sticky`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sticky {
    /// The endpoint list that the frontend uses: see [`EndpointList`].
    pub list: u32,
    pub seconds: u32,
}

/// The two endpoint lists of a service port. Their ids differ in the lowest bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointList {
    Cluster,
    Local,
}

impl EndpointList {
    pub const BOTH: [Self; 2] = [Self::Cluster, Self::Local];
    /// The bit that distinguishes the lists of a service port.
    pub const BIT: u32 = 1;

    /// The id of this list of a service port.
    pub fn of(self, service_port: u32) -> u32 {
        match self {
            Self::Cluster => service_port & !Self::BIT,
            Self::Local => service_port | Self::BIT,
        }
    }
}

impl ListOfFrontend {
    /// The id of the service port that the list belongs to, which is that of its cluster list.
    pub fn service_port(self) -> u32 {
        EndpointList::Cluster.of(self.list)
    }

    /// The bytes in the kernel. The first number is there for the reason that [`Sticky::to_wire`] has.
    pub fn to_wire(self) -> [u8; 16] {
        to_wire(self.numbers())
    }

    pub fn from_wire(bytes: &[u8]) -> Option<Self> {
        let [_, list, first, draw] = from_wire(bytes)?;
        let draw = if draw == 0 { None } else { Some(FrontendChain::from_number(draw)?) };
        Some(Self { list, first: FrontendChain::from_number(first)?, draw })
    }

    fn numbers(self) -> [u32; 4] {
        [self.service_port(), self.list, self.first.number(), self.draw.map_or(0, FrontendChain::number)]
    }
}

/// Numbers, in host order.
fn to_wire<const COUNT: usize, const BYTES: usize>(numbers: [u32; COUNT]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    for (to, from) in bytes.iter_mut().zip(numbers.into_iter().flat_map(u32::to_ne_bytes)) {
        *to = from;
    }
    bytes
}

fn from_wire<const COUNT: usize>(bytes: &[u8]) -> Option<[u32; COUNT]> {
    let (words, rest) = bytes.as_chunks::<4>();
    let words: &[[u8; 4]; COUNT] = words.try_into().ok().filter(|_| rest.is_empty())?;
    Some(words.map(u32::from_ne_bytes))
}

impl Sticky {
    /// The id of the service port that the list belongs to, which is that of its cluster list.
    pub fn service_port(self) -> u32 {
        EndpointList::Cluster.of(self.list)
    }

    /// The bytes in the kernel. The first number exists for `nft`, which cannot list a rule that uses the first part of a map's
    /// value in another key.
    pub fn to_wire(self) -> [u8; 12] {
        to_wire([self.service_port(), self.list, self.seconds])
    }

    pub fn from_wire(bytes: &[u8]) -> Option<Self> {
        let [_, list, seconds] = from_wire(bytes)?;
        Some(Self { list, seconds })
    }
}

impl Element {
    pub fn new(set: Set, key: ElementKey) -> Self {
        Self { set, key, data: None }
    }

    pub fn pair(set: Set, key: ElementKey, endpoint: &Endpoint) -> Self {
        Self { set, key, data: Some(Data::Endpoint(endpoint.ip, endpoint.port)) }
    }

    /// The endpoint that the element leads to.
    pub fn endpoint(&self) -> Option<(IpAddr, Port)> {
        match self.data? {
            Data::Endpoint(ip, port) => Some((ip, port)),
            Data::List(_) | Data::Chain(_) | Data::Sticky(_) | Data::AffinityChain(_) => None,
        }
    }

    /// The id of the endpoint list that an element of [`Set::Endpoints`] or [`Set::StickyEndpoints`] belongs to.
    pub fn list(&self) -> Option<u32> {
        let key = self.key.as_bytes();
        let list = if self.set == Set::Endpoints {
            key.first_chunk()
        } else {
            key.last_chunk().filter(|_| self.set == Set::StickyEndpoints)
        };
        list.map(|list| u32::from_ne_bytes(*list))
    }

    /// The endpoint list, slot and endpoint of an element of [`Set::Endpoints`].
    pub fn slot(&self) -> Option<(u32, u32, (IpAddr, Port))> {
        let [list, slot] = from_wire(self.key.as_bytes()).filter(|_| self.set == Set::Endpoints)?;
        Some((list, slot, self.endpoint()?))
    }

    /// The element as `nft` prints it in its set.
    pub fn show(&self, family: Family) -> String {
        let key = self.key.show(&self.set.key(), family);
        match (self.range(family), self.data) {
            (Some(range), _) if self.set == Set::AllowedSources => {
                let frontend = self.key.show(LookupBy::Address.key(), family);
                format!("{frontend} . {}", show_range(range))
            }
            (Some(range), _) => show_range(range),
            (None, Some(Data::Endpoint(ip, port))) => format!("{key} : {ip} . {port}"),
            (None, Some(Data::List(list))) => {
                let [service_port, list, first, draw] = list.numbers();
                format!("{key} : {service_port:#010x} . {list:#010x} . {first:#010x} . {draw:#010x}")
            }
            (None, Some(Data::Chain(target))) => {
                let verdict = if target.returns() { "jump" } else { "goto" };
                format!("{key} : {verdict} {}", target.name())
            }
            (None, Some(Data::Sticky(sticky))) => {
                let Sticky { list, seconds } = sticky;
                let service_port = sticky.service_port();
                format!("{key} : {service_port:#010x} . {list:#010x} . {seconds:#010x}")
            }
            (None, Some(Data::AffinityChain(seconds))) => {
                let by = if self.set == Set::Timeouts(LookupBy::NodePort) {
                    LookupBy::NodePort
                } else {
                    LookupBy::Address
                };
                format!("{key} : goto {}", by.affinity_chain(seconds))
            }
            (None, None) => key,
        }
    }

    /// The first and the last address of an element of a set of ranges.
    pub fn range(&self, family: Family) -> Option<(IpAddr, IpAddr)> {
        if self.set.kind() != SetKind::Ranges {
            return None;
        }
        let length = Type::Address.length(family);
        let (_, ends) =
            self.key.as_bytes().split_at_checked(self.key.as_bytes().len().checked_sub(2 * length)?)?;
        let (first, last) = ends.split_at_checked(length)?;
        Some((address(first)?, address(last)?))
    }
}

/// The bytes of an element's key: its fields, each padded to a multiple of four. An element of a set of ranges has one field
/// more than the set: the end of the range.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ElementKey {
    bytes: [u8; Self::LONGEST],
    length: u8,
}

impl ElementKey {
    /// An IPv6 frontend and a range of IPv6 addresses.
    const LONGEST: usize = 56;

    pub const EMPTY: Self = Self { bytes: [0; Self::LONGEST], length: 0 };

    /// `None` if it is longer than the key of any element of ours.
    pub fn from_wire(bytes: &[u8]) -> Option<Self> {
        (bytes.len() <= Self::LONGEST).then(|| Self::EMPTY.with(bytes))
    }

    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or_default()
    }

    pub fn address(self, ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => self.with(&ip.octets()),
            IpAddr::V6(ip) => self.with(&ip.octets()),
        }
    }

    pub fn protocol(self, protocol: Protocol) -> Self {
        self.with(&[number(protocol), 0, 0, 0])
    }

    pub fn port(self, port: Port) -> Self {
        let [high, low] = port.get().to_be_bytes();
        self.with(&[high, low, 0, 0])
    }

    /// In host order, as the kernel generates random numbers.
    pub fn slot(self, slot: u32) -> Self {
        self.number(slot)
    }

    /// In host order.
    pub fn number(self, number: u32) -> Self {
        self.with(&number.to_ne_bytes())
    }

    fn with(mut self, field: &[u8]) -> Self {
        let start = usize::from(self.length);
        let end = start + field.len();
        self.bytes.get_mut(start..end).expect("LONGEST holds all fields").copy_from_slice(field);
        self.length = u8::try_from(end).expect("LONGEST is below 256");
        self
    }

    /// The key as `nft` prints it, given the types of its fields.
    pub fn show(&self, types: &[Type], family: Family) -> String {
        let mut rest = self.as_bytes();
        let mut parts = Vec::new();
        for kind in types {
            let Some((field, after)) = rest.split_at_checked(kind.length(family)) else { break };
            parts.push(kind.show(field));
            rest = after;
        }
        parts.join(" . ")
    }
}

impl fmt::Debug for ElementKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().chunks(4).try_for_each(|word| {
            word.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
            f.write_str(" ")
        })
    }
}

impl Type {
    /// Padded to a multiple of four.
    pub fn length(self, family: Family) -> usize {
        match (self, family) {
            (Self::Address, Family::V6) => 16,
            (Self::Address, Family::V4)
            | (Self::Protocol | Self::Port | Self::Slot | Self::Number | Self::Verdict, _) => 4,
        }
    }

    fn show(self, field: &[u8]) -> String {
        match (self, field) {
            (Self::Address, &[a, b, c, d]) => Ipv4Addr::new(a, b, c, d).to_string(),
            (Self::Address, _) => {
                <[u8; 16]>::try_from(field).map(Ipv6Addr::from).map(|ip| ip.to_string()).unwrap_or_default()
            }
            (Self::Protocol, &[6, ..]) => "tcp".into(),
            (Self::Protocol, &[17, ..]) => "udp".into(),
            (Self::Protocol, &[132, ..]) => "sctp".into(),
            (Self::Port, &[high, low, ..]) => u16::from_be_bytes([high, low]).to_string(),
            (Self::Slot, &[a, b, c, d]) => u32::from_ne_bytes([a, b, c, d]).to_string(),
            (Self::Number, &[a, b, c, d]) => format!("{:#010x}", u32::from_ne_bytes([a, b, c, d])),
            (Self::Protocol | Self::Port | Self::Slot | Self::Number | Self::Verdict, _) => {
                format!("{field:02x?}")
            }
        }
    }
}

/// The address with these bytes.
pub fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// A range as `nft` prints it: as a prefix, if it is one.
pub fn show_range((first, last): (IpAddr, IpAddr)) -> String {
    let prefix = (0..=128).filter_map(|length| IpNet::new(first, length).ok());
    match prefix.into_iter().find(|net| net.network() == first && net.broadcast() == last) {
        Some(net) if first != last => net.to_string(),
        _ if first == last => first.to_string(),
        _ => format!("{first}-{last}"),
    }
}

/// The protocol with this number in the IP header.
fn number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    }
}

pub(super) fn protocol(number: u8) -> Option<Protocol> {
    match number {
        6 => Some(Protocol::Tcp),
        17 => Some(Protocol::Udp),
        132 => Some(Protocol::Sctp),
        _ => None,
    }
}
