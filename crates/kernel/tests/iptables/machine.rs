//! A cluster, and rules that follow it in the network namespace of the calling thread.

use std::net::IpAddr;
use std::time::Duration;

use kernel::iptables::{Access, Change, Error, Outcome, Rules};
use model::cluster::Cluster;
use model::event::Event;

use crate::commands::Commands;
use crate::options::{Options, interfaces};
use crate::saved::Saved;

pub struct Machine<'a> {
    pub commands: &'a Commands,
    pub options: Options,
    pub cluster: Cluster,
    pub rules: Rules,
    /// Endpoints that are counted but not there: large clusters are slow to test.
    pub imagined: usize,
    interfaces: Vec<IpAddr>,
    moved: bool,
}

impl<'a> Machine<'a> {
    pub fn new(commands: &'a Commands, options: Options) -> Self {
        let access = Access::through(commands.programs(), options.family()).unwrap();
        let rules = Rules::new(access, options.settings(), Duration::from_secs(30));
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
        let endpoints = told.counts().endpoints;
        again.cluster = told;
        again.moved = false;
        again.interfaces = self.interfaces;
        let node_port_ips = Some(again.interfaces.clone());
        again.rules.sync(Change { routings, endpoints, node_port_ips }).unwrap();
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
        let routings = self.cluster.take_changes().routings;
        let endpoints = self.cluster.counts().endpoints + self.imagined;
        let node_port_ips = std::mem::take(&mut self.moved).then(|| self.interfaces.clone());
        self.rules.sync(Change { routings, endpoints, node_port_ips })
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
