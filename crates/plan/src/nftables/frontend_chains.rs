//! The chains that the frontends of service ports lead to. [`Set::Lists`] has numbers of chains, and a few small maps have the
//! chain of each number: a map that leads to chains itself must stay small, since the kernel checks all chains that can be
//! reached whenever an element is added.

use std::borrow::Cow;

use model::hashing::ClientHash;

use crate::nftables::sets::{Clients, Data, Element, ElementKey, LookupBy, Set};
use crate::nftables::slots::{HASH_RANGE, SlotRange, slot_ranges};

/// The position of the kind in the number of a chain.
const KIND: u32 = 20;

/// A chain that depends on the frontend of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrontendChain {
    /// For a cluster IP without session affinity. It translates to a random slot of this range.
    ClusterIp(SlotRange),
    /// For a cluster IP with session affinity, or whose clients are hashed.
    StickyClusterIp,
    External(LookupBy),
    /// For an external frontend whose clients keep their address (external traffic policy Local).
    ExternalLocal(LookupBy),
    /// Translates to a random slot of this range, and returns if there is none.
    Draw(LookupBy, Clients, SlotRange),
    /// Translates to the slot that the client is hashed to, and returns if there is none.
    Hash(LookupBy, Clients, ClientHash),
}

impl FrontendChain {
    /// All of them; those that hash only if the kernel can.
    pub fn all(can_hash: bool) -> impl Iterator<Item = Self> {
        let each = LookupBy::BOTH.into_iter().flat_map(|by| Clients::BOTH.map(|clients| (by, clients)));
        let draws = each
            .clone()
            .flat_map(|(by, clients)| slot_ranges().map(move |range| Self::Draw(by, clients, range)));
        let hashes = each
            .filter(move |_| can_hash)
            .flat_map(|(by, clients)| ClientHash::BOTH.map(|hash| Self::Hash(by, clients, hash)));
        [Self::StickyClusterIp]
            .into_iter()
            .chain(LookupBy::BOTH.map(Self::External))
            .chain(LookupBy::BOTH.map(Self::ExternalLocal))
            .chain(slot_ranges().map(Self::ClusterIp))
            .chain(draws)
            .chain(hashes)
    }

    /// The kind above bit 20, and the size of the slot range. Never zero.
    pub fn number(self) -> u32 {
        let (kind, size) = match self {
            Self::Draw(LookupBy::Address, Clients::All, range) => (1, range.count),
            Self::Draw(LookupBy::Address, Clients::Inside, range) => (2, range.count),
            Self::Draw(LookupBy::NodePort, Clients::All, range) => (3, range.count),
            Self::Draw(LookupBy::NodePort, Clients::Inside, range) => (4, range.count),
            Self::ClusterIp(range) => (5, range.count),
            Self::StickyClusterIp => (6, 0),
            Self::External(LookupBy::Address) => (7, 0),
            Self::External(LookupBy::NodePort) => (8, 0),
            Self::ExternalLocal(LookupBy::Address) => (9, 0),
            Self::ExternalLocal(LookupBy::NodePort) => (10, 0),
            // The kinds from 11 to 18, in the order of `all`.
            Self::Hash(by, clients, hash) => {
                (11 + (by as u32) * 4 + (clients as u32) * 2 + hash as u32, HASH_RANGE.count)
            }
        };
        kind << KIND | size
    }

    pub fn from_number(number: u32) -> Option<Self> {
        let size = number & !(u32::MAX << KIND);
        let range = || slot_ranges().find(|range| range.count == size);
        Some(match number >> KIND {
            1 => Self::Draw(LookupBy::Address, Clients::All, range()?),
            2 => Self::Draw(LookupBy::Address, Clients::Inside, range()?),
            3 => Self::Draw(LookupBy::NodePort, Clients::All, range()?),
            4 => Self::Draw(LookupBy::NodePort, Clients::Inside, range()?),
            5 => Self::ClusterIp(range()?),
            6 if size == 0 => Self::StickyClusterIp,
            7 if size == 0 => Self::External(LookupBy::Address),
            8 if size == 0 => Self::External(LookupBy::NodePort),
            9 if size == 0 => Self::ExternalLocal(LookupBy::Address),
            10 if size == 0 => Self::ExternalLocal(LookupBy::NodePort),
            11..=18 => return Self::all(true).find(|chain| chain.number() == number),
            _ => return None,
        })
    }

    /// The name of the chain.
    pub fn name(self) -> Cow<'static, str> {
        match self {
            Self::ClusterIp(SlotRange { count, .. }) => format!("cluster-ip-{count}").into(),
            Self::StickyClusterIp => "cluster-ip".into(),
            Self::External(LookupBy::Address) => "external".into(),
            Self::External(LookupBy::NodePort) => "nodeport-external".into(),
            Self::ExternalLocal(LookupBy::Address) => "external-local".into(),
            Self::ExternalLocal(LookupBy::NodePort) => "nodeport-external-local".into(),
            Self::Draw(by, clients, SlotRange { count, .. }) => {
                let prefix = match (by, clients) {
                    (LookupBy::Address, Clients::All) => "draw",
                    (LookupBy::Address, Clients::Inside) => "draw-inside",
                    (LookupBy::NodePort, Clients::All) => "nodeport-draw",
                    (LookupBy::NodePort, Clients::Inside) => "nodeport-draw-inside",
                };
                format!("{prefix}-{count}").into()
            }
            Self::Hash(by, clients, hash) => {
                let prefix = match by {
                    LookupBy::Address => "",
                    LookupBy::NodePort => "nodeport-",
                };
                let inside = match clients {
                    Clients::All => "",
                    Clients::Inside => "-inside",
                };
                let what = match hash {
                    ClientHash::Address => "ip",
                    ClientHash::AddressAndPort => "ip-and-port",
                };
                format!("{prefix}hash{inside}-{what}").into()
            }
        }
    }

    /// The map that leads to the chain.
    pub fn set(self) -> Set {
        match self {
            Self::ClusterIp(_) | Self::StickyClusterIp => Set::FirstChains(LookupBy::Address),
            Self::External(by) | Self::ExternalLocal(by) => Set::FirstChains(by),
            Self::Draw(by, clients, _) | Self::Hash(by, clients, _) => Set::DrawChains(by, clients),
        }
    }

    /// The element that leads to the chain.
    pub fn element(self) -> Element {
        let key = ElementKey::EMPTY.number(self.number());
        Element { set: self.set(), key, data: Some(Data::Chain(self)) }
    }

    /// Whether packets return from the chain, rather than take no other path.
    pub fn returns(self) -> bool {
        matches!(self, Self::Draw(..) | Self::Hash(..))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_chain_has_a_number_and_a_name_of_its_own() {
        let all: Vec<FrontendChain> = FrontendChain::all(true).collect();
        assert_eq!(FrontendChain::all(false).count() + 8, all.len());
        let numbers: BTreeSet<u32> = all.iter().map(|target| target.number()).collect();
        let names: BTreeSet<_> = all.iter().map(|target| target.name()).collect();
        assert_eq!((numbers.len(), names.len()), (all.len(), all.len()));
        assert!(!numbers.contains(&0));
        for target in all {
            assert_eq!(FrontendChain::from_number(target.number()), Some(target));
        }
        for number in [0, 1, 0x0010_0000, 0x0010_0011, 0x0060_0001, 0x00b0_0000, 0x0130_3ffd, u32::MAX] {
            assert_eq!(FrontendChain::from_number(number), None, "{number:#x}");
        }
    }
}
