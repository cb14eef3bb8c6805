//! Runs the program over a packet, as the kernel does.
//!
//! ```text
//!   Program ───────┐
//!   PacketContext ─┼─▶ run ─▶ Walk
//!   Sets ──────────┘
//! ```
//!
//! Packets enter base chains in the order of hooks and priorities. The sets are the desired ones ([`super::desired_sets`]) or
//! those of the kernel; the rules are the same statements that are sent to the kernel. In the ipvs mode, packets also enter IPVS,
//! at the priorities that it has.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeBounds;
use std::sync::Arc;

use foldhash::fast::RandomState;
use model::hashing::ClientHash;
use model::names::{Port, Protocol};

use crate::nftables::frontend_chains::FrontendChain;
use crate::nftables::hashing::slot_of;
use crate::nftables::program::{HookKind, PacketHook, Program, ProgramChain};
use crate::nftables::sets::{Balancer, Clients, Data, Element, ElementKey, ListOfFrontend, LookupBy, Set};
use crate::nftables::slots::{HASH_RANGE, SlotRange};
use crate::nftables::statements::{
    Affinity, Interface, ListUse, PacketField, ProgramRule, Statement, frontend_fields,
};
use crate::walk::{self, Matched, Packet, PacketContext, PacketVerdict};

pub type ProgramWalk<'a> = walk::Walk<'a, ProgramRule, AffinityChange>;
pub type ProgramPath<'a> = walk::Path<'a, ProgramRule, AffinityChange>;

/// Looks up elements in the sets of the table.
pub trait Sets {
    type Error;

    /// The element with this key or, in a set of ranges, the one whose range contains it.
    fn find(&mut self, set: Set, key: ElementKey) -> Result<Option<Element>, Self::Error>;

    /// The endpoints of an endpoint list.
    fn slots(&mut self, list: u32) -> Result<Slots, Self::Error>;

    /// The real servers of IPVS that take new connections to this destination, with their weights; `None` if there is no virtual
    /// server. Only a program for IPVS needs them.
    fn real_servers(
        &mut self,
        _protocol: Protocol,
        _destination: SocketAddr,
    ) -> Result<Option<WeightedServers>, Self::Error> {
        Ok(None)
    }
}

/// Real servers of IPVS, with their weights.
pub type WeightedServers = Arc<[(SocketAddr, u32)]>;

/// Endpoints, each with its slot, ordered by slot.
pub type Slots = Arc<[(u32, SocketAddr)]>;

/// A change that a packet makes to [`Set::Affinity`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AffinityChange {
    /// An element that exists keeps its endpoint and gets a new timeout, as in the kernel.
    Update {
        key: ElementKey,
        endpoint: (IpAddr, Port),
        seconds: u32,
    },
    Delete {
        key: ElementKey,
    },
}

/// As deep as the kernel lets chains jump.
const MAX_DEPTH: usize = 16;

/// The priority at which IPVS takes the node's own packets from the output hook. It takes all others after our input chains.
const IPVS_OUTPUT: i32 = -98;

/// Runs the program over a packet. In the ipvs mode a packet that the node sends to a service address has this address as its
/// source, which the kernel chooses since it is local.
pub fn run<'p, S: Sets>(
    program: &'p Program,
    context: &PacketContext<'_>,
    sets: &mut S,
) -> Result<ProgramWalk<'p>, S::Error> {
    let packet = Packet { source: source(program, context, sets)?, ..context.packet.clone() };
    let context = &PacketContext { packet: &packet, ..*context };
    let mut run = Run {
        chains: program.chains.iter().map(|chain| (&*chain.name, chain)).collect(),
        program,
        context,
        sets,
        not_understood: Vec::new(),
    };
    let start = ProgramPath::start(context);
    let paths = match program.balancer {
        Balancer::Slots => run.slots(start)?,
        Balancer::Ipvs if run.is_local(context.packet.source)? => run.ipvs_from_node(start)?,
        Balancer::Ipvs => run.ipvs_from_elsewhere(start)?,
    };
    Ok(ProgramWalk { paths, not_understood: run.not_understood })
}

