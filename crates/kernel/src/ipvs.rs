//! Reads back and changes the virtual and real servers of one IP family, and the addresses of `kube-ipvs0`.
//!
//! ```text
//!   read ─▶ ActualServers ─▶ plan ─▶ steps ─▶ commit ─▶ Outcome
//! ```
//!
//! There are no transactions: a commit that fails may have applied some of its steps, and the caller has to read back. The
//! caller decides what to write and when to retry.

mod cleanup;
mod compare;
mod counters;
mod lookup;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::{fmt, io};

use model::address::Family;
use model::names::{Port, Protocol};
use netlink::ipvs::{IpvsChange, IpvsConnections, IpvsDestination, IpvsService, IpvsServiceKey, IpvsSocket};
use netlink::route::RouteSocket;
use plan::ipvs::servers::{
    ActualReal, ActualServers, ActualVirtual, INTERFACE, RealServer, ServerStep, VirtualAddress,
    VirtualServer,
};
use rustix::io::Errno;

use crate::outcome::Outcome;
use crate::{is_shortage, protocol_number, wire_family};
pub use cleanup::{destroy_sets, remove, remove_idle};
pub use compare::{ServersInspection, ServersSnapshot};
pub use counters::endpoint_connections;
pub use lookup::ServersLookup;
pub use netlink::ipvs::IpvsTimeouts;

/// Limits the number of answers that wait in the socket's receive buffer.
const STEPS_PER_SEND: usize = 256;
/// Reading fails if this many lists of virtual servers in succession have new ones.
const MAX_LISTS: u32 = 20;
/// An address for documentation, which no Service may have. The same as upstream's.
const PROBE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 0);
const PROBE_PORT: u16 = 20_000;

/// Access to the servers of one family.
#[derive(Debug)]
pub struct KernelServers {
    family: Family,
    ipvs: IpvsSocket,
    route: RouteSocket,
}

