//! The store: fold an event in, take the changed routings out.
//!
//! ```text
//!   Event ─▶ apply ─▶ services, slices ──┐
//!                 └─▶ pending: as it was  ├─▶ take_changes ─▶ Changes: routings that differ from the last ones
//!                        when last taken ─┘
//! ```
//!
//! One store per IP family. An event costs what the object in it weighs; taking changes costs what the changed
//! Services weigh. What is changed and changed back in between is no change at all.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use foldhash::fast::RandomState;
use ipnet::IpNet;
use jiff::Timestamp;

use crate::address::{Family, cidrs_of_family};
use crate::api;
use crate::backlog::{Superseded, Update};
use crate::event::{Event, Kind};
use crate::names::{NamespacedName, Protocol, ServicePortName, Shared};
use crate::note::Note;
use crate::pending::Pending;
use crate::routing::{Frontend, Routing, Traffic};
use crate::service::{Service, ServicePort, TrafficPolicy};
use crate::slices::{Candidate, PortCandidates, Slice, SliceReader, Zones, merge};
use crate::topology::{Unused, unused};

/// What the model has to know about where and when it runs.
#[derive(Clone, Debug)]
pub struct Here {
    pub family: Family,
    pub node_name: String,
    /// This node's address in the family, to see whether source ranges admit it.
    pub node_ip: IpAddr,
    /// Feature gate `AllowServiceExternalIPs`.
    pub serve_external_ips: bool,
    /// Changes triggered before this are not ours to measure.
    pub started: Timestamp,
}

/// Everything known about the cluster in one IP family.
#[derive(Debug)]
pub struct Cluster {
    here: Here,
    /// This node's zone label; the one thing about the node that may change.
    zone: Option<String>,
    names: Shared<str>,
    zones: Shared<Zones>,

    services: Map<Known>,
    slices: Map<Slice>,
    service_cidrs: BTreeMap<String, Vec<IpNet>>,
    /// All of them, as last taken.
    settled_cidrs: Vec<IpNet>,

    pending_services: Pending<Service>,
    pending_slices: Pending<Slice>,
    /// Something that every routing may depend on has changed.
    reconsider_all: bool,
    cidrs_changed: bool,
    trigger_times: Map<Vec<Timestamp>>,

    listed: HashSet<Kind>,
    unseen: HashMap<Kind, BTreeSet<NamespacedName>>,
    counts: Counts,
}

type Map<V> = HashMap<NamespacedName, V, RandomState>;

/// What is known of one Service, and what was last said about it. Exists while there is a Service or a slice of it.
#[derive(Debug, Default, PartialEq)]
struct Known {
    service: Option<Service>,
    /// Names of its slices, ascending: the order they are merged in.
    slices: Vec<Arc<str>>,
    /// Ordered like the ports of a Service. Stays until the next changes are taken.
    routings: Vec<(ServicePortName, Arc<Routing>)>,
    health_check: Option<HealthCheck>,
    endpoints: usize,
}

/// What a load balancer asking at the health-check node port of a Service is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    pub port: crate::names::Port,
    /// Distinct addresses of ready endpoints on this node, over all ports of the Service.
    pub local_endpoints: usize,
}

/// What differs since changes were last taken, each list ordered by name.
#[derive(Debug, Default, PartialEq)]
pub struct Changes {
    /// `None` for a service port that is gone.
    pub routings: Vec<(ServicePortName, Option<Arc<Routing>>)>,
    pub health_checks: Vec<(NamespacedName, Option<HealthCheck>)>,
    /// All service CIDRs of the family, if they changed.
    pub service_cidrs: Option<Vec<IpNet>>,
    /// When the changes that led here were made, to measure how long we took.
    pub trigger_times: Vec<(NamespacedName, Vec<Timestamp>)>,
    /// Whether UDP flows may now point to where they should not.
    pub touches_udp: bool,
    /// Frontends that a service port has and did not have before, in no particular order.
    pub new_frontends: Vec<(Protocol, Frontend)>,
}

/// One service port as it is known right now, whether or not that has been taken: for somebody who asks about it.
#[derive(Debug)]
pub struct Considered<'a> {
    pub name: ServicePortName,
    pub routing: Arc<Routing>,
    pub internal_policy: TrafficPolicy,
    pub external_policy: TrafficPolicy,
    candidates: Vec<Candidate>,
    zone: Option<&'a str>,
}

