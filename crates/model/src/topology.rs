//! Chooses the candidates that a service port uses on this node.
//!
//! Topology is taken from the hints of endpoints only: the EndpointSlice controller has turned the Service's
//! `trafficDistribution` into them.

use std::sync::Arc;

use crate::service::TrafficPolicy;
use crate::slices::{Candidate, NodeHint, Zones};

/// The kinds of traffic that a service port needs candidates for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uses {
    /// Some traffic may go to any node.
    pub cluster: bool,
    /// Some traffic must stay on this node.
    pub local: bool,
}

/// The candidates that are used, in the order of the input.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Choice<'a> {
    pub cluster: Vec<&'a Candidate>,
    pub local: Vec<&'a Candidate>,
    /// Whether a usable endpoint exists on any node. If not, traffic is rejected; if so, but not on this node, it is dropped.
    pub has_any: bool,
}

/// How near an endpoint must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nearness<'a> {
    Anywhere,
    SameZone(&'a str),
    SameNode,
}

/// Chooses ready endpoints or, if there are none, those that serve while they terminate. Traffic to any node and traffic
/// that stays on this node fall back independently. Hints do not restrict the latter.
pub fn choose<'a>(candidates: &'a [Candidate], uses: Uses, zone: Option<&str>) -> Choice<'a> {
    let mut choice = Choice::default();
    if uses.cluster {
        let nearness = nearness(candidates, zone);
        let near = candidates.iter().filter(|c| c.conditions.ready && nearness.admits(c));
        choice.cluster = or_draining(near.collect(), candidates.iter());
        choice.has_any = !choice.cluster.is_empty();
    }
    if uses.local {
        let here = candidates.iter().filter(|c| c.conditions.local);
        let ready = here.clone().filter(|c| c.conditions.ready);
        choice.local = or_draining(ready.collect(), here);
        choice.has_any |= candidates.iter().any(|c| c.conditions.ready || is_draining(c));
    }
    choice
}

/// Why traffic under a policy does not use a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unused {
    NotReady,
    /// Terminating and still serving, while others are ready.
    Draining,
    /// Its weight is zero, while others are ready.
    WithoutWeight,
    /// Terminating and no longer serving.
    Gone,
    /// Traffic must stay on this node.
    OnAnotherNode,
    /// Hints reserve it for other nodes.
    ForOtherNodes,
    /// Hints reserve it for these zones.
    ForOtherZones(Arc<Zones>),
}

/// The candidates that [`choose`] does not use, and why.
pub fn unused<'a>(
    candidates: &'a [Candidate],
    policy: TrafficPolicy,
    zone: Option<&str>,
) -> Vec<(&'a Candidate, Unused)> {
    let local = policy == TrafficPolicy::Local;
    let choice = choose(candidates, Uses { cluster: !local, local }, zone);
    let used = if local { choice.local } else { choice.cluster };
    let left_out =
        candidates.iter().filter(|candidate| !used.iter().any(|used| std::ptr::eq(*used, *candidate)));
    let nearness = nearness(candidates, zone);
    left_out.map(|candidate| (candidate, why_unused(candidate, policy, nearness))).collect()
}

fn why_unused(candidate: &Candidate, policy: TrafficPolicy, nearness: Nearness) -> Unused {
    let conditions = candidate.conditions;
    match (nearness, &candidate.zone_hints) {
        _ if policy == TrafficPolicy::Local && !conditions.local => Unused::OnAnotherNode,
        _ if is_draining(candidate) && candidate.weight == 0 => Unused::WithoutWeight,
        _ if !conditions.ready && is_draining(candidate) => Unused::Draining,
        _ if !conditions.ready && conditions.terminating => Unused::Gone,
        _ if !conditions.ready => Unused::NotReady,
        // Ready and on the right node: only hints can exclude it.
        (Nearness::SameZone(_), Some(zones)) => Unused::ForOtherZones(zones.clone()),
        (Nearness::SameZone(_) | Nearness::SameNode | Nearness::Anywhere, _) => Unused::ForOtherNodes,
    }
}

fn or_draining<'a>(
    ready: Vec<&'a Candidate>,
    all: impl Iterator<Item = &'a Candidate>,
) -> Vec<&'a Candidate> {
    if ready.is_empty() { all.filter(|c| is_draining(c)).collect() } else { ready }
}

/// Terminating, but still serving.
fn is_draining(candidate: &Candidate) -> bool {
    candidate.conditions.serving && candidate.conditions.terminating
}

