//! Compares servers, bound addresses and the table around them with the desired ones, over connections of its own.

use std::io;
use std::net::IpAddr;

use plan::difference::Difference;
use plan::ipvs::compare::{compare, objects};
use plan::ipvs::desired::{DesiredServers, ServerSettings, usable_node_ips};
use plan::served::KernelComparison;

use super::KernelServers;
use crate::inspection::Part;
use crate::nftables::{TableInspection, TableSnapshot};

/// What the kernel should hold of one family in the ipvs mode.
#[derive(Debug)]
pub struct ServersSnapshot {
    pub table: TableSnapshot,
    pub settings: ServerSettings,
}

impl ServersSnapshot {
    /// `node_ips` are all addresses of the node.
    pub fn new(mut table: TableSnapshot, settings: ServerSettings, node_ips: &[IpAddr]) -> Self {
        let family = table.desired().settings().family;
        table.replace_node_ips(usable_node_ips(node_ips, family).collect());
        Self { table, settings }
    }
}

/// A comparison of the kernel's servers and table with the desired ones.
#[derive(Debug)]
pub struct ServersInspection {
    table: TableInspection,
    settings: ServerSettings,
    servers: KernelServers,
}

impl ServersInspection {
    pub fn open(desired: ServersSnapshot) -> io::Result<Self> {
        let ServersSnapshot { table, settings } = desired;
        let servers = KernelServers::open(table.desired().settings().family)?;
        Ok(Self { table: TableInspection::open(table)?, settings, servers })
    }

    pub fn parts(&self) -> Vec<Part> {
        self.table.parts().into_iter().chain([Part::Servers]).collect()
    }

    pub fn compare(&mut self, part: Part) -> io::Result<Vec<Difference>> {
        if part == Part::Servers {
            return Ok(compare(&self.servers.read()?, &self.desired()));
        }
        self.table.compare(part)
    }

    pub fn compare_all(&mut self) -> io::Result<KernelComparison> {
        let found = self.servers.read()?;
        let differences = self.table.stable_differences()?;
        let desired = self.desired();
        let objects = self.table.objects() + objects(&desired);
        Ok(KernelComparison::of_servers(&desired, &found, self.table.elements(), differences, objects))
    }

    fn desired(&self) -> DesiredServers<'_> {
        DesiredServers { table: self.table.desired(), settings: &self.settings }
    }
}
