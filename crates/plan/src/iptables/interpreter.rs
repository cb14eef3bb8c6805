//! Runs rules in the format of `iptables-save` over a packet, as the kernel does.
//!
//! ```text
//!   desired rules ─────────┐
//!                          ├─▶ Tables ─▶ run ─▶ Walk
//!   actual: iptables-save ─┘
//! ```
//!
//! In the kernel's own chains only the jumps to our chains are run: other programs may have any rules there.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;

use foldhash::fast::RandomState;
use ipnet::IpNet;

use crate::iptables::chains::{IptablesTable, Jump, lower_case};
use crate::iptables::listing::Listing;
use crate::iptables::saved_rule::{SavedOption, SavedRule};
use crate::nftables::program::PacketHook;
use crate::walk::{self, Matched, PacketContext, PacketVerdict};

pub type RulesWalk<'a> = walk::Walk<'a, ListedRule<'a>, Recent<'a>>;
pub type RulesPath<'a> = walk::Path<'a, ListedRule<'a>, Recent<'a>>;

/// The rules of both tables, by chain.
#[derive(Debug, Default)]
pub struct Tables<'a> {
    nat: HashMap<&'a str, Vec<ListedRule<'a>>, RandomState>,
    filter: HashMap<&'a str, Vec<ListedRule<'a>>, RandomState>,
}

/// A rule without `-A` and its chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedRule<'a> {
    pub text: Cow<'a, str>,
}

/// The match `recent` adds the client to the list of this name, or renews its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recent<'a> {
    pub list: &'a str,
}

/// Whether a client was added to the list of this name within the given number of seconds.
pub type RecentClients<'a> = &'a dyn Fn(&str, IpAddr, u32) -> bool;

/// All lists are empty.
pub const NO_RECENT_CLIENTS: RecentClients<'static> = &|_, _, _| false;

/// The maximum depth of jumps, more than any of our chains need.
const MAX_DEPTH: usize = 8;

/// A rule that matches at random and changes the packet doubles the number of paths. None of ours does; for foreign rules, this many
/// additional paths are followed.
const MAX_PATHS: usize = 256;

impl<'a> Tables<'a> {
    /// Parses what `iptables-save` prints for the two tables.
    pub fn saved(nat: &'a str, filter: &'a str) -> Self {
        let mut tables = Self::default();
        for (table, text) in [(IptablesTable::Nat, nat), (IptablesTable::Filter, filter)] {
            for line in text.lines() {
                if let Some(chain) = line.strip_prefix(":KUBE-") {
                    let length = "KUBE-".len() + chain.find(' ').unwrap_or(chain.len());
                    if let Some(name) = line.get(1..=length) {
                        tables.of(table).entry(name).or_default();
                    }
                    continue;
                }
                let Some((chain, rule)) = line.strip_prefix("-A ").and_then(|rest| rest.split_once(' '))
                else {
                    continue;
                };
                // There may be tens of thousands, and only those that lead to our chains are followed.
                if chain.starts_with("KUBE-") || rule.contains("-j KUBE-") || rule.contains("-g KUBE-") {
                    let rule = ListedRule { text: Cow::Borrowed(rule) };
                    tables.of(table).entry(chain).or_default().push(rule);
                }
            }
        }
        tables
    }

    /// The desired filter table and nat table, with the jumps to our chains.
    pub fn desired([filter, nat]: &'a [Listing; 2]) -> Self {
        let mut tables = Self::default();
        // Each jump is inserted before the existing ones.
        for jump in Jump::ALL.into_iter().rev() {
            let rule = ListedRule { text: Cow::Owned(jump.rule()) };
            tables.of(jump.table).entry(jump.from).or_default().push(rule);
            tables.of(jump.table).entry(jump.to).or_default();
        }
        for (table, Listing(chains)) in [(IptablesTable::Filter, filter), (IptablesTable::Nat, nat)] {
            for (name, rules) in chains {
                let rules = rules.iter().map(|rule| ListedRule { text: Cow::Borrowed(&**rule) });
                tables.of(table).insert(name, rules.collect());
            }
        }
        tables
    }

