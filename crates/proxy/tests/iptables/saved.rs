//! The rules that the kernel holds as `iptables-save` prints them, and those that a restore text should lead to.

use std::collections::BTreeMap;

use model::address::Family;
use plan::iptables::chains::{CANARY, Jump};
use plan::iptables::listing::as_saved;

use crate::commands::Commands;

/// Rules by table and chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved(BTreeMap<(String, String), Vec<String>>);

impl Saved {
    pub fn read(commands: &Commands, family: Family) -> Self {
        let texts = ["filter", "nat"].map(|table| commands.save(family, table));
        Self::parse(&texts.concat())
    }

    /// Leaves out what differs between runs: comment lines, packet counts, and empty built-in chains, which the nft variant creates
    /// when they are first used.
    pub fn parse(text: &str) -> Self {
        let mut saved = Self::default();
        let mut table = "";
        for line in text.lines() {
            if let Some(name) = line.strip_prefix('*') {
                table = name;
            } else if let Some(chain) = line.strip_prefix(':') {
                if chain.contains(" - [") {
                    saved.chain(table, chain.split(' ').next().unwrap());
                }
            } else if let Some(rule) = line.strip_prefix("-A ") {
                let (chain, rule) = rule.split_once(' ').unwrap();
                saved.chain(table, chain).push(rule.to_owned());
            }
        }
        saved
    }

    /// The state after a restore into tables with nothing but the jumps.
    pub fn expected(restore: &str, family: Family) -> Self {
        let mut saved = Self::default();
        for jump in Jump::ALL {
            saved.chain(jump.table.name(), jump.to);
            saved.chain(jump.table.name(), jump.from).insert(0, jump.rule());
        }
        let mut table = "";
        for line in restore.lines() {
            if let Some(name) = line.strip_prefix('*') {
                table = name;
            } else if let Some(chain) = line.strip_prefix(':') {
                saved.chain(table, chain.split(' ').next().unwrap());
            } else if let Some(rule) = line.strip_prefix("-A ") {
                let (chain, rule) = rule.split_once(' ').unwrap();
                saved.chain(table, chain).push(as_saved(rule, family));
            } else if let Some(chain) = line.strip_prefix("-X ") {
                saved.0.remove(&(table.to_owned(), chain.to_owned()));
            }
        }
        saved
    }

    fn chain(&mut self, table: &str, chain: &str) -> &mut Vec<String> {
        self.0.entry((table.to_owned(), chain.to_owned())).or_default()
    }

    pub fn without_canaries(mut self) -> Self {
        self.0.retain(|(_, chain), _| chain != CANARY);
        self
    }

    pub fn forget(&mut self, table: &str, chain: &str) {
        self.0.remove(&(table.to_owned(), chain.to_owned()));
    }

    pub fn of(&self, table: &str, chain: &str) -> Option<&Vec<String>> {
        self.0.get(&(table.to_owned(), chain.to_owned()))
    }

    /// The rules for a kernel without packet counters: no rules that only count, and no matches that count.
    pub fn without_counters(mut self) -> Self {
        for rules in self.0.values_mut() {
            rules.retain(|rule| !rule.contains("localhost_nps_accepted_pkts"));
            for rule in rules {
                *rule = rule.replace(" -m nfacct --nfacct-name  ct_state_invalid_dropped_pkts", "");
            }
        }
        self
    }

    pub fn rules(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    /// Shows the first chain that differs, rather than both states.
    pub fn assert_same(&self, want: &Self, what: &str) {
        for chain in self.0.keys().chain(want.0.keys()) {
            assert_eq!(self.0.get(chain), want.0.get(chain), "{what}: {} {}", chain.0, chain.1);
        }
    }
}
