//! The way of a packet through the reference's chains: each rule in turn, until one decides.

use model::cluster::Considered;
use model::routing::{Routing, Traffic};

use super::{Course, End, External, Fate, Kind, Reason, Traveller, leads_on, refusal};
use crate::iptables::chains::{EXTERNAL_SERVICES, NODE_PORTS, Namer, PROXY_FIREWALL, Purpose, SERVICES};

pub(super) fn course<'a>(traveller: &'a Traveller<'a>) -> Course<'a> {
    translation(traveller).or_else(|| check(traveller)).unwrap_or_else(|| traveller.untouched(Vec::new()))
}

/// Nat: the first rule that leads to an endpoint. A chain that leads nowhere returns, and the next rule has its turn.
fn translation<'a>(traveller: &'a Traveller<'a>) -> Option<Course<'a>> {
    let by_address = traveller.by_address().find_map(|(claim, kind)| enter(traveller, claim, kind));
    by_address.or_else(|| {
        let mut claims = traveller.by_node_port().filter(|_| traveller.is_at_node_port_address());
        claims.find_map(|claim| enter(traveller, claim, Kind::NodePort))
    })
}

fn enter<'a>(traveller: &Traveller<'_>, claim: &'a Considered<'a>, kind: Kind) -> Option<Course<'a>> {
    let routing = &claim.routing;
    let namer = Namer::new(&claim.name);
    let own = |purpose| namer.chain(purpose).to_string();
    let mut chains = vec![SERVICES.to_owned()];
    let end = match kind {
        Kind::ClusterIp => {
            let (traffic, mark) = (routing.internal, traveller.internal_mark());
            leads_on(traffic).then_some(End::Translated { traffic, mark, short_circuit: false })?
        }
        Kind::ExternalIp | Kind::LoadBalancerIp | Kind::NodePort => {
            if kind == Kind::NodePort {
                chains.push(NODE_PORTS.to_owned());
            }
            if kind == Kind::LoadBalancerIp && has_firewall(routing) {
                chains.push(own(Purpose::Firewall));
                if !traveller.is_admitted(routing) {
                    return None;
                }
            }
            chains.push(own(Purpose::External));
            routing.has_endpoints().then(|| External::of(traveller, routing).end())??
        }
    };
    if let End::Translated { traffic, .. } = &end {
        chains.push(own(if *traffic == Traffic::ToLocal { Purpose::Local } else { Purpose::Cluster }));
    }
    Some(Course { met: Some((claim, kind)), end, chains })
}

/// Filter: what was not translated, first where it leaves the node that sends it, then where it is delivered.
fn check<'a>(traveller: &'a Traveller<'a>) -> Option<Course<'a>> {
    let external = || external_services(traveller);
    let internal = || cluster_ips(traveller);
    let firewall = || firewall(traveller);
    match (traveller.from_node, traveller.to_this_node) {
        (true, true) => firewall().or_else(internal).or_else(external),
        (true, false) => firewall().or_else(internal),
        (false, true) => firewall().or_else(external),
        (false, false) => firewall().or_else(internal).or_else(external),
    }
}

/// What goes to a load balancer's IP and was let through by nobody.
fn firewall<'a>(traveller: &'a Traveller<'a>) -> Option<Course<'a>> {
    let mut at = traveller.by_address();
    let closed = at.find(|(claim, kind)| *kind == Kind::LoadBalancerIp && has_firewall(&claim.routing));
    let (claim, kind) = closed?;
    let admitted = traveller.is_admitted(&claim.routing);
    let reason = if admitted { Reason::NoLocalEndpoints } else { Reason::NotInSourceRanges };
    Some(stop(claim, kind, End::Stopped(Fate::Dropped, reason), PROXY_FIREWALL))
}

fn cluster_ips<'a>(traveller: &'a Traveller<'a>) -> Option<Course<'a>> {
    let mut at = traveller.by_address().filter(|(_, kind)| *kind == Kind::ClusterIp);
    at.find_map(|(claim, kind)| Some(stop(claim, kind, refusal(claim.routing.internal)?, SERVICES)))
}

/// Node ports are refused at every address of the node, also where they are not served.
fn external_services<'a>(traveller: &'a Traveller<'a>) -> Option<Course<'a>> {
    let by_address = traveller.by_address().filter(|(_, kind)| *kind != Kind::ClusterIp);
    let by_node_port = traveller.by_node_port().filter(|_| traveller.to_this_node);
    let mut all: Vec<_> = by_address.chain(by_node_port.map(|claim| (claim, Kind::NodePort))).collect();
    // Stable: within a service port, addresses come before the node port.
    all.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
    let mut all = all.into_iter();
    all.find_map(|(claim, kind)| Some(stop(claim, kind, refusal(claim.routing.external)?, EXTERNAL_SERVICES)))
}

fn stop<'a>(claim: &'a Considered<'a>, kind: Kind, end: End, chain: &str) -> Course<'a> {
    Course { met: Some((claim, kind)), end, chains: vec![chain.to_owned()] }
}

/// Whether there is a chain of source ranges in front of load-balancer IPs.
fn has_firewall(routing: &Routing) -> bool {
    routing.has_endpoints() && !routing.addresses.source_ranges.is_empty()
}
