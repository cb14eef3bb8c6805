//! YAML manifests of the Services that the packet tests use, the same for both families.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use model::address::Family;
use model::hashing::HASH_ANNOTATION;
use model::names::Protocol;
use model::weights::WEIGHT_ANNOTATION;

use crate::lab::{Address, NODE_NAME, NODE_PORT, Place, TARGET};

#[derive(Clone, Debug)]
pub enum Manifest {
    Service(Box<ServiceManifest>),
    /// The range that all cluster IPs are from.
    ServiceCidr,
    /// This node, with its zone.
    Zone(&'static str),
}

/// A Service with its endpoints.
#[derive(Clone, Debug)]
pub struct ServiceManifest {
    pub name: &'static str,
    pub kind: &'static str,
    pub cluster_ip: Address,
    pub external_ips: Vec<Address>,
    /// Each with its `ipMode`, if any.
    pub load_balancer_ips: Vec<(Address, Option<&'static str>)>,
    pub internal_policy: &'static str,
    pub external_policy: &'static str,
    /// The timeout of session affinity, in seconds.
    pub affinity: Option<u32>,
    /// May mix families, as the API allows.
    pub source_ranges: &'static [&'static str],
    pub ports: Vec<PortManifest>,
    pub endpoints: Vec<EndpointManifest>,
    /// Writes IPv4 addresses with leading zeros.
    pub leading_zeros: bool,
    /// The annotation that asks for hashing.
    pub hash: Option<&'static str>,
}

#[derive(Clone, Copy, Debug)]
pub struct PortManifest {
    pub number: u16,
    pub target: u16,
    pub node_port: Option<u16>,
    pub protocols: &'static [Protocol],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointManifest {
    pub place: Place,
    pub state: State,
    pub zone: Option<&'static str>,
    pub hinted_to_node: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Ready,
    /// Terminating, but still serving.
    Draining,
    Unready,
    /// Ready but not serving: the Service sets `publishNotReadyAddresses`.
    Published,
    /// Terminating, and no longer serving.
    Gone,
}

pub const ALL: &[Protocol] = &[Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

pub const A: EndpointManifest = EndpointManifest::at(Place::PodA);
pub const B: EndpointManifest = EndpointManifest::at(Place::PodB);
pub const R: EndpointManifest = EndpointManifest::at(Place::Remote(5));
pub const S: EndpointManifest = EndpointManifest::at(Place::Remote(6));
pub const HOST: EndpointManifest = EndpointManifest::at(Place::Host);

/// A Service with every kind of frontend, on TCP, UDP and SCTP.
pub fn web(endpoints: &[EndpointManifest]) -> ServiceManifest {
    ServiceManifest {
        name: "web",
        kind: "LoadBalancer",
        cluster_ip: Address::ClusterIp,
        external_ips: vec![Address::ExternalIp],
        load_balancer_ips: vec![(Address::LoadBalancerIp, None)],
        internal_policy: "Cluster",
        external_policy: "Cluster",
        affinity: None,
        source_ranges: &[],
        ports: vec![PortManifest { number: 80, target: TARGET, node_port: Some(NODE_PORT), protocols: ALL }],
        endpoints: endpoints.into(),
        leading_zeros: false,
        hash: None,
    }
}

impl ServiceManifest {
    /// A second Service, with a cluster IP only.
    pub fn other(endpoints: &[EndpointManifest]) -> Self {
        let port = PortManifest { number: 80, target: TARGET, node_port: None, protocols: ALL };
        Self {
            name: "other",
            kind: "ClusterIP",
            cluster_ip: Address::OtherClusterIp,
            external_ips: Vec::new(),
            load_balancer_ips: Vec::new(),
            ports: vec![port],
            ..web(endpoints)
        }
    }

    pub fn internal_local(self) -> Self {
        Self { internal_policy: "Local", ..self }
    }

    pub fn external_local(self) -> Self {
        Self { external_policy: "Local", ..self }
    }

    pub fn sticky(self, seconds: u32) -> Self {
        Self { affinity: Some(seconds), ..self }
    }

    pub fn hashed(self, hash: &'static str) -> Self {
        Self { hash: Some(hash), ..self }
    }

    pub fn only_for(self, source_ranges: &'static [&'static str]) -> Self {
        Self { source_ranges, ..self }
    }

    fn write(&self, family: Family, out: &mut String) {
        let ip = |address: Address| self.spell(address.ip(family));
        let external: Vec<String> = self.external_ips.iter().map(|at| ip(*at)).collect();
        let ingress: Vec<String> = (self.load_balancer_ips.iter())
            .map(|(at, mode)| match mode {
                Some(mode) => format!("{{ip: {}, ipMode: {mode}}}", ip(*at)),
                None => format!("{{ip: {}}}", ip(*at)),
            })
            .collect();
        let ports = self.each_port(|port, protocol, name| {
            let node_port = port.node_port.map(|port| format!(", nodePort: {port}")).unwrap_or_default();
            format!("{{name: {name}, port: {}, protocol: {protocol}{node_port}}}", port.number)
        });
        let targets = self.each_port(|port, protocol, name| {
            format!("{{name: {name}, port: {}, protocol: {protocol}}}", port.target)
        });
        let affinity = self.affinity.map_or("None".into(), |seconds| {
            format!("ClientIP\n  sessionAffinityConfig: {{clientIP: {{timeoutSeconds: {seconds}}}}}")
        });
        let endpoints: String =
            self.endpoints.iter().map(|endpoint| self.endpoint(endpoint, family)).collect();
        write!(
            out,
            "
---
apiVersion: v1
kind: Service
metadata: {{name: {name}, annotations: {{{hash}}}}}
spec:
  type: {kind}
  clusterIP: {cluster_ip}
  externalIPs: [{external}]
  ports: [{ports}]
  internalTrafficPolicy: {internal}
  externalTrafficPolicy: {external_policy}
  healthCheckNodePort: 30999
  loadBalancerSourceRanges: {ranges:?}
  sessionAffinity: {affinity}
status: {{loadBalancer: {{ingress: [{ingress}]}}}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}-1, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: {family}
ports: [{targets}]
endpoints:{endpoints}
",
            name = self.name,
            hash = self.hash.map(|hash| format!("{HASH_ANNOTATION}: {hash}")).unwrap_or_default(),
            kind = self.kind,
            cluster_ip = ip(self.cluster_ip),
            external = external.join(", "),
            ports = ports.join(", "),
            targets = targets.join(", "),
            internal = self.internal_policy,
            external_policy = self.external_policy,
            ranges = self.source_ranges,
            ingress = ingress.join(", "),
        )
        .unwrap();
    }

    fn each_port(&self, show: impl Fn(&PortManifest, Protocol, String) -> String) -> Vec<String> {
        let mut all = Vec::new();
        for port in &self.ports {
            for protocol in port.protocols {
                let name = format!("{}-{}", protocol.to_string().to_lowercase(), port.number);
                all.push(show(port, *protocol, name));
            }
        }
        all
    }

    fn endpoint(&self, endpoint: &EndpointManifest, family: Family) -> String {
        let ip = self.spell(endpoint.place.ip(family));
        let node = if endpoint.place.is_local() { NODE_NAME } else { "node-2" };
        let (ready, serving, terminating) = match endpoint.state {
            State::Ready => (true, true, false),
            State::Draining => (false, true, true),
            State::Unready => (false, false, false),
            State::Published => (true, false, false),
            State::Gone => (false, false, true),
        };
        let hint = |kind, name: Option<_>| name.map(|name| format!("{kind}: [{{name: {name}}}]"));
        let hints: Vec<String> = [hint("forZones", endpoint.zone), hint("forNodes", endpoint.hinted_to_node)]
            .into_iter()
            .flatten()
            .collect();
        format!(
            "
- addresses: [{ip}]
  nodeName: {node}
  conditions: {{ready: {ready}, serving: {serving}, terminating: {terminating}}}
  hints: {{{}}}",
            hints.join(", ")
        )
    }

    fn spell(&self, ip: IpAddr) -> String {
        match ip {
            IpAddr::V4(ip) if self.leading_zeros => {
                let parts = ip.octets().map(|part| format!("{part:03}"));
                format!("'{}'", parts.join("."))
            }
            ip => format!("'{ip}'"),
        }
    }
}

impl EndpointManifest {
    const fn at(place: Place) -> Self {
        Self { place, state: State::Ready, zone: None, hinted_to_node: None }
    }

