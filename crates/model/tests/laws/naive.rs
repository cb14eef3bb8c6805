//! The specification transcribed line by line, independently of the model.
//!
//! Everything is text and computed from scratch. Numbers in comments are sections of the specification.

use std::collections::{BTreeMap, BTreeSet};

use model::address::{Family, host_port, parse_cidr, parse_ip};
use model::api;
use model::hashing::ClientHash;
use model::names::NamespacedName;
use model::routing::{Endpoint, Routing, Traffic};

use crate::histories::{Objects, THIS_NODE};
use crate::store::View;

/// How many service ports may have their clients hashed: few, so that histories reach the limit.
pub const MAX_HASHED: usize = 3;

/// Service ports by name, each described by named texts.
type Described = BTreeMap<String, BTreeMap<&'static str, String>>;

/// The model's state.
pub fn described(view: &View) -> Described {
    let mut said: Described =
        view.routings.iter().map(|(name, routing)| (format!("{name:?}"), words(routing))).collect();
    let health = view.health_checks.iter().map(|(name, check)| format!("{name}={}", check.local_endpoints));
    said.insert("health".into(), [("checks", health.collect::<Vec<_>>().join(" "))].into());
    said
}

fn words(routing: &Routing) -> BTreeMap<&'static str, String> {
    let addresses = &routing.addresses;
    let port = |port: Option<model::names::Port>| port.map_or(0, model::names::Port::get).to_string();
    let mut words = BTreeMap::from([
        ("clusterIP", host_port(addresses.cluster_ip, routing.port.get())),
        ("nodePort", port(routing.node_port)),
        ("externalIPs", joined(addresses.external_ips.iter())),
        ("loadBalancerVIPs", joined(addresses.load_balancer_ips.iter())),
        ("sourceRanges", joined(addresses.source_ranges.iter())),
        ("affinity", routing.affinity.unwrap_or(0).to_string()),
        ("hash", routing.hash.map_or("", ClientHash::name).into()),
        ("externalPolicyLocal", routing.preserves_client.to_string()),
        ("externallyAccessible", routing.is_externally_accessible.to_string()),
        ("healthCheckNodePort", port(routing.health_check_node_port)),
        ("cluster", list(&routing.cluster)),
        ("local", list(&routing.local)),
        ("clusterWeights", joined(routing.weights(Traffic::ToCluster).iter())),
        ("localWeights", joined(routing.weights(Traffic::ToLocal).iter())),
        ("allReachable", list(&routing.reachable())),
        ("hasAny", routing.has_endpoints().to_string()),
        ("serving", list(&routing.serving)),
        ("internal", fate(routing.internal).into()),
    ]);
    if routing.is_externally_accessible {
        words.insert("external", fate(routing.external).into());
    }
    words
}

fn fate(traffic: Traffic) -> &'static str {
    match traffic {
        Traffic::ToCluster => "cluster",
        Traffic::ToLocal => "local",
        Traffic::RejectNoEndpoints => "reject",
        Traffic::DropNoLocalEndpoints => "drop",
    }
}

fn list(endpoints: &[Endpoint]) -> String {
    joined(endpoints.iter().map(|e| if e.local { format!("{e}*") } else { e.to_string() }))
}

fn joined(values: impl Iterator<Item = impl ToString>) -> String {
    values.map(|value| value.to_string()).collect::<Vec<_>>().join(" ")
}

