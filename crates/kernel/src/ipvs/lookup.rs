//! Looks up what IPVS and our table around it hold for one packet. It only reads.

use std::io;
use std::net::SocketAddr;

use model::address::Family;
use model::names::{Port, Protocol};
use plan::ipvs::servers::VirtualAddress;
use plan::nftables::interpreter::{Sets, Slots, WeightedServers};
use plan::nftables::sets::{Element, ElementKey, Set};

use super::{KernelServers, real_address};
use crate::nftables::Lookup;

/// Looks up single elements of the table, and single virtual servers.
#[derive(Debug)]
pub struct ServersLookup {
    table: Lookup,
    servers: KernelServers,
}

impl ServersLookup {
    /// In the network namespace of the calling thread. An error of kind `NotFound` if there is no table.
    pub fn open(family: Family) -> io::Result<Self> {
        Ok(Self { table: Lookup::open(family)?, servers: KernelServers::open(family)? })
    }
}

impl Sets for ServersLookup {
    type Error = io::Error;

    fn find(&mut self, set: Set, key: ElementKey) -> io::Result<Option<Element>> {
        self.table.find(set, key)
    }

    fn slots(&mut self, list: u32) -> io::Result<Slots> {
        self.table.slots(list)
    }

    fn real_servers(
        &mut self,
        protocol: Protocol,
        destination: SocketAddr,
    ) -> io::Result<Option<WeightedServers>> {
        let Some(port) = Port::from_api(destination.port().into()) else { return Ok(None) };
        let at = VirtualAddress { ip: destination.ip(), protocol, port };
        if !self.servers.has_virtual_server(at)? {
            return Ok(None);
        }
        let found = self.servers.real_servers(at)?;
        let serving = found.into_iter().filter(|(_, real)| real.weight > 0);
        Ok(Some(serving.map(|(real, found)| (real_address(real), found.weight)).collect()))
    }
}
