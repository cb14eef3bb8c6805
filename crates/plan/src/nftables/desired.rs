//! The desired table: settings, routings, service CIDRs and node-port IPs, rendered into elements on demand.
//!
//! ```text
//!   changed routings ─▶ replace ────▶ the steps for these routings
//!   actual state ─────▶ steps_from ─▶ the steps for every difference
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use foldhash::fast::RandomState;
use ipnet::IpNet;
use model::names::{Port, ServicePortName};
use model::routing::{Endpoint, Routing, Traffic};
use model::weights::Weight;

use crate::nftables::claims::{Contention, Precedence, Rank, contentions};
use crate::nftables::elements::{
    ElementUnit, FrontendKey, SharedElement, SlotAssignment, UsedList, frontends, shared_elements, sort_from,
};
use crate::nftables::program::{Program, ProgramSettings, affinity_chains};
use crate::nftables::sets::{Balancer, Data, Element, ElementKey, EndpointList, LookupBy, Set};
use crate::nftables::steps::{ActualState, ActualTable, Boundaries, NewTable, Steps, TableContent};
use crate::nftables::timeouts::rounded;
use crate::shards::Shards;

/// The new routing of a service port; `None` if it is gone.
pub type RoutingChange = (ServicePortName, Option<Arc<Routing>>);

/// The desired content of the table of one family. Clones are cheap at any size.
#[derive(Clone, Debug)]
pub struct DesiredTable {
    settings: ProgramSettings,
    units: Shards<ServicePortName, ElementUnit>,
    /// The service ports that claim a frontend, sorted by [`Rank`]: the first one gets it.
    claims: Shards<FrontendKey, Vec<ServicePortName>>,
    /// The number of service ports that use a shared element. Never zero.
    shared: Shards<SharedElement, usize>,
    /// The id that was assigned last to a service port. An id is reused after 2^31 others, or after a restart if no service
    /// port in the kernel has it: a packet between the lookups of a list and of its slot never reaches another Service.
    /// Elements of `Set::Affinity` that another service port left under the id apply only if they lead to an endpoint of the
    /// new one: `Set::StickyEndpoints` has no other under this id.
    last_id: u32,
    /// Whether it knows the ids in the kernel: all of them are its own.
    has_adopted: bool,
    /// Service ports with more than [`MAX_SLOTS`] endpoints, and how many endpoints of each have no slot.
    ///
    /// [`MAX_SLOTS`]: crate::nftables::slots::MAX_SLOTS
    left_out: BTreeMap<ServicePortName, usize>,
    service_cidrs: Vec<IpNet>,
    /// The node's addresses that serve node ports; empty if all of them do, except in the ipvs mode.
    node_port_ips: Vec<IpAddr>,
    /// All addresses of the node, except loopback and those of `kube-ipvs0`. In the ipvs mode: they are local anyway, and never
    /// bound.
    node_ips: BTreeSet<IpAddr>,
}

/// The weights of the endpoints of a service port.
pub type EndpointWeights = HashMap<(IpAddr, Port), Weight, RandomState>;

/// For each frontend that several claim before or during a change: the claims before it.
type Contended = BTreeMap<FrontendKey, Vec<ServicePortName>>;

impl DesiredTable {
    /// The table of this program, without Services.
    pub fn new(settings: ProgramSettings) -> Self {
        Self {
            settings,
            units: Shards::default(),
            claims: Shards::default(),
            shared: Shards::default(),
            last_id: 0,
            has_adopted: false,
            left_out: BTreeMap::new(),
            service_cidrs: Vec::new(),
            node_port_ips: Vec::new(),
            node_ips: BTreeSet::new(),
        }
    }

    pub fn settings(&self) -> &ProgramSettings {
        &self.settings
    }

    pub fn service_cidrs(&self) -> &[IpNet] {
        &self.service_cidrs
    }

    /// The node's addresses that serve node ports; empty if all of them do, except in the ipvs mode.
    pub fn node_port_ips(&self) -> &[IpAddr] {
        &self.node_port_ips
    }

