//! The kernel's table of one IP family: read back, and changed by steps, each sync in one transaction.
//!
//! ```text
//!   read ─▶ Held ─▶ plan ─▶ Steps ─▶ commit ─▶ Outcome
//! ```
//!
//! What to write and when to try again is decided by others.

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
use netlink::nftables::{self as nft, Batch, Connection, Ownership};
use plan::nftables::desired::DesiredTable;
use plan::nftables::elements::Frontend;
use plan::nftables::steps::{Held, HeldTable, Steps};
use rustix::io::Errno;

use crate::drift::Drift;
use crate::holder::Holder;
use crate::outcome::Outcome;
use crate::wire_family;
use batch::batch_of;
pub use batch::write_elements;
pub use compare::{PresentTable, TableInspection, TableSnapshot, present};
pub use counters::{Connections, Owners, connections};
pub use lookup::Lookup;
use read::{Found, Ours, Reader, Reading};

/// The name that operators and other tools know.
pub const TABLE: &str = "kube-proxy";
pub const TABLE_COMMENT: &str = "rules for kube-proxy";

/// The largest set that is listed as a whole: 0.2 seconds for the kernel.
const LISTED: usize = 50_000;

/// Access to the kernel's table of one family.
#[derive(Debug)]
pub struct KernelTable {
    connection: Connection,
    family: Family,
    abilities: TableAbilities,
    /// What a read-back that failed has found, if no other process can have changed it since.
    reading: Reading,
}

/// What the kernel can do, and what we make of it.
#[derive(Clone, Copy, Debug)]
pub struct TableAbilities {
    /// A table may have an owner, which alone can change it, and outlive that; 6.9 and later.
    pub owners: bool,
    /// The kernel may tell how many elements a set has.
    pub counts: bool,
    /// The largest set that is listed as a whole.
    pub listed: usize,
}

impl KernelTable {
    /// Finds out what the kernel can do, and changes nothing. Belongs to the network namespace of the calling thread.
    pub fn open(family: Family) -> Result<Self, CommitError> {
        let mut connection = Connection::open()?;
        let owners = can_own(&mut connection, family)?;
        // Where it does not tell, sets have no count.
        let abilities = TableAbilities { owners, counts: true, listed: LISTED };
        Ok(Self { connection, family, abilities, reading: Reading::default() })
    }

    pub fn abilities(&self) -> TableAbilities {
        self.abilities
    }

    /// The same as if the kernel could do less.
    #[must_use]
    pub fn limited_to(self, abilities: TableAbilities) -> Self {
        Self { abilities, ..self }
    }

    /// Whether the kernel keeps other processes from changing the table; if not, their changes have to be listened for.
    pub fn is_owned(&self) -> bool {
        self.abilities.owners
    }

    pub fn family(&self) -> Family {
        self.family
    }

    /// What events caused by ourselves carry as their port.
    pub fn port(&self) -> u32 {
        self.connection.port()
    }

    /// What the kernel holds. Of sets that are too large to be listed it asks for what they should hold. Where tables
    /// have owners, we become the owner of one with our program before its sets are read; what was read when
    /// this fails is then not read again by the next call.
    pub fn read(&mut self, desired: &DesiredTable) -> Result<Held, CommitError> {
        let generation = self.connection.generation()?.id;
        let ours = match self.reader().find(desired.settings())? {
            Found::OwnedBy(port) => return Err(self.belongs_to(port)),
            Found::Ours(ours) => self.as_able(ours),
            Found::Absent => return Ok(Held { generation: Some(generation), table: HeldTable::Absent }),
            Found::Foreign => return Ok(Held { generation: Some(generation), table: HeldTable::Foreign }),
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
        Ok(Held { generation, table: HeldTable::Ours(content) })
    }

    /// Makes all changes, or none.
    pub fn commit(&mut self, steps: &Steps) -> Result<Outcome, CommitError> {
        self.reading = Reading::default();
        let batch = batch_of(steps, self.family, &self.declaration());
        match (batch.is_empty(), steps.generation) {
            (false, None) => self.connection.commit(&batch)?,
            (false, Some(generation)) => self.connection.commit_at(generation, &batch)?,
            (true, Some(generation)) if self.connection.generation()?.id != generation => {
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

    /// New connections that the frontend has counted; none if the kernel has no such frontend.
    pub fn count(&mut self, frontend: Frontend) -> io::Result<Option<u64>> {
        self.reader().count(frontend)
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

    /// That process may be about to end: an error that passes.
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

    /// Becomes the owner of the table that was found, if it can have one.
    fn claim(&mut self, ours: &Ours, generation: u32) -> Result<(), CommitError> {
        // A table that was made without an owner cannot be given one.
        self.abilities.owners &= ours.persistent;
        if self.is_owned() && ours.owner != Some(self.port()) {
            let mut claim = Batch::new(wire_family(self.family), TABLE);
            claim.add_table(&self.declaration());
            self.connection.commit_at(generation, &claim)?;
        }
        Ok(())
    }

    fn as_able(&self, mut ours: Ours) -> Ours {
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
        Reader { connection: &mut self.connection, family: self.family, listed: self.abilities.listed }
    }
}

/// Whether a failure passes by itself, so that to read back and commit again at once is likely to succeed: the ruleset
/// changed meanwhile, something ran short, or another process still has the table.
pub fn is_transient(error: &CommitError) -> bool {
    let shortages = [Errno::NOBUFS, Errno::NOMEM, Errno::AGAIN, Errno::INTR, Errno::BUSY];
    let passes = |error: &io::Error| {
        error.kind() == io::ErrorKind::ResourceBusy
            || shortages.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
    };
    match error {
        CommitError::Stale => true,
        CommitError::Socket(error) => passes(error),
        CommitError::Refused { errno, .. } => errno.kind() == io::ErrorKind::ResourceBusy,
        CommitError::TooLarge { .. } => false,
    }
}

/// Calls `notify` whenever another process has changed the family's table, for as long as it returns true.
pub fn on_foreign_change(
    family: Family,
    our_port: u32,
    mut notify: impl FnMut(Drift) -> bool,
) -> io::Result<()> {
    let family = wire_family(family);
    let mut monitor = nft::Monitor::open()?;
    let mut drift = Some(Drift::Unwatched);
    // Part of a commit that is not complete yet; the event that ends it names the process.
    let mut changed = false;
    loop {
        if let Some(drift) = drift.take()
            && !notify(drift)
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

/// Whether a table can have an owner and outlive it. Tried on a table that will never be: the kernel is asked to check, not to
/// commit.
fn can_own(connection: &mut Connection, family: Family) -> Result<bool, CommitError> {
    let mut can = |ownership: Ownership| {
        let mut batch = Batch::new(wire_family(family), "kube-proxy-probe");
        batch.add_table(&nft::Table { ownership, comment: Some(TABLE_COMMENT) });
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
            Err(CommitError::Refused { errno, .. }) if errno.kind() == io::ErrorKind::PermissionDenied => {
                let what = "changing rules needs root or CAP_NET_ADMIN";
                Err(CommitError::Socket(io::Error::new(errno.kind(), what)))
            }
            Err(error) => Err(error),
        }
    };
    // Each question costs the kernel a grace period, so the newer ability is asked for first: it implies the other.
    if can(Ownership::OwnedPersistent)? {
        return Ok(true);
    }
    if !can(Ownership::Shared)? {
        let error = io::Error::new(io::ErrorKind::Unsupported, "this kernel has no nf_tables");
        return Err(CommitError::Socket(error));
    }
    Ok(false)
}
