//! Which flows a sync makes stale.
//!
//! ```text
//!   Routing ─▶ Flows ─▶ Rechecks, once the rules are committed ─▶ judge every flow to those destinations
//! ```
//!
//! A flow is stale, and its entry is deleted,
//!
//! * over UDP, if an endpoint answers it that no longer serves its destination, or none does (it was never translated) although
//!   the destination has endpoints. Where policy would send a new flow does not matter. A destination without endpoints keeps
//!   its flows, as upstream's does: the endpoint may serve again. Not so a node port, whose clients are to learn that there is none.
//! * over TCP and SCTP, if it was never translated and never answered, and its destination has become a frontend: a connection
//!   attempt from before the rules, whose next retransmit is then translated. An attempt that our rules don't translate loses
//!   nothing by it, since its next packet makes the same entry again. Whatever has been answered stays: the peers of a
//!   connection find out by themselves when an endpoint is gone.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use model::names::{Port, Protocol, ServicePortName};
use model::routing::{Endpoint, Frontend, Routing};

use super::ScanRequest;
use crate::nftables::claims::Rank;

/// Who serves the UDP destinations of one family, and which destinations to recheck after the next sync.
#[derive(Debug)]
pub struct Flows {
    contended: Contended,
    /// Those of UDP.
    services: HashMap<ServicePortName, Arc<Routing>>,
    /// The UDP service ports that have a destination; several if they contest it, never none.
    claims: HashMap<Destination, BTreeSet<ServicePortName>>,
    /// The addresses among the keys of `claims` by their port; no port without one.
    addresses: HashMap<u16, BTreeSet<SocketAddr>>,
    pending: HashMap<(Protocol, Destination), Cause>,
}

/// Who serves a destination that several service ports claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contended {
    /// The one whose claim has the least [`Rank`].
    FirstOnly,
    /// Any of them may: which rules a packet meets first depends on who has endpoints.
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
    /// None for a node port.
    fn ip(self) -> Option<IpAddr> {
        match self {
            Self::Address(at) => Some(at.ip()),
            Self::NodePort(_) => None,
        }
    }
}

/// A conntrack entry as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TrackedFlow {
    pub protocol: Protocol,
    /// Where the client sends to.
    pub to: SocketAddr,
    /// Who answers, or would: the destination itself if it was never translated.
    pub answered_by: SocketAddr,
    pub has_reply: bool,
}

/// Why a destination is rechecked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    /// Only flows that our rules have translated can be stale: none where they have never matched a packet.
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

    /// Takes in what service ports do from the next sync on, `None` if they are gone. To be called before that sync, and what it
    /// returns is to be sent before it.
    pub fn prepare(&mut self, routings: &[(ServicePortName, Option<Arc<Routing>>)]) -> Option<ScanRequest> {
        let udp = routings.iter().filter(|(name, _)| name.protocol == Protocol::Udp);
        let changed: HashSet<Destination> =
            udp.flat_map(|(name, routing)| self.replace(name, routing.as_ref())).collect();
        let serving = |to: Destination| (to, self.serving(to));
        (!changed.is_empty()).then(|| ScanRequest::Serving(changed.into_iter().map(serving).collect()))
    }

    /// The kernel holds the rules for everything that was taken in: what they make stale is to be scanned for.
    ///
    /// `is_unused` says of a UDP destination whether our rules have matched no packet for it, so far as they count.
    pub fn committed(
        &mut self,
        now: Instant,
        is_unused: impl FnMut(Destination) -> bool,
    ) -> Option<ScanRequest> {
        let (rechecks, if_used) = self.take_rechecks(is_unused);
        let is_needed = !rechecks.is_empty() || !if_used.is_empty();
        is_needed.then_some(ScanRequest::Recheck { committed: now, rechecks, if_used })
    }

    /// Takes in what a service port does from the next sync on, and returns the destinations that are served by others than
    /// before.
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
        for come in new.difference(&old) {
            self.claims.entry(*come).or_default().insert(name.clone());
            if let Destination::Address(at) = come {
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

    /// Clients may have sent to a new frontend before the rules translated. Of UDP, [`Self::prepare`] finds out by itself.
    pub fn gain(&mut self, protocol: Protocol, frontend: Frontend) {
        if protocol != Protocol::Udp {
            self.add(protocol, frontend.into(), Cause::Any);
        }
    }

    /// Rules of others, or none, may have applied to packets until now; `frontends` are all there are.
    pub fn recheck_everything(&mut self, frontends: impl IntoIterator<Item = (Protocol, Frontend)>) {
        for (protocol, frontend) in frontends {
            self.add(protocol, frontend.into(), Cause::Any);
        }
    }

    /// Who serves a UDP destination.
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

    /// What to recheck, now that the rules are committed. The second part has to be rechecked only where an earlier scan saw
    /// flows: for these destinations `is_unused` says that our rules have never matched a packet.
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
        let held = self.pending.entry((protocol, destination)).or_insert(cause);
        *held = cause.max(*held);
    }
}

