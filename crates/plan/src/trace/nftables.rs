//! The way of a packet through the fixed program; drawn at the top of [`crate::nftables::program`].

use model::routing::Traffic;

use super::{Course, End, External, Fate, Kind, Reason, Traveller, leads_on, refusal};
use model::cluster::Considered;

pub(super) fn course<'a>(traveller: &'a Traveller<'a>) -> Course<'a> {
    let owner = traveller.owner_by_address();
    let node_port = traveller.owner_by_node_port();
    firewall(traveller, owner)
        .or_else(|| translation(traveller, owner, node_port))
        .or_else(|| check(traveller, owner, node_port))
        .unwrap_or_else(|| traveller.untouched(Vec::new()))
}

type Met<'a> = (&'a Considered<'a>, Kind);

/// Before anything else, endpoints or not.
fn firewall<'a>(traveller: &Traveller<'_>, owner: Option<Met<'a>>) -> Option<Course<'a>> {
    let (claim, _) = owner?;
    let is_balancer = claim.routing.addresses.load_balancer_ips.contains(&traveller.packet.destination.ip());
    if !is_balancer || traveller.is_admitted(&claim.routing) {
        return None;
    }
    let end = End::Stopped(Fate::Dropped, Reason::NotInSourceRanges);
    Some(Course { met: Some((claim, Kind::LoadBalancerIp)), end, chains: path(&["firewall-check"]) })
}

fn translation<'a>(
    traveller: &Traveller<'_>,
    owner: Option<Met<'a>>,
    node_port: Option<&'a Considered<'a>>,
) -> Option<Course<'a>> {
    if let Some((claim, kind)) = owner.filter(|(claim, kind)| has_frontend(claim, *kind)) {
        let met = Some((claim, kind));
        // Rules tell cluster IPs by the address alone, whoever has the port.
        if traveller.to_cluster_ip {
            let traffic = traffic(claim, kind);
            let end = End::Translated { traffic, mark: traveller.internal_mark(), short_circuit: false };
            let chains = path(&["services", "frontend", "cluster-ip", "pick"]);
            return leads_on(traffic).then_some(Course { met, end, chains });
        }
        let external = External::of(traveller, &claim.routing);
        let chains = match (claim.routing.preserves_client, external.short_circuit) {
            (true, true) => path(&["services", "frontend", "external-local", "pick-inside"]),
            (true, false) => path(&["services", "frontend", "external-local", "pick"]),
            (false, _) => path(&["services", "frontend", "pick"]),
        };
        return external.end().map(|end| Course { met, end, chains });
    }
    let claim = node_port.filter(|_| traveller.is_at_node_port_address())?;
    let external = External::of(traveller, &claim.routing);
    let chains = match (claim.routing.preserves_client, external.short_circuit) {
        (true, true) => path(&["services", "nodeport", "nodeport-local", "nodeport-pick-inside"]),
        (true, false) => path(&["services", "nodeport", "nodeport-local", "nodeport-pick"]),
        (false, _) => path(&["services", "nodeport", "nodeport-pick"]),
    };
    external.end().map(|end| Course { met: Some((claim, Kind::NodePort)), end, chains })
}

/// Whether anyone at all gets an endpoint through it. What does not is not looked at further when addresses are
/// translated.
fn has_frontend(claim: &Considered<'_>, kind: Kind) -> bool {
    let routing = &claim.routing;
    leads_on(traffic(claim, kind))
        || (kind != Kind::ClusterIp && routing.preserves_client && leads_on(routing.external_from_inside()))
}

/// What those get that nothing else is said about.
fn traffic(claim: &Considered<'_>, kind: Kind) -> Traffic {
    match kind {
        Kind::ClusterIp => claim.routing.internal,
        Kind::ExternalIp | Kind::LoadBalancerIp | Kind::NodePort => claim.routing.external,
    }
}

/// What became of no endpoint's: first where it leaves the node that sends it, then where it is delivered.
fn check<'a>(
    traveller: &Traveller<'_>,
    owner: Option<Met<'a>>,
    node_port: Option<&'a Considered<'a>>,
) -> Option<Course<'a>> {
    let service = || {
        let (claim, kind) = owner?;
        let end = refusal(traffic(claim, kind))?;
        Some(Course { met: Some((claim, kind)), end, chains: path(&["service-endpoints-check"]) })
    };
    let cluster_ips = || {
        let end = if traveller.to_cluster_ip {
            End::Stopped(Fate::Refused, Reason::NoSuchPort)
        } else if traveller.to_service_cidr {
            End::Stopped(Fate::Dropped, Reason::UnusedClusterIp)
        } else {
            return None;
        };
        Some(Course { met: None, end, chains: path(&["cluster-ips-check"]) })
    };
    let node_port = || {
        let claim = node_port.filter(|_| traveller.is_at_node_port_address())?;
        let end = refusal(claim.routing.external)?;
        let chains = path(&["nodeport-endpoints-check"]);
        Some(Course { met: Some((claim, Kind::NodePort)), end, chains })
    };
    let passes_by = || service().or_else(cluster_ips);
    let is_delivered = || node_port().or_else(service);
    match (traveller.from_node, traveller.to_this_node) {
        (true, true) => passes_by().or_else(is_delivered),
        (true, false) | (false, false) => passes_by(),
        (false, true) => is_delivered(),
    }
}

fn path(chains: &[&str]) -> Vec<String> {
    chains.iter().map(|chain| (*chain).to_owned()).collect()
}
