//! How often the kernel is bothered.

use model::address::Family;
use model::names::Protocol;
use testkit::lab::{Place, Who};
use testkit::talk::Answer;
use tests::cluster::objects::{endpoint, service, slice};
use tests::cluster::proxy::{Mode, Proxy};
use tests::cluster::stage::cluster_ip;
use tests::matrix::{eventually, within};

use crate::{in_each_mode, stage};

in_each_mode!(a_burst_within_the_minimal_pause_is_two_syncs_at_most);

fn syncs(proxy: &Proxy, family: Family) -> Option<u64> {
    let name = format!("kubeproxy_sync_proxy_rules_duration_seconds_count{{ip_family=\"{family}\"}} ");
    let text = proxy.metrics("/metrics")?.body;
    text.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok())
}

/// Line 16 of the checklist. The flag is for both modes, whatever its name says.
fn a_burst_within_the_minimal_pause_is_two_syncs_at_most(mode: Mode) {
    const PAUSE: std::time::Duration = std::time::Duration::from_secs(8);
    let stage = stage();
    let proxy = stage.proxy_with(mode, &["--iptables-min-sync-period=8s"]);
    let first = stage.serve("first", &[Place::PodA]);
    let answers = |service: &serde_json::Value, family| {
        let answer = stage.ask(Who::Pod, Protocol::Tcp, cluster_ip(service, family));
        matches!(answer, Answer::From { .. })
    };
    for family in Family::BOTH {
        within(PAUSE * 3, "the first service", || answers(&first, family));
        eventually("a count", || syncs(&proxy, family).is_some());
    }
    let before = Family::BOTH.map(|family| syncs(&proxy, family).unwrap());
    let names: Vec<String> = (0..100).map(|number| format!("burst-{number}")).collect();
    let started = std::time::Instant::now();
    stage.api().create_all(names.iter().map(|name| (stage.services(), service(name))));
    assert!(started.elapsed() < PAUSE, "the burst took {:?}", started.elapsed());
    let last = stage.api().create(&stage.services(), &service("last"));
    for family in Family::BOTH {
        let endpoints = [endpoint(Place::PodA.ip(family))];
        stage.api().create(&stage.slices(), &slice("last", family, &endpoints));
    }
    for (family, before) in Family::BOTH.into_iter().zip(before) {
        within(PAUSE * 3, "the last service", || answers(&last, family));
        // A sync is counted when it is over, and its rules are there a little earlier.
        eventually("the sync is counted", || syncs(&proxy, family).is_some_and(|count| count > before));
        let after = syncs(&proxy, family).unwrap();
        assert!(after - before <= 2, "{family}: {} syncs", after - before);
    }
}
