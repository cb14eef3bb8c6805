//! Which of its candidates a service port may use from this node.
//!
//! Only the hints on endpoints count; what the Service asked for has been turned into hints by the controller.

use crate::slices::{Candidate, NodeHint};

/// What a service port needs candidates for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uses {
    /// Some traffic may go to any node.
    pub cluster: bool,
    /// Some traffic must stay on this node.
    pub local: bool,
}

/// The candidates that may be used, in the order they came in.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Choice<'a> {
    pub cluster: Vec<&'a Candidate>,
    pub local: Vec<&'a Candidate>,
    /// Whether any usable endpoint exists anywhere: the difference between "refused" and "not from here".
    pub has_any: bool,
}

/// How near an endpoint has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nearness<'a> {
    Anywhere,
    SameZone(&'a str),
    SameNode,
}

/// Ready endpoints first; where there are none, those that still serve while they terminate. Traffic that may go
/// anywhere and traffic that stays here fall back independently, and hints never narrow what is on this node.
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

fn or_draining<'a>(
    ready: Vec<&'a Candidate>,
    all: impl Iterator<Item = &'a Candidate>,
) -> Vec<&'a Candidate> {
    if ready.is_empty() { all.filter(|c| is_draining(c)).collect() } else { ready }
}

/// Not ready any more, but still answering while it goes.
fn is_draining(candidate: &Candidate) -> bool {
    candidate.conditions.serving && candidate.conditions.terminating
}

/// A kind of hint counts only if every ready endpoint carries it and at least one of them is meant for us; otherwise
/// the hints are from another state of the cluster than ours and following them could leave us without endpoints.
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
