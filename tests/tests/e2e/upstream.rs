//! From the reference to us, in any pair of modes: nobody who connects notices, and nothing of either stays behind.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use model::address::Family;
use model::names::Protocol;
use testkit::lab::{Place, Who};
use testkit::talk::{Answer, ask_here};
use tests::cluster::control_plane::components;
use tests::cluster::proxy::{Mode, Proxy, flags};
use tests::cluster::stage::{Stage, cluster_ip};
use tests::matrix::eventually;

use crate::{in_each_mode, stage};

in_each_mode!(nobody_notices_when_we_take_over_from_the_reference);

/// Between two connections of one client.
const INTERVAL: Duration = Duration::from_millis(4);

fn reference(stage: &Stage, mode: Mode) -> Proxy {
    let kubeconfig = stage.kubeconfig(stage.plane().address(), &stage.certified_proxy());
    let mut flags = flags(mode, &stage.node, &kubeconfig);
    // So that a test need not wait a second for each of its passes.
    flags.push("--iptables-min-sync-period=100ms".into());
    Proxy::start(
        &components().join("kube-proxy"),
        &stage.lab.network.node,
        &flags,
        &stage.folder().join("reference.log"),
    )
}

/// Everything in the kernel that is not ours, nor the reference's.
fn rules(stage: &Stage) -> String {
    let node = &stage.lab.network.node;
    let listed =
        ["nft list ruleset", "iptables-legacy-save", "ip6tables-legacy-save"].map(|list| node.run(list));
    listed.join("\n")
}

/// `KUBE-FIREWALL` is the kubelet's, too, and stays.
fn is_of_a_proxy(line: &str) -> bool {
    !line.contains("KUBE-FIREWALL") && ["KUBE-", "kube-proxy"].iter().any(|sign| line.contains(sign))
}

fn nobody_notices_when_we_take_over_from_the_reference(mode: Mode) {
    for before in [Mode::Iptables, Mode::Nftables] {
        let stage = stage();
        let node = &stage.lab.network.node;
        // A stranger, to be left alone.
        node.run("nft add table inet firewall");
        node.run("nft add chain inet firewall keep");
        node.run("nft add rule inet firewall keep tcp dport 22 accept");
        node.run("iptables -A FORWARD -s 203.0.113.77 -j DROP");
        let service = stage.serve("web", &[Place::PodA, Place::PodB]);
        let mut theirs = reference(&stage, before);
        stage.serves(&service, &[Place::PodA, Place::PodB]);

        let (over, asked, failed) = (AtomicBool::new(false), AtomicU64::new(0), Mutex::new(Vec::new()));
        let ask = |who: Who, protocol: Protocol, to: SocketAddr| {
            stage.lab.namespace(who).move_in();
            let source = who.source(Family::of(to.ip()), 0);
            while !over.load(Ordering::Relaxed) {
                match ask_here(source, protocol, to, Duration::from_secs(5)) {
                    Answer::From { .. } => _ = asked.fetch_add(1, Ordering::Relaxed),
                    failure => {
                        failed.lock().unwrap().push(format!("{who:?} to {to}/{protocol}: {failure:?}"))
                    }
                }
                std::thread::sleep(INTERVAL);
            }
        };
        std::thread::scope(|scope| {
            let _over = Over(&over);
            for family in Family::BOTH {
                for protocol in [Protocol::Tcp, Protocol::Udp] {
                    let to = cluster_ip(&service, family);
                    let ask = &ask;
                    scope.spawn(move || ask(Who::Pod, protocol, to));
                }
            }
            let let_ask = || {
                let enough = asked.load(Ordering::Relaxed) + 500;
                eventually("connections", || {
                    asked.load(Ordering::Relaxed) >= enough || !failed.lock().unwrap().is_empty()
                });
            };
            let_ask();
            theirs.terminate();
            theirs.wait();
            let_ask();
            let ours = stage.proxy(mode);
            eventually("health", || ours.health("/healthz").is_some_and(|answer| answer.code == 200));
            eventually("nothing of the other mode", || {
                let rules = rules(&stage);
                let (table, chains) =
                    (rules.contains("table ip kube-proxy"), rules.contains("KUBE-SERVICES"));
                (table, chains) == (mode == Mode::Nftables, mode == Mode::Iptables)
            });
            let_ask();
            over.store(true, Ordering::Relaxed);
        });
        let failed = failed.into_inner().unwrap();
        println!("{before:?} to {mode:?}: {asked:?} asked, {} failed", failed.len());
        assert!(failed.is_empty(), "{} failed, such as {:?}", failed.len(), failed.first());
        stage.serves(&service, &[Place::PodA, Place::PodB]);

        let mut cleaner = stage.proxy_told(&["--cleanup".into()]);
        assert!(cleaner.wait().success(), "{}", cleaner.log());
        let left = rules(&stage);
        let ours: Vec<_> = left.lines().filter(|line| is_of_a_proxy(line)).collect();
        assert!(ours.is_empty(), "left behind: {ours:#?}");
        for kept in ["tcp dport 22 accept", "203.0.113.77"] {
            assert!(left.contains(kept), "{kept:?} is gone from {left}");
        }
    }
}

/// Also when the test fails: nobody shall wait for the clients for ever.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