/// The state according to the specification.
pub fn expected(family: Family, objects: &Objects) -> Described {
    let zone = objects.zone.as_deref().unwrap_or("");
    let mut said = Described::new();
    let mut health = Vec::new();
    let mut hashed = BTreeMap::new();
    for (name, service) in &objects.services {
        let Some(ip) = cluster_ip(family, &service.spec) else { continue };
        let endpoints = endpoints_of(family, name, objects);
        let mut check = None;
        for port in &service.spec.ports {
            let Some(protocol) = protocol(port.protocol.as_deref()) else { continue };
            if !(1..=65535).contains(&port.port) {
                continue;
            }
            let record = Record::new(family, service, port, &ip, protocol);
            let key = if port.name.is_empty() {
                format!("{name}/{protocol}")
            } else {
                format!("{name}:{}/{protocol}", port.name)
            };
            let found = endpoints.get(&(port.name.clone(), protocol.to_owned()));
            let found: Vec<_> = found.map(|map| map.values().collect()).unwrap_or_default();
            check = Some(record.health_check_node_port).filter(|port| *port != 0);
            said.insert(key.clone(), record.words(&found, zone));
            if let Some(hash @ ("ClientIP" | "ClientIPAndPort")) =
                service.metadata.annotations.hash.as_deref()
            {
                let created = service.metadata.creation_timestamp.as_deref();
                let created = created.filter(|text| *text != "once").unwrap_or("unknown");
                hashed.insert((created, name, &port.name, record.protocol), (key, hash));
            }
        }
        if check.is_some() {
            let here: BTreeSet<_> = endpoints
                .values()
                .flat_map(BTreeMap::values)
                .filter(|e| e.local && e.ready)
                .map(|e| &e.ip)
                .collect();
            health.push(format!("{name}={}", here.len()));
        }
    }
    // Not part of the specification.
    for (key, hash) in hashed.into_values().take(MAX_HASHED) {
        said.get_mut(&key).unwrap().insert("hash", hash.into());
    }
    said.insert("health".into(), [("checks", health.join(" "))].into());
    said
}

/// 4.2
fn cluster_ip(family: Family, spec: &api::ServiceSpec) -> Option<String> {
    if spec.cluster_ip.is_empty()
        || spec.cluster_ip == "None"
        || spec.r#type.as_deref() == Some("ExternalName")
    {
        return None;
    }
    if spec.ip_families.is_empty() {
        return of_family(family, &spec.cluster_ip);
    }
    let index = spec.ip_families.iter().position(|text| *text == family.to_string())?;
    of_family(family, spec.cluster_ips.get(index)?)
}

fn of_family(family: Family, text: &str) -> Option<String> {
    parse_ip(text).filter(|ip| Family::of(*ip) == family).map(|ip| ip.to_string())
}

fn protocol(text: Option<&str>) -> Option<&str> {
    match text {
        None | Some("") => Some("TCP"),
        Some("TCP" | "UDP" | "SCTP") => text,
        Some(_) => None,
    }
}

/// 5
struct Record {
    cluster_ip: String,
    protocol: String,
    node_port: i64,
    affinity: i64,
    external_ips: Vec<String>,
    load_balancer_vips: Vec<String>,
    source_ranges: Vec<String>,
    external_policy_local: bool,
    internal_policy_local: bool,
    health_check_node_port: i64,
}

impl Record {
    fn new(
        family: Family,
        service: &api::Service,
        port: &api::ServicePort,
        ip: &str,
        protocol: &str,
    ) -> Self {
        let spec = &service.spec;
        let kind = spec.r#type.as_deref().unwrap_or("ClusterIP");
        let cidrs = spec.load_balancer_source_ranges.iter().filter_map(|text| parse_cidr(text.trim()));
        let cidrs: Vec<_> = cidrs.filter(|cidr| Family::of(cidr.addr()) == family).collect();
        let unrestricted = cidrs.iter().any(|cidr| cidr.prefix_len() == 0);
        let ingress = service.status.load_balancer.ingress.iter();
        let ingress = ingress
            .filter(|ingress| !ingress.ip.is_empty() && ingress.ip_mode.as_deref().unwrap_or("VIP") == "VIP");
        let external_policy_local = spec.external_traffic_policy.as_deref() == Some("Local")
            && (kind == "LoadBalancer"
                || kind == "NodePort"
                || (kind == "ClusterIP" && !spec.external_ips.is_empty()));
        let client_ip = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
        Self {
            cluster_ip: host_port(ip.parse().unwrap(), u16::try_from(port.port).unwrap()),
            protocol: protocol.into(),
            node_port: port.node_port.unwrap_or(0),
            affinity: match spec.session_affinity.as_deref() {
                Some("ClientIP") => client_ip.and_then(|config| config.timeout_seconds).unwrap_or(10800),
                _ => 0,
            },
            external_ips: spec.external_ips.iter().filter_map(|text| of_family(family, text)).collect(),
            load_balancer_vips: ingress.filter_map(|ingress| of_family(family, &ingress.ip)).collect(),
            source_ranges: if unrestricted {
                vec![]
            } else {
                cidrs.iter().map(ToString::to_string).collect()
            },
            external_policy_local,
            internal_policy_local: spec.internal_traffic_policy.as_deref() == Some("Local"),
            health_check_node_port: if kind == "LoadBalancer" && external_policy_local {
                spec.health_check_node_port.unwrap_or(0)
            } else {
                0
            },
        }
    }

