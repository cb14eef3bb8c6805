//! The input of `iptables-restore --noflush --counters`, as text.
//!
//! A chain line creates a chain, or flushes an existing one. All chain lines of a table come before its rules, so a chain that
//! is written again is empty before rules are added, and the chains that it jumped to can be removed.
//! Each table is changed atomically; filter comes before nat.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Write};

use crate::iptables::chains::{
    IptablesTable, MARK_MASQ, NODE_PORTS, POSTROUTING, Purpose, SERVICES, SharedChain,
};
use crate::iptables::program::{Fixed, NAT_CHAINS, RuleSettings};
use crate::iptables::quoting::word;
use crate::iptables::rules::{Line, RenderedChain, RuleUnit};

/// The input of one run of `iptables-restore`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Restore {
    pub filter: Section,
    pub nat: Section,
}

/// The part for one table.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Section {
    chains: String,
    rules: String,
    count: usize,
}

impl Restore {
    pub fn section(&mut self, table: IptablesTable) -> &mut Section {
        match table {
            IptablesTable::Filter => &mut self.filter,
            IptablesTable::Nat => &mut self.nat,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.filter.is_empty() && self.nat.is_empty()
    }

    /// Appends the changes of another restore.
    pub fn append(&mut self, other: Self) {
        for (section, other) in [(&mut self.filter, other.filter), (&mut self.nat, other.nat)] {
            section.chains.push_str(&other.chains);
            section.rules.push_str(&other.rules);
            section.count += other.count;
        }
    }

    /// The text in consecutive pieces. Tables without changes are left out.
    pub fn pieces(&self) -> impl Iterator<Item = &str> {
        [("*filter\n", &self.filter), ("*nat\n", &self.nat)]
            .into_iter()
            .filter(|(_, section)| !section.is_empty())
            .flat_map(|(header, section)| [header, &*section.chains, &*section.rules, "COMMIT\n"])
    }
}

impl fmt::Display for Restore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pieces().try_for_each(|piece| f.write_str(piece))
    }
}

impl Section {
    pub fn is_empty(&self) -> bool {
        self.chains.is_empty() && self.rules.is_empty()
    }

    /// The number of rules that it adds.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Creates the chain, or flushes it.
    pub fn chain(&mut self, name: impl Display) {
        let _ = writeln!(self.chains, ":{name} - [0:0]"); // writing to a string cannot fail
    }

    pub fn append(&mut self, chain: &str, rule: &str) {
        let _ = writeln!(self.rules, "-A {chain} {rule}");
        self.count += 1;
    }

    /// Positions count from one.
    pub fn insert(&mut self, chain: &str, at: usize, rule: &str) {
        let _ = writeln!(self.rules, "-I {chain} {at} {rule}");
        self.count += 1;
    }

    pub fn delete(&mut self, chain: &str, at: usize) {
        let _ = writeln!(self.rules, "-D {chain} {at}");
    }

    /// Removes the chain, which must be empty and have no jumps to it. A foreign writer may have chosen its name.
    pub fn remove(&mut self, chain: &str) {
        let _ = writeln!(self.rules, "-X {}", word(chain));
    }

    /// Replaces a service port's own chain.
    pub fn rewrite(&mut self, chain: &RenderedChain) {
        self.chain(chain.name);
        self.rules.push_str(chain.masquerade.as_deref().unwrap_or_default());
        self.rules.push_str(&chain.rules);
        self.count += chain.count;
    }

    /// Replaces all chains of a unit, in upstream's order.
    fn rewrite_all(&mut self, chains: &[RenderedChain]) {
        for chain in chains {
            self.chain(chain.name);
            self.rules.push_str(chain.masquerade.as_deref().unwrap_or_default());
        }
        for chain in chains {
            self.rules.push_str(&chain.rules);
            self.count += chain.count;
        }
    }

    fn append_fixed(&mut self, rules: &[Fixed]) {
        for (chain, rule) in rules {
            self.append(chain, rule);
        }
    }
}

