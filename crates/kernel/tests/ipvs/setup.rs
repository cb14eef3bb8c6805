//! Namespaces with IPVS, short ways to write servers, and what `ipvsadm` prints.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;

use kernel::ipvs::KernelServers;
use model::address::Family;
use model::names::{Port, Protocol};
use netlink::testing::{in_fresh_netns, run};
use plan::ipvs::servers::{ActualServers, RealServer, ServerStep, VirtualAddress, VirtualServer};

/// Runs `test` in a network namespace of its own, unless the kernel has no IPVS.
pub fn in_netns_with_ipvs(test: impl FnOnce() + Send + 'static) {
    in_fresh_netns(move || match KernelServers::open(Family::V4) {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            eprintln!("skipped: this kernel has no IPVS");
        }
        Err(error) => panic!("opening IPVS: {error}"),
        Ok(_) => {
            // Without any address the kernel has no local routing table, and rejects IPv4 real servers.
            run("ip link set lo up");
            test();
        }
    });
}

pub fn open(family: Family) -> KernelServers {
    let mut servers = KernelServers::open(family).unwrap();
    servers.ensure_interface().unwrap();
    servers
}

/// `10.96.0.10:80/TCP`
pub fn virtual_address(text: &str) -> VirtualAddress {
    let (address, protocol) = text.split_once('/').unwrap();
    let RealServer { ip, port } = real(address);
    VirtualAddress { ip, protocol: Protocol::from_api(Some(protocol)).unwrap(), port }
}

pub fn real(text: &str) -> RealServer {
    let address: SocketAddr = text.parse().unwrap();
    RealServer { ip: address.ip(), port: Port::from_api(address.port().into()).unwrap() }
}

pub fn plain(scheduler: &str) -> VirtualServer {
    VirtualServer { scheduler: scheduler.into(), flags: 0, timeout: 0 }
}

pub fn add_virtual(at: &str, scheduler: &str) -> ServerStep {
    ServerStep::AddVirtual(virtual_address(at), plain(scheduler))
}

pub fn add_real(at: &str, server: &str, weight: u32) -> ServerStep {
    ServerStep::AddReal(virtual_address(at), real(server), weight)
}

pub fn bind(ip: &str) -> ServerStep {
    ServerStep::Bind(ip.parse().unwrap())
}

/// The lines of `ipvsadm-save --numeric`, sorted, without its paddings.
pub fn saved() -> BTreeSet<String> {
    run("ipvsadm-save -n").lines().map(|line| line.trim().to_owned()).collect()
}

/// What was read, one line per server: `10.96.0.10:80/TCP rr 0x1 10800`, `10.96.0.10:80/TCP -> 10.244.1.1:8080 1`.
pub fn lines(actual: &ActualServers) -> Vec<String> {
    let mut lines = Vec::new();
    for (address, found) in &actual.virtual_servers {
        let VirtualAddress { ip, protocol, port } = *address;
        let key = format!("{}/{protocol}", SocketAddr::new(ip, port.get()));
        let VirtualServer { scheduler, flags, timeout } = &found.server;
        lines.push(format!("{key} {scheduler} {flags:#x} {timeout}"));
        for (server, actual) in &found.real_servers {
            let server = SocketAddr::new(server.ip, server.port.get());
            lines.push(format!("{key} -> {server} {}", actual.weight));
        }
    }
    lines
}
