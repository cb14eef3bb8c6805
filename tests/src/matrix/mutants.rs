//! Removes each rule of the nftables program in turn, and swaps it with its neighbour: whatever changes what a packet meets
//! must be found by the interpreter's judge.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use model::address::Family;
use model::local::FromPod;
use model::names::Protocol;
use plan::nftables::frontend_chains::FrontendChain;
use plan::nftables::interpreter::{Sets, run};
use plan::nftables::program::{Program, ProgramChain, ProgramSettings};
use plan::nftables::sets::{Clients, Data, Element, ElementKey, EndpointList, ListOfFrontend, LookupBy, Set};
use plan::nftables::slots::{SlotRange, slot_range, slot_ranges};
use plan::nftables::statements::{Affinity, PacketField, ProgramRule, Statement};
use plan::walk::{Packet, PacketContext};

use super::interpreters::{Mutation, RuleAt, Verdicts, judge_in, settings};
use super::{Case, Mode, Probe, Step};
use crate::cases;
use crate::options::{DetectLocal, Options};
use testkit::lab::{Address, ClientPlace, NODE_PORT};
use testkit::network::Network;

/// A change to one chain, wherever a program has it with these rules.
#[derive(Clone, Debug)]
struct Mutant<'a> {
    chain: &'a Variant,
    change: Change,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    Remove(usize),
    /// With the next one.
    Swap(usize),
}

/// A chain as some settings make it.
#[derive(Debug)]
struct Variant {
    name: String,
    rules: Vec<ProgramRule>,
    /// Those of [`Subject`] whose program has it, by number.
    subjects: BTreeSet<usize>,
}

/// What can tell a mutant from the program.
enum Subject {
    Case(Case),
    /// How likely each slot of a table is drawn.
    Likelihood(Way, SlotRange, Option<u32>),
    /// Endpoints are moved from one table to another while a packet looks for them.
    Move(Way, [usize; 2], ProgramSettings),
}

/// A way to the chains that draw a slot.
#[derive(Clone, Copy, Debug)]
enum Way {
    ClusterIp(ClientPlace),
    StickyClusterIp(ClientPlace),
    External(LookupBy, Clients),
}

