//! The rate of syncs.

use model::address::Family;
use model::names::Protocol;
use testkit::lab::{ClientPlace, Place};
use testkit::probe::Answer;
use testkit::wait::{eventually, within};
use tests::cluster::objects::{endpoint, service, slice};
use tests::cluster::proxy::{Mode, Proxy};
use tests::cluster::test_cluster::cluster_ip;

use crate::{cluster, in_each_mode};

in_each_mode!(a_burst_within_the_minimum_sync_period_causes_at_most_two_syncs);

fn syncs(proxy: &Proxy, family: Family) -> Option<u64> {
    let name = format!("kubeproxy_sync_proxy_rules_duration_seconds_count{{ip_family=\"{family}\"}} ");
    let text = proxy.metrics("/metrics")?.body;
    text.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok())
}

/// Line 16 of the checklist. Despite its name the flag applies to both modes.
fn a_burst_within_the_minimum_sync_period_causes_at_most_two_syncs(mode: Mode) {
    const MIN_SYNC_PERIOD: std::time::Duration = std::time::Duration::from_secs(8);
    let cluster = cluster();
    let proxy = cluster.proxy_with(mode, &["--iptables-min-sync-period=8s"]);
    let first = cluster.create_service("first", &[Place::PodA]);
    let is_served = |service: &serde_json::Value, family| {
        let answer = cluster.probe(ClientPlace::Pod, Protocol::Tcp, cluster_ip(service, family));
        matches!(answer, Answer::From { .. })
    };
    for family in Family::BOTH {
        within(MIN_SYNC_PERIOD * 3, "the first service", || is_served(&first, family));
        eventually("the first sync is counted", || syncs(&proxy, family).is_some());
    }
    let before = Family::BOTH.map(|family| syncs(&proxy, family).unwrap());
    let names: Vec<String> = (0..100).map(|number| format!("burst-{number}")).collect();
    let started = std::time::Instant::now();
    cluster.api().create_all(names.iter().map(|name| (cluster.services(), service(name))));
    let last = cluster.api().create(&cluster.services(), &service("last"));
    for family in Family::BOTH {
        let endpoints = [endpoint(Place::PodA.ip(family))];
        cluster.api().create(&cluster.slices(), &slice("last", family, &endpoints));
    }
    for (family, before) in Family::BOTH.into_iter().zip(before) {
        within(MIN_SYNC_PERIOD * 3, "the last service", || is_served(&last, family));
        // A sync is counted at its end, shortly after its rules are in the kernel.
        eventually("the sync is counted", || syncs(&proxy, family).is_some_and(|count| count > before));
        let after = syncs(&proxy, family).unwrap();
        // A machine that freezes may stretch the burst over several periods, each of which allows one more sync.
        let periods = started.elapsed().as_secs() / MIN_SYNC_PERIOD.as_secs();
        assert!(after - before <= 2 + periods, "{family}: {} syncs in {periods} periods", after - before);
    }
}
