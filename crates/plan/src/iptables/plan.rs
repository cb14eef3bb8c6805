//! The desired state of the tables, what is known of their actual state, and the restores that lead there.
//!
//! ```text
//!   accept ──▶ units: desired ───────────────┐
//!              settled: what the kernel has, ├─▶ full | partial ─▶ Attempt ─▶ restores ─▶ settle
//!              of those that changed ────────┘                                     └────▶ dropped: the next one is full
//! ```
//!
//! The cost of a partial sync depends on the size of the changed service ports. It finds the positions of lines in shared chains
//! by adding up numbers of lines, without rendering rules.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use model::cluster::Changes;
use model::names::ServicePortName;
use model::routing::Routing;

use crate::iptables::chains::{IptablesTable, Purpose, ServiceChain, SharedChain};
use crate::iptables::desired::DesiredRules;
use crate::iptables::edits::{PerChain, Splice};
use crate::iptables::program::{Abilities, Counters, RuleSettings};
use crate::iptables::restore::{Batches, Restore, in_batches, whole};
use crate::iptables::rules::{EndpointComments, Line, RuleUnit};

/// With more endpoints than this, rules have no comments for endpoints, and periodic work is done less often.
const LARGE_CLUSTER: usize = 1_000;
/// How often everything is written again, except in large clusters.
const FULL_SYNC_PERIOD: Duration = Duration::from_secs(60 * 60);

/// How much one run of `iptables-restore` writes. The best values differ between the two variants of iptables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoreLimits {
    /// The maximum number of rules in one run, as far as they can be separated.
    pub batch: usize,
    /// The maximum number of lines of one shared chain that are changed one by one; with more, the chain is written again.
    pub edits: usize,
}

impl RestoreLimits {
    /// Each run reads and writes the whole table, so there is one run. Changing single lines is only slightly faster: 0.85 s
    /// instead of 1.05 s with 10,000 Services. It is not worth the risk: nothing reports that a foreign writer inserts a rule
    /// into our chains, and then a position is that of another line.
    pub const LEGACY: Self = Self { batch: usize::MAX, edits: 0 };
    /// The duration of a run grows with the square of its number of rules. With 10,000 Services, writing `KUBE-SERVICES` again
    /// takes 1.8 s, and changing a line of it 0.2 s. The kernel reports foreign writers, so that a wrong position is soon
    /// repaired.
    pub const NFT: Self = Self { batch: 3_000, edits: 100 };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Writes everything. The caller has ensured the jumps and counters, and has listed the chains in the kernel.
    Full,
    /// Writes only what changed.
    Partial,
}

/// The number of rules in each table, and how many of them this sync writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCounts {
    pub filter: usize,
    pub nat: usize,
    pub filter_written: usize,
    pub nat_written: usize,
}

/// The desired state, what is known of the actual state, and when periodic work is due.
#[derive(Debug)]
pub struct IptablesPlan {
    settings: RuleSettings,
    limits: RestoreLimits,
    sync_period: Duration,

    units: BTreeMap<ServicePortName, Entry>,
    /// The service ports that changed since the last settled sync, as they were then.
    settled: BTreeMap<ServicePortName, Option<Entry>>,
    /// The number of lines of all service ports in each shared chain.
    lines: PerChain<usize>,
    /// The number of rules in service ports' own chains.
    rules: usize,

    /// The number of endpoints of the whole cluster, usable or not.
    endpoints: usize,
    node_port_ips: Vec<IpAddr>,
    settled_tail: Vec<String>,
    /// Chains that may be in the kernel and that no service port needs.
    stale: BTreeSet<String>,

    needs_full: bool,
    /// A foreign writer may have changed the tables.
    may_have_drifted: bool,
    /// A foreign writer has changed the tables, and that is not repaired yet.
    has_drifted: bool,
    counter_match: CounterMatch,
    is_large: bool,
    last_full: Option<Instant>,
    last_removal: Option<Instant>,
}

/// Whether rules can use the match that updates packet counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CounterMatch {
    /// As far as is known.
    Usable,
    /// A full sync with it was refused. The next one does not use it, and shows whether that was the reason.
    Suspect {
        /// The error names the match, or it was on trial.
        is_proven: bool,
    },
    /// A full sync succeeded without it. The next one uses it again, since the refusal may have had another, temporary reason.
    OnTrial,
    /// The commands or the kernel lack it.
    Missing,
}

