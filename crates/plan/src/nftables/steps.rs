//! What passes between the plan and the kernel: what a read-back found, and what to change.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::nftables::program::{Chain, Program};
use crate::nftables::sets::{Element, Set};

/// Where ranges begin, and with `true` the first address after each.
pub type Boundaries = BTreeSet<(IpAddr, bool)>;

/// What the kernel holds, as one read-back found it.
#[derive(Debug)]
pub struct Held {
    /// The generation of the ruleset at which this was read; none if no other process can change the table.
    pub generation: Option<u32>,
    pub table: HeldTable,
}

/// What goes by the name of our table.
#[derive(Debug)]
pub enum HeldTable {
    Absent,
    /// It has another program, that of an older release say: to be replaced.
    Foreign,
    /// It has our program, apart from what [`TableContent`] lists.
    Ours(TableContent),
}

/// What our table holds.
#[derive(Clone, Debug, Default)]
pub struct TableContent {
    /// In order.
    pub elements: Vec<Element>,
    /// Sets that hold more than we want, or something else: none of it is in `elements`.
    pub unclear: Vec<Set>,
    /// Elements that tell which service port has which id of session affinity, as far as they are known.
    pub ids: Vec<Element>,
    pub service_cidrs: Boundaries,
    pub node_port_ips: BTreeSet<IpAddr>,
    /// Timeouts of session affinity, in seconds, that the program has chains for.
    pub timeouts: BTreeSet<u32>,
    pub unexpected: Unexpected,
}

/// What an earlier release may have left in the table, or another user put there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unexpected {
    pub sets: Vec<String>,
    pub chains: Vec<String>,
}

/// What to change in the kernel, all of it in one transaction and in this order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// Only if the ruleset is still at this generation, also if there is nothing to change.
    pub generation: Option<u32>,
    pub table: Option<NewTable>,
    pub unexpected: Unexpected,
    /// To be added with their rules, before the elements that lead to them.
    pub chains: Vec<Chain>,
    /// These instead of what the set holds.
    pub service_cidrs: Option<Boundaries>,
    /// These instead of what the set holds.
    pub node_port_ips: Option<BTreeSet<IpAddr>>,
    /// Sets to be emptied.
    pub empty: Vec<Set>,
    /// In order. A key whose datum changes must leave before it can come back.
    pub delete: Vec<Element>,
    /// In order.
    pub add: Vec<Element>,
    /// To be deleted, after the elements that lead to them.
    pub old_chains: Vec<String>,
    /// Whether they follow from a read-back rather than from what was committed before.
    pub is_full: bool,
    /// Whether the kernel did not hold what was committed before.
    pub has_drifted: bool,
}

/// A table to be made with everything but elements.
#[derive(Debug, PartialEq, Eq)]
pub struct NewTable {
    pub program: Program,
    /// Whether there is one of that name, which has to go.
    pub replaces: bool,
}

impl Steps {
    /// Whether the kernel holds what it should.
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