    fn words(&self, endpoints: &[&Entry], zone: &str) -> BTreeMap<&'static str, String> {
        let accessible =
            self.node_port != 0 || !self.load_balancer_vips.is_empty() || !self.external_ips.is_empty();
        let found = categorize(
            endpoints,
            !self.internal_policy_local || accessible,
            self.internal_policy_local || (self.external_policy_local && accessible),
            zone,
        );
        let fate = |local: bool| match (found.has_any, local) {
            (false, _) => "reject",
            (true, false) => "cluster",
            (true, true) if found.local.is_empty() => "drop",
            (true, true) => "local",
        };
        // The specification has only serving endpoints, but rules choose ready ones even if they do not serve.
        let serving = endpoints.iter().filter(|e| self.protocol == "UDP" && (e.serving || e.ready));
        let mut words = BTreeMap::from([
            ("clusterIP", self.cluster_ip.clone()),
            ("nodePort", self.node_port.to_string()),
            ("externalIPs", self.external_ips.join(" ")),
            ("loadBalancerVIPs", self.load_balancer_vips.join(" ")),
            ("sourceRanges", self.source_ranges.join(" ")),
            ("affinity", self.affinity.to_string()),
            ("hash", String::new()),
            ("externalPolicyLocal", self.external_policy_local.to_string()),
            ("externallyAccessible", accessible.to_string()),
            ("healthCheckNodePort", self.health_check_node_port.to_string()),
            ("cluster", found.cluster.join(" ")),
            ("local", found.local.join(" ")),
            ("clusterWeights", weights(&found.cluster, endpoints)),
            ("localWeights", weights(&found.local, endpoints)),
            ("allReachable", found.all_reachable.join(" ")),
            ("hasAny", found.has_any.to_string()),
            ("serving", joined(serving.map(|e| &e.text))),
            ("internal", fate(self.internal_policy_local).into()),
        ]);
        if accessible {
            words.insert("external", fate(self.external_policy_local).into());
        }
        words
    }
}

/// 7. The text of local endpoints ends with a star; the key does not.
#[derive(Clone)]
struct Entry {
    text: String,
    ip: String,
    local: bool,
    ready: bool,
    serving: bool,
    terminating: bool,
    weight: u16,
    zones: Vec<String>,
    nodes: Vec<String>,
}

/// 8.3: by port name and protocol, then by endpoint text.
fn endpoints_of(
    family: Family,
    service: &NamespacedName,
    objects: &Objects,
) -> BTreeMap<(String, String), BTreeMap<String, Entry>> {
    let mut found: BTreeMap<_, BTreeMap<String, Entry>> = BTreeMap::new();
    for (name, slice) in &objects.slices {
        // 4.3
        if slice.address_type != family.to_string()
            || name.namespace != service.namespace
            || slice.metadata.labels.service_name.as_deref() != Some(&*service.name)
        {
            continue;
        }
        for port in &slice.ports {
            let (Some(port_name), Some(number)) = (&port.name, port.port.filter(|number| *number != 0))
            else {
                continue;
            };
            let Some(protocol) = protocol(port.protocol.as_deref()) else { continue };
            for endpoint in &slice.endpoints {
                let Some(ip) = endpoint.addresses.first().and_then(|text| of_family(family, text)) else {
                    continue;
                };
                let key = host_port(ip.parse().unwrap(), u16::try_from(number).unwrap());
                let local = endpoint.node_name.as_deref() == Some(THIS_NODE);
                let names = |hints: &[api::Hint]| hints.iter().map(|hint| hint.name.clone()).collect();
                let ready = endpoint.conditions.ready.unwrap_or(true);
                let weight = weight(slice.metadata.annotations.weight.as_deref(), &ip, family);
                let entry = Entry {
                    text: if local { format!("{key}*") } else { key.clone() },
                    ip,
                    local,
                    ready: ready && weight > 0,
                    serving: endpoint.conditions.serving.unwrap_or(true) || (ready && weight == 0),
                    terminating: endpoint.conditions.terminating.unwrap_or(false) || (ready && weight == 0),
                    weight,
                    zones: names(&endpoint.hints.for_zones),
                    nodes: names(&endpoint.hints.for_nodes),
                };
                let map = found.entry((port_name.clone(), protocol.to_owned())).or_default();
                if !map.contains_key(&key) || !entry.terminating {
                    map.insert(key, entry);
                }
            }
        }
    }
    found
}

