//! Compares Sluice with upstream's kube-proxy in both modes: starts, changes and memory. `make bench-upstream` runs it.
//!
//! All run in turns against the same API server, each time on a node without rules:
//!
//! ```text
//!   round 1: sluice-nftables  upstream-nftables  sluice-iptables  upstream-iptables
//!   round 2: the same in reverse order
//! ```

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use model::address::Family;
use tests::cluster::proxy::Mode;
use tests::cluster::test_cluster::{TestCluster, cluster_ip};

use crate::changes::ChangingServices;
use crate::competitors::{BenchNode, Competitor, Project};
use crate::figures::{FigureLog, median, percentile};
use crate::population::{name, places, populate_with_tcp};
use crate::{ruleset, setting, starts};

struct Comparison<'a> {
    cluster: &'a mut TestCluster,
    changing: ChangingServices,
    /// Frontends that have to be served before a start counts as complete.
    frontends: Vec<SocketAddr>,
    /// For a start, and for a change.
    limit: Duration,
    /// The maximum number per turn.
    changes: usize,
}

/// All turns of one competitor.
#[derive(Default)]
struct Results {
    /// By figure, one value per turn.
    figures: BTreeMap<&'static str, Vec<f64>>,
    latencies: Vec<f64>,
    is_over_limit: bool,
}

pub fn measure(cluster: &mut TestCluster, services: usize, endpoints: usize, modes: &[Mode]) {
    let rounds = setting("ROUNDS", 3);
    populate_with_tcp(cluster, services, &places(endpoints));
    let changing = ChangingServices::create(cluster);
    let frontend = |number| cluster_ip(&cluster.api().get(&cluster.service(&name(number))), Family::V4);
    let frontends =
        [0, services / 2, services - 1].map(frontend).into_iter().chain([changing.last_frontend()]);
    let frontends = frontends.collect();
    let competitors: Vec<Competitor> = modes
        .iter()
        .flat_map(|mode| {
            [Project::Sluice, Project::Upstream].map(|project| Competitor::new(cluster, project, *mode))
        })
        .collect();
    let limit = Duration::from_secs(setting("LIMIT", 600) as u64);
    let changes = setting("CHANGES", 30);
    let mut comparison = Comparison { cluster, changing, frontends, limit, changes };
    let mut results: Vec<Results> = competitors.iter().map(|_| Results::default()).collect();
    for round in 0..rounds {
        println!("round {} of {rounds}, {services} services x {endpoints} endpoints", round + 1);
        let mut turns: Vec<_> = competitors.iter().zip(&mut results).collect();
        if round % 2 == 1 {
            turns.reverse();
        }
        for (competitor, results) in turns {
            if !results.is_over_limit {
                comparison.turn(competitor, results);
                // Earlier lines no longer count then, but an interrupted run leaves what it has.
                results.record(&competitor.name(), services, endpoints, limit);
            }
        }
    }
    print_ratios(modes, &results);
}

impl Comparison<'_> {
    fn turn(&mut self, competitor: &Competitor, results: &mut Results) {
        let node = BenchNode::join(self.cluster);
        let started = starts::measure(self.cluster, &node, competitor, &self.frontends, self.limit);
        let Some((proxy, figures)) = started else {
            println!("{}: a start takes more than {} s", competitor.name(), self.limit.as_secs());
            results.is_over_limit = true;
            return node.remove(self.cluster);
        };
        for (figure, value) in starts::FIGURES.into_iter().zip(figures) {
            results.figures.entry(figure).or_default().push(value);
        }
        let changed = self.changing.measure(self.cluster, &node, &proxy, self.changes, self.limit);
        match changed {
            Some(changed) => {
                results.latencies.extend(changed.latencies.iter().map(|latency| latency.as_secs_f64() * 1e3));
                results.figures.entry("change_cpu_ms").or_default().push(changed.cpu_ms);
                results.figures.entry("rss_changed_mib").or_default().push(changed.rss_mib);
            }
            None => {
                println!("{}: a change takes more than {} s", competitor.name(), self.limit.as_secs());
                results.is_over_limit = true;
            }
        }
        // Ours may not list a table that a process writes.
        drop(proxy);
        if !results.figures.contains_key("rules") {
            let size = ruleset::count(&node.lab.network.node);
            for (figure, value) in [("rules", size.rules), ("sets", size.sets), ("elements", size.elements)] {
                results.figures.insert(figure, vec![value as f64]);
            }
        }
        node.remove(self.cluster);
    }
}

impl Results {
    fn record(&self, name: &str, services: usize, endpoints: usize, limit: Duration) {
        let mut log = FigureLog::of(name, services, endpoints);
        for (figure, values) in &self.figures {
            log.record_spread(figure, values, 0, 100);
        }
        for (figure, value) in self.change_latency() {
            log.record(figure, value);
        }
        if self.is_over_limit {
            log.record("limit_s", limit.as_secs_f64());
        }
    }

    fn change_latency(&self) -> Vec<(&'static str, f64)> {
        if self.latencies.is_empty() {
            return Vec::new();
        }
        let [p50, p99] = [50, 99].map(|percent| percentile(&self.latencies, percent));
        vec![("change_p50_ms", p50), ("change_p99_ms", p99), ("changes", self.latencies.len() as f64)]
    }

    fn medians(&self) -> BTreeMap<&'static str, f64> {
        let medians = self.figures.iter().map(|(figure, values)| (*figure, median(values)));
        medians.chain(self.change_latency()).collect()
    }
}

/// `results` has those of Sluice and of upstream for each mode.
fn print_ratios(modes: &[Mode], results: &[Results]) {
    for (mode, pair) in modes.iter().zip(results.chunks(2)) {
        println!("{} mode: {:>22} {:>12} {:>8}", mode.name(), "sluice", "upstream", "ratio");
        let [ours, upstream] = [&pair[0], &pair[1]].map(Results::medians);
        for (figure, ours) in ours {
            let Some(upstream) = upstream.get(figure) else { continue };
            println!("  {figure:<20} {ours:>12.3} {upstream:>12.3} {:>8.3}", ours / upstream);
        }
    }
}