    /// The addresses of `kube-ipvs0`, in no particular order.
    pub fn bound_ips(&self) -> impl Iterator<Item = IpAddr> {
        self.shared.iter().filter_map(|(shared, _)| match *shared {
            SharedElement::BoundIp(ip) => self.shares(shared).then_some(ip),
            SharedElement::ClusterIp(_)
            | SharedElement::Hairpin(..)
            | SharedElement::Timeout(..)
            | SharedElement::HealthCheckPort(_) => None,
        })
    }

    /// Every frontend that a service port claims, in no particular order.
    pub fn frontends(&self) -> impl Iterator<Item = &FrontendKey> {
        self.claims.iter().map(|(frontend, _)| frontend)
    }

    /// Returns whether they changed, which is never so in the ipvs mode: its program has no rule for them.
    pub fn replace_service_cidrs(&mut self, mut service_cidrs: Vec<IpNet>) -> bool {
        service_cidrs.retain(|_| self.settings.balancer == Balancer::Slots);
        let is_change = service_cidrs != self.service_cidrs;
        self.service_cidrs = service_cidrs;
        is_change
    }

    /// Replaces the node's addresses that serve node ports; loopback addresses cannot in this mode. Returns whether they
    /// changed, which is never so if the program does not list them.
    pub fn replace_node_port_ips(&mut self, mut ips: Vec<IpAddr>) -> bool {
        ips.retain(|ip| !ip.is_loopback() && self.settings.lists_node_port_ips());
        let is_change = ips != self.node_port_ips;
        self.node_port_ips = ips;
        is_change
    }

    /// The content of [`Set::ServiceCidrs`].
    pub fn cidr_boundaries(&self) -> Boundaries {
        boundaries(&self.service_cidrs)
    }

    /// The rules and sets, with chains for the timeouts in use.
    pub fn program(&self) -> Program {
        Program::new(&self.settings, &self.timeouts())
    }

    pub fn node_ips(&self) -> &BTreeSet<IpAddr> {
        &self.node_ips
    }

    /// Replaces all addresses of the node, which only the ipvs mode depends on.
    pub fn replace_node_ips(&mut self, ips: BTreeSet<IpAddr>) {
        self.node_ips = ips;
    }

    /// Replaces the routings of service ports. Returns the steps from the previous desired state to the new one, and what
    /// changes for contended frontends.
    pub fn replace(&mut self, changes: Vec<RoutingChange>) -> (Steps, Vec<Contention>) {
        self.replace_at(changes, None)
    }

    /// Like [`Self::replace`], and replaces all addresses of the node if there are new ones.
    pub fn replace_at(
        &mut self,
        changes: Vec<RoutingChange>,
        node_ips: Option<BTreeSet<IpAddr>>,
    ) -> (Steps, Vec<Contention>) {
        // Every frontend that is claimed before or after the change.
        let mut affected: BTreeSet<FrontendKey> = BTreeSet::new();
        let mut shared_before: BTreeMap<SharedElement, bool> = BTreeMap::new();
        for (name, routing) in &changes {
            let old = self.units.get(name).map(|unit| &unit.routing);
            for routing in old.into_iter().chain(routing) {
                affected.extend(frontends(routing));
                let shared = shared_elements(routing, self.settings.balancer);
                shared_before.extend(shared.map(|it| (it, self.shares(&it))));
            }
        }
        let moved = node_ips.iter().flat_map(|new| new.symmetric_difference(&self.node_ips));
        let moved = moved.map(|ip| SharedElement::BoundIp(*ip));
        shared_before.extend(moved.map(|it| (it, self.shares(&it))));
        let names = self.concerned(&changes, &affected);
        let lists = |table: &Self| names.iter().map(|name| table.lists(name)).collect::<Vec<_>>();
        let (old_lists, mut before) = (lists(self), self.elements_of(&affected));
        let contentions = self.accept(changes);
        node_ips.into_iter().for_each(|ips| self.replace_node_ips(ips));
        let (new_lists, mut after) = (lists(self), self.elements_of(&affected));
        // A list may have thousands of slots of which few change.
        for (old, new) in old_lists.iter().zip(&new_lists) {
            old.iter().for_each(|list| list.elements_beyond(new, &mut before));
            new.iter().for_each(|list| list.elements_beyond(old, &mut after));
        }
        for (shared, was_there) in shared_before {
            match (was_there, self.shares(&shared)) {
                (true, false) => before.push(shared.element()),
                (false, true) => after.push(shared.element()),
                (true, true) | (false, false) => {}
            }
        }
        before.sort_unstable();
        after.sort_unstable();
        let (delete, add) = difference(&before, &after);
        // A timeout has an element for either lookup, or for none: its two chains are added and deleted with them.
        let old_chains = timeouts(&delete).into_iter().flat_map(chain_names).collect();
        let chains = timeouts(&add).into_iter().flat_map(affinity_chains).collect();
        (Steps { delete, add, chains, old_chains, ..Steps::default() }, contentions)
    }

