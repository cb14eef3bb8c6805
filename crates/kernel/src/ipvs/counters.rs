//! Reads the new connections that IPVS has counted by endpoint.

use std::collections::BTreeMap;
use std::io;

use model::names::ServicePortName;
use plan::ipvs::servers::VirtualAddress;
use plan::nftables::desired::DesiredTable;
use plan::nftables::elements::FrontendKey;

use super::KernelServers;
use crate::nftables::{Connections, CounterOf};

/// New connections by endpoint since its real server was added. A node port has the sum over all its virtual servers. The kernel
/// updates the counts every two seconds.
pub fn endpoint_connections(owners: &DesiredTable) -> io::Result<Vec<Connections>> {
    let mut counts = BTreeMap::new();
    let servers = KernelServers::open(owners.settings().family)?.read()?;
    for (at, found) in servers.virtual_servers {
        let Some((frontend, service)) = frontend(owners, at) else { continue };
        for (real, actual) in found.real_servers {
            let endpoint = (real.ip, real.port);
            *counts.entry((service.clone(), endpoint, frontend)).or_insert(0) += actual.connections;
        }
    }
    let connections = counts.into_iter().map(|((service, endpoint, frontend), count)| Connections {
        service,
        endpoint: Some(endpoint),
        counter: CounterOf::Frontend(frontend),
        count,
        weight: None,
    });
    Ok(connections.collect())
}

fn frontend(owners: &DesiredTable, at: VirtualAddress) -> Option<(FrontendKey, ServicePortName)> {
    let VirtualAddress { ip, protocol, port } = at;
    let node_port = owners.node_port_ips().contains(&ip).then_some(None);
    [Some(Some(ip)), node_port].into_iter().flatten().find_map(|ip| {
        let frontend = FrontendKey { ip, protocol, port };
        Some((frontend, owners.owner(&frontend)?.clone()))
    })
}
