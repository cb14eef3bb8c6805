//! Reads the new connections that elements of our table have counted, over a socket of its own, whichever process owns the
//! table. In the ipvs mode, IPVS counts those of endpoints.

use std::cmp::Reverse;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use model::address::Family;
use model::names::{Port, ServicePortName};
use model::weights::Weight;
use netlink::nftables::NftablesSocket;
use plan::nftables::desired::DesiredTable;
use plan::nftables::elements::FrontendKey;
use plan::nftables::sets::{Balancer, EndpointList, LookupBy};

use super::read::{CountedSlot, Reader};
use crate::ipvs::endpoint_connections;

/// How long to retry. A large set takes long to list, and any change of any table of the node interrupts that; meanwhile a client
/// waits for the answer.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// Which service port has which frontend. `None` in a mode without counters, and before the worker has a backend.
#[derive(Debug, Default)]
pub struct CounterOwners(Option<DesiredTable>);

/// New connections that the kernel has counted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Connections {
    pub service: ServicePortName,
    /// `None` for the sum over all endpoints of the frontend.
    pub endpoint: Option<(IpAddr, Port)>,
    pub counter: CounterOf,
    pub count: u64,
    /// The weight of the endpoint, if those of its service port differ.
    pub weight: Option<Weight>,
}

/// What a counter belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CounterOf {
    Frontend(FrontendKey),
    /// A slot of an endpoint list, which all frontends of its service port may use.
    Slot {
        list: u32,
        slot: u32,
    },
}

impl From<DesiredTable> for CounterOwners {
    fn from(desired: DesiredTable) -> Self {
        Self(Some(desired))
    }
}

/// New connections by frontend and by endpoint since their elements were added, in the network namespace of the calling thread.
/// Frontends that are not in `owners` were added or deleted a moment ago, and are left out.
pub fn connections(family: Family, owners: &CounterOwners) -> io::Result<Vec<Connections>> {
    let Some(owners) = owners.0.as_ref().filter(|desired| !desired.is_empty()) else { return Ok(Vec::new()) };
    let mut socket = NftablesSocket::open()?.retrying_for(READ_TIMEOUT);
    let mut reader = Reader { family, socket: &mut socket, max_listed: 0 };
    let mut all = Vec::new();
    for by in LookupBy::BOTH {
        let counted = match reader.counted_frontends(by) {
            // No sync has created the table yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            counted => counted?,
        };
        all.extend(counted.into_iter().filter_map(|(frontend, count)| {
            let service = owners.owner(&frontend)?.clone();
            let counter = CounterOf::Frontend(frontend);
            Some(Connections { service, endpoint: None, counter, count, weight: None })
        }));
    }
    match owners.settings().balancer {
        Balancer::Slots => {
            let ids = owners.ids();
            let mut counted = reader.counted_slots()?;
            // An endpoint may have thousands of slots. Of those that have counted nothing, one represents it.
            counted.sort_unstable_by_key(|it| (it.list, it.endpoint, Reverse(it.count)));
            counted.dedup_by(|next, kept| {
                (next.list, next.endpoint, next.count) == (kept.list, kept.endpoint, 0)
            });
            all.extend(counted.into_iter().filter_map(|CountedSlot { list, slot, endpoint, count }| {
                let service = (*ids.get(&EndpointList::Cluster.of(list))?).clone();
                let counter = CounterOf::Slot { list, slot };
                Some(Connections { service, endpoint: Some(endpoint), counter, count, weight: None })
            }));
        }
        Balancer::Ipvs => all.extend(endpoint_connections(owners)?),
    }
    let weights = owners.weights();
    for Connections { service, endpoint, weight, .. } in &mut all {
        *weight = endpoint.as_ref().and_then(|endpoint| weights.get(service)?.get(endpoint).copied());
    }
    all.sort();
    Ok(all)
}
