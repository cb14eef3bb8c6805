//! What the elements of the nftables sets serve. Elements have no names of service ports.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;

use model::address::Family;
use model::names::ServicePortName;

use super::{
    KernelComparison, RefusalReason, Served, ServedEndpoint, ServedFrontend, ServedHash, ServedSlots, shares,
};
use crate::difference::{Difference, DifferenceKind, KernelObject};
use crate::nftables::desired::DesiredTable;
use crate::nftables::elements::FrontendKey;
use crate::nftables::frontend_chains::FrontendChain;
use crate::nftables::sets::{Clients, Data, Element, ListOfFrontend, Set, show_range};

impl KernelComparison {
    /// Compares the desired elements with the actual ones, given their differences.
    pub fn of_elements(
        table: &DesiredTable,
        elements: &[Element],
        differences: Vec<Difference>,
        objects: usize,
    ) -> Self {
        let (mut desired, mut actual) = Served::of_sides(elements, &differences, table.settings().family);
        desired.claim(table);
        actual.name_after(&desired);
        Self { objects, differences, desired, actual }
    }
}

impl Served {
    /// What the desired elements serve, and what the actual ones do, given their differences. Without names.
    pub(super) fn of_sides(elements: &[Element], differences: &[Difference], family: Family) -> (Self, Self) {
        let of_kind = |kind| {
            let of_kind = differences.iter().filter(move |difference| difference.kind == kind);
            of_kind.filter_map(|difference| match &difference.object {
                KernelObject::Element(_, element) => Some(element),
                KernelObject::Chain(_)
                | KernelObject::Other(..)
                | KernelObject::SavedChain { .. }
                | KernelObject::SavedRule { .. }
                | KernelObject::Virtual(..)
                | KernelObject::Real(..)
                | KernelObject::Bound(_) => None,
            })
        };
        let missing: HashSet<&Element> = of_kind(DifferenceKind::Missing).collect();
        let held = elements.iter().filter(|element| !missing.contains(element));
        let actual = Self::from_elements(held.chain(of_kind(DifferenceKind::Unexpected)), family);
        (Self::from_elements(elements, family), actual)
    }

