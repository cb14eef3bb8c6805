//! The store of one IP family: applies events, and returns the routings that changed.
//!
//! ```text
//!   Event ─▶ apply ─▶ services, slices ──────────┐
//!                 └─▶ pending: values at the     ├─▶ take_changes ─▶ Changes: routings that differ from the last ones
//!                     last call of take_changes ─┘
//! ```
//!
//! The cost of an event depends on its object alone, that of taking changes on the changed Services. An object that changes
//! and changes back in between causes no change.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use foldhash::fast::RandomState;
use ipnet::IpNet;
use jiff::Timestamp;

use crate::address::{Family, cidrs_of_family};
use crate::annotations::{AnnotationReader, IgnoredReason, ignored_hash_note};
use crate::api;
use crate::backlog::{Superseded, Update};
use crate::event::{Event, Kind};
use crate::hashing::{ClientHash, HashRequests};
use crate::names::{Interner, NamespacedName, Protocol, ServicePortName};
use crate::note::Note;
use crate::pending::Pending;
use crate::routing::{Frontend, Routing, Traffic};
use crate::service::{ServiceInfo, ServicePortInfo, TrafficPolicy};
use crate::slices::{Candidate, PortCandidates, Slice, SliceReader, Zones, merge};
use crate::topology::{Unused, unused};

/// The node that the proxy runs on, and when it started.
#[derive(Clone, Debug)]
pub struct Here {
    pub family: Family,
    pub node_name: String,
    /// This node's address in the family, which source ranges may or may not contain.
    pub node_ip: IpAddr,
    /// Feature gate `AllowServiceExternalIPs`.
    pub serve_external_ips: bool,
    /// How many service ports may have their clients hashed; zero if the mode or the kernel cannot hash them.
    pub max_hashed: usize,
    /// Changes that were triggered before this are not measured: they did not wait for this process.
    pub started: Timestamp,
}

/// The state of the cluster in one IP family.
#[derive(Debug)]
pub struct Cluster {
    here: Here,
    /// This node's zone label, which may change.
    zone: Option<String>,
    names: Interner<str>,
    zones: Interner<Zones>,

    services: Map<ServiceEntry>,
    slices: Map<Slice>,
    annotations: AnnotationReader,
    hash_requests: HashRequests,
    service_cidrs: BTreeMap<String, Vec<IpNet>>,
    /// All service CIDRs at the last call of `take_changes`.
    taken_cidrs: Vec<IpNet>,

    pending_services: Pending<ServiceInfo>,
    pending_slices: Pending<Slice>,
    /// Whether something has changed that every routing may depend on.
    all_changed: bool,
    cidrs_changed: bool,
    trigger_times: Map<Vec<Timestamp>>,

    /// Kinds of which a list has ended.
    listed: HashSet<Kind>,
    /// Services of which an object has arrived before the first lists ended, since changes were last taken.
    arrived: Vec<NamespacedName>,
    /// Objects that existed when a list began and that it has not applied so far.
    unlisted: HashMap<Kind, BTreeSet<NamespacedName>>,
    counts: Counts,
}

type Map<V> = HashMap<NamespacedName, V, RandomState>;

/// A Service, its slices, and what was last taken of it. Removed when all of these are gone.
#[derive(Debug, Default, PartialEq)]
struct ServiceEntry {
    service: Option<ServiceInfo>,
    /// Names of its slices, sorted: they are merged in this order.
    slices: Vec<Arc<str>>,
    /// As last taken, sorted like the ports of a Service.
    routings: Vec<(ServicePortName, Arc<Routing>)>,
    health_check: Option<HealthCheck>,
    endpoints: usize,
}

/// What the health-check node port of a Service reports to load balancers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    pub port: crate::names::Port,
    /// The number of distinct addresses of ready endpoints on this node, over all ports of the Service.
    pub local_endpoints: usize,
}