#[derive(Debug, thiserror::Error)]
pub enum ServersError {
    /// Another process changed the servers or the interface. Some of the steps have been applied: read back.
    #[error("the kernel is not in the assumed state")]
    Stale(#[source] RejectedStep),
    /// The kernel rejects these steps, and has applied all others.
    #[error("the kernel rejects {} steps", others.len() + 1)]
    Refused {
        #[source]
        first: RejectedStep,
        others: Vec<RejectedStep>,
    },
    /// The kernel may have performed the request: read back.
    #[error("cannot communicate with the kernel")]
    Socket(#[from] io::Error),
}

/// A step that the kernel rejected.
#[derive(Debug, thiserror::Error)]
#[error("{}", Described(step))]
pub struct RejectedStep {
    pub step: ServerStep,
    #[source]
    pub errno: io::Error,
}

impl KernelServers {
    /// Opens the servers of the calling thread's network namespace. Loads the kernel's module if needed.
    pub fn open(family: Family) -> io::Result<Self> {
        match IpvsSocket::open() {
            Ok(ipvs) => Ok(Self { family, ipvs, route: RouteSocket::open()? }),
            Err(error) if is(&error, Errno::NOENT) => {
                Err(io::Error::new(io::ErrorKind::Unsupported, "ipvs not supported by the kernel"))
            }
            Err(error) => Err(error),
        }
    }

    /// Fails unless the kernel has the scheduler, whose module it loads if needed. Adds a virtual server with it for a moment,
    /// unless there is one already.
    pub fn check_scheduler(&mut self, scheduler: &str) -> Result<(), ServersError> {
        if self.ipvs.services()?.iter().any(|(_, service)| &*service.scheduler == scheduler) {
            return Ok(());
        }
        let port = Port::from_api(PROBE_PORT.into()).expect("a port number");
        let probe = VirtualAddress { ip: PROBE.into(), protocol: Protocol::Tcp, port };
        let server = VirtualServer { scheduler: scheduler.into(), flags: 0, timeout: 0 };
        // An earlier process may have ended before it deleted its own.
        let _ = self.send(&[ServerStep::DeleteVirtual(probe)])?;
        self.commit(&[ServerStep::AddVirtual(probe, server), ServerStep::DeleteVirtual(probe)]).map(drop)
    }

    /// Sets the timeouts of idle connections; zero keeps the present one. They hold for both families.
    pub fn set_timeouts(&mut self, timeouts: IpvsTimeouts) -> io::Result<()> {
        self.ipvs.set_timeouts(timeouts)
    }

    /// Creates the interface if there is none. It stays down: its addresses are local nevertheless.
    pub fn ensure_interface(&mut self) -> io::Result<()> {
        if self.route.link(INTERFACE)?.is_some() {
            return Ok(());
        }
        match self.route.create_dummy(INTERFACE) {
            // The worker of the other family has created it meanwhile.
            Err(error) if is(&error, Errno::EXIST) => Ok(()),
            created => created,
        }
    }

    /// Reads what the kernel holds of the family.
    pub fn read(&mut self) -> io::Result<ActualServers> {
        let mut virtual_servers = BTreeMap::new();
        for (address, server) in self.virtual_servers()? {
            let real_servers = self.real_servers(address)?;
            virtual_servers.insert(address, ActualVirtual { server, real_servers });
        }
        Ok(ActualServers { virtual_servers, bound: self.bound()?.into_iter().collect() })
    }

    pub fn has_virtual_server(&mut self, at: VirtualAddress) -> io::Result<bool> {
        Ok(self.ipvs.service(key(at))?.is_some())
    }

    /// The real servers of one virtual server with their connections. None if there is no such virtual server.
    pub fn real_servers(&mut self, of: VirtualAddress) -> io::Result<BTreeMap<RealServer, ActualReal>> {
        let found = self.ipvs.destinations(key(of))?;
        let real = |(destination, connections): (IpvsDestination, IpvsConnections)| {
            let address = destination.address;
            let server = RealServer { ip: address.ip(), port: Port::from_api(address.port().into())? };
            let actual = ActualReal {
                weight: destination.weight,
                active: connections.active,
                inactive: connections.inactive,
                connections: connections.total,
            };
            Some((server, actual))
        };
        Ok(found.into_iter().filter_map(real).collect())
    }

    /// Applies the steps in their order, also those after one that the kernel rejects.
    pub fn commit(&mut self, steps: &[ServerStep]) -> Result<Outcome, ServersError> {
        let mut outcome = Outcome::default();
        let mut refused: Vec<RejectedStep> = Vec::new();
        for similar in steps.chunk_by(|a, b| Request::of(a) == Request::of(b)) {
            for steps in similar.chunks(STEPS_PER_SEND) {
                for rejected in rejected(steps, self.send(steps)?) {
                    let is_consequence = refused.iter().any(|earlier| depends(&rejected.step, &earlier.step));
                    if !is_consequence && is_stale(&rejected) {
                        return Err(ServersError::Stale(rejected));
                    }
                    refused.push(rejected);
                }
                outcome.writes += 1;
            }
        }
        let mut refused = refused.into_iter();
        if let Some(first) = refused.next() {
            return Err(ServersError::Refused { first, others: refused.collect() });
        }
        outcome.deleted = steps.iter().filter(|step| deletes(step)).count();
        outcome.added = steps.len() - outcome.deleted;
        Ok(outcome)
    }

    /// Sends steps of the same kind of request at once.
    fn send(&mut self, steps: &[ServerStep]) -> io::Result<Vec<io::Result<()>>> {
        let addresses: Vec<IpAddr> = steps.iter().filter_map(address).collect();
        match steps.first().map(Request::of) {
            Some(Request::Servers) => {
                self.ipvs.change(&steps.iter().filter_map(change).collect::<Vec<IpvsChange>>())
            }
            Some(Request::Bind) => match self.interface()? {
                Some(index) => self.route.add_host_addresses(index, &addresses),
                None => Ok(vec![Err(Errno::NODEV.into())]),
            },
            Some(Request::Unbind) => match self.interface()? {
                Some(index) => self.route.delete_host_addresses(index, &addresses),
                None => Ok(Vec::new()),
            },
            None => Ok(Vec::new()),
        }
    }

    fn interface(&mut self) -> io::Result<Option<u32>> {
        Ok(self.route.link(INTERFACE)?.map(|link| link.index))
    }

    /// The addresses of the interface, without the one that the kernel adds to each interface that is up.
    fn bound(&mut self) -> io::Result<Vec<IpAddr>> {
        let Some(interface) = self.interface()? else { return Ok(Vec::new()) };
        let mut addresses = self.route.host_addresses(interface, wire_family(self.family))?;
        addresses.retain(|ip| !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local()));
        Ok(addresses)
    }

    /// Lists them until a list contains nothing new. A list lacks some if others are deleted meanwhile, for example by the worker
    /// of the other family, and the kernel does not report that.
    fn virtual_servers(&mut self) -> io::Result<BTreeMap<VirtualAddress, VirtualServer>> {
        let mut found = BTreeMap::new();
        for _ in 0..MAX_LISTS {
            let known = found.len();
            found.extend(self.listed()?);
            if found.len() == known {
                return Ok(found);
            }
        }
        Err(io::Error::new(
            io::ErrorKind::ResourceBusy,
            "virtual servers keep changing while they are listed",
        ))
    }

    /// Without those that no Service can have, such as those without a port.
    fn listed(&mut self) -> io::Result<impl Iterator<Item = (VirtualAddress, VirtualServer)>> {
        let family = self.family;
        let found = self.ipvs.services()?.into_iter();
        let virtual_server = |(key, service): (IpvsServiceKey, IpvsService)| {
            let IpvsService { scheduler, flags, timeout } = service;
            Some((virtual_address(key)?, VirtualServer { scheduler, flags, timeout }))
        };
        Ok(found.filter_map(virtual_server).filter(move |(address, _)| Family::of(address.ip) == family))
    }
}

/// Whether reading back and committing again is likely to succeed soon.
pub fn is_transient(error: &ServersError) -> bool {
    match error {
        ServersError::Stale(_) => true,
        ServersError::Refused { first, .. } => is_shortage(&first.errno),
        ServersError::Socket(error) => is_shortage(error),
    }
}

/// The kinds of requests that one datagram can carry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Request {
    Servers,
    Bind,
    Unbind,
}