    pub fn from_elements<'a>(elements: impl IntoIterator<Item = &'a Element>, family: Family) -> Self {
        let mut served = Self::default();
        let mut slots: BTreeMap<u32, Vec<(u32, ServedEndpoint)>> = BTreeMap::new();
        let mut uses: Vec<(FrontendKey, Clients, ListOfFrontend)> = Vec::new();
        for element in elements {
            match (element.set, element.data) {
                (Set::Endpoints, _) => {
                    if let Some((list, slot, endpoint)) = element.slot() {
                        slots.entry(list).or_default().push((slot, endpoint));
                    }
                }
                (Set::Lists(_, clients), Some(Data::List(list))) => {
                    uses.extend(element.frontend(family).map(|frontend| (frontend, clients, list)));
                }
                _ => _ = served.add_element(element, family),
            }
        }
        // All frontends of a list share its slots, of which there are many if clients are hashed.
        let sorted = slots.into_iter().map(|(list, mut slots)| {
            slots.sort_unstable();
            (list, slots.into())
        });
        let slots: BTreeMap<u32, ServedSlots> = sorted.collect();
        for (frontend, clients, list) in uses {
            let slots = slots.get(&list.list).filter(|_| list.draw.is_some());
            served.use_list(frontend, clients, list, &slots.cloned().unwrap_or_default());
        }
        served
    }

    fn use_list(
        &mut self,
        frontend: FrontendKey,
        clients: Clients,
        list: ListOfFrontend,
        slots: &ServedSlots,
    ) {
        self.lists.entry(list.list).or_insert(frontend);
        let service = self.frontends.entry(frontend).or_default();
        if matches!(list.first, FrontendChain::ExternalLocal(_)) {
            service.inside.get_or_insert_default();
        }
        let endpoints = slots.iter().map(|(_, endpoint)| *endpoint).collect();
        match clients {
            Clients::All => {
                service.endpoints = endpoints;
                service.shares = shares(&counted(slots, list.draw));
                service.hash = hash(slots, list.draw);
            }
            Clients::Inside => service.inside = Some(endpoints),
        }
    }

    /// Adds the names of the service ports that claim the frontends.
    pub(super) fn claim(&mut self, table: &DesiredTable) {
        for (frontend, service) in &mut self.frontends {
            service.claims = table.claims(frontend).to_vec();
            service.precedence = table.precedence(frontend);
        }
    }

    fn add_element(&mut self, element: &Element, family: Family) -> Option<()> {
        if element.set == Set::Hairpin {
            self.hairpins.insert(element.hairpin(family)?);
            return None;
        }
        let frontend = element.frontend(family)?;
        let service = self.frontends.entry(frontend).or_default();
        match element.set {
            Set::ExternalLocal(_) => _ = service.inside.get_or_insert_default(),
            Set::Sticky(_) => {
                let Data::Sticky(sticky) = element.data? else { return None };
                service.affinity = Some(sticky.seconds);
            }
            Set::NoEndpoints(_) => service.refusal = Some(RefusalReason::NoEndpoints),
            Set::NoLocalEndpoints(_) => service.refusal = Some(RefusalReason::NoLocalEndpoints),
            Set::Firewalled => _ = service.sources.get_or_insert_default(),
            Set::AllowedSources => {
                let range = show_range(element.range(family)?);
                service.sources.get_or_insert_default().insert(range);
            }
            Set::Frontends(_) => service.forwards = true,
            Set::ClusterIps
            | Set::ServiceCidrs
            | Set::NodePortIps
            | Set::Lists(..)
            | Set::FirstChains(_)
            | Set::DrawChains(..)
            | Set::Endpoints
            | Set::StickyEndpoints
            | Set::Affinity
            | Set::Timeouts(_)
            | Set::BoundIps
            | Set::HealthCheckPorts
            | Set::Hairpin => {}
        }
        None
    }

    /// Gives frontends without a name that of their service port in `desired`. A frontend that is not desired belonged to a
    /// service port that gets another frontend instead: the only one with the same endpoints, or else the only one at the same
    /// address.
    pub(super) fn name_after(&mut self, desired: &Self) {
        let is_new = |frontend: &&FrontendKey| !self.frontends.contains_key(frontend);
        let gained: BTreeSet<&ServicePortName> =
            desired.frontends.keys().filter(is_new).filter_map(|frontend| desired.owner(frontend)).collect();
        let candidates: Vec<(&FrontendKey, &ServedFrontend, &ServicePortName)> = desired
            .frontends
            .iter()
            .filter_map(|(frontend, service)| Some((frontend, service, service.claims.first()?)))
            .filter(|(_, _, owner)| gained.contains(owner))
            .collect();
        for (frontend, service) in self.frontends.iter_mut().filter(|(_, it)| it.claims.is_empty()) {
            let only = |matches: &dyn Fn(&FrontendKey, &ServedFrontend) -> bool| -> Option<&ServicePortName> {
                let of_protocol = candidates.iter().filter(|(it, ..)| it.protocol == frontend.protocol);
                let owners = of_protocol.filter(|(at, it, _)| matches(at, it)).map(|(_, _, owner)| *owner);
                let owners: BTreeSet<&ServicePortName> = owners.collect();
                owners.first().filter(|_| owners.len() == 1).copied()
            };
            let is_at = |ip: IpAddr| move |at: &FrontendKey, _: &ServedFrontend| at.ip == Some(ip);
            let owner = desired
                .owner(frontend)
                .or_else(|| only(&|_, it| it.endpoints == service.endpoints))
                .or_else(|| only(&is_at(frontend.ip?)));
            service.claims.extend(owner.cloned());
        }
    }
}

/// The number of slots of each endpoint; one each if clients are hashed and the numbers differ by no more than they must.
fn counted(slots: &[(u32, ServedEndpoint)], draw: Option<FrontendChain>) -> BTreeMap<ServedEndpoint, f64> {
    let mut counts: BTreeMap<ServedEndpoint, f64> = BTreeMap::new();
    slots.iter().for_each(|(_, endpoint)| *counts.entry(*endpoint).or_default() += 1.0);
    let most = counts.values().copied().fold(0.0, f64::max);
    if matches!(draw, Some(FrontendChain::Hash(..))) && counts.values().all(|count| most - count <= 1.0) {
        counts.values_mut().for_each(|count| *count = 1.0);
    }
    counts
}

fn hash(slots: &ServedSlots, draw: Option<FrontendChain>) -> Option<ServedHash> {
    let Some(FrontendChain::Hash(_, _, of)) = draw else { return None };
    Some(ServedHash { of, slots: slots.clone() })
}