    fn of(&mut self, table: IptablesTable) -> &mut HashMap<&'a str, Vec<ListedRule<'a>>, RandomState> {
        match table {
            IptablesTable::Filter => &mut self.filter,
            IptablesTable::Nat => &mut self.nat,
        }
    }

    fn chain(&self, table: IptablesTable, name: &str) -> Option<(&'a str, &[ListedRule<'a>])> {
        let chains = match table {
            IptablesTable::Filter => &self.filter,
            IptablesTable::Nat => &self.nat,
        };
        chains.get_key_value(name).map(|(name, rules)| (*name, &rules[..]))
    }
}

/// Runs the rules over a packet.
pub fn run<'t>(
    tables: &'t Tables<'t>,
    context: &PacketContext<'_>,
    recent_clients: RecentClients<'_>,
) -> RulesWalk<'t> {
    let mut run = Run { tables, context, recent_clients, added_paths: 0, not_understood: Vec::new() };
    let mut paths = Vec::new();
    for path in run.hook(context.first_hook(), !context.has_entry, vec![RulesPath::start(context)]) {
        let destination = path.destination(context.packet).ip();
        let mut on_the_way = vec![path];
        for point in context.next_hooks(destination) {
            // A packet that the node sends to itself has already passed nat.
            let passes_nat = !context.has_entry && *point != PacketHook::Prerouting;
            on_the_way = run.hook(*point, passes_nat, on_the_way);
        }
        paths.extend(on_the_way);
    }
    run.not_understood.sort();
    run.not_understood.dedup();
    RulesWalk { paths, not_understood: run.not_understood }
}

struct Run<'t, 'c> {
    tables: &'t Tables<'t>,
    context: &'c PacketContext<'c>,
    recent_clients: RecentClients<'c>,
    /// The number of paths that random matches have added, in all chains.
    added_paths: usize,
    not_understood: Vec<String>,
}