/// The difference between two calls of [`Cluster::take_changes`]. Lists are sorted by name.
#[derive(Debug, Default, PartialEq)]
pub struct Changes {
    /// `None` for a service port that was removed.
    pub routings: Vec<(ServicePortName, Option<Arc<Routing>>)>,
    pub health_checks: Vec<(NamespacedName, Option<HealthCheck>)>,
    /// All service CIDRs of the family, if they changed.
    pub service_cidrs: Option<Vec<IpNet>>,
    /// Endpoints over all service ports, usable or not, if their number changed.
    pub endpoints: Option<usize>,
    /// When the objects that caused the changes were changed, to measure the latency of programming.
    pub trigger_times: Vec<(NamespacedName, Vec<Timestamp>)>,
    /// Whether a UDP service port changed, which may make flows stale.
    pub touches_udp: bool,
    /// Frontends that service ports did not have before, in no particular order.
    pub new_frontends: Vec<(Protocol, Frontend)>,
}

/// One service port according to the events applied so far, including those that have not been taken. For `explain`.
#[derive(Debug)]
pub struct CurrentServicePort<'a> {
    pub name: ServicePortName,
    pub routing: Arc<Routing>,
    pub internal_policy: TrafficPolicy,
    pub external_policy: TrafficPolicy,
    /// Annotations whose weights are ignored, by the name of the slice, sorted.
    pub invalid_weights: Vec<(&'a str, &'a str)>,
    /// The annotation that asks for hashing and is ignored, and why.
    pub ignored_hash: Option<(&'a str, IgnoredReason)>,
    candidates: Vec<Candidate>,
    zone: Option<&'a str>,
}

impl CurrentServicePort<'_> {
    /// The endpoints that traffic under this policy does not use, and why.
    pub fn unused(&self, policy: TrafficPolicy) -> Vec<(&Candidate, Unused)> {
        unused(&self.candidates, policy, self.zone)
    }
}

impl Changes {
    /// Whether nothing has changed for the kernel and the health-check servers.
    pub fn is_empty(&self) -> bool {
        self.routings.is_empty() && self.health_checks.is_empty() && self.service_cidrs.is_none()
    }
}

/// Counts for metrics and logs, updated with each event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Service events since the start.
    pub service_changes: u64,
    /// Slice events of the family since the start.
    pub endpoint_changes: u64,
    /// Service ports of this family.
    pub service_ports: usize,
    /// Endpoints of all service ports, used or not, as last taken.
    pub endpoints: usize,
    /// Service ports whose cluster IP drops traffic because they have no local endpoint.
    pub internal_without_local: usize,
    /// The same for external addresses. Like upstream, this counts ports that have no external address.
    pub external_without_local: usize,
}

impl Cluster {
    pub fn new(here: Here) -> Self {
        let annotations = AnnotationReader::new(here.family, here.max_hashed > 0);
        let hash_requests = HashRequests::new(here.max_hashed);
        Self {
            here,
            zone: None,
            names: Interner::default(),
            zones: Interner::default(),
            services: Map::default(),
            slices: Map::default(),
            annotations,
            hash_requests,
            service_cidrs: BTreeMap::new(),
            taken_cidrs: Vec::new(),
            pending_services: Pending::default(),
            pending_slices: Pending::default(),
            all_changed: false,
            cidrs_changed: false,
            trigger_times: Map::default(),
            listed: HashSet::new(),
            arrived: Vec::new(),
            unlisted: HashMap::new(),
            counts: Counts::default(),
        }
    }

    /// Applies one event, and returns what should be logged about it.
    pub fn apply(&mut self, event: &Event) -> Vec<Note> {
        self.apply_newest(event, &Superseded::default())
    }

