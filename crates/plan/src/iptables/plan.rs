//! What all service ports together need in the kernel, and what to send to get there.
//!
//! ```text
//!   accept ──▶ units: as desired ─────┐
//!                                     ├─▶ full | partial ─▶ Attempt ─▶ restores ─▶ settle
//!              settled: as the kernel ┘                                     └────▶ dropped: the next one is full
//!              has those that changed
//! ```
//!
//! A partial sync costs what the changed service ports weigh; where lines of shared chains change, their positions are
//! found by adding up numbers, not by looking at rules.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use model::cluster::Changes;
use model::names::ServicePortName;
use model::routing::Routing;

use crate::iptables::chains::{Purpose, ServiceChain, Shared, Table};
use crate::iptables::desired::DesiredRules;
use crate::iptables::edits::{PerChain, Splice};
use crate::iptables::program::{Abilities, Counters, Settings};
use crate::iptables::restore::{Batches, Restore, in_batches, whole};
use crate::iptables::rules::{EndpointComments, Line, Unit};

/// With more endpoints than this, rules no longer name them and housekeeping becomes rarer.
const LARGE_CLUSTER: usize = 1_000;
/// How often everything is written again, changed or not. Not in large clusters.
const FULL_SYNC_PERIOD: Duration = Duration::from_secs(60 * 60);

/// How much the kernel is told at once. What is best differs between the two variants of iptables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manner {
    /// Rules in one run of `iptables-restore`, as far as they can be separated.
    pub batch: usize,
    /// Lines of one shared chain that are changed one by one; if there are more, the chain is written again.
    pub edits: usize,
}

impl Manner {
    /// Each run reads and writes the whole table: one run. That also makes single lines cheap to find, but hardly cheaper
    /// to change: with 10,000 services 0.85 s instead of 1.05 s. Nothing reports that a foreign writer puts a rule into our
    /// chains, and then a position is that of another line; for a fifth that is not worth it.
    pub const LEGACY: Self = Self { batch: usize::MAX, edits: 0 };
    /// The time that one run takes grows with the square of its rules. With 10,000 services, writing `KUBE-SERVICES` again
    /// takes 1.8 s, changing a line of it 0.2 s. The kernel reports foreign writers, so what they displace is soon repaired.
    pub const NFT: Self = Self { batch: 3_000, edits: 100 };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Everything is written. The jumps and counters have to be there, and the chains in the kernel to be known.
    Full,
    /// Only what changed is written.
    Partial,
}

/// How many rules there are, and how many of them are written in this sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCounts {
    pub filter: usize,
    pub nat: usize,
    pub filter_written: usize,
    pub nat_written: usize,
}

/// What the kernel should hold, what it holds, and when what is due.
#[derive(Debug)]
pub struct Plan {
    settings: Settings,
    manner: Manner,
    sync_period: Duration,

    units: BTreeMap<ServicePortName, Entry>,
    /// Those that changed since the last settled sync, as they were then.
    settled: BTreeMap<ServicePortName, Option<Entry>>,
    /// Lines that service ports have in the shared chains, all together.
    lines: PerChain<usize>,
    /// Rules in their own chains.
    rules: usize,

    /// Of the whole cluster, usable or not.
    endpoints: usize,
    node_port_ips: Vec<IpAddr>,
    settled_tail: Vec<String>,
    /// Service ports' chains that are or may be in the kernel and that no service port needs.
    stale: BTreeSet<String>,

    needs_full: bool,
    /// A foreign writer may have changed the tables.
    is_doubtful: bool,
    /// A foreign writer has, and that is not repaired yet.
    has_drifted: bool,
    counter_match: CounterMatch,
    is_large: bool,
    last_full: Option<Instant>,
    last_removal: Option<Instant>,
}

/// Whether rules can have the match that feeds packet counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CounterMatch {
    /// Nothing speaks against it.
    Usable,
    /// A full sync was refused with it. The next one does without, and whether that succeeds tells more.
    Suspect {
        /// The refusal names it.
        is_named: bool,
    },
    /// The commands or the kernel lack it.
    Missing,
}

/// What has to be known of a service port to render it, and to count the rules above its own.
#[derive(Debug)]
struct Entry {
    routing: Arc<Routing>,
    comments: EndpointComments,
    lines: PerChain<usize>,
    rules: usize,
}

