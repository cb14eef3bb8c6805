//! Compares the kernel with the desired state. It only reads, and does not become the owner of the table: any thread may
//! compare while another thread or process writes the rules.
//!
//! ```text
//!   family worker ─ DesiredState ─▶ any other thread ─ Inspection ─▶ of one part: differences
//!                                                                 ─▶ of everything: what is served, and what should be
//! ```

use std::{fmt, io};

use plan::difference::Difference;
use plan::iptables::chains::IptablesTable;
use plan::nftables::sets::Set;
use plan::served::KernelComparison;

use crate::{iptables, ipvs, nftables};

/// The desired rules of one family: a snapshot that shares its large parts with the family worker.
#[derive(Debug)]
pub enum DesiredState {
    Nftables(Box<nftables::TableSnapshot>),
    Iptables(Box<iptables::RulesSnapshot>),
    Ipvs(Box<ipvs::ServersSnapshot>),
}

impl DesiredState {
    /// Prepares to read the kernel in the network namespace of the calling thread.
    pub fn open(self) -> io::Result<Inspection> {
        Ok(match self {
            Self::Nftables(desired) => {
                Inspection::Nftables(Box::new(nftables::TableInspection::open(*desired)?))
            }
            Self::Iptables(desired) => {
                Inspection::Iptables(Box::new(iptables::RulesInspection::new(*desired)))
            }
            Self::Ipvs(desired) => Inspection::Ipvs(Box::new(ipvs::ServersInspection::open(*desired)?)),
        })
    }
}

/// Reads the kernel and compares it with a [`DesiredState`].
#[derive(Debug)]
pub enum Inspection {
    Nftables(Box<nftables::TableInspection>),
    Iptables(Box<iptables::RulesInspection>),
    Ipvs(Box<ipvs::ServersInspection>),
}

/// What one call of [`Inspection::compare`] compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The chains and rules of our nftables table, and which sets it has.
    Program,
    /// The elements of a set.
    Elements(Set),
    /// Our chains in a table of iptables, and the jumps to them.
    Table(IptablesTable),
    /// Virtual and real servers, and the addresses of `kube-ipvs0`.
    Servers,
}

impl Inspection {
    pub fn parts(&self) -> Vec<Part> {
        match self {
            Self::Nftables(inspection) => inspection.parts(),
            Self::Iptables(_) => iptables::TABLES.map(Part::Table).to_vec(),
            Self::Ipvs(inspection) => inspection.parts(),
        }
    }

    /// Compares one part. A sync after the snapshot was taken shows as differences.
    pub fn compare(&mut self, part: Part) -> io::Result<Vec<Difference>> {
        match (self, part) {
            (Self::Nftables(inspection), part) => inspection.compare(part),
            (Self::Iptables(inspection), Part::Table(table)) => inspection.compare(table),
            (Self::Iptables(_), Part::Program | Part::Elements(_) | Part::Servers) => Ok(Vec::new()),
            (Self::Ipvs(inspection), part) => inspection.compare(part),
        }
    }

    /// Compares everything.
    pub fn compare_all(&mut self) -> io::Result<KernelComparison> {
        match self {
            Self::Nftables(inspection) => inspection.compare_all(),
            Self::Iptables(inspection) => inspection.compare_all(),
            Self::Ipvs(inspection) => inspection.compare_all(),
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program => f.write_str("program"),
            Self::Elements(set) => write!(f, "set {}", set.name()),
            Self::Table(table) => write!(f, "table {}", table.name()),
            Self::Servers => f.write_str("servers"),
        }
    }
}