impl Considered<'_> {
    /// The endpoints that traffic under this policy does not get, and why.
    pub fn unused(&self, policy: TrafficPolicy) -> Vec<(&Candidate, Unused)> {
        unused(&self.candidates, policy, self.zone)
    }
}

impl Changes {
    /// Whether the kernel or the health-check servers have anything to do.
    pub fn is_empty(&self) -> bool {
        self.routings.is_empty() && self.health_checks.is_empty() && self.service_cidrs.is_none()
    }
}

/// Numbers for metrics and logs, kept up to date as things change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Service events ever seen.
    pub service_changes: u64,
    /// Slice events of the family ever seen.
    pub endpoint_changes: u64,
    /// Service ports that serve this family.
    pub service_ports: usize,
    /// Endpoints over all service ports, usable or not, as last taken.
    pub endpoints: usize,
    /// Service ports whose cluster IP drops traffic for want of a local endpoint.
    pub internal_without_local: usize,
    /// The same for external addresses; counts ports that have none, as the reference does.
    pub external_without_local: usize,
}

impl Cluster {
    pub fn new(here: Here) -> Self {
        Self {
            here,
            zone: None,
            names: Shared::default(),
            zones: Shared::default(),
            services: Map::default(),
            slices: Map::default(),
            service_cidrs: BTreeMap::new(),
            settled_cidrs: Vec::new(),
            pending_services: Pending::default(),
            pending_slices: Pending::default(),
            reconsider_all: false,
            cidrs_changed: false,
            trigger_times: Map::default(),
            listed: HashSet::new(),
            unseen: HashMap::new(),
            counts: Counts::default(),
        }
    }

    /// Folds one event in and returns what is worth telling about it.
    pub fn apply(&mut self, event: &Event) -> Vec<Note> {
        self.apply_newest(event, &Superseded::default())
    }

    /// The same for an event that stands for earlier ones of its object, too.
    pub fn apply_update(&mut self, update: &Update) -> Vec<Note> {
        self.apply_newest(&update.event, &update.superseded)
    }

    fn apply_newest(&mut self, event: &Event, superseded: &Superseded) -> Vec<Note> {
        let mut notes = Vec::new();
        if let Event::ServiceApplied(_) | Event::ServiceDeleted(_) = event {
            self.counts.service_changes += superseded.count;
        }
        match event {
            Event::Listing(kind) => self.begin_list(*kind),
            Event::Listed(kind) => self.end_list(*kind),
            Event::ServiceApplied(service) => self.apply_service(service, &mut notes),
            Event::ServiceDeleted(name) => self.replace_service(name, None),
            Event::SliceApplied(slice) => self.apply_slice(slice, superseded, &mut notes),
            Event::SliceDeleted(name) => self.delete_slice(name),
            Event::NodeApplied(node) => self.move_to_zone(node.metadata.labels.zone.clone()),
            // A node object that is deleted and made again must not move traffic about.
            Event::NodeDeleted => {}
            Event::ServiceCidrApplied(cidr) => self.apply_service_cidr(cidr, &mut notes),
            Event::ServiceCidrDeleted(name) => self.replace_service_cidr(name, None),
        }
        notes
    }

    /// Corrects this node's address, which may be found out later than the first events.
    pub fn move_to(&mut self, node_ip: IpAddr) {
        self.reconsider_all |= self.here.node_ip != node_ip;
        self.here.node_ip = node_ip;
    }

    /// This node's address in the family.
    pub fn node_ip(&self) -> IpAddr {
        self.here.node_ip
    }

    /// Whether all Services and slices have been heard of. Nothing may be programmed from less.
    pub fn is_complete(&self) -> bool {
        self.listed.contains(&Kind::Service) && self.listed.contains(&Kind::EndpointSlice)
    }

