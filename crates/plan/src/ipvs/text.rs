//! Virtual servers as `ipvsadm-save -n` prints them.

use std::collections::BTreeMap;

use model::address::host_port;
use model::names::Protocol;

use crate::ipvs::desired::DesiredVirtual;
use crate::ipvs::servers::{HASH_FALLBACK, HASH_PORT, PERSISTENT, RealServer, VirtualAddress, VirtualServer};

/// The virtual servers, each followed by its real servers.
pub fn servers(servers: &BTreeMap<VirtualAddress, DesiredVirtual>) -> String {
    let mut text = String::new();
    for (at, DesiredVirtual { server, real_servers }) in servers {
        text.push_str(&virtual_server(at, server));
        text.push('\n');
        for (real, weight) in real_servers {
            text.push_str(&real_server(at, real, *weight));
            text.push('\n');
        }
    }
    text
}

pub fn virtual_server(at: &VirtualAddress, server: &VirtualServer) -> String {
    format!("-A {} -s {}{}", service(at), server.scheduler, options(server))
}

pub fn real_server(at: &VirtualAddress, real: &RealServer, weight: u32) -> String {
    format!("-a {} -r {} -m -w {weight}", service(at), host_port(real.ip, real.port.get()))
}

fn service(address: &VirtualAddress) -> String {
    let option = match address.protocol {
        Protocol::Tcp => "-t",
        Protocol::Udp => "-u",
        Protocol::Sctp => "--sctp-service",
    };
    format!("{option} {}", host_port(address.ip, address.port.get()))
}

/// The flags of the scheduler `mh` and session affinity.
fn options(server: &VirtualServer) -> String {
    let mut options = String::new();
    if server.flags & PERSISTENT != 0 {
        options.push_str(&format!(" -p {}", server.timeout));
    }
    let flags = [(HASH_FALLBACK, "mh-fallback"), (HASH_PORT, "mh-port")];
    let flags: Vec<&str> =
        flags.iter().filter(|(flag, _)| server.flags & flag != 0).map(|(_, name)| *name).collect();
    if !flags.is_empty() {
        options.push_str(&format!(" -b {}", flags.join(",")));
    }
    options
}
