//! The difference of two [`Served`] as operators speak of it: by service port, its frontends and its endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use model::address::host_port;
use model::names::{Protocol, ServicePortName};
use serde::Serialize;

use super::{Frontends, Owners, Refusal, Served, Service, Target};
use crate::difference::{Class, Difference, Kind};
use crate::nftables::elements::Frontend;

/// What happens to one service port, or to what belongs to no service port.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// `+`, `-` or `~`.
    pub sign: char,
    /// None for what belongs to no service port that is known.
    pub service: Option<String>,
    /// Each with its own sign.
    pub lines: Vec<String>,
    /// How many objects of the kernel differ.
    pub objects: usize,
}

/// If more objects than these belong to no service port, they are only counted.
const MAX_LISTED: usize = 10;

/// What these differences mean, in the order of names; what belongs to no service port comes first.
pub fn changes(differences: &[Difference], desired: &Served, actual: &Served) -> Vec<Change> {
    let owners = Owners::new(desired, actual);
    let mut groups: BTreeMap<Option<ServicePortName>, Vec<&Difference>> = BTreeMap::new();
    for difference in differences {
        groups.entry(owners.of(&difference.object)).or_default().push(difference);
    }
    let names = desired.names();
    let (before, after) = (actual.by_owner(), desired.by_owner());
    let change = |(service, group): (&Option<ServicePortName>, &Vec<&Difference>)| {
        let [before, after] =
            [&before, &after].map(|owners| owners.get(&service.as_ref()).cloned().unwrap_or_default());
        let all = |kind| group.iter().all(|difference| difference.kind == kind);
        let sign = match service {
            Some(name) if !names.contains(name) => '-',
            Some(_) if before.is_empty() && !after.is_empty() => '+',
            Some(_) => '~',
            None if all(Kind::Unexpected) => '-',
            None if all(Kind::Missing) => '+',
            None => '~',
        };
        let sides = Sides { before, after, hairpins: [&actual.hairpins, &desired.hairpins] };
        let mut lines = sides.lines();
        if service.is_none() {
            let is_told = |it: &&Difference| lines.is_empty() || !it.object.serves();
            let unserved: Vec<&Difference> = group.iter().copied().filter(is_told).collect();
            lines.splice(0..0, list(&unserved));
        }
        if lines.is_empty() {
            lines = group.iter().map(|it| object(it)).collect();
        }
        Change { sign, service: service.as_ref().map(ToString::to_string), lines, objects: group.len() }
    };
    groups.iter().map(change).collect()
}

fn object(difference: &Difference) -> String {
    format!("{} {}", difference.kind.sign(), difference.text())
}

/// The objects, or how many there are of each class.
fn list(differences: &[&Difference]) -> Vec<String> {
    if differences.len() <= MAX_LISTED {
        return differences.iter().map(|it| object(it)).collect();
    }
    let mut counts: BTreeMap<(Kind, Class), usize> = BTreeMap::new();
    differences.iter().for_each(|it| *counts.entry((it.kind, it.object.class())).or_default() += 1);
    let line = |((kind, class), count): (&(Kind, Class), &usize)| {
        let plural = if *count == 1 { "" } else { "s" };
        format!("{} {count} {class}{plural} of no service", kind.sign())
    };
    counts.iter().map(line).collect()
}

/// What a service port has and what it should have.
struct Sides<'a> {
    before: Frontends<'a>,
    after: Frontends<'a>,
    /// Before and after, of all service ports.
    hairpins: [&'a BTreeSet<(Protocol, Target)>; 2],
}

