//! Which flows a sync makes stale.
//!
//! ```text
//!   Routing ─▶ Flows ─▶ Rechecks, once the rules are committed ─▶ judge every flow to those destinations
//! ```
//!
//! A flow is stale, and its entry is deleted,
//!
//! * over UDP, if it goes to an endpoint that no longer serves its destination, or was never translated although the
//!   destination has endpoints. Where policy sends new flows does not matter. Flows to a destination without endpoints stay,
//!   as upstream: the endpoint may serve again. Flows to a node port without endpoints do not, so that clients get an error.
//! * over TCP and SCTP, if it was never translated and never answered, and its destination has become a frontend: it is a
//!   connection attempt from before the rules, and the rules translate its next retransmission. Deleting an attempt that our
//!   rules do not translate does no harm, since its next packet creates the same entry again. Answered connections stay:
//!   their peers notice by themselves when an endpoint is gone.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use model::names::{Port, Protocol, ServicePortName};
use model::routing::{Endpoint, Frontend, Routing};

use super::ScanRequest;
use crate::nftables::claims::Rank;

/// The endpoints that serve the UDP destinations of one family, and the destinations to recheck after the next sync.
#[derive(Debug)]
pub struct Flows {
    contended: Contended,
    /// Only UDP service ports.
    services: HashMap<ServicePortName, Arc<Routing>>,
    /// The UDP service ports that claim a destination. Never empty.
    claims: HashMap<Destination, BTreeSet<ServicePortName>>,
    /// The addresses among the keys of `claims`, by port. Never empty.
    addresses: HashMap<u16, BTreeSet<SocketAddr>>,
    pending: HashMap<(Protocol, Destination), Cause>,
}

/// Whose endpoints serve a destination that several service ports claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contended {
    /// Those of the claim with the least [`Rank`].
    FirstOnly,
    /// Those of any claim: which rule matches first depends on which service ports have endpoints.
    All,
}

/// What a client sends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Destination {
    Address(SocketAddr),
    /// At any address of this node that serves node ports.
    NodePort(Port),
}

impl From<Frontend> for Destination {
    fn from(frontend: Frontend) -> Self {
        match frontend {
            Frontend::ClusterIp(at) | Frontend::ExternalIp(at) | Frontend::LoadBalancerIp(at) => {
                Self::Address(at)
            }
            Frontend::NodePort(port) => Self::NodePort(port),
        }
    }
}

impl Destination {
    /// `None` for a node port.
    fn ip(self) -> Option<IpAddr> {
        match self {
            Self::Address(at) => Some(at.ip()),
            Self::NodePort(_) => None,
        }
    }
}

/// The parts of a conntrack entry that decide whether it is stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TrackedFlow {
    pub protocol: Protocol,
    /// Where the client sends to.
    pub to: SocketAddr,
    /// The source of replies: an endpoint, or the destination itself if it was never translated.
    pub answered_by: SocketAddr,
    pub has_reply: bool,
}

/// Why a destination is rechecked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    /// Only flows that our rules have translated can be stale, so there are none if the rules have matched no packet.
    EndpointsLeft,
    /// Flows that our rules have not translated can be stale, too.
    Any,
}

impl Flows {
    pub fn new(contended: Contended) -> Self {
        Self {
            contended,
            services: HashMap::new(),
            claims: HashMap::new(),
            addresses: HashMap::new(),
            pending: HashMap::new(),
        }
    }

    /// Applies the routings that the next sync commits; `None` for a service port that is gone. The caller sends the returned
    /// request before that sync.
    pub fn prepare(&mut self, routings: &[(ServicePortName, Option<Arc<Routing>>)]) -> Option<ScanRequest> {
        let udp = routings.iter().filter(|(name, _)| name.protocol == Protocol::Udp);
        let changed: HashSet<Destination> =
            udp.flat_map(|(name, routing)| self.replace(name, routing.as_ref())).collect();
        let serving = |to: Destination| (to, self.serving(to));
        (!changed.is_empty()).then(|| ScanRequest::Serving(changed.into_iter().map(serving).collect()))
    }

