//! Runs rules in the format of `iptables-save` over a packet, as the kernel does.
//!
//! ```text
//!   what should be: desired ─┐
//!                            ├─▶ Tables ─▶ run ─▶ Walk
//!   what is: iptables-save ──┘
//! ```
//!
//! Of the kernel's own chains only those rules are run that jump to ours: whatever else a node has there is not this
//! proxy's, and may be anything.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;

use foldhash::fast::RandomState;
use ipnet::IpNet;

use crate::iptables::chains::{Jump, Table, lower_case};
use crate::iptables::listing::Listing;
use crate::iptables::saved_rule::{SavedOption, SavedRule};
use crate::nftables::program::HookPoint;
use crate::walk::{self, Context, Matched, Verdict};

pub type Walk<'a> = walk::Walk<'a, ListedRule<'a>, Recent<'a>>;
pub type Path<'a> = walk::Path<'a, ListedRule<'a>, Recent<'a>>;

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

/// The client is put on the list of this name, or again at its top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recent<'a> {
    pub list: &'a str,
}

/// Whether a client has been put on the list of this name within so many seconds.
pub type Remembers<'a> = &'a dyn Fn(&str, IpAddr, u32) -> bool;

/// Remembers no client.
pub const NOBODY: Remembers<'static> = &|_, _, _| false;

/// More than any of our chains need.
const MAX_JUMPS: usize = 8;

/// A rule that matches at random and changes the packet doubles the number of paths. None of ours does; of others, this many
/// additional paths are followed.
const MAX_PATHS: usize = 256;

impl<'a> Tables<'a> {
    /// What `iptables-save` prints of either table.
    pub fn saved(nat: &'a str, filter: &'a str) -> Self {
        let mut tables = Self::default();
        for (table, text) in [(Table::Nat, nat), (Table::Filter, filter)] {
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
                // There may be tens of thousands, and what does not lead to our chains is not followed.
                if chain.starts_with("KUBE-") || rule.contains("-j KUBE-") || rule.contains("-g KUBE-") {
                    let rule = ListedRule { text: Cow::Borrowed(rule) };
                    tables.of(table).entry(chain).or_default().push(rule);
                }
            }
        }
        tables
    }

    /// What the filter and the nat table should hold, with the jumps that lead there.
    pub fn desired([filter, nat]: &'a [Listing; 2]) -> Self {
        let mut tables = Self::default();
        // Each is put in front of those that are there.
        for jump in Jump::ALL.into_iter().rev() {
            let rule = ListedRule { text: Cow::Owned(jump.rule()) };
            tables.of(jump.table).entry(jump.from).or_default().push(rule);
            tables.of(jump.table).entry(jump.to).or_default();
        }
        for (table, Listing(chains)) in [(Table::Filter, filter), (Table::Nat, nat)] {
            for (name, rules) in chains {
                let rules = rules.iter().map(|rule| ListedRule { text: Cow::Borrowed(&**rule) });
                tables.of(table).insert(name, rules.collect());
            }
        }
        tables
    }

    fn of(&mut self, table: Table) -> &mut HashMap<&'a str, Vec<ListedRule<'a>>, RandomState> {
        match table {
            Table::Filter => &mut self.filter,
            Table::Nat => &mut self.nat,
        }
    }

    fn chain(&self, table: Table, name: &str) -> Option<(&'a str, &[ListedRule<'a>])> {
        let chains = match table {
            Table::Filter => &self.filter,
            Table::Nat => &self.nat,
        };
        chains.get_key_value(name).map(|(name, rules)| (*name, &rules[..]))
    }
}

/// What becomes of the packet.
pub fn run<'t>(tables: &'t Tables<'t>, context: &Context<'_>, remembers: Remembers<'_>) -> Walk<'t> {
    let mut run = Run { tables, context, remembers, added_paths: 0, not_understood: Vec::new() };
    let mut paths = Vec::new();
    for path in run.hook(context.first_hook(), !context.has_entry, vec![Path::start(context)]) {
        let destination = path.destination(context.packet).ip();
        let mut on_the_way = vec![path];
        for point in context.next_hooks(destination) {
            // What comes in again has been through nat already.
            let asks_nat = !context.has_entry && *point != HookPoint::Prerouting;
            on_the_way = run.hook(*point, asks_nat, on_the_way);
        }
        paths.extend(on_the_way);
    }
    run.not_understood.sort();
    run.not_understood.dedup();
    Walk { paths, not_understood: run.not_understood }
}

struct Run<'t, 'c> {
    tables: &'t Tables<'t>,
    context: &'c Context<'c>,
    remembers: Remembers<'c>,
    /// How many paths random matches have added, in all chains.
    added_paths: usize,
    not_understood: Vec<String>,
}

