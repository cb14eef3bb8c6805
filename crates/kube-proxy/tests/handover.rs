//! Restarts, upgrades and changes of mode under load: no connection fails. Rules that other programs flush are repaired under
//! load, too.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use model::address::Family;
use model::names::Protocol;
use testkit::echo;
use testkit::hammer::{Hammer, Load};
use testkit::lab::{Address, ClientPlace, NODE_PORT, Place};
use testkit::lab_proxy::LabProxy;
use testkit::manifests::{A, B, PortManifest, R, ServiceManifest, web};
use testkit::network::of;
use testkit::wait::{TimeoutReader, eventually, within};

const KUBE_PROXY: &str = env!("CARGO_BIN_EXE_kube-proxy");

/// An emulated machine is slow.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The port of the echo servers.
const ECHO: PortManifest =
    PortManifest { number: 7, target: 8082, node_port: Some(30007), protocols: &[Protocol::Tcp] };

fn service() -> ServiceManifest {
    let mut service = web(&[A, B, R]);
    service.ports.push(ECHO);
    service
}

fn start(mode: &'static str, family: Family) -> LabProxy {
    let proxy = LabProxy::new(KUBE_PROXY, mode, family);
    let [a, b] = [Place::PodA, Place::PodB].map(|place| SocketAddr::new(place.ip(family), ECHO.target));
    echo::serve(&proxy.lab.network.pods[0].namespace, a);
    echo::serve(&proxy.lab.network.pods[1].namespace, b);
    let remote = SocketAddr::new(Place::Remote(5).ip(family), ECHO.target);
    echo::serve(&proxy.lab.network.remote, remote);
    proxy.apply(service());
    wait_for_service(&proxy);
    proxy
}

fn wait_for_service(proxy: &LabProxy) {
    let to = SocketAddr::new(Address::ClusterIp.ip(proxy.family), ECHO.number);
    proxy.lab.namespace(ClientPlace::Pod).enter(|| {
        eventually("the Service answers", || {
            TcpStream::connect_timeout(&to, Duration::from_millis(200)).is_ok()
        });
    });
}

fn loads(proxy: &LabProxy) -> Vec<Load> {
    let cluster_ip = |port| SocketAddr::new(Address::ClusterIp.ip(proxy.family), port);
    let node = |port| SocketAddr::new(Address::NodeIp.ip(proxy.family), port);
    let (pod, outside) = (proxy.lab.namespace(ClientPlace::Pod), proxy.lab.namespace(ClientPlace::Outside));
    vec![
        Load::new_tcp("tcp, new, pod to cluster IP", pod, cluster_ip(80)),
        Load::new_tcp("tcp, new, node to cluster IP", &proxy.lab.network.node, cluster_ip(80)),
        Load::new_tcp("tcp, new, outside to node port", outside, node(NODE_PORT)),
        Load::new_udp("udp, new, pod to cluster IP", pod, cluster_ip(80)),
        Load::long_tcp("tcp, long, pod to cluster IP", pod, cluster_ip(ECHO.number)),
        Load::long_tcp("tcp, long, outside to node port", outside, node(30007)),
        Load::long_udp("udp, fixed port, pod to cluster IP", pod, cluster_ip(80)),
        Load::long_udp("udp, fixed port, outside to node port", outside, node(NODE_PORT)),
    ]
}

/// Whether there is the table of this mode, `nftables` or `ipvs`.
fn has_table(proxy: &LabProxy, mode: &str) -> bool {
    let chains = proxy.lab.network.node.run(of(proxy.family, ["nft list chains ip", "nft list chains ip6"]));
    chains.contains("kube-proxy") && chains.contains("host-ports-check") == (mode == "ipvs")
}

fn has_chains(proxy: &LabProxy) -> bool {
    let save = of(proxy.family, ["iptables-save", "ip6tables-save"]);
    proxy.lab.network.node.run(save).contains("KUBE-SERVICES")
}

fn wait_for_mode(proxy: &LabProxy) {
    let is_mode = |mode| match mode {
        "nftables" | "ipvs" => has_table(proxy, mode) && !has_chains(proxy),
        _ => has_chains(proxy) && !has_table(proxy, "nftables") && !has_table(proxy, "ipvs"),
    };
    within(TIMEOUT, proxy.mode, || is_mode(proxy.mode));
}

/// Kills the proxy, and restarts it in `mode` after a while.
fn change_mode(proxy: &mut LabProxy, hammer: &Hammer, mode: &'static str) {
    proxy.kill();
    proxy.mode = mode;
    hammer.wait_for_requests();
    proxy.start();
    wait_for_mode(proxy);
    hammer.wait_for_requests();
}

/// Terminates the proxy, and starts another file, as in a new image.
fn upgrade(proxy: &mut LabProxy, hammer: &Hammer) {
    let dir = tempfile::tempdir().unwrap();
    let upgraded = dir.path().join("kube-proxy");
    fs::copy(&proxy.program, &upgraded).unwrap();
    let before = std::mem::replace(&mut proxy.program, upgraded);
    proxy.terminate();
    proxy.start();
    wait_for_service(proxy);
    hammer.wait_for_requests();
    proxy.program = before;
}