/// Why a mutant that is not found cannot matter.
struct Excuse {
    reason: &'static str,
    fits: fn(&Mutant<'_>) -> bool,
}

const EXCUSES: &[Excuse] = &[
    Excuse {
        reason: "both rules do the same",
        fits: |mutant| matches!(mutant.rules(), [one, other] if one.statements == other.statements),
    },
    Excuse {
        reason: "the chain that picks an endpoint draws from the same table, after more lookups",
        fits: |mutant| {
            let is_of_cluster_ip = mutant.chain.name.starts_with("cluster-ip-");
            let is_draw = |rule: &ProgramRule| matches!(&rule.statements[..], [Statement::Jump(_)]);
            let is_pick = |rule: &ProgramRule| matches!(&rule.statements[..], [Statement::Goto(_)]);
            let draws = matches!(mutant.rules(), [rule] if is_draw(rule));
            is_of_cluster_ip && (draws || mutant.swaps(is_draw, is_pick))
        },
    },
    Excuse {
        reason: "what comes in by an interface is not from an address of the node, and what the node sends comes in by none",
        fits: |mutant| {
            let is = |has: fn(&Statement) -> bool| move |rule: &ProgramRule| rule.statements.iter().any(has);
            mutant.swaps(
                is(|it| matches!(it, Statement::FromInterface(_))),
                is(|it| matches!(it, Statement::IsLocal(PacketField::Source))),
            )
        },
    },
    Excuse {
        reason: "the two lists of a service port are kept apart",
        fits: |mutant| {
            let list = |rule: &ProgramRule| match &rule.statements[..] {
                [Statement::Affinity(_, Affinity::Update(list, _))] => Some(*list),
                [Statement::Jump(chain)] if chain.ends_with("forget") => Some(EndpointList::Cluster),
                [Statement::Jump(chain)] if chain.ends_with("forget-local") => Some(EndpointList::Local),
                _ => None,
            };
            let lists: Vec<_> = mutant.rules().iter().map(list).collect();
            lists == [Some(EndpointList::Cluster), Some(EndpointList::Local)]
        },
    },
];

const FAMILY: Family = Family::V4;

#[test]
fn no_rule_of_the_program_can_go_or_move_unnoticed() {
    let subjects = subjects();
    let variants = variants(&subjects);
    let matched: Vec<BTreeSet<RuleAt>> = subjects
        .iter()
        .map(|subject| {
            let Verdicts { surprises, matched } = subject.judge(&|program| program);
            assert!(surprises.is_empty(), "{surprises:?}");
            matched.into_iter().map(|(chain, number)| (canonical(&chain), number)).collect()
        })
        .collect();
    let other_settings = every_setting().into_iter().flat_map(|settings| {
        let mut chains = program_of(&settings).chains;
        let all = chains.clone();
        chains.retain(|chain| !is_like_another(chain, &all));
        chains
    });
    for ProgramChain { name, rules, .. } in other_settings {
        let is_tried = variants.iter().any(|it| it.name == canonical(&name) && it.rules == rules);
        assert!(is_tried, "no case has the settings that lead to {name}: {rules:?}");
    }
    let (mut found, mut excused, mut wrong) = (0, BTreeMap::<&str, usize>::new(), Vec::new());
    let mutants: Vec<Mutant<'_>> = variants.iter().flat_map(Variant::mutants).collect();
    for mutant in &mutants {
        // Where neither rule matches, nothing depends on where it stands.
        let concerned = mutant.chain.subjects.iter().filter(|number| {
            matched[**number].iter().any(|(chain, at)| *chain == mutant.chain.name && mutant.concerns(*at))
        });
        let mutate = |program| mutant.apply(program);
        let is_found = { concerned }.any(|number| !subjects[*number].judge(&mutate).surprises.is_empty());
        let mut excuses = EXCUSES.iter().filter(|excuse| (excuse.fits)(mutant));
        match (is_found, excuses.next()) {
            (true, None) => found += 1,
            (false, Some(excuse)) => *excused.entry(excuse.reason).or_default() += 1,
            (true, Some(excuse)) => {
                wrong.push(format!("{mutant}: is found, so that it does matter: {}", excuse.reason));
            }
            (false, None) => wrong.push(format!("{mutant}: is not found")),
        }
    }
    println!("{} mutants, {found} found; survivors:", mutants.len());
    for (reason, count) in &excused {
        println!("{count:>5}  {reason}");
    }
    assert!(wrong.is_empty(), "{} of {} mutants:\n{}", wrong.len(), mutants.len(), wrong.join("\n"));
}

fn subjects() -> Vec<Subject> {
    let mut cases = cases::of(Mode::Nftables);
    // No rule is about one protocol: one of them is enough.
    let is_enough = |probe: &Probe| probe.protocol == Protocol::Tcp || probe.in_flow;
    cases.iter_mut().for_each(|case| {
        case.steps.retain(|step| !matches!(step, Step::Probe(probe) if !is_enough(probe)));
    });
    let mut subjects: Vec<Subject> = cases.into_iter().map(Subject::Case).collect();
    let external = LookupBy::BOTH.into_iter().flat_map(|by| Clients::BOTH.map(|it| Way::External(by, it)));
    let cluster_ip = Way::ClusterIp(ClientPlace::Pod);
    for way in external.chain([cluster_ip]) {
        let mut smaller = None;
        for table in slot_ranges() {
            subjects.push(Subject::Likelihood(way, table, smaller.filter(|_| table.count > 16)));
            smaller = Some(table.count);
            let size = table.count as usize;
            let to = if size == 1 { 2 } else { 1 };
            subjects.push(Subject::Move(way, [size, to], settings(FAMILY, &Options::default())));
        }
    }
    for settings in every_setting() {
        for from in [ClientPlace::Pod, ClientPlace::Outside] {
            for way in [Way::ClusterIp(from), Way::StickyClusterIp(from)] {
                let moves = [[1, 2], [2, 1]];
                subjects.extend(moves.map(|sizes| Subject::Move(way, sizes, settings.clone())));
            }
        }
    }
    subjects
}

/// Every chain that the settings of any subject lead to.
fn variants(subjects: &[Subject]) -> Vec<Variant> {
    let mut variants: Vec<Variant> = Vec::new();
    for (number, subject) in subjects.iter().enumerate() {
        let chains = program_of(&typical(subject.settings())).chains;
        for ProgramChain { name, rules, .. } in chains.iter().filter(|chain| !is_like_another(chain, &chains))
        {
            let (name, rules) = (canonical(name), rules.clone());
            match variants.iter_mut().find(|it| it.name == name && it.rules == rules) {
                Some(known) => _ = known.subjects.insert(number),
                None => variants.push(Variant { name, rules, subjects: [number].into() }),
            }
        }
    }
    variants
}

/// Whether a chain of cluster IPs differs from that for two endpoints only in the size of the slot range. Cases have no more
/// endpoints.
fn is_like_another(chain: &ProgramChain, all: &[ProgramChain]) -> bool {
    let size = |chain: &ProgramChain| chain.name.strip_prefix("cluster-ip-").map(str::to_owned);
    let rules = |chain: &ProgramChain, size: &str| -> Vec<String> {
        let draw = format!("draw-{size}");
        chain.rules.iter().map(|rule| rule.show(FAMILY).replace(&draw, "draw-N")).collect()
    };
    let Some(own) = size(chain).filter(|size| !["1", "2"].contains(&&**size)) else { return false };
    let typical = all.iter().find(|chain| chain.name == "cluster-ip-2").unwrap();
    assert_eq!(rules(chain, &own), rules(typical, "2"));
    true
}

/// Everything that rules depend on, except for numbers and names.
fn every_setting() -> Vec<ProgramSettings> {
    let ways = [
        DetectLocal::No,
        DetectLocal::PodCidr,
        DetectLocal::Bridge("cbr0"),
        DetectLocal::InterfacePrefix("cb"),
    ];
    let mut all = Vec::new();
    for detect_local in ways {
        for masquerade_all in [false, true] {
            for node_port_addresses in [&[][..], &["192.0.2.0/24"]] {
                let options =
                    Options { detect_local, masquerade_all, node_port_addresses, ..Options::default() };
                all.push(settings(FAMILY, &options));
            }
        }
    }
    all
}

fn program_of(settings: &ProgramSettings) -> Program {
    Program::new(settings, &BTreeSet::from([SECONDS]))
}

const SECONDS: u32 = 10_800;

/// The same chain learns for any number of seconds.
fn canonical(chain: &str) -> String {
    let by = LookupBy::BOTH.into_iter().find(|by| by.affinity_chain_seconds(chain).is_some());
    by.map_or(chain.to_owned(), |by| by.affinity_chain(SECONDS))
}

/// ProgramSettings with the same rules, but for numbers and names.
fn typical(settings: ProgramSettings) -> ProgramSettings {
    let from_pod = settings.from_pod.map(|from_pod| match from_pod {
        FromPod::Source(net) => FromPod::Source(net),
        FromPod::Interface(_) => FromPod::Interface("cbr0".into()),
        FromPod::InterfacePrefix(_) => FromPod::InterfacePrefix("cb".into()),
    });
    ProgramSettings { mark: self::settings(FAMILY, &Options::default()).mark, from_pod, ..settings }
}

impl Variant {
    fn mutants(&self) -> impl Iterator<Item = Mutant<'_>> {
        let count = self.rules.len();
        let removals = (0..count).map(Change::Remove);
        let swaps = (1..count).map(|number| Change::Swap(number - 1));
        removals.chain(swaps).map(|change| Mutant { chain: self, change })
    }
}

