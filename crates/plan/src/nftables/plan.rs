//! What all service ports together want in the sets, and the steps from one state of that to the next.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use foldhash::fast::RandomState;
use model::names::{Port, ServicePortName};
use model::routing::{Endpoint, Routing};

use crate::nftables::elements::{Frontend, Seats, Unit};
use crate::nftables::sets::{Element, Set};

/// The wanted content of all sets, kept by service port.
#[derive(Debug, Default)]
pub struct Plan {
    units: HashMap<ServicePortName, Unit, RandomState>,
    /// Who asks for a frontend, in ascending order: the first one gets it.
    claims: HashMap<Frontend, Vec<ServicePortName>, RandomState>,
    /// How many service ports want an element that several may want.
    shared: HashMap<Element, usize, RandomState>,
    /// Slots as they were found in the kernel, for service ports that have no unit yet.
    found: HashMap<(Set, Frontend), Vec<Endpoint>, RandomState>,
}

/// What to change in the sets: deletions first, for a key whose datum changes must leave before it can come back.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Steps {
    pub delete: Vec<Element>,
    pub add: Vec<Element>,
    /// Frontends that several service ports ask for, of those that changed. The first one named has it.
    pub contested: Vec<(Frontend, Vec<ServicePortName>)>,
}

impl Steps {
    pub fn is_empty(&self) -> bool {
        self.delete.is_empty() && self.add.is_empty()
    }

    /// Seconds of affinity that the steps need sets for.
    pub fn timeouts(&self) -> BTreeSet<u32> {
        let sets = self.add.iter().map(|element| element.set);
        sets.filter_map(|set| if let Set::Sticky(_, seconds) = set { Some(seconds) } else { None }).collect()
    }
}

