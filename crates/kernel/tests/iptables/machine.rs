//! A cluster, and rules in the calling thread's network namespace that are synced with it.

use std::net::IpAddr;

use kernel::iptables::{Error, Rules};
use kernel::outcome::Outcome;
use model::cluster::{Changes, Cluster};
use model::event::Event;

use crate::commands::Commands;
use crate::drive::IptablesSync;
use crate::options::{Options, interfaces};
use crate::saved::Saved;

pub struct Machine<'a> {
    pub commands: &'a Commands,
    pub options: Options,
    pub cluster: Cluster,
    pub rules: IptablesSync,
    /// Added to the number of endpoints, to test the rules of large clusters without their size.
    pub imagined: usize,
    interfaces: Vec<IpAddr>,
    /// Whether `interfaces` changed since the last sync.
    has_moved: bool,
}

impl<'a> Machine<'a> {
    pub fn new(commands: &'a Commands, options: Options) -> Self {
        let rules = Rules::through(commands.programs(), options.family()).unwrap();
        let rules = IptablesSync::new(rules, options.settings());
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
        again.rules.set_node_port_ips(&again.interfaces);
        again.rules.sync(Changes { routings, endpoints, ..Changes::default() }).unwrap();
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
            self.rules.set_node_port_ips(&self.interfaces);
        }
        self.rules.sync(Changes { endpoints, ..changes })
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
