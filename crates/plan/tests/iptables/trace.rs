//! What becomes of a packet that opens a connection, by the rules in a fake kernel.

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::names::Protocol;
use plan::iptables::interpreter::{NO_RECENT_CLIENTS, RulesPath, Tables, run};
use plan::iptables::saved_rule::SavedRule;
use plan::walk::{Packet, PacketContext, PacketVerdict};

use crate::fake::{Chains, Kernel};

/// What may become of packets, as words: `10.244.1.5:80`, with `masqueraded` after it if its source is changed,
/// `reject`, `drop`, `accept` if a rule says so, or `pass` if no rule is about it.
pub type Fates = BTreeSet<String>;

pub struct Tracer {
    nat: String,
    filter: String,
    /// The addresses of the node.
    local: Vec<IpAddr>,
}

impl Tracer {
    pub fn new(kernel: &Kernel, local: Vec<IpAddr>) -> Self {
        Self { nat: saved(&kernel.nat), filter: saved(&kernel.filter), local }
    }

    /// `from -> to:port[/udp]`, as in `10.244.1.5 -> 10.96.0.1:80`.
    pub fn fates(&self, text: &str) -> Fates {
        let (from, to) = text.split_once(" -> ").unwrap();
        let (to, protocol) = to.split_once('/').unwrap_or((to, "tcp"));
        let source: IpAddr = from.trim().parse().unwrap();
        let interface = match &source.to_string() {
            _ if self.local.contains(&source) => None,
            pod if pod.starts_with("10.244.1.") || pod.starts_with("fd00:10:244:1:") => Some("cni0".into()),
            _ => Some("eth0".into()),
        };
        let protocol = Protocol::from_api(Some(&protocol.to_uppercase())).unwrap();
        self.of(&Packet { source, source_port: None, protocol, destination: to.parse().unwrap(), interface })
    }

    pub fn of(&self, packet: &Packet) -> Fates {
        let tables = Tables::saved(&self.nat, &self.filter);
        let walk = run(&tables, &PacketContext::new(packet, &self.local), NO_RECENT_CLIENTS);
        assert_eq!(walk.not_understood, [""; 0]);
        walk.paths.iter().map(fate).collect()
    }
}

fn fate(path: &RulesPath<'_>) -> String {
    let is_accepted = || {
        let last = path.rules.last();
        last.is_some_and(|matched| SavedRule::parse(&matched.rule.text).target() == Some("ACCEPT"))
    };
    match (path.verdict, path.endpoint) {
        (PacketVerdict::Drop, _) => "drop".into(),
        (PacketVerdict::Reject, _) => "reject".into(),
        (PacketVerdict::Accept, Some(endpoint)) if path.is_masqueraded => format!("{endpoint} masqueraded"),
        (PacketVerdict::Accept, Some(endpoint)) => endpoint.to_string(),
        (PacketVerdict::Accept, None) if is_accepted() => "accept".into(),
        (PacketVerdict::Accept, None) => "pass".into(),
    }
}

/// The chains as `iptables-save` lists them.
fn saved(chains: &Chains) -> String {
    let mut text = String::new();
    for (chain, rules) in chains {
        text += &format!(":{chain} - [0:0]\n");
        text.extend(rules.iter().map(|rule| format!("-A {chain} {rule}\n")));
    }
    text
}

// Upstream's TestTracePacket.
#[test]
fn the_tracer_reads_rules_as_the_kernel_does() {
    let mut kernel = Kernel::empty();
    kernel
        .restore(
            "*nat\n:KUBE-A - [0:0]\n:KUBE-M - [0:0]\n:KUBE-P - [0:0]\n-A KUBE-M -j MARK --or-mark 0x00004000\n\
             -A KUBE-P -m mark ! --mark 0x00004000/0x00004000 -j RETURN\n-A KUBE-P -j MASQUERADE\n-A POSTROUTING -j KUBE-P\n\
             -A PREROUTING -d 10.0.0.1 -j KUBE-A\n-A KUBE-A ! -s 10.244.0.0/16 -j KUBE-M\n\
             -A KUBE-A -m statistic --mode random --probability 0.5 -j DNAT --to-destination 1.1.1.1:1\n\
             -A KUBE-A -j DNAT --to-destination 2.2.2.2:2\nCOMMIT\n\
             *filter\n:KUBE-F - [0:0]\n-A KUBE-F -d 10.0.0.2 -j REJECT\n-A FORWARD -j KUBE-F\nCOMMIT\n",
        )
        .unwrap();
    let tracer = Tracer::new(&kernel, Vec::new());
    for (packet, want) in [
        ("10.244.0.1 -> 10.0.0.1:80", &["1.1.1.1:1", "2.2.2.2:2"][..]),
        ("10.9.0.1 -> 10.0.0.1:80", &["1.1.1.1:1 masqueraded", "2.2.2.2:2 masqueraded"]),
        ("10.9.0.1 -> 10.0.0.2:80", &["reject"]),
        ("10.9.0.1 -> 10.0.0.3:80", &["pass"]),
    ] {
        assert_eq!(tracer.fates(packet), want.iter().map(|&fate| fate.to_owned()).collect(), "{packet}");
    }
}
