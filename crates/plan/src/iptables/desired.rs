//! The desired content of the tables, by chain and as `iptables-save` prints it.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::names::ServicePortName;
use model::routing::Routing;

use crate::iptables::chains::{IptablesTable, SERVICES};
use crate::iptables::listing::{Listing, as_saved};
use crate::iptables::program::{Fixed, NAT_CHAINS, RuleSettings};
use crate::iptables::rules::{EndpointComments, RuleUnit};

/// A snapshot of everything that the desired rules depend on. It shares the routings.
#[derive(Clone, Debug)]
pub struct DesiredRules {
    pub settings: RuleSettings,
    /// Sorted by name.
    pub services: Vec<(ServicePortName, Arc<Routing>, EndpointComments)>,
    /// The last rules of nat KUBE-SERVICES.
    pub tail: Vec<String>,
    /// Chains that no service port has any more, and that a later sync removes.
    pub stale: BTreeSet<String>,
}

impl DesiredRules {
    /// The desired filter table and nat table.
    pub fn tables(&self) -> [Listing; 2] {
        let settings = &self.settings;
        let mut tables = Tables { settings, filter: Listing::default(), nat: Listing::default() };
        settings.filter_chains().for_each(|chain| _ = tables.chain(IptablesTable::Filter, chain));
        NAT_CHAINS.into_iter().for_each(|chain| _ = tables.chain(IptablesTable::Nat, chain));
        tables.add_fixed(IptablesTable::Filter, settings.martians());
        tables.add_fixed(IptablesTable::Nat, settings.masquerading());
        for (name, routing, comments) in &self.services {
            tables.add_unit(RuleUnit::render(name, routing, settings, *comments));
        }
        for rule in &self.tail {
            tables.add(IptablesTable::Nat, SERVICES, rule);
        }
        tables.add_fixed(IptablesTable::Filter, settings.forwarding());
        [tables.filter, tables.nat]
    }
}

struct Tables<'a> {
    settings: &'a RuleSettings,
    filter: Listing,
    nat: Listing,
}

impl Tables<'_> {
    fn chain(&mut self, table: IptablesTable, chain: &str) -> &mut Vec<String> {
        let Listing(chains) = match table {
            IptablesTable::Filter => &mut self.filter,
            IptablesTable::Nat => &mut self.nat,
        };
        chains.entry(chain.to_owned()).or_default()
    }

    fn add(&mut self, table: IptablesTable, chain: &str, rule: &str) {
        let rule = as_saved(rule, self.settings.family);
        self.chain(table, chain).push(rule);
    }

    fn add_fixed(&mut self, table: IptablesTable, rules: Vec<Fixed>) {
        for (chain, rule) in rules {
            self.add(table, chain, &rule);
        }
    }

    fn add_unit(&mut self, unit: RuleUnit) {
        for line in unit.lines {
            self.add(line.chain.table(), line.chain.name(), &line.rule);
        }
        for chain in unit.chains {
            let name = chain.name.to_string();
            self.chain(IptablesTable::Nat, &name);
            let lines = chain.masquerade.as_deref().unwrap_or_default().lines().chain(chain.rules.lines());
            for (_, rule) in lines.filter_map(|line| line.strip_prefix("-A ")?.split_once(' ')) {
                self.add(IptablesTable::Nat, &name, rule);
            }
        }
    }
}
