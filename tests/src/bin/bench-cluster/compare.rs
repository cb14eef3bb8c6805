//! The same cluster and the same changes for any kube-proxy in nftables mode: what `SLUICE_KUBE_PROXY` names may be
//! another one. What it tells of itself is taken from metrics that every kube-proxy has.

use std::time::{Duration, Instant};

use model::address::Family;
use testkit::wait::within;
use tests::cluster::proxy::{Mode, Proxy};
use tests::cluster::test_cluster::TestCluster;

use crate::figures::Figures;
use crate::memory::{processor_time, status};
use crate::population::{PLACES, at, name, populate_with_tcp, wait_for_within};

const CHANGES: usize = 20;
/// After which every proxy has rested enough to serve the next change at once.
const REST: Duration = Duration::from_secs(3);
/// Some need long.
const PATIENCE: Duration = Duration::from_secs(1_800);

/// `endpoints` of each service, five at most.
pub fn measure(cluster: &TestCluster, proxy_name: &str, services: usize, endpoints: usize) {
    let mut figures = Figures::of(&format!("cluster-{proxy_name}"), services, endpoints);
    populate_with_tcp(cluster, services, &PLACES[..endpoints]);
    let started = Instant::now();
    let proxy = cluster.proxy(Mode::Nftables);
    wait_for_within(PATIENCE, cluster, services - 1);
    figures.say("served_s", started.elapsed().as_secs_f64());
    // Whatever it still has to do for its start, be it in the background.
    let mut before = processor_time(proxy.pid());
    within(PATIENCE, "rest", || {
        std::thread::sleep(REST);
        let now = processor_time(proxy.pid());
        std::mem::replace(&mut before, now) + Duration::from_millis(50) > now
    });
    figures.say("start_cpu_s", before.as_secs_f64());
    figures.say("rss_mib", status(proxy.pid(), "VmRSS:"));
    figures.say("rss_peak_mib", status(proxy.pid(), "VmHWM:"));

    let passes = Passes::of(&proxy);
    // One is lost, unless it is the only one: that goes elsewhere.
    let changed = if endpoints == 1 { &PLACES[1..2] } else { &PLACES[..endpoints - 1] };
    for change in 0..CHANGES {
        let service = name(change * 7 % services);
        let before = Passes::of(&proxy).count;
        cluster.api().replace(&cluster.slice(&service, Family::V4), &at(&service, changed));
        // Asked seldom: to answer is work, too.
        within(PATIENCE, "a pass", || {
            std::thread::sleep(REST);
            Passes::of(&proxy).count > before
        });
    }
    let passed = Passes::of(&proxy);
    let spent = processor_time(proxy.pid()) - before;
    figures.say("pass_ms", (passed.seconds - passes.seconds) / (passed.count - passes.count) * 1e3);
    figures.say("passes", passed.count - passes.count);
    // Of commands that it runs, too, and of telling its metrics twice.
    figures.say("change_cpu_ms", spent.as_secs_f64() * 1e3 / CHANGES as f64);
    figures.say("rss_changed_mib", status(proxy.pid(), "VmRSS:"));
}

/// Passes over what has changed, as the proxy itself counts and measures them.
struct Passes {
    count: f64,
    seconds: f64,
}

impl Passes {
    fn of(proxy: &Proxy) -> Self {
        let page = proxy.metrics("/metrics").expect("metrics are served").body;
        let value = |what: &str| {
            let name =
                format!(r#"kubeproxy_sync_partial_proxy_rules_duration_seconds_{what}{{ip_family="IPv4"}} "#);
            let line = page.lines().find_map(|line| line.strip_prefix(&name));
            line.map_or(0.0, |value| value.parse().unwrap())
        };
        Self { count: value("count"), seconds: value("sum") }
    }
}