impl Request {
    fn of(step: &ServerStep) -> Self {
        match step {
            ServerStep::AddVirtual(..)
            | ServerStep::SetVirtual(..)
            | ServerStep::DeleteVirtual(_)
            | ServerStep::AddReal(..)
            | ServerStep::SetWeight(..)
            | ServerStep::DeleteReal(..) => Self::Servers,
            ServerStep::Bind(_) => Self::Bind,
            ServerStep::Unbind(_) => Self::Unbind,
        }
    }
}

fn address(step: &ServerStep) -> Option<IpAddr> {
    if let ServerStep::Bind(ip) | ServerStep::Unbind(ip) = step { Some(*ip) } else { None }
}

fn change(step: &ServerStep) -> Option<IpvsChange> {
    Some(match step {
        ServerStep::AddVirtual(address, server) => IpvsChange::NewService(key(*address), service(server)),
        ServerStep::SetVirtual(address, server) => IpvsChange::SetService(key(*address), service(server)),
        ServerStep::DeleteVirtual(address) => IpvsChange::DeleteService(key(*address)),
        ServerStep::AddReal(of, real, weight) => {
            IpvsChange::NewDestination(key(*of), destination(*real, *weight))
        }
        ServerStep::SetWeight(of, real, weight) => {
            IpvsChange::SetDestination(key(*of), destination(*real, *weight))
        }
        ServerStep::DeleteReal(of, real) => IpvsChange::DeleteDestination(key(*of), real_address(*real)),
        ServerStep::Bind(_) | ServerStep::Unbind(_) => return None,
    })
}

