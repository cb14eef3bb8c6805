//! Migration from upstream's kube-proxy in any pair of modes: no connection fails, and no rule of either proxy is left.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use model::address::Family;
use model::names::Protocol;
use testkit::hammer::SetOnDrop;
use testkit::lab::{ClientPlace, Place};
use testkit::probe::{Answer, probe_here};
use testkit::wait::eventually;
use tests::cluster::control_plane::components;
use tests::cluster::proxy::{Mode, Proxy, flags};
use tests::cluster::test_cluster::{TestCluster, cluster_ip};

use crate::{cluster, in_each_mode};

in_each_mode!(no_connection_fails_when_we_take_over_from_upstream);

#[test]
#[ignore = "needs a control plane and a kernel with IPVS: make vm"]
fn ipvs_no_connection_fails_when_we_take_over_from_upstream() {
    for after in [Mode::Ipvs, Mode::Nftables, Mode::Iptables] {
        take_over(Mode::Ipvs, after);
    }
}

/// Between two connections of one client, and how many connections each phase waits for.
const LOAD: (Duration, u64) = (Duration::from_millis(4), 500);
/// An emulated processor with a kernel that has IPVS also runs the API server.
const EMULATED_LOAD: (Duration, u64) = (Duration::from_millis(200), 100);

fn start_upstream(cluster: &TestCluster, mode: Mode) -> Proxy {
    let kubeconfig = cluster.kubeconfig(cluster.control_plane().address(), &cluster.proxy_user());
    let mut flags = flags(mode, &cluster.node, &kubeconfig);
    // Saves a second per sync.
    flags.push("--iptables-min-sync-period=100ms".into());
    Proxy::start(
        &components().join("kube-proxy"),
        &cluster.lab.network.node,
        &flags,
        &cluster.folder().join("upstream.log"),
    )
}

/// All rules of the node; of a node that has been in ipvs mode also its sets, virtual servers and interfaces.
fn rules(cluster: &TestCluster, before: Mode) -> String {
    let node = &cluster.lab.network.node;
    let mut lists = vec!["nft list ruleset", "iptables-legacy-save", "ip6tables-legacy-save"];
    if before == Mode::Ipvs {
        lists.extend(["ipset save", "ipvsadm-save -n", "ip -oneline link"]);
    }
    lists.into_iter().map(|list| node.run(list)).collect::<Vec<_>>().join("\n")
}

/// `KUBE-FIREWALL` belongs to kubelet, too, and stays.
fn is_proxy_rule(line: &str) -> bool {
    let signs = ["KUBE-", "kube-proxy", "kube-ipvs0", "-A -t", "-A -u"];
    !line.contains("KUBE-FIREWALL") && signs.iter().any(|sign| line.contains(sign))
}

fn no_connection_fails_when_we_take_over_from_upstream(mode: Mode) {
    for before in [Mode::Iptables, Mode::Nftables] {
        take_over(before, mode);
    }
}

fn take_over(before: Mode, mode: Mode) {
    let cluster = cluster();
    let node = &cluster.lab.network.node;
    // Rules of another program, which must stay.
    node.run("nft add table inet firewall");
    node.run("nft add chain inet firewall keep");
    node.run("nft add rule inet firewall keep tcp dport 22 accept");
    node.run("iptables -A FORWARD -s 203.0.113.77 -j DROP");
    let service = cluster.create_service("web", &[Place::PodA, Place::PodB]);
    let mut upstream = start_upstream(&cluster, before);
    cluster.wait_until_served(&service, &[Place::PodA, Place::PodB]);

    let (interval, enough) = if before == Mode::Ipvs { EMULATED_LOAD } else { LOAD };
    let (is_over, connections, failures) =
        (AtomicBool::new(false), AtomicU64::new(0), Mutex::new(Vec::new()));
    let connect = |from: ClientPlace, protocol: Protocol, to: SocketAddr| {
        cluster.lab.namespace(from).move_in();
        let source = from.source(Family::of(to.ip()), 0);
        while !is_over.load(Ordering::Relaxed) {
            match probe_here(source, protocol, to, Duration::from_secs(5)) {
                Answer::From { .. } => _ = connections.fetch_add(1, Ordering::Relaxed),
                failure => failures.lock().unwrap().push(format!("{from:?} to {to}/{protocol}: {failure:?}")),
            }
            std::thread::sleep(interval);
        }
    };
    std::thread::scope(|scope| {
        let _over = SetOnDrop(&is_over);
        for family in Family::BOTH {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let to = cluster_ip(&service, family);
                let connect = &connect;
                scope.spawn(move || connect(ClientPlace::Pod, protocol, to));
            }
        }
        let wait_for_connections = || {
            let enough = connections.load(Ordering::Relaxed) + enough;
            eventually("more connections", || {
                connections.load(Ordering::Relaxed) >= enough || !failures.lock().unwrap().is_empty()
            });
        };
        wait_for_connections();
        upstream.terminate();
        upstream.wait();
        wait_for_connections();
        let proxy = cluster.proxy(mode);
        eventually("the proxy is healthy", || {
            proxy.health("/healthz").is_some_and(|response| response.code == 200)
        });
        eventually("the rules of the other mode are gone", || {
            let rules = rules(&cluster, before);
            let (table, chains) = (rules.contains("table ip kube-proxy"), rules.contains("KUBE-SERVICES"));
            (table, chains) == (mode != Mode::Iptables, mode == Mode::Iptables)
        });
        wait_for_connections();
        is_over.store(true, Ordering::Relaxed);
    });
    let failures = failures.into_inner().unwrap();
    println!("{before:?} to {mode:?}: {connections:?} connections, {} failed", failures.len());
    assert!(failures.is_empty(), "{} failed, such as {:?}", failures.len(), failures.first());
    cluster.wait_until_served(&service, &[Place::PodA, Place::PodB]);

    let mut cleanup = cluster.proxy_with_flags(&["--cleanup".into()]);
    assert!(cleanup.wait().success(), "{}", cleanup.log());
    let remaining = rules(&cluster, before);
    let ours: Vec<_> = remaining.lines().filter(|line| is_proxy_rule(line)).collect();
    assert!(ours.is_empty(), "left behind: {ours:#?}");
    for kept in ["tcp dport 22 accept", "203.0.113.77"] {
        assert!(remaining.contains(kept), "{kept:?} is gone from {remaining}");
    }
}
