//! kube-proxy is killed and restarted in the middle of many changes; clients of a Service that does not change are unaffected.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use model::address::Family;
use model::names::Protocol;
use tempfile::TempDir;
use testkit::hammer::SetOnDrop;
use testkit::network::Network;
use testkit::probe::{Answer, Server, probe};
use testkit::proxy::{StandaloneProxy, service_with_endpoints};
use testkit::wait::eventually;

const SERVICES: usize = 300;

const KUBE_PROXY: &str = env!("CARGO_BIN_EXE_kube-proxy");

/// Starts kube-proxy on the node. The log is beside the folder of manifests.
fn start(network: &Network, dir: &Path) -> StandaloneProxy {
    let (manifests, log) = (dir.join("manifests"), dir.join("log"));
    let flags = ["--cluster-cidr=10.244.0.0/16"];
    network.node.enter(|| StandaloneProxy::start(Command::new(KUBE_PROXY), &manifests, &flags, &log))
}

/// The log lines of completed syncs.
fn syncs(dir: &Path) -> Vec<String> {
    let log = fs::read_to_string(dir.join("log")).unwrap_or_default();
    let lines = log.lines().filter(|line| line.contains("SyncProxyRules complete") && line.contains("IPv4"));
    lines.map(str::to_owned).collect()
}

fn wait_for_more_syncs(dir: &Path, than: usize) {
    eventually("a sync", || syncs(dir).len() > than);
}

fn manifest(number: usize, endpoints: usize) -> String {
    let endpoints: Vec<_> = (0..endpoints).map(|n| format!("10.244.1.{}", n + 1)).collect();
    let ip = format!("10.96.{}.{}", number / 250, number % 250 + 1);
    service_with_endpoints(&format!("s{number}"), &ip, &endpoints)
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
    let unchanged = service_with_endpoints("s0", "10.96.9.9", &[endpoint.ip()]);
    fs::write(manifests.join("unchanged.yaml"), unchanged).unwrap();
    for number in 1..SERVICES {
        fs::write(manifests.join(format!("s{number}.yaml")), manifest(number, 3)).unwrap();
    }
    let mut proxy = Some(start(&network, dir.path()));
    wait_for_more_syncs(dir.path(), 0);

    let is_over = AtomicBool::new(false);
    let connections = AtomicUsize::new(0);
    let failed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let _over = SetOnDrop(&is_over);
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let answer =
                        probe(&network.client, Protocol::Tcp, SocketAddr::from(([10, 96, 9, 9], 80)));
                    connections.fetch_add(1, Ordering::Relaxed);
                    let answered = matches!(answer, Answer::From { endpoint: by, .. } if by == endpoint);
                    failed.fetch_add(usize::from(!answered), Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| {
            for round in 0.. {
                for number in 1..SERVICES {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    let next = manifests.join("next.tmp");
                    fs::write(&next, manifest(number, (round + number) % 12)).unwrap();
                    fs::rename(next, manifests.join(format!("s{number}.yaml"))).unwrap();
                }
            }
        });
        for round in 0..4 {
            let before = syncs(dir.path()).len();
            wait_for_more_syncs(dir.path(), before + 10 * (round + 1));
            drop(proxy.take()); // SIGKILL, whatever it is doing
            let before = syncs(dir.path()).len();
            proxy = Some(start(&network, dir.path()));
            wait_for_more_syncs(dir.path(), before);
        }
    });
    assert_eq!(failed.into_inner(), 0, "of {} connections", connections.into_inner());

    // The proxy applies changes in order, simultaneous ones by name: once the last is in the kernel, so are all others.
    fs::write(manifests.join("z.yaml"), manifest(2_000, 0)).unwrap();
    eventually("the kernel has the last change", || {
        network.node.run("nft list set ip kube-proxy no-endpoints").contains("10.96.8.1 ")
    });
    drop(proxy.take());
    let before = syncs(dir.path()).len();
    let _proxy = start(&network, dir.path());
    wait_for_more_syncs(dir.path(), before);
    let last = syncs(dir.path()).pop().unwrap();
    assert!(last.contains("added=0 deleted=0"), "the kernel did not hold what the manifests say: {last}");
}