fn source<S: Sets>(program: &Program, context: &PacketContext<'_>, sets: &mut S) -> Result<IpAddr, S::Error> {
    let Packet { source, destination, .. } = *context.packet;
    let may_change = program.balancer == Balancer::Ipvs && context.is_from_node() && !source.is_loopback();
    let bound = ElementKey::EMPTY.address(destination.ip());
    let is_to_bound = may_change && sets.find(Set::BoundIps, bound)?.is_some();
    Ok(if is_to_bound { destination.ip() } else { source })
}

struct Run<'p, 'c, S> {
    chains: HashMap<&'p str, &'p ProgramChain, RandomState>,
    program: &'p Program,
    context: &'c PacketContext<'c>,
    sets: &'c mut S,
    not_understood: Vec<String>,
}

/// What a rule does with a packet.
enum Effect<'p> {
    /// A statement did not match, or the rule has no verdict: go on with the next rule.
    Next,
    Jump(&'p str),
    Goto(&'p str),
    Return,
    /// The packet leaves the base chain: it has a verdict or a translation, or reached the end.
    End,
}

/// Paths that have left a base chain. Those to the same endpoint with the same mark are merged, and have matched the rules of
/// all of them that led there.
#[derive(Default)]
struct Ended<'p> {
    paths: Vec<ProgramPath<'p>>,
    translated: HashMap<(SocketAddr, u32), usize, RandomState>,
}

impl<'p> Ended<'p> {
    fn push(&mut self, path: ProgramPath<'p>) {
        self.paths.push(path);
    }

    /// Adds a path to an endpoint, or its probability to an existing one.
    fn translate(&mut self, path: &ProgramPath<'p>, endpoint: SocketAddr, probability: f64) {
        let at = self.translated.entry((endpoint, path.mark)).or_insert(self.paths.len());
        match self.paths.get_mut(*at) {
            Some(known) => {
                known.probability += probability;
                known.rules.extend(path.rules.last());
            }
            None => self.paths.push(ProgramPath { endpoint: Some(endpoint), probability, ..path.clone() }),
        }
    }
}

