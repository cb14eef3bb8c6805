//! The table of one IP family: adopted at start, then changed element by element.
//!
//! ```text
//!   changes ─▶ Plan ─▶ steps ─▶ one transaction         while we know what the kernel holds
//!                    read back ─▶ steps ─▶ transaction  at start, after an error, after a stranger's change
//! ```

mod compare;
mod compile;
mod counters;
mod lookup;
mod read;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use model::address::Family;
use model::names::{Port, Protocol, ServicePortName};
pub use netlink::nftables::CommitError;
use netlink::nftables::{self as nft, Batch, Connection, Datum, Ownership, Value, Verdict};
use plan::flows::Destination;
use plan::nftables::claims::Contention;
use plan::nftables::elements::{Frontend, Seats};
use plan::nftables::plan::{Changed, Plan, Steps};
use plan::nftables::program::{Chain, Program, Settings, learners};
use plan::nftables::sets::{Bank, Data, Element, Set};
use rustix::io::Errno;

use crate::drift::Drift;
use crate::holder::Holder;
use crate::wire_family;
pub use compare::{Inspection, PresentTable, TableSnapshot, present};
use compile::{add_rule, declare, hook};
pub use counters::{Connections, Owners, connections};
pub use lookup::Lookup;
use read::{Content, Found, Ours, Reader, Unexpected, is_passing, of_set, retry_until};

/// The name that operators and other tools know.
pub const TABLE: &str = "kube-proxy";
pub const TABLE_COMMENT: &str = "rules for kube-proxy";

/// For how long a read-back is repeated while other processes change the ruleset, be it in other tables: one that writes
/// iptables rules may need a thousand transactions.
const READ_BACK_TIMEOUT: Duration = Duration::from_secs(10);

/// The kernel's table of one family, and what we want in it.
#[derive(Debug)]
pub struct Table {
    connection: Connection,
    settings: Settings,
    abilities: Abilities,
    plan: Plan,
    /// Timeouts of session affinity, in seconds, that the program in the kernel has chains for.
    timeouts: BTreeSet<u32>,
    service_cidrs: Vec<IpNet>,
    node_port_ips: Vec<IpAddr>,
    /// Whether the kernel holds what the plan says.
    settled: bool,
    /// Whether frontends have counted all that came since our first pass, of which there may not have been one.
    counts_are_whole: Option<bool>,
    /// UDP frontends of which that is not so: they were taken away once, and begin to count again when they come back.
    recounted: HashSet<Frontend>,
    /// What became of contended frontends since that was last taken.
    contentions: Vec<Contention>,
    /// [`READ_BACK_TIMEOUT`], except in tests in which every read-back is disturbed.
    read_back_timeout: Duration,
}

/// A connection to a kernel that can do what we need.
#[derive(Debug)]
pub struct Access {
    connection: Connection,
    abilities: Abilities,
}

impl Access {
    /// Finds out what the kernel can do, and changes nothing. Belongs to the network namespace of the calling thread.
    pub fn open(family: Family) -> Result<Self, CommitError> {
        let mut connection = Connection::open()?;
        let abilities = Abilities::probe(&mut connection, family)?;
        Ok(Self { connection, abilities })
    }
}

/// What this kernel can do that not every one can.
#[derive(Clone, Copy, Debug)]
struct Abilities {
    /// Tables that only we may change and that outlive us; 6.9 and later.
    own: bool,
}

/// What differs since the last pass.
#[derive(Debug, Default)]
pub struct Change {
    pub routings: Vec<Changed>,
    pub service_cidrs: Option<Vec<IpNet>>,
    /// The node's addresses that serve node ports, unless all of them do.
    pub node_port_ips: Option<Vec<IpAddr>>,
}

/// What a pass did.
#[derive(Debug, Default)]
pub struct Outcome {
    pub added: usize,
    /// Not counting what sets held that were emptied as a whole.
    pub deleted: usize,
    /// Whether the kernel was read back rather than trusted.
    pub full: bool,
    /// Whether it did not hold what it should.
    pub wrote: bool,
}

