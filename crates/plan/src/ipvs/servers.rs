//! Virtual and real servers, and the steps that change them in the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use model::names::{Port, Protocol};

/// The interface that holds the addresses of virtual servers. It is never up; its addresses are local nevertheless.
pub const INTERFACE: &str = "kube-ipvs0";

/// `IP_VS_SVC_F_PERSISTENT`: session affinity.
pub const PERSISTENT: u32 = 0x1;
/// `IP_VS_SVC_F_SCHED_MH_FALLBACK`: the scheduler `mh` chooses another real server for clients of one with weight 0, instead of none.
pub const HASH_FALLBACK: u32 = 0x8;
/// `IP_VS_SVC_F_SCHED_MH_PORT`: the scheduler `mh` hashes the source port, too.
pub const HASH_PORT: u32 = 0x10;

/// What identifies a virtual server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VirtualAddress {
    pub ip: IpAddr,
    pub protocol: Protocol,
    pub port: Port,
}

/// How a virtual server balances.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VirtualServer {
    pub scheduler: Arc<str>,
    /// Without `IP_VS_SVC_F_HASHED`, which the kernel sets.
    pub flags: u32,
    /// Seconds of session affinity; 0 without.
    pub timeout: u32,
}

/// What identifies a real server of a virtual server. All use the forwarding method masquerading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RealServer {
    pub ip: IpAddr,
    pub port: Port,
}

/// One change to the servers or to the addresses of [`INTERFACE`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerStep {
    AddVirtual(VirtualAddress, VirtualServer),
    SetVirtual(VirtualAddress, VirtualServer),
    /// Its real servers go with it.
    DeleteVirtual(VirtualAddress),
    AddReal(VirtualAddress, RealServer, u32),
    SetWeight(VirtualAddress, RealServer, u32),
    DeleteReal(VirtualAddress, RealServer),
    /// Adds an address to [`INTERFACE`].
    Bind(IpAddr),
    Unbind(IpAddr),
}

/// What the kernel holds of one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ActualServers {
    pub virtual_servers: BTreeMap<VirtualAddress, ActualVirtual>,
    /// The addresses of [`INTERFACE`].
    pub bound: BTreeSet<IpAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActualVirtual {
    pub server: VirtualServer,
    pub real_servers: BTreeMap<RealServer, ActualReal>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActualReal {
    pub weight: u32,
    /// Connections in the kernel's table.
    pub active: u32,
    pub inactive: u32,
    /// Connections since the server was added.
    pub connections: u64,
}