/// A sync that has been prepared: true once settled. Dropping it means that it failed, and the next one is full.
#[must_use]
#[derive(Debug)]
pub struct Attempt<'a> {
    plan: &'a mut Plan,
    now: Instant,
    scope: Scope,
    restores: Vec<Restore>,
    counts: RuleCounts,
    removes_stale: bool,
    knows_kernel: bool,
    is_settled: bool,
}

impl Plan {
    /// Stale chains of large clusters are removed once per sync period.
    pub fn new(settings: Settings, manner: Manner, sync_period: Duration) -> Self {
        Self {
            settings,
            manner,
            sync_period,
            units: BTreeMap::new(),
            settled: BTreeMap::new(),
            lines: PerChain::default(),
            rules: 0,
            endpoints: 0,
            node_port_ips: Vec::new(),
            settled_tail: Vec::new(),
            stale: BTreeSet::new(),
            needs_full: true,
            is_doubtful: false,
            has_drifted: false,
            counter_match: CounterMatch::Usable,
            is_large: false,
            last_full: None,
            last_removal: None,
        }
    }

    /// From now on no rule is changed by its number: a foreign writer may put another one before it unnoticed.
    pub fn write_whole_chains(&mut self) {
        self.manner.edits = 0;
    }

    /// Makes the changes part of the desired state.
    pub fn accept(&mut self, changes: Changes) {
        for (name, routing) in changes.routings {
            self.replace(name, routing);
        }
        self.endpoints = changes.endpoints.unwrap_or(self.endpoints);
    }

    /// Makes this the routing of the service port; `None` if it is gone.
    pub fn replace(&mut self, name: ServicePortName, routing: Option<Arc<Routing>>) {
        let before = match routing {
            Some(routing) => self.units.insert(name.clone(), Entry::new(routing)),
            None => self.units.remove(&name),
        };
        self.settled.entry(name).or_insert(before);
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Every rule may follow from the settings: if they change, all are written.
    pub fn change_settings(&mut self, settings: Settings) {
        self.needs_full |= self.settings != settings;
        self.settings = settings;
    }

    /// Whether packet counters should be ensured for the next full sync.
    pub fn uses_counters(&self) -> bool {
        self.counter_match == CounterMatch::Usable
    }

    /// The packet counters that the kernel has: a rule whose counter is missing is written without it.
    pub fn use_counters(&mut self, counters: Counters) {
        let abilities = Abilities { counters, ..self.settings.abilities };
        self.change_settings(Settings { abilities, ..self.settings.clone() });
    }

    /// The addresses that the node has now. Returns those at which node ports were asked for but cannot be served.
    pub fn move_to(&mut self, interfaces: &[IpAddr]) -> Vec<IpAddr> {
        let (served, refused) = self.settings.node_port_ips(interfaces);
        self.node_port_ips = served;
        refused
    }

    /// What the tables should hold, for others to compare with what they do.
    pub fn desired(&self) -> DesiredRules {
        let services = self.units.iter();
        DesiredRules {
            settings: self.settings.clone(),
            services: services
                .map(|(name, entry)| (name.clone(), entry.routing.clone(), entry.comments))
                .collect(),
            tail: self.tail(),
            stale: self.stale.clone(),
        }
    }

    /// Whether rules name the endpoints they are for, in a cluster of so many.
    pub fn comments_for(endpoints: usize) -> EndpointComments {
        if endpoints > LARGE_CLUSTER { EndpointComments::LeftOut } else { EndpointComments::Written }
    }

    /// The next sync writes everything, whatever the tables hold.
    pub fn require_full(&mut self) {
        self.needs_full = true;
    }

    /// A foreign writer may have changed the tables. It may well have written the same: to write everything again
    /// would only make that one do so, too.
    pub fn distrust(&mut self) {
        self.is_doubtful = true;
    }

    /// Whether the tables have to be compared with [`Plan::desired`] before changes are accepted; not if everything is
    /// written anyway.
    pub fn needs_comparison(&self, now: Instant) -> bool {
        self.is_doubtful && self.scope(now) == Scope::Partial
    }

    /// The tables were compared with the desired state, or could not be: then they are taken to differ.
    pub fn compared(&mut self, differs: bool) {
        self.is_doubtful = false;
        self.has_drifted |= differs;
        self.needs_full |= differs;
    }

    pub fn scope(&self, now: Instant) -> Scope {
        let ago = |then: Option<Instant>| then.map(|then| now.saturating_duration_since(then));
        let is_due = !self.is_large && ago(self.last_full).is_none_or(|ago| ago > FULL_SYNC_PERIOD);
        if self.needs_full || is_due { Scope::Full } else { Scope::Partial }
    }

    /// Prepares to write everything. `found` are the chains of the nat table. If they could not be read, only chains that
    /// we wrote are removed, and the next sync is full, too.
    pub fn full(&mut self, now: Instant, found: Option<&[&str]>) -> Attempt<'_> {
        self.is_large = self.endpoints > LARGE_CLUSTER;
        let units = self.render_all();
        self.stale = self.unwanted(&units, found);
        let removes_stale = self.removes_stale(now);

        let nothing = BTreeSet::new();
        let stale = if removes_stale { &self.stale } else { &nothing };
        let tail = self.tail();
        let RuleCounts { filter, nat, .. } = self.counts();
        let limit = self.manner.batch;
        let restores = if filter.saturating_add(nat) <= limit {
            vec![whole(&self.settings, &tail, units, stale)]
        } else {
            in_batches(&self.settings, &tail, units, stale, limit)
        };
        self.attempt(now, Scope::Full, restores, removes_stale, found.is_some())
    }

