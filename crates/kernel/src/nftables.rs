//! Reads back and changes the nftables table of one IP family. Each sync is one transaction.
//!
//! ```text
//!   read ─▶ ActualState ─▶ plan ─▶ Steps ─▶ commit ─▶ Outcome
//! ```
//!
//! The caller decides what to write and when to retry.

mod batch;
mod compare;
mod compile;
mod counters;
mod lookup;
mod read;

use std::io;
use std::time::Duration;

use model::address::Family;
pub use netlink::nftables::CommitError;
use netlink::nftables::{self as nft, Batch, NftablesSocket, Ownership};
use plan::nftables::desired::DesiredTable;
use plan::nftables::elements::FrontendKey;
use plan::nftables::steps::{ActualState, ActualTable, Steps};
use rustix::io::Errno;

use crate::drift::Drift;
use crate::holder::Holder;
use crate::outcome::Outcome;
use crate::{is_shortage, wire_family};
use batch::batch_of;
pub use batch::write_elements;
pub use compare::{PresentTable, TableInspection, TableSnapshot, present};
use compile::hash_probe;
pub use counters::{Connections, CounterOf, CounterOwners, connections};
pub use lookup::Lookup;
use read::{Found, Ours, Reader, Reading};

/// The same name as upstream's, which operators and other tools know.
pub const TABLE: &str = "kube-proxy";
pub const TABLE_COMMENT: &str = "rules for kube-proxy";

/// The largest set that is listed as a whole. Listing it takes the kernel 0.2 seconds.
const MAX_LISTED: usize = 50_000;

/// Access to the kernel's table of one family.
#[derive(Debug)]
pub struct KernelTable {
    socket: NftablesSocket,
    family: Family,
    abilities: TableAbilities,
    /// The sets that a failed read-back has read. Kept only while the table is owned, so that no other process can change it.
    reading: Reading,
}

/// What the kernel supports, and the limits that follow from it.
#[derive(Clone, Copy, Debug)]
pub struct TableAbilities {
    /// A table may have an owner, which alone can change it, and may outlive its owner. Linux 6.9 and later.
    pub ownership: bool,
    /// The kernel can hash clients.
    pub hashing: bool,
    /// The kernel may report how many elements a set has.
    pub counts: bool,
    /// The largest set that is listed as a whole.
    pub max_listed: usize,
}

impl KernelTable {
    /// Detects what the kernel supports, and changes nothing. The table is that of the calling thread's network namespace.
    pub fn open(family: Family) -> Result<Self, CommitError> {
        let mut socket = NftablesSocket::open()?;
        let (ownership, hashing) = detect(&mut socket, family)?;
        // Kernels that do not report counts leave them out of sets.
        let abilities = TableAbilities { ownership, hashing, counts: true, max_listed: MAX_LISTED };
        Ok(Self { socket, family, abilities, reading: Reading::default() })
    }

    pub fn abilities(&self) -> TableAbilities {
        self.abilities
    }

    /// The same table, as if the kernel supported no more than `abilities`.
    #[must_use]
    pub fn limited_to(self, abilities: TableAbilities) -> Self {
        Self { abilities, ..self }
    }

    /// Whether the kernel keeps other processes from changing the table. If not, the caller has to watch for foreign writers.
    pub fn is_owned(&self) -> bool {
        self.abilities.ownership
    }

    pub fn family(&self) -> Family {
        self.family
    }

    /// The netlink port of this socket, which the events of our own changes carry.
    pub fn port(&self) -> u32 {
        self.socket.port()
    }

    /// Whether there is a table with our name, whatever its content.
    pub fn exists(&mut self) -> io::Result<bool> {
        let tables = self.socket.tables(wire_family(self.family))?;
        Ok(tables.iter().any(|table| table.name == TABLE))
    }

