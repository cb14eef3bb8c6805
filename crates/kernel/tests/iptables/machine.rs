//! A cluster, and rules that follow it in the network namespace of the calling thread.

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
    /// Endpoints that are counted but not there: large clusters are slow to test.
    pub imagined: usize,
    interfaces: Vec<IpAddr>,
    moved: bool,
}

impl<'a> Machine<'a> {
    pub fn new(commands: &'a Commands, options: Options) -> Self {
        let rules = Rules::through(commands.programs(), options.family()).unwrap();
        let rules = IptablesSync::new(rules, options.settings());
        let cluster = Cluster::new(options.here());
        Self { commands, options, cluster, rules, imagined: 0, interfaces: interfaces(), moved: true }
    }

    /// Another process, which knows the cluster but not what the first one did.
    pub fn restart(self) -> Self {
        let mut again = Self::new(self.commands, self.options);
        let told = self.cluster;
        let routings = told
            .routings()
            .into_iter()
            .map(|(name, routing)| (name.clone(), Some(routing.clone())))
            .collect();
        let endpoints = Some(told.counts().endpoints);
        again.cluster = told;
        again.moved = false;
        again.interfaces = self.interfaces;
        again.rules.move_to(&again.interfaces);
        again.rules.sync(Changes { routings, endpoints, ..Changes::default() }).unwrap();
        again
    }

    pub fn hear(&mut self, lines: &str) -> &mut Self {
        for line in lines.lines().filter(|line| !line.trim().is_empty()) {
            self.apply(&testkit::event(line));
        }
        self
    }

    pub fn apply(&mut self, event: &Event) {
        self.cluster.apply(event);
    }

    pub fn move_to(&mut self, interfaces: Vec<IpAddr>) {
        self.interfaces = interfaces;
        self.moved = true;
    }

    pub fn try_sync(&mut self) -> Result<Outcome, Error> {
        let changes = self.cluster.take_changes();
        let endpoints = Some(self.cluster.counts().endpoints + self.imagined);
        if std::mem::take(&mut self.moved) {
            self.rules.move_to(&self.interfaces);
        }
        self.rules.sync(Changes { endpoints, ..changes })
    }

    pub fn sync(&mut self) -> Outcome {
        self.try_sync().unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn saved(&self) -> Saved {
        Saved::read(self.commands, self.options.family())
    }

    /// What the kernel would hold if all had been written by one process at once, found out by doing so. The rules here
    /// are gone after that.
    pub fn ideal(self) -> Saved {
        self.commands.flush(self.options.family());
        self.restart().saved()
    }
}