/// Who serves a UDP destination: a list of endpoints per service port that may; `None` if it is no frontend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Serving(Option<Vec<Arc<[Endpoint]>>>);

impl Serving {
    pub fn is_frontend(&self) -> bool {
        self.0.is_some()
    }

    fn makes_stale(&self, to: Destination, flow: &TrackedFlow) -> bool {
        let Some(lists) = &self.0 else {
            // What was never translated is none of ours: the node's own servers, for example.
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

/// Destinations whose flows a scan has to judge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rechecks {
    pub(super) of: HashMap<(Protocol, Destination), Recheck>,
    /// UDP frontends with the port of a node port that is rechecked. Should one be at an address of the node, flows to it are
    /// not the node port's: rules look for the address first.
    pub(super) shadowing: HashSet<SocketAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Recheck {
    /// Over UDP: does the endpoint that answers still serve?
    Answerer(Serving),
    /// Over TCP and SCTP: is it an attempt from before the rules?
    Attempts,
}

/// What the kernel may leave out when it lists flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowFilter {
    pub protocol: Protocol,
    /// The only destination address of interest.
    pub destination: Option<IpAddr>,
    /// Only flows that were neither translated nor answered are of interest.
    pub only_attempts: bool,
}

/// What a scan makes of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowVerdict {
    /// Its destination is not rechecked, or is no frontend and the flow none of ours.
    NotConcerned,
    /// Its destination is a frontend, and it may go on.
    Current(Destination),
    Stale,
}

impl Rechecks {
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// What either has. The other one is the newer one.
    pub fn join(&mut self, newer: Self) {
        self.of.extend(newer.of);
        self.shadowing.extend(newer.shadowing);
    }

    /// Keeps those of UDP destinations that `keep` accepts.
    pub fn retain(&mut self, keep: impl Fn(Destination) -> bool) {
        self.of.retain(|(_, destination), _| keep(*destination));
    }

    /// Each UDP destination and who serves it.
    pub fn servings(&self) -> impl Iterator<Item = (Destination, &Serving)> {
        self.of.iter().filter_map(|((_, destination), recheck)| match recheck {
            Recheck::Answerer(serving) => Some((*destination, serving)),
            Recheck::Attempts => None,
        })
    }

    /// A destination is, or is about to be, served by these.
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

    /// The recheck of the node port that a flow goes to. `node_ips` are the addresses of this node at which node ports are served.
    pub(super) fn at_node_port(
        &self,
        flow: &TrackedFlow,
        node_ips: &HashSet<IpAddr>,
    ) -> Option<(Destination, &Recheck)> {
        let node_port = Destination::NodePort(Port::from_api(flow.to.port().into())?);
        let recheck = self.of.get(&(flow.protocol, node_port))?;
        // Elsewhere it is a port of that number at some other host.
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

/// One for each protocol, in a fixed order.
pub(super) fn filters<'a>(of: impl Iterator<Item = &'a (Protocol, Destination)> + Clone) -> Vec<FlowFilter> {
    let protocols: BTreeSet<Protocol> = of.clone().map(|(protocol, _)| *protocol).collect();
    let filter = |protocol| FlowFilter {
        protocol,
        destination: only_ip(of.clone().filter(|(its, _)| *its == protocol).map(|(_, to)| *to)),
        only_attempts: protocol != Protocol::Udp,
    };
    protocols.into_iter().map(filter).collect()
}

/// The address that all are at; node ports are at any.
fn only_ip(destinations: impl Iterator<Item = Destination>) -> Option<IpAddr> {
    let mut ips = destinations.map(Destination::ip);
    let first = ips.next()??;
    ips.all(|ip| ip == Some(first)).then_some(first)
}

fn destinations(routing: Option<&Routing>) -> HashSet<Destination> {
    routing.into_iter().flat_map(Routing::frontends).map(Destination::from).collect()
}

/// An endpoint more makes no flow stale, except that where there was none flows may have stayed untranslated.
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
