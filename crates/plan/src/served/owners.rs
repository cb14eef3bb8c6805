//! Finds the service port that an object of the kernel belongs to.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::address::Family;
use model::names::{Protocol, ServicePortName};

use super::saved_rules::service_port;
use super::{Served, ServedEndpoint};
use crate::difference::KernelObject;
use crate::iptables::saved_rule::SavedRule;
use crate::ipvs::servers::VirtualAddress;
use crate::nftables::elements::FrontendKey;
use crate::nftables::sets::{Data, Element, LookupBy, Set, address};

/// The owners of objects. An object that is both desired and actual belongs to its desired service port; one that several share
/// belongs to the first one by name.
#[derive(Debug)]
pub(super) struct Owners<'a> {
    /// The desired one, then the actual one.
    served: [&'a Served; 2],
    names: BTreeSet<&'a ServicePortName>,
    ips: Index<'a, IpAddr>,
    endpoints: Index<'a, (Protocol, ServedEndpoint)>,
    timeouts: Index<'a, u32>,
}

/// The position in [`Owners::served`], and the name.
type Index<'a, ElementKey> = BTreeMap<ElementKey, (usize, &'a ServicePortName)>;

impl<'a> Owners<'a> {
    pub fn new(desired: &'a Served, actual: &'a Served) -> Self {
        let (mut ips, mut endpoints, mut timeouts) = (Index::new(), Index::new(), Index::new());
        let served = [desired, actual];
        for (position, served) in served.iter().enumerate() {
            for (frontend, service) in &served.frontends {
                let Some(name) = service.claims.first() else { continue };
                let owner = (position, name);
                frontend.ip.into_iter().for_each(|ip| note(&mut ips, ip, owner));
                service.affinity.into_iter().for_each(|seconds| note(&mut timeouts, seconds, owner));
                let protocol = frontend.protocol;
                service.all_endpoints().for_each(|it| note(&mut endpoints, (protocol, it), owner));
            }
        }
        let names = served.iter().flat_map(|served| served.names()).collect();
        Self { served, names, ips, endpoints, timeouts }
    }

    pub fn of(&self, object: &KernelObject) -> Option<ServicePortName> {
        match object {
            KernelObject::Element(family, element) => self.of_element(element, *family).cloned(),
            KernelObject::Chain(name) => {
                let seconds = LookupBy::BOTH.into_iter().find_map(|by| by.affinity_chain_seconds(name))?;
                self.timeouts.get(&seconds).map(|(_, owner)| (*owner).clone())
            }
            KernelObject::SavedChain { chain, .. } => self.of_chain(chain).cloned(),
            KernelObject::SavedRule { chain, rule, .. } => {
                self.of_chain(chain).cloned().or_else(|| self.of_rule(&SavedRule::parse(rule)))
            }
            KernelObject::Virtual(at, _) | KernelObject::Real(at, ..) => self.of_virtual(at).cloned(),
            KernelObject::Bound(ip) => self.ips.get(ip).map(|(_, owner)| (*owner).clone()),
            KernelObject::Other(..) => None,
        }
    }

    fn of_virtual(&self, at: &VirtualAddress) -> Option<&'a ServicePortName> {
        let VirtualAddress { ip, protocol, port } = *at;
        let frontends = [Some(ip), None].map(|ip| FrontendKey { ip, protocol, port });
        frontends.iter().find_map(|frontend| self.served.iter().find_map(|served| served.owner(frontend)))
    }

    fn of_element(&self, element: &Element, family: Family) -> Option<&'a ServicePortName> {
        let shared = match (element.set, element.data) {
            (Set::ClusterIps | Set::BoundIps, _) => self.ips.get(&address(element.key.as_bytes())?),
            (Set::Hairpin, _) => self.endpoints.get(&element.hairpin(family)?),
            (_, Some(Data::AffinityChain(seconds))) => self.timeouts.get(&seconds),
            _ => None,
        };
        if let Some((_, owner)) = shared {
            return Some(owner);
        }
        let frontend = match element.list() {
            Some(list) => *self.served.iter().find_map(|served| served.lists.get(&list))?,
            None => element.frontend(family)?,
        };
        self.served.iter().find_map(|served| served.owner(&frontend))
    }

    fn of_chain(&self, chain: &str) -> Option<&'a ServicePortName> {
        self.served.iter().find_map(|served| served.chains.get(chain))
    }

    /// The rule of a health check node port matches TCP, whatever the service port does.
    fn of_rule(&self, rule: &SavedRule<'_>) -> Option<ServicePortName> {
        let name = service_port(rule)?;
        let of_protocol = |protocol| ServicePortName { protocol, ..name.clone() };
        let known = [name.protocol, Protocol::Tcp, Protocol::Udp, Protocol::Sctp].map(of_protocol);
        known.into_iter().find(|name| self.names.contains(name)).or(Some(name))
    }
}

fn note<'a, ElementKey: Ord>(
    index: &mut Index<'a, ElementKey>,
    key: ElementKey,
    owner: (usize, &'a ServicePortName),
) {
    index.entry(key).and_modify(|first| *first = owner.min(*first)).or_insert(owner);
}
