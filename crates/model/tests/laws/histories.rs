//! Histories of a small, crowded cluster.

use std::collections::BTreeMap;

use model::address::Family;
use model::api;
use model::event::{Event, Kind};
use model::names::NamespacedName;
use proptest::collection::vec;
use proptest::option::{of, weighted};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

pub const THIS_NODE: &str = "n1";

/// One operation.
#[derive(Clone, Debug)]
pub enum Op {
    Service(Box<api::Service>),
    DeleteService(NamespacedName),
    Slice(api::EndpointSlice),
    DeleteSlice(NamespacedName),
    Cidr(api::ServiceCidr),
    DeleteCidr(String),
    Zone(Option<String>),
    DeleteNode,
    /// Lists a kind again. Objects whose bit is not set have been deleted before.
    Relist(Kind, u32),
    /// Takes changes.
    Take,
}

/// The cluster as the API server sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Objects {
    pub services: BTreeMap<NamespacedName, api::Service>,
    pub slices: BTreeMap<NamespacedName, api::EndpointSlice>,
    pub cidrs: BTreeMap<String, api::ServiceCidr>,
    pub zone: Option<String>,
}

impl Objects {
    /// Applies `op`, and returns the events that a source would emit.
    pub fn apply(&mut self, op: &Op) -> Vec<Event> {
        match op {
            Op::Service(service) => {
                self.services.insert(name(&service.metadata), (**service).clone());
                vec![applied_service(service)]
            }
            Op::DeleteService(name) => {
                self.services.remove(name);
                vec![Event::ServiceDeleted(name.clone())]
            }
            Op::Slice(slice) => {
                self.slices.insert(name(&slice.metadata), slice.clone());
                vec![applied_slice(slice)]
            }
            Op::DeleteSlice(name) => {
                self.slices.remove(name);
                vec![Event::SliceDeleted(name.clone())]
            }
            Op::Cidr(cidr) => {
                self.cidrs.insert(cidr.metadata.name.to_string(), cidr.clone());
                vec![applied_cidr(cidr)]
            }
            Op::DeleteCidr(name) => {
                self.cidrs.remove(name);
                vec![Event::ServiceCidrDeleted(name.clone())]
            }
            Op::Zone(zone) => {
                self.zone.clone_from(zone);
                vec![applied_node(zone)]
            }
            Op::DeleteNode => vec![Event::NodeDeleted],
            Op::Relist(kind, kept) => {
                self.deletions(*kind, *kept);
                let mut events = self.events();
                events.retain(|event| kind_of(event) == Some(*kind));
                events.insert(0, Event::Listing(*kind));
                events.push(Event::Listed(*kind));
                events
            }
            Op::Take => vec![],
        }
    }

    /// Deletes the objects of a kind whose bit is not set, and returns the events that a source would emit.
    pub fn deletions(&mut self, kind: Kind, kept: u32) -> Vec<Event> {
        match kind {
            Kind::Service => drop_without_bit(&mut self.services, kept).map(Event::ServiceDeleted).collect(),
            Kind::EndpointSlice => {
                drop_without_bit(&mut self.slices, kept).map(Event::SliceDeleted).collect()
            }
            Kind::ServiceCidr => {
                drop_without_bit(&mut self.cidrs, kept).map(Event::ServiceCidrDeleted).collect()
            }
        }
    }

    /// Every object as applied, once.
    pub fn events(&self) -> Vec<Event> {
        let mut events = vec![applied_node(&self.zone)];
        events.extend(self.services.values().map(applied_service));
        events.extend(self.slices.values().map(applied_slice));
        events.extend(self.cidrs.values().map(applied_cidr));
        events
    }

    /// One object under each possible name.
    pub fn crowded() -> Self {
        let mut objects = Self::default();
        for (namespace, service) in SERVICES {
            let metadata = metadata(namespace, service);
            objects.apply(&Op::Service(Box::new(api::Service { metadata, ..Default::default() })));
        }
        for (namespace, slice) in SLICES {
            let mut metadata = metadata(namespace, slice);
            metadata.labels.service_name = Some("svc-1".into());
            let address_type = "IPv4".into();
            objects.apply(&Op::Slice(api::EndpointSlice { metadata, address_type, ..Default::default() }));
        }
        objects
    }
}

