//! A case of the packet matrix, and its two judges: packets, here, and the interpreters of rules, which need no root. What a
//! case says does not depend on the mode of the proxy.

pub mod interpreters;
#[cfg(test)]
mod mutants;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use model::address::Family;
use model::names::Protocol;

use crate::options::Options;
pub use plan::mode::Mode;
use testkit::lab::{Address, CROWD, ClientPlace, Lab, NODE_PORT, Place, TARGET};
use testkit::manifests::{ALL, EndpointManifest, Manifest, write};
use testkit::namespace::Namespace;
use testkit::probe::{Answer, UdpFlow, probe_here};
use testkit::wait::eventually;

/// A proxy in a node's namespace.
pub trait ProxyUnderTest {
    /// Makes these manifests all there is, and returns when the kernel knows.
    fn hold(&mut self, manifests: &str);
}

/// How a backend is started: where, for which family, with which configuration.
pub type StartProxy<'a> = &'a (dyn Fn(&Namespace, Family, &Options) -> Box<dyn ProxyUnderTest> + Sync);

/// What is put to the proof.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    pub mode: Mode,
    pub start: StartProxy<'a>,
}

/// Something that must be true of packets.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    pub options: Options,
    families: &'static [Family],
    steps: Vec<Step>,
    /// The protocols of the probes that come next.
    over: &'static [Protocol],
}

#[derive(Clone, Debug)]
enum Step {
    /// From here on the cluster holds these and nothing else.
    Hold(Vec<Manifest>),
    /// Neighbours of the same kind are sent at the same time.
    Probe(Probe),
    /// Time that the kernel needs to forget something. What comes after it is not sent at the same time as what came before.
    Pass(Duration),
    /// Gives the node an address.
    Own(Address),
    /// Others mark every packet with this before the proxy sees it, and drop what leaves the node with another mark.
    KeepMark(u32),
    /// Sends the first datagram of a flow that lasts, which no rule must stop.
    OpenFlow(ClientPlace, ProbeTarget),
}

/// One question, asked until its answer is certain.
#[derive(Clone, Debug)]
struct Probe {
    from: ClientPlace,
    protocol: Protocol,
    to: ProbeTarget,
    expected: Expected,
    /// In the flow that was opened before, rather than in a new one.
    in_flow: bool,
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProbeTarget {
    address: Address,
    port: u16,
}

pub const CLUSTER_IP: ProbeTarget = ProbeTarget { address: Address::ClusterIp, port: 80 };
pub const OTHER_CLUSTER_IP: ProbeTarget = ProbeTarget { address: Address::OtherClusterIp, port: 80 };
pub const EXTERNAL_IP: ProbeTarget = ProbeTarget { address: Address::ExternalIp, port: 80 };
pub const LOAD_BALANCER_IP: ProbeTarget = ProbeTarget { address: Address::LoadBalancerIp, port: 80 };
pub const NODE_PORT_AT_NODE_IP: ProbeTarget = ProbeTarget { address: Address::NodeIp, port: NODE_PORT };

/// Every frontend that clients outside the cluster are meant to use.
pub const EXTERNAL: &[ProbeTarget] = &[EXTERNAL_IP, LOAD_BALANCER_IP, NODE_PORT_AT_NODE_IP];
pub const EVERYWHERE: &[ProbeTarget] = &[CLUSTER_IP, EXTERNAL_IP, LOAD_BALANCER_IP, NODE_PORT_AT_NODE_IP];
pub const EVERYONE: &[ClientPlace] =
    &[ClientPlace::Pod, ClientPlace::RemotePod, ClientPlace::Node, ClientPlace::Outside];

impl ProbeTarget {
    pub const fn at(self, address: Address) -> Self {
        Self { address, ..self }
    }