impl Mutant<'_> {
    fn concerns(&self, number: usize) -> bool {
        match self.change {
            Change::Remove(removed) => number == removed,
            Change::Swap(first) => number == first || number == first + 1,
        }
    }

    fn apply(&self, mut program: Program) -> Program {
        for chain in program.chains.iter_mut().filter(|chain| canonical(&chain.name) == self.chain.name) {
            match self.change {
                Change::Remove(number) => _ = chain.rules.remove(number),
                Change::Swap(first) => chain.rules.swap(first, first + 1),
            }
        }
        program
    }

    fn swaps(&self, first: impl Fn(&ProgramRule) -> bool, second: impl Fn(&ProgramRule) -> bool) -> bool {
        matches!(self.rules(), [one, other] if first(one) && second(other))
    }

    /// The rules that are removed or swapped.
    fn rules(&self) -> &[ProgramRule] {
        match self.change {
            Change::Remove(number) => &self.chain.rules[number..=number],
            Change::Swap(first) => &self.chain.rules[first..first + 2],
        }
    }
}

impl std::fmt::Display for Mutant<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rules: Vec<String> = self.rules().iter().map(|rule| rule.show(FAMILY)).collect();
        write!(f, "{} {:?} {}", self.chain.name, self.change, rules.join(" <> "))
    }
}

