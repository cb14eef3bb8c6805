//! Clusters of any size: ClusterIP Services that differ only in name and address, each with the same number of
//! endpoints in one slice.

use model::address::Family;
use model::api;
use model::cluster::Here;
use model::event::Event;
use model::names::NamespacedName;

use crate::routings::node;

#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub services: usize,
    pub endpoints: usize,
}

impl Size {
    pub fn name(self) -> String {
        format!("{} x {}", self.services, self.endpoints)
    }
}

/// A node that runs some of the endpoints.
pub fn here() -> Here {
    Here { node_name: "node-7".into(), ..node(Family::V4) }
}

/// The length of [`replacements`] and [`flips`].
pub const CHANGES: usize = 500;

/// Each pair of events replaces one endpoint of a random Service and restores it.
pub fn replacements(size: Size, random: &mut Random) -> impl Iterator<Item = Event> + use<> {
    there_and_back(size, EndpointChange::Replaced, random)
}

/// Each pair of events makes one endpoint of a random Service unready and ready again.
pub fn flips(size: Size, random: &mut Random) -> impl Iterator<Item = Event> + use<> {
    there_and_back(size, EndpointChange::Unready, random)
}

fn there_and_back(
    size: Size,
    change: EndpointChange,
    random: &mut Random,
) -> impl Iterator<Item = Event> + use<> {
    let mut pick = || (random.below(size.services), random.below(size.endpoints));
    let picked: Vec<_> = (0..CHANGES / 2).map(|_| pick()).collect();
    picked.into_iter().flat_map(move |(number, index)| {
        [Some((index, change)), None].map(|special| slice(number, size.endpoints, special))
    })
}

pub fn service(number: usize) -> Event {
    Event::ServiceApplied(Box::new(service_object(number)))
}

fn service_object(number: usize) -> api::Service {
    let ip = format!("10.{}.{}.{}", 96 + number / 65536, number / 256 % 256, number % 256);
    api::Service {
        metadata: metadata(number, ""),
        spec: api::ServiceSpec {
            r#type: Some("ClusterIP".into()),
            cluster_ip: ip.clone(),
            cluster_ips: vec![ip],
            ip_families: vec!["IPv4".into()],
            ports: vec![api::ServicePort {
                name: "http".into(),
                protocol: Some("TCP".into()),
                port: 80,
                node_port: None,
            }],
            internal_traffic_policy: Some("Cluster".into()),
            session_affinity: Some("None".into()),
            ..Default::default()
        },
        ..Default::default()
    }
}

/// A Service with session affinity.
pub fn sticky_service(number: usize, seconds: i64) -> Event {
    let mut service = service_object(number);
    service.spec.session_affinity = Some("ClientIP".into());
    service.spec.session_affinity_config = Some(api::SessionAffinityConfig {
        client_ip: Some(api::ClientIpConfig { timeout_seconds: Some(seconds) }),
    });
    Event::ServiceApplied(Box::new(service))
}

/// How one endpoint of a slice differs from the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointChange {
    /// Another address.
    Replaced,
    Unready,
}

/// The slice of a Service, with a change to at most one endpoint.
pub fn slice(number: usize, endpoints: usize, special: Option<(usize, EndpointChange)>) -> Event {
    let mut metadata = metadata(number, "-x7k2p");
    metadata.labels.service_name = Some(format!("service-{number}"));
    let endpoint = |index: usize| {
        let change = special.filter(|(special, _)| *special == index).map(|(_, change)| change);
        let pod = number * endpoints + index;
        let net = if change == Some(EndpointChange::Replaced) { 192 } else { 128 };
        let ready = change != Some(EndpointChange::Unready);
        api::SliceEndpoint {
            addresses: vec![format!("10.{}.{}.{}", net + pod / 65536, pod / 256 % 256, pod % 256)],
            conditions: api::EndpointConditions {
                ready: Some(ready),
                serving: Some(ready),
                terminating: Some(false),
            },
            node_name: Some(format!("node-{}", pod % 1000)),
            hints: api::EndpointHints {
                for_zones: vec![api::Hint { name: format!("z{}", pod % 3) }],
                for_nodes: vec![],
            },
        }
    };
    Event::SliceApplied(Box::new(api::EndpointSlice {
        metadata,
        address_type: "IPv4".into(),
        endpoints: (0..endpoints).map(endpoint).collect(),
        ports: vec![api::EndpointPort {
            name: Some("http".into()),
            protocol: Some("TCP".into()),
            port: Some(8080),
        }],
    }))
}

pub fn deletions(number: usize) -> [Event; 2] {
    let api::Metadata { name, namespace, .. } = metadata(number, "");
    let slice = metadata(number, "-x7k2p").name;
    [
        Event::ServiceDeleted(NamespacedName::new(&namespace, &name)),
        Event::SliceDeleted(NamespacedName::new(&namespace, &slice)),
    ]
}

fn metadata(number: usize, suffix: &str) -> api::Metadata {
    api::Metadata {
        name: format!("service-{number}{suffix}").into(),
        namespace: format!("namespace-{}", number % 100).into(),
        ..Default::default()
    }
}

/// Xorshift: the same numbers in every run.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap()
    }
}