impl Plan {
    /// A plan for a kernel that already holds these elements: endpoints will keep the slots they have there.
    pub fn adopting<'a>(elements: impl Iterator<Item = &'a Element>) -> Self {
        let mut slots: HashMap<(Set, Frontend), BTreeMap<u32, Endpoint>, RandomState> = HashMap::default();
        for element in elements {
            if let Some((frontend, slot, endpoint)) = Frontend::of_endpoint(element) {
                slots.entry((element.set, frontend)).or_default().insert(slot, endpoint);
            }
        }
        let found = slots.into_iter().map(|(key, slots)| (key, slots.into_values().collect())).collect();
        Self { found, ..Self::default() }
    }

    /// Makes these the routings of their service ports, and returns what that changes.
    pub fn replace(&mut self, mut changes: Vec<(ServicePortName, Option<Arc<Routing>>)>) -> Steps {
        // In order of names, so that slots found in the kernel go to whom they belonged.
        changes.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let changes: Vec<_> = changes
            .into_iter()
            .map(|(name, routing)| {
                let unit = routing.map(|routing| self.render(&name, routing));
                (name, unit)
            })
            .collect();
        let affected = self.affected(&changes);

        let mut before = self.elements_of(&affected);
        let mut shared = SharedBefore::default();
        for (name, unit) in changes {
            self.replace_unit(name, unit, &mut shared);
        }
        let mut after = self.elements_of(&affected);
        for (element, was_there) in shared.0 {
            match (was_there, self.shared.contains_key(&element)) {
                (true, false) => before.push(element),
                (false, true) => after.push(element),
                (true, true) | (false, false) => {}
            }
        }
        let (delete, add) = difference(before, after);
        let contested = affected.into_iter().filter_map(|frontend| {
            let claims = self.claims.get(&frontend).filter(|claims| claims.len() > 1)?;
            Some((frontend, claims.clone()))
        });
        let contested = contested.collect();
        Steps { delete, add, contested }
    }

    /// Everything the sets should hold.
    pub fn elements(&self) -> Vec<Element> {
        let mut all: Vec<Element> = self.shared.keys().copied().collect();
        for (frontend, claims) in &self.claims {
            if let Some(unit) = claims.first().and_then(|owner| self.units.get(owner)) {
                unit.elements_of(frontend, &mut all);
            }
        }
        all
    }

    /// The steps from what is in the kernel to what should be there.
    pub fn steps_from(&self, found: Vec<Element>) -> Steps {
        let (delete, add) = difference(found, self.elements());
        Steps { delete, add, contested: Vec::new() }
    }

    /// Whether no service port wants anything.
    pub fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// Whether clients of a frontend may stick to that endpoint.
    pub fn sticks(&self, frontend: &Frontend, endpoint: (IpAddr, Port)) -> bool {
        let unit = self.owner(frontend).and_then(|owner| self.units.get(owner));
        unit.is_some_and(|unit| unit.sticks(frontend, endpoint))
    }

    /// Who has the frontend.
    pub fn owner(&self, frontend: &Frontend) -> Option<&ServicePortName> {
        self.claims.get(frontend)?.first()
    }

    fn render(&mut self, name: &ServicePortName, routing: Arc<Routing>) -> Unit {
        if let Some(unit) = self.units.get(name) {
            return Unit::new(routing, unit.seats());
        }
        if self.found.is_empty() {
            return Unit::new(routing, Seats::default());
        }
        let unit = Unit::new(routing.clone(), Seats::default());
        let [cluster, local] = unit.seats_in(|set, frontend| self.found.remove(&(set, *frontend)));
        Unit::new(routing, Seats { cluster: &cluster, local: &local })
    }

    /// The frontends whose elements a change may touch: those given up and those asked for.
    fn affected(&self, changes: &[(ServicePortName, Option<Unit>)]) -> BTreeSet<Frontend> {
        let given_up = changes.iter().filter_map(|(name, _)| self.units.get(name));
        let asked_for = changes.iter().filter_map(|(_, unit)| unit.as_ref());
        given_up.chain(asked_for).flat_map(Unit::frontends).collect()
    }

    fn elements_of(&self, frontends: &BTreeSet<Frontend>) -> Vec<Element> {
        let mut elements = Vec::new();
        for frontend in frontends {
            let owner = self.owner(frontend);
            if let Some(unit) = owner.and_then(|owner| self.units.get(owner)) {
                unit.elements_of(frontend, &mut elements);
            }
        }
        elements
    }

    fn replace_unit(&mut self, name: ServicePortName, unit: Option<Unit>, shared: &mut SharedBefore) {
        let mut elements = Vec::new();
        if let Some(old) = self.units.remove(&name) {
            for frontend in old.frontends() {
                self.give_up(frontend, &name);
            }
            old.shared_elements(&mut elements);
            for element in elements.drain(..) {
                shared.note(element, &self.shared);
                self.release(element);
            }
        }
        let Some(unit) = unit else { return };
        for frontend in unit.frontends() {
            let claims = self.claims.entry(frontend).or_default();
            let at = claims.partition_point(|other| *other < name);
            claims.insert(at, name.clone());
        }
        unit.shared_elements(&mut elements);
        for element in elements {
            shared.note(element, &self.shared);
            *self.shared.entry(element).or_default() += 1;
        }
        self.units.insert(name, unit);
    }

    fn give_up(&mut self, frontend: Frontend, name: &ServicePortName) {
        if let Some(claims) = self.claims.get_mut(&frontend) {
            claims.retain(|other| other != name);
            if claims.is_empty() {
                self.claims.remove(&frontend);
            }
        }
    }

    fn release(&mut self, element: Element) {
        if let Some(count) = self.shared.get_mut(&element) {
            *count -= 1;
            if *count == 0 {
                self.shared.remove(&element);
            }
        }
    }
}

/// Which shared elements were there before a change touched them.
#[derive(Debug, Default)]
struct SharedBefore(BTreeMap<Element, bool>);

impl SharedBefore {
    fn note(&mut self, element: Element, shared: &HashMap<Element, usize, RandomState>) {
        self.0.entry(element).or_insert_with(|| shared.contains_key(&element));
    }
}

/// What is only in the first and what is only in the second, each in order.
fn difference(mut before: Vec<Element>, mut after: Vec<Element>) -> (Vec<Element>, Vec<Element>) {
    before.sort_unstable();
    after.sort_unstable();
    let (mut delete, mut add) = (Vec::new(), Vec::new());
    let (mut old, mut new) = (before.into_iter().peekable(), after.into_iter().peekable());
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
mod tests;