    /// Prepares to write what changed; everything if it is not known from where.
    pub fn partial(&mut self, now: Instant) -> Attempt<'_> {
        if self.needs_full {
            return self.full(now, None);
        }
        self.is_large = self.endpoints > LARGE_CLUSTER;
        let mut batches = Batches::of(self.manner.batch);
        let changes = self.write_chains(&mut batches);

        let mut gates = Gates::default();
        for chain in Shared::ALL {
            self.write_lines(chain, changes.get(chain), &mut gates);
        }
        if gates.weight > 0 {
            batches.add(gates.weight, |restore| restore.append(gates.restore));
        }
        let removes_stale = self.removes_stale(now);
        if removes_stale {
            batches.add_removals(&self.stale);
        }
        self.attempt(now, Scope::Partial, batches.into_restores(), removes_stale, true)
    }

    /// It may have been for something else that has passed meanwhile.
    fn trust_counters_again(&mut self) {
        if self.counter_match != CounterMatch::Missing {
            self.counter_match = CounterMatch::Usable;
        }
    }

    fn attempt(
        &mut self,
        now: Instant,
        scope: Scope,
        restores: Vec<Restore>,
        removes_stale: bool,
        knows_kernel: bool,
    ) -> Attempt<'_> {
        let counts = RuleCounts {
            filter_written: restores.iter().map(|restore| restore.filter.count()).sum(),
            nat_written: restores.iter().map(|restore| restore.nat.count()).sum(),
            ..self.counts()
        };
        Attempt { plan: self, now, scope, restores, counts, removes_stale, knows_kernel, is_settled: false }
    }

    fn counts(&self) -> RuleCounts {
        let lines = |table| {
            let chains = Shared::ALL.into_iter().filter(move |chain| chain.table() == table);
            chains.map(|chain| self.lines.get(chain)).sum::<usize>()
        };
        let settings = &self.settings;
        RuleCounts {
            filter: settings.martians().len() + lines(Table::Filter) + settings.forwarding().len(),
            nat: settings.masquerading().len() + lines(Table::Nat) + self.rules + self.tail().len(),
            ..RuleCounts::default()
        }
    }

    fn tail(&self) -> Vec<String> {
        self.settings.tail(&self.node_port_ips)
    }

    fn comments(&self) -> EndpointComments {
        if self.is_large { EndpointComments::LeftOut } else { EndpointComments::Written }
    }

    fn removes_stale(&self, now: Instant) -> bool {
        let is_due =
            self.last_removal.is_none_or(|then| now.saturating_duration_since(then) > self.sync_period);
        !self.is_large || is_due
    }

    fn render_all(&mut self) -> Vec<Unit> {
        let comments = self.comments();
        self.lines = PerChain::default();
        self.rules = 0;
        let mut units = Vec::with_capacity(self.units.len());
        for (name, entry) in &mut self.units {
            let unit = Unit::render(name, &entry.routing, &self.settings, comments);
            entry.comments = comments;
            entry.count(&unit);
            for chain in Shared::ALL {
                *self.lines.get_mut(chain) += entry.lines.get(chain);
            }
            self.rules += entry.rules;
            units.push(unit);
        }
        units
    }

    /// The chains of service ports that no service port needs, of those found or, if they could not be read, of those known.
    fn unwanted(&self, units: &[Unit], found: Option<&[&str]>) -> BTreeSet<String> {
        let wanted: HashSet<ServiceChain, RandomState> =
            units.iter().flat_map(|unit| unit.chains.iter().map(|chain| chain.name)).collect();
        let is_unwanted = |name: &str| {
            Purpose::of(name).is_some()
                // A foreign writer's name may be one that no restore can tell.
                && !name.contains(char::is_control)
                && ServiceChain::from_name(name).is_none_or(|chain| !wanted.contains(&chain))
        };
        let known = || {
            let settled = self.settled.iter().filter_map(|(name, entry)| Some((name, entry.as_ref()?)));
            let units = settled.map(|(name, entry)| entry.render(name, &self.settings));
            let chains = units.flat_map(|unit| unit.chains).map(|chain| chain.name.to_string());
            chains.chain(self.stale.iter().cloned()).collect::<Vec<String>>()
        };
        let candidates = match found {
            Some(found) => found.iter().map(|&name| name.to_owned()).collect(),
            None => known(),
        };
        candidates.into_iter().filter(|name| is_unwanted(name)).collect()
    }

    /// Writes the changed chains of changed service ports, and returns which of their lines in shared chains changed.
    fn write_chains(&mut self, batches: &mut Batches) -> PerChain<Vec<LineChange>> {
        let comments = self.comments();
        let mut changes = PerChain::<Vec<LineChange>>::default();
        for (name, settled) in &self.settled {
            let before = settled.as_ref().map(|entry| entry.render(name, &self.settings)).unwrap_or_default();
            let after = match self.units.get_mut(name) {
                Some(entry) => {
                    entry.comments = comments;
                    let unit = entry.render(name, &self.settings);
                    entry.count(&unit);
                    unit
                }
                None => Unit::default(),
            };
            self.rules = self.rules + after.rules() - before.rules();

            let mut gone: BTreeMap<ServiceChain, _> =
                before.chains.into_iter().map(|chain| (chain.name, chain)).collect();
            for chain in after.targets_first() {
                self.stale.remove(&chain.name.to_string());
                if gone.remove(&chain.name).as_ref() != Some(chain) {
                    batches.add_chain(chain);
                }
            }
            self.stale.extend(gone.into_keys().map(|name| name.to_string()));

            if before.lines != after.lines {
                for (chain, change) in line_changes(name, before.lines, after.lines) {
                    let lines = self.lines.get_mut(chain);
                    *lines = *lines + change.after.len() - change.before.len();
                    changes.get_mut(chain).push(change);
                }
            }
        }
        changes
    }

    /// Changes the lines of a shared chain one by one, or all of them if that is less to do.
    fn write_lines(&self, chain: Shared, changes: &[LineChange], gates: &mut Gates) {
        let tail = if chain == Shared::Services { self.tail() } else { Vec::new() };
        let settled_tail = if chain == Shared::Services { &self.settled_tail[..] } else { &[] };
        if changes.is_empty() && tail == settled_tail {
            return;
        }
        let length = self.lines.get(chain) + tail.len();
        let mut splices = self.splices(chain, changes);
        splices.extend(Splice::between(1 + self.lines.get(chain), settled_tail, &tail));
        let cost: usize = splices.iter().map(Splice::cost).sum();

        let section = gates.restore.section(chain.table());
        if cost <= self.manner.edits && cost <= length {
            splices.iter().for_each(|splice| splice.write(chain.name(), section));
            gates.weight += cost;
            return;
        }
        section.chain(chain.name());
        for (name, entry) in self.units.iter().filter(|(_, entry)| *entry.lines.get(chain) > 0) {
            let lines = Unit::render_lines(name, &entry.routing, &self.settings);
            lines
                .iter()
                .filter(|line| line.chain == chain)
                .for_each(|line| section.append(chain.name(), &line.rule));
        }
        tail.iter().for_each(|rule| section.append(chain.name(), rule));
        gates.weight += length.max(1);
    }

    /// In the order of names, so that above each of them everything is as it will be.
    fn splices(&self, chain: Shared, changes: &[LineChange]) -> Vec<Splice> {
        let mut at = 1;
        let mut from = Bound::Unbounded;
        let mut splices = Vec::new();
        for change in changes {
            let between = self.units.range((from, Bound::Excluded(&change.name)));
            at += between.map(|(_, entry)| entry.lines.get(chain)).sum::<usize>();
            from = Bound::Included(&change.name);
            splices.extend(Splice::between(at, &change.before, &change.after));
        }
        splices
    }
}

