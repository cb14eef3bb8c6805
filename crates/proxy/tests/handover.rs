//! One proxy takes over from another, in the same mode or another one, and no client notices.
#![allow(clippy::unwrap_used, clippy::panic)]

mod stage;

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use model::address::Family;
use model::names::Protocol;
use stage::Stage;
use tests::lab::{Address, NODE_PORT, Who};
use tests::manifests::{A, B, R, web};
use tests::namespace::Namespace;
use tests::talk::{Answer, ask_here};

/// Clients that ask as fast as they can, each question from a port of its own.
#[derive(Default)]
struct Hammer {
    over: AtomicBool,
    asked: AtomicUsize,
    failed: Mutex<Vec<String>>,
}

/// Says that it is over when dropped, also by a failure: nobody shall wait for the others for ever.
struct Over<'a>(&'a Hammer);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

impl Hammer {
    fn swing(&self, namespace: &Namespace, who: Who, protocol: Protocol, to: SocketAddr) {
        namespace.move_in();
        while !self.over.load(Ordering::Relaxed) {
            let answer = ask_here(None, protocol, to, Duration::from_secs(2));
            self.asked.fetch_add(1, Ordering::Relaxed);
            // At the node port the node has a server of its own, which nobody wants to meet.
            if !matches!(answer, Answer::From { endpoint, .. } if endpoint.port() != NODE_PORT) {
                self.failed.lock().unwrap().push(format!("{who:?} to {to}/{protocol}: {answer:?}"));
            }
        }
    }

    fn let_ask(&self) {
        let enough = self.asked.load(Ordering::Relaxed) + 200;
        eventually("questions", || self.asked.load(Ordering::Relaxed) >= enough);
    }
}

fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !so() {
        assert!(Instant::now() < deadline, "not within half a minute: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn has_table(stage: &Stage) -> bool {
    let tables = stage.lab.network.node.run("nft list tables");
    tables.contains("kube-proxy")
}

fn has_chains(stage: &Stage) -> bool {
    let family = tests::network::of(stage.family, ["iptables-save", "ip6tables-save"]);
    stage.lab.network.node.run(family).contains("KUBE-SERVICES")
}

#[test]
fn nobody_notices_a_restart_or_a_change_of_modes() {
    for family in Family::BOTH {
        let mut stage = Stage::new("nftables", family);
        stage.hold(web(&[A, B, R]));
        let cluster_ip = SocketAddr::new(Address::ClusterIp.ip(family), 80);
        let node_port = SocketAddr::new(Address::NodeIp.ip(family), NODE_PORT);
        stage.lab.namespace(Who::Pod).enter(|| {
            eventually("an answer", || {
                let patience = Duration::from_millis(200);
                matches!(ask_here(None, Protocol::Tcp, cluster_ip, patience), Answer::From { .. })
            });
        });

        let hammer = Hammer::default();
        std::thread::scope(|scope| {
            let _over = Over(&hammer);
            for (who, protocol, to) in [
                (Who::Pod, Protocol::Tcp, cluster_ip),
                (Who::Pod, Protocol::Udp, cluster_ip),
                (Who::Outside, Protocol::Tcp, node_port),
            ] {
                let (hammer, namespace) = (&hammer, stage.lab.namespace(who).clone());
                scope.spawn(move || hammer.swing(&namespace, who, protocol, to));
            }
            for mode in ["nftables", "iptables", "iptables", "nftables"] {
                hammer.let_ask();
                stage.stop();
                stage.mode = mode;
                hammer.let_ask();
                stage.start();
                eventually(mode, || match mode {
                    "nftables" => has_table(&stage) && !has_chains(&stage),
                    _ => has_chains(&stage) && !has_table(&stage),
                });
            }
            hammer.let_ask();
        });
        let failed = hammer.failed.into_inner().unwrap();
        println!("{family}: {} questions", hammer.asked.load(Ordering::Relaxed));
        assert!(failed.is_empty(), "{} failed: {:?}", failed.len(), failed.first());
    }
}
