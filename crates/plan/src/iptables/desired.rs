//! Everything the tables should hold, by chain and as `iptables-save` would print it, with whose it is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::names::ServicePortName;
use model::routing::Routing;

use crate::iptables::chains::{SERVICES, Table};
use crate::iptables::listing::as_saved;
use crate::iptables::program::{Fixed, NAT_CHAINS, Settings};
use crate::iptables::rules::{EndpointComments, Unit};

/// What follows from this is what the tables should hold. A snapshot: routings are shared.
#[derive(Clone, Debug)]
pub struct DesiredRules {
    pub settings: Settings,
    /// In the order of their names.
    pub services: Vec<(ServicePortName, Arc<Routing>, EndpointComments)>,
    /// The last rules of nat KUBE-SERVICES.
    pub tail: Vec<String>,
    /// Chains that no service port needs and whose time to be removed is still to come.
    pub stale: BTreeSet<String>,
}

/// The chains of one table.
pub type Chains = BTreeMap<String, DesiredChain>;

/// A chain, whose it is, and its rules in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredChain {
    pub service: Option<ServicePortName>,
    pub rules: Vec<DesiredRule>,
}

/// A rule as it is printed, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredRule {
    pub text: String,
    pub service: Option<ServicePortName>,
}

impl DesiredRules {
    /// What the filter and the nat table should hold.
    pub fn chains(&self) -> [Chains; 2] {
        let mut tables = Tables { settings: &self.settings, filter: Chains::new(), nat: Chains::new() };
        let settings = &self.settings;
        settings.filter_chains().for_each(|chain| _ = tables.chain(Table::Filter, chain));
        NAT_CHAINS.into_iter().for_each(|chain| _ = tables.chain(Table::Nat, chain));
        tables.add_fixed(Table::Filter, settings.martians());
        tables.add_fixed(Table::Nat, settings.masquerading());
        for (name, routing, comments) in &self.services {
            tables.add_unit(name, Unit::render(name, routing, settings, *comments));
        }
        for rule in &self.tail {
            tables.add(Table::Nat, SERVICES, rule, None);
        }
        tables.add_fixed(Table::Filter, settings.forwarding());
        [tables.filter, tables.nat]
    }
}

struct Tables<'a> {
    settings: &'a Settings,
    filter: Chains,
    nat: Chains,
}

impl Tables<'_> {
    fn chain(&mut self, table: Table, chain: &str) -> &mut DesiredChain {
        let chains = match table {
            Table::Filter => &mut self.filter,
            Table::Nat => &mut self.nat,
        };
        chains.entry(chain.to_owned()).or_default()
    }

    fn add(&mut self, table: Table, chain: &str, rule: &str, service: Option<&ServicePortName>) {
        let rule = DesiredRule { text: as_saved(rule, self.settings.family), service: service.cloned() };
        self.chain(table, chain).rules.push(rule);
    }

    fn add_fixed(&mut self, table: Table, rules: Vec<Fixed>) {
        for (chain, rule) in rules {
            self.add(table, chain, &rule, None);
        }
    }

    fn add_unit(&mut self, name: &ServicePortName, unit: Unit) {
        for line in unit.lines {
            self.add(line.chain.table(), line.chain.name(), &line.rule, Some(name));
        }
        for chain in unit.chains {
            let text = chain.name.to_string();
            self.chain(Table::Nat, &text).service = Some(name.clone());
            let lines = chain.masquerade.as_deref().unwrap_or_default().lines().chain(chain.rules.lines());
            for (_, rule) in lines.filter_map(|line| line.strip_prefix("-A ")?.split_once(' ')) {
                self.add(Table::Nat, &text, rule, Some(name));
            }
        }
    }
}