    /// The service ports that may get or lose one of these frontends: those that change and, of the others, the first one that
    /// claims it. Later claims get the frontend neither before nor after the change.
    fn concerned(
        &self,
        changes: &[RoutingChange],
        affected: &BTreeSet<FrontendKey>,
    ) -> BTreeSet<ServicePortName> {
        let change: BTreeSet<&ServicePortName> = changes.iter().map(|(name, _)| name).collect();
        let first = |frontend| self.claims.get(frontend)?.iter().find(|name| !change.contains(name));
        change.iter().copied().chain(affected.iter().filter_map(first)).cloned().collect()
    }

    /// Like [`Self::replace`], without computing the steps.
    pub fn accept(&mut self, changes: Vec<RoutingChange>) -> Vec<Contention> {
        let mut contended = Contended::new();
        for (name, routing) in changes {
            self.replace_routing(name, routing, None, &mut contended);
        }
        contentions(contended.iter().map(|(frontend, before)| {
            let after = self.claims.get(frontend).map(Vec::as_slice).unwrap_or_default();
            (*frontend, &before[..], after)
        }))
    }

    /// All desired elements, sorted.
    pub fn elements(&self) -> Vec<Element> {
        // Sorting what elements are rendered from is faster than sorting the elements.
        let shared = self.shared.iter().map(|(shared, _)| *shared);
        let mut shared: Vec<SharedElement> = shared.filter(|shared| self.shares(shared)).collect();
        shared.sort_unstable();
        let mut all: Vec<Element> = shared.iter().map(SharedElement::element).collect();
        let mut claims: Vec<(FrontendKey, &Vec<ServicePortName>)> =
            self.claims.iter().map(|(frontend, claims)| (*frontend, claims)).collect();
        claims.sort_unstable_by_key(|(frontend, _)| *frontend);
        for (frontend, claims) in claims {
            if let Some(unit) = claims.first().and_then(|owner| self.units.get(owner)) {
                unit.elements_of(&frontend, &mut all);
            }
        }
        // The bytes of an id are in host order.
        let mut units: Vec<_> = self.units.iter().collect();
        units.sort_unstable_by_key(|(_, unit)| unit.id().to_ne_bytes());
        units.into_iter().for_each(|(name, _)| self.list_elements(name, &mut all));
        // There are few sets, and the elements of each are nearly sorted: by the name of the protocol instead of its number.
        // So the second sort is fast.
        all.sort_by_key(|element| element.set);
        all.sort();
        all
    }