/// What is kept of a service port: enough to render it, and to count the rules above its own.
#[derive(Debug)]
struct Entry {
    routing: Arc<Routing>,
    comments: EndpointComments,
    lines: PerChain<usize>,
    rules: usize,
}

/// A prepared sync. Dropping it without [`Attempt::settle`] means that it failed, and the next one is full.
#[must_use]
#[derive(Debug)]
pub struct Attempt<'a> {
    plan: &'a mut IptablesPlan,
    now: Instant,
    scope: Scope,
    restores: Vec<Restore>,
    counts: RuleCounts,
    removes_stale: bool,
    knows_kernel: bool,
    is_settled: bool,
}

impl IptablesPlan {
    /// In large clusters stale chains are removed once per sync period.
    pub fn new(settings: RuleSettings, limits: RestoreLimits, sync_period: Duration) -> Self {
        Self {
            settings,
            limits,
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
            may_have_drifted: false,
            has_drifted: false,
            counter_match: CounterMatch::Usable,
            is_large: false,
            last_full: None,
            last_removal: None,
        }
    }

    /// From now on no rule is changed by its position, since a foreign writer may insert rules unnoticed.
    pub fn write_whole_chains(&mut self) {
        self.limits.edits = 0;
    }

    /// Makes the changes part of the desired state.
    pub fn accept(&mut self, changes: Changes) {
        for (name, routing) in changes.routings {
            self.replace(name, routing);
        }
        self.endpoints = changes.endpoints.unwrap_or(self.endpoints);
    }

    /// Replaces the routing of a service port; `None` if it is gone.
    pub fn replace(&mut self, name: ServicePortName, routing: Option<Arc<Routing>>) {
        let before = match routing {
            Some(routing) => self.units.insert(name.clone(), Entry::new(routing)),
            None => self.units.remove(&name),
        };
        self.settled.entry(name).or_insert(before);
    }

    pub fn settings(&self) -> &RuleSettings {
        &self.settings
    }

    /// Every rule may depend on the settings: if they change, the next sync is full.
    pub fn change_settings(&mut self, settings: RuleSettings) {
        self.needs_full |= self.settings != settings;
        self.settings = settings;
    }

    /// Whether the caller should ensure packet counters for the next full sync.
    pub fn uses_counters(&self) -> bool {
        matches!(self.counter_match, CounterMatch::Usable | CounterMatch::OnTrial)
    }

    /// Sets the packet counters that the kernel has: rules are written without those that are missing.
    pub fn use_counters(&mut self, counters: Counters) {
        let abilities = Abilities { counters, ..self.settings.abilities };
        self.change_settings(RuleSettings { abilities, ..self.settings.clone() });
    }

    /// Whether the rules name the addresses that serve node ports, which is not so if all addresses do.
    pub fn depends_on_node_port_ips(&self) -> bool {
        !self.settings.node_port_addresses.match_all()
    }

    /// Sets the addresses of the node. Returns those that should serve node ports but cannot.
    pub fn set_node_port_ips(&mut self, interfaces: &[IpAddr]) -> Vec<IpAddr> {
        let (served, refused) = self.settings.node_port_ips(interfaces);
        self.node_port_ips = served;
        refused
    }

    /// The desired state, to compare with the actual one.
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

    /// Whether rules have comments for endpoints, in a cluster with this number of endpoints.
    pub fn comments_for(endpoints: usize) -> EndpointComments {
        if endpoints > LARGE_CLUSTER { EndpointComments::LeftOut } else { EndpointComments::Written }
    }

    /// The next sync writes everything.
    pub fn require_full(&mut self) {
        self.needs_full = true;
    }

    /// A foreign writer may have changed the tables. The tables are compared first: another proxy may have written the same
    /// rules, and if both wrote everything again, neither would stop.
    pub fn suspect_drift(&mut self) {
        self.may_have_drifted = true;
    }

    /// Whether the caller has to compare the tables with [`IptablesPlan::desired`] before it accepts changes; not if the next
    /// sync is full anyway.
    pub fn needs_comparison(&self, now: Instant) -> bool {
        self.may_have_drifted && self.scope(now) == Scope::Partial
    }

    /// The caller compared the tables with the desired state. If it could not, it passes `true`.
    pub fn compared(&mut self, differs: bool) {
        self.may_have_drifted = false;
        self.has_drifted |= differs;
        self.needs_full |= differs;
    }

