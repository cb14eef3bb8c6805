//! Compares the kernel with what it should hold. Only reads, and claims nothing: any thread may do it while another
//! process, or another thread of this one, writes the rules.
//!
//! ```text
//!   family worker ─ DesiredState ─▶ any other thread ─ Inspection ─▶ part by part: differences
//!                                                                 ─▶ all of it: what is served, and what should be
//! ```

use std::{fmt, io};

use plan::difference::Difference;
use plan::iptables::chains::Table;
use plan::nftables::sets::Set;
use plan::served::KernelComparison;

use crate::{iptables, nftables};

/// What the rules of one family should be. A snapshot that shares what is large with the family worker.
#[derive(Debug)]
pub enum DesiredState {
    Nftables(Box<nftables::TableSnapshot>),
    Iptables(Box<iptables::RulesSnapshot>),
}

impl DesiredState {
    /// Prepares to read the kernel, in the network namespace of the calling thread.
    pub fn open(self) -> io::Result<Inspection> {
        Ok(match self {
            Self::Nftables(desired) => {
                Inspection::Nftables(Box::new(nftables::TableInspection::open(*desired)?))
            }
            Self::Iptables(desired) => {
                Inspection::Iptables(Box::new(iptables::RulesInspection::new(*desired)))
            }
        })
    }
}

/// A comparison under way.
#[derive(Debug)]
pub enum Inspection {
    Nftables(Box<nftables::TableInspection>),
    Iptables(Box<iptables::RulesInspection>),
}

/// What is compared at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The chains and rules of our nftables table, and which sets it has.
    Program,
    /// The elements of a set.
    Elements(Set),
    /// Our chains in a table of iptables, and the jumps to them.
    Table(Table),
}

impl Inspection {
    pub fn parts(&self) -> Vec<Part> {
        match self {
            Self::Nftables(inspection) => inspection.parts(),
            Self::Iptables(_) => iptables::TABLES.map(Part::Table).to_vec(),
        }
    }

    /// Compares one part. What changes in the kernel after [`DesiredState`] was taken counts as different.
    pub fn compare(&mut self, part: Part) -> io::Result<Vec<Difference>> {
        match (self, part) {
            (Self::Nftables(inspection), Part::Program) => inspection.compare_program(),
            (Self::Nftables(inspection), Part::Elements(set)) => inspection.compare_elements(set),
            (Self::Iptables(inspection), Part::Table(table)) => inspection.compare(table),
            (Self::Nftables(_), Part::Table(_)) | (Self::Iptables(_), Part::Program | Part::Elements(_)) => {
                Ok(Vec::new())
            }
        }
    }

    /// Compares everything.
    pub fn compare_all(&mut self) -> io::Result<KernelComparison> {
        match self {
            Self::Nftables(inspection) => inspection.compare_all(),
            Self::Iptables(inspection) => inspection.compare_all(),
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program => f.write_str("program"),
            Self::Elements(set) => write!(f, "set {}", set.name()),
            Self::Table(table) => write!(f, "table {}", table.name()),
        }
    }
}