    /// Whether there may be something to take.
    pub fn has_changes(&self) -> bool {
        self.reconsider_all
            || self.cidrs_changed
            || !self.pending_services.is_empty()
            || !self.pending_slices.is_empty()
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Services and slices that changed since changes were last taken.
    pub fn pending(&self) -> (usize, usize) {
        (self.pending_services.len(), self.pending_slices.len())
    }

    /// What every service port does, ordered by name, as last taken.
    pub fn routings(&self) -> Vec<(&ServicePortName, &Arc<Routing>)> {
        let all = self.services.values().flat_map(|known| &known.routings);
        let mut all: Vec<_> = all.map(|(name, routing)| (name, routing)).collect();
        all.sort_by_key(|(name, _)| *name);
        all
    }

    /// What the service ports that `wanted` picks do as things are now, ordered by name. Looks at every Service there is.
    pub fn consider(&self, wanted: impl Fn(&Service, &ServicePort) -> bool) -> Vec<Considered<'_>> {
        let zone = self.zone.as_deref();
        let mut found = Vec::new();
        for (name, known) in &self.services {
            let Some(service) = &known.service else { continue };
            if !service.ports.iter().any(|port| wanted(service, port)) {
                continue;
            }
            let all = candidates(name, known, &self.slices);
            for port in service.ports.iter().filter(|port| wanted(service, port)) {
                let candidates = of_port(&all, port);
                found.push(Considered {
                    name: service_port_name(name, port),
                    routing: Arc::new(Routing::decide(service, port, candidates, zone, self.here.node_ip)),
                    internal_policy: service.internal_policy,
                    external_policy: service.external_policy,
                    candidates: candidates.to_vec(),
                    zone,
                });
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found
    }

    /// What is told at a health-check node port as things are now, by name of the Service. Looks at every Service there is.
    pub fn health_checks_at(&self, port: u16) -> BTreeMap<NamespacedName, HealthCheck> {
        let mut found = BTreeMap::new();
        for (name, known) in &self.services {
            let Some(service) = &known.service else { continue };
            if service.health_check_node_port.is_some_and(|its| its.get() == port) {
                let check = health_check(service, &candidates(name, known, &self.slices));
                found.extend(check.map(|check| (name.clone(), check)));
            }
        }
        found
    }

    /// Whether it is the cluster IP of any Service.
    pub fn has_cluster_ip(&self, ip: IpAddr) -> bool {
        let mut services = self.services.values().filter_map(|known| known.service.as_ref());
        services.any(|service| service.addresses.cluster_ip == ip)
    }

    /// Every frontend of every service port, as last taken, in no particular order.
    pub fn frontends(&self) -> impl Iterator<Item = (Protocol, Frontend)> {
        let routings = self.services.values().flat_map(|known| &known.routings);
        routings.flat_map(|(_, routing)| routing.frontends().map(|frontend| (routing.protocol, frontend)))
    }

    /// Every service CIDR of the family, ordered, each once.
    pub fn service_cidrs(&self) -> Vec<IpNet> {
        let all: BTreeSet<_> = self.service_cidrs.values().flatten().copied().collect();
        all.into_iter().collect()
    }

    /// Decides anew what each changed Service does and hands out what differs from last time.
    pub fn take_changes(&mut self) -> Changes {
        let mut changes = Changes {
            trigger_times: std::mem::take(&mut self.trigger_times).into_iter().collect(),
            ..Changes::default()
        };
        if std::mem::take(&mut self.cidrs_changed) {
            self.settled_cidrs = self.service_cidrs();
            changes.service_cidrs = Some(self.settled_cidrs.clone());
        }
        changes.trigger_times.sort();
        for name in self.take_pending() {
            self.reconsider(&name, &mut changes);
        }
        changes
    }

    /// In order. A set that keeps itself in order would compare names several times as often.
    fn take_pending(&mut self) -> Vec<NamespacedName> {
        let mut names: HashSet<NamespacedName, RandomState> = HashSet::default();
        if std::mem::take(&mut self.reconsider_all) {
            names.extend(self.services.keys().cloned());
        }
        names.extend(self.pending_services.drain().map(|(name, _)| name));
        for (slice, before) in self.pending_slices.drain() {
            names.extend(before.map(|slice| slice.service));
            names.extend(self.slices.get(&slice).map(|slice| slice.service.clone()));
        }
        let mut names: Vec<_> = names.into_iter().collect();
        names.sort_unstable();
        names
    }

    fn reconsider(&mut self, name: &NamespacedName, changes: &mut Changes) {
        let Some(known) = self.services.get_mut(name) else { return };
        let ports = candidates(name, known, &self.slices);

        self.counts.endpoints -= known.endpoints;
        known.endpoints = ports.iter().map(|port| port.candidates.len()).sum();
        self.counts.endpoints += known.endpoints;

        let health_check = known.service.as_ref().and_then(|service| health_check(service, &ports));
        if known.health_check != health_check {
            known.health_check = health_check;
            changes.health_checks.push((name.clone(), health_check));
        }

        let wanted = match &known.service {
            Some(service) => route(name, service, &ports, self.zone.as_deref(), self.here.node_ip),
            None => Vec::new(),
        };
        let settled =
            replace_routings(std::mem::take(&mut known.routings), wanted, changes, &mut self.counts);
        known.routings = settled;
        self.forget_if_nothing_is_known(name);
    }

    /// An entry whose routings have been handed out stays until their end has been, too.
    fn forget_if_nothing_is_known(&mut self, name: &NamespacedName) {
        if self.services.get(name).is_some_and(|known| *known == Known::default()) {
            self.services.remove(name);
        }
    }

    fn apply_service(&mut self, service: &api::Service, notes: &mut Vec<Note>) {
        let name = self.service_name(&service.metadata.namespace, &service.metadata.name);
        let Here { family, serve_external_ips, .. } = self.here;
        let current = Service::from_api(service, family, serve_external_ips, &mut self.names, notes);
        self.saw(Kind::Service, &name);
        self.replace_service(&name, current);
    }

    fn replace_service(&mut self, name: &NamespacedName, current: Option<Service>) {
        self.counts.service_changes += 1;
        let count = |service: &Option<Service>| service.as_ref().map_or(0, |service| service.ports.len());
        if current.is_none() && !self.services.contains_key(name) {
            return;
        }
        let known = self.services.entry(name.clone()).or_default();
        if known.service == current {
            // The routings share the addresses of the one we have.
            return;
        }
        self.counts.service_ports = self.counts.service_ports + count(&current) - count(&known.service);
        let before = std::mem::replace(&mut known.service, current);
        self.pending_services.changed(name, before, known.service.as_ref());
        self.forget_if_nothing_is_known(name);
    }

    fn apply_slice(&mut self, slice: &api::EndpointSlice, superseded: &Superseded, notes: &mut Vec<Note>) {
        let name = self.name(&slice.metadata.namespace, &slice.metadata.name);
        if Family::from_api(&slice.address_type) != Some(self.here.family) {
            // Ours before, if someone made it anew for the other family and we were not told of its end.
            return self.delete_slice(&name);
        }
        self.saw(Kind::EndpointSlice, &name);
        let service = slice.metadata.labels.service_name.as_deref().unwrap_or("");
        if service.is_empty() || name.name.is_empty() || name.namespace.is_empty() {
            notes.push(Note::new("Ignoring slice that names no service", &name));
            return self.delete_slice(&name);
        }
        let service = self.service_name(&slice.metadata.namespace, service);
        let mut reader = SliceReader {
            family: self.here.family,
            node_name: &self.here.node_name,
            names: &mut self.names,
            zones: &mut self.zones,
            notes,
        };
        let current = reader.read(slice, service.clone());
        self.counts.endpoint_changes += 1 + superseded.count;
        if self.slices.get(&name) == Some(&current) {
            return;
        }
        if self.replace_slice(&name, Some(current)) {
            for time in superseded.trigger_times.iter().filter(|time| **time > self.here.started) {
                self.trigger_times.entry(service.clone()).or_default().push(*time);
            }
            self.remember_trigger_time(slice, service, notes);
        } else {
            self.trigger_times.remove(&service);
        }
    }

    fn delete_slice(&mut self, name: &NamespacedName) {
        if !self.slices.contains_key(name) {
            return;
        }
        self.counts.endpoint_changes += 1;
        self.replace_slice(name, None);
    }

    /// Returns whether that leaves a change. A slice may move from one Service to another: both are then considered anew.
    fn replace_slice(&mut self, name: &NamespacedName, current: Option<Slice>) -> bool {
        let owner = current.as_ref().map(|slice| slice.service.clone());
        let before = match current {
            Some(slice) => self.slices.insert(name.clone(), slice),
            None => self.slices.remove(name),
        };
        let old_owner = before.as_ref().map(|slice| slice.service.clone());
        if owner != old_owner {
            if let Some(owner) = old_owner {
                if let Some(known) = self.services.get_mut(&owner) {
                    known.slices.retain(|slice| *slice != name.name);
                }
                // As the reference does when a Service loses a slice.
                self.trigger_times.remove(&owner);
                self.forget_if_nothing_is_known(&owner);
            }
            if let Some(owner) = owner {
                let known = self.services.entry(owner).or_default();
                let at = known.slices.partition_point(|slice| *slice < name.name);
                known.slices.reserve_exact(1); // most Services have one slice
                known.slices.insert(at, name.name.clone());
            }
        }
        self.pending_slices.changed(name, before, self.slices.get(name))
    }

    fn remember_trigger_time(
        &mut self,
        slice: &api::EndpointSlice,
        service: NamespacedName,
        notes: &mut Vec<Note>,
    ) {
        let Some(text) = &slice.metadata.annotations.last_change_trigger_time else { return };
        match text.parse::<Timestamp>() {
            Ok(time) if time > self.here.started => self.trigger_times.entry(service).or_default().push(time),
            Ok(_) => {}
            Err(_) => notes.push(
                Note::new("Ignoring trigger time that is not RFC 3339", service)
                    .with("endpoints.kubernetes.io/last-change-trigger-time", text),
            ),
        }
    }

    fn apply_service_cidr(&mut self, object: &api::ServiceCidr, notes: &mut Vec<Note>) {
        let texts = object.spec.cidrs.iter().map(String::as_str);
        let (cidrs, unreadable) = cidrs_of_family(self.here.family, texts);
        let name = &object.metadata.name;
        notes.extend(
            unreadable
                .iter()
                .map(|text| Note::new("Ignoring CIDR that can't be parsed", name).with("cidrs", text)),
        );
        self.saw(Kind::ServiceCidr, &NamespacedName::new("", name));
        self.replace_service_cidr(name, Some(cidrs));
    }

    /// There is a handful of these at most: what changed is seen by looking at all of them.
    fn replace_service_cidr(&mut self, name: &str, current: Option<Vec<IpNet>>) {
        match current {
            Some(cidrs) => self.service_cidrs.insert(name.into(), cidrs),
            None => self.service_cidrs.remove(name),
        };
        self.cidrs_changed = self.service_cidrs() != self.settled_cidrs;
    }

    fn move_to_zone(&mut self, zone: Option<String>) {
        if self.zone != zone {
            self.zone = zone;
            self.reconsider_all = true;
        }
    }

    fn begin_list(&mut self, kind: Kind) {
        let all = match kind {
            Kind::Service => {
                self.services.iter().filter(|(_, k)| k.service.is_some()).map(|(n, _)| n.clone()).collect()
            }
            Kind::EndpointSlice => self.slices.keys().cloned().collect(),
            Kind::ServiceCidr => {
                self.service_cidrs.keys().map(|name| NamespacedName::new("", name)).collect()
            }
        };
        self.unseen.insert(kind, all);
    }

    fn end_list(&mut self, kind: Kind) {
        for name in self.unseen.remove(&kind).unwrap_or_default() {
            match kind {
                Kind::Service => self.replace_service(&name, None),
                Kind::EndpointSlice => self.delete_slice(&name),
                Kind::ServiceCidr => self.replace_service_cidr(&name.name, None),
            }
        }
        self.listed.insert(kind);
    }

    fn saw(&mut self, kind: Kind, name: &NamespacedName) {
        if let Some(unseen) = self.unseen.get_mut(&kind) {
            unseen.remove(name);
        }
    }

    fn name(&mut self, namespace: &str, name: &str) -> NamespacedName {
        NamespacedName { namespace: self.names.share(namespace), name: name.into() }
    }

    /// The one copy the store has of a Service's name, if it has one: slices and routings repeat it.
    fn service_name(&mut self, namespace: &str, name: &str) -> NamespacedName {
        let name = self.name(namespace, name);
        self.services.get_key_value(&name).map_or(name, |(known, _)| known.clone())
    }
}

/// The candidates of all ports of a Service, from its slices.
fn candidates(name: &NamespacedName, known: &Known, slices: &Map<Slice>) -> Vec<PortCandidates> {
    let slice = |slice: &Arc<str>| {
        slices.get(&NamespacedName { namespace: name.namespace.clone(), name: slice.clone() })
    };
    merge(known.slices.iter().filter_map(slice))
}

/// Those of one port. They are ordered by name and protocol.
fn of_port<'a>(candidates: &'a [PortCandidates], port: &ServicePort) -> &'a [Candidate] {
    let found = candidates.binary_search_by(|c| (&c.name, c.protocol).cmp(&(&port.name, port.protocol)));
    found.ok().and_then(|at| candidates.get(at)).map_or(&[][..], |found| &found.candidates)
}