fn deletes(step: &ServerStep) -> bool {
    matches!(step, ServerStep::DeleteVirtual(_) | ServerStep::DeleteReal(..) | ServerStep::Unbind(_))
}

fn rejected(steps: &[ServerStep], results: Vec<io::Result<()>>) -> impl Iterator<Item = RejectedStep> {
    let results = steps.iter().zip(results);
    results.filter_map(|(step, result)| Some(RejectedStep { step: step.clone(), errno: result.err()? }))
}

/// Whether the step needs the virtual server that the earlier step should have added.
fn depends(step: &ServerStep, earlier: &ServerStep) -> bool {
    match (step, earlier) {
        (ServerStep::AddReal(of, ..), ServerStep::AddVirtual(added, _)) => of == added,
        (ServerStep::DeleteVirtual(deleted), ServerStep::AddVirtual(added, _)) => deleted == added,
        _ => false,
    }
}

/// Whether what the step adds exists, or what it changes or deletes does not.
fn is_stale(rejected: &RejectedStep) -> bool {
    let causes: &[Errno] = match &rejected.step {
        // ENOENT means that there is no such scheduler.
        ServerStep::AddVirtual(..) => &[Errno::EXIST],
        ServerStep::SetVirtual(..) | ServerStep::DeleteVirtual(_) => &[Errno::SRCH],
        ServerStep::AddReal(..) => &[Errno::EXIST, Errno::SRCH],
        ServerStep::SetWeight(..) | ServerStep::DeleteReal(..) => &[Errno::NOENT, Errno::SRCH],
        ServerStep::Bind(_) | ServerStep::Unbind(_) => &[Errno::NODEV],
    };
    causes.iter().any(|errno| is(&rejected.errno, *errno))
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

fn key(address: VirtualAddress) -> IpvsServiceKey {
    IpvsServiceKey {
        protocol: protocol_number(address.protocol),
        address: SocketAddr::new(address.ip, address.port.get()),
    }
}

fn virtual_address(key: IpvsServiceKey) -> Option<VirtualAddress> {
    let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    let protocol = protocols.into_iter().find(|protocol| protocol_number(*protocol) == key.protocol)?;
    let port = Port::from_api(key.address.port().into())?;
    Some(VirtualAddress { ip: key.address.ip(), protocol, port })
}

fn service(server: &VirtualServer) -> IpvsService {
    IpvsService { scheduler: server.scheduler.clone(), flags: server.flags, timeout: server.timeout }
}

fn real_address(real: RealServer) -> SocketAddr {
    SocketAddr::new(real.ip, real.port.get())
}

fn destination(real: RealServer, weight: u32) -> IpvsDestination {
    IpvsDestination { address: real_address(real), weight }
}

/// A step in the words of an error message.
struct Described<'a>(&'a ServerStep);

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ServerStep::AddVirtual(at, server) => {
                write!(f, "adding virtual server {} with scheduler {}", text(*at), server.scheduler)
            }
            ServerStep::SetVirtual(at, server) => {
                write!(f, "changing virtual server {} to scheduler {}", text(*at), server.scheduler)
            }
            ServerStep::DeleteVirtual(at) => write!(f, "deleting virtual server {}", text(*at)),
            ServerStep::AddReal(at, real, _) => {
                write!(f, "adding real server {} to {}", real_address(*real), text(*at))
            }
            ServerStep::SetWeight(at, real, weight) => {
                let real = real_address(*real);
                write!(f, "setting the weight of real server {real} of {} to {weight}", text(*at))
            }
            ServerStep::DeleteReal(at, real) => {
                write!(f, "deleting real server {} from {}", real_address(*real), text(*at))
            }
            ServerStep::Bind(ip) => write!(f, "adding address {ip} to {INTERFACE}"),
            ServerStep::Unbind(ip) => write!(f, "deleting address {ip} from {INTERFACE}"),
        }
    }
}

/// As upstream writes it: `10.96.0.10:80/TCP`.
fn text(address: VirtualAddress) -> String {
    format!("{}/{}", SocketAddr::new(address.ip, address.port.get()), address.protocol)
}