impl Table {
    /// A table of this program; the kernel hears nothing of it before the first pass.
    pub fn new(access: Access, settings: Settings) -> Self {
        let Access { connection, abilities } = access;
        Self {
            connection,
            settings,
            abilities,
            plan: Plan::default(),
            timeouts: BTreeSet::new(),
            service_cidrs: Vec::new(),
            node_port_ips: Vec::new(),
            settled: false,
            counts_are_whole: None,
            recounted: HashSet::new(),
            contentions: Vec::new(),
            read_back_timeout: READ_BACK_TIMEOUT,
        }
    }

    pub fn open(settings: Settings) -> Result<Self, CommitError> {
        Ok(Self::new(Access::open(settings.family)?, settings))
    }

    /// Whether the kernel keeps strangers from changing the table; if not, somebody should listen for it.
    pub fn is_owned(&self) -> bool {
        self.abilities.own
    }

    pub fn family(&self) -> Family {
        self.settings.family
    }

    /// What events caused by ourselves carry as their port.
    pub fn port(&self) -> u32 {
        self.connection.port()
    }

    /// Our picture of the kernel may be wrong: the next pass reads it back.
    pub fn distrust(&mut self) {
        self.settled = false;
    }

    /// One pass: makes the kernel hold what is wanted after this change. Everything of it happens or nothing; the
    /// change itself is remembered in any case.
    pub fn sync(&mut self, change: Change) -> Result<Outcome, CommitError> {
        let new_cidrs = replace(&mut self.service_cidrs, change.service_cidrs);
        let new_ips = replace(&mut self.node_port_ips, change.node_port_ips);
        if !self.settled {
            return self.resync(change.routings);
        }
        let mut steps = self.plan.replace(change.routings);
        self.contentions.append(&mut steps.contentions);
        let mut batch = self.batch();
        self.extend_program(&steps.new_timeouts(), &mut batch);
        if new_cidrs {
            write_ranges(Set::ServiceCidrs, &self.service_cidrs, &mut batch);
        }
        if new_ips {
            self.write_node_port_ips(&mut batch);
        }
        write_steps(&steps, self.settings.family, &mut batch);
        self.shrink_program(&steps.old_timeouts(), &mut batch);
        // Only now may the table be touched: from here on what we know of it depends on how it goes.
        self.settled = false;
        self.remember_recounted(&steps);
        if !batch.is_empty()
            && let Err(error) = self.connection.commit(&batch)
        {
            // Most likely the kernel does not hold what we thought: look, and try once more before giving up.
            let family = self.settings.family;
            tracing::warn!(ipFamily = %family, err = %error, "Kernel refused a change, reading back what it holds");
            return self.resync(Vec::new());
        }
        self.settled = true;
        Ok(Outcome {
            added: steps.add.len(),
            deleted: steps.delete.len(),
            full: false,
            wrote: !batch.is_empty(),
        })
    }

    /// Removes the table; no error if there is none.
    pub fn remove(family: Family) -> Result<(), CommitError> {
        let mut connection = Connection::open()?;
        let tables = connection.tables(wire_family(family))?;
        if tables.iter().all(|table| table.name != TABLE) {
            return Ok(());
        }
        let mut batch = Batch::new(wire_family(family), TABLE);
        batch.delete_table();
        connection.commit(&batch)
    }

    /// What became of contended frontends since the last call, also in syncs that failed.
    pub fn take_contentions(&mut self) -> Vec<Contention> {
        std::mem::take(&mut self.contentions)
    }

    /// Service ports with more endpoints than the table has slots for, and how many of each are left out.
    pub fn left_out(&self) -> &BTreeMap<ServicePortName, usize> {
        self.plan.left_out()
    }

