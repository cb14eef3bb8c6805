//! Virtual servers as `ipvsadm-save -n` prints them.

use std::collections::BTreeMap;

use model::address::host_port;
use model::names::Protocol;

use crate::ipvs::desired::DesiredVirtual;
use crate::ipvs::servers::{HASH_PORT, PERSISTENT, VirtualAddress, VirtualServer};

/// The virtual servers, each followed by its real servers.
pub fn servers(servers: &BTreeMap<VirtualAddress, DesiredVirtual>) -> String {
    let mut text = String::new();
    for (address, DesiredVirtual { server, real_servers }) in servers {
        let service = service(address);
        text.push_str(&format!("-A {service} -s {}{}\n", server.scheduler, options(server)));
        for real in real_servers {
            let real = host_port(real.ip, real.port.get());
            text.push_str(&format!("-a {service} -r {real} -m -w 1\n"));
        }
    }
    text
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
    if server.flags & HASH_PORT != 0 {
        options.push_str(" -b mh-port");
    }
    options
}