    /// The steps from the actual to the desired state. Adopts the ids and slots that the kernel has, where they are usable.
    pub fn steps_from(&mut self, actual: &ActualState) -> Steps {
        let timeouts = self.timeouts();
        let new = |replaces| NewTable { program: Program::new(&self.settings, &timeouts), replaces };
        let nothing = TableContent::default();
        let (content, table) = match &actual.table {
            ActualTable::Ours(content) => (content, None),
            ActualTable::Absent => (&nothing, Some(new(false))),
            ActualTable::Foreign => (&nothing, Some(new(true))),
        };
        self.adopt_ids(&content.ids);
        let (mut delete, mut add) = (Vec::new(), self.elements());
        if !content.elements.is_empty() {
            (delete, add) = difference(&content.elements, &add);
            if self.keep_slots(&content.elements, &delete) {
                (delete, add) = difference(&content.elements, &self.elements());
            }
        }
        // A new table is created with its chains.
        let missing = timeouts.difference(&content.timeouts).filter(|_| table.is_none());
        let service_cidrs = self.cidr_boundaries();
        let node_port_ips: BTreeSet<IpAddr> = self.node_port_ips.iter().copied().collect();
        Steps {
            generation: actual.generation,
            is_full: true,
            unexpected: content.unexpected.clone(),
            chains: missing.copied().flat_map(affinity_chains).collect(),
            service_cidrs: (content.service_cidrs != service_cidrs).then_some(service_cidrs),
            node_port_ips: (content.node_port_ips != node_port_ips).then_some(node_port_ips),
            empty: content.unreadable.clone(),
            delete,
            add,
            old_chains: content.timeouts.difference(&timeouts).copied().flat_map(chain_names).collect(),
            table,
            has_drifted: false,
        }
    }

    /// Gives service ports the ids that they have in these elements of the kernel, which has slots and clients under these ids.
    /// New ids are higher. Returns whether any id changes, and with it [`DesiredTable::elements`].
    pub fn adopt_ids(&mut self, found: &[Element]) -> bool {
        let mut ids: HashMap<&ServicePortName, u32, RandomState> = HashMap::default();
        let (mut taken, mut highest): (HashSet<u32, RandomState>, u32) = Default::default();
        for element in found {
            let Some(Data::List(list)) = element.data else { continue };
            let id = list.service_port();
            highest = id.max(highest);
            let owner = element.frontend(self.settings.family).and_then(|frontend| self.owner(&frontend));
            // A frontend may have moved from one service port to another: no two of them get the same id.
            if let Some(owner) = owner.filter(|owner| !ids.contains_key(owner))
                && taken.insert(id)
            {
                ids.insert(owner, id);
            }
        }
        let others = self.units.iter().filter(|(name, unit)| ids.get(name) != Some(&unit.id()));
        // In the order of names, so that new ids do not depend on hashes.
        let others: BTreeMap<ServicePortName, (ElementUnit, Option<u32>)> =
            others.map(|(name, unit)| (name.clone(), (unit.clone(), ids.get(name).copied()))).collect();
        // Frontends that a foreign writer deleted do not change an id.
        let is_free = |id| id > highest || (self.has_adopted && !taken.contains(&id));
        let others: Vec<_> =
            others.into_iter().filter(|(_, (unit, found))| found.is_some() || !is_free(unit.id())).collect();
        self.has_adopted = true;
        self.last_id = self.last_id.max(highest);
        let mut has_changed = false;
        for (name, (unit, found)) in others {
            let new = found.unwrap_or_else(|| self.new_id());
            self.units.insert(name, unit.with_id(new));
            has_changed = true;
        }
        has_changed
    }

    fn new_id(&mut self) -> u32 {
        self.last_id = self.last_id.wrapping_add(2);
        self.last_id
    }