    /// Where the endpoints of a service port sit.
    pub fn seats(&self, name: &ServicePortName) -> Seats<'_> {
        self.plan.seats(name)
    }

    /// What the table should hold, for others to compare with what it does.
    pub fn desired(&self) -> TableSnapshot {
        TableSnapshot {
            settings: self.settings.clone(),
            plan: self.plan.clone(),
            service_cidrs: self.service_cidrs.clone(),
            node_port_ips: self.node_port_ips.clone(),
            has_slots: true,
        }
    }

    /// Whether no packet for that UDP destination has met our rules since our first pass. Where that can't be told, one
    /// has.
    pub fn is_unused(&mut self, destination: Destination) -> io::Result<bool> {
        if self.counts_are_whole != Some(true) {
            return Ok(false);
        }
        let (ip, port) = match destination {
            Destination::Address(at) => (Some(at.ip()), Port::from_api(at.port().into())),
            Destination::NodePort(port) => (None, Some(port)),
        };
        let Some(port) = port else { return Ok(false) };
        let frontend = Frontend { ip, protocol: Protocol::Udp, port };
        Ok(!self.recounted.contains(&frontend) && self.reader().count(frontend)? == Some(0))
    }

    /// There are few: a frontend goes with the last endpoint that its policy allows, or with its service. To be called
    /// before the kernel is: its answer may get lost.
    fn remember_recounted(&mut self, steps: &Steps) {
        let family = self.settings.family;
        let gone = steps.delete.iter().filter_map(|element| {
            let Set::Frontends(bank) = element.set else { return None };
            Frontend::from_key(element.key.as_bytes(), bank, family)
        });
        self.recounted.extend(gone.map(|(frontend, _)| frontend).filter(|it| it.protocol == Protocol::Udp));
    }

    /// Compares the kernel with what is wanted and writes the difference, or everything if the table is not ours.
    fn resync(&mut self, routings: Vec<Changed>) -> Result<Outcome, CommitError> {
        self.contentions.extend(self.plan.accept(routings));
        let deadline = Instant::now() + self.read_back_timeout;
        let passes = |error: &CommitError| match error {
            CommitError::Stale => true,
            CommitError::Socket(error) => is_passing(error),
            CommitError::Refused { .. } | CommitError::TooLarge { .. } => false,
        };
        let (steps, wrote) = retry_until(deadline, passes, || self.write_difference(deadline))?;
        self.settled = true;
        self.counts_are_whole.get_or_insert(true);
        let (added, deleted) = (steps.add.len(), steps.delete.len());
        Ok(Outcome { added, deleted, full: true, wrote })
    }

    /// What goes by the name of our table. Whoever has it may be on its way out, so it is given a moment for that.
    fn find(&mut self) -> io::Result<Found> {
        const MOMENT: Duration = Duration::from_secs(2);
        let deadline = Instant::now() + MOMENT;
        let settings = self.settings.clone();
        loop {
            let found = self.reader().find(&settings)?;
            if !matches!(found, Found::OwnedBy(_)) || Instant::now() > deadline {
                return Ok(found);
            }
            std::thread::sleep(MOMENT / 100);
        }
    }

    /// Returns what it did to the elements, and whether it did anything at all.
    fn write_difference(&mut self, deadline: Instant) -> Result<(Steps, bool), CommitError> {
        let generation = self.connection.generation()?.id;
        let mut batch = self.batch();
        // What only we can change is still what we found when we come to write.
        let mut is_owned = false;
        let (content, wanted) = match self.find()? {
            Found::OwnedBy(port) => return Err(self.belongs_to(port)),
            Found::Ours(ours) => {
                is_owned = self.take_over(&ours, generation)?;
                remove(&ours.unexpected, &mut batch);
                // What others can change has to be read in one go, or all of it again.
                let deadline = if is_owned { deadline } else { Instant::now() };
                self.read(&ours, deadline)?
            }
            Found::Nothing => (self.write_program(&mut batch), self.plan.elements()),
            Found::Foreign => {
                batch.delete_table();
                (self.write_program(&mut batch), self.plan.elements())
            }
        };
        let steps = self.plan.steps_from(content.held, wanted);
        let timeouts = self.plan.timeouts();
        let old: BTreeSet<u32> = self.timeouts.difference(&timeouts).copied().collect();
        self.extend_program(&timeouts, &mut batch);
        if content.service_cidrs != boundaries(&self.service_cidrs) {
            write_ranges(Set::ServiceCidrs, &self.service_cidrs, &mut batch);
        }
        if content.node_port_ips != self.node_port_ips.iter().copied().collect() {
            self.write_node_port_ips(&mut batch);
        }
        write_steps(&steps, self.settings.family, &mut batch);
        // A frontend that has to be written again begins to count again.
        if steps.add.iter().any(|element| matches!(element.set, Set::Frontends(_))) {
            self.counts_are_whole = self.counts_are_whole.and(Some(false));
        }
        self.remember_recounted(&steps);
        self.shrink_program(&old, &mut batch);
        match (batch.is_empty(), is_owned) {
            (true, true) => {}
            (true, false) if self.connection.generation()?.id == generation => {}
            (true, false) => return Err(CommitError::Stale),
            (false, true) => self.connection.commit(&batch)?,
            (false, false) => self.connection.commit_at(generation, &batch)?,
        }
        Ok((steps, !batch.is_empty()))
    }

    /// What our sets hold, and what they should hold. Which ids service ports have decides about the latter.
    fn read(&mut self, ours: &Ours, deadline: Instant) -> io::Result<(Content, Vec<Element>)> {
        let (ids, rest): (Vec<_>, Vec<_>) =
            ours.sets.iter().copied().partition(|(set, _)| matches!(set, Set::Sticky(_)));
        let wanted = self.plan.elements();
        let ids = self.reader().content(&ids, &wanted, deadline)?.held;
        let mut known = ids.elements.clone();
        for set in &ids.unclear {
            known.extend(self.reader().among(*set, of_set(&wanted, *set))?);
        }
        let are_others = self.plan.adopt_ids(&known, self.settings.family);
        let wanted = if are_others { self.plan.elements() } else { wanted };
        let mut content = self.reader().content(&rest, &wanted, deadline)?;
        content.held.elements.extend(ids.elements);
        content.held.unclear.extend(ids.unclear);
        Ok((content, wanted))
    }

    fn belongs_to(&self, port: u32) -> CommitError {
        let owner = match Holder::of_netfilter_port(port) {
            Some(holder) => format!("another running process, {holder}"),
            None => format!("another running process that is not visible from here (netlink port {port})"),
        };
        CommitError::Refused {
            object: format!("table {} {TABLE}", wire_family(self.settings.family)),
            message: format!("it belongs to {owner}; stop that one first"),
            errno: io::ErrorKind::PermissionDenied.into(),
        }
    }

    /// Goes on with the program we found, and returns whether nobody else can change the table from here on.
    fn take_over(&mut self, ours: &Ours, generation: u32) -> Result<bool, CommitError> {
        self.timeouts = ours.timeouts.clone();
        // A table that was made without an owner cannot be given one.
        self.abilities.own &= ours.persistent;
        if self.abilities.own && ours.owner != Some(self.port()) {
            let mut claim = self.batch();
            claim.add_table(&self.declaration());
            self.connection.commit_at(generation, &claim)?;
        }
        Ok(self.abilities.own)
    }

    /// Makes the table anew, program and all, and returns what it then holds: nothing.
    fn write_program(&mut self, batch: &mut Batch) -> Content {
        self.timeouts.clear();
        batch.add_table(&self.declaration());
        let program = Program::new(&self.settings, &self.timeouts);
        for set in &program.sets {
            declare(*set, self.settings.family, |set| _ = batch.add_set(set));
        }
        for chain in &program.chains {
            add_chain(chain, batch);
        }
        for chain in &program.chains {
            self.write_rules(chain, batch);
        }
        Content::default()
    }

    fn declaration(&self) -> nft::Table<'static> {
        let ownership = if self.abilities.own { Ownership::OwnedPersistent } else { Ownership::Shared };
        nft::Table { ownership, comment: Some(TABLE_COMMENT) }
    }

    /// A timeout that no service had before is the one thing that adds to the program while we run. Its chains must be there
    /// before the elements that lead to them.
    fn extend_program(&mut self, timeouts: &BTreeSet<u32>, batch: &mut Batch) {
        let new: Vec<u32> = timeouts.difference(&self.timeouts).copied().collect();
        for chain in new.iter().flat_map(|seconds| learners(*seconds)) {
            add_chain(&chain, batch);
            self.write_rules(&chain, batch);
        }
        self.timeouts.extend(new);
    }

    /// And one that no service has any more takes its chains with it, after the elements that lead to them. What the kernel
    /// remembers of the service's clients stays until it expires: no service port has its id.
    fn shrink_program(&mut self, timeouts: &BTreeSet<u32>, batch: &mut Batch) {
        for seconds in timeouts {
            if self.timeouts.remove(seconds) {
                Bank::BOTH.iter().for_each(|bank| batch.delete_chain(&bank.learner(*seconds)));
            }
        }
    }

    fn write_rules(&self, chain: &Chain, batch: &mut Batch) {
        for rule in &chain.rules {
            add_rule(batch, &chain.name, rule, self.settings.family);
        }
    }

    fn write_node_port_ips(&self, batch: &mut Batch) {
        if !self.settings.node_ports_everywhere {
            let name = Set::NodePortIps.name();
            batch.flush_set(name);
            batch.add_elements(name, self.node_port_ips.iter().map(|ip| nft::Element::new(*ip)));
        }
    }

    fn reader(&mut self) -> Reader<'_> {
        Reader { connection: &mut self.connection, family: self.settings.family }
    }

    fn batch(&self) -> Batch {
        Batch::new(wire_family(self.settings.family), TABLE)
    }
}