    /// The kernel has the rules for all routings applied so far. The returned request starts the scans for flows that these
    /// rules make stale.
    ///
    /// `is_unused` tells whether our rules have matched no packet to a UDP destination, according to their counters.
    pub fn committed(
        &mut self,
        now: Instant,
        is_unused: impl FnMut(Destination) -> bool,
    ) -> Option<ScanRequest> {
        let (rechecks, if_used) = self.take_rechecks(is_unused);
        let is_needed = !rechecks.is_empty() || !if_used.is_empty();
        is_needed.then_some(ScanRequest::Recheck { committed: now, rechecks, if_used })
    }

    /// Applies the routing of one service port, and returns the destinations whose endpoints may change.
    fn replace(&mut self, name: &ServicePortName, routing: Option<&Arc<Routing>>) -> HashSet<Destination> {
        let routing = routing.filter(|routing| routing.protocol == Protocol::Udp);
        let before = match routing {
            Some(routing) => self.services.insert(name.clone(), routing.clone()),
            None => self.services.remove(name),
        };
        let (old, new) = (destinations(before.as_deref()), destinations(routing.map(|routing| &**routing)));
        for gone in old.difference(&new) {
            if let Some(claims) = self.claims.get_mut(gone) {
                claims.remove(name);
                if claims.is_empty() {
                    self.claims.remove(gone);
                    self.remove_address(*gone);
                }
            }
        }
        for added in new.difference(&old) {
            self.claims.entry(*added).or_default().insert(name.clone());
            if let Destination::Address(at) = added {
                self.addresses.entry(at.port()).or_default().insert(*at);
            }
        }
        for changed in old.symmetric_difference(&new) {
            self.add(Protocol::Udp, *changed, Cause::Any);
        }
        if let (Some(before), Some(now)) = (&before, routing) {
            let cause = cause(before, now);
            for destination in old.intersection(&new) {
                let rank = |routing| Rank::of(destination.ip(), name, routing);
                let cause = if rank(before) == rank(now) { cause } else { Some(Cause::Any) };
                if let Some(cause) = cause {
                    self.add(Protocol::Udp, *destination, cause);
                }
            }
        }
        old.union(&new).copied().collect()
    }

    /// Clients may have sent to a new frontend before there were rules for it. [`Self::prepare`] handles UDP.
    pub fn gain(&mut self, protocol: Protocol, frontend: Frontend) {
        if protocol != Protocol::Udp {
            self.add(protocol, frontend.into(), Cause::Any);
        }
    }

    /// Other rules, or none, may have applied to packets until now. `frontends` are all frontends.
    pub fn recheck_everything(&mut self, frontends: impl IntoIterator<Item = (Protocol, Frontend)>) {
        for (protocol, frontend) in frontends {
            self.add(protocol, frontend.into(), Cause::Any);
        }
    }

    /// The endpoints that serve a UDP destination.
    pub fn serving(&self, destination: Destination) -> Serving {
        let Some(names) = self.claims.get(&destination) else { return Serving(None) };
        let claims = names.iter().filter_map(|name| Some((name, self.services.get(name)?)));
        let endpoints = |(_, routing): (_, &Arc<Routing>)| routing.serving.clone();
        Serving(Some(match self.contended {
            Contended::All => claims.map(endpoints).collect(),
            Contended::FirstOnly => {
                let first = claims.min_by_key(|(name, routing)| Rank::of(destination.ip(), name, routing));
                first.map(endpoints).into_iter().collect()
            }
        }))
    }