impl<'p, S: Sets> Run<'p, '_, S> {
    /// The paths of a packet that the program itself translates.
    fn slots(&mut self, start: ProgramPath<'p>) -> Result<Vec<ProgramPath<'p>>, S::Error> {
        let context = self.context;
        let mut paths = Vec::new();
        for path in self.hook(context.first_hook(), .., !context.has_entry, vec![start])? {
            let next = context.next_hooks(path.destination(context.packet).ip());
            paths.extend(self.hooks(next, path)?);
        }
        Ok(paths)
    }

    /// The paths of a packet that the node sends, in the ipvs mode.
    fn ipvs_from_node(&mut self, start: ProgramPath<'p>) -> Result<Vec<ProgramPath<'p>>, S::Error> {
        let passes_nat = !self.context.has_entry;
        let mut paths = Vec::new();
        for path in self.hook(PacketHook::Output, ..IPVS_OUTPUT, passes_nat, vec![start])? {
            let balanced = self.balance(path)?;
            for path in self.hook(PacketHook::Output, IPVS_OUTPUT.., passes_nat, balanced)? {
                let next: &[PacketHook] = if self.is_local(path.destination(self.context.packet).ip())? {
                    &[PacketHook::Postrouting, PacketHook::Prerouting, PacketHook::Input]
                } else {
                    &[PacketHook::Postrouting]
                };
                paths.extend(self.hooks(next, path)?);
            }
        }
        Ok(paths)
    }

    /// The paths of a packet that the node receives, in the ipvs mode. IPVS sends it to the output hook, which a connection passes
    /// without nat, since it has passed prerouting.
    fn ipvs_from_elsewhere(&mut self, start: ProgramPath<'p>) -> Result<Vec<ProgramPath<'p>>, S::Error> {
        let mut paths = Vec::new();
        for path in self.hook(PacketHook::Prerouting, .., !self.context.has_entry, vec![start])? {
            if !self.is_local(self.context.packet.destination.ip())? {
                paths.extend(self.hooks(&[PacketHook::Forward, PacketHook::Postrouting], path)?);
                continue;
            }
            for path in self.hooks(&[PacketHook::Input], path)? {
                for path in self.balance(path)? {
                    let is_sent_on = path
                        .endpoint
                        .is_some_and(|to| !self.context.is_local(to.ip()) && path.is_forwarded());
                    if !is_sent_on {
                        paths.push(path);
                        continue;
                    }
                    for path in self.hook(PacketHook::Output, .., false, vec![path])? {
                        paths.extend(self.hooks(&[PacketHook::Postrouting], path)?);
                    }
                }
            }
        }
        Ok(paths)
    }

    /// What IPVS does with a packet. It refuses connections to a virtual server without real servers.
    fn balance(&mut self, path: ProgramPath<'p>) -> Result<Vec<ProgramPath<'p>>, S::Error> {
        let packet = self.context.packet;
        if path.verdict != PacketVerdict::Accept {
            return Ok(vec![path]);
        }
        let Some(servers) = self.sets.real_servers(packet.protocol, packet.destination)? else {
            return Ok(vec![path]);
        };
        if servers.is_empty() {
            return Ok(vec![ProgramPath { verdict: PacketVerdict::Reject, ..path }]);
        }
        if self.context.has_entry {
            // The endpoint gets the packet, but conntrack drops its answers: their entry would collide with the older one.
            return Ok(vec![ProgramPath { verdict: PacketVerdict::Drop, ..path }]);
        }
        let sum: f64 = servers.iter().map(|(_, weight)| f64::from(*weight)).sum();
        let to = |(server, weight): &(SocketAddr, u32)| {
            let probability = path.probability * f64::from(*weight) / sum;
            ProgramPath { endpoint: Some(*server), probability, ..path.clone() }
        };
        Ok(servers.iter().map(to).collect())
    }

    /// Whether an address is the node's, in the ipvs mode.
    fn is_local(&mut self, ip: IpAddr) -> Result<bool, S::Error> {
        let is_bound = self.sets.find(Set::BoundIps, ElementKey::EMPTY.address(ip))?.is_some();
        Ok(is_bound || self.context.is_local(ip))
    }

    /// Sends a packet through these hooks.
    fn hooks(
        &mut self,
        points: &[PacketHook],
        path: ProgramPath<'p>,
    ) -> Result<Vec<ProgramPath<'p>>, S::Error> {
        let mut paths = vec![path];
        for point in points {
            // A packet that the node sends to itself has already passed nat.
            let passes_nat = !self.context.has_entry && *point != PacketHook::Prerouting;
            paths = self.hook(*point, .., passes_nat, paths)?;
        }
        Ok(paths)
    }

    /// Sends packets through every base chain of a hook with one of these priorities.
    fn hook(
        &mut self,
        point: PacketHook,
        priorities: impl RangeBounds<i32>,
        passes_nat: bool,
        mut paths: Vec<ProgramPath<'p>>,
    ) -> Result<Vec<ProgramPath<'p>>, S::Error> {
        let hooked = |chain: &&'p ProgramChain| {
            chain.hook.is_some_and(|hook| {
                hook.point == point
                    && priorities.contains(&hook.priority)
                    && match hook.kind {
                        HookKind::Filter => true,
                        HookKind::Nat => passes_nat,
                    }
            })
        };
        let mut base: Vec<&'p ProgramChain> = self.program.chains.iter().filter(hooked).collect();
        base.sort_by_key(|chain| chain.hook.map(|hook| hook.priority));
        for chain in base {
            let mut ended = Ended::default();
            for path in paths {
                if path.verdict != PacketVerdict::Accept {
                    ended.push(path);
                } else if let Some(path) = self.chain(chain, &mut vec![&chain.name], path, &mut ended)? {
                    ended.push(path);
                }
            }
            paths = ended.paths;
        }
        Ok(paths)
    }

    /// Runs a chain. Returns the path if the packet reaches the end of the chain or returns from it.
    fn chain(
        &mut self,
        chain: &'p ProgramChain,
        stack: &mut Vec<&'p str>,
        mut path: ProgramPath<'p>,
        ended: &mut Ended<'p>,
    ) -> Result<Option<ProgramPath<'p>>, S::Error> {
        for (number, rule) in chain.rules.iter().enumerate() {
            let matched = Matched { chain: &chain.name, number, rule };
            let depth = stack.len();
            match self.rule(matched, stack, &mut path, ended)? {
                Effect::Next => {}
                Effect::Return => return Ok(Some(path)),
                Effect::End => return Ok(None),
                Effect::Jump(to) => {
                    let Some(to) = self.target(to, stack) else { continue };
                    let Some(back) = self.chain(to, stack, path, ended)? else { return Ok(None) };
                    stack.truncate(depth);
                    path = back;
                }
                Effect::Goto(to) => {
                    let Some(to) = self.target(to, stack) else { continue };
                    return self.chain(to, stack, path, ended);
                }
            }
        }
        Ok(Some(path))
    }

    fn target(&mut self, name: &'p str, stack: &mut Vec<&'p str>) -> Option<&'p ProgramChain> {
        let chain = self.chains.get(name).copied().filter(|_| stack.len() <= MAX_DEPTH);
        match chain {
            Some(chain) => stack.push(&chain.name),
            None => self.not_understood.push(format!("a jump to {name}")),
        }
        chain
    }

    fn rule(
        &mut self,
        matched: Matched<'p, ProgramRule>,
        stack: &[&'p str],
        path: &mut ProgramPath<'p>,
        ended: &mut Ended<'p>,
    ) -> Result<Effect<'p>, S::Error> {
        // Changes by statements before one that does not match stay, as in the kernel.
        let before = path.rules.len();
        path.rules.push(matched);
        for statement in &matched.rule.statements {
            let does_match = match statement {
                Statement::StateNew => true,
                Statement::StatusDnat => path.endpoint.is_some(),
                Statement::In(fields, set) => self.find(*set, fields, path)?.is_some(),
                Statement::NotIn(fields, set) => self.find(*set, fields, path)?.is_none(),
                Statement::Within(field, net) => {
                    self.address(*field, path).is_some_and(|ip| net.contains(&ip))
                }
                Statement::NotWithin(field, net) => {
                    self.address(*field, path).is_some_and(|ip| !net.contains(&ip))
                }
                Statement::IsLocal(field) => {
                    self.address(*field, path).is_some_and(|ip| self.context.is_local(ip))
                }
                Statement::FromInterface(interface) => interface.has(self.context.input_interface()),
                Statement::NotFromInterface(interface) => !interface.has(self.context.input_interface()),
                Statement::Marked(mark) => path.mark & mark.get() != 0,
                Statement::SetMark(mark) => {
                    path.mark |= mark.get();
                    true
                }
                Statement::ClearMark(mark) => {
                    path.mark ^= mark.get();
                    true
                }
                Statement::List(by, clients, what) => match self.list_of(*by, *clients, path)? {
                    None => false,
                    Some(found) => match what {
                        ListUse::Has => true,
                        ListUse::GotoFirst => {
                            return self.chain_by_number(
                                Set::FirstChains(*by),
                                Some(found.first),
                                path,
                                before,
                            );
                        }
                        ListUse::JumpDraw => {
                            return self.chain_by_number(
                                Set::DrawChains(*by, *clients),
                                found.draw,
                                path,
                                before,
                            );
                        }
                        ListUse::Dnat(range) => {
                            if self.dnat(found.list, *range, stack, path, ended)? {
                                return Ok(Effect::End);
                            }
                            false
                        }
                        ListUse::HashDnat(hash) => {
                            if self.dnat(found.list, self.hashed(*hash), stack, path, ended)? {
                                return Ok(Effect::End);
                            }
                            false
                        }
                    },
                },
                Statement::Affinity(by, what) => match self.affinity(*by, *what, path)? {
                    Outcome::Matches(matches) => matches,
                    Outcome::Goto(chain) => return Ok(Effect::Goto(chain)),
                    Outcome::Translate(endpoint) => {
                        let path = ProgramPath { chains: stack.to_vec(), ..path.clone() };
                        ended.translate(&path, endpoint, path.probability);
                        return Ok(Effect::End);
                    }
                },
                Statement::Masquerade => {
                    ended.push(ProgramPath { is_masqueraded: true, ..path.clone() });
                    return Ok(Effect::End);
                }
                Statement::Jump(chain) => return Ok(Effect::Jump(chain)),
                Statement::Goto(chain) => return Ok(Effect::Goto(chain)),
                Statement::Return => return Ok(Effect::Return),
                Statement::Reject | Statement::Drop => {
                    let is_reject = *statement == Statement::Reject;
                    let verdict = if is_reject { PacketVerdict::Reject } else { PacketVerdict::Drop };
                    ended.push(ProgramPath { verdict, chains: stack.to_vec(), ..path.clone() });
                    return Ok(Effect::End);
                }
            };
            if !does_match {
                path.rules.truncate(before);
                return Ok(Effect::Next);
            }
        }
        Ok(Effect::Next)
    }

    /// What [`Set::Lists`] has for the destination of the packet.
    fn list_of(
        &mut self,
        by: LookupBy,
        clients: Clients,
        path: &ProgramPath<'_>,
    ) -> Result<Option<ListOfFrontend>, S::Error> {
        let found = self.find(Set::Lists(by, clients), frontend_fields(by, false), path)?;
        Ok(found.and_then(|element| match element.data? {
            Data::List(list) => Some(list),
            Data::Endpoint(..) | Data::Chain(_) | Data::Sticky(_) | Data::AffinityChain(_) => None,
        }))
    }

    /// The effect of a rule that looks up a chain by its number. Without a match, the path has no rules after the first `before`.
    fn chain_by_number(
        &mut self,
        set: Set,
        number: Option<FrontendChain>,
        path: &mut ProgramPath<'p>,
        before: usize,
    ) -> Result<Effect<'p>, S::Error> {
        let key = ElementKey::EMPTY.number(number.map_or(0, FrontendChain::number));
        let found = self.sets.find(set, key)?.and_then(|element| element.data);
        let Some(Data::Chain(target)) = found else {
            path.rules.truncate(before);
            return Ok(Effect::Next);
        };
        Ok(match self.named(&target.name()) {
            Some(chain) if target.returns() => Effect::Jump(chain),
            Some(chain) => Effect::Goto(chain),
            None => Effect::Next,
        })
    }

    /// The name of a chain, which the program should have.
    fn named(&mut self, name: &str) -> Option<&'p str> {
        let chain = self.chains.get(name).map(|chain| &*chain.name);
        if chain.is_none() {
            self.not_understood.push(format!("a jump to {name}"));
        }
        chain
    }

    /// The slot that the client is hashed to, or all slots if its port is hashed and not known.
    fn hashed(&self, hash: ClientHash) -> SlotRange {
        let Packet { source, source_port, .. } = *self.context.packet;
        let SlotRange { first, .. } = HASH_RANGE;
        match (hash, source_port) {
            (ClientHash::Address, _) => SlotRange { count: 1, first: first + slot_of(source, None) },
            (ClientHash::AddressAndPort, None) => HASH_RANGE,
            (ClientHash::AddressAndPort, port) => {
                SlotRange { count: 1, first: first + slot_of(source, port) }
            }
        }
    }

    /// Translates the part of the path for which the slots have an endpoint, and leaves the rest. Returns whether nothing is left.
    fn dnat(
        &mut self,
        list: u32,
        range: SlotRange,
        stack: &[&'p str],
        path: &mut ProgramPath<'p>,
        ended: &mut Ended<'p>,
    ) -> Result<bool, S::Error> {
        let slots = self.sets.slots(list)?;
        let SlotRange { first, count } = range;
        let start = slots.partition_point(|(slot, _)| *slot < first);
        let end = slots.partition_point(|(slot, _)| *slot < first.saturating_add(count));
        let hit = slots.get(start..end).unwrap_or_default();
        if hit.is_empty() {
            return Ok(false);
        }
        let each = path.probability / f64::from(count);
        let translated = ProgramPath { chains: stack.to_vec(), ..path.clone() };
        for (_, endpoint) in hit {
            ended.translate(&translated, *endpoint, each);
        }
        let left = count - u32::try_from(hit.len()).unwrap_or(count).min(count);
        path.probability = each * f64::from(left);
        Ok(left == 0)
    }

    fn affinity(
        &mut self,
        by: LookupBy,
        what: Affinity,
        path: &mut ProgramPath<'p>,
    ) -> Result<Outcome<'p>, S::Error> {
        const NO: Outcome<'_> = Outcome::Matches(false);
        let frontend = frontend_fields(by, !matches!(what, Affinity::Dnat(_)));
        let found = self.find(Set::Sticky(by), frontend, path)?;
        let Some(Data::Sticky(sticky)) = found.and_then(|element| element.data) else { return Ok(NO) };
        let list = what.list().map_or(sticky.list, |list| list.of(sticky.list));
        let client = ElementKey::EMPTY.number(list).address(self.context.packet.source);
        match what {
            Affinity::Has => Ok(Outcome::Matches(true)),
            Affinity::GotoUpdate => {
                let seconds = ElementKey::EMPTY.number(sticky.seconds);
                let found = self.sets.find(Set::Timeouts(by), seconds)?.and_then(|element| element.data);
                let Some(Data::AffinityChain(seconds)) = found else { return Ok(NO) };
                Ok(self.named(&by.affinity_chain(seconds)).map_or(NO, Outcome::Goto))
            }
            Affinity::Dnat(_) | Affinity::IsValid(_) => {
                let Some((ip, port)) = self.last_endpoint(client, path)? else { return Ok(NO) };
                let current = ElementKey::EMPTY.address(ip).port(port).number(list);
                let found = self.sets.find(Set::StickyEndpoints, current)?;
                let Some((ip, port)) = found.and_then(|element| element.endpoint()) else { return Ok(NO) };
                Ok(if matches!(what, Affinity::Dnat(_)) {
                    Outcome::Translate(SocketAddr::new(ip, port.get()))
                } else {
                    Outcome::Matches(true)
                })
            }
            Affinity::Delete(_) => {
                path.changes.push(AffinityChange::Delete { key: client });
                Ok(Outcome::Matches(true))
            }
            Affinity::Update(_, seconds) => {
                let to = path.destination(self.context.packet);
                let Some(port) = Port::from_api(to.port().into()) else { return Ok(NO) };
                let current = ElementKey::EMPTY.address(to.ip()).port(port).number(list);
                if self.sets.find(Set::StickyEndpoints, current)?.is_none() {
                    return Ok(NO);
                }
                let endpoint = self.last_endpoint(client, path)?.unwrap_or((to.ip(), port));
                path.changes.push(AffinityChange::Update { key: client, endpoint, seconds });
                Ok(Outcome::Matches(true))
            }
        }
    }

    /// The endpoint of a client in [`Set::Affinity`], including the changes of this packet.
    fn last_endpoint(
        &mut self,
        client: ElementKey,
        path: &ProgramPath<'_>,
    ) -> Result<Option<(IpAddr, Port)>, S::Error> {
        let changed = path.changes.iter().rev().find_map(|change| match *change {
            AffinityChange::Update { key, endpoint, .. } => (key == client).then_some(Some(endpoint)),
            AffinityChange::Delete { key } => (key == client).then_some(None),
        });
        match changed {
            Some(changed) => Ok(changed),
            None => Ok(self.sets.find(Set::Affinity, client)?.and_then(|element| element.endpoint())),
        }
    }

    fn find(
        &mut self,
        set: Set,
        fields: &[PacketField],
        path: &ProgramPath<'_>,
    ) -> Result<Option<Element>, S::Error> {
        match self.key(fields, path) {
            Some(key) => self.sets.find(set, key),
            None => Ok(None),
        }
    }

    /// The key of these fields of a packet; `None` for port zero, which no element has.
    fn key(&self, fields: &[PacketField], path: &ProgramPath<'_>) -> Option<ElementKey> {
        let packet = self.context.packet;
        let port = |port: u16| Port::from_api(port.into());
        fields.iter().try_fold(ElementKey::EMPTY, |key, field| {
            Some(match field {
                PacketField::Source | PacketField::Destination | PacketField::OriginalDestination => {
                    key.address(self.address(*field, path)?)
                }
                PacketField::SourcePort => key.port(port(packet.source_port?)?),
                PacketField::Protocol => key.protocol(packet.protocol),
                PacketField::DestinationPort => key.port(port(path.destination(packet).port())?),
                PacketField::OriginalDestinationPort => key.port(port(packet.destination.port())?),
            })
        })
    }

    fn address(&self, field: PacketField, path: &ProgramPath<'_>) -> Option<IpAddr> {
        let packet = self.context.packet;
        match field {
            // After masquerading it is another address of the node; only what the node sends to itself reaches rules after that.
            PacketField::Source => Some(packet.source),
            PacketField::Destination => Some(path.destination(packet).ip()),
            PacketField::OriginalDestination => Some(packet.destination.ip()),
            PacketField::SourcePort
            | PacketField::Protocol
            | PacketField::DestinationPort
            | PacketField::OriginalDestinationPort => None,
        }
    }
}

/// The result of a statement of session affinity.
enum Outcome<'p> {
    Matches(bool),
    Goto(&'p str),
    Translate(SocketAddr),
}

impl Interface {
    fn has(&self, name: &str) -> bool {
        match self {
            Self::Named(whole) => name == whole,
            Self::Prefixed(prefix) => name.starts_with(prefix.as_str()),
        }
    }
}
