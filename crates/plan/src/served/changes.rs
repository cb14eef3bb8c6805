//! The difference of two [`Served`] in terms of service ports, frontends and endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use model::address::host_port;
use model::hashing::ClientHash;
use model::names::{Protocol, ServicePortName};

use super::{Frontends, KernelComparison, RefusalReason, ServedEndpoint, ServedFrontend, ServedSlots};
use crate::difference::{Difference, DifferenceKind};
use crate::nftables::elements::FrontendKey;

/// The differences of one service port, or those of no known service port.
#[derive(Debug)]
pub struct ServedChange<'a> {
    pub service: Option<ServicePortName>,
    /// Whether the whole service port is missing or unexpected.
    pub kind: DifferenceKind,
    /// What changes for clients; may be empty.
    pub facts: Vec<Fact>,
    /// Never empty.
    pub differences: Vec<&'a Difference>,
}

/// Something that a service port should do but does not, or the reverse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    pub kind: DifferenceKind,
    pub text: String,
}

impl KernelComparison {
    /// What the differences mean, sorted by name; those of no known service port come first.
    pub fn changes<'a>(&'a self) -> Vec<ServedChange<'a>> {
        let mut groups: BTreeMap<Option<ServicePortName>, Vec<&Difference>> = BTreeMap::new();
        for (difference, owner) in self.with_owners() {
            groups.entry(owner).or_default().push(difference);
        }
        let (desired, actual) = (&self.desired, &self.actual);
        let names = desired.names();
        let (before, after) = (actual.by_owner(), desired.by_owner());
        let change = |(service, differences): (Option<ServicePortName>, Vec<&'a Difference>)| {
            let [before, after] =
                [&before, &after].map(|owners| owners.get(&service.as_ref()).cloned().unwrap_or_default());
            let all = |kind| differences.iter().all(|difference| difference.kind == kind);
            let kind = match &service {
                Some(name) if !names.contains(name) => DifferenceKind::Unexpected,
                Some(_) if before.is_empty() && !after.is_empty() => DifferenceKind::Missing,
                Some(_) => DifferenceKind::Changed,
                None if all(DifferenceKind::Unexpected) => DifferenceKind::Unexpected,
                None if all(DifferenceKind::Missing) => DifferenceKind::Missing,
                None => DifferenceKind::Changed,
            };
            let facts = Sides { before, after, hairpins: [&actual.hairpins, &desired.hairpins] }.facts();
            ServedChange { service, kind, facts, differences }
        };
        groups.into_iter().map(change).collect()
    }
}

/// The actual and the desired frontends of a service port.
struct Sides<'a> {
    before: Frontends<'a>,
    after: Frontends<'a>,
    /// The actual and the desired ones of all service ports.
    hairpins: [&'a BTreeSet<(Protocol, ServedEndpoint)>; 2],
}

impl Sides<'_> {
    fn facts(&self) -> Vec<Fact> {
        let [actual, desired] = self.hairpins;
        let mut all = Vec::new();
        for (kind, side, other, hairpins, other_hairpins) in [
            (DifferenceKind::Unexpected, &self.before, &self.after, actual, desired),
            (DifferenceKind::Missing, &self.after, &self.before, desired, actual),
        ] {
            let mut add = |text: String| all.push(Fact { kind, text });
            for (frontend, service) in side {
                let also = other.get(frontend).map(|it| lines(frontend, it)).unwrap_or_default();
                let has_details =
                    kind == DifferenceKind::Missing || other.get(frontend).is_some_and(|it| it.forwards);
                let is_reported = |line: &(Scope, String)| {
                    !also.contains(line) && (line.0 == Scope::Frontend || has_details)
                };
                let reported = lines(frontend, service).into_iter().filter(is_reported);
                reported.for_each(|(_, line)| add(line));
            }
            affinity(kind, side, other).into_iter().for_each(&mut add);
            endpoints(side, other).into_iter().for_each(&mut add);
            shares(side, other).into_iter().for_each(&mut add);
            if kind == DifferenceKind::Missing {
                moved(side, other).into_iter().for_each(&mut add);
            }
            // For an endpoint that is added or removed, this is implied.
            let lasting = targets(side).into_iter().filter(|it| targets(other).contains_key(&it.0));
            for (target, at) in lasting {
                let is_hairpin = |hairpins: &BTreeSet<(Protocol, ServedEndpoint)>| {
                    at.iter().any(|frontend| hairpins.contains(&(frontend.protocol, target)))
                };
                if is_hairpin(hairpins) && !is_hairpin(other_hairpins) {
                    add(format!("endpoint {} is on this node, and can connect to itself", show(&target)));
                }
            }
        }
        all
    }
}

