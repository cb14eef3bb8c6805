//! Which flows have become wrong: UDP has no connection that would end, so that a client which keeps its port keeps
//! the endpoint it once got, be it gone or not.
//!
//! ```text
//!   Routing ─▶ who may answer at each address, and which addresses to look at again ─▶ is this flow wrong?
//! ```
//!
//! A flow is right as long as the endpoint that answers it serves; where policy would send a new flow does not matter.
//! Nothing is done about TCP and SCTP, whose peers find out by themselves.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use model::names::{Port, Protocol, ServicePortName};
use model::routing::{Endpoint, Frontend, Routing};

/// Everything known about UDP service ports of one family.
#[derive(Debug, Default)]
pub struct Flows {
    services: HashMap<ServicePortName, Arc<Routing>>,
    /// Who claims a destination; several if they contest it.
    claims: HashMap<Destination, BTreeSet<ServicePortName>>,
    /// Destinations that flows may have that are wrong by now.
    doubtful: Doubts,
    /// Destinations that flows were seen to have which stayed.
    used: HashSet<Destination>,
    /// Who may have answered flows to a destination, and does not serve it any more: itself, where nobody did. Kept until
    /// such flows have been looked for.
    left: HashMap<Destination, HashSet<Answerer>>,
}

/// The endpoint, or none for what was not translated.
type Answerer = Option<SocketAddr>;

/// What a client sends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Destination {
    Address(SocketAddr),
    /// At any address of this node.
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

/// A flow as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Where the client sends to.
    pub to: SocketAddr,
    /// Who answers.
    pub answered_by: SocketAddr,
}

impl Flows {
    /// Takes in what a service port does from now on.
    pub fn replace(&mut self, name: &ServicePortName, routing: Option<&Arc<Routing>>) {
        let routing = routing.filter(|routing| routing.protocol == Protocol::Udp);
        let before = match routing {
            Some(routing) => self.services.insert(name.clone(), routing.clone()),
            None => self.services.remove(name),
        };
        let (old, new) = (destinations(before.as_deref()), destinations(routing.map(|routing| &**routing)));
        for gone in old.difference(&new) {
            self.used.remove(gone);
            if let Some(claims) = self.claims.get_mut(gone) {
                claims.remove(name);
                if claims.is_empty() {
                    self.claims.remove(gone);
                }
            }
        }
        for come in new.difference(&old) {
            self.claims.entry(*come).or_default().insert(name.clone());
        }
        for changed in old.symmetric_difference(&new) {
            self.doubtful.add(*changed, Doubt::Any);
        }
        self.remember_who_left(before.as_deref(), routing.map(|routing| &**routing), &old, &new);
        if let (Some(before), Some(now)) = (&before, routing)
            && let Some(doubt) = doubt_about(before, now)
        {
            new.into_iter().for_each(|destination| self.doubtful.add(destination, doubt));
        }
    }

    /// Somebody else's rules may have sent flows anywhere until now.
    pub fn doubt_everything(&mut self) {
        self.claims.keys().for_each(|destination| self.doubtful.add(*destination, Doubt::Any));
    }

    /// Hands out what to look at; from now on it is in order.
    pub fn take_doubts(&mut self) -> Doubts {
        std::mem::take(&mut self.doubtful)
    }

    /// All flows that are wrong and that there may be, of those in doubt, given the addresses of this node at which node ports
    /// answer. It is not known of any where others than ourselves have sent it. `None` if they are more than `most`.
    pub fn wrong_ones(
        &self,
        doubts: &Doubts,
        node_ips: &HashSet<IpAddr>,
        most: usize,
    ) -> Option<HashSet<Flow>> {
        let mut wrong = HashSet::new();
        for (destination, answerers) in doubts.0.keys().filter_map(|to| self.left.get_key_value(to)) {
            let claims = self.claims.get(destination);
            let serving: HashSet<SocketAddr> =
                claims.into_iter().flatten().flat_map(|name| self.serving(name)).collect();
            for answerer in answerers {
                let mut add = |to| {
                    let flow = Flow { to, answered_by: answerer.unwrap_or(to) };
                    let serves = |at| serving.contains(&at);
                    if is_wrong(*destination, flow, claims.is_some(), serving.is_empty(), serves) {
                        wrong.insert(flow);
                    }
                };
                match destination {
                    Destination::Address(to) => add(*to),
                    Destination::NodePort(port) => node_ips
                        .iter()
                        .filter(|ip| !is_link_local(**ip))
                        // There node ports may not be served, and a server of the node's own may have that port.
                        .filter(|ip| answerer.is_some() || !ip.is_loopback())
                        .for_each(|ip| add(SocketAddr::new(*ip, port.get()))),
                }
                if wrong.len() > most {
                    return None;
                }
            }
        }
        Some(wrong)
    }

    /// Flows in doubt have been looked for: what is left of them is right, or waits for somebody to serve again. Not so
    /// where there is doubt again.
    pub fn forget_who_left(&mut self, doubts: &Doubts) {
        for destination in doubts.0.keys().filter(|it| !self.doubtful.0.contains_key(it)) {
            if !self.waits(*destination) {
                self.left.remove(destination);
            }
        }
    }

    /// Whether there is a service and nobody to serve it.
    fn waits(&self, destination: Destination) -> bool {
        let serves = |name| self.serving(name).next().is_some();
        self.claims.get(&destination).is_some_and(|claims| !claims.iter().any(serves))
    }