/// What is written to the shared chains; never cut, so that they lead to what is there.
#[derive(Debug, Default)]
struct Gates {
    restore: Restore,
    weight: usize,
}

/// The lines of one service port in one shared chain.
#[derive(Debug)]
struct LineChange {
    name: ServicePortName,
    before: Vec<String>,
    after: Vec<String>,
}

fn line_changes(
    name: &ServicePortName,
    before: Vec<Line>,
    after: Vec<Line>,
) -> impl Iterator<Item = (Shared, LineChange)> {
    let by_chain = |lines: Vec<Line>| {
        let mut sorted = PerChain::<Vec<String>>::default();
        lines.into_iter().for_each(|line| sorted.get_mut(line.chain).push(line.rule));
        sorted
    };
    let (mut before, mut after) = (by_chain(before), by_chain(after));
    Shared::ALL.into_iter().filter_map(move |chain| {
        let before = std::mem::take(before.get_mut(chain));
        let after = std::mem::take(after.get_mut(chain));
        (before != after).then(|| (chain, LineChange { name: name.clone(), before, after }))
    })
}

impl Entry {
    fn new(routing: Arc<Routing>) -> Self {
        Self { routing, comments: EndpointComments::Written, lines: PerChain::default(), rules: 0 }
    }

    fn render(&self, name: &ServicePortName, settings: &Settings) -> Unit {
        Unit::render(name, &self.routing, settings, self.comments)
    }