impl<'t> Run<'t, '_> {
    /// Sends packets through the tables of a hook in the order of their priorities.
    fn hook(&mut self, point: HookPoint, asks_nat: bool, paths: Vec<Path<'t>>) -> Vec<Path<'t>> {
        let (name, tables): (_, &[Table]) = match point {
            HookPoint::Prerouting => ("PREROUTING", &[Table::Nat]),
            HookPoint::Input => ("INPUT", &[Table::Filter]),
            HookPoint::Forward => ("FORWARD", &[Table::Filter]),
            HookPoint::Output => ("OUTPUT", &[Table::Nat, Table::Filter]),
            HookPoint::Postrouting => ("POSTROUTING", &[Table::Nat]),
        };
        let asked = tables.iter().filter(|table| asks_nat || **table != Table::Nat);
        asked.fold(paths, |paths, table| self.base_chain(*table, name, paths))
    }

    fn base_chain(&mut self, table: Table, name: &str, paths: Vec<Path<'t>>) -> Vec<Path<'t>> {
        let mut ended = Vec::new();
        for path in paths {
            if path.verdict != Verdict::Accept {
                ended.push(path);
                continue;
            }
            let past_end = self.chain(table, name, &mut Vec::new(), vec![path], &mut ended);
            ended.extend(past_end);
        }
        ended
    }

    /// Runs a chain. Returns the paths of what comes to its end, or returns from it.
    fn chain(
        &mut self,
        table: Table,
        name: &str,
        stack: &mut Vec<&'t str>,
        mut open: Vec<Path<'t>>,
        ended: &mut Vec<Path<'t>>,
    ) -> Vec<Path<'t>> {
        // The kernel rejects rules that loop. Saved text may be of another origin, and following a loop takes exponential time.
        let is_followed = stack.len() <= MAX_JUMPS && !stack.contains(&name);
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
                    self.give_up(&rule.text);
                    merge(&mut next, path);
                    continue;
                }
                if probability < 1.0 {
                    let missed = path.probability * (1.0 - probability);
                    merge(&mut next, Path { probability: missed, ..path.clone() });
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
        table: Table,
        rule: &SavedRule<'t>,
        matched: Matched<'t, ListedRule<'t>>,
        stack: &mut Vec<&'t str>,
        mut path: Path<'t>,
        ended: &mut Vec<Path<'t>>,
    ) -> Effect<'t> {
        let is_goto = rule.value("-j").is_none();
        let target = rule.target();
        match target {
            None => return Effect::Next(vec![path]),
            Some("RETURN") => return Effect::Return(path),
            Some("ACCEPT") => ended.push(path),
            Some("DROP") | Some("REJECT") => {
                path.verdict = if target == Some("DROP") { Verdict::Drop } else { Verdict::Reject };
                path.chains.clone_from(stack);
                ended.push(path);
            }
            Some("MASQUERADE") => ended.push(Path { is_masqueraded: true, ..path }),
            Some("DNAT") => match rule.value("--to-destination").and_then(|to| to.parse().ok()) {
                Some(endpoint) => {
                    path.chains.clone_from(stack);
                    ended.push(Path { endpoint: Some(endpoint), ..path });
                }
                None => {
                    self.give_up(&matched.rule.text);
                    return Effect::Next(vec![path]);
                }
            },
            Some("MARK") => {
                match marked(path.mark, rule) {
                    Some(mark) => path.mark = mark,
                    None => self.give_up(&matched.rule.text),
                }
                return Effect::Next(vec![path]);
            }
            Some(chain) if self.tables.chain(table, chain).is_some() => {
                let back = self.chain(table, chain, stack, vec![path], ended);
                if !is_goto {
                    return Effect::Next(back);
                }
                // Nothing of ours goes to a chain, and there is one path unless rules draw.
                return match <[Path<'t>; 1]>::try_from(back) {
                    Ok([path]) => Effect::Return(path),
                    Err(paths) => {
                        ended.extend(paths);
                        Effect::Next(Vec::new())
                    }
                };
            }
            Some(_) => {
                self.give_up(&matched.rule.text);
                return Effect::Next(vec![path]);
            }
        }
        Effect::Next(Vec::new())
    }

    fn give_up(&mut self, rule: &str) {
        self.not_understood.push(rule.to_owned());
    }

    /// How likely the rule matches: zero or one, unless it draws.
    fn probability(&mut self, rule: &SavedRule<'_>, text: &str, path: &mut Path<'_>) -> f64 {
        let mut probability = 1.0;
        for SavedOption { name, is_negated, value } in rule.matches() {
            let Some(matches) = self.option(rule, name, value, path) else {
                self.give_up(text);
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

    /// `None` for an option that is not known.
    fn option(&self, rule: &SavedRule<'_>, name: &str, value: &str, path: &Path<'_>) -> Option<f64> {
        let packet = self.context.packet;
        let destination = path.destination(packet);
        let is_so = match name {
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
            // Of `recent`. That a client is looked for by its source address is the default.
            "--name" | "--seconds" | "--reap" | "--rsource" | "--set" => true,
            "--mask" => value == "255.255.255.255" || value == "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            "--rcheck" => {
                let seconds = rule.value("--seconds").map_or(Some(u32::MAX), |text| text.parse().ok())?;
                (self.remembers)(rule.value("--name")?, packet.source, seconds)
            }
            _ => return None,
        };
        Some(if is_so { 1.0 } else { 0.0 })
    }
}

enum Effect<'t> {
    /// What goes on with the next rule.
    Next(Vec<Path<'t>>),
    Return(Path<'t>),
}

/// Paths that are at the same rule with the same mark go on as one.
fn merge<'t>(paths: &mut Vec<Path<'t>>, path: Path<'t>) {
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
