//! Killed in the middle of a storm of changes and started again: nobody who uses an untouched service notices.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use model::address::Family;
use model::names::Protocol;
use tempfile::TempDir;
use testkit::network::Network;
use testkit::patience::Deadline;
use testkit::talk::{Answer, Server, ask};

const SERVICES: usize = 300;

/// A running proxy, killed when dropped. Its log is in the folder beside the manifests.
struct Proxy(Child);

impl Proxy {
    fn start(network: &Network, dir: &Path) -> Self {
        let log = fs::OpenOptions::new().create(true).append(true).open(dir.join("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_kube-proxy"));
        command.args([
            "--proxy-mode=nftables",
            "--hostname-override=node-1",
            "-v=2",
            "--iptables-min-sync-period=0",
        ]);
        command
            .args(["--conntrack-max-per-core=0", "--cluster-cidr=10.244.0.0/16", "--manifests"])
            .arg(dir.join("manifests"));
        Self(network.node.spawn(command.stderr(Stdio::from(log))).unwrap())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Says that it is over when dropped, also by a failure: nobody shall wait for the others for ever.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The passes that the log tells of.
fn passes(dir: &Path) -> Vec<String> {
    let log = fs::read_to_string(dir.join("log")).unwrap_or_default();
    let passes = log.lines().filter(|line| line.contains("SyncProxyRules complete") && line.contains("IPv4"));
    passes.map(str::to_owned).collect()
}

fn wait_for_more_passes(dir: &Path, than: usize) {
    let mut deadline = Deadline::after(Duration::from_secs(30));
    while passes(dir).len() <= than {
        assert!(!deadline.has_passed(), "no pass in\n{}", fs::read_to_string(dir.join("log")).unwrap());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn manifest(number: usize, endpoints: usize) -> String {
    let addresses: Vec<_> = (0..endpoints).map(|n| format!("{{addresses: [10.244.1.{}]}}", n + 1)).collect();
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: s{number}}}
spec: {{clusterIP: 10.96.{}.{}, ports: [{{port: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: s{number}-1, labels: {{kubernetes.io/service-name: s{number}}}}}
addressType: IPv4
ports: [{{port: 8080}}]
endpoints: [{}]
",
        number / 250,
        number % 250 + 1,
        addresses.join(", ")
    )
}

#[test]
fn no_connection_to_an_untouched_service_fails() {
    let network = Network::new(1);
    let pod = network.pods.first().unwrap();
    let endpoint = SocketAddr::new(pod.ip(Family::V4), 8080);
    let _server = Server::start(&pod.namespace, endpoint);

    let dir = TempDir::new().unwrap();
    let manifests = dir.path().join("manifests");
    fs::create_dir(&manifests).unwrap();
    let still = manifest(0, 1).replace("10.244.1.1", "10.244.0.5").replace("10.96.0.1", "10.96.9.9");
    fs::write(manifests.join("still.yaml"), still).unwrap();
    for number in 1..SERVICES {
        fs::write(manifests.join(format!("s{number}.yaml")), manifest(number, 3)).unwrap();
    }
    let mut proxy = Some(Proxy::start(&network, dir.path()));
    wait_for_more_passes(dir.path(), 0);

    let over = AtomicBool::new(false);
    let asked = AtomicUsize::new(0);
    let failed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let _over = Over(&over);
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let answer = ask(&network.client, Protocol::Tcp, SocketAddr::from(([10, 96, 9, 9], 80)));
                    asked.fetch_add(1, Ordering::Relaxed);
                    let answered = matches!(answer, Answer::From { endpoint: by, .. } if by == endpoint);
                    failed.fetch_add(usize::from(!answered), Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| {
            for round in 0.. {
                for number in 1..SERVICES {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    let next = manifests.join("next.tmp");
                    fs::write(&next, manifest(number, (round + number) % 12)).unwrap();
                    fs::rename(next, manifests.join(format!("s{number}.yaml"))).unwrap();
                }
            }
        });
        for round in 0..4 {
            let before = passes(dir.path()).len();
            wait_for_more_passes(dir.path(), before + 10 * (round + 1));
            drop(proxy.take()); // SIGKILL, wherever it is
            let before = passes(dir.path()).len();
            proxy = Some(Proxy::start(&network, dir.path()));
            wait_for_more_passes(dir.path(), before);
        }
    });
    assert_eq!(failed.into_inner(), 0, "of {} connections", asked.into_inner());

    // Changes are told in order, those of one moment by name: once the last is in the kernel, so are all before it.
    fs::write(manifests.join("z.yaml"), manifest(2_000, 0)).unwrap();
    let mut deadline = Deadline::after(Duration::from_secs(30));
    while !network.node.run("nft list set ip kube-proxy no-endpoints").contains("10.96.8.1 ") {
        assert!(!deadline.has_passed(), "the last change never came");
    }
    drop(proxy.take());
    let before = passes(dir.path()).len();
    let _proxy = Proxy::start(&network, dir.path());
    wait_for_more_passes(dir.path(), before);
    let last = passes(dir.path()).pop().unwrap();
    assert!(last.contains("added=0 deleted=0"), "the kernel did not hold what the manifests say: {last}");
}