    fn count(&mut self, unit: &Unit) {
        self.lines = PerChain::default();
        unit.lines.iter().for_each(|line| *self.lines.get_mut(line.chain) += 1);
        self.rules = unit.rules();
    }
}

impl Attempt<'_> {
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// What to give to `iptables-restore`, one after the other; nothing if nothing changed. If one is refused, those
    /// after it must not be sent.
    pub fn restores(&self) -> &[Restore] {
        &self.restores
    }

    pub fn counts(&self) -> RuleCounts {
        self.counts
    }

    /// Whether it repairs what a foreign writer has changed.
    pub fn has_drifted(&self) -> bool {
        self.scope == Scope::Full && self.plan.has_drifted
    }

    /// A restore was refused, and `names_counters` says whether for the match of packet counters. Returns whether the next
    /// sync tries something else, so that it should be made at once.
    pub fn refused(self, names_counters: bool) -> bool {
        let plan = &mut *self.plan;
        let had_counters = plan.settings.abilities.counters != Counters::default();
        match self.scope {
            Scope::Partial => true,
            Scope::Full if had_counters => {
                // A kernel may keep counters and yet lack the match that feeds them.
                plan.counter_match = CounterMatch::Suspect { is_named: names_counters };
                true
            }
            Scope::Full => {
                plan.trust_counters_again();
                false
            }
        }
    }

    /// The kernel has taken all of it.
    pub fn settle(mut self) {
        self.is_settled = true;
        let plan = &mut *self.plan;
        if self.scope == Scope::Full {
            plan.has_drifted = false;
            match plan.counter_match {
                CounterMatch::Suspect { is_named: true } => plan.counter_match = CounterMatch::Missing,
                CounterMatch::Suspect { is_named: false } => plan.trust_counters_again(),
                CounterMatch::Usable | CounterMatch::Missing => {}
            }
        }
        plan.settled.clear();
        plan.settled_tail = plan.tail();
        plan.needs_full = !self.knows_kernel;
        if self.scope == Scope::Full {
            plan.last_full = Some(self.now);
        }
        if self.removes_stale {
            plan.stale.clear();
            plan.last_removal = Some(self.now);
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.plan.needs_full |= !self.is_settled;
    }
}