    /// Reads what the kernel holds. Of sets that are too large to be listed, it looks up the desired elements. Where tables can
    /// have owners, we become the owner of a table with our program before we read its sets; if a read fails, the next call
    /// continues after the sets that were read.
    pub fn read(&mut self, desired: &DesiredTable) -> Result<ActualState, CommitError> {
        let generation = self.socket.generation()?.id;
        let ours = match self.reader().find(desired.settings())? {
            Found::OwnedBy(port) => return Err(self.belongs_to(port)),
            Found::Ours(ours) => self.limit(ours),
            Found::Absent => {
                return Ok(ActualState { generation: Some(generation), table: ActualTable::Absent });
            }
            Found::Foreign => {
                return Ok(ActualState { generation: Some(generation), table: ActualTable::Foreign });
            }
        };
        self.claim(&ours, generation)?;
        let mut reading = std::mem::take(&mut self.reading);
        if !self.is_owned() {
            reading = Reading::default();
        }
        if let Err(error) = self.reader().content(&ours.sets, desired, &mut reading) {
            self.reading = reading;
            return Err(error.into());
        }
        let content = reading.finish(ours.timeouts, ours.unexpected);
        let generation = (!self.is_owned()).then_some(generation);
        Ok(ActualState { generation, table: ActualTable::Ours(content) })
    }

    /// Applies all steps, or none.
    pub fn commit(&mut self, steps: &Steps) -> Result<Outcome, CommitError> {
        self.reading = Reading::default();
        let batch = batch_of(steps, self.family, &self.declaration());
        match (batch.is_empty(), steps.generation) {
            (false, None) => self.socket.commit(&batch)?,
            (false, Some(generation)) => self.socket.commit_at(generation, &batch)?,
            (true, Some(generation)) if self.socket.generation()?.id != generation => {
                return Err(CommitError::Stale);
            }
            (true, _) => {}
        }
        Ok(Outcome {
            is_full: steps.is_full,
            has_drifted: steps.has_drifted,
            writes: usize::from(!batch.is_empty()),
            added: steps.add.len(),
            deleted: steps.delete.len(),
        })
    }

    /// The new connections that a frontend has counted. `None` if the kernel has no such frontend.
    pub fn count(&mut self, frontend: FrontendKey) -> io::Result<Option<u64>> {
        self.reader().count(frontend)
    }

    /// Removes the table, if it exists.
    pub fn remove(family: Family) -> Result<(), CommitError> {
        let mut socket = NftablesSocket::open()?;
        let tables = socket.tables(wire_family(family))?;
        if tables.iter().all(|table| table.name != TABLE) {
            return Ok(());
        }
        let mut batch = Batch::new(wire_family(family), TABLE);
        batch.delete_table();
        socket.commit(&batch)
    }

    /// A transient error, since the owner may be about to exit.
    fn belongs_to(&self, port: u32) -> CommitError {
        let owner = match Holder::of_netfilter_port(port) {
            Some(holder) => format!("another running process, {holder}"),
            None => format!("another running process that is not visible from here (netlink port {port})"),
        };
        CommitError::Refused {
            object: format!("table {} {TABLE}", wire_family(self.family)),
            message: format!("it belongs to {owner}; stop that one first"),
            errno: io::ErrorKind::ResourceBusy.into(),
        }
    }

    /// Becomes the owner of the table, if it can have one.
    fn claim(&mut self, ours: &Ours, generation: u32) -> Result<(), CommitError> {
        // A table that was created without an owner cannot get one.
        self.abilities.ownership &= ours.persistent;
        if self.is_owned() && ours.owner != Some(self.port()) {
            let mut claim = Batch::new(wire_family(self.family), TABLE);
            claim.add_table(&self.declaration());
            self.socket.commit_at(generation, &claim)?;
        }
        Ok(())
    }

    fn limit(&self, mut ours: Ours) -> Ours {
        if !self.abilities.counts {
            ours.sets.iter_mut().for_each(|(_, count)| *count = None);
        }
        ours
    }

    fn declaration(&self) -> nft::Table<'static> {
        let ownership = if self.is_owned() { Ownership::OwnedPersistent } else { Ownership::Shared };
        nft::Table { ownership, comment: Some(TABLE_COMMENT) }
    }

    fn reader(&mut self) -> Reader<'_> {
        Reader { socket: &mut self.socket, family: self.family, max_listed: self.abilities.max_listed }
    }
}

