//! Reads what one IP family needs of a Service: addresses, policies and ports.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use jiff::Timestamp;

use crate::address::{Family, cidrs_of_family, ips_of_family, parse_ip};
use crate::api;
use crate::hashing::ClientHash;
use crate::names::{Interner, Port, Protocol};
use crate::note::Note;

/// Whether traffic may use the endpoints of all nodes or only those of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficPolicy {
    Cluster,
    Local,
}

/// A Service in one family. There is none for a Service that has no cluster IP or no port in it.
#[derive(Debug, PartialEq, Eq)]
pub struct ServiceInfo {
    pub addresses: Arc<Addresses>,
    pub created: Created,
    /// Sorted by name and protocol, which are unique; never empty.
    pub ports: Box<[ServicePortInfo]>,
    /// Session affinity: seconds for which a client keeps its endpoint.
    pub affinity: Option<u32>,
    /// How the Service asks for its clients to be hashed, which it gets within a limit: see [`crate::hashing`].
    pub hash: Option<ClientHash>,
    pub internal_policy: TrafficPolicy,
    pub external_policy: TrafficPolicy,
    pub health_check_node_port: Option<Port>,
    /// Whether the object has external IPs, even if a feature gate disables them: upstream's choice of chains depends on
    /// it.
    pub has_external_ips: bool,
}

/// When the API server created a Service, in seconds since 1970. Decides which of several Services gets an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Created(u32);

impl Created {
    /// For manifests without a creation timestamp. Later than all others.
    pub const UNKNOWN: Self = Self(u32::MAX);

    /// `None` if the text is not RFC 3339.
    pub fn from_api(text: &str) -> Option<Self> {
        let seconds = text.parse::<Timestamp>().ok()?.as_second().max(0);
        Some(Self(u32::try_from(seconds).unwrap_or(u32::MAX)))
    }
}

/// The addresses that all ports of a Service share. Order and duplicates are those of the object.
#[derive(Debug, PartialEq, Eq)]
pub struct Addresses {
    pub cluster_ip: IpAddr,
    pub external_ips: Box<[IpAddr]>,
    pub load_balancer_ips: Box<[IpAddr]>,
    /// The clients that may use the load-balancer IPs; empty means all.
    pub source_ranges: Box<[IpNet]>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct ServicePortInfo {
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub port: Port,
    pub node_port: Option<Port>,
}

/// The API server's default, for objects that are older than the field.
const DEFAULT_AFFINITY_SECONDS: u32 = 10_800;

impl ServiceInfo {
    /// `None` if the Service is headless, of type ExternalName, or has no cluster IP or no valid port in this family.
    pub fn from_api(
        service: &api::Service,
        family: Family,
        serve_external_ips: bool,
        names: &mut Interner<str>,
        notes: &mut Vec<Note>,
    ) -> Option<Self> {
        let spec = &service.spec;
        if spec.cluster_ip.is_empty() || spec.cluster_ip == "None" || is(&spec.r#type, "ExternalName") {
            return None;
        }
        let cluster_ip = cluster_ip(spec, family)?;
        let mut reader = Reader { object: &service.metadata, family, notes };

        let external_ips = reader.ips("externalIPs", spec.external_ips.iter().map(String::as_str));
        let load_balancer_ips = reader.ips("loadBalancer.ingress.ip", virtual_ips(&service.status));
        let source_ranges = reader.source_ranges(&spec.load_balancer_source_ranges);
        let ports = reader.ports(&spec.ports, names);
        let external_policy =
            if is_external(spec) { policy(&spec.external_traffic_policy) } else { TrafficPolicy::Cluster };
        let health_check_node_port = reader.health_check_node_port(spec, external_policy);
        let created = reader.created();
        if ports.is_empty() {
            return None;
        }
        Some(Self {
            created,
            ports,
            affinity: affinity(spec),
            hash: None,
            internal_policy: policy(&spec.internal_traffic_policy),
            external_policy,
            health_check_node_port,
            has_external_ips: !external_ips.is_empty(),
            addresses: Arc::new(Addresses {
                cluster_ip,
                external_ips: if serve_external_ips { external_ips } else { Box::default() },
                load_balancer_ips,
                source_ranges,
            }),
        })
    }

