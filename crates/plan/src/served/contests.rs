//! Frontends that several service ports claim: which one gets it after a change, and which ones lose.
//!
//! Reported only if the change starts or ends a contest. The nftables table has no elements for claims that lose. So a contest
//! starts if other frontends of the losing service port are new, and has ended if the frontend led to other endpoints.

use std::collections::{BTreeMap, BTreeSet};

use model::names::ServicePortName;
use serde::Serialize;

use super::{Frontends, KernelComparison, Served, ServedFrontend};
use crate::nftables::claims::Precedence;
use crate::nftables::elements::FrontendKey;

#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Contest {
    pub frontend: String,
    /// The service port that gets it.
    pub service: String,
    /// Why, if others claim it as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub precedence: Option<Precedence>,
    /// The service ports that claim it without getting it.
    pub denied_to: Vec<String>,
    /// The service ports that no longer claim it, as far as the kernel has names.
    pub given_up_by: Vec<String>,
}

impl KernelComparison {
    /// Sorted by frontend.
    pub fn contests(&self) -> Vec<Contest> {
        let Self { desired, actual, .. } = self;
        let (new, by_owner) = (new(desired, actual), desired.by_owner());
        let contest = |(frontend, service): (&FrontendKey, &ServedFrontend)| {
            let (owner, denied_to) = service.claims.split_first()?;
            let before = actual.frontends.get(frontend);
            let claims_before = before.map(|it| it.claims.as_slice()).unwrap_or_default();
            let given_up_by: Vec<_> =
                claims_before.iter().filter(|name| !service.claims.contains(name)).collect();
            let begins = !denied_to.is_empty()
                && (before.is_none() || service.claims.iter().any(|name| new.contains(name)));
            // A service port that replaces another starts no contest: their changes are reported anyway.
            let ends = !given_up_by.is_empty() && claims_before.contains(owner);
            let changes_owner = || changes_owner(frontend, service, by_owner.get(&Some(owner))?, actual);
            (begins || ends || changes_owner().is_some()).then(|| Contest {
                frontend: frontend.to_string(),
                service: owner.to_string(),
                precedence: service.precedence,
                denied_to: denied_to.iter().map(ToString::to_string).collect(),
                given_up_by: given_up_by.iter().map(ToString::to_string).collect(),
            })
        };
        desired.frontends.iter().filter_map(contest).collect()
    }
}

/// Service ports without an actual frontend among those that only they claim.
fn new<'a>(desired: &'a Served, actual: &Served) -> BTreeSet<&'a ServicePortName> {
    let mut is_new: BTreeMap<&ServicePortName, bool> = BTreeMap::new();
    for (frontend, service) in &desired.frontends {
        if let [owner] = service.claims.as_slice() {
            *is_new.entry(owner).or_insert(true) &= !actual.frontends.contains_key(frontend);
        }
    }
    is_new.into_iter().filter(|(_, is_new)| *is_new).map(|(name, _)| name).collect()
}

/// Whether another service port has the actual frontend: it does not lead to the endpoints of another frontend of its desired
/// owner, though it should.
fn changes_owner(
    frontend: &FrontendKey,
    service: &ServedFrontend,
    of_owner: &Frontends<'_>,
    actual: &Served,
) -> Option<()> {
    let found = &actual.frontends.get(frontend)?.endpoints;
    let mut alike = of_owner.iter().filter(|(other, it)| {
        *other != frontend && (&it.endpoints, &it.inside) == (&service.endpoints, &service.inside)
    });
    let other = alike.find_map(|(other, _)| actual.frontends.get(other))?;
    let leads_elsewhere = !found.is_empty()
        && !other.endpoints.is_empty()
        && found.is_disjoint(&other.endpoints)
        && found.is_disjoint(&service.endpoints);
    leads_elsewhere.then_some(())
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