    /// Like [`Self::apply`], for an event that replaces earlier ones of its object.
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
            Event::ServiceDeleted(name) => _ = self.replace_service(name, None),
            Event::SliceApplied(slice) => self.apply_slice(slice, superseded, &mut notes),
            Event::SliceDeleted(name) => self.delete_slice(name),
            Event::NodeApplied(node) => self.move_to_zone(node.metadata.labels.zone.clone()),
            // A Node object that is deleted and recreated must not change where traffic goes.
            Event::NodeDeleted => {}
            Event::ServiceCidrApplied(cidr) => self.apply_service_cidr(cidr, &mut notes),
            Event::ServiceCidrDeleted(name) => self.replace_service_cidr(name, None),
        }
        notes
    }

    /// Sets this node's address, which may become known after the first events.
    pub fn set_node_ip(&mut self, node_ip: IpAddr) {
        self.all_changed |= self.here.node_ip != node_ip;
        self.here.node_ip = node_ip;
    }

    /// This node's address in the family.
    pub fn node_ip(&self) -> IpAddr {
        self.here.node_ip
    }

    /// Whether the first lists of Services and slices have ended. The kernel must not be programmed from less.
    pub fn is_complete(&self) -> bool {
        self.listed.contains(&Kind::Service) && self.listed.contains(&Kind::EndpointSlice)
    }

    /// Whether `take_changes` may return any.
    pub fn has_changes(&self) -> bool {
        self.all_changed
            || self.cidrs_changed
            || !self.pending_services.is_empty()
            || !self.pending_slices.is_empty()
            || self.hash_requests.changed().next().is_some()
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The numbers of Services and slices that have changed since changes were last taken.
    pub fn pending(&self) -> (usize, usize) {
        (self.pending_services.len(), self.pending_slices.len())
    }

    /// The routings of all service ports as last taken, sorted by name.
    pub fn routings(&self) -> Vec<(&ServicePortName, &Arc<Routing>)> {
        let all = self.services.values().flat_map(|entry| &entry.routings);
        let mut all: Vec<_> = all.map(|(name, routing)| (name, routing)).collect();
        all.sort_by_key(|(name, _)| *name);
        all
    }

    /// The current state of the service ports that `select` accepts, sorted by name. Walks all Services.
    pub fn current_service_ports(
        &self,
        select: impl Fn(&ServiceInfo, &ServicePortInfo) -> bool,
    ) -> Vec<CurrentServicePort<'_>> {
        let zone = self.zone.as_deref();
        let mut found = Vec::new();
        for (name, entry) in &self.services {
            let Some(service) = &entry.service else { continue };
            if !service.ports.iter().any(|port| select(service, port)) {
                continue;
            }
            let all = candidates(name, entry, &self.slices);
            let ports = ports(service, self.hash_requests.granted(name));
            for (port, hash) in ports.filter(|(port, _)| select(service, port)) {
                let candidates = of_port(&all, port);
                let routing = Routing::decide(service, port, hash, candidates, zone, self.here.node_ip);
                let over_limit = service.hash.filter(|_| hash.is_none());
                let over_limit = over_limit.map(|hash| (hash.name(), IgnoredReason::OverLimit));
                found.push(CurrentServicePort {
                    name: service_port_name(name, port),
                    routing: Arc::new(routing),
                    internal_policy: service.internal_policy,
                    external_policy: service.external_policy,
                    invalid_weights: self.invalid_weights_of(name, entry),
                    ignored_hash: self.annotations.ignored_hash(name).or(over_limit),
                    candidates: candidates.to_vec(),
                    zone,
                });
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found
    }

    fn invalid_weights_of<'a>(
        &'a self,
        service: &NamespacedName,
        entry: &'a ServiceEntry,
    ) -> Vec<(&'a str, &'a str)> {
        let text = |slice: &'a Arc<str>| {
            let name = NamespacedName { namespace: service.namespace.clone(), name: slice.clone() };
            self.annotations.invalid_weights(&name).map(|text| (&**slice, text))
        };
        entry.slices.iter().filter_map(text).collect()
    }

    /// What a health-check node port should report now, by Service. Walks all Services.
    pub fn health_checks_at(&self, port: u16) -> BTreeMap<NamespacedName, HealthCheck> {
        let mut found = BTreeMap::new();
        for (name, entry) in &self.services {
            let Some(service) = &entry.service else { continue };
            if service.health_check_node_port.is_some_and(|its| its.get() == port) {
                let check = health_check(service, &candidates(name, entry, &self.slices));
                found.extend(check.map(|check| (name.clone(), check)));
            }
        }
        found
    }

    /// Whether `ip` is the cluster IP of a Service. Walks all Services.
    pub fn has_cluster_ip(&self, ip: IpAddr) -> bool {
        let mut services = self.services.values().filter_map(|entry| entry.service.as_ref());
        services.any(|service| service.addresses.cluster_ip == ip)
    }

    /// Every frontend of every service port, as last taken, in no particular order.
    pub fn frontends(&self) -> impl Iterator<Item = (Protocol, Frontend)> {
        let routings = self.services.values().flat_map(|entry| &entry.routings);
        routings.flat_map(|(_, routing)| routing.frontends().map(|frontend| (routing.protocol, frontend)))
    }

    /// All service CIDRs of the family, sorted, without duplicates.
    pub fn service_cidrs(&self) -> Vec<IpNet> {
        let all: BTreeSet<_> = self.service_cidrs.values().flatten().copied().collect();
        all.into_iter().collect()
    }

    /// Decides what each changed Service does, and returns what differs from the last call.
    pub fn take_changes(&mut self) -> Changes {
        let mut changes = Changes {
            trigger_times: std::mem::take(&mut self.trigger_times).into_iter().collect(),
            ..Changes::default()
        };
        if std::mem::take(&mut self.cidrs_changed) {
            self.taken_cidrs = self.service_cidrs();
            changes.service_cidrs = Some(self.taken_cidrs.clone());
        }
        changes.trigger_times.sort();
        let before = self.counts.endpoints;
        for name in self.take_pending() {
            self.update(&name, &mut changes);
        }
        changes.endpoints = (self.counts.endpoints != before).then_some(self.counts.endpoints);
        changes
    }

    /// The number of Services that [`Self::take_early`] may take.
    pub fn arrived(&self) -> usize {
        self.arrived.len()
    }

    /// Like [`Self::take_changes`], before the first lists have ended: takes at most `count` Services that have arrived with a
    /// slice. The others would change again soon, and any of them may still do.
    pub fn take_early(&mut self, count: usize) -> Changes {
        let is_ready = |entry: &&ServiceEntry| entry.service.is_some() && !entry.slices.is_empty();
        let mut names = BTreeSet::new();
        for name in self.arrived.split_off(self.arrived.len().saturating_sub(count)) {
            let Some(entry) = self.services.get(&name).filter(is_ready) else { continue };
            self.pending_services.take(&name);
            for slice in &entry.slices {
                let slice = NamespacedName { namespace: name.namespace.clone(), name: slice.clone() };
                let before = self.pending_slices.take(&slice).flatten();
                names.extend(before.map(|slice| slice.service));
            }
            names.insert(name);
        }
        // Services that have been taken before, and are no longer among the oldest ones that ask for hashing.
        let is_taken = |entry: &ServiceEntry| !entry.routings.is_empty();
        let changed = self.hash_requests.changed();
        names.extend(changed.filter(|name| self.services.get(*name).is_some_and(is_taken)).cloned());
        let mut changes = Changes::default();
        let before = self.counts.endpoints;
        for name in names {
            self.update(&name, &mut changes);
        }
        changes.endpoints = (self.counts.endpoints != before).then_some(self.counts.endpoints);
        changes
    }

    /// Takes all changes, for a caller that reads the store as if a sync had written them.
    pub fn discard_changes(&mut self) {
        drop(self.take_changes());
    }

    /// The names of changed Services, sorted. A hash set sorted once needs far fewer comparisons than an ordered set.
    fn take_pending(&mut self) -> Vec<NamespacedName> {
        let mut names: HashSet<NamespacedName, RandomState> = HashSet::default();
        if std::mem::take(&mut self.all_changed) {
            names.extend(self.services.keys().cloned());
        }
        self.arrived = Vec::new();
        names.extend(self.hash_requests.changed().cloned());
        names.extend(self.pending_services.drain().map(|(name, _)| name));
        for (slice, before) in self.pending_slices.drain() {
            names.extend(before.map(|slice| slice.service));
            names.extend(self.slices.get(&slice).map(|slice| slice.service.clone()));
        }
        let mut names: Vec<_> = names.into_iter().collect();
        names.sort_unstable();
        names
    }

    fn update(&mut self, name: &NamespacedName, changes: &mut Changes) {
        let Some(entry) = self.services.get_mut(name) else { return };
        let ports = candidates(name, entry, &self.slices);

        self.counts.endpoints -= entry.endpoints;
        entry.endpoints = ports.iter().map(|port| port.candidates.len()).sum();
        self.counts.endpoints += entry.endpoints;

        let health_check = entry.service.as_ref().and_then(|service| health_check(service, &ports));
        if entry.health_check != health_check {
            entry.health_check = health_check;
            changes.health_checks.push((name.clone(), health_check));
        }

        let hashed = self.hash_requests.granted(name);
        let current = match &entry.service {
            Some(service) => route(name, service, hashed, &ports, self.zone.as_deref(), self.here.node_ip),
            None => Vec::new(),
        };
        self.hash_requests.take(name);
        entry.routings =
            replace_routings(std::mem::take(&mut entry.routings), current, changes, &mut self.counts);
        self.remove_if_empty(name);
    }

    /// An entry with routings stays until their removal has been taken.
    fn remove_if_empty(&mut self, name: &NamespacedName) {
        if self.services.get(name).is_some_and(|entry| *entry == ServiceEntry::default()) {
            self.services.remove(name);
        }
    }

    fn apply_service(&mut self, service: &api::Service, notes: &mut Vec<Note>) {
        let name = self.known_name(service.metadata.full_name());
        let Here { family, serve_external_ips, .. } = self.here;
        let mut current = ServiceInfo::from_api(service, family, serve_external_ips, &mut self.names, notes);
        if let Some(current) = &mut current {
            let text = service.metadata.annotations.hash.as_deref();
            current.hash = self.annotations.read_hash(&name, text, notes);
        }
        self.mark_listed(Kind::Service, &name);
        for name in self.replace_service(&name, current) {
            let service = self.services.get(&name).and_then(|entry| entry.service.as_ref());
            let text = service.and_then(|service| service.hash).map_or("", ClientHash::name);
            notes.push(ignored_hash_note(&name, text, IgnoredReason::OverLimit));
        }
    }

    /// Returns the Services that must be noted as over the limit of hashing.
    fn replace_service(
        &mut self,
        name: &NamespacedName,
        current: Option<ServiceInfo>,
    ) -> Vec<NamespacedName> {
        self.counts.service_changes += 1;
        if current.is_none() {
            self.annotations.forget_service(name);
        }
        let count = |service: &Option<ServiceInfo>| service.as_ref().map_or(0, |service| service.ports.len());
        if current.is_none() && !self.services.contains_key(name) {
            return Vec::new();
        }
        let entry = self.services.entry(name.clone()).or_default();
        if entry.service == current {
            // Keep the one that the routings share their addresses with.
            return Vec::new();
        }
        let over_limit = self.hash_requests.replace(name, entry.service.as_ref(), current.as_ref());
        self.counts.service_ports = self.counts.service_ports + count(&current) - count(&entry.service);
        let before = std::mem::replace(&mut entry.service, current);
        self.pending_services.changed(name, before, entry.service.as_ref());
        self.note_arrival(name);
        self.remove_if_empty(name);
        over_limit
    }

    fn apply_slice(&mut self, slice: &api::EndpointSlice, superseded: &Superseded, notes: &mut Vec<Note>) {
        let name = NamespacedName {
            namespace: self.names.intern(&slice.metadata.namespace),
            name: slice.metadata.name.clone(),
        };
        if Family::from_api(&slice.address_type) != Some(self.here.family) {
            // It may have been of this family, if it was deleted and recreated with another type between two lists.
            return self.delete_slice(&name);
        }
        self.mark_listed(Kind::EndpointSlice, &name);
        let service = slice.metadata.labels.service_name.as_deref().unwrap_or("");
        if service.is_empty() || name.name.is_empty() || name.namespace.is_empty() {
            notes.push(Note::new("Ignoring slice that names no service", &name));
            return self.delete_slice(&name);
        }
        let service =
            self.known_name(NamespacedName { namespace: name.namespace.clone(), name: service.into() });
        let weights = slice.metadata.annotations.weight.as_deref();
        let weights = self.annotations.read_weights(&name, weights, notes);
        let mut reader = SliceReader {
            family: self.here.family,
            node_name: &self.here.node_name,
            names: &mut self.names,
            zones: &mut self.zones,
            notes,
        };
        let current = reader.read(slice, service.clone(), &weights);
        self.counts.endpoint_changes += 1 + superseded.count;
        if self.slices.get(&name) == Some(&current) {
            return;
        }
        self.note_arrival(&service);
        if self.replace_slice(&name, Some(current)) {
            for time in superseded.trigger_times.iter().filter(|time| **time > self.here.started) {
                self.trigger_times.entry(service.clone()).or_default().push(*time);
            }
            self.record_trigger_time(slice, service, notes);
        } else {
            self.trigger_times.remove(&service);
        }
    }

    fn delete_slice(&mut self, name: &NamespacedName) {
        self.annotations.forget_slice(name);
        if !self.slices.contains_key(name) {
            return;
        }
        self.counts.endpoint_changes += 1;
        self.replace_slice(name, None);
    }

    /// Returns whether a change is pending. If the slice moves to another Service, both Services are updated.
    fn replace_slice(&mut self, name: &NamespacedName, current: Option<Slice>) -> bool {
        let owner = current.as_ref().map(|slice| slice.service.clone());
        let before = match current {
            Some(slice) => self.slices.insert(name.clone(), slice),
            None => self.slices.remove(name),
        };
        let old_owner = before.as_ref().map(|slice| slice.service.clone());
        if owner != old_owner {
            if let Some(owner) = old_owner {
                if let Some(entry) = self.services.get_mut(&owner) {
                    entry.slices.retain(|slice| *slice != name.name);
                }
                // As upstream does when a Service loses a slice.
                self.trigger_times.remove(&owner);
                self.remove_if_empty(&owner);
            }
            if let Some(owner) = owner {
                let entry = self.services.entry(owner).or_default();
                let at = entry.slices.partition_point(|slice| *slice < name.name);
                entry.slices.reserve_exact(1); // most Services have one slice
                entry.slices.insert(at, name.name.clone());
            }
        }
        self.pending_slices.changed(name, before, self.slices.get(name))
    }

    fn record_trigger_time(
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
        let (cidrs, unparsable) = cidrs_of_family(self.here.family, texts);
        let name = &object.metadata.name;
        notes.extend(
            unparsable
                .iter()
                .map(|text| Note::new("Ignoring CIDR that can't be parsed", name).with("cidrs", text)),
        );
        self.mark_listed(Kind::ServiceCidr, &NamespacedName::new("", name));
        self.replace_service_cidr(name, Some(cidrs));
    }

    /// Compares all service CIDRs: there are only a few.
    fn replace_service_cidr(&mut self, name: &str, current: Option<Vec<IpNet>>) {
        match current {
            Some(cidrs) => self.service_cidrs.insert(name.into(), cidrs),
            None => self.service_cidrs.remove(name),
        };
        self.cidrs_changed = self.service_cidrs() != self.taken_cidrs;
    }

    fn move_to_zone(&mut self, zone: Option<String>) {
        if self.zone != zone {
            self.zone = zone;
            self.all_changed = true;
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
        self.unlisted.insert(kind, all);
    }

    fn end_list(&mut self, kind: Kind) {
        for name in self.unlisted.remove(&kind).unwrap_or_default() {
            match kind {
                Kind::Service => _ = self.replace_service(&name, None),
                Kind::EndpointSlice => self.delete_slice(&name),
                Kind::ServiceCidr => self.replace_service_cidr(&name.name, None),
            }
        }
        self.listed.insert(kind);
    }

    fn note_arrival(&mut self, service: &NamespacedName) {
        if !self.is_complete() {
            self.arrived.push(service.clone());
        }
    }

    fn mark_listed(&mut self, kind: Kind, name: &NamespacedName) {
        if let Some(unlisted) = self.unlisted.get_mut(&kind) {
            unlisted.remove(name);
        }
    }

    /// The name of a Service, sharing the allocations of the key if the Service is known: slices and routings repeat it.
    fn known_name(&mut self, name: NamespacedName) -> NamespacedName {
        if let Some((key, _)) = self.services.get_key_value(&name) {
            return key.clone();
        }
        NamespacedName { namespace: self.names.intern(&name.namespace), ..name }
    }
}