/// Whether reading back and committing again is likely to succeed soon: the ruleset changed meanwhile, a resource ran short, or
/// another process still owns the table.
pub fn is_transient(error: &CommitError) -> bool {
    match error {
        CommitError::Stale => true,
        CommitError::Socket(error) => is_shortage(error),
        CommitError::Refused { errno, .. } => errno.kind() == io::ErrorKind::ResourceBusy,
        CommitError::TooLarge { .. } => false,
    }
}

/// Calls `notify` whenever another process has changed the family's table, until it returns false.
pub fn on_foreign_change(
    family: Family,
    our_port: u32,
    mut notify: impl FnMut(Drift) -> bool,
) -> io::Result<()> {
    let family = wire_family(family);
    let mut monitor = nft::Monitor::open()?;
    let mut drift = Some(Drift::Unwatched);
    // Whether the commit whose events arrive changes our table. Its last event names the process.
    let mut changed = false;
    loop {
        if let Some(drift) = drift.take()
            && !notify(drift)
        {
            return Ok(());
        }
        monitor.receive_within(Duration::from_secs(3_600), |event| match event {
            nft::Notification::Added { family: of, table, port, .. }
            | nft::Notification::Deleted { family: of, table, port, .. } => {
                changed |= of == family && table == TABLE && port != our_port;
            }
            nft::Notification::Lost => drift = Some(Drift::Detected(None)),
            nft::Notification::Committed { generation, .. } => {
                if std::mem::take(&mut changed) {
                    drift = Some(Drift::Detected(Some(generation.into())));
                }
            }
        })?;
    }
}

/// Whether the kernel can hash clients.
pub fn can_hash(family: Family) -> Result<bool, CommitError> {
    Ok(detect(&mut NftablesSocket::open()?, family)?.1)
}

/// Whether a table can have an owner and outlive it, and whether the kernel can hash clients. The kernel only checks the transactions
/// that would create such a table, and does not commit them.
fn detect(socket: &mut NftablesSocket, family: Family) -> Result<(bool, bool), CommitError> {
    // Each check costs the kernel a grace period. So the one that passes with a recent kernel comes first.
    for (ownership, hashing) in [
        (Ownership::OwnedPersistent, true),
        (Ownership::Shared, true),
        (Ownership::OwnedPersistent, false),
        (Ownership::Shared, false),
    ] {
        if can_create(socket, family, ownership, hashing)? {
            return Ok((ownership == Ownership::OwnedPersistent, hashing));
        }
    }
    let error = io::Error::new(io::ErrorKind::Unsupported, "this kernel has no nf_tables");
    Err(CommitError::Socket(error))
}

/// Whether the kernel can create a table with such an owner and, if asked for, with a rule that hashes.
fn can_create(
    socket: &mut NftablesSocket,
    family: Family,
    ownership: Ownership,
    hashing: bool,
) -> Result<bool, CommitError> {
    let mut batch = Batch::new(wire_family(family), "kube-proxy-probe");
    batch.add_table(&nft::Table { ownership, comment: Some(TABLE_COMMENT) });
    if hashing {
        batch.add_chain(&nft::Chain { name: "probe", hook: None, comment: None });
        batch.add_rule(&nft::Rule {
            chain: "probe",
            expressions: &hash_probe(family),
            comment: None,
            fingerprint: None,
        });
    }
    match socket.check(&batch) {
        Ok(()) => Ok(true),
        // Other errors, such as a lack of memory, do not show what the kernel supports.
        Err(CommitError::Refused { errno, .. })
            if [Errno::OPNOTSUPP, Errno::INVAL, Errno::AFNOSUPPORT, Errno::NOENT]
                .iter()
                .any(|unknown| errno.raw_os_error() == Some(unknown.raw_os_error())) =>
        {
            Ok(false)
        }
        Err(CommitError::Refused { errno, .. }) if errno.kind() == io::ErrorKind::PermissionDenied => {
            let what = "changing rules needs root or CAP_NET_ADMIN";
            Err(CommitError::Socket(io::Error::new(errno.kind(), what)))
        }
        Err(error) => Err(error),
    }
}
