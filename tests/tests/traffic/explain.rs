//! What `explain` says of a packet is what a packet finds out: random states of a cluster, random packets, every mode.
//! And what it reads in the kernel with `--live` agrees.
//!
//! `SEED=…` repeats a run, which says at its beginning and in every surprise what its seed was.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kernel::iptables::Variant;
use kernel::ipvs::ServersLookup;
use kernel::nftables::Lookup;
use model::address::Family;
use model::cluster::Cluster;
use model::names::Protocol;
use plan::explain::live::{through_rules, through_sets};
use plan::explain::{ExplainSettings, Explanation, Fate, Packet, Target, explain};
use plan::mark::Mark;
use plan::mode::Mode;
use testkit::lab::{Address, ClientPlace, Lab, NODE_PORT, OTHER_TARGET, Place, TARGET};
use testkit::manifests::{
    A, B, EndpointManifest, HOST, Manifest, PortManifest, R, S, ServiceManifest, State, web, write,
};
use testkit::namespace::Namespace;
use testkit::network::of;
use testkit::probe::{Answer, probe_here};
use tests::chains::IptablesNode;
use tests::node::NftablesNode;
use tests::options::{DetectLocal, Options};
use tests::servers::IpvsNode;

/// For each mode: the number of configurations, of cluster states in each, and of packets for each state, in both families.
const CONFIGURATIONS: u64 = 5;
const STATES: usize = 3;
const PACKETS: usize = 16;

#[test]
fn packets_do_what_explain_says_in_nftables_mode() {
    check(Kernel::Nftables, &|namespace, family, options| {
        Box::new(NftablesNode::new(namespace, family, options))
    });
}

#[test]
fn packets_do_what_explain_says_in_iptables_mode() {
    check(Kernel::Iptables(Variant::Nft), &|namespace, family, options| {
        Box::new(IptablesNode::new(namespace, family, options, Variant::Nft))
    });
}

#[test]
fn packets_do_what_explain_says_in_iptables_mode_with_the_legacy_variant() {
    check(Kernel::Iptables(Variant::Legacy), &|namespace, family, options| {
        Box::new(IptablesNode::new(namespace, family, options, Variant::Legacy))
    });
}

#[test]
#[ignore = "needs a kernel with IPVS"]
fn ipvs_does_with_packets_what_explain_says() {
    check(Kernel::Ipvs, &|namespace, family, options| Box::new(IpvsNode::new(namespace, family, options)));
}

/// Where rules are, and how they can be looked at.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kernel {
    Nftables,
    Iptables(Variant),
    Ipvs,
}

impl Kernel {
    fn mode(self) -> Mode {
        match self {
            Self::Nftables => Mode::Nftables,
            Self::Iptables(_) => Mode::Iptables,
            Self::Ipvs => Mode::Ipvs,
        }
    }
}

/// A proxy whose picture of the cluster can be looked at.
trait Subject {
    fn hold(&mut self, manifests: &str);
    fn cluster(&self) -> &Cluster;
}

impl Subject for NftablesNode {
    fn hold(&mut self, manifests: &str) {
        self.replace(manifests);
    }

    fn cluster(&self) -> &Cluster {
        &self.cluster
    }
}

impl Subject for IptablesNode {
    fn hold(&mut self, manifests: &str) {
        self.replace(manifests);
    }

    fn cluster(&self) -> &Cluster {
        &self.cluster
    }
}

impl Subject for IpvsNode {
    fn hold(&mut self, manifests: &str) {
        self.replace(manifests);
    }

    fn cluster(&self) -> &Cluster {
        &self.cluster
    }
}

type StartProxy<'a> = &'a (dyn Fn(&Namespace, Family, &Options) -> Box<dyn Subject> + Sync);

/// How many packets had which fate.
type Seen = BTreeMap<&'static str, usize>;

fn check(kernel: Kernel, start: StartProxy<'_>) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = std::env::var("SEED").map_or(now, |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let (seen, surprises) = (Mutex::new(Seen::new()), Mutex::new(Vec::new()));
    let numbers = Mutex::new(0..CONFIGURATIONS);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(number) = { numbers.lock().unwrap().next() } {
                    let mut chance = Chance(seed.wrapping_add(number.wrapping_mul(0x1000_0000_0001)));
                    let options = options(&mut chance);
                    let lab = Lab::new();
                    for family in Family::BOTH {
                        let found = run(&lab, kernel, family, &options, start, &mut chance, &seen);
                        surprises.lock().unwrap().extend(found);
                    }
                }
            });
        }
    });
    let (seen, surprises) = (seen.into_inner().unwrap(), surprises.into_inner().unwrap());
    println!("{seen:?}");
    let count = surprises.len();
    assert!(surprises.is_empty(), "SEED={seed}: {count} surprises\n{}", surprises.join("\n\n"));
    assert!(seen.values().sum::<usize>() >= 300, "too few packets: {seen:?}");
    // A world in which nothing ever goes wrong proves little.
    for fate in ["kept", "masqueraded", "refused", "dropped", "untouched"] {
        assert!(seen.get(fate).is_some_and(|count| *count >= 5), "SEED={seed}: hardly any {fate}: {seen:?}");
    }
}