/// What a line about a frontend describes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// The frontend as a whole.
    Frontend,
    /// A property that is not reported for a frontend that no longer forwards connections.
    Detail,
}

fn lines(frontend: &FrontendKey, service: &ServedFrontend) -> Vec<(Scope, String)> {
    let mut lines = Vec::new();
    if service.forwards {
        lines.push((Scope::Frontend, frontend.to_string()));
    }
    match service.refusal {
        Some(RefusalReason::NoEndpoints) => {
            lines.push((Scope::Frontend, format!("{frontend} refused: no endpoints")));
        }
        Some(RefusalReason::NoLocalEndpoints) => {
            lines.push((Scope::Frontend, format!("{frontend} dropped: no endpoints on this node")));
        }
        None => {}
    }
    if service.inside.is_some() {
        lines.push((Scope::Detail, format!("{frontend} keeps client addresses")));
    }
    if let Some(hash) = &service.hash {
        let of = match hash.of {
            ClientHash::Address => "address",
            ClientHash::AddressAndPort => "address and port",
        };
        lines.push((Scope::Detail, format!("{frontend} hashes clients by {of}")));
    }
    if let Some(sources) = &service.sources {
        let sources: Vec<&str> = sources.iter().map(String::as_str).collect();
        lines.push((Scope::Detail, format!("{frontend} only from {}", sources.join(", "))));
    }
    lines
}

/// Session affinity that is only on this side, unless that is implied by frontends that are only on this side.
fn affinity(kind: DifferenceKind, side: &Frontends<'_>, other: &Frontends<'_>) -> Vec<String> {
    let is_new = kind == DifferenceKind::Missing && other.is_empty();
    let lasts = |frontend: &FrontendKey| other.get(frontend).is_some_and(|it| it.forwards);
    let reported = side.iter().filter(|(frontend, _)| is_new || lasts(frontend));
    let also: BTreeSet<u32> = other.values().filter_map(|it| it.affinity).collect();
    let seconds: BTreeSet<u32> = reported.filter_map(|(_, it)| it.affinity).collect();
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

/// Endpoints of both sides that have another share of the connections on this one.
fn shares(side: &Frontends<'_>, other: &Frontends<'_>) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for (frontend, service) in side {
        let Some(there) = other.get(frontend) else { continue };
        if service.shares.is_empty() && there.shares.is_empty() {
            continue;
        }
        for endpoint in service.endpoints.intersection(&there.endpoints) {
            let share = service.share(endpoint);
            // Modes round differently.
            if (share - there.share(endpoint)).abs() > 2.0 {
                lines.insert(format!("endpoint {} gets {}% of connections", show(endpoint), share / 10.0));
            }
        }
    }
    lines
}

/// How many clients are hashed to another endpoint than before. If there is only one, all clients go there, hashed or not.
fn moved(after: &Frontends<'_>, before: &Frontends<'_>) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for (frontend, service) in after {
        let Some(before) = before.get(frontend) else { continue };
        let not_only = |slots: &ServedSlots, one: &ServedFrontend| {
            let is_there = |slot: &&(u32, ServedEndpoint)| one.endpoints.contains(&slot.1);
            if one.endpoints.len() == 1 { slots.len() - slots.iter().filter(is_there).count() } else { 0 }
        };
        let (moved, all) = match (&before.hash, &service.hash) {
            (Some(before), Some(after)) if before.of == after.of => {
                let before: BTreeSet<&(u32, ServedEndpoint)> = before.slots.iter().collect();
                (after.slots.iter().filter(|slot| !before.contains(slot)).count(), after.slots.len())
            }
            (None, Some(after)) => (not_only(&after.slots, before), after.slots.len()),
            (Some(before), None) => (not_only(&before.slots, service), before.slots.len()),
            (Some(_), Some(_)) | (None, None) => continue,
        };
        if moved > 0 {
            let percent = 100.0 * moved as f64 / all as f64;
            lines.insert(format!("{percent:.1}% of clients get another endpoint"));
        }
    }
    lines
}

/// The endpoints, each with the frontends that lead to it.
fn targets(side: &Frontends<'_>) -> BTreeMap<ServedEndpoint, BTreeSet<FrontendKey>> {
    let mut targets: BTreeMap<ServedEndpoint, BTreeSet<FrontendKey>> = BTreeMap::new();
    for (frontend, service) in side {
        service.all_endpoints().for_each(|it| _ = targets.entry(it).or_default().insert(*frontend));
    }
    targets
}

fn show((ip, port): &ServedEndpoint) -> String {
    host_port(*ip, port.get())
}