    /// Whether clients outside the cluster can reach this port, by its node port or an address of the Service.
    pub fn is_externally_accessible(&self, port: &ServicePortInfo) -> bool {
        port.node_port.is_some() || self.has_external_ips || !self.addresses.load_balancer_ips.is_empty()
    }
}

/// Reads the fields of one Service, and notes what it ignores.
struct Reader<'a> {
    object: &'a api::Metadata,
    family: Family,
    notes: &'a mut Vec<Note>,
}

impl Reader<'_> {
    fn ips<'a>(&mut self, field: &'static str, texts: impl IntoIterator<Item = &'a str>) -> Box<[IpAddr]> {
        let (ips, unparsable) = ips_of_family(self.family, texts);
        self.note_unparsable(field, &unparsable);
        ips.into()
    }

    /// A range of prefix length 0 admits all clients, and with them the whole list does.
    fn source_ranges(&mut self, texts: &[String]) -> Box<[IpNet]> {
        let (ranges, unparsable) = cidrs_of_family(self.family, texts.iter().map(String::as_str));
        self.note_unparsable("loadBalancerSourceRanges", &unparsable);
        if ranges.iter().any(|range| range.prefix_len() == 0) { Box::default() } else { ranges.into() }
    }

    fn ports(&mut self, ports: &[api::ServicePort], names: &mut Interner<str>) -> Box<[ServicePortInfo]> {
        let mut read: Vec<ServicePortInfo> = ports.iter().filter_map(|port| self.port(port, names)).collect();
        // The API server rejects two ports with the same name and protocol. Should they occur, the last one wins.
        read.reverse();
        read.sort_by(|a, b| (&a.name, a.protocol).cmp(&(&b.name, b.protocol)));
        read.dedup_by(|a, b| a.name == b.name && a.protocol == b.protocol);
        read.into()
    }

    fn port(&mut self, port: &api::ServicePort, names: &mut Interner<str>) -> Option<ServicePortInfo> {
        let Some(protocol) = Protocol::from_api(port.protocol.as_deref()) else {
            self.note(
                "Ignoring service port with unknown protocol",
                "protocol",
                port.protocol.as_deref().unwrap_or(""),
            );
            return None;
        };
        let Some(number) = Port::from_api(port.port) else {
            self.note("Ignoring service port outside 1-65535", "port", &port.port.to_string());
            return None;
        };
        let node_port = port.node_port.filter(|&number| number != 0);
        if let Some(number) = node_port
            && Port::from_api(number).is_none()
        {
            self.note("Ignoring node port outside 1-65535", "nodePort", &number.to_string());
        }
        Some(ServicePortInfo {
            name: names.intern(&port.name),
            protocol,
            port: number,
            node_port: node_port.and_then(Port::from_api),
        })
    }

    fn created(&mut self) -> Created {
        let Some(text) = &self.object.creation_timestamp else { return Created::UNKNOWN };
        Created::from_api(text).unwrap_or_else(|| {
            self.note("Ignoring creation timestamp that is not RFC 3339", "creationTimestamp", text);
            Created::UNKNOWN
        })
    }

    fn health_check_node_port(&mut self, spec: &api::ServiceSpec, external: TrafficPolicy) -> Option<Port> {
        if !is(&spec.r#type, "LoadBalancer") || external != TrafficPolicy::Local {
            return None;
        }
        let port = spec.health_check_node_port.and_then(Port::from_api);
        if port.is_none() {
            self.notes.push(Note::new("Service has no healthcheck nodeport", self.object));
        }
        port
    }

    fn note_unparsable(&mut self, field: &'static str, values: &[&str]) {
        for value in values {
            self.note("Ignoring address that can't be parsed", field, value);
        }
    }

    fn note(&mut self, message: &'static str, field: &'static str, value: &str) {
        self.notes.push(Note::new(message, self.object).with(field, value));
    }
}

