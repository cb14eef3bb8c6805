//! API objects from one line of text each, or from YAML documents.
//!
//! ```text
//! service shop/web 10.96.0.10 http:80 dns:53/UDP@30053 NodePort external-policy=Local
//! slice   shop/web-1 of web http:8080 | 10.244.1.5 local | 10.244.2.6 node=n2 draining zones=z1,z2
//! delete  service shop/web
//! ```

use model::address::{Family, parse_ip};
use model::api;
use model::event::Event;
use model::names::NamespacedName;
use serde::Deserialize;

/// The node of `local` endpoints.
pub const NODE: &str = "n1";

/// Parses one line.
pub fn event(line: &str) -> Event {
    let (verb, rest) = line.trim().split_once(char::is_whitespace).unwrap();
    match verb {
        "service" => Event::ServiceApplied(Box::new(service(rest))),
        "slice" => Event::SliceApplied(Box::new(slice(rest))),
        "delete" => deletion(rest),
        _ => panic!("unknown verb {verb}"),
    }
}

/// Parses all lines but blank ones.
pub fn events(lines: &str) -> impl Iterator<Item = Event> {
    lines.lines().filter(|line| !line.trim().is_empty()).map(event)
}

/// `service namespace/name` or `slice namespace/name`; the API's names of these kinds work, too.
pub fn deletion(text: &str) -> Event {
    let (kind, object) = text.trim().split_once(' ').unwrap();
    match kind {
        "service" | "Service" => Event::ServiceDeleted(name(object)),
        "slice" | "EndpointSlice" => Event::SliceDeleted(name(object)),
        _ => panic!("unknown kind {kind}"),
    }
}

/// `namespace/name`
pub fn name(text: &str) -> NamespacedName {
    let (namespace, name) = text.trim().split_once('/').unwrap();
    NamespacedName::new(namespace, name)
}

/// `namespace/name clusterIPs [type] [port:number[/PROTOCOL][@nodePort]]… [key=value]…`; `-` for no cluster IP.
///
/// A `_` in a source range stands for a space.
pub fn service(text: &str) -> api::Service {
    let mut words = text.split_whitespace();
    let mut service = api::Service { metadata: metadata(words.next().unwrap()), ..api::Service::default() };
    let spec = &mut service.spec;
    let ips = list(words.next().unwrap());
    if ips != ["-"] {
        spec.cluster_ip = ips[0].clone();
        spec.ip_families =
            ips.iter().filter_map(|ip| parse_ip(ip)).map(|ip| Family::of(ip).to_string()).collect();
        spec.cluster_ips = ips;
    }
    for word in words {
        match word.split_once('=') {
            Some(("external-policy", value)) => spec.external_traffic_policy = Some(value.into()),
            Some(("internal-policy", value)) => spec.internal_traffic_policy = Some(value.into()),
            Some(("external-ips", value)) => spec.external_ips = list(value),
            Some(("ranges", value)) => {
                spec.load_balancer_source_ranges = list(&value.replace('_', " "));
            }
            Some(("hash", value)) => service.metadata.annotations.hash = Some(value.into()),
            Some(("health", value)) => spec.health_check_node_port = Some(value.parse().unwrap()),
            Some(("affinity", value)) => {
                spec.session_affinity = Some("ClientIP".into());
                let client_ip = Some(api::ClientIpConfig { timeout_seconds: value.parse().ok() });
                spec.session_affinity_config = Some(api::SessionAffinityConfig { client_ip });
            }
            Some(("lb-ips", value)) => {
                service.status.load_balancer.ingress = list(value).iter().map(|ip| ingress(ip)).collect();
            }
            Some((other, _)) => panic!("a Service has no {other}"),
            None if word.contains(':') => spec.ports.push(service_port(word)),
            None => spec.r#type = Some(word.into()),
        }
    }
    service
}

/// `namespace/name [of service] [port:number[/PROTOCOL]]… [at=time] [weights=text] [| endpoint]…`
///
/// An endpoint is `address[@node]`, then any of: `local`, `node=`, `zones=`, `nodes=`, the conditions `ready=`,
/// `serving=`, `terminating=`, and two states by name: `unready` (neither ready nor serving) and `draining`
/// (terminating but serving). Each address starts a new endpoint; bars are optional.
pub fn slice(text: &str) -> api::EndpointSlice {
    let mut words = text.split_whitespace().filter(|word| *word != "|");
    let mut slice = api::EndpointSlice { metadata: metadata(words.next().unwrap()), ..Default::default() };
    while let Some(word) = words.next() {
        if slice.endpoints.last_mut().is_some_and(|endpoint| qualify(endpoint, word)) {
            continue;
        }
        match word.split_once('=') {
            Some(("weights", weights)) => slice.metadata.annotations.weight = Some(weights.into()),
            Some(("at", time)) => slice.metadata.annotations.last_change_trigger_time = Some(time.into()),
            Some((other, _)) => panic!("a slice has no {other}"),
            None if word == "of" => slice.metadata.labels.service_name = words.next().map(Into::into),
            None if ["IPv4", "IPv6", "FQDN"].contains(&word) => slice.address_type = word.into(),
            None if is_port(word) => slice.ports.push(slice_port(word)),
            None => slice.endpoints.push(endpoint(word)),
        }
    }
    if slice.address_type.is_empty() {
        let first = slice.endpoints.first().and_then(|endpoint| parse_ip(&endpoint.addresses[0]));
        slice.address_type = first.map_or(Family::V4, Family::of).to_string();
    }
    slice
}