fn run(
    lab: &Lab,
    kernel: Kernel,
    family: Family,
    options: &Options,
    start: StartProxy<'_>,
    chance: &mut Chance,
    seen: &Mutex<Seen>,
) -> Vec<String> {
    let mode = kernel.mode();
    let mut subject = start(&lab.network.node, family, options);
    let addresses = lab.network.node.enter(|| kernel::interfaces::addresses().unwrap());
    let node_port_addresses = options.node_port_addresses(family);
    let settings = ExplainSettings {
        mode,
        mark: Mark::from_bit(options.masquerade_bit).unwrap(),
        masquerade_all: options.masquerade_all,
        from_pod: options.from_pod(family),
        serves_localhost: mode == Mode::Iptables
            && family == Family::V4
            && node_port_addresses.contain_ipv4_loopback,
        node_port_addresses,
    };
    let mut surprises = Vec::new();
    for _ in 0..STATES {
        let manifests = write(&objects(chance), family);
        subject.hold(&manifests);
        let questions: Vec<Question> = (0..PACKETS).map(|_| Question::new(chance, family)).collect();
        let explained = questions.into_iter().map(|question| {
            let packet = question.packet(family);
            let explanation = explain(&packet, &settings, &addresses, subject.cluster());
            (question, explanation.unwrap_or_else(|error| panic!("{packet:?}: {error}")))
        });
        let explained: Vec<_> = explained.collect();
        for (_, explanation) in &explained {
            *seen.lock().unwrap().entry(name(explanation)).or_default() += 1;
        }
        let found = look(&lab.network.node, kernel, family, &addresses, &explained);
        surprises.extend(
            found.into_iter().map(|surprise| format!("{family}, {options:?}: {surprise}\n{manifests}")),
        );
        surprises.extend(
            send(lab, family, &explained)
                .into_iter()
                .map(|surprise| format!("{family}, {options:?}, {mode:?}: {surprise}\n{manifests}")),
        );
    }
    surprises
}

fn name(explanation: &Explanation) -> &'static str {
    let is_masqueraded = |target: &Target| target.masquerade.is_some();
    match explanation.fate {
        Fate::Forwarded if explanation.endpoints.iter().all(is_masqueraded) => "masqueraded",
        Fate::Forwarded => "kept",
        Fate::Refused => "refused",
        Fate::Dropped => "dropped",
        Fate::Untouched => "untouched",
    }
}

/// Where the kernel does not hold what was said.
fn look(
    node: &Namespace,
    kernel: Kernel,
    family: Family,
    addresses: &[IpAddr],
    explained: &[(Question, Explanation)],
) -> Vec<String> {
    let save = |suffix, table| {
        let program = of(family, ["iptables", "ip6tables"]);
        node.run(&format!("{program}-{suffix}-save -t {table}"))
    };
    let saved = match kernel {
        Kernel::Nftables | Kernel::Ipvs => None,
        Kernel::Iptables(Variant::Nft) => Some((save("nft", "nat"), save("nft", "filter"))),
        Kernel::Iptables(Variant::Legacy) => Some((save("legacy", "nat"), save("legacy", "filter"))),
    };
    let look = |explanation: &Explanation| match &saved {
        Some((nat, filter)) => through_rules(explanation, nat, filter, addresses),
        None if kernel == Kernel::Ipvs => {
            through_sets(explanation, addresses, &mut ServersLookup::open(family).unwrap()).unwrap()
        }
        None => through_sets(explanation, addresses, &mut Lookup::open(family).unwrap()).unwrap(),
    };
    node.enter(|| {
        let differs = |(question, explanation): &(Question, Explanation)| {
            let live = look(explanation);
            (!live.agrees).then(|| format!("{question:?}: {live:?} is in the kernel:\n{explanation:#?}"))
        };
        explained.iter().filter_map(differs).collect()
    })
}