fn service_port_name(service: &NamespacedName, port: &ServicePort) -> ServicePortName {
    ServicePortName { service: service.clone(), port: port.name.clone(), protocol: port.protocol }
}

/// What each port of a Service does.
fn route(
    name: &NamespacedName,
    service: &Service,
    candidates: &[PortCandidates],
    zone: Option<&str>,
    node_ip: IpAddr,
) -> Vec<(ServicePortName, Routing)> {
    let ports = service.ports.iter();
    ports
        .map(|port| {
            let routing = Routing::decide(service, port, of_port(candidates, port), zone, node_ip);
            (service_port_name(name, port), routing)
        })
        .collect()
}

/// Walks two lists ordered by name side by side and tells what changed; what did not stays the same copy.
fn replace_routings(
    settled: Vec<(ServicePortName, Arc<Routing>)>,
    wanted: Vec<(ServicePortName, Routing)>,
    changes: &mut Changes,
    counts: &mut Counts,
) -> Vec<(ServicePortName, Arc<Routing>)> {
    let mut settled = settled.into_iter().peekable();
    let mut next = Vec::with_capacity(wanted.len());
    let mut tell = |name: ServicePortName, before: Option<&Routing>, after: Option<Arc<Routing>>| {
        changes.touches_udp |= name.protocol == Protocol::Udp;
        changes.new_frontends.extend(new_frontends(before, after.as_deref()));
        counts.forget(before);
        counts.learn(after.as_deref());
        changes.routings.push((name, after));
    };
    for (name, routing) in wanted {
        while let Some((gone, before)) = settled.next_if(|(settled, _)| *settled < name) {
            tell(gone, Some(&before), None);
        }
        let before = settled.next_if(|(settled, _)| *settled == name).map(|(_, before)| before);
        let unchanged = before.as_ref().filter(|before| ***before == routing).cloned();
        let routing = unchanged.unwrap_or_else(|| {
            let routing = Arc::new(routing);
            tell(name.clone(), before.as_deref(), Some(routing.clone()));
            routing
        });
        next.push((name, routing));
    }
    for (gone, before) in settled {
        tell(gone, Some(&before), None);
    }
    next
}