/// Everything in one run, byte for byte as upstream. Units are sorted by name.
pub fn whole(
    settings: &RuleSettings,
    tail: &[String],
    units: Vec<RuleUnit>,
    stale: &BTreeSet<String>,
) -> Restore {
    let mut restore = Restore::default();
    let Restore { filter, nat } = &mut restore;
    settings.filter_chains().for_each(|chain| filter.chain(chain));
    filter.append_fixed(&settings.martians());
    NAT_CHAINS.into_iter().for_each(|chain| nat.chain(chain));
    nat.append_fixed(&settings.masquerading());

    let chains = units.iter().flat_map(|unit| &unit.chains);
    nat.rules.reserve(chains.map(|chain| chain.rules.len()).sum());
    for unit in units {
        append_lines(&unit.lines, filter, nat);
        nat.rewrite_all(&unit.chains);
    }
    stale.iter().for_each(|chain| nat.chain(chain));
    stale.iter().for_each(|chain| nat.remove(chain));
    tail.iter().for_each(|rule| nat.append(SharedChain::Services.name(), rule));
    filter.append_fixed(&settings.forwarding());
    restore
}

/// The same in several runs of about `limit` rules each, such that no packet reaches a missing or incomplete chain: the targets
/// of a chain are written before it, and the shared chains last.
pub fn in_batches(
    settings: &RuleSettings,
    tail: &[String],
    units: Vec<RuleUnit>,
    stale: &BTreeSet<String>,
    limit: usize,
) -> Vec<Restore> {
    let mut batches = Batches::of(limit);
    batches.add(4, |restore| write_base(settings, &mut restore.nat));
    let mut lines = Vec::new();
    for unit in units {
        unit.targets_first().into_iter().for_each(|chain| batches.add_chain(chain));
        lines.extend(unit.lines);
    }
    batches.add(lines.len(), |restore| write_shared(settings, tail, &lines, restore));
    batches.add_removals(stale);
    batches.into_restores()
}

/// Splits changes into runs, in the order in which they are added.
#[derive(Debug)]
pub struct Batches {
    limit: usize,
    done: Vec<Restore>,
    current: Restore,
    weight: usize,
}

impl Batches {
    pub fn of(limit: usize) -> Self {
        Self { limit, done: Vec::new(), current: Restore::default(), weight: 0 }
    }

    /// Adds changes that have to be in one run.
    pub fn add(&mut self, weight: usize, write: impl FnOnce(&mut Restore)) {
        if !self.current.is_empty() && self.weight.saturating_add(weight) > self.limit {
            self.done.push(std::mem::take(&mut self.current));
            self.weight = 0;
        }
        self.weight += weight;
        write(&mut self.current);
    }

    pub fn add_chain(&mut self, chain: &RenderedChain) {
        self.add(chain.count, |restore| restore.nat.rewrite(chain));
    }

    /// Removes a chain before those that it may jump to.
    pub fn add_removals(&mut self, stale: &BTreeSet<String>) {
        let mut stale: Vec<&String> = stale.iter().collect();
        stale.sort_by_key(|chain| Purpose::of(chain).map(Purpose::depth));
        for chain in stale {
            self.add(1, |restore| {
                restore.nat.chain(chain);
                restore.nat.remove(chain);
            });
        }
    }

    pub fn into_restores(mut self) -> Vec<Restore> {
        self.done.extend((!self.current.is_empty()).then_some(self.current));
        self.done
    }
}

/// Writes the fixed chains that service ports' own chains jump to or depend on.
fn write_base(settings: &RuleSettings, nat: &mut Section) {
    [POSTROUTING, MARK_MASQ].into_iter().for_each(|chain| nat.chain(chain));
    nat.append_fixed(&settings.masquerading());
}

/// Writes the fixed chains of the filter table, and all shared chains, which jump to service ports' own chains.
fn write_shared(settings: &RuleSettings, tail: &[String], lines: &[Line], restore: &mut Restore) {
    let Restore { filter, nat } = restore;
    settings.filter_chains().for_each(|chain| filter.chain(chain));
    filter.append_fixed(&settings.martians());
    [SERVICES, NODE_PORTS].into_iter().for_each(|chain| nat.chain(chain));
    append_lines(lines, filter, nat);
    tail.iter().for_each(|rule| nat.append(SERVICES, rule));
    filter.append_fixed(&settings.forwarding());
}

fn append_lines(lines: &[Line], filter: &mut Section, nat: &mut Section) {
    for line in lines {
        let section = match line.chain.table() {
            IptablesTable::Filter => &mut *filter,
            IptablesTable::Nat => &mut *nat,
        };
        section.append(line.chain.name(), &line.rule);
    }
}
