//! Differences as an operator speaks of them: by service, its addresses and its endpoints.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;

use kernel::difference::{Class, Difference, Fact, Kind};
use model::address::host_port;
use model::names::{Port, ServicePortName};
use model::routing::{Endpoint, Routing};
use plan::nftables::elements::{Frontend, frontends};
use serde::Serialize;
use settings::config::ProxyMode;

use super::contests;

/// What happens to one service port, or to what is no service port's.
#[derive(Debug, Serialize)]
pub struct ServiceChange {
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
pub fn changes(
    mode: ProxyMode,
    found: &[Difference],
    wanted: &[(ServicePortName, Arc<Routing>)],
) -> Vec<ServiceChange> {
    let mut groups: BTreeMap<Option<&ServicePortName>, Vec<&Difference>> = BTreeMap::new();
    let owners = FormerOwners::of(found, wanted);
    for difference in found {
        let service = difference.service.as_ref().or_else(|| owners.owner(difference.fact.as_ref()?));
        groups.entry(service).or_default().push(difference);
    }
    let mut served: HashMap<Frontend, &ServicePortName> = HashMap::new();
    for (frontend, claims) in contests::claims(wanted) {
        served.extend(contests::owner(mode, &frontend, &claims).map(|(name, _)| (frontend, name)));
    }
    groups.into_iter().map(|(service, group)| change(service, &group, wanted, &served)).collect()
}

/// Who had what nobody wants any more. The kernel does not say it in every mode, but it can be told from what a service
/// has and gets instead.
#[derive(Debug, Default)]
struct FormerOwners<'a> {
    frontends: BTreeMap<Frontend, &'a ServicePortName>,
    ips: BTreeMap<IpAddr, &'a ServicePortName>,
    endpoints: HashMap<(IpAddr, Port), &'a ServicePortName>,
    /// Those that stay.
    lasting: Unique<'a, (IpAddr, Port)>,
}

/// Names by what only one has.
#[derive(Debug)]
struct Unique<'a, Key>(HashMap<Key, Option<&'a ServicePortName>>);

impl<Key> Default for Unique<'_, Key> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<'a, Key: Eq + Hash> Unique<'a, Key> {
    fn insert(&mut self, key: Key, name: &'a ServicePortName) {
        let only = self.0.entry(key).or_insert(Some(name));
        *only = only.filter(|only| *only == name);
    }

    fn get(&self, key: &Key) -> Option<&'a ServicePortName> {
        self.0.get(key).copied().flatten()
    }
}

impl<'a> FormerOwners<'a> {
    fn of(found: &'a [Difference], wanted: &'a [(ServicePortName, Arc<Routing>)]) -> Self {
        let mut owners = Self::default();
        let mut orphans: BTreeMap<Frontend, BTreeSet<(IpAddr, Port)>> = BTreeMap::new();
        let mut movers: BTreeSet<&ServicePortName> = BTreeSet::new();
        let mut has_hairpins = false;
        for it in found {
            match (&it.service, it.kind, &it.fact) {
                (None, Kind::Surplus, Some(Fact::Frontend(at))) => drop(orphans.entry(*at).or_default()),
                (None, Kind::Surplus, Some(Fact::Endpoint { at: Some(at), ip, port })) => {
                    orphans.entry(*at).or_default().insert((*ip, *port));
                }
                (None, _, Some(Fact::Hairpin { .. })) => has_hairpins = true,
                (Some(service), Kind::Missing, Some(Fact::Frontend(_))) => drop(movers.insert(service)),
                (Some(service), Kind::Surplus, Some(Fact::Endpoint { ip, port, .. })) => {
                    owners.endpoints.insert((*ip, *port), service);
                }
                _ => {}
            }
        }
        let of = |list: &[Endpoint]| list.iter().map(|it| (it.ip, it.port)).collect::<BTreeSet<_>>();
        let (mut by_endpoints, mut by_ip) = (Unique::default(), Unique::default());
        for (name, routing) in wanted {
            if has_hairpins {
                let all = routing.cluster.iter().chain(&*routing.local);
                all.for_each(|it| owners.lasting.insert((it.ip, it.port), name));
            }
            if movers.contains(name) {
                by_endpoints.insert((routing.protocol, of(&routing.cluster)), name);
                by_endpoints.insert((routing.protocol, of(&routing.local)), name);
                let ips = frontends(routing).into_iter().filter_map(|frontend| frontend.ip);
                ips.for_each(|ip| by_ip.insert((routing.protocol, ip), name));
            }
        }
        for (frontend, endpoints) in orphans {
            // Whoever gets a frontend and has just the endpoints that were behind the old one, has moved.
            let moved = by_endpoints.get(&(frontend.protocol, endpoints));
            // Or else whoever is at the same address.
            let owner = moved.or_else(|| by_ip.get(&(frontend.protocol, frontend.ip?)));
            owners.frontends.extend(owner.map(|name| (frontend, name)));
        }
        for (frontend, name) in &owners.frontends {
            frontend.ip.into_iter().for_each(|ip| _ = owners.ips.entry(ip).or_insert(name));
        }
        owners
    }

    fn owner(&self, fact: &Fact) -> Option<&'a ServicePortName> {
        if let Fact::Hairpin { ip, port } = fact {
            let endpoint = (*ip, *port);
            return self.endpoints.get(&endpoint).copied().or_else(|| self.lasting.get(&endpoint));
        }
        if let Fact::ClusterIp(ip) = fact {
            return self.ips.get(ip).copied();
        }
        self.frontends.get(fact.frontend()?).copied()
    }
}

