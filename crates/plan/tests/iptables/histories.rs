//! What may happen to a small, crowded cluster and to the node it is served from.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

#[derive(Clone, Debug)]
pub enum Op {
    /// A line as people say it.
    Say(String),
    Move(Vec<usize>),
    Wait(u64),
    /// The cluster becomes large, or small again.
    Grow(bool),
    Flush,
    CannotSave,
    Sync,
    /// The run of this number fails, and with it the sync.
    Fail(usize),
}

fn service() -> impl Strategy<Value = String> {
    let ports = select(vec![
        "p:80",
        "p:80@30080 NodePort",
        "p:80 q:81/UDP@30081 NodePort",
        "p:53/UDP p:53/TCP",
        "p:80/SCTP@30082 NodePort",
    ]);
    let extras = subsequence(
        vec![
            "external-policy=Local",
            "internal-policy=Local",
            "external-ips=198.51.100.1,198.51.100.2,198.51.100.1",
            "LoadBalancer lb-ips=203.0.113.1,203.0.113.2",
            "ranges=10.0.0.0/8,192.168.0.0/24",
            "health=32100",
            "affinity=300",
        ],
        0..=7,
    );
    (0..4, 1..4, ports, extras).prop_map(|(name, ip, ports, extras)| {
        format!("service ns/s{name} 10.96.0.{ip} {ports} {}", extras.join(" "))
    })
}

fn slice() -> impl Strategy<Value = String> {
    let ports = select(vec!["p:80", "p:80 q:81/UDP", "p:53/UDP p:53/TCP", "p:80/SCTP p:80"]);
    let endpoint = (1..5, 1..3, select(vec!["", "", "", "draining", "unready terminating=true"]));
    (0..4, ports, vec(endpoint, 0..5)).prop_map(|(name, ports, endpoints)| {
        let endpoints: BTreeMap<_, _> = endpoints
            .into_iter()
            .map(|(ip, node, state)| (format!("10.244.{node}.{ip}@node-{node}"), state))
            .collect();
        let endpoints: Vec<String> = endpoints.iter().map(|(ip, state)| format!("{ip} {state}")).collect();
        format!("slice ns/s{name} of s{name} {ports} {}", endpoints.join(" "))
    })
}

pub fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => service().prop_map(Op::Say),
        6 => slice().prop_map(Op::Say),
        2 => (0..4).prop_map(|name| Op::Say(format!("delete service ns/s{name}"))),
        1 => (0..4).prop_map(|name| Op::Say(format!("delete slice ns/s{name}"))),
        1 => subsequence((0..5).collect::<Vec<usize>>(), 0..=5).prop_map(Op::Move),
        1 => select(vec![10, 60, 4_000]).prop_map(Op::Wait),
        1 => any::<bool>().prop_map(Op::Grow),
        1 => Just(Op::Flush),
        1 => Just(Op::CannotSave),
        8 => Just(Op::Sync),
        2 => (0..4usize).prop_map(Op::Fail),
    ]
}
