//! A store that is checked at every step.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnet::IpNet;
use model::address::Family;
use model::cluster::{Changes, Cluster, Counts, HealthCheck, Here};
use model::event::Event;
use model::names::{NamespacedName, ServicePortName};
use model::routing::Routing;

use crate::histories::{Objects, THIS_NODE};
use crate::{invariants, naive};

/// A store and the sum of the changes taken from it.
#[derive(Debug)]
pub struct Store {
    pub cluster: Cluster,
    family: Family,
    routings: BTreeMap<ServicePortName, Arc<Routing>>,
    health_checks: BTreeMap<NamespacedName, HealthCheck>,
    service_cidrs: Vec<IpNet>,
}

/// The observable state of a store, except the numbers of events.
#[derive(Debug, Default, PartialEq)]
pub struct View {
    pub routings: BTreeMap<ServicePortName, Arc<Routing>>,
    pub health_checks: BTreeMap<NamespacedName, HealthCheck>,
    pub service_cidrs: Vec<IpNet>,
    pub counts: Counts,
}

impl View {
    /// The state of a store to which exactly these objects were applied.
    pub fn of(family: Family, objects: &Objects) -> Self {
        let mut store = Store::new(family);
        store.apply_all(&objects.events());
        store.take();
        store.view()
    }
}

impl Store {
    pub fn new(family: Family) -> Self {
        let node_ip = match family {
            Family::V4 => "192.168.0.1",
            Family::V6 => "fd00:192::1",
        };
        let here = Here {
            family,
            node_name: THIS_NODE.into(),
            node_ip: node_ip.parse().unwrap(),
            serve_external_ips: true,
            max_hashed: naive::MAX_HASHED,
            started: "2026-11-15T10:00:00Z".parse().unwrap(),
        };
        Self {
            cluster: Cluster::new(here),
            family,
            routings: BTreeMap::new(),
            health_checks: BTreeMap::new(),
            service_cidrs: Vec::new(),
        }
    }

    pub fn apply_all(&mut self, events: &[Event]) {
        for event in events {
            self.cluster.apply(event);
        }
    }

    /// Takes changes before the lists have ended, and checks that each is a difference.
    pub fn take_early(&mut self) {
        let changes = self.cluster.take_early(3);
        self.add(&changes);
    }

    fn add(&mut self, changes: &Changes) {
        assert!(changes.routings.is_sorted_by(|(a, _), (b, _)| a < b), "{changes:?}");
        for (name, routing) in &changes.routings {
            assert_ne!(self.routings.get(name), routing.as_ref(), "{name:?} did not change");
            set(&mut self.routings, name, routing.clone());
        }
        assert!(changes.health_checks.is_sorted_by(|(a, _), (b, _)| a < b), "{changes:?}");
        for (name, check) in &changes.health_checks {
            assert_ne!(self.health_checks.get(name), check.as_ref(), "health check of {name} did not change");
            set(&mut self.health_checks, name, *check);
        }
        if let Some(cidrs) = &changes.service_cidrs {
            assert_ne!(&self.service_cidrs, cidrs, "service CIDRs did not change");
            self.service_cidrs.clone_from(cidrs);
        }
    }

    /// Takes the changes, and checks that each is a difference and that the sum of all changes is the current state.
    pub fn take(&mut self) -> Changes {
        let expected = self.cluster.has_changes();
        let changes = self.cluster.take_changes();
        // Those of changes that were taken early are still to be reported.
        let nothing = Changes { trigger_times: changes.trigger_times.clone(), ..Changes::default() };
        assert!(expected || changes == nothing, "changes though `has_changes` was false: {changes:?}");
        assert!(!self.cluster.has_changes());
        assert_eq!(self.cluster.pending(), (0, 0));

        self.add(&changes);
        assert!(changes.trigger_times.is_sorted_by(|(a, _), (b, _)| a < b), "{changes:?}");

        assert_eq!(self.routings.iter().collect::<Vec<_>>(), self.cluster.routings());
        assert_eq!(self.service_cidrs, self.cluster.service_cidrs());
        invariants::check(self.family, &self.view());
        changes
    }

    pub fn view(&self) -> View {
        View {
            routings: self.routings.clone(),
            health_checks: self.health_checks.clone(),
            service_cidrs: self.service_cidrs.clone(),
            counts: Counts { service_changes: 0, endpoint_changes: 0, ..self.cluster.counts() },
        }
    }
}

fn set<K: Ord + Clone, V>(map: &mut BTreeMap<K, V>, key: &K, value: Option<V>) {
    match value {
        Some(value) => map.insert(key.clone(), value),
        None => map.remove(key),
    };
}