/// The kind of each YAML document, and its text.
pub fn documents(text: &str) -> Vec<(String, &str)> {
    #[derive(Deserialize)]
    struct Header {
        kind: String,
    }
    let documents = text.split("---\n").filter(|document| !document.trim().is_empty());
    documents.map(|document| (serde_saphyr::from_str::<Header>(document).unwrap().kind, document)).collect()
}

/// The event that applies a YAML document; `None` for kinds that the model does not read.
pub fn applied(kind: &str, document: &str) -> Option<Event> {
    match kind {
        "Service" => Some(Event::ServiceApplied(serde_saphyr::from_str(document).unwrap())),
        "EndpointSlice" => Some(Event::SliceApplied(serde_saphyr::from_str(document).unwrap())),
        "Node" => Some(Event::NodeApplied(serde_saphyr::from_str(document).unwrap())),
        _ => None,
    }
}

/// `a,b,c`
pub fn list(text: &str) -> Vec<String> {
    text.split(',').map(Into::into).collect()
}

/// `ip` or `ip~mode`
fn ingress(text: &str) -> api::LoadBalancerIngress {
    let (ip, mode) = text.split_once('~').map_or((text, None), |(ip, mode)| (ip, Some(mode.into())));
    api::LoadBalancerIngress { ip: ip.into(), ip_mode: mode }
}

fn service_port(word: &str) -> api::ServicePort {
    let (name, rest) = word.split_once(':').unwrap();
    let (rest, node_port) = split_last(rest, '@');
    let (port, protocol) = split_last(rest, '/');
    api::ServicePort {
        name: name.into(),
        protocol: protocol.map(Into::into),
        port: port.parse().unwrap(),
        node_port: node_port.map(|number| number.parse().unwrap()),
    }
}

fn is_port(word: &str) -> bool {
    let (address, _) = split_last(word, '@');
    word.contains(':') && parse_ip(address).is_none()
}

fn slice_port(word: &str) -> api::EndpointPort {
    let (name, rest) = word.split_once(':').unwrap();
    let (port, protocol) = split_last(rest, '/');
    api::EndpointPort {
        name: Some(name.into()),
        protocol: protocol.map(Into::into),
        port: Some(port.parse().unwrap()),
    }
}

fn endpoint(word: &str) -> api::SliceEndpoint {
    let (address, node) = split_last(word, '@');
    api::SliceEndpoint {
        addresses: vec![address.into()],
        node_name: node.map(Into::into),
        ..api::SliceEndpoint::default()
    }
}

/// Returns false if `word` does not qualify an endpoint.
fn qualify(endpoint: &mut api::SliceEndpoint, word: &str) -> bool {
    let conditions = &mut endpoint.conditions;
    let flag = |value: &str| Some(value.parse::<bool>().unwrap());
    match word.split_once('=') {
        Some(("node", node)) => endpoint.node_name = Some(node.into()),
        Some(("zones", zones)) => endpoint.hints.for_zones = hints(zones),
        Some(("nodes", nodes)) => endpoint.hints.for_nodes = hints(nodes),
        Some(("ready", value)) => conditions.ready = flag(value),
        Some(("serving", value)) => conditions.serving = flag(value),
        Some(("terminating", value)) => conditions.terminating = flag(value),
        None if word == "local" => endpoint.node_name = Some(NODE.into()),
        None if word == "unready" => (conditions.ready, conditions.serving) = (Some(false), Some(false)),
        None if word == "draining" => {
            (conditions.ready, conditions.serving) = (Some(false), Some(true));
            conditions.terminating = Some(true);
        }
        Some(_) | None => return false,
    }
    true
}

fn metadata(text: &str) -> api::Metadata {
    let (namespace, name) = text.split_once('/').unwrap();
    api::Metadata { name: name.into(), namespace: namespace.into(), ..Default::default() }
}

fn hints(text: &str) -> Vec<api::Hint> {
    text.split(',').map(|name| api::Hint { name: name.into() }).collect()
}

fn split_last(text: &str, at: char) -> (&str, Option<&str>) {
    text.rsplit_once(at).map_or((text, None), |(head, tail)| (head, Some(tail)))
}
