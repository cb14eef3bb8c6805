//! Addresses that several services claim: which one has it after a change, and which ones do not get it.
//!
//! Told only where the change makes a contest or ends one. The kernel does not hold the claims that lose, so that a contest is
//! seen to begin by what else of a service comes, and to end by what an address led to.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use kernel::difference::{Difference, Fact, Kind};
use model::names::{Port, ServicePortName};
use model::routing::{Routing, Traffic};
use plan::nftables::claims::{Precedence, Rank};
use plan::nftables::elements::{Frontend, frontends};
use serde::Serialize;
use settings::config::ProxyMode;

#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Contest {
    pub frontend: String,
    /// Who has it.
    pub service: String,
    /// Why, if others claim it as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub precedence: Option<Precedence>,
    /// The Services that claim it and lose.
    pub denied_to: Vec<String>,
    /// Who claims it no more, as far as the kernel holds names.
    pub given_up_by: Vec<String>,
}

pub type Claim<'a> = (&'a ServicePortName, &'a Routing);

/// In the order of frontends.
pub fn contests(
    mode: ProxyMode,
    found: &[Difference],
    wanted: &[(ServicePortName, Arc<Routing>)],
) -> Vec<Contest> {
    let changed = Changed::by(found);
    let contest = |(frontend, claims): (&Frontend, &Vec<Claim<'_>>)| {
        let owner = owner(mode, frontend, claims)?;
        let precedence = precedence(mode, frontend, owner, claims);
        let denied_to = claims.iter().filter(|claim| claim.0 != owner.0);
        let denied_to: Vec<String> = denied_to.map(|claim| claim.0.to_string()).collect();
        let given_up_by = changed.given_up.get(frontend).into_iter().flatten();
        let given_up_by = given_up_by.filter(|name| claims.iter().all(|claim| claim.0 != **name));
        let given_up_by: Vec<String> = given_up_by.map(ToString::to_string).collect();
        let is_made = !denied_to.is_empty()
            && (changed.gained.contains(frontend) || claims.iter().any(|claim| changed.is_new(*claim)));
        // Who comes instead of another is told by the lines of both.
        let is_ended = !given_up_by.is_empty() && !changed.gained.contains(frontend);
        let is_told = is_made || is_ended || changed.changes_hands(frontend, owner);
        is_told.then(|| Contest {
            frontend: frontend.to_string(),
            service: owner.0.to_string(),
            precedence,
            denied_to,
            given_up_by,
        })
    };
    claims(wanted).iter().filter_map(contest).collect()
}

/// The service ports that claim each frontend, in the order of names.
pub fn claims(wanted: &[(ServicePortName, Arc<Routing>)]) -> BTreeMap<Frontend, Vec<Claim<'_>>> {
    let mut claims: BTreeMap<Frontend, Vec<Claim<'_>>> = BTreeMap::new();
    for (name, routing) in wanted {
        frontends(routing).into_iter().for_each(|it| claims.entry(it).or_default().push((name, routing)));
    }
    claims
}

/// Who gets what all these claim; they come in the order of names.
pub fn owner<'a>(mode: ProxyMode, frontend: &Frontend, claims: &[Claim<'a>]) -> Option<Claim<'a>> {
    let has_endpoints = |(_, routing): &&Claim<'_>| !routing.endpoints(traffic(frontend, routing)).is_empty();
    let first = match mode {
        // A service without endpoints has no rule that leads anywhere, and the next one has its turn.
        ProxyMode::Iptables => claims.iter().find(has_endpoints).or_else(|| claims.first()),
        ProxyMode::Nftables | ProxyMode::Ipvs => claims.iter().min_by_key(|claim| rank(frontend, claim)),
    };
    first.copied()
}

fn rank<'a>(frontend: &Frontend, (name, routing): &Claim<'a>) -> Rank<'a> {
    Rank::of(frontend.ip, name, routing)
}