impl<'t> Run<'t, '_> {
    /// Sends packets through the tables of a hook in the order of their priorities.
    fn hook(&mut self, point: PacketHook, passes_nat: bool, paths: Vec<RulesPath<'t>>) -> Vec<RulesPath<'t>> {
        let (name, tables): (_, &[IptablesTable]) = match point {
            PacketHook::Prerouting => ("PREROUTING", &[IptablesTable::Nat]),
            PacketHook::Input => ("INPUT", &[IptablesTable::Filter]),
            PacketHook::Forward => ("FORWARD", &[IptablesTable::Filter]),
            PacketHook::Output => ("OUTPUT", &[IptablesTable::Nat, IptablesTable::Filter]),
            PacketHook::Postrouting => ("POSTROUTING", &[IptablesTable::Nat]),
        };
        let asked = tables.iter().filter(|table| passes_nat || **table != IptablesTable::Nat);
        asked.fold(paths, |paths, table| self.base_chain(*table, name, paths))
    }

    fn base_chain(
        &mut self,
        table: IptablesTable,
        name: &str,
        paths: Vec<RulesPath<'t>>,
    ) -> Vec<RulesPath<'t>> {
        let mut ended = Vec::new();
        for path in paths {
            if path.verdict != PacketVerdict::Accept {
                ended.push(path);
                continue;
            }
            let past_end = self.chain(table, name, &mut Vec::new(), vec![path], &mut ended);
            ended.extend(past_end);
        }
        ended
    }

    /// Runs a chain. Returns the paths that reach its end or return from it.
    fn chain(
        &mut self,
        table: IptablesTable,
        name: &str,
        stack: &mut Vec<&'t str>,
        mut open: Vec<RulesPath<'t>>,
        ended: &mut Vec<RulesPath<'t>>,
    ) -> Vec<RulesPath<'t>> {
        // The kernel rejects rules that loop. Saved text may be of another origin, and following a loop takes exponential time.
        let is_followed = stack.len() <= MAX_DEPTH && !stack.contains(&name);
        let Some((name, rules)) = self.tables.chain(table, name).filter(|_| is_followed) else {
            return open;
        };
        stack.push(name);
        let mut returned = Vec::new();
        for (number, rule) in rules.iter().enumerate() {
            let parsed = SavedRule::parse(&rule.text);
            let matched = Matched { chain: name, number, rule };
            let mut next = Vec::new();
            let before = open.len();
            for mut path in std::mem::take(&mut open) {
                let probability = self.probability(&parsed, &rule.text, &mut path);
                if probability > 0.0 && probability < 1.0 && self.added_paths + next.len() > MAX_PATHS {
                    self.note_unknown(&rule.text);
                    merge(&mut next, path);
                    continue;
                }
                if probability < 1.0 {
                    let missed = path.probability * (1.0 - probability);
                    merge(&mut next, RulesPath { probability: missed, ..path.clone() });
                }
                if probability <= 0.0 {
                    continue;
                }
                path.probability *= probability;
                path.changes.extend(recent(&parsed));
                path.rules.push(matched);
                match self.target(table, &parsed, matched, stack, path, ended) {
                    Effect::Next(paths) => paths.into_iter().for_each(|path| merge(&mut next, path)),
                    Effect::Return(path) => merge(&mut returned, path),
                }
            }
            open = next;
            self.added_paths += open.len().saturating_sub(before);
            if open.is_empty() {
                break;
            }
        }
        stack.pop();
        returned.into_iter().for_each(|path| merge(&mut open, path));
        open
    }

    fn target(
        &mut self,
        table: IptablesTable,
        rule: &SavedRule<'t>,
        matched: Matched<'t, ListedRule<'t>>,
        stack: &mut Vec<&'t str>,
        mut path: RulesPath<'t>,
        ended: &mut Vec<RulesPath<'t>>,
    ) -> Effect<'t> {
        let is_goto = rule.value("-j").is_none();
        let target = rule.target();
        match target {
            None => return Effect::Next(vec![path]),
            Some("RETURN") => return Effect::Return(path),
            Some("ACCEPT") => ended.push(path),
            Some("DROP") | Some("REJECT") => {
                path.verdict =
                    if target == Some("DROP") { PacketVerdict::Drop } else { PacketVerdict::Reject };
                path.chains.clone_from(stack);
                ended.push(path);
            }
            Some("MASQUERADE") => ended.push(RulesPath { is_masqueraded: true, ..path }),
            Some("DNAT") => match rule.value("--to-destination").and_then(|to| to.parse().ok()) {
                Some(endpoint) => {
                    path.chains.clone_from(stack);
                    ended.push(RulesPath { endpoint: Some(endpoint), ..path });
                }
                None => {
                    self.note_unknown(&matched.rule.text);
                    return Effect::Next(vec![path]);
                }
            },
            Some("MARK") => {
                match marked(path.mark, rule) {
                    Some(mark) => path.mark = mark,
                    None => self.note_unknown(&matched.rule.text),
                }
                return Effect::Next(vec![path]);
            }
            Some(chain) if self.tables.chain(table, chain).is_some() => {
                let back = self.chain(table, chain, stack, vec![path], ended);
                if !is_goto {
                    return Effect::Next(back);
                }
                // Our rules use no goto, and there is a single path unless rules use random numbers.
                return match <[RulesPath<'t>; 1]>::try_from(back) {
                    Ok([path]) => Effect::Return(path),
                    Err(paths) => {
                        ended.extend(paths);
                        Effect::Next(Vec::new())
                    }
                };
            }
            Some(_) => {
                self.note_unknown(&matched.rule.text);
                return Effect::Next(vec![path]);
            }
        }
        Effect::Next(Vec::new())
    }

    fn note_unknown(&mut self, rule: &str) {
        self.not_understood.push(rule.to_owned());
    }

    /// The probability that the rule matches: zero or one, unless it uses random numbers.
    fn probability(&mut self, rule: &SavedRule<'_>, text: &str, path: &mut RulesPath<'_>) -> f64 {
        let mut probability = 1.0;
        for SavedOption { name, is_negated, value } in rule.matches() {
            let Some(matches) = self.option(rule, name, value, path) else {
                self.note_unknown(text);
                return 0.0;
            };
            let matches = if *is_negated { 1.0 - matches } else { matches };
            probability *= matches;
            if probability <= 0.0 {
                return 0.0;
            }
        }
        probability
    }

    /// The probability that one option matches; `None` for an unknown option.
    fn option(&self, rule: &SavedRule<'_>, name: &str, value: &str, path: &RulesPath<'_>) -> Option<f64> {
        let packet = self.context.packet;
        let destination = path.destination(packet);
        let matches = match name {
            "-m" | "--comment" | "--nfacct-name" => true,
            "-p" => value == lower_case(packet.protocol),
            "-s" => net(value)?.contains(&packet.source),
            "-d" => net(value)?.contains(&destination.ip()),
            "--dport" => value.parse::<u16>().ok()? == destination.port(),
            "-i" => match value.strip_suffix('+') {
                Some(prefix) => self.context.input_interface().starts_with(prefix),
                None => self.context.input_interface() == value,
            },
            "--src-type" if value == "LOCAL" => self.context.is_local(packet.source),
            "--dst-type" if value == "LOCAL" => self.context.is_local(destination.ip()),
            "--mark" => {
                let (mark, mask) = value.split_once('/').unwrap_or((value, "0xffffffff"));
                path.mark & number(mask)? == number(mark)?
            }
            "--ctstate" => value.split(',').any(|state| match state {
                "NEW" => true,
                "DNAT" => path.endpoint.is_some(),
                _ => false,
            }),
            "--mode" if value == "random" => true,
            "--probability" => return value.parse().ok(),
            // Options of `recent`, which identifies clients by their source address by default.
            "--name" | "--seconds" | "--reap" | "--rsource" | "--set" => true,
            "--mask" => value == "255.255.255.255" || value == "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            "--rcheck" => {
                let seconds = rule.value("--seconds").map_or(Some(u32::MAX), |text| text.parse().ok())?;
                (self.recent_clients)(rule.value("--name")?, packet.source, seconds)
            }
            _ => return None,
        };
        Some(if matches { 1.0 } else { 0.0 })
    }
}

enum Effect<'t> {
    /// These paths continue with the next rule.
    Next(Vec<RulesPath<'t>>),
    Return(RulesPath<'t>),
}

/// Merges paths that are at the same rule with the same state.
fn merge<'t>(paths: &mut Vec<RulesPath<'t>>, path: RulesPath<'t>) {
    let same = paths.iter_mut().find(|other| {
        (other.mark, other.endpoint, &other.changes) == (path.mark, path.endpoint, &path.changes)
    });
    match same {
        Some(other) => other.probability += path.probability,
        None => paths.push(path),
    }
}

fn recent<'t>(rule: &SavedRule<'t>) -> Option<Recent<'t>> {
    rule.value("--set")?;
    Some(Recent { list: rule.value("--name")? })
}

fn marked(mark: u32, rule: &SavedRule<'_>) -> Option<u32> {
    if let Some(value) = rule.value("--set-xmark") {
        let (value, mask) = value.split_once('/').unwrap_or((value, "0xffffffff"));
        return Some((mark & !number(mask)?) ^ number(value)?);
    }
    if let Some(value) = rule.value("--or-mark") {
        return Some(mark | number(value)?);
    }
    Some(mark ^ number(rule.value("--xor-mark")?)?)
}

fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn net(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}
