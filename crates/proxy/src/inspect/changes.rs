//! Differences as an operator speaks of them: by service, its addresses and its endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use kernel::difference::{Class, Difference, Fact, Kind};
use model::address::host_port;
use model::names::{Port, ServicePortName};
use model::routing::Routing;
use plan::nftables::elements::{Frontend, frontends};
use serde::Serialize;

/// What happens to one service port, or to what is no service port's.
#[derive(Debug, Serialize)]
pub struct Change {
    /// `+`, `-` or `~`.
    pub sign: char,
    /// Of the service port; none for what belongs to no service that is wanted.
    pub service: Option<String>,
    /// Each with its own sign.
    pub lines: Vec<String>,
    /// How many objects of the kernel that takes.
    pub objects: usize,
}

/// More rules that are nobody's than this are only counted.
const FEW: usize = 10;

/// Groups what was found by service, in order of names; what is nobody's comes first.
pub fn changes(found: &[Difference], wanted: &[(ServicePortName, Arc<Routing>)]) -> Vec<Change> {
    let mut groups: BTreeMap<Option<&ServicePortName>, Vec<&Difference>> = BTreeMap::new();
    let lost = lost_endpoints(found);
    for difference in found {
        let service = difference.service.as_ref().or_else(|| match &difference.fact {
            Some(Fact::Hairpin { ip, port }) => lost.get(&(*ip, *port)).copied(),
            _ => None,
        });
        groups.entry(service).or_default().push(difference);
    }
    groups.into_iter().map(|(service, group)| change(service, &group, wanted)).collect()
}

/// Who loses an endpoint. What the endpoint could do with itself goes with it, and says no more whose it was.
fn lost_endpoints(found: &[Difference]) -> BTreeMap<(IpAddr, Port), &ServicePortName> {
    let lost = found.iter().filter(|it| it.kind == Kind::Surplus);
    lost.filter_map(|it| match it.fact {
        Some(Fact::Endpoint { ip, port, .. }) => Some(((ip, port), it.service.as_ref()?)),
        _ => None,
    })
    .collect()
}

fn change(
    service: Option<&ServicePortName>,
    group: &[&Difference],
    wanted: &[(ServicePortName, Arc<Routing>)],
) -> Change {
    let routing = service.and_then(|name| {
        wanted.binary_search_by(|(wanted, _)| wanted.cmp(name)).ok().and_then(|at| wanted.get(at))
    });
    let frontends: BTreeSet<Frontend> =
        routing.map(|(_, routing)| frontends(routing).into_iter().collect()).unwrap_or_default();
    let facts = Facts::of(group, frontends);
    let sign = match service {
        Some(_) if routing.is_none() => '-',
        Some(_) if facts.is_new() => '+',
        Some(_) => '~',
        None if group.iter().all(|it| it.kind == Kind::Surplus) => '-',
        None if group.iter().all(|it| it.kind == Kind::Missing) => '+',
        None => '~',
    };
    let mut lines = facts.lines();
    if service.is_none() {
        lines.splice(0..0, of_nobody(group));
    } else if lines.is_empty() {
        lines = group.iter().map(|it| object(it)).collect();
    }
    Change { sign, service: service.map(ToString::to_string), lines, objects: group.len() }
}

/// One object of the kernel.
pub fn object(difference: &Difference) -> String {
    format!("{} {}", sign(difference.kind), difference.object)
}

fn sign(kind: Kind) -> char {
    match kind {
        Kind::Missing => '+',
        Kind::Surplus => '-',
        Kind::Changed => '~',
    }
}

/// The rules that serve all services, and what sets hold that is no service's.
fn of_nobody(group: &[&Difference]) -> Vec<String> {
    let plain: Vec<&&Difference> = group.iter().filter(|it| it.fact.is_none()).collect();
    // An address without a port goes where its ports go.
    let has_facts = group.iter().any(|it| it.fact.is_some());
    let told: Vec<&&&Difference> = plain
        .iter()
        .filter(|it| !(has_facts && it.kind == Kind::Surplus && it.class == Class::Element))
        .collect();
    if told.len() <= FEW {
        return told.iter().map(|it| object(it)).collect();
    }
    let mut counts: BTreeMap<(Kind, Class), usize> = BTreeMap::new();
    told.iter().for_each(|it| *counts.entry((it.kind, it.class)).or_default() += 1);
    let line = |((kind, class), count): (&(Kind, Class), &usize)| {
        let plural = if *count == 1 { "" } else { "s" };
        format!("{} {count} {class}{plural} of no service", sign(*kind))
    };
    counts.iter().map(line).collect()
}

