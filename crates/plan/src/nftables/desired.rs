//! What the table should hold: settings, routings, service CIDRs and node-port IPs, rendered into elements on demand.
//!
//! ```text
//!   routings ─▶ replace ─▶ what that changes in the sets
//!   what the kernel holds ─▶ steps_from ─▶ all that differs
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use model::names::ServicePortName;
use model::routing::{Endpoint, Routing};

use crate::nftables::claims::{Contention, Precedence, Rank, contentions};
use crate::nftables::elements::{Frontend, Seats, Shared, Unit, frontends, shared};
use crate::nftables::program::{Program, Settings, learners};
use crate::nftables::sets::{Bank, Data, Element, Set};
use crate::nftables::steps::{Boundaries, Held, HeldTable, NewTable, Steps, TableContent};
use crate::nftables::timeouts::rounded;
use crate::shards::Shards;

/// What becomes of a service port; nothing if it is gone.
pub type Changed = (ServicePortName, Option<Arc<Routing>>);

/// The desired content of the table of one family. To clone it is cheap, whatever it holds.
#[derive(Clone, Debug)]
pub struct DesiredTable {
    settings: Settings,
    units: Shards<ServicePortName, Unit>,
    /// The service ports that claim a frontend, by their [`Rank`]: the first one gets it.
    claims: Shards<Frontend, Vec<ServicePortName>>,
    /// How many service ports ask for what several may ask for. Never zero.
    shared: Shards<Shared, usize>,
    /// The last id that a service port with session affinity was given. An id comes back after 2^31 of them, or after a
    /// restart if no service port in the kernel has it. What is remembered under it of clients of another service port
    /// counts only where it leads to an endpoint of the new one: `Set::StickyEndpoints` has no other under this id.
    last_id: u32,
    /// Service ports with more endpoints than there are slots for, and how many of each have none.
    left_out: BTreeMap<ServicePortName, usize>,
    service_cidrs: Vec<IpNet>,
    /// The node's addresses that serve node ports; empty if all of them do.
    node_port_ips: Vec<IpAddr>,
}

/// The claims to frontends that were contended before or during a change, as they were before it.
type Contended = BTreeMap<Frontend, Vec<ServicePortName>>;