    /// No service port claims a frontend.
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    /// The slots of the endpoints of a service port; empty if there is no such service port.
    pub fn slots(&self, name: &ServicePortName) -> SlotAssignment<'_> {
        self.units.get(name).map(ElementUnit::slots).unwrap_or_default()
    }

    /// Service ports with too many endpoints, and how many endpoints of each have no slot.
    pub fn left_out(&self) -> &BTreeMap<ServicePortName, usize> {
        &self.left_out
    }

    /// The service port that gets the frontend.
    pub fn owner(&self, frontend: &FrontendKey) -> Option<&ServicePortName> {
        self.claims.get(frontend)?.first()
    }

    /// The service ports that claim the frontend, in the order of precedence.
    pub fn claims(&self, frontend: &FrontendKey) -> &[ServicePortName] {
        self.claims.get(frontend).map(Vec::as_slice).unwrap_or_default()
    }

    /// Why the first of several claims wins.
    pub fn precedence(&self, frontend: &FrontendKey) -> Option<Precedence> {
        let rank = |name| Some(Rank::of(frontend.ip, name, &self.units.get(name)?.routing));
        let [first, second, ..] = self.claims(frontend) else { return None };
        Some(rank(first)?.precedence_over(&rank(second)?))
    }

    /// Whether the table has the shared element: any service port uses it, and it is not an address that the node has anyway.
    pub fn shares(&self, shared: &SharedElement) -> bool {
        let is_node_ip = matches!(shared, SharedElement::BoundIp(ip) if self.node_ips.contains(ip));
        self.shared.contains_key(shared) && !is_node_ip
    }

    pub fn unit(&self, name: &ServicePortName) -> Option<&ElementUnit> {
        self.units.get(name)
    }

    /// The unit of the service port that gets the frontend.
    pub fn owner_unit(&self, frontend: &FrontendKey) -> Option<&ElementUnit> {
        self.units.get(self.owner(frontend)?)
    }

    /// The elements of both lists of the service port that this list belongs to, sorted. Walks all service ports.
    pub fn list_elements_of(&self, list: u32) -> Vec<Element> {
        let id = EndpointList::Cluster.of(list);
        let mut elements = Vec::new();
        if let Some((name, _)) = self.units.iter().find(|(_, unit)| unit.id() == id) {
            self.list_elements(name, &mut elements);
        }
        elements
    }

    /// The service port of each id. Walks all service ports.
    pub fn ids(&self) -> HashMap<u32, &ServicePortName, RandomState> {
        self.units.iter().map(|(name, unit)| (unit.id(), name)).collect()
    }

    /// The weights of the endpoints of service ports that have different ones. Walks all service ports.
    pub fn weights(&self) -> HashMap<&ServicePortName, EndpointWeights, RandomState> {
        let weighted = self.units.iter().filter(|(_, unit)| unit.routing.weights.is_some());
        let weights = |routing: &Routing| {
            let of = |traffic| routing.endpoints(traffic).iter().zip(routing.weights(traffic));
            let all = of(Traffic::ToCluster).chain(of(Traffic::ToLocal));
            all.map(|(endpoint, weight)| ((endpoint.ip, endpoint.port), *weight)).collect()
        };
        weighted.map(|(name, unit)| (name, weights(&unit.routing))).collect()
    }

    /// Adds a service port whose endpoints already have these slots.
    pub fn insert(&mut self, name: ServicePortName, routing: Arc<Routing>, slots: SlotAssignment<'_>) {
        self.replace_routing(name, Some(routing), Some(slots), &mut Contended::new());
    }

    /// Timeouts of session affinity in use, in seconds.
    pub fn timeouts(&self) -> BTreeSet<u32> {
        if self.settings.balancer == Balancer::Ipvs {
            return BTreeSet::new();
        }
        let units = self.units.iter();
        units.filter_map(|(_, unit)| unit.routing.affinity.map(rounded)).collect()
    }

    /// Gives endpoints the slots that they have in the kernel, for service ports with a slot that differs from the desired one.
    /// Returns whether there are any. Both slices are sorted.
    fn keep_slots(&mut self, found: &[Element], different: &[Element]) -> bool {
        let lists = different.iter().filter_map(|element| Some(element.slot()?.0));
        let ids: BTreeSet<u32> = lists.map(|list| EndpointList::Cluster.of(list)).collect();
        if ids.is_empty() {
            return false;
        }
        let names = self.ids();
        let owners = ids.iter().filter_map(|id| names.get(id)).map(|name| (*name).clone());
        let owners: Vec<ServicePortName> = owners.collect();
        for owner in &owners {
            let Some(unit) = self.units.get(owner) else { continue };
            let [cluster, local] = EndpointList::BOTH.map(|list| slots(found, list.of(unit.id())));
            let slots = SlotAssignment { cluster: &cluster, local: &local };
            let unit = ElementUnit::new(unit.routing.clone(), slots, unit.id());
            self.units.insert(owner.clone(), unit);
        }
        !owners.is_empty()
    }

    fn elements_of(&self, frontends: &BTreeSet<FrontendKey>) -> Vec<Element> {
        let mut elements = Vec::new();
        for frontend in frontends {
            let owner = self.owner(frontend);
            if let Some(unit) = owner.and_then(|owner| self.units.get(owner)) {
                unit.elements_of(frontend, &mut elements);
            }
        }
        elements
    }

    /// Adds the elements of the endpoint lists of a service port that are in use, sorted.
    fn list_elements(&self, name: &ServicePortName, out: &mut Vec<Element>) {
        let start = out.len();
        self.lists(name).iter().for_each(|list| list.elements_beyond(&[], out));
        // The bytes of a slot are in host order, so elements are not sorted by its number.
        sort_from(start, out);
    }

    /// The endpoint lists of a service port that are in use.
    fn lists(&self, name: &ServicePortName) -> Vec<UsedList> {
        let unit = self.units.get(name);
        unit.map(|unit| unit.lists(|frontend| self.owner(frontend) == Some(name))).unwrap_or_default()
    }

    /// Endpoints keep their slots, unless `slots` replace them.
    fn replace_routing(
        &mut self,
        name: ServicePortName,
        routing: Option<Arc<Routing>>,
        slots: Option<SlotAssignment<'_>>,
        contended: &mut Contended,
    ) {
        let old = self.units.remove(&name);
        let slots = slots.or(old.as_ref().map(ElementUnit::slots)).unwrap_or_default();
        let id = old.as_ref().map(ElementUnit::id);
        let balancer = self.settings.balancer;
        let unit = routing.map(|routing| match balancer {
            Balancer::Slots => ElementUnit::new(routing, slots, id.unwrap_or_else(|| self.new_id())),
            Balancer::Ipvs => ElementUnit::without_slots(routing),
        });
        let (old, new) = (old.as_ref().map(|unit| &*unit.routing), unit.as_ref().map(|unit| &*unit.routing));
        let claimed = old.map(frontends).unwrap_or_default();
        let claims = new.map(frontends).unwrap_or_default();
        // A claim whose rank stays is not moved, since many may claim the same frontend.
        let stays = |frontend: &FrontendKey| {
            claimed.contains(frontend)
                && claims.contains(frontend)
                && old.zip(new).is_some_and(|(old, new)| {
                    Rank::of(frontend.ip, &name, old) == Rank::of(frontend.ip, &name, new)
                })
        };
        for frontend in claimed.iter().filter(|frontend| !stays(frontend)) {
            self.withdraw(frontend, &name, contended);
        }
        if let Some(routing) = old {
            shared_elements(routing, balancer).for_each(|it| self.release(it));
        }
        if let Some(routing) = new {
            for frontend in claims.iter().filter(|frontend| !stays(frontend)) {
                self.claim(frontend, &name, routing, contended);
            }
        }
        match unit.as_ref().map_or(0, ElementUnit::left_out) {
            0 => _ = self.left_out.remove(&name),
            left_out => _ = self.left_out.insert(name.clone(), left_out),
        }
        if let Some(unit) = unit {
            shared_elements(&unit.routing, balancer).for_each(|it| self.share(it));
            self.units.insert(name, unit);
        }
    }

    fn claim(
        &mut self,
        frontend: &FrontendKey,
        name: &ServicePortName,
        routing: &Routing,
        contended: &mut Contended,
    ) {
        let Some(claims) = self.claims.get_mut(frontend) else {
            self.claims.insert(*frontend, vec![name.clone()]);
            return;
        };
        contended.entry(*frontend).or_insert_with(|| claims.clone());
        let rank = Rank::of(frontend.ip, name, routing);
        let at = claims.partition_point(|other| {
            self.units.get(other).is_some_and(|unit| Rank::of(frontend.ip, other, &unit.routing) < rank)
        });
        claims.insert(at, name.clone());
    }

    fn withdraw(&mut self, frontend: &FrontendKey, name: &ServicePortName, contended: &mut Contended) {
        let Some(claims) = self.claims.get_mut(frontend) else { return };
        if claims.len() == 1 {
            self.claims.remove(frontend);
            return;
        }
        contended.entry(*frontend).or_insert_with(|| claims.clone());
        claims.retain(|other| other != name);
    }

    fn share(&mut self, shared: SharedElement) {
        match self.shared.get_mut(&shared) {
            Some(count) => *count += 1,
            None => _ = self.shared.insert(shared, 1),
        }
    }

    fn release(&mut self, shared: SharedElement) {
        if let Some(count) = self.shared.get_mut(&shared) {
            *count -= 1;
            if *count == 0 {
                self.shared.remove(&shared);
            }
        }
    }
}

