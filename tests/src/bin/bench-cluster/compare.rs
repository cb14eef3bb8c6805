//! Measures the same cluster and changes with any kube-proxy in nftables mode, such as upstream's as `SLUICE_KUBE_PROXY`. Uses
//! only metrics that upstream has, too.

use std::time::{Duration, Instant};

use model::address::Family;
use testkit::wait::within;
use tests::cluster::proxy::{Mode, Proxy};
use tests::cluster::test_cluster::TestCluster;

use crate::figures::FigureLog;
use crate::memory::{cpu_time, status};
use crate::population::{PLACES, name, populate_with_tcp, slice_at, wait_for_within};

const CHANGES: usize = 20;
/// Longer than any proxy's minimum interval between syncs.
const PAUSE: Duration = Duration::from_secs(3);
/// Upstream needs minutes for large clusters.
const SERVE_TIMEOUT: Duration = Duration::from_secs(1_800);

/// `endpoints` is the number per Service, at most five.
pub fn measure(cluster: &TestCluster, proxy_name: &str, services: usize, endpoints: usize) {
    let mut figures = FigureLog::of(&format!("cluster-{proxy_name}"), services, endpoints);
    populate_with_tcp(cluster, services, &PLACES[..endpoints]);
    let started = Instant::now();
    let proxy = cluster.proxy(Mode::Nftables);
    wait_for_within(SERVE_TIMEOUT, cluster, services - 1);
    figures.record("served_s", started.elapsed().as_secs_f64());
    // Wait until background work of the start has ended.
    let mut before = cpu_time(proxy.pid());
    within(SERVE_TIMEOUT, "kube-proxy is idle", || {
        std::thread::sleep(PAUSE);
        let now = cpu_time(proxy.pid());
        std::mem::replace(&mut before, now) + Duration::from_millis(50) > now
    });
    figures.record("start_cpu_s", before.as_secs_f64());
    figures.record("rss_mib", status(proxy.pid(), "VmRSS:"));
    figures.record("rss_peak_mib", status(proxy.pid(), "VmHWM:"));

    let before_changes = Syncs::of(&proxy);
    // Removes one endpoint, or replaces the only one.
    let changed = if endpoints == 1 { &PLACES[1..2] } else { &PLACES[..endpoints - 1] };
    for change in 0..CHANGES {
        let service = name(change * 7 % services);
        let before = Syncs::of(&proxy).count;
        cluster.api().replace(&cluster.slice(&service, Family::V4), &slice_at(&service, changed));
        // Poll rarely: serving metrics costs CPU time, too.
        within(SERVE_TIMEOUT, "a sync", || {
            std::thread::sleep(PAUSE);
            Syncs::of(&proxy).count > before
        });
    }
    let after_changes = Syncs::of(&proxy);
    let spent = cpu_time(proxy.pid()) - before;
    figures.record(
        "sync_ms",
        (after_changes.seconds - before_changes.seconds) / (after_changes.count - before_changes.count) * 1e3,
    );
    figures.record("syncs", after_changes.count - before_changes.count);
    // Includes the commands that it runs and two scrapes of its metrics.
    figures.record("change_cpu_ms", spent.as_secs_f64() * 1e3 / CHANGES as f64);
    figures.record("rss_changed_mib", status(proxy.pid(), "VmRSS:"));
}

/// The number and total duration of partial syncs, by the proxy's own metrics.
struct Syncs {
    count: f64,
    seconds: f64,
}

impl Syncs {
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
