//! Compares the tables with the desired ones, by one `iptables-save` for each.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use model::address::Family;
use model::names::ServicePortName;
use model::routing::Routing;
use netlink::accounting;
use plan::difference::{Difference, DifferenceKind, KernelObject};
use plan::iptables::chains::{FORWARD, IptablesTable, Jump, SERVICES, saved_chains};
use plan::iptables::compare::{Tolerance, compare};
use plan::iptables::desired::DesiredRules;
use plan::iptables::listing::Listing;
use plan::iptables::plan::IptablesPlan;
use plan::iptables::present::PresentRules;
use plan::iptables::program::{Counters, INVALID_DROPPED, LOCALHOST_NODE_PORTS, RuleSettings};
use plan::served::KernelComparison;

use super::runner::Runner;
use super::{Error, Programs, Rules, Variant};

pub const TABLES: [IptablesTable; 2] = [IptablesTable::Filter, IptablesTable::Nat];

/// What the tables of one family should hold.
#[derive(Debug)]
pub struct RulesSnapshot {
    pub(super) runner: Arc<Runner>,
    pub(super) rules: DesiredRules,
    /// Whether comments and packet counters of rules are part of the desired state. If not, those that the kernel holds are
    /// correct.
    pub(super) is_exact: bool,
}

impl RulesSnapshot {
    /// The desired state of a process that starts with these routings, which are sorted by name. `endpoints` is the number of all
    /// endpoints, usable or not; `interfaces` are the addresses of the node.
    pub fn new(
        access: &Rules,
        settings: RuleSettings,
        routings: Vec<(ServicePortName, Arc<Routing>)>,
        endpoints: usize,
        interfaces: &[IpAddr],
    ) -> Self {
        let comments = IptablesPlan::comments_for(endpoints);
        let tail = settings.tail(&settings.node_port_ips(interfaces).0);
        let services = routings.into_iter().map(|(name, routing)| (name, routing, comments)).collect();
        let rules = DesiredRules { settings, services, tail, stale: BTreeSet::new() };
        Self { runner: access.runner.clone(), rules, is_exact: false }
    }
}

/// What the rules of this mode in the kernel do. `None` if there are none, or if iptables is not installed.
pub fn present(family: Family) -> io::Result<Option<PresentRules>> {
    let Ok(runner) = Runner::open(Arc::new(Programs::default()), family) else { return Ok(None) };
    if !may_have_tables(&runner) || runner.check_presence().is_err() {
        return Ok(None);
    }
    let nat = runner.save(IptablesTable::Nat.name()).map_err(other)?;
    if saved_chains(&nat).all(|chain| chain != SERVICES) {
        return Ok(None);
    }
    let filter = runner.save(IptablesTable::Filter.name()).map_err(other)?;
    Ok(PresentRules::read(family, &filter, &nat))
}

/// Whether reading the tables leaves the kernel unchanged: the legacy variant creates a table when a command reads it.
fn may_have_tables(runner: &Runner) -> bool {
    let names = match runner.family() {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    runner.variant() == Variant::Nft
        || std::fs::read_to_string(names)
            .is_ok_and(|names| names.lines().any(|name| name == IptablesTable::Nat.name()))
}

/// A comparison of the kernel's tables with the desired ones.
#[derive(Debug)]
pub struct RulesInspection {
    desired: RulesSnapshot,
    /// The desired filter and nat tables, once they are computed.
    listings: Option<[Listing; 2]>,
}

impl RulesInspection {
    pub fn new(desired: RulesSnapshot) -> Self {
        Self { desired, listings: None }
    }

    /// Compares both tables.
    pub fn compare_all(&mut self) -> io::Result<KernelComparison> {
        let [filter, nat] = [self.save(IptablesTable::Filter)?, self.save(IptablesTable::Nat)?];
        let mut differences = self.compare_with(IptablesTable::Filter, &filter)?;
        differences.extend(self.compare_with(IptablesTable::Nat, &nat)?);
        Ok(KernelComparison::of_rules(self.listings(&filter), &[filter, nat], differences))
    }

    /// A difference, if there is one. Reads the second table only if the first one has none.
    pub fn first_difference(&mut self) -> io::Result<Option<Difference>> {
        for table in TABLES {
            if let Some(first) = self.compare(table)?.into_iter().next() {
                return Ok(Some(first));
            }
        }
        Ok(None)
    }

    /// Compares one table.
    pub fn compare(&mut self, table: IptablesTable) -> io::Result<Vec<Difference>> {
        let actual = self.save(table)?;
        if table == IptablesTable::Nat && self.listings.is_none() {
            let filter = self.save(IptablesTable::Filter)?;
            self.listings(&filter);
        }
        self.compare_with(table, &actual)
    }

    fn save(&self, table: IptablesTable) -> io::Result<Listing> {
        self.desired.runner.save(table.name()).map(|saved| Listing::parse(&saved)).map_err(other)
    }

    /// The desired listings. Unless the snapshot is exact, the actual filter table decides which rules count packets.
    fn listings(&mut self, filter: &Listing) -> &[Listing; 2] {
        self.listings.get_or_insert_with(|| {
            if !self.desired.is_exact {
                self.desired.rules.settings.abilities.counters = counters(filter);
            }
            self.desired.rules.tables()
        })
    }

    fn compare_with(&mut self, table: IptablesTable, actual: &Listing) -> io::Result<Vec<Difference>> {
        let mut all = self.missing_jumps(table, actual).map_err(other)?;
        // Computed from the filter table. For the nat table, the caller has done so.
        self.listings(actual);
        let Some([filter, nat]) = &self.listings else { return Ok(all) };
        let desired = match table {
            IptablesTable::Filter => filter,
            IptablesTable::Nat => nat,
        };
        let stale = &self.desired.rules.stale;
        let tolerance = Tolerance { stale, comments: !self.desired.is_exact };
        all.extend(compare(table, desired, actual, tolerance));
        Ok(all)
    }

    /// Foreign rules may precede and follow the jumps.
    fn missing_jumps(&self, table: IptablesTable, actual: &Listing) -> Result<Vec<Difference>, Error> {
        let mut all = Vec::new();
        for jump in Jump::ALL.into_iter().filter(|jump| jump.table == table) {
            let rules = actual.0.get(jump.from).map(Vec::as_slice).unwrap_or_default();
            // Some versions may print it differently, so `-C` decides.
            let exists = rules.contains(&jump.rule())
                || (actual.0.contains_key(jump.to)
                    && self.desired.runner.has_rule(table.name(), jump.from, &jump.arguments())?);
            if !exists {
                let object =
                    KernelObject::SavedRule { table, chain: jump.from.to_owned(), rule: jump.rule() };
                all.push(Difference::new(DifferenceKind::Missing, object));
            }
        }
        Ok(all)
    }
}

/// The counters that the actual rules use or, if there are no rules, those that the kernel supports.
fn counters(filter: &Listing) -> Counters {
    match filter.0.get(FORWARD).filter(|rules| !rules.is_empty()) {
        Some(rules) => {
            let counts = rules.iter().any(|rule| rule.contains(INVALID_DROPPED));
            Counters { invalid_dropped: counts, localhost_node_ports: counts }
        }
        None => {
            let is_supported = accounting::AccountingSocket::open()
                .is_ok_and(|mut socket| socket.get(LOCALHOST_NODE_PORTS).is_ok());
            Counters { invalid_dropped: is_supported, localhost_node_ports: is_supported }
        }
    }
}

fn other(error: Error) -> io::Error {
    io::Error::other(error)
}