    pub const fn port(self, port: u16) -> Self {
        Self { port, ..self }
    }
}

/// What becomes of a question.
#[derive(Clone, Debug)]
pub enum Expected {
    /// Any of these answers, and all of them do sooner or later.
    Reaches(Vec<Reached>),
    /// One of these answers, always the same.
    Sticks(Vec<Reached>),
    Refused,
    Silence,
    /// No rule translates or stops it.
    Strays,
    /// The node's own server answers: to the proxy it is nothing special.
    Untouched,
    /// One thing in nftables and ipvs mode, another in iptables mode, as in upstream.
    Differs(Box<Self>, Box<Self>),
    /// One thing in the other modes, another in ipvs mode, as in upstream.
    DiffersInIpvs(Box<Self>, Box<Self>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    place: Place,
    port: u16,
    masqueraded: bool,
}

/// The endpoints, which see the client's own address.
pub fn plain(endpoints: &[EndpointManifest]) -> Expected {
    Expected::Reaches(reached(endpoints, false))
}

/// The endpoints, which see the node's address instead of the client's.
pub fn masqueraded(endpoints: &[EndpointManifest]) -> Expected {
    Expected::Reaches(reached(endpoints, true))
}

/// Upstream's modes do not agree.
pub fn differs(nftables: Expected, iptables: Expected) -> Expected {
    Expected::Differs(nftables.into(), iptables.into())
}

fn reached(endpoints: &[EndpointManifest], masqueraded: bool) -> Vec<Reached> {
    endpoints.iter().map(|endpoint| Reached { place: endpoint.place, port: TARGET, masqueraded }).collect()
}

impl Expected {
    fn in_mode(&self, mode: Mode) -> &Self {
        match (self, mode) {
            (Self::DiffersInIpvs(_, ipvs), Mode::Ipvs) => ipvs,
            (Self::DiffersInIpvs(others, _), Mode::Nftables | Mode::Iptables) => others.in_mode(mode),
            (Self::Differs(nftables, _), Mode::Nftables | Mode::Ipvs) => nftables,
            (Self::Differs(_, iptables), Mode::Iptables) => iptables,
            (same, _) => same,
        }
    }

    /// Something else in ipvs mode: a line of the specification's table "What packets meet, where the modes differ".
    pub fn but_in_ipvs(self, ipvs: Self) -> Self {
        Self::DiffersInIpvs(self.into(), ipvs.into())
    }

    /// Either of both.
    pub fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Reaches(these), Self::Reaches(those)) => Self::Reaches([these, those].concat()),
            both => panic!("not endpoints: {both:?}"),
        }
    }

    /// One of them, always the same.
    pub fn sticking(self) -> Self {
        match self {
            Self::Reaches(these) => Self::Sticks(these),
            other => panic!("not endpoints: {other:?}"),
        }
    }

    /// At another port of theirs.
    pub fn at(self, port: u16) -> Self {
        match self {
            Self::Reaches(these) => {
                Self::Reaches(these.into_iter().map(|one| Reached { port, ..one }).collect())
            }
            other => panic!("not endpoints: {other:?}"),
        }
    }
}

/// Begins a case.
pub fn case(name: impl Into<String>) -> Case {
    Case {
        name: name.into(),
        options: Options::default(),
        families: &Family::BOTH,
        steps: Vec::new(),
        over: ALL,
    }
}

impl Case {
    pub fn with(self, options: Options) -> Self {
        Self { options, ..self }
    }

    /// In this family only.
    pub fn in_family(self, family: Family) -> Self {
        let families: &[Family] = match family {
            Family::V4 => &[Family::V4],
            Family::V6 => &[Family::V6],
        };
        Self { families, ..self }
    }

    pub fn hold<const N: usize>(self, objects: [Manifest; N]) -> Self {
        self.then(Step::Hold(objects.into()))
    }

    /// The protocols of what follows.
    pub fn over(self, protocols: &'static [Protocol]) -> Self {
        Self { over: protocols, ..self }
    }

    /// From each to each, the same must happen.
    pub fn expect(mut self, from: &[ClientPlace], to: &[ProbeTarget], expected: Expected) -> Self {
        for from in from {
            for to in to {
                for protocol in self.over {
                    let (from, to, protocol, expected) = (*from, *to, *protocol, expected.clone());
                    self.steps.push(Step::Probe(Probe { from, protocol, to, expected, in_flow: false }));
                }
            }
        }
        self
    }

    pub fn pass(self, time: Duration) -> Self {
        self.then(Step::Pass(time))
    }

    pub fn node_owns(self, address: Address) -> Self {
        self.then(Step::Own(address))
    }

