//! A store together with everything that was taken from it. Objects are written as in [`testkit::objects`].

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use model::address::Family;
use model::api;
use model::cluster::{Changes, Cluster, HealthCheck, Here};
use model::event::{Event, Kind};
use model::names::{NamespacedName, ServicePortName};
use model::note::Note;
use model::routing::{Endpoint, Frontend, Routing};
pub use testkit::node as here;
use testkit::objects::list;
pub use testkit::objects::{NODE as HERE, name, service, slice};

/// A store and the sum of the changes taken from it.
#[derive(Debug)]
pub struct World {
    pub cluster: Cluster,
    routings: BTreeMap<ServicePortName, Arc<Routing>>,
    health: BTreeMap<NamespacedName, HealthCheck>,
}

/// The changes of one call of `take_changes`, as text.
#[derive(Debug, PartialEq)]
pub struct Taken {
    /// Changed service ports, as `namespace/name:port/PROTOCOL`; removed ones begin with `-`.
    pub routings: Vec<String>,
    /// Changed health checks, as `namespace/name port=count`; removed ones begin with `-`.
    pub health_checks: Vec<String>,
    pub service_cidrs: Option<Vec<String>>,
    pub touches_udp: bool,
    /// As `namespace/name: times`.
    pub trigger_times: Vec<String>,
}

impl World {
    pub fn new(family: Family) -> Self {
        Self::on_node(here(family))
    }

    pub fn v4() -> Self {
        Self::new(Family::V4)
    }

    pub fn on_node(here: Here) -> Self {
        Self { cluster: Cluster::new(here), routings: BTreeMap::new(), health: BTreeMap::new() }
    }

    /// A world with these Services and slices, whose changes have been taken.
    pub fn taken(services: &[&str], slices: &[&str]) -> Self {
        let mut world = Self::v4();
        world.services(services);
        world.slices(slices);
        world.take();
        world
    }

    pub fn apply(&mut self, event: &Event) -> Vec<Note> {
        self.cluster.apply(event)
    }

    pub fn service(&mut self, text: &str) -> Vec<Note> {
        self.apply(&Event::ServiceApplied(Box::new(service(text))))
    }

    pub fn services(&mut self, texts: &[&str]) {
        for text in texts {
            self.service(text);
        }
    }

    pub fn slice(&mut self, text: &str) -> Vec<Note> {
        self.apply(&Event::SliceApplied(Box::new(slice(text))))
    }

    pub fn slices(&mut self, texts: &[&str]) {
        for text in texts {
            self.slice(text);
        }
    }

    pub fn delete_service(&mut self, text: &str) {
        self.apply(&Event::ServiceDeleted(name(text)));
    }

    pub fn delete_slice(&mut self, text: &str) {
        self.apply(&Event::SliceDeleted(name(text)));
    }

    pub fn zone(&mut self, zone: Option<&str>) {
        let mut node = api::Node::default();
        node.metadata.name = HERE.into();
        node.metadata.labels.zone = zone.map(Into::into);
        self.apply(&Event::NodeApplied(Box::new(node)));
    }

    pub fn service_cidr(&mut self, name: &str, cidrs: &str) -> Vec<Note> {
        let mut object = api::ServiceCidr::default();
        object.metadata.name = name.into();
        object.spec.cidrs = list(cidrs);
        self.apply(&Event::ServiceCidrApplied(Box::new(object)))
    }

    /// Lists exactly these objects of a kind, as a source does when it starts or may have missed events.
    pub fn list(&mut self, kind: Kind, texts: &[&str]) {
        self.apply(&Event::Listing(kind));
        for text in texts {
            match kind {
                Kind::Service => self.service(text),
                Kind::EndpointSlice => self.slice(text),
                Kind::ServiceCidr => {
                    let (name, cidrs) = text.split_once(' ').unwrap();
                    self.service_cidr(name, cidrs)
                }
            };
        }
        self.apply(&Event::Listed(kind));
    }

