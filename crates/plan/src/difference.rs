//! The objects of the kernel that differ from the desired ones: elements, rules, chains, servers. [`crate::served`] tells what the
//! differences mean.

use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;

use model::address::Family;

use crate::iptables::chains::IptablesTable;
use crate::ipvs::servers::{INTERFACE, RealServer, VirtualAddress, VirtualServer};
use crate::ipvs::text;
use crate::nftables::sets::{Element, Set};

/// One object that differs from the desired state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Difference {
    pub kind: DifferenceKind,
    pub object: KernelObject,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DifferenceKind {
    /// Desired, but not in the kernel.
    Missing,
    /// In the kernel, but not desired.
    Unexpected,
    /// In the kernel, but different.
    Changed,
}

/// An object of the kernel. Its text is that of `nft`, `iptables-save` or `ipvsadm-save`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KernelObject {
    /// An element of a set of the nftables table.
    Element(Family, Element),
    /// A chain of the nftables table, by its name.
    Chain(String),
    /// Anything else of the nftables table.
    Other(Class, String),
    /// A chain of iptables. If it is changed, its rules are in another order.
    SavedChain {
        table: IptablesTable,
        chain: String,
    },
    /// A rule of iptables, without `-A` and its chain.
    SavedRule {
        table: IptablesTable,
        chain: String,
        rule: String,
    },
    Virtual(VirtualAddress, VirtualServer),
    /// With its weight.
    Real(VirtualAddress, RealServer, u32),
    /// An address of `kube-ipvs0`.
    Bound(IpAddr),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    Table,
    Chain,
    Rule,
    Set,
    Element,
    Server,
    Address,
}

/// The differences that two comparisons have in common. A sync between the reads of one comparison may make it find a
/// difference that the next one does not find again.
pub fn persistent(first: &[Difference], second: Vec<Difference>) -> Vec<Difference> {
    let first: HashSet<&Difference> = first.iter().collect();
    second.into_iter().filter(|it| first.contains(it)).collect()
}

impl Difference {
    pub fn new(kind: DifferenceKind, object: KernelObject) -> Self {
        Self { kind, object }
    }

    /// The object, and how it differs, unless the kind tells it.
    pub fn text(&self) -> String {
        match (self.kind, &self.object) {
            (DifferenceKind::Changed, KernelObject::SavedChain { .. }) => {
                format!("{}: its rules are in another order", self.object)
            }
            (_, object) => object.to_string(),
        }
    }
}

impl DifferenceKind {
    /// What a sync does with such an object: add, delete or change it.
    pub fn sign(self) -> char {
        match self {
            Self::Missing => '+',
            Self::Unexpected => '-',
            Self::Changed => '~',
        }
    }
}

impl KernelObject {
    pub fn class(&self) -> Class {
        match self {
            Self::Element(..) => Class::Element,
            Self::Chain(_) | Self::SavedChain { .. } => Class::Chain,
            Self::SavedRule { .. } => Class::Rule,
            Self::Virtual(..) | Self::Real(..) => Class::Server,
            Self::Bound(_) => Class::Address,
            Self::Other(class, _) => *class,
        }
    }

    /// Whether it belongs to a service port, known or not.
    pub fn serves(&self) -> bool {
        match self {
            Self::Element(_, element) => !matches!(element.set, Set::ServiceCidrs | Set::NodePortIps),
            Self::Virtual(..) | Self::Real(..) | Self::Bound(_) => true,
            Self::Chain(_) | Self::Other(..) | Self::SavedChain { .. } | Self::SavedRule { .. } => false,
        }
    }
}

impl fmt::Display for KernelObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Element(family, element) => {
                write!(f, "element {} {{ {} }}", element.set.name(), element.show(*family))
            }
            Self::Chain(name) => write!(f, "chain {name}"),
            Self::Other(_, text) => f.write_str(text),
            Self::SavedChain { table, chain } => write!(f, "-t {} :{chain}", table.name()),
            Self::SavedRule { table, chain, rule } => write!(f, "-t {} -A {chain} {rule}", table.name()),
            Self::Virtual(at, server) => f.write_str(&text::virtual_server(at, server)),
            Self::Real(at, real, weight) => f.write_str(&text::real_server(at, real, *weight)),
            Self::Bound(ip) => write!(f, "address {ip} dev {INTERFACE}"),
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.text())
    }
}

impl fmt::Display for DifferenceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "missing",
            Self::Unexpected => "unexpected",
            Self::Changed => "changed",
        })
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Table => "table",
            Self::Chain => "chain",
            Self::Rule => "rule",
            Self::Set => "set",
            Self::Element => "element",
            Self::Server => "server",
            Self::Address => "address",
        })
    }
}