/// The candidates of all ports of a Service, from its slices.
fn candidates(name: &NamespacedName, entry: &ServiceEntry, slices: &Map<Slice>) -> Vec<PortCandidates> {
    let slice = |slice: &Arc<str>| {
        slices.get(&NamespacedName { namespace: name.namespace.clone(), name: slice.clone() })
    };
    merge(entry.slices.iter().filter_map(slice))
}

/// The candidates of one port. `candidates` is sorted by name and protocol.
fn of_port<'a>(candidates: &'a [PortCandidates], port: &ServicePortInfo) -> &'a [Candidate] {
    let found = candidates.binary_search_by(|c| (&c.name, c.protocol).cmp(&(&port.name, port.protocol)));
    found.ok().and_then(|at| candidates.get(at)).map_or(&[][..], |found| &found.candidates)
}

fn service_port_name(service: &NamespacedName, port: &ServicePortInfo) -> ServicePortName {
    ServicePortName { service: service.clone(), port: port.name.clone(), protocol: port.protocol }
}

/// The ports of a Service, and how their clients are hashed: those of the first `hashed` ones.
fn ports(
    service: &ServiceInfo,
    hashed: usize,
) -> impl Iterator<Item = (&ServicePortInfo, Option<ClientHash>)> {
    let hashes = std::iter::repeat_n(service.hash, hashed).chain(std::iter::repeat(None));
    service.ports.iter().zip(hashes)
}

