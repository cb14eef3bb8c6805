//! What the plan and the kernel exchange: the actual state from a read-back, and the steps.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::nftables::program::{Program, ProgramChain};
use crate::nftables::sets::{Element, Set};

/// The first address of each range with `false`, and the first address after it with `true`.
pub type Boundaries = BTreeSet<(IpAddr, bool)>;

/// The actual state, from one read-back.
#[derive(Debug)]
pub struct ActualState {
    /// The generation of the ruleset at the read-back; `None` if no other process can change the table.
    pub generation: Option<u32>,
    pub table: ActualTable,
}

/// The table that has our name.
#[derive(Debug)]
pub enum ActualTable {
    Absent,
    /// It has another program, for example that of an older release, and has to be replaced.
    Foreign,
    /// It has our program, except for what [`TableContent`] lists.
    Ours(TableContent),
}

/// The actual content of our table.
#[derive(Clone, Debug, Default)]
pub struct TableContent {
    /// Sorted.
    pub elements: Vec<Element>,
    /// Sets with elements that cannot be read, or with too many elements: `elements` has none of theirs.
    pub unreadable: Vec<Set>,
    /// The elements with the ids of service ports, as far as they could be read.
    pub ids: Vec<Element>,
    pub service_cidrs: Boundaries,
    pub node_port_ips: BTreeSet<IpAddr>,
    /// Timeouts of session affinity, in seconds, that the program has chains for.
    pub timeouts: BTreeSet<u32>,
    pub unexpected: Unexpected,
}

/// Objects that an earlier release or a foreign writer left in the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unexpected {
    pub sets: Vec<String>,
    pub chains: Vec<String>,
}

/// The changes to the kernel, all in one transaction and in this order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// The commit fails if the ruleset is no longer at this generation, even if there is nothing to change.
    pub generation: Option<u32>,
    pub table: Option<NewTable>,
    pub unexpected: Unexpected,
    /// Added with their rules, before the elements that lead to them.
    pub chains: Vec<ProgramChain>,
    /// Replaces all elements of the set.
    pub service_cidrs: Option<Boundaries>,
    /// Replaces all elements of the set.
    pub node_port_ips: Option<BTreeSet<IpAddr>>,
    /// Sets to flush.
    pub empty: Vec<Set>,
    /// Sorted. An element whose data changes has to be deleted before it can be added.
    pub delete: Vec<Element>,
    /// Sorted.
    pub add: Vec<Element>,
    /// Deleted after the elements that lead to them.
    pub old_chains: Vec<String>,
    /// Whether they start from a read-back or complete the first load, rather than start from the last commit.
    pub is_full: bool,
    /// Whether the read-back found drift.
    pub has_drifted: bool,
}

/// A table to create, with everything except elements.
#[derive(Debug, PartialEq, Eq)]
pub struct NewTable {
    pub program: Program,
    /// Whether a table with this name exists, which is deleted.
    pub replaces: bool,
}

impl Steps {
    /// Whether the actual state is the desired one.
    pub fn is_empty(&self) -> bool {
        let Self {
            generation: _,
            table,
            unexpected,
            chains,
            service_cidrs,
            node_port_ips,
            empty,
            delete,
            add,
            old_chains,
            is_full: _,
            has_drifted: _,
        } = self;
        table.is_none()
            && *unexpected == Unexpected::default()
            && chains.is_empty()
            && service_cidrs.is_none()
            && node_port_ips.is_none()
            && empty.is_empty()
            && delete.is_empty()
            && add.is_empty()
            && old_chains.is_empty()
    }
}
