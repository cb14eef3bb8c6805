//! The input of `iptables-restore --noflush --counters`, as text.
//!
//! A chain line makes a chain, or empties the one that is there. All chain lines of a table come before its rules, so
//! a chain that is written again is empty before anything is added, and what it referred to can be removed.
//! Each table is changed as a whole or not at all; filter comes before nat.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Write};

use crate::iptables::chains::{
    IptablesTable, MARK_MASQ, NODE_PORTS, POSTROUTING, Purpose, SERVICES, SharedChain,
};
use crate::iptables::program::{Fixed, NAT_CHAINS, RuleSettings};
use crate::iptables::quoting::word;
use crate::iptables::rules::{Line, RenderedChain, RuleUnit};

/// What one run of `iptables-restore` is told.
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

    /// Does what the other does, too, after this.
    pub fn append(&mut self, other: Self) {
        for (section, other) in [(&mut self.filter, other.filter), (&mut self.nat, other.nat)] {
            section.chains.push_str(&other.chains);
            section.rules.push_str(&other.rules);
            section.count += other.count;
        }
    }

    /// The text in pieces, to be written one after the other. Tables in which nothing changes are left out.
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

    /// How many rules it adds.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Makes the chain, or empties it.
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

    /// Removes the chain, which must be empty by then, and no rule may jump to it. Its name may be a foreign writer's.
    pub fn remove(&mut self, chain: &str) {
        let _ = writeln!(self.rules, "-X {}", word(chain));
    }

    /// Writes a service port's own chain, whatever it held before.
    pub fn rewrite(&mut self, chain: &RenderedChain) {
        self.chain(chain.name);
        self.rules.push_str(chain.masquerade.as_deref().unwrap_or_default());
        self.rules.push_str(&chain.rules);
        self.count += chain.count;
    }

    /// The same for all chains of a unit, in the order of the reference.
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

/// Everything at once, to the byte as the reference does it. Units come in the order of their names.
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

/// The same in several runs, of about so many rules each, such that at no time a packet meets a chain that is missing
/// or written in part: what a chain jumps to comes before it, and the ways in come last.
pub fn in_batches(
    settings: &RuleSettings,
    tail: &[String],
    units: Vec<RuleUnit>,
    stale: &BTreeSet<String>,
    limit: usize,
) -> Vec<Restore> {
    let mut batches = Batches::of(limit);
    batches.add(4, |restore| ground(settings, &mut restore.nat));
    let mut lines = Vec::new();
    for unit in units {
        unit.targets_first().into_iter().for_each(|chain| batches.add_chain(chain));
        lines.extend(unit.lines);
    }
    batches.add(lines.len(), |restore| gates(settings, tail, &lines, restore));
    batches.add_removals(stale);
    batches.into_restores()
}

/// Cuts what is to be done into runs, in the order in which it comes.
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

    /// Adds what must not be cut.
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

    /// A chain goes before those that it may jump to.
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

/// The fixed chains that services' own chains jump to or rely on.
fn ground(settings: &RuleSettings, nat: &mut Section) {
    [POSTROUTING, MARK_MASQ].into_iter().for_each(|chain| nat.chain(chain));
    nat.append_fixed(&settings.masquerading());
}

/// The fixed chains of the filter table, and all shared chains: what leads packets to services' own chains.
fn gates(settings: &RuleSettings, tail: &[String], lines: &[Line], restore: &mut Restore) {
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