    pub fn scope(&self, now: Instant) -> Scope {
        let ago = |then: Option<Instant>| then.map(|then| now.saturating_duration_since(then));
        let is_due = !self.is_large && ago(self.last_full).is_none_or(|ago| ago > FULL_SYNC_PERIOD);
        if self.needs_full || is_due { Scope::Full } else { Scope::Partial }
    }

    /// Prepares to write everything. `found` are the chains of the nat table; if they could not be listed, only chains that we
    /// wrote are removed, and the next sync is full, too.
    pub fn full(&mut self, now: Instant, found: Option<&[&str]>) -> Attempt<'_> {
        self.is_large = self.endpoints > LARGE_CLUSTER;
        let units = self.render_all();
        self.stale = self.unneeded(&units, found);
        let removes_stale = self.removes_stale(now);

        let nothing = BTreeSet::new();
        let stale = if removes_stale { &self.stale } else { &nothing };
        let tail = self.tail();
        let RuleCounts { filter, nat, .. } = self.counts();
        let limit = self.limits.batch;
        let restores = if filter.saturating_add(nat) <= limit {
            vec![whole(&self.settings, &tail, units, stale)]
        } else {
            in_batches(&self.settings, &tail, units, stale, limit)
        };
        self.attempt(now, Scope::Full, restores, removes_stale, found.is_some())
    }

    /// Prepares to write what changed; everything if the actual state is not known.
    pub fn partial(&mut self, now: Instant) -> Attempt<'_> {
        if self.needs_full {
            return self.full(now, None);
        }
        self.is_large = self.endpoints > LARGE_CLUSTER;
        let mut batches = Batches::of(self.limits.batch);
        let changes = self.write_chains(&mut batches);

        let mut shared = SharedChainWrites::default();
        for chain in SharedChain::ALL {
            self.write_lines(chain, changes.get(chain), &mut shared);
        }
        if shared.weight > 0 {
            batches.add(shared.weight, |restore| restore.append(shared.restore));
        }
        let removes_stale = self.removes_stale(now);
        if removes_stale {
            batches.add_removals(&self.stale);
        }
        self.attempt(now, Scope::Partial, batches.into_restores(), removes_stale, true)
    }

    /// The refusal may have had another, temporary reason.
    fn allow_counters(&mut self) {
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
            let chains = SharedChain::ALL.into_iter().filter(move |chain| chain.table() == table);
            chains.map(|chain| self.lines.get(chain)).sum::<usize>()
        };
        let settings = &self.settings;
        RuleCounts {
            filter: settings.martians().len() + lines(IptablesTable::Filter) + settings.forwarding().len(),
            nat: settings.masquerading().len() + lines(IptablesTable::Nat) + self.rules + self.tail().len(),
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

    fn render_all(&mut self) -> Vec<RuleUnit> {
        let comments = self.comments();
        self.lines = PerChain::default();
        self.rules = 0;
        let mut units = Vec::with_capacity(self.units.len());
        for (name, entry) in &mut self.units {
            let unit = RuleUnit::render(name, &entry.routing, &self.settings, comments);
            entry.comments = comments;
            entry.count(&unit);
            for chain in SharedChain::ALL {
                *self.lines.get_mut(chain) += entry.lines.get(chain);
            }
            self.rules += entry.rules;
            units.push(unit);
        }
        units
    }

    /// The chains for service ports that no service port needs, among those found or, if they could not be listed, those known.
    fn unneeded(&self, units: &[RuleUnit], found: Option<&[&str]>) -> BTreeSet<String> {
        let needed: HashSet<ServiceChain, RandomState> =
            units.iter().flat_map(|unit| unit.chains.iter().map(|chain| chain.name)).collect();
        let is_unneeded = |name: &str| {
            Purpose::of(name).is_some()
                // A foreign writer may have chosen a name that cannot be written in a restore.
                && !name.contains(char::is_control)
                && ServiceChain::from_name(name).is_none_or(|chain| !needed.contains(&chain))
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
        candidates.into_iter().filter(|name| is_unneeded(name)).collect()
    }

    /// Writes the changed chains of changed service ports. Returns which of their lines in shared chains changed.
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
                None => RuleUnit::default(),
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

    /// Changes the lines of a shared chain one by one, or writes all of them if that is less.
    fn write_lines(&self, chain: SharedChain, changes: &[LineChange], shared: &mut SharedChainWrites) {
        let tail = if chain == SharedChain::Services { self.tail() } else { Vec::new() };
        let settled_tail = if chain == SharedChain::Services { &self.settled_tail[..] } else { &[] };
        if changes.is_empty() && tail == settled_tail {
            return;
        }
        let length = self.lines.get(chain) + tail.len();
        let mut splices = self.splices(chain, changes);
        splices.extend(Splice::between(1 + self.lines.get(chain), settled_tail, &tail));
        let cost: usize = splices.iter().map(Splice::cost).sum();

        let section = shared.restore.section(chain.table());
        if cost <= self.limits.edits && cost <= length {
            splices.iter().for_each(|splice| splice.write(chain.name(), section));
            shared.weight += cost;
            return;
        }
        section.chain(chain.name());
        for (name, entry) in self.units.iter().filter(|(_, entry)| *entry.lines.get(chain) > 0) {
            let lines = RuleUnit::render_lines(name, &entry.routing, &self.settings);
            lines
                .iter()
                .filter(|line| line.chain == chain)
                .for_each(|line| section.append(chain.name(), &line.rule));
        }
        tail.iter().for_each(|rule| section.append(chain.name(), rule));
        shared.weight += length.max(1);
    }

    /// Sorted by name, so that each position takes the splices above it into account.
    fn splices(&self, chain: SharedChain, changes: &[LineChange]) -> Vec<Splice> {
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

/// What is written to the shared chains, always in one run: no rule may jump to a chain that is not written yet.
#[derive(Debug, Default)]
struct SharedChainWrites {
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
) -> impl Iterator<Item = (SharedChain, LineChange)> {
    let by_chain = |lines: Vec<Line>| {
        let mut sorted = PerChain::<Vec<String>>::default();
        lines.into_iter().for_each(|line| sorted.get_mut(line.chain).push(line.rule));
        sorted
    };
    let (mut before, mut after) = (by_chain(before), by_chain(after));
    SharedChain::ALL.into_iter().filter_map(move |chain| {
        let before = std::mem::take(before.get_mut(chain));
        let after = std::mem::take(after.get_mut(chain));
        (before != after).then(|| (chain, LineChange { name: name.clone(), before, after }))
    })
}

impl Entry {
    fn new(routing: Arc<Routing>) -> Self {
        Self { routing, comments: EndpointComments::Written, lines: PerChain::default(), rules: 0 }
    }

    fn render(&self, name: &ServicePortName, settings: &RuleSettings) -> RuleUnit {
        RuleUnit::render(name, &self.routing, settings, self.comments)
    }

    fn count(&mut self, unit: &RuleUnit) {
        self.lines = PerChain::default();
        unit.lines.iter().for_each(|line| *self.lines.get_mut(line.chain) += 1);
        self.rules = unit.rules();
    }
}

impl Attempt<'_> {
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// The inputs of `iptables-restore`, in order; empty if nothing changed. After a refused one, the rest must not be sent.
    pub fn restores(&self) -> &[Restore] {
        &self.restores
    }

    pub fn counts(&self) -> RuleCounts {
        self.counts
    }

    /// Whether it repairs drift.
    pub fn has_drifted(&self) -> bool {
        self.scope == Scope::Full && self.plan.has_drifted
    }

    /// A restore was refused; `names_counters` tells whether the error names the match for packet counters. Returns whether the
    /// next sync tries something else, and so should start immediately.
    pub fn refused(self, names_counters: bool) -> bool {
        let plan = &mut *self.plan;
        let had_counters = plan.settings.abilities.counters != Counters::default();
        match self.scope {
            Scope::Partial => true,
            Scope::Full if had_counters => {
                // A kernel may have counters without the match that updates them.
                let is_proven = names_counters || plan.counter_match == CounterMatch::OnTrial;
                plan.counter_match = CounterMatch::Suspect { is_proven };
                true
            }
            Scope::Full => {
                plan.allow_counters();
                false
            }
        }
    }

    /// The kernel has committed all restores.
    pub fn settle(mut self) {
        self.is_settled = true;
        let plan = &mut *self.plan;
        plan.settled.clear();
        plan.settled_tail = plan.tail();
        plan.needs_full = !self.knows_kernel;
        if self.scope == Scope::Full {
            plan.last_full = Some(self.now);
            plan.has_drifted = false;
            plan.counter_match = match plan.counter_match {
                CounterMatch::Suspect { is_proven: true } | CounterMatch::Missing => CounterMatch::Missing,
                CounterMatch::Suspect { is_proven: false } => CounterMatch::OnTrial,
                CounterMatch::OnTrial | CounterMatch::Usable => CounterMatch::Usable,
            };
            plan.needs_full |= plan.counter_match == CounterMatch::OnTrial;
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