fn drop_without_bit<K: Ord + Clone, V>(map: &mut BTreeMap<K, V>, kept: u32) -> impl Iterator<Item = K> {
    let names: Vec<K> = map.keys().cloned().collect();
    let gone = names.into_iter().enumerate().filter(move |(at, _)| kept & (1 << (at % 32)) == 0);
    let gone: Vec<K> = gone.map(|(_, name)| name).collect();
    map.retain(|name, _| !gone.contains(name));
    gone.into_iter()
}

fn kind_of(event: &Event) -> Option<Kind> {
    match event {
        Event::ServiceApplied(_) | Event::ServiceDeleted(_) => Some(Kind::Service),
        Event::SliceApplied(_) | Event::SliceDeleted(_) => Some(Kind::EndpointSlice),
        Event::ServiceCidrApplied(_) | Event::ServiceCidrDeleted(_) => Some(Kind::ServiceCidr),
        Event::Listing(_) | Event::Listed(_) | Event::NodeApplied(_) | Event::NodeDeleted => None,
    }
}

fn applied_service(service: &api::Service) -> Event {
    Event::ServiceApplied(Box::new(service.clone()))
}

fn applied_slice(slice: &api::EndpointSlice) -> Event {
    Event::SliceApplied(Box::new(slice.clone()))
}

fn applied_cidr(cidr: &api::ServiceCidr) -> Event {
    Event::ServiceCidrApplied(Box::new(cidr.clone()))
}

fn applied_node(zone: &Option<String>) -> Event {
    let mut node = api::Node::default();
    node.metadata.labels.zone.clone_from(zone);
    Event::NodeApplied(Box::new(node))
}

fn name(metadata: &api::Metadata) -> NamespacedName {
    NamespacedName::new(&metadata.namespace, &metadata.name)
}

fn metadata(namespace: &str, name: &str) -> api::Metadata {
    api::Metadata { name: name.into(), namespace: namespace.into(), ..Default::default() }
}

const SERVICES: [(&str, &str); 4] = [("a", "svc-1"), ("a", "svc-2"), ("b", "svc-1"), ("b", "svc-2")];
const SLICES: [(&str, &str); 5] =
    [("a", "slice-1"), ("a", "slice-2"), ("a", "slice-3"), ("b", "slice-1"), ("b", "slice-2")];
const CIDRS: [&str; 3] = ["cidr-1", "cidr-2", "cidr-3"];

pub fn family() -> impl Strategy<Value = Family> {
    select(&Family::BOTH)
}

pub fn history() -> impl Strategy<Value = Vec<Op>> {
    vec(op(), 1..50)
}

pub fn objects() -> impl Strategy<Value = Objects> {
    vec(op(), 1..30).prop_map(|ops| {
        let mut objects = Objects::default();
        for op in &ops {
            objects.apply(op);
        }
        objects
    })
}

fn op() -> impl Strategy<Value = Op> {
    let kind = select(&[Kind::Service, Kind::EndpointSlice, Kind::ServiceCidr]);
    prop_oneof![
        8 => service().prop_map(|service| Op::Service(Box::new(service))),
        2 => select(&SERVICES).prop_map(|(namespace, name)| Op::DeleteService(NamespacedName::new(namespace, name))),
        14 => slice().prop_map(Op::Slice),
        4 => select(&SLICES).prop_map(|(namespace, name)| Op::DeleteSlice(NamespacedName::new(namespace, name))),
        2 => cidr().prop_map(Op::Cidr),
        1 => select(&CIDRS).prop_map(|name| Op::DeleteCidr(name.into())),
        2 => weighted(0.8, text(&["z1", "z2", "z3", ""])).prop_map(Op::Zone),
        1 => Just(Op::DeleteNode),
        1 => (kind, any::<u32>()).prop_map(|(kind, kept)| Op::Relist(kind, kept | kept >> 7)),
        4 => Just(Op::Take),
    ]
}