    pub const fn but(self, state: State) -> Self {
        Self { state, ..self }
    }

    pub const fn for_zone(self, zone: &'static str) -> Self {
        Self { zone: Some(zone), ..self }
    }

    pub const fn for_node(self, node: &'static str) -> Self {
        Self { hinted_to_node: Some(node), ..self }
    }
}

/// The objects as one YAML stream.
pub fn write(objects: &[Manifest], family: Family) -> String {
    let mut out = String::new();
    for object in objects {
        match object {
            Manifest::Service(service) => service.write(family, &mut out),
            Manifest::ServiceCidr => out.push_str(
                "
---
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec: {cidrs: [10.96.0.0/16, 'fd00:10:96::/112']}
",
            ),
            Manifest::Zone(zone) => write!(
                out,
                "
---
apiVersion: v1
kind: Node
metadata: {{name: {NODE_NAME}, labels: {{topology.kubernetes.io/zone: {zone}}}}}
"
            )
            .unwrap(),
        }
    }
    out
}

impl From<ServiceManifest> for Manifest {
    fn from(service: ServiceManifest) -> Self {
        Self::Service(service.into())
    }
}

/// A Service with any number of TCP and UDP ports and endpoints, a cluster IP and at most one external IP.
#[derive(Clone, Debug)]
pub struct PlainService<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    /// `creationTimestamp` in RFC 3339; a manifest that no API server has stored has none.
    pub created: Option<&'a str>,
    pub cluster_ip: IpAddr,
    pub external_ip: Option<IpAddr>,
    pub ports: std::ops::Range<u16>,
    /// Appended to the name of each port.
    pub port_name: &'a str,
    pub sticky: bool,
    pub endpoints: &'a [SocketAddr],
    /// The weights of the endpoints, in their order; endpoints beyond have none.
    pub weights: &'a [u16],
    /// The annotation that asks for hashing.
    pub hash: Option<&'a str>,
}

