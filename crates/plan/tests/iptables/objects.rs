//! API objects, read from YAML or written as people say them.
//!
//! ```text
//! service shop/web 10.96.0.10 http:80 dns:53/UDP@30053 NodePort etp=Local itp=Local lb=203.0.113.5 health=32100
//! slice   shop/web http:8080 10.244.1.5@node-1 10.244.2.6@node-2/draining
//! delete  service shop/web
//! ```

use model::address::{Family, parse_ip};
use model::api;
use model::event::Event;
use model::names::NamespacedName;
use serde::Deserialize;

#[derive(Deserialize)]
struct Header {
    kind: String,
}

/// The kind of each YAML document, and its text.
pub fn documents(text: &str) -> Vec<(String, &str)> {
    let documents = text.split("---\n").filter(|document| !document.trim().is_empty());
    documents.map(|document| (serde_saphyr::from_str::<Header>(document).unwrap().kind, document)).collect()
}

/// What happens when the document is applied; nothing for kinds that are not the cluster's.
pub fn event(kind: &str, document: &str) -> Option<Event> {
    match kind {
        "Service" => Some(Event::ServiceApplied(serde_saphyr::from_str(document).unwrap())),
        "EndpointSlice" => Some(Event::SliceApplied(serde_saphyr::from_str(document).unwrap())),
        "Node" => Some(Event::NodeApplied(serde_saphyr::from_str(document).unwrap())),
        _ => None,
    }
}

/// One line as people say it.
pub fn said(line: &str) -> Event {
    let (verb, rest) = line.trim().split_once(char::is_whitespace).unwrap();
    match verb {
        "service" => Event::ServiceApplied(Box::new(service(rest))),
        "slice" => Event::SliceApplied(Box::new(slice(rest))),
        "delete" => deletion(rest),
        _ => panic!("nobody says {verb}"),
    }
}

/// `Service ns/name` or `EndpointSlice ns/name`.
pub fn deletion(text: &str) -> Event {
    let (kind, name) = text.trim().split_once(' ').unwrap();
    let (namespace, name) = name.trim().split_once('/').unwrap();
    let name = NamespacedName::new(namespace, name);
    match kind {
        "Service" | "service" => Event::ServiceDeleted(name),
        "EndpointSlice" | "slice" => Event::SliceDeleted(name),
        _ => panic!("no kind {kind}"),
    }
}

fn metadata(name: &str) -> api::Metadata {
    let (namespace, name) = name.split_once('/').unwrap();
    api::Metadata { namespace: namespace.into(), name: name.into(), ..api::Metadata::default() }
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(String::from).collect()
}

fn service(text: &str) -> api::Service {
    let mut words = text.split_whitespace();
    let mut service = api::Service { metadata: metadata(words.next().unwrap()), ..api::Service::default() };
    let spec = &mut service.spec;
    spec.r#type = Some("ClusterIP".into());
    spec.cluster_ip = words.next().unwrap().into();
    for word in words {
        match word.split_once('=') {
            Some(("etp", value)) => spec.external_traffic_policy = Some(value.into()),
            Some(("itp", value)) => spec.internal_traffic_policy = Some(value.into()),
            Some(("external", value)) => spec.external_ips = list(value),
            Some(("ranges", value)) => {
                spec.load_balancer_source_ranges =
                    list(value).into_iter().map(|cidr| cidr.replace('_', " ")).collect();
            }
            Some(("health", value)) => spec.health_check_node_port = Some(value.parse().unwrap()),
            Some(("affinity", value)) => {
                spec.session_affinity = Some("ClientIP".into());
                let client_ip = Some(api::ClientIpConfig { timeout_seconds: value.parse().ok() });
                spec.session_affinity_config = Some(api::SessionAffinityConfig { client_ip });
            }
            Some(("lb", value)) => {
                spec.r#type = Some("LoadBalancer".into());
                service.status.load_balancer.ingress = list(value).iter().map(|ip| ingress(ip)).collect();
            }
            Some(_) => panic!("a service has no {word}"),
            None if word.contains(':') => spec.ports.push(service_port(word)),
            None => spec.r#type = Some(word.into()),
        }
    }
    service
}

/// `ip` or `ip~mode`.
fn ingress(text: &str) -> api::LoadBalancerIngress {
    let (ip, mode) = text.split_once('~').map_or((text, None), |(ip, mode)| (ip, Some(mode.into())));
    api::LoadBalancerIngress { ip: ip.into(), ip_mode: mode }
}

/// `name:port[/PROTOCOL][@nodePort]`.
fn service_port(text: &str) -> api::ServicePort {
    let (text, node_port) =
        text.split_once('@').map_or((text, None), |(text, port)| (text, Some(port.parse().unwrap())));
    let (text, protocol) = text.split_once('/').unwrap_or((text, "TCP"));
    let (name, port) = text.split_once(':').unwrap();
    api::ServicePort {
        name: name.into(),
        protocol: Some(protocol.into()),
        port: port.parse().unwrap(),
        node_port,
    }
}

fn endpoint_port(text: &str) -> api::EndpointPort {
    let port = service_port(text);
    api::EndpointPort { name: Some(port.name), protocol: port.protocol, port: Some(port.port) }
}

/// `ns/service port[,port] [endpoint]…`: the slice has the name of its Service.
fn slice(text: &str) -> api::EndpointSlice {
    let mut words = text.split_whitespace();
    let mut metadata = metadata(words.next().unwrap());
    metadata.labels.service_name = Some(metadata.name.clone());
    let ports = list(words.next().unwrap()).iter().map(|text| endpoint_port(text)).collect();
    let endpoints: Vec<api::Endpoint> = words.map(endpoint).collect();
    let first = endpoints.first().and_then(|endpoint| parse_ip(&endpoint.addresses[0]));
    let family = first.map_or(Family::V4, Family::of);
    api::EndpointSlice { metadata, address_type: family.to_string(), endpoints, ports }
}

/// `ip[@node][/ready|/draining|/gone]`.
fn endpoint(text: &str) -> api::Endpoint {
    let (text, state) = text.split_once('/').unwrap_or((text, "ready"));
    let (ip, node) = text.split_once('@').map_or((text, None), |(ip, node)| (ip, Some(node.into())));
    let conditions = |ready, serving, terminating| api::EndpointConditions {
        ready: Some(ready),
        serving: Some(serving),
        terminating: Some(terminating),
    };
    let conditions = match state {
        "ready" => conditions(true, true, false),
        "draining" => conditions(false, true, true),
        "gone" => conditions(false, false, true),
        _ => panic!("an endpoint is not {state}"),
    };
    api::Endpoint { addresses: vec![ip.into()], conditions, node_name: node, ..api::Endpoint::default() }
}
