//! A cluster, a plan and a fake kernel, and syncs from one to the other.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use model::cluster::{Changes, Cluster};
use model::event::Event;
use plan::iptables::chains::IptablesTable;
use plan::iptables::plan::{IptablesPlan, RestoreLimits, RuleCounts, Scope};

use crate::fake::{Kernel, Refused};
use crate::options::{Options, interfaces};
use crate::trace::Tracer;

pub const SYNC_PERIOD: Duration = Duration::from_secs(30);

pub struct World {
    pub options: Options,
    pub cluster: Cluster,
    pub plan: IptablesPlan,
    pub kernel: Kernel,
    pub now: Instant,
    /// Whether the kernel's chains can be listed.
    pub can_save: bool,
    pub interfaces: Vec<IpAddr>,
    /// Endpoints that are counted but not there: large clusters are slow to test.
    pub imagined: usize,
}

/// What one sync did.
#[derive(Debug)]
pub struct Synced {
    pub scope: Scope,
    pub texts: Vec<String>,
    pub counts: RuleCounts,
}

impl World {
    pub fn new(options: Options) -> Self {
        Self::with_limits(options, RestoreLimits { edits: 100, ..RestoreLimits::LEGACY })
    }

    pub fn with_limits(options: Options, limits: RestoreLimits) -> Self {
        let mut plan = IptablesPlan::new(options.settings(), limits, SYNC_PERIOD);
        plan.set_node_port_ips(&interfaces());
        Self {
            plan,
            cluster: Cluster::new(options.here()),
            options,
            kernel: Kernel::empty(),
            now: Instant::now(),
            can_save: true,
            interfaces: interfaces(),
            imagined: 0,
        }
    }

    pub fn apply(&mut self, event: &Event) {
        self.cluster.apply(event);
    }

    /// Applies what the lines say.
    pub fn apply_lines(&mut self, lines: &str) -> &mut Self {
        for line in lines.lines().filter(|line| !line.trim().is_empty()) {
            self.apply(&testkit::event(line));
        }
        self
    }

    pub fn set_node_port_ips(&mut self, interfaces: &[IpAddr]) {
        self.interfaces = interfaces.to_vec();
        self.plan.set_node_port_ips(interfaces);
    }

    fn endpoints(&self) -> usize {
        self.cluster.counts().endpoints + self.imagined
    }

    pub fn wait(&mut self, seconds: u64) -> &mut Self {
        self.now += Duration::from_secs(seconds);
        self
    }

    pub fn sync(&mut self) -> Synced {
        let (synced, refused) = self.try_sync(|_, _| true);
        assert_eq!(refused, None, "{}", synced.texts.join("\n"));
        synced
    }

    /// A sync in which each run, by its number, may be made to fail. Checks the kernel after each run.
    pub fn try_sync(&mut self, goes_well: impl Fn(usize, &str) -> bool) -> (Synced, Option<Refused>) {
        let changes = self.cluster.take_changes();
        let endpoints = self.endpoints();
        self.plan.accept(Changes { endpoints: Some(endpoints), ..changes });
        let attempt = match self.plan.scope(self.now) {
            Scope::Full => {
                self.kernel.ensure_jumps();
                let found = self.kernel.nat_chains();
                self.plan.full(self.now, self.can_save.then_some(&found))
            }
            Scope::Partial => self.plan.partial(self.now),
        };
        let texts: Vec<String> = attempt.restores().iter().map(ToString::to_string).collect();
        let synced = Synced { scope: attempt.scope(), counts: attempt.counts(), texts };
        let mut states = vec![self.kernel.clone()];
        for (number, text) in synced.texts.iter().enumerate() {
            let result = if goes_well(number, text) {
                self.kernel.restore(text)
            } else {
                Err(Refused(0, "by the test".into()))
            };
            if let Err(refused) = result {
                drop(attempt);
                return (synced, Some(refused));
            }
            states.push(self.kernel.clone());
        }
        attempt.settle();
        never_half_written(&states);
        (synced, None)
    }

    /// What may become of the packet, in words: see [`Tracer::fates`].
    pub fn fates(&self, packet: &str) -> String {
        let fates = Tracer::new(&self.kernel, self.interfaces.clone()).fates(packet);
        fates.into_iter().collect::<Vec<String>>().join(", ")
    }

    /// What the kernel would hold if all had been written at once.
    pub fn ideal(&self) -> Kernel {
        let mut plan = IptablesPlan::new(self.options.settings(), RestoreLimits::LEGACY, SYNC_PERIOD);
        plan.set_node_port_ips(&self.interfaces);
        for (name, routing) in self.cluster.routings() {
            plan.replace(name.clone(), Some(routing.clone()));
        }
        let mut kernel = Kernel::empty();
        kernel.ensure_jumps();
        let found = kernel.nat_chains();
        plan.accept(Changes { endpoints: Some(self.endpoints()), ..Changes::default() });
        let attempt = plan.full(self.now, Some(&found));
        let text = attempt.restores()[0].to_string();
        attempt.settle();
        kernel.restore(&text).unwrap();
        kernel
    }
}

/// Between two runs, every chain that a packet can come to is as it was or as it will be.
fn never_half_written(states: &[Kernel]) {
    let (first, last) = (&states[0], &states[states.len() - 1]);
    for state in states {
        for table in [IptablesTable::Filter, IptablesTable::Nat] {
            for chain in state.reachable(table) {
                let rules = state.table(table).get(chain);
                let was = first.table(table).get(chain);
                let will_be = last.table(table).get(chain);
                assert!(rules == was || rules == will_be, "{chain} is half written: {rules:#?}");
            }
        }
    }
}