impl Subject {
    fn settings(&self) -> ProgramSettings {
        match self {
            Self::Case(case) => settings(FAMILY, &case.options),
            Self::Likelihood(..) => settings(FAMILY, &Options::default()),
            Self::Move(_, _, settings) => settings.clone(),
        }
    }

    fn judge(&self, mutation: Mutation<'_>) -> Verdicts {
        match self {
            Self::Case(case) if case.families.contains(&FAMILY) => {
                judge_in(case, FAMILY, Mode::Nftables, mutation)
            }
            Self::Case(_) => Verdicts::default(),
            Self::Likelihood(way, table, smaller) => likelihood(*way, *table, *smaller, mutation),
            Self::Move(way, sizes, settings) => moved(*way, *sizes, settings, mutation),
        }
    }
}

/// A frontend with endpoints in the slots that it is given, and nothing else. They move to another slot range before the lookup
/// with the given number.
struct Slots {
    way: Way,
    before: InRange,
    after: InRange,
    lookups: usize,
    moves_at: usize,
}

/// Endpoints in slots of this range.
#[derive(Clone)]
struct InRange(SlotRange, Arc<[(u32, SocketAddr)]>);

impl Slots {
    fn current(&mut self) -> &InRange {
        self.lookups += 1;
        if self.lookups <= self.moves_at { &self.before } else { &self.after }
    }
}

impl Sets for Slots {
    type Error = Infallible;

    fn find(&mut self, set: Set, key: ElementKey) -> Result<Option<Element>, Infallible> {
        let way = self.way;
        let data = match set {
            Set::Frontends(by) if by == way.by() => None,
            Set::Lists(by, clients) if by == way.by() => {
                let InRange(range, _) = *self.current();
                let draw = Some(FrontendChain::Draw(by, clients, range));
                Some(Data::List(ListOfFrontend { list: LIST, first: way.first(range), draw }))
            }
            Set::FirstChains(_) | Set::DrawChains(..) => {
                let number = u32::from_ne_bytes(key.as_bytes().try_into().unwrap());
                Some(Data::Chain(
                    FrontendChain::from_number(number).filter(|target| target.set() == set).unwrap(),
                ))
            }
            _ => return Ok(None),
        };
        Ok(Some(Element { set, key, data }))
    }

    fn slots(&mut self, list: u32) -> Result<Arc<[(u32, SocketAddr)]>, Infallible> {
        assert_eq!(list, LIST);
        let InRange(_, slots) = self.current();
        Ok(slots.clone())
    }
}

const LIST: u32 = 2;

/// How likely each endpoint is, with and without masquerading.
type Shares = BTreeMap<(Option<SocketAddr>, bool), f64>;

impl Way {
    fn by(self) -> LookupBy {
        match self {
            Self::ClusterIp(_) | Self::StickyClusterIp(_) => LookupBy::Address,
            Self::External(by, _) => by,
        }
    }

    fn first(self, range: SlotRange) -> FrontendChain {
        match self {
            Self::ClusterIp(_) => FrontendChain::ClusterIp(range),
            Self::StickyClusterIp(_) => FrontendChain::StickyClusterIp,
            Self::External(by, Clients::All) => FrontendChain::External(by),
            Self::External(by, Clients::Inside) => FrontendChain::ExternalLocal(by),
        }
    }

    fn packet(self) -> Packet {
        let (destination, from) = match self {
            Self::ClusterIp(from) | Self::StickyClusterIp(from) => {
                (SocketAddr::new(Address::ClusterIp.ip(FAMILY), 80), from)
            }
            Self::External(by, clients) => {
                let destination = match by {
                    LookupBy::Address => SocketAddr::new(Address::ExternalIp.ip(FAMILY), 80),
                    LookupBy::NodePort => SocketAddr::new(Address::NodeIp.ip(FAMILY), NODE_PORT),
                };
                let is_inside = clients == Clients::Inside;
                (destination, if is_inside { ClientPlace::Pod } else { ClientPlace::Outside })
            }
        };
        let source = from.ip(FAMILY, 0, destination.ip());
        Packet {
            source,
            source_port: None,
            protocol: Protocol::Tcp,
            destination,
            interface: from.interface().map(Into::into),
        }
    }

    /// Whether packets are masqueraded.
    fn is_masqueraded(self, settings: &ProgramSettings) -> bool {
        match self {
            Self::ClusterIp(from) | Self::StickyClusterIp(from) => {
                settings.masquerade_all || (settings.from_pod.is_some() && from == ClientPlace::Outside)
            }
            Self::External(_, Clients::All) => true,
            Self::External(_, Clients::Inside) => false,
        }
    }