/// What is gained and what is lost.
#[derive(Debug, Default)]
struct Facts {
    /// Those the service port should have.
    frontends: BTreeSet<Frontend>,
    gained: Side,
    lost: Side,
}

#[derive(Debug, Default)]
struct Side {
    frontends: BTreeSet<Frontend>,
    refused: BTreeSet<Frontend>,
    dropped: BTreeSet<Frontend>,
    /// With where; nowhere in particular is everywhere.
    endpoints: BTreeMap<(IpAddr, Port), BTreeSet<Option<Frontend>>>,
    affinity: BTreeSet<u32>,
    admitted: BTreeSet<String>,
}

impl Facts {
    fn of(group: &[&Difference], frontends: BTreeSet<Frontend>) -> Self {
        let mut facts = Self { frontends, ..Self::default() };
        for difference in group {
            let side = match difference.kind {
                Kind::Missing => &mut facts.gained,
                Kind::Surplus => &mut facts.lost,
                Kind::Changed => continue,
            };
            match difference.fact.clone() {
                Some(Fact::Frontend(frontend)) => drop(side.frontends.insert(frontend)),
                Some(Fact::Refused(frontend)) => drop(side.refused.insert(frontend)),
                Some(Fact::Dropped(frontend)) => drop(side.dropped.insert(frontend)),
                Some(Fact::Endpoint { at, ip, port }) => {
                    side.endpoints.entry((ip, port)).or_default().insert(at);
                }
                Some(Fact::Affinity(seconds)) => drop(side.affinity.insert(seconds)),
                Some(Fact::Admitted(range)) => drop(side.admitted.insert(range)),
                Some(Fact::Hairpin { .. }) | None => {}
            }
        }
        facts
    }

    /// Nothing of it was there.
    fn is_new(&self) -> bool {
        let gained = |frontend: &Frontend| {
            let side = &self.gained;
            side.frontends.contains(frontend)
                || side.refused.contains(frontend)
                || side.dropped.contains(frontend)
        };
        !self.frontends.is_empty() && self.lost.is_empty() && self.frontends.iter().all(gained)
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (sign, side, other) in [('-', &self.lost, &self.gained), ('+', &self.gained, &self.lost)] {
            let mut say = |what: String| lines.push(format!("{sign} {what}"));
            // A rule that is written anew says the same as before.
            side.frontends.difference(&other.frontends).for_each(|it| say(it.to_string()));
            side.refused.difference(&other.refused).for_each(|it| say(format!("{it} refused: no endpoints")));
            side.dropped
                .difference(&other.dropped)
                .for_each(|it| say(format!("{it} dropped: no endpoints on this node")));
            side.admitted.difference(&other.admitted).for_each(|it| say(format!("source range {it}")));
            for seconds in side.affinity.difference(&other.affinity) {
                // An endpoint that comes or goes brings its own.
                if side.endpoints.is_empty() || !other.affinity.is_empty() || self.is_new() {
                    say(format!("session affinity {seconds}s"));
                }
            }
            for ((ip, port), at) in &side.endpoints {
                let moved = other.endpoints.get(&(*ip, *port));
                let at: BTreeSet<Option<Frontend>> =
                    at.iter().filter(|at| moved.is_none_or(|moved| !moved.contains(at))).copied().collect();
                let endpoint = host_port(*ip, port.get());
                match self.places(&at, &side.frontends) {
                    Places::Everywhere => say(format!("endpoint {endpoint}")),
                    Places::Some(at) if at.is_empty() => {}
                    Places::Some(at) => say(format!("endpoint {endpoint} at {}", at.join(", "))),
                }
            }
        }
        lines
    }

    /// Where an endpoint comes or goes. That a frontend comes or goes as a whole has been said.
    fn places(&self, at: &BTreeSet<Option<Frontend>>, told: &BTreeSet<Frontend>) -> Places {
        if at.contains(&None) || (!at.is_empty() && self.frontends.iter().all(|it| at.contains(&Some(*it)))) {
            return Places::Everywhere;
        }
        let known = at.iter().flatten().filter(|it| self.frontends.is_empty() || !told.contains(it));
        Places::Some(known.map(ToString::to_string).collect())
    }
}

enum Places {
    Everywhere,
    Some(Vec<String>),
}

impl Side {
    fn is_empty(&self) -> bool {
        let Self { frontends, refused, dropped, endpoints, affinity, admitted } = self;
        frontends.is_empty()
            && refused.is_empty()
            && dropped.is_empty()
            && endpoints.is_empty()
            && affinity.is_empty()
            && admitted.is_empty()
    }
}
