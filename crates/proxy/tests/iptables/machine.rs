//! A cluster, and rules in the calling thread's network namespace that are synced with it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use kernel::iptables::{Error, Rules, RulesSnapshot};
use kernel::outcome::Outcome;
use model::cluster::{Changes, Cluster};
use model::event::Event;
use proxy::backend::{Backend as _, Iptables};
use proxy::metrics::Metrics;
use proxy::rate_limit::Retry;
use settings::config::ProxyMode;

use crate::commands::Commands;
use crate::options::{Options, interfaces};
use crate::saved::Saved;

pub const SYNC_PERIOD: Duration = Duration::from_secs(30);

pub fn backend(rules: Rules, options: &Options, sync_period: Duration) -> Iptables {
    Iptables::new(rules, options.settings(), sync_period, Arc::new(Metrics::new(ProxyMode::Iptables)))
}

/// Attempts a sync again at once where the rate limiter does.
pub fn sync(backend: &mut Iptables, changes: Changes) -> Result<Outcome, Error> {
    let mut outcome = backend.sync(changes);
    while outcome.as_ref().is_err_and(|error| error.retry == Retry::Stale) {
        outcome = backend.sync(Changes::default());
    }
    outcome.map_err(|error| error.cause.downcast().unwrap())
}

pub fn snapshot(backend: &Iptables) -> RulesSnapshot {
    backend.rules.snapshot(backend.plan.desired())
}

pub struct Machine<'a> {
    pub commands: &'a Commands,
    pub options: Options,
    pub cluster: Cluster,
    pub rules: Iptables,
    /// Added to the number of endpoints, to test the rules of large clusters without their size.
    pub imagined: usize,
    interfaces: Vec<IpAddr>,
    /// Whether `interfaces` changed since the last sync.
    has_moved: bool,
}

impl<'a> Machine<'a> {
    pub fn new(commands: &'a Commands, options: Options) -> Self {
        let rules = Rules::through(commands.programs(), options.family()).unwrap();
        let rules = backend(rules, &options, SYNC_PERIOD);
        let cluster = Cluster::new(options.here());
        Self { commands, options, cluster, rules, imagined: 0, interfaces: interfaces(), has_moved: true }
    }

    /// A new process, which has received the objects but does not know what the first one did.
    pub fn restart(self) -> Self {
        let mut again = Self::new(self.commands, self.options);
        let cluster = self.cluster;
        let routings = cluster
            .routings()
            .into_iter()
            .map(|(name, routing)| (name.clone(), Some(routing.clone())))
            .collect();
        let endpoints = Some(cluster.counts().endpoints);
        again.cluster = cluster;
        again.has_moved = false;
        again.interfaces = self.interfaces;
        again.rules.set_node_addresses(&[], &again.interfaces);
        sync(&mut again.rules, Changes { routings, endpoints, ..Changes::default() }).unwrap();
        again
    }

    pub fn apply_lines(&mut self, lines: &str) -> &mut Self {
        testkit::objects::events(lines).for_each(|event| self.apply(&event));
        self
    }

    pub fn apply(&mut self, event: &Event) {
        self.cluster.apply(event);
    }

    pub fn set_node_port_ips(&mut self, interfaces: Vec<IpAddr>) {
        self.interfaces = interfaces;
        self.has_moved = true;
    }

    pub fn try_sync(&mut self) -> Result<Outcome, Error> {
        let changes = self.cluster.take_changes();
        let endpoints = Some(self.cluster.counts().endpoints + self.imagined);
        if std::mem::take(&mut self.has_moved) {
            self.rules.set_node_addresses(&[], &self.interfaces);
        }
        sync(&mut self.rules, Changes { endpoints, ..changes })
    }

    pub fn sync(&mut self) -> Outcome {
        self.try_sync().unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn saved(&self) -> Saved {
        Saved::read(self.commands, self.options.family())
    }

    /// What the kernel holds after one full sync of a new process, which replaces the present rules.
    pub fn ideal(self) -> Saved {
        self.commands.flush(self.options.family());
        self.restart().saved()
    }
}