    /// The bits of the mark that are others' stay as they are.
    pub fn keeps_mark(self, mark: u32) -> Self {
        self.then(Step::KeepMark(mark))
    }

    /// A UDP flow that begins now, before there is a service at its destination.
    pub fn open_flow(self, from: ClientPlace, to: ProbeTarget) -> Self {
        self.then(Step::OpenFlow(from, to))
    }

    /// What becomes of the next datagram of a flow that was opened.
    pub fn expect_in_flow(self, from: ClientPlace, to: ProbeTarget, expected: Expected) -> Self {
        self.then(Step::Probe(Probe { from, protocol: Protocol::Udp, to, expected, in_flow: true }))
    }

    fn then(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// How many probes it has.
    pub fn probes(&self) -> usize {
        let per_family = self.steps.iter().filter(|step| matches!(step, Step::Probe(_))).count();
        per_family * self.families.len()
    }
}

/// Proves the cases, several at a time, and returns what turned out otherwise.
pub fn prove(cases: &[Case], subject: Subject<'_>) -> Vec<String> {
    // Much of the time is spent waiting for silence, so there may be more than there are processors.
    let at_a_time = std::thread::available_parallelism().map_or(1, |processors| 3 * processors.get() - 2);
    let (queue, surprises) = (Mutex::new(cases.iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..at_a_time {
            scope.spawn(|| {
                while let Some(case) = next(&queue) {
                    let found = run(case, subject);
                    surprises.lock().unwrap().extend(found);
                }
            });
        }
    });
    surprises.into_inner().unwrap()
}

fn next<T>(queue: &Mutex<impl Iterator<Item = T>>) -> Option<T> {
    queue.lock().unwrap().next()
}

/// Runs a case in both families, in a network of its own.
fn run(case: &Case, subject: Subject<'_>) -> Vec<String> {
    let lab = Lab::new();
    std::thread::scope(|scope| {
        let run = |family: &Family| {
            let (lab, family) = (&lab, *family);
            scope.spawn(move || run_in(lab, family, case, subject))
        };
        let runs: Vec<_> = case.families.iter().map(run).collect();
        runs.into_iter()
            .flat_map(|run| {
                run.join().unwrap_or_else(|failure| vec![format!("{}: {}", case.name, said(&*failure))])
            })
            .collect()
    })
}

fn said(failure: &(dyn std::any::Any + Send)) -> &str {
    let text = failure.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| failure.downcast_ref::<&str>().copied()).unwrap_or("panicked")
}

fn run_in(lab: &Lab, family: Family, case: &Case, subject: Subject<'_>) -> Vec<String> {
    let mut backend = (subject.start)(&lab.network.node, family, &case.options);
    let mut surprises = Vec::new();
    let mut flows = Flows::new();
    let is_probe = |step: &Step| matches!(step, Step::Probe(_));
    for (number, steps) in case.steps.chunk_by(|a, b| is_probe(a) && is_probe(b)).enumerate() {
        let mut probes = Vec::new();
        for step in steps {
            match step {
                Step::Probe(probe) => probes.push(probe),
                Step::Hold(objects) => backend.hold(&write(objects, family)),
                Step::Pass(time) => std::thread::sleep(*time),
                Step::Own(address) => own(&lab.network.node, address.ip(family)),
                Step::KeepMark(mark) => {
                    let rules = keep_mark(*mark, family);
                    lab.network.node.run_with_input(Command::new("nft").args(["-f", "-"]), &rules);
                }
                Step::OpenFlow(from, to) => {
                    let address = SocketAddr::new(to.address.ip(family), to.port);
                    let flow = lab.namespace(*from).enter(|| {
                        let flow = UdpFlow::open(from.source(family, 0), address);
                        assert_eq!(flow.probe(Duration::from_secs(5)), Answer::LeftNode);
                        flow
                    });
                    flows.insert((*from, *to), flow);
                }
            }
        }
        let found = send(lab, family, subject.mode, &flows, &probes);
        surprises.extend(found.into_iter().map(|what| format!("{}, step {}: {what}", case.name, number + 1)));
    }
    surprises
}

