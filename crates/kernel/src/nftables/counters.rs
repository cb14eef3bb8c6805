//! New connections, as the elements of our table count them: read by a connection of its own, whoever owns the table.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use model::address::Family;
use model::names::{Port, ServicePortName};
use netlink::nftables::Connection;
use plan::nftables::desired::DesiredTable;
use plan::nftables::elements::Frontend;
use plan::nftables::sets::{Bank, Set};

use super::read::{Counted, Reader};

/// A large set takes long to list, and any change to any table of the node spoils it. Somebody waits for us.
const PERSISTENCE: Duration = Duration::from_secs(2);

/// Which service port has which frontend; none before the first sync.
#[derive(Debug, Default)]
pub struct Owners(Option<DesiredTable>);

/// New connections that the kernel has counted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Connections {
    pub service: ServicePortName,
    /// None for all of the frontend together.
    pub endpoint: Option<(IpAddr, Port)>,
    pub frontend: Frontend,
    pub count: u64,
}

impl From<DesiredTable> for Owners {
    fn from(desired: DesiredTable) -> Self {
        Self(Some(desired))
    }
}

/// New connections by frontend and by endpoint, since the elements that count them were added. Belongs to the network
/// namespace of the calling thread. What nobody in `owners` has came or went just now, and is left out.
pub fn connections(family: Family, owners: &Owners) -> io::Result<Vec<Connections>> {
    let Some(owners) = owners.0.as_ref().filter(|desired| !desired.is_empty()) else { return Ok(Vec::new()) };
    let mut connection = Connection::open()?.retrying_for(PERSISTENCE);
    let mut reader = Reader { family, connection: &mut connection, listed: 0 };
    let mut all = Vec::new();
    for bank in Bank::BOTH {
        for set in [Set::Frontends(bank), Set::Endpoints(bank), Set::EndpointsInside(bank)] {
            let counted = match reader.counters(set, bank) {
                // No pass has made the table yet.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
                counted => counted?,
            };
            all.extend(counted.into_iter().filter_map(|Counted { frontend, endpoint, count }| {
                let service = owners.owner(&frontend)?.clone();
                Some(Connections { service, endpoint, frontend, count })
            }));
        }
    }
    all.sort();
    Ok(all)
}
