//! Differences as an operator speaks of them: by service, its addresses and its endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use kernel::difference::{Class, Difference, Fact, Kind};
use model::address::host_port;
use model::names::{Port, ServicePortName};
use model::routing::{Endpoint, Routing};
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
    let owners = FormerOwners::of(found, wanted);
    for difference in found {
        let service = difference.service.as_ref().or_else(|| owners.owner(difference.fact.as_ref()?));
        groups.entry(service).or_default().push(difference);
    }
    groups.into_iter().map(|(service, group)| change(service, &group, wanted)).collect()
}

/// Who had what nobody wants any more. The kernel does not say it in every mode, but it can be told from what a service
/// has and gets instead.
#[derive(Debug, Default)]
struct FormerOwners<'a> {
    frontends: BTreeMap<Frontend, &'a ServicePortName>,
    endpoints: BTreeMap<(IpAddr, Port), &'a ServicePortName>,
}

impl<'a> FormerOwners<'a> {
    fn of(found: &'a [Difference], wanted: &'a [(ServicePortName, Arc<Routing>)]) -> Self {
        let mut owners = Self::default();
        let mut orphans: BTreeMap<Frontend, BTreeSet<(IpAddr, Port)>> = BTreeMap::new();
        let mut movers: BTreeSet<&ServicePortName> = BTreeSet::new();
        for it in found {
            match (&it.service, it.kind, &it.fact) {
                (None, Kind::Surplus, Some(Fact::Frontend(at))) => drop(orphans.entry(*at).or_default()),
                (None, Kind::Surplus, Some(Fact::Endpoint { at: Some(at), ip, port })) => {
                    orphans.entry(*at).or_default().insert((*ip, *port));
                }
                (Some(service), Kind::Missing, Some(Fact::Frontend(_))) => drop(movers.insert(service)),
                (Some(service), Kind::Surplus, Some(Fact::Endpoint { ip, port, .. })) => {
                    owners.endpoints.insert((*ip, *port), service);
                }
                _ => {}
            }
        }
        // Whoever gets a frontend and has just the endpoints that were behind the old one, has moved.
        let movers: Vec<&(ServicePortName, Arc<Routing>)> =
            wanted.iter().filter(|(name, _)| movers.contains(name)).collect();
        for (frontend, endpoints) in orphans {
            let has_moved = |routing: &Routing| {
                let has = |list: &[Endpoint]| endpoints == list.iter().map(|it| (it.ip, it.port)).collect();
                routing.protocol == frontend.protocol && (has(&routing.cluster) || has(&routing.local))
            };
            // Or else whoever is at the same address.
            let is_there =
                |routing: &Routing| routing.protocol == frontend.protocol && has_ip(routing, frontend.ip);
            let owner = only(movers.iter().filter(|(_, routing)| has_moved(routing)))
                .or_else(|| only(movers.iter().filter(|(_, routing)| is_there(routing))));
            owners.frontends.extend(owner.map(|(name, _)| (frontend, name)));
        }
        owners
    }

    fn owner(&self, fact: &Fact) -> Option<&'a ServicePortName> {
        if let Fact::Hairpin { ip, port } = fact {
            return self.endpoints.get(&(*ip, *port)).copied();
        }
        if let Fact::ClusterIp(ip) = fact {
            let there = |(at, _): &(&Frontend, _)| at.ip == Some(*ip);
            return self.frontends.iter().find(there).map(|(_, name)| *name);
        }
        self.frontends.get(fact.frontend()?).copied()
    }
}

/// The first, if there is no other.
fn only<T>(mut all: impl Iterator<Item = T>) -> Option<T> {
    all.next().filter(|_| all.next().is_none())
}

