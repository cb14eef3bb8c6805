//! Removes each rule of the nftables program in turn, and swaps it with its neighbour: whatever changes what a packet meets
//! must be found by the interpreter's judge.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use model::address::Family;
use model::local::FromPod;
use model::names::Protocol;
use plan::nftables::interpreter::{Sets, run};
use plan::nftables::program::{Program, ProgramChain, ProgramSettings};
use plan::nftables::sets::{Element, ElementKey, EndpointList, LookupBy, Set};
use plan::nftables::slots::{SlotRange, slot_ranges};
use plan::nftables::statements::{Affinity, PacketField, ProgramRule, Statement};
use plan::walk::{Packet, PacketContext, PacketVerdict};

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
    Likelihood(Draws, SlotRange, Option<u32>),
    /// Endpoints are moved from one table to another while a packet looks for them.
    Move(Draws, [usize; 2]),
}

/// Which of the chains that draw a slot.
#[derive(Clone, Copy, Debug)]
struct Draws {
    by: LookupBy,
    is_inside: bool,
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
        reason: "the endpoints of a frontend lie in one table, so that only its draws can hit",
        fits: |mutant| {
            let tables: Vec<_> = mutant.rules().iter().map(table_of).collect();
            matches!(tables[..], [Some(one), Some(other)] if one != other)
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
        reason: "a frontend is in no more than one of the two sets",
        fits: |mutant| {
            let is = |matches: fn(Set) -> bool| {
                move |rule: &ProgramRule| {
                    rule.statements.iter().any(|it| matches!(it, Statement::In(_, set) if matches(*set)))
                }
            };
            mutant.swaps(
                is(|set| matches!(set, Set::NoEndpoints(_))),
                is(|set| matches!(set, Set::NoLocalEndpoints(_))),
            )
        },
    },
    Excuse {
        reason: "the two lists of a service port are kept apart",
        fits: |mutant| {
            let list = |rule: &ProgramRule| match rule.statements[..] {
                [Statement::Affinity(_, Affinity::Update(list, _))] => Some(list),
                [Statement::Jump("forget" | "nodeport-forget")] => Some(EndpointList::Cluster),
                [Statement::Jump("forget-local" | "nodeport-forget-local")] => Some(EndpointList::Local),
                _ => None,
            };
            let lists: Vec<_> = mutant.rules().iter().map(list).collect();
            lists == [Some(EndpointList::Cluster), Some(EndpointList::Local)]
        },
    },
];

/// The first slot of the table that a rule draws from.
fn table_of(rule: &ProgramRule) -> Option<u32> {
    match &rule.statements[..] {
        [Statement::Dnat(fields, _)] => match fields.last() {
            Some(PacketField::Slot(draw)) => Some(draw.first),
            _ => None,
        },
        _ => None,
    }
}

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
    let other_settings = every_setting().into_iter().flat_map(|settings| program_of(&settings).chains);
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
    for by in LookupBy::BOTH {
        for is_inside in [false, true] {
            let draws = Draws { by, is_inside };
            let mut smaller = None;
            for table in slot_ranges() {
                subjects.push(Subject::Likelihood(draws, table, smaller.filter(|_| table.count > 8)));
                smaller = Some(table.count);
            }
            let moves = [[1, 2], [2, 1], [3, 2], [9, 8]];
            subjects.extend(moves.map(|sizes| Subject::Move(draws, sizes)));
        }
    }
    subjects
}

/// Every chain that the settings of any subject lead to.
fn variants(subjects: &[Subject]) -> Vec<Variant> {
    let mut variants: Vec<Variant> = Vec::new();
    for (number, subject) in subjects.iter().enumerate() {
        for ProgramChain { name, rules, .. } in program_of(&typical(subject.settings())).chains {
            let name = canonical(&name);
            match variants.iter_mut().find(|it| it.name == name && it.rules == rules) {
                Some(known) => _ = known.subjects.insert(number),
                None => variants.push(Variant { name, rules, subjects: [number].into() }),
            }
        }
    }
    variants
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
            Self::Likelihood(..) | Self::Move(..) => settings(FAMILY, &Options::default()),
        }
    }

    fn judge(&self, mutation: Mutation<'_>) -> Verdicts {
        match self {
            Self::Case(case) if case.families.contains(&FAMILY) => {
                judge_in(case, FAMILY, Mode::Nftables, mutation)
            }
            Self::Case(_) => Verdicts::default(),
            Self::Likelihood(draws, table, smaller) => likelihood(*draws, *table, *smaller, mutation),
            Self::Move(draws, sizes) => moved(*draws, *sizes, mutation),
        }
    }
}

/// A frontend with endpoints in the slots that it is given, and nothing else. They move after the given number of random picks.
struct Slots {
    draws: Draws,
    before: Arc<[(u32, SocketAddr)]>,
    after: Arc<[(u32, SocketAddr)]>,
    drawn: Cell<usize>,
    moves_after: usize,
}

impl Sets for Slots {
    type Error = Infallible;

    fn find(&mut self, set: Set, key: ElementKey) -> Result<Option<Element>, Infallible> {
        let Draws { by, is_inside } = self.draws;
        let is_there = set == Set::Frontends(by) || (is_inside && set == Set::ExternalLocal(by));
        Ok(is_there.then(|| Element::new(set, key)))
    }