#[test]
fn no_connection_fails_during_restarts_upgrades_and_changes_of_mode() {
    for family in Family::BOTH {
        let mut proxy = start("nftables", family);
        let report = Hammer::run(loads(&proxy), |hammer| {
            for mode in ["nftables", "iptables"] {
                hammer.step(format!("change to {mode}"), || change_mode(&mut proxy, hammer, mode));
                hammer.step(format!("{mode}: killed and restarted"), || {
                    change_mode(&mut proxy, hammer, mode);
                });
                hammer.step(format!("{mode}: upgraded to the same version"), || upgrade(&mut proxy, hammer));
            }
            hammer.step("change to nftables".to_owned(), || change_mode(&mut proxy, hammer, "nftables"));
        });
        println!("{family}:\n{report}");
        assert!(report.failures().next().is_none(), "{:?}", report.failures().collect::<Vec<_>>());
    }
}

#[test]
#[ignore = "needs a kernel with IPVS"]
fn ipvs_no_connection_fails_during_restarts_upgrades_and_changes_of_mode() {
    for family in Family::BOTH {
        let mut proxy = start("nftables", family);
        let mut held = HeldConnections::default();
        held.open(&proxy);
        let report = Hammer::run(loads(&proxy), |hammer| {
            for mode in ["ipvs", "iptables", "ipvs", "nftables"] {
                hammer.step(format!("change to {mode}"), || change_mode(&mut proxy, hammer, mode));
                held.open(&proxy);
                held.check();
                if mode == "ipvs" {
                    hammer.step("ipvs: killed and restarted".to_owned(), || {
                        change_mode(&mut proxy, hammer, mode);
                    });
                    hammer.step("ipvs: upgraded to the same version".to_owned(), || {
                        upgrade(&mut proxy, hammer);
                    });
                }
            }
            held.check();
        });
        println!("{family}:\n{report}");
        assert!(report.failures().next().is_none(), "{:?}", report.failures().collect::<Vec<_>>());
    }
}

/// Connections that clients opened in different modes, and keep.
#[derive(Default)]
struct HeldConnections(Vec<(String, TcpStream)>);

impl HeldConnections {
    fn open(&mut self, proxy: &LabProxy) {
        let to = [
            (ClientPlace::Pod, Address::ClusterIp, ECHO.number),
            (ClientPlace::Node, Address::ClusterIp, ECHO.number),
            (ClientPlace::Outside, Address::NodeIp, ECHO.node_port.unwrap()),
        ];
        for (from, address, port) in to {
            let to = SocketAddr::new(address.ip(proxy.family), port);
            let stream =
                proxy.lab.namespace(from).enter(|| TcpStream::connect_timeout(&to, TIMEOUT)).unwrap();
            self.0.push((format!("{from:?} to {to}, opened in {} mode", proxy.mode), stream));
        }
    }

    fn check(&mut self) {
        for (name, stream) in &mut self.0 {
            let answer = stream
                .write_all(b"8 bytes.")
                .and_then(|()| TimeoutReader(&*stream, TIMEOUT).read_exact(&mut [0; 8]));
            answer.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}

#[test]
fn rules_that_another_process_flushes_are_repaired_and_the_process_is_logged() {
    for family in Family::BOTH {
        let mut proxy = start("nftables", family);
        let [iptables, flush_all] =
            [["iptables", "ip6tables"], ["nft flush ruleset ip", "nft flush ruleset ip6"]]
                .map(|pair| of(family, pair));
        let report = Hammer::run(loads(&proxy), |hammer| {
            // The kernel does not flush tables that have an owner.
            hammer.step("nftables: nft flush ruleset".to_owned(), || {
                proxy.lab.network.node.run(flush_all);
                hammer.wait_for_requests();
            });
            hammer.step("change to iptables".to_owned(), || change_mode(&mut proxy, hammer, "iptables"));
            for commands in [
                vec![flush_all.to_owned()],
                vec![format!("{iptables} -t nat -F")],
                vec![
                    format!("{iptables} -F"),
                    format!("{iptables} -t nat -F"),
                    format!("{iptables} -t nat -X"),
                ],
            ] {
                // A second foreign write within a second would wait for the rate limit of repairs.
                std::thread::sleep(Duration::from_millis(1_100));
                hammer.step(format!("iptables: {}", commands.join("; ")), || {
                    let repaired = || proxy.log().matches("Repaired rules").count();
                    let before = repaired();
                    for command in &commands {
                        // Deleting chains fails if the proxy has repaired the rules already.
                        let _ = proxy.lab.network.node.enter(|| {
                            let mut words = command.split(' ');
                            std::process::Command::new(words.next().unwrap()).args(words).output()
                        });
                    }
                    eventually("the proxy repairs the rules", || repaired() > before);
                    wait_for_service(&proxy);
                    hammer.wait_for_requests();
                });
            }
        });
        println!("{family}:\n{report}");
        let between = report.failures_between_steps();
        assert!(between.is_empty(), "{} failures between steps: {:?}", between.len(), between.first());
        let log = proxy.log();
        assert!(log.contains(r#""Repaired rules that another process had changed" ipFamily="#), "{log}");
        for writer in ["nft", iptables] {
            assert!(log.contains(&format!("by=\"{writer} (")), "the log does not name {writer}: {log}");
        }
        for harmless in ["nftables: nft flush ruleset", "change to iptables"] {
            assert_eq!(report.failures_in(harmless), 0, "{harmless}");
        }
    }
}