/// Why the owner has it rather than the next in line.
fn precedence(
    mode: ProxyMode,
    frontend: &Frontend,
    owner: Claim<'_>,
    claims: &[Claim<'_>],
) -> Option<Precedence> {
    let others = claims.iter().filter(|claim| claim.0 != owner.0);
    let next = others.map(|claim| rank(frontend, claim)).min()?;
    Some(match mode {
        ProxyMode::Iptables => Precedence::FirstRule,
        ProxyMode::Nftables | ProxyMode::Ipvs => rank(frontend, &owner).precedence_over(&next),
    })
}

fn traffic(frontend: &Frontend, routing: &Routing) -> Traffic {
    if is_cluster_ip(frontend, routing) { routing.internal } else { routing.external }
}

fn is_cluster_ip(frontend: &Frontend, routing: &Routing) -> bool {
    frontend.ip == Some(routing.addresses.cluster_ip)
}

/// What a change does to frontends.
#[derive(Debug, Default)]
struct Changed<'a> {
    /// Those that are served or refused and were not.
    gained: BTreeSet<Frontend>,
    /// By whom they were served or refused, if that is known.
    given_up: BTreeMap<Frontend, BTreeSet<&'a ServicePortName>>,
    /// The endpoints that they do not lead to any more.
    lost: BTreeMap<Frontend, BTreeSet<(IpAddr, Port)>>,
}

impl<'a> Changed<'a> {
    fn by(found: &'a [Difference]) -> Self {
        let mut changed = Self::default();
        for it in found {
            match (it.kind, &it.fact) {
                (Kind::Missing, Some(Fact::Frontend(at) | Fact::Refused(at) | Fact::Dropped(at))) => {
                    changed.gained.insert(*at);
                }
                (Kind::Surplus, Some(Fact::Frontend(at) | Fact::Refused(at) | Fact::Dropped(at))) => {
                    changed.given_up.entry(*at).or_default().extend(&it.service);
                }
                (Kind::Surplus, Some(Fact::Endpoint { at: Some(at), ip, port })) => {
                    changed.lost.entry(*at).or_default().insert((*ip, *port));
                }
                _ => {}
            }
        }
        changed
    }

    /// Whether the service was not there: nobody else asks for its cluster IP.
    fn is_new(&self, (_, routing): Claim<'_>) -> bool {
        frontends(routing).iter().any(|it| is_cluster_ip(it, routing) && self.gained.contains(it))
    }

    /// Whether it was another's: it led to endpoints that the owner does not have, and that another of the owner's
    /// frontends of the same kind, which stays, does not lose.
    fn changes_hands(&self, frontend: &Frontend, (_, routing): Claim<'_>) -> bool {
        let own = routing.endpoints(traffic(frontend, routing));
        let is_own = |lost: &(IpAddr, Port)| own.iter().any(|it| (it.ip, it.port) == *lost);
        let lost_at = |frontend| self.lost.get(frontend).into_iter().flatten().filter(|lost| !is_own(lost));
        let mut others = frontends(routing).into_iter().filter(|other| other != frontend);
        let other = others.find(|other| {
            // Where endpoints see clients, pods have endpoints of their own at external addresses.
            let is_alike = !routing.preserves_client
                || is_cluster_ip(other, routing) == is_cluster_ip(frontend, routing);
            is_alike && traffic(other, routing) == traffic(frontend, routing) && !self.gained.contains(other)
        });
        let Some(other) = other else { return false };
        let there: BTreeSet<_> = lost_at(&other).collect();
        let mut lost = lost_at(frontend).peekable();
        lost.peek().is_some() && lost.all(|endpoint| !there.contains(endpoint))
    }
}

impl std::fmt::Display for Contest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { frontend, service, precedence, denied_to, given_up_by } = self;
        write!(f, "{frontend} goes to {service}")?;
        if !denied_to.is_empty() {
            write!(f, ", also claimed by {}", denied_to.join(" and "))?;
        }
        if !given_up_by.is_empty() {
            write!(f, ", no longer claimed by {}", given_up_by.join(" and "))?;
        }
        if denied_to.is_empty() && given_up_by.is_empty() {
            write!(f, ", another service had it")?;
        }
        precedence.map_or(Ok(()), |precedence| write!(f, ": {precedence}"))
    }
}