    /// The rechecks for committed rules. Those of the second part are needed only for destinations to which an earlier scan left
    /// flows: `is_unused` tells that our rules have matched no packet to them.
    fn take_rechecks(&mut self, mut is_unused: impl FnMut(Destination) -> bool) -> (Rechecks, Rechecks) {
        let (mut rechecks, mut unused) = (Rechecks::default(), Rechecks::default());
        for ((protocol, destination), cause) in std::mem::take(&mut self.pending) {
            let recheck = match protocol {
                Protocol::Udp => Recheck::Answerer(self.serving(destination)),
                Protocol::Tcp | Protocol::Sctp => Recheck::Attempts,
            };
            let into = match cause {
                Cause::EndpointsLeft if is_unused(destination) => &mut unused,
                Cause::EndpointsLeft | Cause::Any => &mut rechecks,
            };
            if let (Protocol::Udp, Destination::NodePort(port)) = (protocol, destination) {
                into.shadowing.extend(self.addresses.get(&port.get()).into_iter().flatten());
            }
            into.of.insert((protocol, destination), recheck);
        }
        (rechecks, unused)
    }

    fn remove_address(&mut self, gone: Destination) {
        let Destination::Address(at) = gone else { return };
        if let Some(addresses) = self.addresses.get_mut(&at.port()) {
            addresses.remove(&at);
            if addresses.is_empty() {
                self.addresses.remove(&at.port());
            }
        }
    }

    fn add(&mut self, protocol: Protocol, destination: Destination, cause: Cause) {
        let pending = self.pending.entry((protocol, destination)).or_insert(cause);
        *pending = cause.max(*pending);
    }
}

/// The endpoints that serve a UDP destination, one list for each service port that may; `None` if it is no frontend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Serving(Option<Vec<Arc<[Endpoint]>>>);

impl Serving {
    pub fn is_frontend(&self) -> bool {
        self.0.is_some()
    }

    fn makes_stale(&self, to: Destination, flow: &TrackedFlow) -> bool {
        let Some(lists) = &self.0 else {
            // Our rules have nothing to do with flows that were never translated: to the node's own servers, for example.
            return flow.is_translated();
        };
        let mut endpoints = lists.iter().flat_map(|list| list.iter()).peekable();
        if endpoints.peek().is_none() && matches!(to, Destination::Address(_)) {
            return false;
        }
        !endpoints.any(|endpoint| address(endpoint) == flow.answered_by)
    }
}

impl TrackedFlow {
    fn is_translated(&self) -> bool {
        self.to != self.answered_by
    }
}

/// The destinations whose flows a scan judges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rechecks {
    pub(super) of: HashMap<(Protocol, Destination), Recheck>,
    /// UDP frontends with the port of a node port that is rechecked. If such a frontend is at an address of the node, flows to
    /// it are not the node port's, since rules look up the address first.
    pub(super) shadowing: HashSet<SocketAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Recheck {
    /// UDP: does the endpoint still serve the destination?
    Answerer(Serving),
    /// TCP and SCTP: is it a connection attempt from before the rules?
    Attempts,
}

/// Which flows the kernel has to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowFilter {
    pub protocol: Protocol,
    /// Only flows to this address.
    pub destination: Option<IpAddr>,
    /// Only flows that were neither translated nor answered.
    pub only_attempts: bool,
}

/// What a scan decides about a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowVerdict {
    /// Its destination is not rechecked, or is no frontend and the flow was never translated.
    NotConcerned,
    /// Its destination is a frontend, and the flow stays.
    Current(Destination),
    Stale,
}

impl Rechecks {
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// Adds the rechecks of `newer`, which replace those of the same destinations.
    pub fn join(&mut self, newer: Self) {
        self.of.extend(newer.of);
        self.shadowing.extend(newer.shadowing);
    }

    /// Keeps the rechecks of destinations that `keep` accepts.
    pub fn retain(&mut self, keep: impl Fn(Destination) -> bool) {
        self.of.retain(|(_, destination), _| keep(*destination));
    }