    /// Where packets go, and the rules that matched.
    fn run(self, mut slots: Slots, program: &Program) -> (Shares, BTreeSet<RuleAt>) {
        let (packet, addresses) = (self.packet(), Network::node_ips(FAMILY));
        let Ok(walk) = run(program, &PacketContext::new(&packet, &addresses), &mut slots);
        let (mut shares, mut matched) = (BTreeMap::new(), BTreeSet::new());
        for path in &walk.paths {
            *shares.entry((path.endpoint, path.is_masqueraded)).or_default() += path.probability;
            matched.extend(path.rules.iter().map(|rule| (rule.chain.to_owned(), rule.number)));
        }
        (shares, matched)
    }
}

fn program(settings: &ProgramSettings, mutation: Mutation<'_>) -> Program {
    mutation(Program::new(settings, &BTreeSet::new()))
}

fn endpoint(number: u32) -> SocketAddr {
    let [a, b, c, d] = number.to_be_bytes();
    SocketAddr::new(IpAddr::from([10 + a, b, c, d]), 8080)
}

/// Each slot of a table is drawn as likely as all others; if that misses again and again, finally from among those that are
/// always taken. All of it is done again, in case the endpoints have moved.
fn likelihood(way: Way, table: SlotRange, smaller: Option<u32>, mutation: Mutation<'_>) -> Verdicts {
    let settings = settings(FAMILY, &Options::default());
    let program = program(&settings, mutation);
    let SlotRange { first, count } = table;
    let at: BTreeSet<u32> = [0, count / 2, count - 1]
        .into_iter()
        .chain(smaller.into_iter().flat_map(|smaller| [smaller - 1, smaller]))
        .collect();
    let slots = InRange(table, at.iter().map(|at| (first + at, endpoint(*at))).collect());
    let ranges = match smaller {
        Some(smaller) => vec![count, count, count, smaller],
        None => vec![count],
    };
    let times = match way {
        Way::ClusterIp(_) => 3,
        Way::StickyClusterIp(_) | Way::External(..) => 2,
    };
    let mut left = 1.0;
    let mut expected: BTreeMap<u32, f64> = BTreeMap::new();
    for range in std::iter::repeat_n(ranges, times).flatten() {
        let each = left / f64::from(range);
        for at in at.iter().filter(|at| **at < range) {
            *expected.entry(*at).or_default() += each;
            left -= each;
        }
    }
    let slots = Slots { way, before: slots.clone(), after: slots, lookups: 0, moves_at: 0 };
    let (shares, matched) = way.run(slots, &program);
    let is_right = expected.iter().all(|(at, expected)| {
        let share =
            shares.get(&(Some(endpoint(*at)), way.is_masqueraded(&settings))).copied().unwrap_or_default();
        (share / expected - 1.0).abs() < 1e-9
    });
    let surprises =
        if is_right { Vec::new() } else { vec![format!("{table:?}: {shares:?}, not {expected:?}")] };
    Verdicts { surprises, matched }
}

/// Whenever a change moves the endpoints to another table, every packet finds one.
fn moved(way: Way, sizes: [usize; 2], settings: &ProgramSettings, mutation: Mutation<'_>) -> Verdicts {
    let [before, after] = sizes.map(|size| {
        let range = slot_range(size).unwrap();
        let slots = (0..u32::try_from(size).unwrap()).map(|at| (range.first + at, endpoint(at)));
        InRange(range, slots.collect())
    });
    let program = program(settings, mutation);
    let mut verdicts = Verdicts::default();
    // Until the chain that draws from the table is known; of a small table also after that, since a large one takes long.
    let times = if sizes[0] > 24 { 3 } else { 16 };
    for moves_at in 0..times {
        let (before, after) = (before.clone(), after.clone());
        let slots = Slots { way, before, after, lookups: 0, moves_at };
        let (shares, matched) = way.run(slots, &program);
        let is_found = |(at, is_masqueraded): &(Option<SocketAddr>, bool)| {
            at.is_some() && *is_masqueraded == way.is_masqueraded(settings)
        };
        let lost: f64 = shares.iter().filter(|(at, _)| !is_found(at)).map(|(_, share)| share).sum();
        if lost > 1e-9 {
            verdicts.surprises.push(format!("{sizes:?} before lookup {moves_at}: {lost} find nothing"));
        }
        verdicts.matched.extend(matched);
    }
    verdicts
}