pub fn service() -> impl Strategy<Value = api::Service> {
    let policy = || of(text(&["Cluster", "Local"]));
    let created = of(text(&["2026-11-15T10:00:01Z", "2026-11-15T10:00:02Z", "once"]));
    let hash = weighted(0.7, text(&["ClientIP", "ClientIP", "ClientIPAndPort", "all"]));
    let identity = (select(&SERVICES), cluster_ips(), vec(service_port(), 0..4), created, hash);
    let kind =
        weighted(0.9, text(&["ClusterIP", "NodePort", "LoadBalancer", "LoadBalancer", "ExternalName"]));
    let policies = (kind, policy(), policy(), of(select(&[0, 31000, 31001])), of(of(select(&[5, 600]))));
    let external = few(&["198.51.100.1", "198.51.100.02", "2001:db8::1", "bogus", ""], 3);
    let ranges =
        few(&["10.0.0.0/8", "192.168.0.7/24", "2001:db8::/32", "fd00::/8", "0.0.0.0/0", "::/0", "?"], 3);
    (identity, policies, external, vec(ingress(), 0..3), ranges).prop_map(
        |(
            (at, ips, ports, created, hash),
            (kind, external, internal, health, affinity),
            external_ips,
            ingress,
            ranges,
        )| {
            let mut service = api::Service { metadata: metadata(at.0, at.1), ..Default::default() };
            service.metadata.creation_timestamp = created;
            service.metadata.annotations.hash = hash;
            let spec = &mut service.spec;
            (spec.cluster_ip, spec.ip_families, spec.cluster_ips) = ips;
            spec.ports = ports;
            spec.r#type = kind;
            spec.external_traffic_policy = external;
            spec.internal_traffic_policy = internal;
            spec.health_check_node_port = health;
            spec.session_affinity = affinity.map(|_| "ClientIP".into());
            let client_ip = affinity.map(|timeout_seconds| api::ClientIpConfig { timeout_seconds });
            spec.session_affinity_config = Some(api::SessionAffinityConfig { client_ip });
            spec.external_ips = external_ips;
            spec.load_balancer_source_ranges = ranges;
            service.status.load_balancer.ingress = ingress;
            service
        },
    )
}

type ClusterIps = (String, Vec<String>, Vec<String>);

/// `clusterIP`, `ipFamilies` and `clusterIPs`, mostly of both families.
fn cluster_ips() -> impl Strategy<Value = ClusterIps> {
    let with = |first: &str, families: &[&str], ips: &[&str]| {
        let owned = |texts: &[&str]| texts.iter().map(|&text| text.into()).collect();
        (first.to_owned(), owned(families), owned(ips))
    };
    let both: &[&str] = &["IPv4", "IPv6"];
    prop_oneof![
        6 => Just(with("10.96.0.1", both, &["10.96.0.1", "fd00:96::1"])),
        4 => Just(with("fd00:96::2", &["IPv6", "IPv4"], &["fd00:96::2", "10.96.0.2"])),
        2 => Just(with("10.96.0.1", &["IPv4"], &["10.96.0.1"])),
        2 => Just(with("fd00:96::1", &["IPv6"], &["fd00:96::1"])),
        1 => Just(with("10.96.0.3", &[], &[])),
        1 => Just(with("10.96.0.4", both, &["10.96.0.4"])),
        1 => Just(with("None", both, &["None"])),
        1 => Just(with("", &[], &[])),
    ]
}

fn service_port() -> impl Strategy<Value = api::ServicePort> {
    (port_name(), protocol(), select(&[80, 53, 53, 80, 0, 65536]), of(select(&[0, 30080, 30053])))
        .prop_map(|(name, protocol, port, node_port)| api::ServicePort { name, protocol, port, node_port })
}

fn ingress() -> impl Strategy<Value = api::LoadBalancerIngress> {
    let ip = text(&["203.0.113.1", "203.0.113.2", "2001:db8:f::1", "", "nonsense"]);
    (ip, weighted(0.3, text(&["VIP", "Proxy"])))
        .prop_map(|(ip, ip_mode)| api::LoadBalancerIngress { ip, ip_mode })
}