/// Timeouts of session affinity among these elements.
fn timeouts(elements: &[Element]) -> BTreeSet<u32> {
    let seconds = |element: &Element| match element.data {
        Some(Data::AffinityChain(seconds)) => Some(seconds),
        Some(Data::Endpoint(..) | Data::List(_) | Data::Chain(_) | Data::Sticky(_)) | None => None,
    };
    elements.iter().filter_map(seconds).collect()
}

/// The chains of a timeout. When they are deleted, elements of [`Set::Affinity`] stay until they expire: no service port has
/// their id.
fn chain_names(seconds: u32) -> [String; 2] {
    LookupBy::BOTH.map(|by| by.affinity_chain(seconds))
}

/// The first address of each range with `false`, and the first address after it with `true`. A range that includes the last
/// address of the family has no end, and adjacent ranges are merged.
pub fn boundaries(ranges: &[IpNet]) -> Boundaries {
    let after = |range: &IpNet| match range.broadcast() {
        IpAddr::V4(last) => u32::from(last).checked_add(1).map(|next| IpAddr::V4(next.into())),
        IpAddr::V6(last) => u128::from(last).checked_add(1).map(|next| IpAddr::V6(next.into())),
    };
    let ranges = IpNet::aggregate(&ranges.to_vec());
    let begins: BTreeSet<IpAddr> = ranges.iter().map(IpNet::network).collect();
    let ends: BTreeSet<IpAddr> = ranges.iter().filter_map(after).collect();
    let begin = begins.difference(&ends).map(|address| (*address, false));
    begin.chain(ends.difference(&begins).map(|address| (*address, true))).collect()
}