    /// Each UDP destination and the endpoints that serve it.
    pub fn servings(&self) -> impl Iterator<Item = (Destination, &Serving)> {
        self.of.iter().filter_map(|((_, destination), recheck)| match recheck {
            Recheck::Answerer(serving) => Some((*destination, serving)),
            Recheck::Attempts => None,
        })
    }

    /// These endpoints serve a destination now, or after the next sync.
    pub fn update(&mut self, destination: Destination, serving: &Serving) {
        if let Some(recheck) = self.of.get_mut(&(Protocol::Udp, destination)) {
            *recheck = Recheck::Answerer(serving.clone());
        }
    }

    /// The recheck of the address that a flow goes to.
    pub(super) fn at_address(&self, flow: &TrackedFlow) -> Option<(Destination, &Recheck)> {
        let address = Destination::Address(flow.to);
        Some((address, self.of.get(&(flow.protocol, address))?))
    }

    /// The recheck of the node port that a flow goes to. `node_ips` are the addresses of this node that serve node ports.
    pub(super) fn at_node_port(
        &self,
        flow: &TrackedFlow,
        node_ips: &HashSet<IpAddr>,
    ) -> Option<(Destination, &Recheck)> {
        let node_port = Destination::NodePort(Port::from_api(flow.to.port().into())?);
        let recheck = self.of.get(&(flow.protocol, node_port))?;
        // At other addresses it is a port of another host.
        let is_here = node_ips.contains(&flow.to.ip());
        let is_shadowed = flow.protocol == Protocol::Udp && self.shadowing.contains(&flow.to);
        (is_here && !is_shadowed).then_some((node_port, recheck))
    }
}

impl Recheck {
    pub(super) fn judge(&self, destination: Destination, flow: &TrackedFlow) -> FlowVerdict {
        let is_stale = match self {
            Self::Answerer(serving) => serving.makes_stale(destination, flow),
            Self::Attempts => !flow.is_translated() && !flow.has_reply,
        };
        match self {
            _ if is_stale => FlowVerdict::Stale,
            Self::Answerer(serving) if !serving.is_frontend() => FlowVerdict::NotConcerned,
            Self::Answerer(_) | Self::Attempts => FlowVerdict::Current(destination),
        }
    }
}

/// One filter for each protocol, sorted by protocol.
pub(super) fn filters<'a>(of: impl Iterator<Item = &'a (Protocol, Destination)> + Clone) -> Vec<FlowFilter> {
    let protocols: BTreeSet<Protocol> = of.clone().map(|(protocol, _)| *protocol).collect();
    let filter = |protocol| FlowFilter {
        protocol,
        destination: only_ip(of.clone().filter(|(its, _)| *its == protocol).map(|(_, to)| *to)),
        only_attempts: protocol != Protocol::Udp,
    };
    protocols.into_iter().map(filter).collect()
}

/// The address that all destinations share; node ports have none.
fn only_ip(destinations: impl Iterator<Item = Destination>) -> Option<IpAddr> {
    let mut ips = destinations.map(Destination::ip);
    let first = ips.next()??;
    ips.all(|ip| ip == Some(first)).then_some(first)
}

fn destinations(routing: Option<&Routing>) -> HashSet<Destination> {
    routing.into_iter().flat_map(Routing::frontends).map(Destination::from).collect()
}

/// An additional endpoint makes no flow stale, unless there was none before and flows were not translated.
fn cause(before: &Routing, now: &Routing) -> Option<Cause> {
    if before.serving.is_empty() {
        return (!now.serving.is_empty()).then_some(Cause::Any);
    }
    let stay: HashSet<_> = now.serving.iter().map(address).collect();
    let all_stay = before.serving.iter().all(|endpoint| stay.contains(&address(endpoint)));
    (!all_stay).then_some(Cause::EndpointsLeft)
}

fn address(endpoint: &Endpoint) -> SocketAddr {
    SocketAddr::new(endpoint.ip, endpoint.port.get())
}

#[cfg(test)]
pub(super) mod tests;