fn has_ip(routing: &Routing, ip: Option<IpAddr>) -> bool {
    ip.is_some() && frontends(routing).iter().any(|frontend| frontend.ip == ip)
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
    restricted: BTreeSet<Frontend>,
    keeps_clients: BTreeSet<Frontend>,
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
                Some(Fact::Affinity { seconds, .. }) => drop(side.affinity.insert(seconds)),
                Some(Fact::Admitted { range, .. }) => drop(side.admitted.insert(range)),
                Some(Fact::Restricted(frontend)) => drop(side.restricted.insert(frontend)),
                Some(Fact::KeepsClients(frontend)) => drop(side.keeps_clients.insert(frontend)),
                Some(Fact::Hairpin { .. } | Fact::ClusterIp(_)) | None => {}
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
            // Of a frontend that comes or goes it need not be said.
            let said: BTreeSet<&Frontend> = side.frontends.difference(&other.frontends).collect();
            let lasting = |mine: &BTreeSet<Frontend>, other: &BTreeSet<Frontend>| -> Vec<Frontend> {
                let changed = mine.difference(other).filter(|it| self.is_new() || !said.contains(it));
                changed.copied().collect()
            };
            lasting(&side.keeps_clients, &other.keeps_clients)
                .iter()
                .for_each(|it| say(format!("{it} keeps client addresses")));
            lasting(&side.restricted, &other.restricted)
                .iter()
                .for_each(|it| say(format!("{it} restricted to source ranges")));
            side.admitted.difference(&other.admitted).for_each(|it| say(format!("source range {it}")));
            let endpoints = self.endpoints(side, other);
            for seconds in side.affinity.difference(&other.affinity) {
                // An endpoint or a frontend that comes or goes brings its own.
                let is_its_own = endpoints.is_empty() && said.is_empty();
                if is_its_own || !other.affinity.is_empty() || self.is_new() {
                    say(format!("session affinity {seconds}s"));
                }
            }
            endpoints.into_iter().for_each(say);
        }
        lines
    }

    /// Those that come or go, rather than move from slot to slot.
    fn endpoints(&self, side: &Side, other: &Side) -> Vec<String> {
        let mut all = Vec::new();
        for ((ip, port), at) in &side.endpoints {
            let moved = other.endpoints.get(&(*ip, *port));
            let at: BTreeSet<Option<Frontend>> =
                at.iter().filter(|at| moved.is_none_or(|moved| !moved.contains(at))).copied().collect();
            let endpoint = host_port(*ip, port.get());
            match self.places(&at, side, other) {
                Places::Everywhere => all.push(format!("endpoint {endpoint}")),
                Places::Some(at) if at.is_empty() => {}
                Places::Some(at) => all.push(format!("endpoint {endpoint} at {}", at.join(", "))),
            }
        }
        all
    }

    /// Where an endpoint comes or goes. That a frontend comes or goes as a whole has been said.
    fn places(&self, at: &BTreeSet<Option<Frontend>>, side: &Side, other: &Side) -> Places {
        let comes: BTreeSet<Frontend> = side.frontends.difference(&other.frontends).copied().collect();
        let goes: BTreeSet<Frontend> = other.frontends.difference(&side.frontends).copied().collect();
        // All that there are on this side.
        let all: BTreeSet<Frontend> =
            self.frontends.difference(&goes).copied().chain(comes.clone()).collect();
        let has_all = || all.iter().all(|it| at.contains(&Some(*it)));
        if at.contains(&None) || (!at.is_empty() && !self.frontends.is_empty() && has_all()) {
            return Places::Everywhere;
        }
        let known = at.iter().flatten().filter(|it| self.frontends.is_empty() || !comes.contains(it));
        Places::Some(known.map(ToString::to_string).collect())
    }
}

enum Places {
    Everywhere,
    Some(Vec<String>),
}

impl Side {
    fn is_empty(&self) -> bool {
        let Self { frontends, refused, dropped, endpoints, affinity, admitted, restricted, keeps_clients } =
            self;
        frontends.is_empty()
            && refused.is_empty()
            && dropped.is_empty()
            && endpoints.is_empty()
            && affinity.is_empty()
            && admitted.is_empty()
            && restricted.is_empty()
            && keeps_clients.is_empty()
    }
}