/// The endpoints in the slots of a list, in their order. The elements are sorted.
fn slots(found: &[Element], list: u32) -> Vec<Endpoint> {
    let key = ElementKey::EMPTY.number(list);
    let start = found.partition_point(|element| (element.set, element.key) < (Set::Endpoints, key));
    let its_own = found.get(start..).unwrap_or_default().iter().map_while(Element::slot);
    let its_own = its_own.take_while(|(of, ..)| *of == list);
    let slots: BTreeMap<u32, Endpoint> =
        its_own.map(|(_, slot, (ip, port))| (slot, Endpoint { ip, local: false, port })).collect();
    slots.into_values().collect()
}

/// The elements that are only in `before`, and those that are only in `after`. All slices are sorted.
pub fn difference(before: &[Element], after: &[Element]) -> (Vec<Element>, Vec<Element>) {
    let (mut delete, mut add) = (Vec::new(), Vec::new());
    let (mut old, mut new) = (before.iter().copied().peekable(), after.iter().copied().peekable());
    loop {
        match (old.peek(), new.peek()) {
            (Some(a), Some(b)) if a == b => {
                old.next();
                new.next();
            }
            (Some(a), Some(b)) if a > b => add.extend(new.next()),
            (None, Some(_)) => add.extend(new.next()),
            (Some(_), _) => delete.extend(old.next()),
            (None, None) => return (delete, add),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