/// The routings of all ports of a Service, sorted like the ports.
fn route(
    name: &NamespacedName,
    service: &ServiceInfo,
    hashed: usize,
    candidates: &[PortCandidates],
    zone: Option<&str>,
    node_ip: IpAddr,
) -> Vec<(ServicePortName, Routing)> {
    ports(service, hashed)
        .map(|(port, hash)| {
            let routing = Routing::decide(service, port, hash, of_port(candidates, port), zone, node_ip);
            (service_port_name(name, port), routing)
        })
        .collect()
}

/// Compares two lists sorted by name, and records the differences. Routings that are equal keep their allocation.
fn replace_routings(
    previous: Vec<(ServicePortName, Arc<Routing>)>,
    current: Vec<(ServicePortName, Routing)>,
    changes: &mut Changes,
    counts: &mut Counts,
) -> Vec<(ServicePortName, Arc<Routing>)> {
    let mut previous = previous.into_iter().peekable();
    let mut next = Vec::with_capacity(current.len());
    let mut record = |name: ServicePortName, before: Option<&Routing>, after: Option<Arc<Routing>>| {
        changes.touches_udp |= name.protocol == Protocol::Udp;
        changes.new_frontends.extend(new_frontends(before, after.as_deref()));
        counts.remove(before);
        counts.add(after.as_deref());
        changes.routings.push((name, after));
    };
    for (name, routing) in current {
        while let Some((removed, before)) = previous.next_if(|(previous, _)| *previous < name) {
            record(removed, Some(&before), None);
        }
        let before = previous.next_if(|(previous, _)| *previous == name).map(|(_, before)| before);
        let unchanged = before.as_ref().filter(|before| ***before == routing).cloned();
        let routing = unchanged.unwrap_or_else(|| {
            let routing = Arc::new(routing);
            record(name.clone(), before.as_deref(), Some(routing.clone()));
            routing
        });
        next.push((name, routing));
    }
    for (removed, before) in previous {
        record(removed, Some(&before), None);
    }
    next
}

