//! Writes plans into the kernel, reads back what it holds, and reports changes by foreign writers.
#![forbid(unsafe_code)]

pub mod conntrack;
pub mod drift;
pub mod holder;
pub mod inspection;
pub mod interfaces;
pub mod iptables;
pub mod nftables;
pub mod outcome;
pub mod sysctl;
pub mod version;

fn wire_family(family: model::address::Family) -> netlink::Family {
    match family {
        model::address::Family::V4 => netlink::Family::Ipv4,
        model::address::Family::V6 => netlink::Family::Ipv6,
    }
}