impl<'a> PlainService<'a> {
    pub fn new(name: &'a str, cluster_ip: IpAddr, endpoints: &'a [SocketAddr]) -> Self {
        let (namespace, port_name) = ("default", "");
        let (created, external_ip, sticky) = (None, None, false);
        Self {
            namespace,
            name,
            created,
            cluster_ip,
            external_ip,
            ports: 80..81,
            port_name,
            sticky,
            endpoints,
            weights: &[],
            hash: None,
        }
    }

    /// The Service and its slices, as items of a JSON list.
    fn items(&self) -> Vec<String> {
        let Self { namespace, name, cluster_ip, .. } = self;
        let each_port = |show: &dyn Fn(&str, u16, &str) -> String| -> Vec<String> {
            let ports = self.ports.clone();
            ports
                .flat_map(|port| {
                    ["TCP", "UDP"].map(|protocol| {
                        let prefix = if protocol == "TCP" { "t" } else { "u" };
                        show(&format!("{prefix}{port}{}", self.port_name), port, protocol)
                    })
                })
                .collect()
        };
        let ports = each_port(&|name, port, protocol| {
            format!(r#"{{"name":"{name}","port":{port},"protocol":"{protocol}"}}"#)
        });
        let external = self.external_ip.map(|ip| format!("\"{ip}\"")).unwrap_or_default();
        let created =
            self.created.map(|time| format!(r#","creationTimestamp":"{time}""#)).unwrap_or_default();
        let hash = self.hash.map(|hash| format!(r#","annotations":{{"{HASH_ANNOTATION}":"{hash}"}}"#));
        let hash = hash.unwrap_or_default();
        let affinity = if self.sticky { "ClientIP" } else { "None" };
        let mut items = vec![format!(
            r#"{{"apiVersion":"v1","kind":"Service","metadata":{{"namespace":"{namespace}","name":"{name}"{created}{hash}}},"spec":{{
            "clusterIP":"{cluster_ip}","externalIPs":[{external}],"sessionAffinity":"{affinity}","ports":[{}]}}}}"#,
            ports.join(",")
        )];
        let family = Family::of(*cluster_ip);
        let targets: BTreeSet<u16> = self.endpoints.iter().map(SocketAddr::port).collect();
        for target in targets {
            let ports = each_port(&|name, _, protocol| {
                format!(r#"{{"name":"{name}","port":{target},"protocol":"{protocol}"}}"#)
            });
            let endpoints: Vec<String> = (self.endpoints.iter())
                .filter(|endpoint| endpoint.port() == target)
                .map(|endpoint| format!(r#"{{"addresses":["{}"],"nodeName":"node-2"}}"#, endpoint.ip()))
                .collect();
            let weights: Vec<String> = (self.endpoints.iter().zip(self.weights))
                .filter(|(endpoint, _)| endpoint.port() == target)
                .map(|(endpoint, weight)| format!("{}={weight}", endpoint.ip()))
                .collect();
            let annotations = if weights.is_empty() {
                String::new()
            } else {
                format!(r#""annotations":{{"{WEIGHT_ANNOTATION}":"{}"}},"#, weights.join(","))
            };
            // The API allows 100 ports in a slice.
            for (number, ports) in ports.chunks(100).enumerate() {
                items.push(format!(
                    r#"{{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{{
                    "namespace":"{namespace}","name":"{name}-{target}-{number}",{annotations}
                    "labels":{{"kubernetes.io/service-name":"{name}"}}}},
                    "addressType":"{family}","ports":[{}],"endpoints":[{}]}}"#,
                    ports.join(","),
                    endpoints.join(",")
                ));
            }
        }
        items
    }
}

/// The services as one JSON list.
pub fn list(services: &[PlainService<'_>]) -> String {
    let items: Vec<String> = services.iter().flat_map(PlainService::items).collect();
    format!(r#"{{"apiVersion":"v1","kind":"List","items":[{}]}}"#, items.join(","))
}