    fn slots(&mut self, map: Set, _: ElementKey) -> Result<Arc<[(u32, SocketAddr)]>, Infallible> {
        let Draws { by, is_inside } = self.draws;
        let drawn = self.drawn.replace(self.drawn.get() + 1);
        let used = if is_inside { Set::EndpointsInside(by) } else { Set::Endpoints(by) };
        let slots = if drawn < self.moves_after { &self.before } else { &self.after };
        Ok(if map == used { slots.clone() } else { Arc::default() })
    }
}

impl Draws {
    fn packet(self) -> Packet {
        let destination = match self.by {
            LookupBy::Address => SocketAddr::new(Address::ExternalIp.ip(FAMILY), 80),
            LookupBy::NodePort => SocketAddr::new(Address::NodeIp.ip(FAMILY), NODE_PORT),
        };
        let from = if self.is_inside { ClientPlace::Pod } else { ClientPlace::Outside };
        let source = from.ip(FAMILY, 0, destination.ip());
        Packet { source, protocol: Protocol::Tcp, destination, interface: from.interface().map(Into::into) }
    }

    /// How likely each endpoint is, and the rules that matched.
    fn run(
        self,
        mut slots: Slots,
        program: &Program,
    ) -> (BTreeMap<Option<SocketAddr>, f64>, BTreeSet<RuleAt>) {
        let (packet, addresses) = (self.packet(), Network::node_ips(FAMILY));
        let Ok(walk) = run(program, &PacketContext::new(&packet, &addresses), &mut slots);
        let (mut shares, mut matched) = (BTreeMap::new(), BTreeSet::new());
        for path in &walk.paths {
            assert_eq!(path.verdict, PacketVerdict::Accept);
            *shares.entry(path.endpoint).or_default() += path.probability;
            matched.extend(path.rules.iter().map(|rule| (rule.chain.to_owned(), rule.number)));
        }
        (shares, matched)
    }
}

fn program(mutation: Mutation<'_>) -> Program {
    mutation(Program::new(&settings(FAMILY, &Options::default()), &BTreeSet::new()))
}

fn endpoint(number: u32) -> SocketAddr {
    let [a, b, c, d] = number.to_be_bytes();
    SocketAddr::new(IpAddr::from([10 + a, b, c, d]), 8080)
}

/// Each slot of a table is drawn as likely as all others; if that misses again and again, finally from among those that are
/// always taken. All of it is done twice.
fn likelihood(draws: Draws, table: SlotRange, smaller: Option<u32>, mutation: Mutation<'_>) -> Verdicts {
    let program = program(mutation);
    let SlotRange { first, count } = table;
    let at: BTreeSet<u32> = [0, count / 2, count - 1]
        .into_iter()
        .chain(smaller.into_iter().flat_map(|smaller| [smaller - 1, smaller]))
        .collect();
    let slots: Arc<[_]> = at.iter().map(|at| (first + at, endpoint(*at))).collect();
    let ranges = match smaller {
        Some(smaller) => vec![count, count, count, smaller],
        None => vec![count],
    };
    let mut left = 1.0;
    let mut expected: BTreeMap<u32, f64> = BTreeMap::new();
    for range in [&ranges[..], &ranges[..]].concat() {
        let each = left / f64::from(range);
        for at in at.iter().filter(|at| **at < range) {
            *expected.entry(*at).or_default() += each;
            left -= each;
        }
    }
    let slots = Slots { draws, before: slots.clone(), after: slots, drawn: Cell::new(0), moves_after: 0 };
    let (shares, matched) = draws.run(slots, &program);
    let is_right = expected.iter().all(|(at, expected)| {
        let share = shares.get(&Some(endpoint(*at))).copied().unwrap_or_default();
        (share / expected - 1.0).abs() < 1e-9
    });
    let surprises =
        if is_right { Vec::new() } else { vec![format!("{table:?}: {shares:?}, not {expected:?}")] };
    Verdicts { surprises, matched }
}

/// Whenever a change moves the endpoints to another table, every packet finds one.
fn moved(draws: Draws, sizes: [usize; 2], mutation: Mutation<'_>) -> Verdicts {
    let [before, after] = sizes.map(|size| -> Arc<[(u32, SocketAddr)]> {
        let first = plan::nftables::slots::slot_range(size).unwrap().first;
        (0..u32::try_from(size).unwrap()).map(|at| (first + at, endpoint(at))).collect()
    });
    let program = program(mutation);
    let mut verdicts = Verdicts::default();
    // About where each of the tables is drawn from, the first and the second time.
    let draws_of_tables = [0, 30, 52, 74, 96, 126];
    for moves_after in draws_of_tables.into_iter().flat_map(|start| start..start + 10) {
        let (before, after) = (before.clone(), after.clone());
        let slots = Slots { draws, before, after, drawn: Cell::new(0), moves_after };
        let (shares, matched) = draws.run(slots, &program);
        let lost = shares.get(&None).copied().unwrap_or_default();
        if lost > 1e-9 {
            verdicts.surprises.push(format!("{sizes:?} after {moves_after} draws: {lost} find nothing"));
        }
        verdicts.matched.extend(matched);
    }
    verdicts
}