fn is(field: &Option<String>, value: &str) -> bool {
    field.as_deref() == Some(value)
}

fn policy(field: &Option<String>) -> TrafficPolicy {
    if is(field, "Local") { TrafficPolicy::Local } else { TrafficPolicy::Cluster }
}

/// Objects that are older than dual-stack have `clusterIP` and no `ipFamilies`.
fn cluster_ip(spec: &api::ServiceSpec, family: Family) -> Option<IpAddr> {
    let text = if spec.ip_families.is_empty() {
        &spec.cluster_ip
    } else {
        let index = spec.ip_families.iter().position(|name| Family::from_api(name) == Some(family))?;
        spec.cluster_ips.get(index)?
    };
    parse_ip(text).filter(|ip| Family::of(*ip) == family)
}

/// A load balancer in mode Proxy must be reached, even from inside the cluster, so its IP is not served here.
fn virtual_ips(status: &api::ServiceStatus) -> impl Iterator<Item = &str> {
    let ingress = status.load_balancer.ingress.iter();
    ingress
        .filter(|ingress| ingress.ip_mode.as_deref().is_none_or(|mode| mode == "VIP"))
        .map(|ingress| ingress.ip.as_str())
}

fn is_external(spec: &api::ServiceSpec) -> bool {
    match spec.r#type.as_deref() {
        Some("LoadBalancer" | "NodePort") => true,
        None | Some("" | "ClusterIP") => !spec.external_ips.is_empty(),
        Some(_) => false,
    }
}

fn affinity(spec: &api::ServiceSpec) -> Option<u32> {
    if !is(&spec.session_affinity, "ClientIP") {
        return None;
    }
    let config = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    let seconds =
        config.and_then(|config| config.timeout_seconds).and_then(|seconds| seconds.try_into().ok());
    Some(seconds.unwrap_or(DEFAULT_AFFINITY_SECONDS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_creation_time_is_the_latest() {
        let order =
            ["1969-12-31T23:59:59Z", "2026-11-16T10:00:00Z", "2026-11-16T10:00:01Z", "2200-01-01T00:00:00Z"]
                .map(|text| Created::from_api(text).unwrap());
        assert!(order.is_sorted() && order[0] < order[1] && order[1] < order[2] && order[2] < order[3]);
        assert!(order[3] <= Created::UNKNOWN);
        assert_eq!(Created::from_api("2026-11-16T12:00:00+02:00"), Some(order[1]));
        assert_eq!(Created::from_api("yesterday"), None);
    }

    #[test]
    fn an_invalid_creation_timestamp_is_noted_and_counts_as_unknown() {
        for (json, created, notes) in [
            (r#"{}"#, Created::UNKNOWN, 0),
            (r#"{"creationTimestamp": null}"#, Created::UNKNOWN, 0),
            (r#"{"creationTimestamp": "1970-01-01T00:00:07Z"}"#, Created(7), 0),
            (r#"{"creationTimestamp": "7"}"#, Created::UNKNOWN, 1),
        ] {
            let text = format!(
                r#"{{"metadata": {json}, "spec": {{"clusterIP": "10.96.0.1", "ports": [{{"port": 80}}]}}}}"#
            );
            let (object, mut found): (api::Service, _) = (serde_json::from_str(&text).unwrap(), Vec::new());
            let service =
                ServiceInfo::from_api(&object, Family::V4, true, &mut Interner::default(), &mut found)
                    .unwrap();
            assert_eq!((service.created, found.len()), (created, notes), "{json}");
        }
    }
}
