//! Frontends that several service ports claim: which one gets them, and what a change does to that.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use model::names::{NamespacedName, ServicePortName};
use model::routing::Routing;
use model::service::Created;

use crate::nftables::elements::FrontendKey;

/// How claims to one frontend are ordered; the least one gets it. No other Service can take a cluster IP. Of the rest, the
/// Service created first keeps what it has, whatever the later one is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank<'a> {
    is_external: bool,
    created: Created,
    name: &'a ServicePortName,
}

impl<'a> Rank<'a> {
    /// `ip` is that of the frontend, none for a node port.
    pub fn of(ip: Option<IpAddr>, name: &'a ServicePortName, routing: &Routing) -> Self {
        let is_external = ip != Some(routing.addresses.cluster_ip);
        Self { is_external, created: routing.created, name }
    }

    /// Why this claim comes before that one.
    pub fn precedence_over(&self, later: &Self) -> Precedence {
        if self.is_external != later.is_external {
            Precedence::ClusterIp
        } else if self.created != later.created {
            Precedence::CreatedFirst
        } else {
            Precedence::FirstByName
        }
    }
}

/// Why a service port gets a frontend that others claim as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Precedence {
    #[serde(rename = "clusterIP")]
    ClusterIp,
    #[serde(rename = "createdFirst")]
    CreatedFirst,
    /// Both were created in the same second, or it is not known when.
    #[serde(rename = "firstByName")]
    FirstByName,
    /// The iptables mode, like upstream: rules come in the order of names, and the first that leads to an endpoint counts.
    #[serde(rename = "firstRule")]
    FirstRule,
}

impl fmt::Display for Precedence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ClusterIp => "a cluster IP takes precedence",
            Self::CreatedFirst => "the Service created first has it",
            Self::FirstByName => "the first by name has it",
            Self::FirstRule => "the first rule has it, in the order of names",
        })
    }
}

/// What a change does to frontends that the same Services claim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Contention {
    pub change: ContentionChange,
    /// The Service that has the frontends now; none if all claims were given up.
    pub winner: Option<NamespacedName>,
    /// Began: those that claim without getting it and did not before. WinnerChanged: all that claim without getting it. Ended: those that gave
    /// up their claim.
    pub others: BTreeSet<NamespacedName>,
    /// Sorted, never empty.
    pub frontends: Vec<FrontendKey>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ContentionChange {
    Began,
    WinnerChanged,
    Ended,
}

/// Who claimed a frontend and who claims it now, each in the order of their rank.
pub type Claimants<'a> = (FrontendKey, &'a [ServicePortName], &'a [ServicePortName]);

/// What became of contentions, in order: one for all frontends to which the same happens between the same Services.
pub fn contentions<'a>(changes: impl Iterator<Item = Claimants<'a>>) -> Vec<Contention> {
    let mut groups: BTreeMap<_, Vec<FrontendKey>> = BTreeMap::new();
    for (frontend, before, after) in changes {
        let winner = after.first();
        // One claimant is no contention: nothing was told of it, nor is it told that it stays.
        let contended = |claimants: &'a [ServicePortName]| if claimants.len() > 1 { claimants } else { &[] };
        let (before, after) = (contended(before), contended(after));
        let mut tell = |change, others: BTreeSet<&'a ServicePortName>| {
            if !others.is_empty() {
                let others: BTreeSet<_> = others.into_iter().map(|name| &name.service).collect();
                let winner = winner.map(|name| &name.service);
                groups.entry((change, winner, others)).or_default().push(frontend);
            }
        };
        let losers: BTreeSet<_> = after.iter().skip(1).collect();
        if !before.is_empty() && !after.is_empty() && before.first() != winner {
            tell(ContentionChange::WinnerChanged, losers);
            continue;
        }
        let were_there: BTreeSet<_> = before.iter().collect();
        let gave_up = before.iter().filter(|name| Some(*name) != winner && !losers.contains(name)).collect();
        tell(ContentionChange::Began, losers.difference(&were_there).copied().collect());
        tell(ContentionChange::Ended, gave_up);
    }
    let owned =
        |((change, winner, others), mut frontends): ((_, Option<&NamespacedName>, BTreeSet<_>), Vec<_>)| {
            frontends.sort_unstable();
            let others = others.into_iter().cloned().collect();
            Contention { change, winner: winner.cloned(), others, frontends }
        };
    groups.into_iter().map(owned).collect()
}