/// Calls `tell` whenever someone else has changed the family's table, for as long as it returns true.
pub fn on_foreign_change(
    family: Family,
    our_port: u32,
    mut tell: impl FnMut(Drift) -> bool,
) -> io::Result<()> {
    let family = wire_family(family);
    let mut monitor = nft::Monitor::open()?;
    let mut drift = Some(Drift::Unwatched);
    // Part of a commit that is not complete yet, after which we hear whose it was.
    let mut changed = false;
    loop {
        if let Some(drift) = drift.take()
            && !tell(drift)
        {
            return Ok(());
        }
        monitor.receive_within(Duration::from_secs(3_600), |event| match event {
            nft::Event::Added { family: of, table, port, .. }
            | nft::Event::Deleted { family: of, table, port, .. } => {
                changed |= of == family && table == TABLE && port != our_port;
            }
            nft::Event::Lost => drift = Some(Drift::Detected(None)),
            nft::Event::Committed { generation, .. } => {
                if std::mem::take(&mut changed) {
                    drift = Some(Drift::Detected(Some(generation.into())));
                }
            }
        })?;
    }
}

impl Abilities {
    /// Tries on a table that will never be: the kernel is asked to check, not to commit.
    fn probe(connection: &mut Connection, family: Family) -> Result<Self, CommitError> {
        let mut can = |try_out: &dyn Fn(&mut Batch)| {
            let mut batch = Batch::new(wire_family(family), "kube-proxy-probe");
            try_out(&mut batch);
            match connection.check(&batch) {
                Ok(()) => Ok(true),
                // Anything else, such as a lack of memory, says nothing about what the kernel can do.
                Err(CommitError::Refused { errno, .. })
                    if [Errno::OPNOTSUPP, Errno::INVAL, Errno::AFNOSUPPORT]
                        .iter()
                        .any(|unknown| errno.raw_os_error() == Some(unknown.raw_os_error())) =>
                {
                    Ok(false)
                }
                Err(CommitError::Refused { errno, .. })
                    if errno.kind() == io::ErrorKind::PermissionDenied =>
                {
                    let what = "changing rules needs root or CAP_NET_ADMIN";
                    Err(CommitError::Socket(io::Error::new(errno.kind(), what)))
                }
                Err(error) => Err(error),
            }
        };
        let plain = nft::Table { ownership: Ownership::Shared, comment: Some(TABLE_COMMENT) };
        let owned = nft::Table { ownership: Ownership::OwnedPersistent, ..plain };
        // Each question costs the kernel a grace period, so the newest ability is asked for first: it implies the rest.
        if can(&|batch| batch.add_table(&owned))? {
            return Ok(Self { own: true });
        }
        if !can(&|batch| batch.add_table(&plain))? {
            return Err(CommitError::Socket(io::Error::new(
                io::ErrorKind::Unsupported,
                "this kernel has no nf_tables",
            )));
        }
        Ok(Self { own: false })
    }
}

