//! What both modes do to packets, proven with packets.

mod chance;
mod changes;
mod claims;
mod explain;
mod hashing;
mod listing;
mod matrix;
mod preload;
mod size;
mod sticky;
mod weights;

use std::net::{IpAddr, SocketAddr};

use model::address::Family;
use testkit::network::{of, remote_pod_ip};

/// A cluster IP, by number.
fn cluster_ip(family: Family, number: u16) -> IpAddr {
    let [high, low] = number.to_be_bytes();
    of(family, [[10, 96, high, low].into(), [0xfd00, 0x10, 0x96, 0, 0, 0, 0, number].into()])
}

/// The first `count` pods of the second node, at `port`.
fn remote_pods(family: Family, count: u8, port: u16) -> Vec<SocketAddr> {
    (1..=count).map(|number| SocketAddr::new(remote_pod_ip(family, number), port)).collect()
}