    /// Takes the changes, and checks that together with the earlier ones they give the current state.
    pub fn take(&mut self) -> Taken {
        let changes = self.cluster.take_changes();
        for (name, routing) in &changes.routings {
            assert_ne!(self.routings.get(name), routing.as_ref(), "{name:?} has not changed");
            match routing {
                Some(routing) => self.routings.insert(name.clone(), routing.clone()),
                None => self.routings.remove(name),
            };
        }
        for (name, check) in &changes.health_checks {
            match check {
                Some(check) => self.health.insert(name.clone(), *check),
                None => self.health.remove(name),
            };
        }
        let now: Vec<_> = self.cluster.routings();
        assert_eq!(
            self.routings.iter().collect::<Vec<_>>(),
            now,
            "the sum of changes is not the current state"
        );
        Taken::from(&changes)
    }

    pub fn routing(&self, text: &str) -> &Routing {
        let found = self.routings.iter().find(|(name, _)| format!("{name:?}") == text);
        found.unwrap_or_else(|| panic!("no {text} among {:?}", self.routings.keys())).1
    }

    /// All service ports, as `namespace/name:port/PROTOCOL`.
    pub fn ports(&self) -> Vec<String> {
        self.routings.keys().map(|name| format!("{name:?}")).collect()
    }

    /// All service ports with the endpoints that traffic to any node may reach: `namespace/name:port/PROTOCOL a:1 b:2*`.
    pub fn endpoints(&self) -> Vec<String> {
        let line = |(name, routing): (&ServicePortName, &Arc<Routing>)| {
            format!("{name:?} {}", spelled(&routing.cluster)).trim().to_owned()
        };
        self.routings.iter().map(line).collect()
    }

    /// All service ports with their frontends.
    pub fn frontends(&self) -> Vec<String> {
        self.routings.iter().map(|(name, routing)| format!("{name:?} {}", frontends_text(routing))).collect()
    }

    /// All health checks, as `namespace/name port=count`.
    pub fn health_checks(&self) -> Vec<String> {
        self.health.iter().map(|(name, check)| health(name, Some(check))).collect()
    }
}

impl Taken {
    pub fn nothing() -> Self {
        Self::from(&Changes::default())
    }
}

impl From<&Changes> for Taken {
    fn from(changes: &Changes) -> Self {
        let routing = |(name, routing): &(ServicePortName, Option<Arc<Routing>>)| match routing {
            Some(_) => format!("{name:?}"),
            None => format!("-{name:?}"),
        };
        let times = |(name, times): &(NamespacedName, Vec<Timestamp>)| {
            let times: Vec<_> = times.iter().map(ToString::to_string).collect();
            format!("{name}: {}", times.join(" "))
        };
        let cidrs = changes.service_cidrs.as_ref();
        Self {
            routings: changes.routings.iter().map(routing).collect(),
            health_checks: changes
                .health_checks
                .iter()
                .map(|(name, check)| health(name, check.as_ref()))
                .collect(),
            service_cidrs: cidrs.map(|cidrs| cidrs.iter().map(ToString::to_string).collect()),
            touches_udp: changes.touches_udp,
            trigger_times: changes.trigger_times.iter().map(times).collect(),
        }
    }
}

/// `10.0.0.1:80 10.0.0.2:80*`: local endpoints are marked by a star.
pub fn spelled(endpoints: &[Endpoint]) -> String {
    let words = endpoints.iter().map(|e| format!("{e}{}", if e.local { "*" } else { "" }));
    words.collect::<Vec<_>>().join(" ")
}

fn health(name: &NamespacedName, check: Option<&HealthCheck>) -> String {
    match check {
        Some(check) => format!("{name} {}={}", check.port, check.local_endpoints),
        None => format!("-{name}"),
    }
}

fn frontends_text(routing: &Routing) -> String {
    let mut words: Vec<String> = Vec::new();
    for frontend in routing.frontends() {
        words.push(match frontend {
            Frontend::ClusterIp(at) => at.to_string(),
            Frontend::ExternalIp(at) => format!("external={at}"),
            Frontend::LoadBalancerIp(at) => format!("lb={at}"),
            Frontend::NodePort(port) => format!("node-port={port}"),
        });
    }
    words.extend(routing.addresses.source_ranges.iter().map(|range| format!("from={range}")));
    words.extend(routing.affinity.map(|seconds| format!("affinity={seconds}")));
    words.extend(routing.health_check_node_port.map(|port| format!("health={port}")));
    if routing.preserves_client {
        words.push("preserves-client".into());
    }
    words.join(" ")
}