/// Not part of the specification: what the annotation of a slice says.
fn weight(annotation: Option<&str>, ip: &str, family: Family) -> u16 {
    let parts: Vec<&str> = annotation.unwrap_or("100").split(',').collect();
    let (mut weight, mut own) = (100, None);
    for part in parts {
        let (address, number) = part.split_once('=').unwrap_or(("", part));
        let Ok(number) = number.parse() else { return 100 };
        if address.is_empty() {
            weight = number;
        } else if of_family(family, address).is_none() {
            return 100;
        } else if address == ip {
            own = Some(number);
        }
    }
    own.unwrap_or(weight)
}

/// Nothing if all are alike, or if one is zero, which only happens if no endpoint is ready.
fn weights(chosen: &[String], endpoints: &[&Entry]) -> String {
    let weight = |text: &String| endpoints.iter().find(|e| e.text == *text).unwrap().weight;
    let all: BTreeSet<u16> = chosen.iter().map(weight).collect();
    if all.len() < 2 || all.contains(&0) { String::new() } else { joined(chosen.iter().map(weight)) }
}

#[derive(Default)]
struct Categories {
    cluster: Vec<String>,
    local: Vec<String>,
    all_reachable: Vec<String>,
    has_any: bool,
}

/// 10
fn categorize(list: &[&Entry], uses_cluster: bool, uses_local: bool, zone: &str) -> Categories {
    let texts = |select: &dyn Fn(&Entry) -> bool| -> Vec<String> {
        list.iter().filter(|e| select(e)).map(|e| e.text.clone()).collect()
    };
    let mut found = Categories::default();
    if list.is_empty() {
        return found;
    }
    let mode = if uses_cluster { topology_mode(list, zone) } else { "" };
    if uses_cluster {
        let available = |e: &Entry| match mode {
            "PreferSameNode" => e.nodes.iter().any(|node| node == THIS_NODE),
            "PreferSameZone" => e.zones.iter().any(|hint| hint == zone),
            _ => true,
        };
        found.cluster = texts(&|e| e.ready && available(e));
        if found.cluster.is_empty() {
            found.cluster = texts(&|e| e.serving && e.terminating);
        }
        found.has_any = !found.cluster.is_empty();
    }
    if !uses_local {
        found.all_reachable.clone_from(&found.cluster);
        return found;
    }
    let (mut local_ready, mut local_terminating, mut used_terminating) = (false, false, false);
    for e in list {
        if e.ready {
            found.has_any = true;
            local_ready |= e.local;
        } else if e.serving && e.terminating {
            found.has_any = true;
            local_terminating |= e.local;
        }
    }
    if local_ready {
        found.local = texts(&|e| e.local && e.ready);
    } else if local_terminating {
        found.local = texts(&|e| e.local && e.serving && e.terminating);
        used_terminating = true;
    }
    found.all_reachable = if !uses_cluster {
        found.local.clone()
    } else if mode.is_empty() && !used_terminating {
        found.cluster.clone()
    } else {
        let key = |text: &String| (text.trim_end_matches('*').to_owned(), text.clone());
        found.cluster.iter().chain(&found.local).map(key).collect::<BTreeMap<_, _>>().into_values().collect()
    };
    found
}

/// 10.1
fn topology_mode(list: &[&Entry], zone: &str) -> &'static str {
    let ready: Vec<_> = list.iter().filter(|e| e.ready).collect();
    if ready.is_empty() {
        return "";
    }
    if ready.iter().all(|e| !e.nodes.is_empty())
        && ready.iter().any(|e| e.nodes.iter().any(|node| node == THIS_NODE))
    {
        return "PreferSameNode";
    }
    if ready.iter().all(|e| !e.zones.is_empty())
        && ready.iter().any(|e| e.zones.iter().any(|hint| hint == zone))
    {
        return "PreferSameZone";
    }
    ""
}