/// Sends packets at the same time. Packets whose senders could receive each other's ICMP errors are sent one after the other.
fn send(lab: &Lab, family: Family, explained: &[(Question, Explanation)]) -> Vec<String> {
    let mut lines: BTreeMap<_, Vec<&(Question, Explanation)>> = BTreeMap::new();
    for one in explained {
        lines.entry((one.0.from, one.0.protocol, one.0.to.ip())).or_default().push(one);
    }
    std::thread::scope(|scope| {
        let lines: Vec<_> = lines
            .into_values()
            .map(|line| {
                scope.spawn(move || {
                    line.into_iter()
                        .filter_map(|(question, explanation)| question.ask(lab, family, explanation).err())
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        lines.into_iter().flat_map(|line| line.join().unwrap()).collect()
    })
}

/// One packet that is really sent.
#[derive(Clone, Copy, Debug)]
struct Question {
    from: ClientPlace,
    protocol: Protocol,
    to: SocketAddr,
    /// Which of a crowd asks.
    number: usize,
}

impl Question {
    fn new(chance: &mut Chance, family: Family) -> Self {
        let from = chance.of(&[
            ClientPlace::Pod,
            ClientPlace::PodA,
            ClientPlace::PodA,
            ClientPlace::Node,
            ClientPlace::Node,
            ClientPlace::Outside,
            ClientPlace::Outside,
            ClientPlace::Crowd,
            ClientPlace::RemotePod,
        ]);
        let (address, port) = match chance.below(10) {
            0..3 => (Address::ClusterIp, chance.of(&[80, 80, 80, 80, 81])),
            3..6 => {
                let address =
                    chance.of(&[Address::ExternalIp, Address::LoadBalancerIp, Address::OtherLoadBalancerIp]);
                (address, chance.of(&[80, 80, 80, 80, 80, 81]))
            }
            6..8 => {
                let mut addresses = vec![Address::NodeIp, Address::NodeIp, Address::BridgeIp];
                addresses.push(Address::NodeIpTowardsRemote);
                addresses.extend((from == ClientPlace::Node).then_some(Address::Loopback));
                (chance.of(&addresses), chance.of(&[NODE_PORT, NODE_PORT, NODE_PORT, 30081, 80]))
            }
            _ => {
                let others = [Address::OtherClusterIp, Address::OtherClusterIp, Address::UnusedClusterIp];
                (chance.of(&others), chance.of(&[80, 80, 81]))
            }
        };
        let protocol = chance.of(&[Protocol::Tcp, Protocol::Udp]);
        let number = chance.below(40);
        Self { from, protocol, to: SocketAddr::new(address.ip(family), port), number }
    }

    fn source(&self, family: Family) -> IpAddr {
        self.from.ip(family, self.number, self.to.ip())
    }

    fn packet(&self, family: Family) -> Packet {
        Packet {
            source: self.source(family),
            source_port: None,
            protocol: self.protocol,
            destination: self.to,
            interface: self.from.interface().map(Into::into),
        }
    }

    fn ask(&self, lab: &Lab, family: Family, explanation: &Explanation) -> Result<(), String> {
        let patience = match explanation.fate {
            Fate::Dropped => Duration::from_millis(400),
            Fate::Forwarded | Fate::Refused | Fate::Untouched => Duration::from_secs(5),
        };
        let ask = |patience| {
            let source = self.from.source(family, self.number);
            lab.namespace(self.from).enter(|| probe_here(source, self.protocol, self.to, patience))
        };
        let mut answer = ask(patience);
        if answer == Answer::TimedOut && explanation.fate != Fate::Dropped {
            // A machine that is busy enough loses packets.
            answer = ask(patience * 2);
        }
        if self.is_foretold(&answer, family, explanation) {
            return Ok(());
        }
        Err(format!("{self:?} got {answer:?}, which is not what was said:\n{explanation:#?}"))
    }

    fn is_foretold(&self, answer: &Answer, family: Family, explanation: &Explanation) -> bool {
        let own = match (explanation.mode, self.from) {
            // In ipvs mode, the addresses of Services are addresses of the node.
            (Mode::Ipvs, ClientPlace::Node) => self.to.ip(),
            (Mode::Nftables | Mode::Iptables | Mode::Ipvs, _) => self.source(family),
        };
        match (explanation.fate, answer) {
            (Fate::Forwarded, Answer::From { endpoint, client }) => {
                let target = explanation.endpoints.iter().find(|target| target.address == *endpoint);
                target.is_some_and(|target| match target.masquerade {
                    None => *client == own,
                    Some(_) => place_of(target, family).masquerade_ips(family).contains(client),
                })
            }
            (Fate::Refused, Answer::Refused) | (Fate::Dropped, Answer::TimedOut) => true,
            (Fate::Untouched, answer) if explanation.to_this_node => match answer {
                // The node has servers of its own at one port, and refuses connections to others.
                Answer::From { endpoint, client } => {
                    self.to.port() == NODE_PORT && *endpoint == self.to && *client == own
                }
                Answer::Refused => self.to.port() != NODE_PORT,
                Answer::TimedOut | Answer::LeftNode => false,
            },
            (Fate::Untouched, answer) => *answer == Answer::LeftNode,
            (Fate::Forwarded | Fate::Refused | Fate::Dropped, _) => false,
        }
    }
}

fn place_of(target: &Target, family: Family) -> Place {
    let places = [Place::PodA, Place::PodB, Place::Remote(5), Place::Remote(6), Place::Host];
    places.into_iter().find(|place| place.ip(family) == target.address.ip()).expect("an endpoint of ours")
}

/// A configuration.
fn options(chance: &mut Chance) -> Options {
    let ways = [
        DetectLocal::PodCidr,
        DetectLocal::PodCidr,
        DetectLocal::No,
        DetectLocal::Bridge("cbr0"),
        DetectLocal::InterfacePrefix("cb"),
    ];
    let ranges: &[&[&str]] = &[
        &[],
        &[],
        &["192.0.2.0/24", "2001:db8:2::/64"],
        &["127.0.0.0/8", "198.51.100.11/32", "::1/128", "2001:db8:3::11/128"],
    ];
    Options {
        masquerade_all: chance.one_in(4),
        detect_local: chance.of(&ways),
        node_port_addresses: chance.of(ranges),
        ..Options::default()
    }
}

/// A state of the cluster.
fn objects(chance: &mut Chance) -> Vec<Manifest> {
    let mut objects = Vec::new();
    if chance.one_in(2) {
        objects.push(Manifest::ServiceCidr);
    }
    objects.push(Manifest::Zone(chance.of(&["east", "west", "north"])));
    if !chance.one_in(8) {
        objects.push(first(chance).into());
    }
    if !chance.one_in(4) {
        objects.push(second(chance).into());
    }
    objects
}

const PROTOCOLS: &[Protocol] = &[Protocol::Tcp, Protocol::Udp];

/// A service with everything.
fn first(chance: &mut Chance) -> ServiceManifest {
    let mut ports =
        vec![PortManifest { number: 80, target: TARGET, node_port: Some(NODE_PORT), protocols: PROTOCOLS }];
    if chance.one_in(3) {
        ports.push(PortManifest {
            number: 81,
            target: OTHER_TARGET,
            node_port: Some(30081),
            protocols: PROTOCOLS,
        });
    }
    let ranges: &[&[&str]] = &[
        &[],
        &[],
        &["192.0.2.200/32", "2001:db8:2::200/128"],
        &["192.0.2.0/24", "2001:db8:2::/64"],
        &["10.244.0.0/16", "fd00:10:244::/48", "100.64.7.0/24", "2001:db8:7::/64"],
    ];
    ServiceManifest {
        ports,
        external_ips: chance.some(&[Address::ExternalIp, Address::NodeIp, Address::OtherClusterIp]),
        load_balancer_ips: vec![
            (Address::LoadBalancerIp, chance.of(&[None, None, None, Some("VIP"), Some("Proxy")])),
            (Address::OtherLoadBalancerIp, None),
        ],
        internal_policy: chance.of(&["Cluster", "Local"]),
        external_policy: chance.of(&["Cluster", "Local"]),
        affinity: chance.of(&[None, None, Some(10_800)]),
        source_ranges: chance.of(ranges),
        ..web(&endpoints(chance))
    }
}

/// A service with less, which may ask for what the first one has.
fn second(chance: &mut Chance) -> ServiceManifest {
    ServiceManifest {
        external_ips: chance.some(&[Address::ExternalIp, Address::LoadBalancerIp]),
        internal_policy: chance.of(&["Cluster", "Cluster", "Local"]),
        external_policy: chance.of(&["Cluster", "Local"]),
        ports: vec![PortManifest { number: 80, target: OTHER_TARGET, node_port: None, protocols: PROTOCOLS }],
        ..ServiceManifest::other(&endpoints(chance))
    }
}

fn endpoints(chance: &mut Chance) -> Vec<EndpointManifest> {
    if chance.one_in(5) {
        return vec![A.but(State::Unready), R.but(State::Gone)];
    }
    let every = chance.one_in(3);
    let mut endpoints = chance.some(&[A, B, R, S, HOST]);
    for endpoint in &mut endpoints {
        endpoint.state = chance.of(&[
            State::Ready,
            State::Ready,
            State::Ready,
            State::Draining,
            State::Unready,
            State::Gone,
        ]);
        if every || chance.one_in(8) {
            endpoint.zone = Some(chance.of(&["east", "west"]));
        }
        if every && chance.one_in(2) {
            endpoint.hinted_to_node = Some(chance.of(&["node-1", "node-2"]));
        }
    }
    endpoints
}

/// The same numbers for the same seed. <https://prng.di.unimi.it/splitmix64.c>
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap()
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// Each of them with a chance of one half.
    fn some<T: Copy>(&mut self, all: &[T]) -> Vec<T> {
        all.iter().copied().filter(|_| self.one_in(2)).collect()
    }
}
