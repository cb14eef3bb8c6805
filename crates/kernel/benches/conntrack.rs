#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::panic, missing_docs)]
mod shared;
use netlink::Family;
use netlink::conntrack::{Connection, Direction};
use netlink::testing::{in_fresh_netns, run};
use shared::figures::processor;
use std::net::{Ipv4Addr, SocketAddr};

fn main() {
    in_fresh_netns(|| {
        run("nft add table ip t");
        run("nft add chain ip t c { type filter hook output priority 0; }");
        run("nft add rule ip t c ct state invalid drop");
        let mut c = Connection::open().unwrap();
        for n in 0..3 {
            let s = processor();
            let f = c.flows(Family::Ipv4, 17, |_| false).unwrap();
            println!("empty {n} {:.2} ms {}", processor() - s, f.len());
        }
        let s = processor();
        let all: Vec<Direction> = (0..500_000u32)
            .map(|n| Direction {
                protocol: 6,
                source: SocketAddr::new(
                    Ipv4Addr::from(0x0a01_0000 + n / 50_000).into(),
                    (n % 50_000 + 1000) as u16,
                ),
                destination: SocketAddr::new(Ipv4Addr::from(0x0a02_0000 + n % 1000).into(), 443),
            })
            .collect();
        c.make(Family::Ipv4, &all).unwrap();
        println!("made in {:.0} ms", processor() - s);
        for n in 0..5 {
            let s = processor();
            let f = c.flows(Family::Ipv4, 17, |_| false).unwrap();
            println!("full {n} {:.2} ms {}", processor() - s, f.len());
        }
        println!("{}", std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count").unwrap());
    });
}
