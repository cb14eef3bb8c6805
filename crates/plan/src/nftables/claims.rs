//! Frontends that several service ports claim: which one gets a frontend, and how changes affect that.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use model::names::{NamespacedName, ServicePortName};
use model::routing::Routing;
use model::service::Created;

use crate::nftables::elements::FrontendKey;

/// The order of claims to one frontend; the least one gets it. A cluster IP belongs to its Service. Otherwise the Service
/// that was created first keeps the frontend, whatever the name of the later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank<'a> {
    is_external: bool,
    created: Created,
    name: &'a ServicePortName,
}

impl<'a> Rank<'a> {
    /// `ip` is that of the frontend, `None` for a node port.
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
    /// Both were created in the same second, or the time is unknown.
    #[serde(rename = "firstByName")]
    FirstByName,
    /// In the iptables mode, as upstream, rules are sorted by name, and the first that leads to an endpoint counts.
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

/// What a change does to frontends that several Services claim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Contention {
    pub change: ContentionChange,
    /// The Service that gets the frontends now; `None` if all claims were withdrawn.
    pub winner: Option<NamespacedName>,
    /// Began: the Services that lose with a new claim. WinnerChanged: all Services that lose. Ended: the Services that withdrew
    /// their claim.
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

/// A frontend, and the service ports that claimed it before and that claim it now, each in the order of their rank.
pub type Claimants<'a> = (FrontendKey, &'a [ServicePortName], &'a [ServicePortName]);

/// The changes of contentions, sorted: one for all frontends with the same change between the same Services.
pub fn contentions<'a>(changes: impl Iterator<Item = Claimants<'a>>) -> Vec<Contention> {
    let mut groups: BTreeMap<_, Vec<FrontendKey>> = BTreeMap::new();
    for (frontend, before, after) in changes {
        let winner = after.first();
        // A single claimant is no contention.
        let contended = |claimants: &'a [ServicePortName]| if claimants.len() > 1 { claimants } else { &[] };
        let (before, after) = (contended(before), contended(after));
        let mut report = |change, others: BTreeSet<&'a ServicePortName>| {
            if !others.is_empty() {
                let others: BTreeSet<_> = others.into_iter().map(|name| &name.service).collect();
                let winner = winner.map(|name| &name.service);
                groups.entry((change, winner, others)).or_default().push(frontend);
            }
        };
        let losers: BTreeSet<_> = after.iter().skip(1).collect();
        if !before.is_empty() && !after.is_empty() && before.first() != winner {
            report(ContentionChange::WinnerChanged, losers);
            continue;
        }
        let earlier: BTreeSet<_> = before.iter().collect();
        let withdrawn =
            before.iter().filter(|name| Some(*name) != winner && !losers.contains(name)).collect();
        report(ContentionChange::Began, losers.difference(&earlier).copied().collect());
        report(ContentionChange::Ended, withdrawn);
    }
    let owned =
        |((change, winner, others), mut frontends): ((_, Option<&NamespacedName>, BTreeSet<_>), Vec<_>)| {
            frontends.sort_unstable();
            let others = others.into_iter().cloned().collect();
            Contention { change, winner: winner.cloned(), others, frontends }
        };
    groups.into_iter().map(owned).collect()
}