/// Hints of a kind are used only if every ready endpoint has them and at least one is for this node or zone. Otherwise the
/// controller has not caught up, and following them could leave this node without endpoints.
fn nearness<'a>(candidates: &[Candidate], zone: Option<&'a str>) -> Nearness<'a> {
    let zone = zone.unwrap_or("");
    let ready = || candidates.iter().filter(|c| c.conditions.ready);
    let all_hinted_and_some_admitted = |hinted: fn(&Candidate) -> bool, nearness: Nearness| {
        ready().all(hinted) && ready().any(|c| nearness.admits(c))
    };
    if all_hinted_and_some_admitted(|c| c.node_hint != NodeHint::Absent, Nearness::SameNode) {
        Nearness::SameNode
    } else if all_hinted_and_some_admitted(|c| c.zone_hints.is_some(), Nearness::SameZone(zone)) {
        Nearness::SameZone(zone)
    } else {
        Nearness::Anywhere
    }
}

impl Nearness<'_> {
    fn admits(self, candidate: &Candidate) -> bool {
        match self {
            Self::Anywhere => true,
            Self::SameZone(zone) => candidate.zone_hints.as_ref().is_some_and(|zones| zones.contain(zone)),
            Self::SameNode => candidate.node_hint == NodeHint::ThisNode,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Port;
    use crate::slices::Conditions;
    use crate::weights::DEFAULT_WEIGHT;

    fn candidate(ip: u8, ready: bool, serving: bool, terminating: bool, local: bool) -> Candidate {
        Candidate {
            ip: [10, 0, 0, ip].into(),
            port: Port::from_api(80).unwrap(),
            conditions: Conditions { ready, serving, terminating, local },
            node_hint: NodeHint::Absent,
            weight: DEFAULT_WEIGHT,
            zone_hints: None,
        }
    }

    fn ready(ip: u8, local: bool) -> Candidate {
        candidate(ip, true, true, false, local)
    }

    fn why(candidates: &[Candidate], policy: TrafficPolicy, zone: Option<&str>) -> Vec<(u8, Unused)> {
        let last = |candidate: &Candidate| match candidate.ip {
            std::net::IpAddr::V4(ip) => ip.octets()[3],
            std::net::IpAddr::V6(_) => 0,
        };
        unused(candidates, policy, zone).into_iter().map(|(one, why)| (last(one), why)).collect()
    }

    #[test]
    fn candidates_are_unused_for_their_conditions_or_their_node() {
        let all = [
            ready(1, true),
            ready(2, false),
            candidate(3, false, false, false, true),
            candidate(4, false, true, true, true),
            candidate(5, false, false, true, false),
        ];
        assert_eq!(
            why(&all, TrafficPolicy::Cluster, None),
            [(3, Unused::NotReady), (4, Unused::Draining), (5, Unused::Gone)]
        );
        assert_eq!(
            why(&all, TrafficPolicy::Local, None),
            [
                (2, Unused::OnAnotherNode),
                (3, Unused::NotReady),
                (4, Unused::Draining),
                (5, Unused::OnAnotherNode)
            ]
        );
        // If none is ready, those that drain are used.
        assert_eq!(why(&all[2..4], TrafficPolicy::Cluster, None), [(3, Unused::NotReady)]);
    }

    #[test]
    fn ready_candidates_are_unused_only_for_hints() {
        let zones = |names: &[&str]| Some(Arc::new(Zones::of(names)));
        let hinted = |ip, node_hint, zones| Candidate { node_hint, zone_hints: zones, ..ready(ip, false) };
        let by_zone = [
            hinted(1, NodeHint::OtherNodes, zones(&["a"])),
            hinted(2, NodeHint::OtherNodes, zones(&["b", "c"])),
        ];
        let others = zones(&["b", "c"]).unwrap();
        assert_eq!(why(&by_zone, TrafficPolicy::Cluster, Some("a")), [(2, Unused::ForOtherZones(others))]);
        assert_eq!(why(&by_zone, TrafficPolicy::Cluster, Some("d")), []);
        let by_node =
            [hinted(1, NodeHint::ThisNode, zones(&["b"])), hinted(2, NodeHint::OtherNodes, zones(&["a"]))];
        assert_eq!(why(&by_node, TrafficPolicy::Cluster, Some("a")), [(2, Unused::ForOtherNodes)]);
    }
}