type Flows = BTreeMap<(ClientPlace, ProbeTarget), UdpFlow>;

/// Rules that mark every packet before the proxy sees it, and drop it after if the mark is not the same. A packet from IPVS passes
/// the output hook with its mark.
fn keep_mark(mark: u32, family: Family) -> String {
    let family = testkit::network::of(family, ["ip", "ip6"]);
    format!(
        "table {family} others {{
           chain mark-incoming {{ type filter hook prerouting priority -150; meta mark set {mark}; }}
           chain mark-outgoing {{ type filter hook output priority -150; meta mark 0 meta mark set {mark}; }}
           chain check {{ type filter hook postrouting priority 150; meta mark != {mark} drop; }}
         }}"
    )
}

/// Gives a namespace an address, and returns when it can speak from there.
fn own(namespace: &Namespace, ip: IpAddr) {
    namespace.ip(&format!("address add {ip} dev lo"));
    namespace.enter(|| eventually("an address", || std::net::UdpSocket::bind((ip, 0)).is_ok()));
}

/// Sends probes at the same time. Probes that could receive each other's ICMP errors run one after the other, and so do those of a
/// client that sticks: its first connections to two frontends at the same time may go to two endpoints.
fn send(lab: &Lab, family: Family, mode: Mode, flows: &Flows, probes: &[&Probe]) -> Vec<String> {
    let mut lines: BTreeMap<_, Vec<&Probe>> = BTreeMap::new();
    for probe in probes {
        let sticks = matches!(probe.expected.in_mode(mode), Expected::Sticks(_));
        let address = (!sticks).then_some(probe.to.address);
        lines.entry((probe.from, probe.protocol, address)).or_default().push(probe);
    }
    std::thread::scope(|scope| {
        let lines: Vec<_> = lines
            .into_values()
            .map(|line| {
                scope.spawn(move || {
                    line.into_iter().filter_map(|probe| probe.send(lab, family, mode, flows).err()).collect()
                })
            })
            .collect();
        lines
            .into_iter()
            .flat_map(|line| line.join().unwrap_or_else(|failure| vec![said(&*failure).into()]))
            .collect()
    })
}

/// The number of probes where several endpoints may answer and no others.
fn attempts(from: ClientPlace) -> usize {
    if from == ClientPlace::Crowd { CROWD } else { 16 }
}

impl Probe {
    fn send(&self, lab: &Lab, family: Family, mode: Mode, flows: &Flows) -> Result<(), String> {
        let expected = self.expected.in_mode(mode);
        let to = SocketAddr::new(self.to.address.ip(family), self.to.port);
        let flow = flows.get(&(self.from, self.to)).filter(|_| self.in_flow);
        let ask = |attempt: usize, patience| match flow {
            Some(flow) => flow.probe(patience),
            None => probe_here(self.from.source(family, attempt), self.protocol, to, patience),
        };
        let namespace = lab.namespace(self.from);
        let patient = Duration::from_secs(5);
        let seen = namespace.enter(|| match expected {
            _ if self.in_flow && matches!(expected, Expected::Silence) => {
                vec![ask(0, Duration::from_millis(250))]
            }
            Expected::Silence => at_once(4, namespace, |attempt| ask(attempt, Duration::from_millis(250))),
            Expected::Refused | Expected::Strays | Expected::Untouched => {
                // All of a crowd, who may be remembered for it.
                let times = if self.from == ClientPlace::Crowd { CROWD } else { 4 };
                (0..times).map(|attempt| ask(attempt, patient)).collect()
            }
            Expected::Sticks(_) => (0..attempts(self.from)).map(|attempt| ask(attempt, patient)).collect(),
            Expected::Reaches(endpoints) => {
                let mut answers = Vec::new();
                let mut answered = BTreeSet::new();
                while answers.len() < attempts(self.from) || answered.len() < endpoints.len() {
                    let answer = ask(answers.len(), patient);
                    if let Answer::From { endpoint, .. } = answer {
                        answered.insert(endpoint);
                    }
                    answers.push(answer);
                    if answers.len() > 60 * endpoints.len().max(2)
                        || answers.last() == Some(&Answer::TimedOut)
                    {
                        break;
                    }
                }
                answers
            }
            Expected::Differs(..) | Expected::DiffersInIpvs(..) => unreachable!("a mode makes up its mind"),
        });
        self.judge(family, mode, expected, to, &seen).map_err(|why| {
            let counts = count(&seen);
            format!(
                "{family} {:?} to {to}/{}: {why}; expected {}, got {counts:?}",
                self.from, self.protocol, expected
            )
        })
    }

