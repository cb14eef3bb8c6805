//! Looks up single elements of the desired sets.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use foldhash::fast::RandomState;
use model::address::Family;

use crate::nftables::desired::DesiredTable;
use crate::nftables::elements::{ElementUnit, FrontendKey, SharedElement};
use crate::nftables::frontend_chains::FrontendChain;
use crate::nftables::interpreter::{Sets, Slots};
use crate::nftables::sets::{Element, ElementKey, LookupBy, Set, Type, address};

/// The sets of the desired table. [`Set::Affinity`] is empty.
#[derive(Debug)]
pub struct DesiredSets<'a> {
    table: &'a DesiredTable,
    family: Family,
    /// The elements of each frontend that was looked up, sorted.
    frontends: HashMap<FrontendKey, Arc<[Element]>, RandomState>,
    slots: HashMap<u32, Slots, RandomState>,
}

impl<'a> DesiredSets<'a> {
    pub fn new(table: &'a DesiredTable) -> Self {
        let (frontends, slots) = Default::default();
        Self { table, family: table.settings().family, frontends, slots }
    }

    fn lookup(&mut self, set: Set, key: ElementKey) -> Option<Element> {
        let bytes = key.as_bytes();
        let is_there = match set {
            Set::ClusterIps => self.table.shares(&SharedElement::ClusterIp(address(bytes)?)),
            Set::ServiceCidrs => {
                let ip = address(bytes)?;
                self.table.service_cidrs().iter().any(|cidr| cidr.contains(&ip))
            }
            Set::NodePortIps => self.table.node_port_ips().contains(&address(bytes)?),
            Set::Hairpin => self.table.shares(&self.hairpin(key)?),
            Set::BoundIps => self.table.shares(&SharedElement::BoundIp(address(bytes)?)),
            Set::HealthCheckPorts => {
                let (check, _) = FrontendKey::from_key(bytes, LookupBy::NodePort, self.family)?;
                let port = SharedElement::HealthCheckPort(check.port);
                return Some(port.element()).filter(|element| element.key == key && self.table.shares(&port));
            }
            Set::Affinity => false,
            Set::Timeouts(by) => {
                let seconds = SharedElement::Timeout(by, u32::from_ne_bytes(bytes.try_into().ok()?));
                return self.table.shares(&seconds).then(|| seconds.element());
            }
            Set::FirstChains(_) | Set::DrawChains(..) => {
                let target = FrontendChain::from_number(u32::from_ne_bytes(bytes.try_into().ok()?))?;
                return Some(target.element()).filter(|element| element.set == set);
            }
            Set::Endpoints | Set::StickyEndpoints => {
                let list = Element::new(set, key).list()?;
                let elements = self.table.list_elements_of(list);
                return elements.into_iter().find(|element| (element.set, element.key) == (set, key));
            }
            Set::AllowedSources => {
                let (frontend, source) = FrontendKey::from_key(bytes, LookupBy::Address, self.family)?;
                let (elements, source) = (self.elements(frontend), address(source)?);
                let admits = |element: &&Element| {
                    element.range(self.family).is_some_and(|(first, last)| first <= source && source <= last)
                };
                return elements.iter().find(admits).copied();
            }
            Set::Frontends(by)
            | Set::ExternalLocal(by)
            | Set::Lists(by, _)
            | Set::Sticky(by)
            | Set::NoEndpoints(by)
            | Set::NoLocalEndpoints(by) => return self.of_frontend(set, by, key),
            Set::Firewalled => return self.of_frontend(set, LookupBy::Address, key),
        };
        is_there.then(|| Element::new(set, key))
    }

    fn hairpin(&self, key: ElementKey) -> Option<SharedElement> {
        let length = Type::Address.length(self.family);
        let (source, rest) = key.as_bytes().split_at_checked(length)?;
        let (destination, _) = FrontendKey::from_key(rest, LookupBy::Address, self.family)?;
        let ip = destination.ip.filter(|ip| address(source) == Some(*ip))?;
        Some(SharedElement::Hairpin(ip, destination.protocol, destination.port))
    }

    fn of_frontend(&mut self, set: Set, by: LookupBy, key: ElementKey) -> Option<Element> {
        let (frontend, _) = FrontendKey::from_key(key.as_bytes(), by, self.family)?;
        let elements = self.elements(frontend);
        let at = elements.binary_search_by_key(&(set, key), |element| (element.set, element.key)).ok()?;
        elements.get(at).copied()
    }

    fn elements(&mut self, frontend: FrontendKey) -> Arc<[Element]> {
        let unit = || self.table.owner_unit(&frontend);
        let render = |unit: &ElementUnit| {
            let mut elements = Vec::new();
            unit.elements_of(&frontend, &mut elements);
            elements.sort_unstable();
            elements.into()
        };
        self.frontends.entry(frontend).or_insert_with(|| unit().map(render).unwrap_or_default()).clone()
    }
}

impl Sets for DesiredSets<'_> {
    type Error = Infallible;

    fn find(&mut self, set: Set, key: ElementKey) -> Result<Option<Element>, Infallible> {
        Ok(self.lookup(set, key))
    }

    fn slots(&mut self, list: u32) -> Result<Slots, Infallible> {
        let read = || {
            let elements = self.table.list_elements_of(list);
            let slots = elements.iter().filter_map(Element::slot).filter(|(of, ..)| *of == list);
            let mut slots: Vec<(u32, SocketAddr)> =
                slots.map(|(_, slot, (ip, port))| (slot, SocketAddr::new(ip, port.get()))).collect();
            slots.sort_unstable();
            slots.into()
        };
        Ok(self.slots.entry(list).or_insert_with(read).clone())
    }
}
