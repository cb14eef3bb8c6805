//! What becomes of a packet that opens a connection, by the rules in a fake kernel.
//!
//! Chance is not drawn: every outcome that is possible is found.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::fake::{Chains, Kernel};

/// The first packet of a connection.
#[derive(Clone, Debug)]
pub struct Packet {
    pub from: IpAddr,
    pub to: IpAddr,
    pub protocol: String,
    pub port: u16,
    /// Where it comes in; nowhere, if this node sends it.
    pub interface: &'static str,
}

/// What may become of packets, as words: `10.244.1.5:80`, with `masqueraded` after it if its source is changed,
/// `reject`, `drop`, or `pass` if nobody takes it for a service's.
pub type Fates = BTreeSet<String>;

/// A rule, taken apart.
#[derive(Debug, Default)]
struct Rule {
    /// An option, whether it is negated, and its value.
    matches: Vec<(String, bool, String)>,
    target: Option<String>,
    arguments: BTreeMap<String, String>,
}

/// A packet on its way.
#[derive(Clone, Debug)]
struct Walk {
    marked: bool,
    sent_to: Option<String>,
}

enum End {
    Accept,
    Drop,
    Reject,
    Dnat,
}

pub struct Tracer<'a> {
    kernel: &'a Kernel,
    /// The addresses of the node.
    local: Vec<IpAddr>,
}

impl<'a> Tracer<'a> {
    pub fn new(kernel: &'a Kernel, local: Vec<IpAddr>) -> Self {
        Self { kernel, local }
    }

    /// `from -> to:port[/udp]`, as in `10.244.1.5 -> 10.96.0.1:80`.
    pub fn fates(&self, text: &str) -> Fates {
        let (from, to) = text.split_once(" -> ").unwrap();
        let (to, protocol) = to.split_once('/').unwrap_or((to, "tcp"));
        let (ip, port) = to.rsplit_once(':').unwrap();
        let from: IpAddr = from.trim().parse().unwrap();
        let packet = Packet {
            from,
            to: ip.trim_matches(['[', ']']).parse().unwrap(),
            protocol: protocol.into(),
            port: port.parse().unwrap(),
            interface: match &from.to_string() {
                _ if self.local.contains(&from) => "",
                pod if pod.starts_with("10.244.1.") || pod.starts_with("fd00:10:244:1:") => "cni0",
                _ => "eth0",
            },
        };
        self.of(&packet)
    }

    pub fn of(&self, packet: &Packet) -> Fates {
        let from_here = self.local.contains(&packet.from);
        let mut fates = Fates::new();
        let start = Walk { marked: false, sent_to: None };
        let entry = if from_here { "OUTPUT" } else { "PREROUTING" };
        for (walk, _) in self.walk(&self.kernel.nat, entry, packet, start) {
            fates.extend(self.after_dnat(packet, walk, from_here));
        }
        fates
    }

    fn after_dnat(&self, packet: &Packet, walk: Walk, from_here: bool) -> Fates {
        let mut packet = packet.clone();
        if let Some(endpoint) = &walk.sent_to {
            let (ip, port) = endpoint.rsplit_once(':').unwrap();
            packet.to = ip.trim_matches(['[', ']']).parse().unwrap();
            packet.port = port.parse().unwrap();
        }
        let entry = match (from_here, self.local.contains(&packet.to)) {
            (true, _) => "OUTPUT",
            (false, true) => "INPUT",
            (false, false) => "FORWARD",
        };
        let mut fates = Fates::new();
        for (walk, end) in self.walk(&self.kernel.filter, entry, &packet, walk) {
            fates.insert(match (end, &walk.sent_to) {
                (Some(End::Drop), _) => "drop".into(),
                (Some(End::Reject), _) => "reject".into(),
                (Some(End::Accept | End::Dnat) | None, Some(endpoint)) if walk.marked => {
                    format!("{endpoint} masqueraded")
                }
                (Some(End::Accept | End::Dnat) | None, Some(endpoint)) => endpoint.clone(),
                (Some(End::Accept), None) => "accept".into(),
                (Some(End::Dnat) | None, None) => "pass".into(),
            });
        }
        fates
    }