/// With its endpoints alone changed, a service port keeps its addresses, and there is nothing to compare.
fn new_frontends<'a>(
    before: Option<&'a Routing>,
    after: Option<&'a Routing>,
) -> impl Iterator<Item = (Protocol, Frontend)> + 'a {
    let has_moved = |after: &&Routing| {
        before.is_none_or(|before| {
            (&before.addresses, before.port, before.node_port)
                != (&after.addresses, after.port, after.node_port)
        })
    };
    let is_new =
        move |frontend: &Frontend| before.is_none_or(|before| before.frontends().all(|its| its != *frontend));
    let moved = after.filter(has_moved).into_iter();
    moved.flat_map(move |after| after.frontends().filter(is_new).map(|frontend| (after.protocol, frontend)))
}

impl Counts {
    fn learn(&mut self, routing: Option<&Routing>) {
        let (internal, external) = lacks_local(routing);
        self.internal_without_local += usize::from(internal);
        self.external_without_local += usize::from(external);
    }

    fn forget(&mut self, routing: Option<&Routing>) {
        let (internal, external) = lacks_local(routing);
        self.internal_without_local -= usize::from(internal);
        self.external_without_local -= usize::from(external);
    }
}

fn lacks_local(routing: Option<&Routing>) -> (bool, bool) {
    let lacks = |traffic: Traffic| traffic == Traffic::DropNoLocalEndpoints;
    routing.map_or((false, false), |routing| (lacks(routing.internal), lacks(routing.external)))
}

fn health_check(service: &Service, ports: &[PortCandidates]) -> Option<HealthCheck> {
    let port = service.health_check_node_port?;
    let candidates = ports.iter().flat_map(|port| &port.candidates);
    let here = candidates.filter(|c| c.conditions.local && c.conditions.ready);
    let distinct: HashSet<IpAddr> = here.map(|c| c.ip).collect();
    Some(HealthCheck { port, local_endpoints: distinct.len() })
}