/// The frontends of `after` that `before` lacks. A change of endpoints alone is recognized without comparing frontends.
fn new_frontends<'a>(
    before: Option<&'a Routing>,
    after: Option<&'a Routing>,
) -> impl Iterator<Item = (Protocol, Frontend)> + 'a {
    let may_have_new = |after: &&Routing| {
        before.is_none_or(|before| {
            (&before.addresses, before.port, before.node_port)
                != (&after.addresses, after.port, after.node_port)
        })
    };
    let is_new =
        move |frontend: &Frontend| before.is_none_or(|before| before.frontends().all(|its| its != *frontend));
    let changed = after.filter(may_have_new).into_iter();
    changed.flat_map(move |after| after.frontends().filter(is_new).map(|frontend| (after.protocol, frontend)))
}

impl Counts {
    fn add(&mut self, routing: Option<&Routing>) {
        let (internal, external) = lacks_local(routing);
        self.internal_without_local += usize::from(internal);
        self.external_without_local += usize::from(external);
    }

    fn remove(&mut self, routing: Option<&Routing>) {
        let (internal, external) = lacks_local(routing);
        self.internal_without_local -= usize::from(internal);
        self.external_without_local -= usize::from(external);
    }
}

fn lacks_local(routing: Option<&Routing>) -> (bool, bool) {
    let lacks = |traffic: Traffic| traffic == Traffic::DropNoLocalEndpoints;
    routing.map_or((false, false), |routing| (lacks(routing.internal), lacks(routing.external)))
}

fn health_check(service: &ServiceInfo, ports: &[PortCandidates]) -> Option<HealthCheck> {
    let port = service.health_check_node_port?;
    let candidates = ports.iter().flat_map(|port| &port.candidates);
    let local = candidates.filter(|c| c.conditions.local && c.conditions.ready);
    let distinct: HashSet<IpAddr> = local.map(|c| c.ip).collect();
    Some(HealthCheck { port, local_endpoints: distinct.len() })
}