fn add_chain(chain: &Chain, batch: &mut Batch) {
    batch.add_chain(&nft::Chain { name: &chain.name, hook: hook(chain), comment: None });
}

/// Rules first, since they may refer to any of the rest; then elements, which may lead to chains.
fn remove(unexpected: &Unexpected, batch: &mut Batch) {
    unexpected.chains.iter().for_each(|chain| batch.flush_chain(chain));
    unexpected.sets.iter().for_each(|set| batch.delete_set(set));
    unexpected.chains.iter().for_each(|chain| batch.delete_chain(chain));
}

/// Deletions before additions, each packed by set.
pub fn write_steps(steps: &Steps, family: Family, batch: &mut Batch) {
    for set in &steps.empty {
        batch.flush_set(set.name());
    }
    for elements in steps.delete.chunk_by(|a, b| a.set == b.set) {
        let name = elements.first().map(|element| element.set.name()).unwrap_or_default();
        batch.delete_elements(name, elements.iter().map(|element| to_wire(element, "", family)));
    }
    for elements in steps.add.chunk_by(|a, b| a.set == b.set) {
        let Some(set) = elements.first().map(|element| element.set) else { continue };
        if let Set::Timeouts(bank) = set {
            let name = |element: &Element| match element.data {
                Some(Data::Learn(seconds)) => bank.learner(seconds),
                Some(Data::Endpoint(..) | Data::Sticky(_)) | None => String::new(),
            };
            let chains: Vec<String> = elements.iter().map(name).collect();
            let elements = elements.iter().zip(&chains);
            batch.add_elements(set.name(), elements.map(|(element, chain)| to_wire(element, chain, family)));
        } else {
            batch.add_elements(set.name(), elements.iter().map(|element| to_wire(element, "", family)));
        }
    }
}