pub fn slice() -> impl Strategy<Value = api::EndpointSlice> {
    let owner = prop_oneof![
        12 => text(&["svc-1", "svc-2", "svc-1", "svc-2", "svc-3"]).prop_map(Some),
        1 => Just(Some(String::new())),
        1 => Just(None),
    ];
    let time = weighted(
        0.4,
        text(&["2026-11-15T10:00:01Z", "2026-11-15T10:00:02.5Z", "2026-11-15T09:00:00Z", "late"]),
    );
    let weights = weighted(
        0.3,
        text(&[
            "1",
            "7",
            "0",
            "10.0.0.1=0",
            "10.0.0.1=5,10.0.0.2=0",
            "3,fd00::1=9",
            "fd00::2=0",
            "seven",
            "65536",
        ]),
    );
    let kind = select(&["IPv4", "IPv4", "IPv4", "IPv6", "IPv6", "IPv6", "FQDN"]);
    let said = kind.prop_flat_map(|kind| (Just(kind), vec(endpoint(kind), 0..6), vec(slice_port(), 0..4)));
    (select(&SLICES), owner, time, weights, said).prop_map(
        |(at, owner, time, weights, (kind, endpoints, ports))| {
            let mut metadata = metadata(at.0, at.1);
            metadata.labels.service_name = owner;
            metadata.annotations.last_change_trigger_time = time;
            metadata.annotations.weight = weights;
            api::EndpointSlice { metadata, address_type: kind.into(), endpoints, ports }
        },
    )
}

fn endpoint(kind: &'static str) -> impl Strategy<Value = api::SliceEndpoint> {
    let addresses: &[&str] = match kind {
        "IPv4" => &["10.0.0.1", "10.0.0.2", "10.0.0.02", "10.0.0.17", "10.0.0.6", "::ffff:10.0.0.1", "?"],
        "IPv6" => &["fd00::1", "fd00::2", "FD00:0::2", "fd00::10", "fd00::1:0", "10.0.0.1", "?"],
        _ => &["example.org"],
    };
    let addresses = prop_oneof![20 => text(addresses).prop_map(|ip| vec![ip]), 1 => Just(vec![])];
    let hints = |names: &'static [&'static str]| {
        prop_oneof![1 => Just(vec![]), 2 => subsequence(names, 1..=names.len())].prop_map(|names| {
            names.into_iter().map(|name| api::Hint { name: name.into() }).collect::<Vec<_>>()
        })
    };
    let node = of(text(&[THIS_NODE, "n2"]));
    (addresses, conditions(), node, hints(&["z1", "z2"]), hints(&[THIS_NODE, "n2"])).prop_map(
        |(addresses, conditions, node_name, for_zones, for_nodes)| api::SliceEndpoint {
            addresses,
            conditions,
            node_name,
            hints: api::EndpointHints { for_zones, for_nodes },
        },
    )
}

/// Mostly ready or draining, sometimes arbitrary.
fn conditions() -> impl Strategy<Value = api::EndpointConditions> {
    let all = |ready, serving, terminating| api::EndpointConditions {
        ready: Some(ready),
        serving: Some(serving),
        terminating: Some(terminating),
    };
    prop_oneof![
        3 => Just(all(true, true, false)),
        3 => Just(all(false, true, true)),
        1 => Just(api::EndpointConditions::default()),
        2 => (of(any::<bool>()), of(any::<bool>()), of(any::<bool>()))
            .prop_map(|(ready, serving, terminating)| api::EndpointConditions { ready, serving, terminating }),
    ]
}

fn slice_port() -> impl Strategy<Value = api::EndpointPort> {
    (weighted(0.95, port_name()), protocol(), weighted(0.95, select(&[8080, 8053, 8080, 8053, 0])))
        .prop_map(|(name, protocol, port)| api::EndpointPort { name, protocol, port })
}

fn port_name() -> impl Strategy<Value = String> {
    text(&["", "http", "dns"])
}

fn protocol() -> impl Strategy<Value = Option<String>> {
    weighted(0.8, text(&["TCP", "UDP", "UDP", "SCTP", "", "ICMP"]))
}

fn cidr() -> impl Strategy<Value = api::ServiceCidr> {
    let cidrs = few(&["10.96.0.0/16", "10.97.0.0/16", "fd00:96::/112", "fd00:97::/112", "?"], 3);
    (select(&CIDRS), cidrs).prop_map(|(name, cidrs)| api::ServiceCidr {
        metadata: metadata("", name),
        spec: api::ServiceCidrSpec { cidrs },
    })
}

fn text(texts: &[&'static str]) -> impl Strategy<Value = String> + Clone {
    select(texts.to_vec()).prop_map(Into::into)
}

fn few(texts: &'static [&'static str], most: usize) -> impl Strategy<Value = Vec<String>> {
    vec(text(texts), 0..=most)
}