    fn remember_who_left(
        &mut self,
        before: Option<&Routing>,
        now: Option<&Routing>,
        old: &HashSet<Destination>,
        new: &HashSet<Destination>,
    ) {
        let serving = |routing: Option<&Routing>| -> HashSet<SocketAddr> {
            routing.into_iter().flat_map(|routing| routing.serving.iter().map(address)).collect()
        };
        let (served, serve) = (serving(before), serving(now));
        for destination in old {
            let left = served.iter().filter(|at| !new.contains(destination) || !serve.contains(at));
            let mut left = left.map(|at| Some(*at)).peekable();
            if left.peek().is_some() {
                self.left.entry(*destination).or_default().extend(left);
            }
        }
        if serve.is_empty() {
            return;
        }
        for destination in new.iter().filter(|it| served.is_empty() || !old.contains(it)) {
            self.left.entry(*destination).or_default().insert(None);
        }
    }

    /// Whether a flow has to end, given the addresses of this node, at which node ports answer.
    pub fn is_wrong(&mut self, flow: Flow, doubts: &Doubts, node_ips: &HashSet<IpAddr>) -> bool {
        let Some(to) = doubts.about(flow.to, node_ips) else { return false };
        let is_wrong = self.is_wrong_at(to, flow);
        if !is_wrong {
            self.used.insert(to);
            if self.waits(to) {
                let answerer = (flow.answered_by != flow.to).then_some(flow.answered_by);
                self.left.entry(to).or_default().insert(answerer);
            }
        }
        is_wrong
    }

    /// Whether a flow to that destination has been seen and left alone.
    pub fn is_used(&self, destination: Destination) -> bool {
        self.used.contains(&destination)
    }

    fn is_wrong_at(&self, to: Destination, flow: Flow) -> bool {
        let claims = self.claims.get(&to);
        let mut serving = claims.into_iter().flatten().flat_map(|name| self.serving(name)).peekable();
        let nobody = serving.peek().is_none();
        is_wrong(to, flow, claims.is_some(), nobody, |at| serving.any(|serves| serves == at))
    }

    fn serving(&self, name: &ServicePortName) -> impl Iterator<Item = SocketAddr> {
        self.services.get(name).into_iter().flat_map(|routing| routing.serving.iter().map(address))
    }
}

/// Destinations to look at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Doubts(HashMap<Destination, Doubt>);

/// Which flows to a destination may be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Doubt {
    /// Those that our rules have sent to an endpoint: none where our rules have never met a packet for it.
    Sent,
    /// Those that went past our rules, too.
    Any,
}

impl Doubts {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What either doubts.
    pub fn join(&mut self, other: Self) {
        other.0.into_iter().for_each(|(destination, doubt)| self.add(destination, doubt));
    }

    /// What the other does not doubt.
    #[must_use]
    pub fn without(mut self, other: &Self) -> Self {
        self.0.retain(|destination, _| !other.0.contains_key(destination));
        self
    }

    /// What of it a flow goes to.
    fn about(&self, to: SocketAddr, node_ips: &HashSet<IpAddr>) -> Option<Destination> {
        let address = Destination::Address(to);
        if self.0.contains_key(&address) {
            return Some(address);
        }
        let node_port = Destination::NodePort(Port::from_api(to.port().into())?);
        // Somebody else's port of the same number, out in the world, is none of our business.
        (self.0.contains_key(&node_port) && node_ips.contains(&to.ip())).then_some(node_port)
    }

    /// The one address that it is all about, if there is one. Node ports are at any.
    pub fn only_ip(&self) -> Option<IpAddr> {
        let mut ips = self.0.keys().map(|destination| match destination {
            Destination::Address(at) => Some(at.ip()),
            Destination::NodePort(_) => None,
        });
        let first = ips.next()??;
        ips.all(|ip| ip == Some(first)).then_some(first)
    }

    /// Leaves out destinations that nobody has ever been sent anywhere from, and returns those.
    pub fn dismiss_unused(&mut self, mut is_unused: impl FnMut(Destination) -> bool) -> Self {
        Self(
            self.0
                .extract_if(|destination, doubt| *doubt == Doubt::Sent && is_unused(*destination))
                .collect(),
        )
    }

    fn add(&mut self, destination: Destination, doubt: Doubt) {
        let held = self.0.entry(destination).or_insert(doubt);
        *held = doubt.max(*held);
    }
}

fn destinations(routing: Option<&Routing>) -> HashSet<Destination> {
    routing.into_iter().flat_map(Routing::frontends).map(Destination::from).collect()
}

/// An endpoint more makes no flow wrong, except that where there was none flows may have gone astray.
fn doubt_about(before: &Routing, now: &Routing) -> Option<Doubt> {
    if before.serving.is_empty() {
        return (!now.serving.is_empty()).then_some(Doubt::Any);
    }
    let stay: HashSet<_> = now.serving.iter().map(address).collect();
    let all_stay = before.serving.iter().all(|endpoint| stay.contains(&address(endpoint)));
    (!all_stay).then_some(Doubt::Sent)
}

/// Whether a flow is wrong, given whether the destination is anybody's, whether nobody serves it, and who does.
fn is_wrong(
    to: Destination,
    flow: Flow,
    is_claimed: bool,
    nobody_serves: bool,
    serves: impl FnOnce(SocketAddr) -> bool,
) -> bool {
    if !is_claimed {
        // What was never translated is none of ours: the node's own servers, say.
        return flow.to != flow.answered_by;
    }
    // A service that nobody serves keeps its flows, as with the reference: whoever answers them may serve again. Not so its
    // node port, where they would hide from a client that there is nobody.
    let keeps_for_want = nobody_serves && matches!(to, Destination::Address(_));
    !keeps_for_want && !serves(flow.answered_by)
}

/// A node has one for each of its pods, and hardly anybody uses them.
fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

fn address(endpoint: &Endpoint) -> SocketAddr {
    SocketAddr::new(endpoint.ip, endpoint.port.get())
}

#[cfg(test)]
mod tests;