impl DesiredTable {
    /// A table of this program that no Service has anything in.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            units: Shards::default(),
            claims: Shards::default(),
            shared: Shards::default(),
            last_id: 0,
            left_out: BTreeMap::new(),
            service_cidrs: Vec::new(),
            node_port_ips: Vec::new(),
        }
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub fn service_cidrs(&self) -> &[IpNet] {
        &self.service_cidrs
    }

    /// The node's addresses that serve node ports; empty if all of them do.
    pub fn node_port_ips(&self) -> &[IpAddr] {
        &self.node_port_ips
    }

    /// Returns whether that is a change.
    pub fn replace_service_cidrs(&mut self, service_cidrs: Vec<IpNet>) -> bool {
        let is_change = service_cidrs != self.service_cidrs;
        self.service_cidrs = service_cidrs;
        is_change
    }

    /// Makes these the node's addresses that serve node ports; loopback can't in this mode. Returns whether that is a
    /// change, which it is not if all addresses serve them.
    pub fn replace_node_port_ips(&mut self, mut ips: Vec<IpAddr>) -> bool {
        ips.retain(|ip| !ip.is_loopback() && !self.settings.node_ports_everywhere);
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

    /// Makes these the routings of their service ports, and returns the steps that follow from that, and what becomes of
    /// contended frontends. The steps lead from a table that holds the desired state as it was before.
    pub fn replace(&mut self, changes: Vec<Changed>) -> (Steps, Vec<Contention>) {
        // Whatever the change may touch: what is given up and what is asked for.
        let mut affected: BTreeSet<Frontend> = BTreeSet::new();
        let mut shared_before: BTreeMap<Shared, bool> = BTreeMap::new();
        for (name, routing) in &changes {
            let given_up = self.units.get(name).map(|unit| &unit.routing);
            for routing in given_up.into_iter().chain(routing) {
                affected.extend(frontends(routing));
                shared_before.extend(shared(routing).map(|it| (it, self.shared.contains_key(&it))));
            }
        }
        let names = self.concerned(&changes, &affected);
        let mut before = self.elements_of(&affected, &names);
        let contentions = self.accept(changes);
        let mut after = self.elements_of(&affected, &names);
        for (shared, was_there) in shared_before {
            match (was_there, self.shared.contains_key(&shared)) {
                (true, false) => before.push(shared.element()),
                (false, true) => after.push(shared.element()),
                (true, true) | (false, false) => {}
            }
        }
        before.sort_unstable();
        after.sort_unstable();
        let (delete, add) = difference(&before, &after);
        // Both banks have an element for a timeout, or none does: its chains come and go with them.
        let old_chains = timeouts(&delete).into_iter().flat_map(chain_names).collect();
        let chains = timeouts(&add).into_iter().flat_map(learners).collect();
        (Steps { delete, add, chains, old_chains, ..Steps::default() }, contentions)
    }

    /// Those that may get or lose one of these frontends: the ones that change and, of the rest, the first that claims it.
    /// However many claim it after that one, they have it neither before nor after.
    fn concerned(&self, changes: &[Changed], affected: &BTreeSet<Frontend>) -> BTreeSet<ServicePortName> {
        let change: BTreeSet<&ServicePortName> = changes.iter().map(|(name, _)| name).collect();
        let first = |frontend| self.claims.get(frontend)?.iter().find(|name| !change.contains(name));
        change.iter().copied().chain(affected.iter().filter_map(first)).cloned().collect()
    }

    /// The same without looking what that changes in the sets.
    pub fn accept(&mut self, changes: Vec<Changed>) -> Vec<Contention> {
        let mut contended = Contended::new();
        for (name, routing) in changes {
            self.accept_one(name, routing, &mut contended);
        }
        contentions(contended.iter().map(|(frontend, before)| {
            let after = self.claims.get(frontend).map(Vec::as_slice).unwrap_or_default();
            (*frontend, &before[..], after)
        }))
    }

    /// Everything the sets should hold, in order.
    pub fn elements(&self) -> Vec<Element> {
        // What elements are made of is sorted sooner than they are.
        let mut shared: Vec<Shared> = self.shared.iter().map(|(shared, _)| *shared).collect();
        shared.sort_unstable();
        let mut all: Vec<Element> = shared.iter().map(Shared::element).collect();
        let mut claims: Vec<(Frontend, &Vec<ServicePortName>)> =
            self.claims.iter().map(|(frontend, claims)| (*frontend, claims)).collect();
        claims.sort_unstable_by_key(|(frontend, _)| *frontend);
        for (frontend, claims) in claims {
            if let Some(unit) = claims.first().and_then(|owner| self.units.get(owner)) {
                unit.elements_of(&frontend, &mut all);
            }
        }
        self.units.iter().for_each(|(name, unit)| self.sticky_endpoints(name, unit, &mut all));
        // There are few sets, and within each they are nearly in order: by name of protocol instead of by number. The
        // second sort finds little to do.
        all.sort_by_key(|element| element.set);
        all.sort();
        all
    }

    /// The steps from what the kernel holds to the desired state. Where the kernel has ids and slots that serve as well,
    /// they become the desired ones.
    pub fn steps_from(&mut self, held: &Held) -> Steps {
        let timeouts = self.timeouts();
        let new = |replaces| NewTable { program: Program::new(&self.settings, &timeouts), replaces };
        let nothing = TableContent::default();
        let (content, table) = match &held.table {
            HeldTable::Ours(content) => (content, None),
            HeldTable::Absent => (&nothing, Some(new(false))),
            HeldTable::Foreign => (&nothing, Some(new(true))),
        };
        self.adopt_ids(&content.ids);
        let (mut delete, mut add) = (Vec::new(), self.elements());
        if !content.elements.is_empty() {
            (delete, add) = difference(&content.elements, &add);
            if self.keep_seats(&content.elements, &delete) {
                (delete, add) = difference(&content.elements, &self.elements());
            }
        }
        // A new table is made with its chains.
        let missing = timeouts.difference(&content.timeouts).filter(|_| table.is_none());
        let service_cidrs = self.cidr_boundaries();
        let node_port_ips: BTreeSet<IpAddr> = self.node_port_ips.iter().copied().collect();
        Steps {
            generation: held.generation,
            is_full: true,
            unexpected: content.unexpected.clone(),
            chains: missing.copied().flat_map(learners).collect(),
            service_cidrs: (content.service_cidrs != service_cidrs).then_some(service_cidrs),
            node_port_ips: (content.node_port_ips != node_port_ips).then_some(node_port_ips),
            empty: content.unclear.clone(),
            delete,
            add,
            old_chains: content.timeouts.difference(&timeouts).copied().flat_map(chain_names).collect(),
            table,
            has_drifted: false,
        }
    }

    /// Gives service ports the ids they have in the kernel, whose elements these are: what it remembers of clients is kept
    /// by id. New ids are above those. Returns whether any of them changes, and with them [`DesiredTable::elements`].
    pub fn adopt_ids(&mut self, found: &[Element]) -> bool {
        let mut ids: BTreeMap<ServicePortName, u32> = BTreeMap::new();
        let (mut taken, mut highest) = (BTreeSet::new(), 0);
        for element in found {
            let Some(Data::Sticky(sticky)) = element.data else { continue };
            let id = sticky.service_port();
            highest = id.max(highest);
            let owner =
                element.frontend(self.settings.family).and_then(|frontend| self.owner(&frontend)).cloned();
            // A frontend may have gone from one service port to another meanwhile: no two get the same.
            if let Some(owner) = owner.filter(|owner| !ids.contains_key(owner))
                && taken.insert(id)
            {
                ids.insert(owner, id);
            }
        }
        self.last_id = self.last_id.max(highest);
        let sticky = self.units.iter().filter_map(|(name, unit)| Some((name.clone(), unit.id()?)));
        let mut are_others = false;
        for (name, id) in sticky.collect::<BTreeMap<_, _>>() {
            let new = match ids.get(&name) {
                Some(found) => *found,
                None if id > highest => id,
                None => self.new_id(),
            };
            if let Some(unit) = self.units.get(&name).filter(|_| new != id) {
                let unit = unit.with_id(new);
                self.units.insert(name, unit);
                are_others = true;
            }
        }
        are_others
    }

    fn new_id(&mut self) -> u32 {
        self.last_id = self.last_id.wrapping_add(2);
        self.last_id
    }

    /// Nobody asks for anything.
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    /// Where the endpoints of a service port sit; nowhere if there is no such service port.
    pub fn seats(&self, name: &ServicePortName) -> Seats<'_> {
        self.units.get(name).map(Unit::seats).unwrap_or_default()
    }

    /// Service ports with more endpoints than there are slots for, and how many of each have none.
    pub fn left_out(&self) -> &BTreeMap<ServicePortName, usize> {
        &self.left_out
    }

    /// Who has the frontend.
    pub fn owner(&self, frontend: &Frontend) -> Option<&ServicePortName> {
        self.claims.get(frontend)?.first()
    }

    /// The service ports that claim the frontend, in the order of precedence.
    pub fn claims(&self, frontend: &Frontend) -> &[ServicePortName] {
        self.claims.get(frontend).map(Vec::as_slice).unwrap_or_default()
    }

    /// Why the first of several claims counts.
    pub fn precedence(&self, frontend: &Frontend) -> Option<Precedence> {
        let rank = |name| Some(Rank::of(frontend.ip, name, &self.units.get(name)?.routing));
        let [first, second, ..] = self.claims(frontend) else { return None };
        Some(rank(first)?.precedence_over(&rank(second)?))
    }

    /// Whether any service port asks for what several may ask for.
    pub fn shares(&self, shared: &Shared) -> bool {
        self.shared.contains_key(shared)
    }

    /// What the service port that has the frontend puts in.
    pub fn owner_unit(&self, frontend: &Frontend) -> Option<&Unit> {
        self.units.get(self.owner(frontend)?)
    }

    /// The endpoints that clients may stick to, of the service port with this id.
    pub fn sticky_endpoints_of(&self, id: u32, out: &mut Vec<Element>) {
        for (name, unit) in self.units.iter().filter(|(_, unit)| unit.id() == Some(id)) {
            self.sticky_endpoints(name, unit, out);
        }
    }

    /// Adds a service port whose endpoints lie in these slots already.
    pub fn insert(&mut self, name: ServicePortName, routing: Arc<Routing>, slots: Seats<'_>) {
        self.accept_in(name, Some(routing), Some(slots), &mut Contended::new());
    }

    /// Timeouts of session affinity in use, in seconds.
    pub fn timeouts(&self) -> BTreeSet<u32> {
        self.units.iter().filter_map(|(_, unit)| unit.routing.affinity.map(rounded)).collect()
    }

    /// Gives endpoints the slots they have in the kernel, wherever it has something in a slot that differs from what we
    /// want there. Returns whether there was such a slot. All elements come in order.
    fn keep_seats(&mut self, found: &[Element], different: &[Element]) -> bool {
        let different = different.iter().filter_map(Frontend::of_endpoint).map(|(frontend, _, _)| frontend);
        let owners: BTreeSet<_> = different.filter_map(|frontend| self.owner(&frontend).cloned()).collect();
        for owner in &owners {
            let Some(unit) = self.units.get(owner) else { continue };
            let [cluster, local] = unit.seats_in(|set, frontend| {
                (self.owner(frontend) == Some(owner)).then(|| seats(found, set, frontend))?
            });
            let unit = Unit::new(unit.routing.clone(), Seats { cluster: &cluster, local: &local }, unit.id());
            self.units.insert(owner.clone(), unit);
        }
        !owners.is_empty()
    }

    fn elements_of(&self, frontends: &BTreeSet<Frontend>, names: &BTreeSet<ServicePortName>) -> Vec<Element> {
        let mut elements = Vec::new();
        for (name, unit) in names.iter().filter_map(|name| Some((name, self.units.get(name)?))) {
            self.sticky_endpoints(name, unit, &mut elements);
        }
        for frontend in frontends {
            let owner = self.owner(frontend);
            if let Some(unit) = owner.and_then(|owner| self.units.get(owner)) {
                unit.elements_of(frontend, &mut elements);
            }
        }
        elements
    }

    fn sticky_endpoints(&self, name: &ServicePortName, unit: &Unit, out: &mut Vec<Element>) {
        unit.sticky_endpoints(|frontend| self.owner(frontend) == Some(name), out);
    }

    fn accept_one(
        &mut self,
        name: ServicePortName,
        routing: Option<Arc<Routing>>,
        contended: &mut Contended,
    ) {
        self.accept_in(name, routing, None, contended);
    }

    /// The same where endpoints lie in these slots, rather than in those they had.
    fn accept_in(
        &mut self,
        name: ServicePortName,
        routing: Option<Arc<Routing>>,
        slots: Option<Seats<'_>>,
        contended: &mut Contended,
    ) {
        let old = self.units.remove(&name);
        let seats = slots.or(old.as_ref().map(Unit::seats)).unwrap_or_default();
        let id = old.as_ref().and_then(Unit::id);
        let unit = routing.map(|routing| {
            let id = routing.affinity.map(|_| id.unwrap_or_else(|| self.new_id()));
            Unit::new(routing, seats, id)
        });
        let (old, new) = (old.as_ref().map(|unit| &*unit.routing), unit.as_ref().map(|unit| &*unit.routing));
        let claimed = old.map(frontends).unwrap_or_default();
        let asked_for = new.map(frontends).unwrap_or_default();
        // A claim stays where it is if its rank does: many may claim the same frontend.
        let stays = |frontend: &Frontend| {
            claimed.contains(frontend)
                && asked_for.contains(frontend)
                && old.zip(new).is_some_and(|(old, new)| {
                    Rank::of(frontend.ip, &name, old) == Rank::of(frontend.ip, &name, new)
                })
        };
        for frontend in claimed.iter().filter(|frontend| !stays(frontend)) {
            self.give_up(frontend, &name, contended);
        }
        if let Some(routing) = old {
            shared(routing).for_each(|it| self.release(it));
        }
        if let Some(routing) = new {
            for frontend in asked_for.iter().filter(|frontend| !stays(frontend)) {
                self.claim(frontend, &name, routing, contended);
            }
        }
        match unit.as_ref().map_or(0, Unit::left_out) {
            0 => _ = self.left_out.remove(&name),
            left_out => _ = self.left_out.insert(name.clone(), left_out),
        }
        if let Some(unit) = unit {
            shared(&unit.routing).for_each(|it| self.share(it));
            self.units.insert(name, unit);
        }
    }

    fn claim(
        &mut self,
        frontend: &Frontend,
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

    fn give_up(&mut self, frontend: &Frontend, name: &ServicePortName, contended: &mut Contended) {
        let Some(claims) = self.claims.get_mut(frontend) else { return };
        if claims.len() == 1 {
            self.claims.remove(frontend);
            return;
        }
        contended.entry(*frontend).or_insert_with(|| claims.clone());
        claims.retain(|other| other != name);
    }

    fn share(&mut self, shared: Shared) {
        match self.shared.get_mut(&shared) {
            Some(count) => *count += 1,
            None => _ = self.shared.insert(shared, 1),
        }
    }

    fn release(&mut self, shared: Shared) {
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
        Some(Data::Learn(seconds)) => Some(seconds),
        Some(Data::Endpoint(..) | Data::Sticky(_)) | None => None,
    };
    elements.iter().filter_map(seconds).collect()
}

/// The chains of a timeout. What the kernel remembers of clients stays when they go, until it expires: no service port
/// has the id.
fn chain_names(seconds: u32) -> [String; 2] {
    Bank::BOTH.map(|bank| bank.learner(seconds))
}

/// Where ranges begin, and with `true` the first address after each; none for what reaches to the last address there is,
/// and none where one range begins right after another.
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

/// What sits in the slots of a frontend; none if nothing does. The elements come in order.
fn seats(found: &[Element], set: Set, frontend: &Frontend) -> Option<Vec<Endpoint>> {
    let key = frontend.key();
    let start = found.partition_point(|element| (element.set, element.key) < (set, key));
    let its_own = found
        .get(start..)?
        .iter()
        .take_while(|element| element.set == set && element.key.as_bytes().starts_with(key.as_bytes()));
    let slots: BTreeMap<u32, Endpoint> = its_own
        .filter_map(|element| Frontend::of_endpoint(element).map(|(_, slot, endpoint)| (slot, endpoint)))
        .collect();
    (!slots.is_empty()).then(|| slots.into_values().collect())
}

/// What is only in the first and what is only in the second; all in order.
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
