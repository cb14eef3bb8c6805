//! What the kernel holds otherwise than it should. Found by looking only: nothing is written and nothing is claimed, so it
//! may be done while another process, or another thread of this one, keeps the rules.
//!
//! ```text
//!   the thread that keeps the rules ─ Wanted ─▶ any other thread ─ Inspection ─▶ part by part: Difference
//! ```

use std::collections::HashSet;
use std::net::IpAddr;
use std::{fmt, io};

use model::address::host_port;
use model::names::{Port, ServicePortName};
use plan::iptables::chains::Table;
use plan::nftables::elements::Frontend;
use plan::nftables::sets::Set;

use crate::{iptables, nftables};

/// One object that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub kind: Kind,
    pub class: Class,
    /// The object as the tool of its mode prints it.
    pub object: String,
    /// Whose it is, as far as that can be told.
    pub service: Option<ServicePortName>,
    /// What it means to who uses the service; nothing for what only makes it work.
    pub fact: Option<Fact>,
}

/// What was found at both of two looks: what a pass has come between is found at one of them only.
pub fn persistent(first: &[Difference], second: Vec<Difference>) -> Vec<Difference> {
    let first: HashSet<(Kind, &str)> = first.iter().map(|it| (it.kind, it.object.as_str())).collect();
    second.into_iter().filter(|it| first.contains(&(it.kind, it.object.as_str()))).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Wanted and not there.
    Missing,
    /// There and not wanted.
    Surplus,
    /// There, but not as it should be.
    Changed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    Table,
    Chain,
    Rule,
    Set,
    Element,
}

/// What an object does for a service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fact {
    /// Clients can connect to it.
    Frontend(Frontend),
    /// Connections may go there: from that frontend, or from any of the service's.
    Endpoint { at: Option<Frontend>, ip: IpAddr, port: Port },
    /// Refused: there are no endpoints.
    Refused(Frontend),
    /// Left unanswered: there are no endpoints on this node.
    Dropped(Frontend),
    /// Clients stick to their endpoint for so many seconds, if it is that one.
    Affinity { at: Option<Frontend>, to: Option<(IpAddr, Port)>, seconds: u32 },
    /// Clients from there may use it.
    Admitted { at: Option<Frontend>, range: String },
    /// Nobody else may.
    Restricted(Frontend),
    /// Endpoints see the addresses of clients: those of that frontend, or of all external ones.
    KeepsClients(Option<Frontend>),
    /// What is not for a port that it has is refused.
    ClusterIp(IpAddr),
    /// The endpoint may connect to itself by way of the service.
    Hairpin { ip: IpAddr, port: Port },
}

impl Fact {
    /// The frontend that it is about, if it is one.
    pub fn frontend(&self) -> Option<&Frontend> {
        match self {
            Self::Frontend(at)
            | Self::Refused(at)
            | Self::Dropped(at)
            | Self::Restricted(at)
            | Self::KeepsClients(Some(at))
            | Self::Endpoint { at: Some(at), .. }
            | Self::Affinity { at: Some(at), .. }
            | Self::Admitted { at: Some(at), .. } => Some(at),
            Self::Endpoint { at: None, .. }
            | Self::Affinity { at: None, .. }
            | Self::Admitted { at: None, .. }
            | Self::KeepsClients(None)
            | Self::ClusterIp(_)
            | Self::Hairpin { .. } => None,
        }
    }
}

/// What the rules of one family should be. A snapshot that shares what is large with those that keep the rules.
#[derive(Debug)]
pub enum Wanted {
    Nftables(Box<nftables::Wanted>),
    Iptables(Box<iptables::Wanted>),
}

impl Wanted {
    /// To compare it with the kernel, in the network namespace of the calling thread.
    pub fn open(self) -> io::Result<Inspection> {
        Ok(match self {
            Self::Nftables(wanted) => Inspection::Nftables(Box::new(nftables::Inspection::open(*wanted)?)),
            Self::Iptables(wanted) => Inspection::Iptables(Box::new(iptables::Inspection::new(*wanted))),
        })
    }
}

/// A comparison under way.
#[derive(Debug)]
pub enum Inspection {
    Nftables(Box<nftables::Inspection>),
    Iptables(Box<iptables::Inspection>),
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
            Self::Iptables(inspection) => inspection.parts(),
        }
    }

    /// Looks at one part. What changes in the kernel after [`Wanted`] was taken counts as different.
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

    /// Looks at all of it.
    pub fn differences(&mut self) -> io::Result<Vec<Difference>> {
        match self {
            Self::Nftables(inspection) => inspection.differences(),
            Self::Iptables(inspection) => inspection.differences(),
        }
    }

    /// How many objects there should be.
    pub fn objects(&self) -> usize {
        match self {
            Self::Nftables(inspection) => inspection.objects(),
            Self::Iptables(inspection) => inspection.objects(),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "missing",
            Self::Surplus => "surplus",
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
        })
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.object)?;
        match &self.service {
            Some(service) => write!(f, " ({service})"),
            None => Ok(()),
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

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Frontend(frontend) => write!(f, "{frontend}"),
            Self::Endpoint { at: None, ip, port } => write!(f, "endpoint {}", host_port(*ip, port.get())),
            Self::Endpoint { at: Some(at), ip, port } => {
                write!(f, "endpoint {} at {at}", host_port(*ip, port.get()))
            }
            Self::Refused(frontend) => write!(f, "{frontend} refused: no endpoints"),
            Self::Dropped(frontend) => write!(f, "{frontend} dropped: no endpoints on this node"),
            Self::Affinity { seconds, .. } => write!(f, "session affinity {seconds}s"),
            Self::Admitted { range, .. } => write!(f, "source range {range}"),
            Self::Restricted(frontend) => write!(f, "{frontend} restricted to source ranges"),
            Self::KeepsClients(Some(frontend)) => write!(f, "{frontend} keeps client addresses"),
            Self::KeepsClients(None) => f.write_str("external traffic keeps client addresses"),
            Self::ClusterIp(ip) => write!(f, "cluster IP {ip}"),
            Self::Hairpin { ip, port } => {
                write!(f, "connections of {} to itself", host_port(*ip, port.get()))
            }
        }
    }
}