    fn judge(
        &self,
        family: Family,
        mode: Mode,
        expected: &Expected,
        to: SocketAddr,
        seen: &[Answer],
    ) -> Result<(), &'static str> {
        // In ipvs mode every frontend is an address of the node, which speaks to it from there.
        let own = |attempt: usize| match (mode, self.from) {
            (Mode::Ipvs, ClientPlace::Node) => to.ip(),
            (Mode::Nftables | Mode::Iptables | Mode::Ipvs, _) => self.from.ip(family, attempt, to.ip()),
        };
        let only = |single: &Answer| {
            seen.iter().all(|answer| answer == single).then_some(()).ok_or("another result")
        };
        let among = |endpoints: &[Reached]| {
            let right = |attempt: usize, answer: &Answer| match answer {
                Answer::From { endpoint, client } => endpoints.iter().any(|reached| {
                    *endpoint == reached.address(family)
                        && if reached.masqueraded {
                            reached.place.masquerade_ips(family).contains(client)
                        } else {
                            *client == own(attempt)
                        }
                }),
                Answer::Refused | Answer::TimedOut | Answer::LeftNode => false,
            };
            let wrong = seen.iter().enumerate().any(|(attempt, answer)| !right(attempt, answer));
            if wrong { Err("a wrong answer") } else { Ok(()) }
        };
        let answered: BTreeSet<_> = seen
            .iter()
            .filter_map(|answer| match answer {
                Answer::From { endpoint, .. } => Some(*endpoint),
                Answer::Refused | Answer::TimedOut | Answer::LeftNode => None,
            })
            .collect();
        match expected {
            Expected::Differs(..) | Expected::DiffersInIpvs(..) => Err("a result that no mode has"),
            Expected::Refused => only(&Answer::Refused),
            Expected::Silence => only(&Answer::TimedOut),
            Expected::Strays => only(&Answer::LeftNode),
            Expected::Untouched => only(&Answer::From { endpoint: to, client: own(0) }),
            Expected::Reaches(endpoints) => {
                among(endpoints)?;
                let all = endpoints.iter().all(|reached| answered.contains(&reached.address(family)));
                all.then_some(()).ok_or("an endpoint never answered")
            }
            Expected::Sticks(endpoints) => {
                among(endpoints)?;
                (answered.len() == 1).then_some(()).ok_or("it did not stick")
            }
        }
    }
}

/// The same question several times at the same time.
fn at_once(times: usize, namespace: &Namespace, ask: impl Fn(usize) -> Answer + Sync) -> Vec<Answer> {
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..times)
            .map(|attempt| {
                let ask = &ask;
                scope.spawn(move || {
                    namespace.move_in();
                    ask(attempt)
                })
            })
            .collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    })
}

fn count(answers: &[Answer]) -> BTreeMap<&Answer, usize> {
    answers.iter().fold(BTreeMap::new(), |mut counts, answer| {
        *counts.entry(answer).or_default() += 1;
        counts
    })
}

impl Reached {
    fn address(&self, family: Family) -> SocketAddr {
        SocketAddr::new(self.place.ip(family), self.port)
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reaches(endpoints) => write!(f, "all of {endpoints:?}"),
            Self::Sticks(endpoints) => write!(f, "always the same of {endpoints:?}"),
            Self::Refused => f.write_str("a refusal"),
            Self::Silence => f.write_str("silence"),
            Self::Strays => f.write_str("to be left alone"),
            Self::Untouched => f.write_str("the node's own server"),
            Self::Differs(nftables, iptables) => {
                write!(f, "in nftables mode {nftables}, in iptables mode {iptables}")
            }
            Self::DiffersInIpvs(others, ipvs) => write!(f, "in ipvs mode {ipvs}, in others {others}"),
        }
    }
}