/// `chain` is where an element of a verdict map leads to.
fn to_wire<'a>(element: &Element, chain: &'a str, family: Family) -> nft::Element<'a> {
    let key = element.key.as_bytes();
    if element.set == Set::AllowedSources {
        // The frontend, the first address and the last one; as a range, the frontend stands in both of its ends.
        let (frontend, ends) = key.split_at(key.len() - 2 * address_length(family));
        let (first, last) = ends.split_at(address_length(family));
        let range = |end: &[u8]| Value::concatenation(&[frontend, end]);
        return nft::Element { key_end: Some(range(last)), ..nft::Element::new(range(first)) };
    }
    let key = Value::concatenation(&[key]);
    let endpoint = |ip: &[u8], port: Port| {
        nft::Element::pair(key, Value::concatenation(&[ip, &port.get().to_be_bytes()]))
    };
    match element.data {
        Some(Data::Endpoint(IpAddr::V4(ip), port)) => endpoint(&ip.octets(), port),
        Some(Data::Endpoint(IpAddr::V6(ip), port)) => endpoint(&ip.octets(), port),
        Some(Data::Sticky(sticky)) => nft::Element::pair(key, sticky.to_wire()),
        Some(Data::Learn(_)) => {
            nft::Element { data: Some(Datum::Verdict(Verdict::Goto(chain))), ..nft::Element::new(key) }
        }
        None => nft::Element::new(key),
    }
}

fn address_length(family: Family) -> usize {
    match family {
        Family::V4 => 4,
        Family::V6 => 16,
    }
}

fn write_ranges(set: Set, ranges: &[IpNet], batch: &mut Batch) {
    let name = set.name();
    batch.flush_set(name);
    let elements = boundaries(ranges)
        .into_iter()
        .map(|(address, is_end)| nft::Element { interval_end: is_end, ..nft::Element::new(address) });
    batch.add_elements(name, elements);
}

/// Where ranges begin, and with `true` the first address after each; none for what reaches to the last address there is,
/// and none where one range begins right after another.
fn boundaries(ranges: &[IpNet]) -> BTreeSet<(IpAddr, bool)> {
    let after = |range: &IpNet| match range.broadcast() {
        IpAddr::V4(last) => u32::from(last).checked_add(1).map(|next| IpAddr::V4(next.into())),
        IpAddr::V6(last) => u128::from(last).checked_add(1).map(|next| IpAddr::V6(next.into())),
    };
    let ranges = IpNet::aggregate(&ranges.to_vec());
    let begins: BTreeSet<IpAddr> = ranges.iter().map(IpNet::network).collect();
    let ends: BTreeSet<IpAddr> = ranges.iter().filter_map(after).collect();
    let begin = begins.difference(&ends).map(|address| (*address, false));
    begin.chain(ends.difference(&begins).map(|address| (*address, true))).collect()
}

fn replace<T: PartialEq>(held: &mut T, new: Option<T>) -> bool {
    let Some(new) = new else { return false };
    let changed = new != *held;
    *held = new;
    changed
}

#[cfg(test)]
mod tests;