    /// Every way through a chain: the packet at its end, and what ended it there, if anything did.
    fn walk(&self, chains: &Chains, chain: &str, packet: &Packet, walk: Walk) -> Vec<(Walk, Option<End>)> {
        let mut open = vec![walk];
        let mut ended = Vec::new();
        for rule in chains[chain].iter().map(|text| parse(text)) {
            let mut next = Vec::new();
            for mut walk in open {
                if !self.matches(&rule, packet, &walk) {
                    next.push(walk);
                    continue;
                }
                if rule.matches.iter().any(|(option, ..)| option == "--probability") {
                    next.push(walk.clone()); // perhaps not this one
                }
                match rule.target.as_deref() {
                    None => next.push(walk),
                    Some("ACCEPT") => ended.push((walk, Some(End::Accept))),
                    Some("DROP") => ended.push((walk, Some(End::Drop))),
                    Some("REJECT") => ended.push((walk, Some(End::Reject))),
                    Some("DNAT") => {
                        walk.sent_to = Some(rule.arguments["--to-destination"].clone());
                        ended.push((walk, Some(End::Dnat)));
                    }
                    Some("MARK") => {
                        assert_eq!(rule.arguments["--or-mark"], "0x00004000");
                        walk.marked = true;
                        next.push(walk);
                    }
                    Some(to) => {
                        for (walk, end) in self.walk(chains, to, packet, walk) {
                            match end {
                                Some(end) => ended.push((walk, Some(end))),
                                None => next.push(walk),
                            }
                        }
                    }
                }
            }
            open = next;
        }
        ended.extend(open.into_iter().map(|walk| (walk, None)));
        ended
    }

    fn matches(&self, rule: &Rule, packet: &Packet, walk: &Walk) -> bool {
        rule.matches.iter().all(|(option, negated, value)| {
            let found = match option.as_str() {
                "-p" => *value == packet.protocol,
                "-s" => within(value, packet.from),
                "-d" => within(value, packet.to),
                "--dport" => *value == packet.port.to_string(),
                "-i" => match value.strip_suffix('+') {
                    Some(prefix) => packet.interface.starts_with(prefix),
                    None => packet.interface == value,
                },
                "--src-type" => self.local.contains(&packet.from),
                "--dst-type" => self.local.contains(&packet.to),
                "--mark" => walk.marked,
                "--ctstate" => {
                    let states: Vec<&str> = value.split(',').collect();
                    states.contains(&"NEW") || (states.contains(&"DNAT") && walk.sent_to.is_some())
                }
                "--rcheck" => false, // nobody has been here before
                "--comment" | "-m" | "--mode" | "--probability" | "--name" | "--set" | "--seconds"
                | "--reap" | "--nfacct-name" => true,
                other => panic!("what is {other}?"),
            };
            found != *negated
        })
    }
}

fn within(cidr: &str, ip: IpAddr) -> bool {
    let net: IpNet = cidr.parse().unwrap_or_else(|_| cidr.parse::<IpAddr>().unwrap().into());
    net.contains(&ip)
}

fn parse(text: &str) -> Rule {
    let mut rule = Rule::default();
    let mut words = words(text).into_iter().peekable();
    let mut negated = false;
    while let Some(word) = words.next() {
        match word.as_str() {
            "!" => {
                negated = true;
                continue;
            }
            "-j" => rule.target = words.next(),
            option => {
                let is_flag = ["--rcheck", "--set", "--reap", "--random-fully"].contains(&option);
                let value = if is_flag { String::new() } else { words.next().unwrap() };
                if rule.target.is_some() {
                    rule.arguments.insert(word, value);
                } else {
                    rule.matches.push((word, negated, value));
                }
            }
        }
        negated = false;
    }
    rule
}

/// Split at blanks, except between quotes.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (part, at) in text.split('"').zip(0..) {
        if at % 2 == 1 {
            words.push(part.into());
        } else {
            words.extend(part.split_whitespace().map(String::from));
        }
    }
    words
}

// Upstream's TestParseRule and TestTracePacket.
#[test]
fn the_tracer_reads_rules_as_the_kernel_does() {
    let rule = parse(
        r#"-m comment --comment "a -j b" -d 10.0.0.1 ! -s 10.0.0.0/8 -j DNAT --to-destination 1.2.3.4:80"#,
    );
    let matches: Vec<_> =
        rule.matches.iter().map(|(option, not, value)| (&**option, *not, &**value)).collect();
    assert_eq!(
        matches,
        [
            ("-m", false, "comment"),
            ("--comment", false, "a -j b"),
            ("-d", false, "10.0.0.1"),
            ("-s", true, "10.0.0.0/8")
        ]
    );
    assert_eq!(rule.arguments["--to-destination"], "1.2.3.4:80");

    let mut kernel = Kernel::empty();
    kernel
        .restore(
            "*nat\n:A - [0:0]\n:M - [0:0]\n-A M -j MARK --or-mark 0x00004000\n-A PREROUTING -d 10.0.0.1 -j A\n\
             -A A ! -s 10.244.0.0/16 -j M\n-A A -m statistic --mode random --probability 0.5 -j DNAT --to-destination 1.1.1.1:1\n\
             -A A -j DNAT --to-destination 2.2.2.2:2\nCOMMIT\n*filter\n-A FORWARD -d 10.0.0.2 -j REJECT\nCOMMIT\n",
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
