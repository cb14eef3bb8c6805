//! Writes plans into the kernel, reads back what it holds, and reports changes by foreign writers.
#![forbid(unsafe_code)]

pub mod conntrack;
pub mod drift;
pub mod holder;
pub mod inspection;
pub mod interfaces;
pub mod iptables;
pub mod ipvs;
pub mod nftables;
pub mod outcome;
pub mod sysctl;
pub mod version;

use std::io;

use rustix::io::Errno;

fn wire_family(family: model::address::Family) -> netlink::Family {
    match family {
        model::address::Family::V4 => netlink::Family::Ipv4,
        model::address::Family::V6 => netlink::Family::Ipv6,
    }
}

/// `IPPROTO_*`
fn protocol_number(protocol: model::names::Protocol) -> u8 {
    match protocol {
        model::names::Protocol::Tcp => 6,
        model::names::Protocol::Udp => 17,
        model::names::Protocol::Sctp => 132,
    }
}

/// Whether a resource ran short, which may not last.
fn is_shortage(error: &io::Error) -> bool {
    let shortages = [Errno::NOBUFS, Errno::NOMEM, Errno::AGAIN, Errno::INTR, Errno::BUSY];
    error.kind() == io::ErrorKind::ResourceBusy
        || shortages.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}