impl Sides<'_> {
    fn lines(&self) -> Vec<String> {
        let [actual, desired] = self.hairpins;
        let mut lines = Vec::new();
        for (sign, side, other, hairpins, other_hairpins) in [
            ('-', &self.before, &self.after, actual, desired),
            ('+', &self.after, &self.before, desired, actual),
        ] {
            let mut say = |what: String| lines.push(format!("{sign} {what}"));
            for (frontend, service) in side {
                let also = other.get(frontend).map(|it| facts(frontend, it)).unwrap_or_default();
                let has_details = sign == '+' || other.get(frontend).is_some_and(|it| it.forwards);
                let is_told = |fact: &(Scope, String)| {
                    !also.contains(fact) && (fact.0 == Scope::Frontend || has_details)
                };
                let told = facts(frontend, service).into_iter().filter(is_told);
                told.for_each(|(_, fact)| say(fact));
            }
            affinity(sign, side, other).into_iter().for_each(&mut say);
            endpoints(side, other).into_iter().for_each(&mut say);
            // An endpoint that comes or goes brings or takes this.
            let lasting = targets(side).into_iter().filter(|it| targets(other).contains_key(&it.0));
            for (target, at) in lasting {
                let is_hairpin = |hairpins: &BTreeSet<(Protocol, Target)>| {
                    at.iter().any(|frontend| hairpins.contains(&(frontend.protocol, target)))
                };
                if is_hairpin(hairpins) && !is_hairpin(other_hairpins) {
                    say(format!("endpoint {} is on this node, and can connect to itself", show(&target)));
                }
            }
        }
        lines
    }
}

/// What a line about a frontend is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// The frontend as a whole.
    Frontend,
    /// What need not be said of a frontend that no longer forwards connections.
    Detail,
}

fn facts(frontend: &Frontend, service: &Service) -> Vec<(Scope, String)> {
    let mut facts = Vec::new();
    if service.forwards {
        facts.push((Scope::Frontend, frontend.to_string()));
    }
    match service.refusal {
        Some(Refusal::NoEndpoints) => {
            facts.push((Scope::Frontend, format!("{frontend} refused: no endpoints")));
        }
        Some(Refusal::NoLocalEndpoints) => {
            facts.push((Scope::Frontend, format!("{frontend} dropped: no endpoints on this node")));
        }
        None => {}
    }
    if service.inside.is_some() {
        facts.push((Scope::Detail, format!("{frontend} keeps client addresses")));
    }
    if let Some(sources) = &service.sources {
        let sources: Vec<&str> = sources.iter().map(String::as_str).collect();
        facts.push((Scope::Detail, format!("{frontend} only from {}", sources.join(", "))));
    }
    facts
}

/// Session affinity that is only on this side, unless it comes or goes with all frontends that have it.
fn affinity(sign: char, side: &Frontends<'_>, other: &Frontends<'_>) -> Vec<String> {
    let is_new = sign == '+' && other.is_empty();
    let lasts = |frontend: &Frontend| other.get(frontend).is_some_and(|it| it.forwards);
    let told = side.iter().filter(|(frontend, _)| is_new || lasts(frontend));
    let also: BTreeSet<u32> = other.values().filter_map(|it| it.affinity).collect();
    let seconds: BTreeSet<u32> = told.filter_map(|(_, it)| it.affinity).collect();
    seconds.difference(&also).map(|seconds| format!("session affinity {seconds}s")).collect()
}

/// Endpoints that are only on this side, and frontends of both sides that lead to them only on this one.
fn endpoints(side: &Frontends<'_>, other: &Frontends<'_>) -> Vec<String> {
    let there = targets(other);
    let mut lines = Vec::new();
    for (target, at) in targets(side) {
        let mut line = format!("endpoint {}", show(&target));
        let only_here: Vec<String> = match there.get(&target) {
            None if at.len() == side.len() => {
                lines.push(line);
                continue;
            }
            None => at.iter().map(ToString::to_string).collect(),
            Some(there) => {
                let lasting = at.difference(there).filter(|frontend| other.contains_key(frontend));
                lasting.map(ToString::to_string).collect()
            }
        };
        if !only_here.is_empty() {
            // Writing to a string cannot fail.
            let _ = write!(line, " at {}", only_here.join(", "));
            lines.push(line);
        }
    }
    lines
}

/// Endpoints, and the frontends that lead there.
fn targets(side: &Frontends<'_>) -> BTreeMap<Target, BTreeSet<Frontend>> {
    let mut targets: BTreeMap<Target, BTreeSet<Frontend>> = BTreeMap::new();
    for (frontend, service) in side {
        service.all_endpoints().for_each(|it| _ = targets.entry(it).or_default().insert(*frontend));
    }
    targets
}

fn show((ip, port): &Target) -> String {
    host_port(*ip, port.get())
}