fn change(
    service: Option<&ServicePortName>,
    group: &[&Difference],
    wanted: &[(ServicePortName, Arc<Routing>)],
    served: &HashMap<Frontend, &ServicePortName>,
) -> ServiceChange {
    let routing = service.and_then(|name| {
        wanted.binary_search_by(|(wanted, _)| wanted.cmp(name)).ok().and_then(|at| wanted.get(at))
    });
    let own = |frontend: &Frontend| served.get(frontend).copied() == service;
    let facts = Facts::of(group, routing.map(|(_, routing)| &**routing), own);
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
    }
    if lines.is_empty() {
        lines = group.iter().map(|it| object(it)).collect();
    }
    ServiceChange { sign, service: service.map(ToString::to_string), lines, objects: group.len() }
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
    /// Those of them that are not for the cluster alone.
    external: BTreeSet<Frontend>,
    /// What its clients should have, if there is to be such a service port.
    affinity: Option<Option<u32>>,
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
    /// For how long, and of whom.
    affinity: BTreeMap<u32, BTreeSet<Sticky>>,
    admitted: BTreeSet<String>,
    restricted: BTreeSet<Frontend>,
    keeps_clients: BTreeSet<Option<Frontend>>,
    hairpins: BTreeSet<(IpAddr, Port)>,
}

/// What clients stick to: where, and to which endpoint.
type Sticky = (Option<Frontend>, Option<(IpAddr, Port)>);

impl Facts {
    fn of(group: &[&Difference], routing: Option<&Routing>, own: impl Fn(&Frontend) -> bool) -> Self {
        let frontends: BTreeSet<Frontend> =
            routing.map(|routing| frontends(routing).into_iter().filter(own).collect()).unwrap_or_default();
        let cluster_ip = routing.map(|routing| routing.addresses.cluster_ip);
        let external = frontends.iter().filter(|frontend| frontend.ip != cluster_ip).copied().collect();
        let affinity = routing.map(|routing| routing.affinity);
        let mut facts = Self { frontends, external, affinity, ..Self::default() };
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
                Some(Fact::Affinity { at, to, seconds }) => {
                    side.affinity.entry(seconds).or_default().insert((at, to));
                }
                Some(Fact::Admitted { range, .. }) => drop(side.admitted.insert(range)),
                Some(Fact::Restricted(frontend)) => drop(side.restricted.insert(frontend)),
                Some(Fact::KeepsClients(frontend)) => drop(side.keeps_clients.insert(frontend)),
                Some(Fact::Hairpin { ip, port }) => drop(side.hairpins.insert((ip, port))),
                Some(Fact::ClusterIp(_)) | None => {}
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
            let lasts = |frontend: &Frontend| self.is_new() || !said.contains(frontend);
            for keeps in side.keeps_clients.difference(&other.keeps_clients) {
                match keeps {
                    Some(frontend) if lasts(frontend) => say(format!("{frontend} keeps client addresses")),
                    None if self.external.iter().any(lasts) => {
                        say("external traffic keeps client addresses".into());
                    }
                    Some(_) | None => {}
                }
            }
            let restricted = side.restricted.difference(&other.restricted).filter(|it| lasts(it));
            restricted.for_each(|it| say(format!("{it} restricted to source ranges")));
            side.admitted.difference(&other.admitted).for_each(|it| say(format!("source range {it}")));
            let affinity = side.affinity.iter().filter(|(seconds, _)| !other.affinity.contains_key(seconds));
            for (seconds, stickies) in affinity {
                let is_told = match sign {
                    '-' => self.affinity.is_some_and(|wanted| wanted != Some(*seconds)),
                    _ => self.is_new() || self.is_newly_sticky(stickies),
                };
                if is_told {
                    say(format!("session affinity {seconds}s"));
                }
            }
            self.endpoints(side, other).into_iter().for_each(&mut say);
            // Of one that comes or goes it need not be said.
            let goes_or_comes = |endpoint: &&(IpAddr, Port)| {
                side.endpoints.contains_key(endpoint) && !other.endpoints.contains_key(endpoint)
            };
            for (ip, port) in side.hairpins.iter().filter(|endpoint| !goes_or_comes(endpoint)) {
                let endpoint = host_port(*ip, port.get());
                say(format!("endpoint {endpoint} is on this node, and can connect to itself"));
            }
        }
        lines
    }

    /// Whether clients did not stick to endpoints before: an endpoint or a frontend that comes brings its own.
    fn is_newly_sticky(&self, stickies: &BTreeSet<Sticky>) -> bool {
        let (gained, lost) = (&self.gained, &self.lost);
        let goes = |endpoint: &(IpAddr, Port)| !gained.endpoints.contains_key(endpoint);
        let comes = |(at, to): &Sticky| {
            let is_new_there =
                |places: &BTreeSet<Option<Frontend>>| places.contains(at) || places.contains(&None);
            let was_there = |endpoint| lost.endpoints.get(endpoint).is_some_and(is_new_there);
            let comes_there = |endpoint| gained.endpoints.get(endpoint).is_some_and(is_new_there);
            at.is_some_and(|at| gained.frontends.contains(&at) && !lost.frontends.contains(&at))
                || to.as_ref().map_or(at.is_none(), |to| comes_there(to) && !was_there(to))
        };
        !stickies.iter().all(comes)
            || !lost.affinity.is_empty()
            || lost.endpoints.keys().any(goes)
            || (gained.endpoints.is_empty() && gained.frontends.is_empty())
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
        let Self {
            frontends,
            refused,
            dropped,
            endpoints,
            affinity,
            admitted,
            restricted,
            keeps_clients,
            hairpins: _,
        } = self;
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
