//! One proxy takes over from another, in the same mode or another one, and no client notices. What strangers break is
//! mended while clients ask.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod hammer;
mod stage;

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use hammer::{Hammer, Load};
use model::address::Family;
use model::names::Protocol;
use stage::Stage;
use testkit::echo;
use testkit::lab::{Address, NODE_PORT, Place, Who};
use testkit::network::of;
use tests::manifests::{A, B, Port, R, Service, web};
use tests::matrix::eventually;

/// Where the servers are that say everything back.
const ECHO: Port = Port { number: 7, target: 8082, node_port: Some(30007), protocols: &[Protocol::Tcp] };

fn service() -> Service {
    let mut service = web(&[A, B, R]);
    service.ports.push(ECHO);
    service
}

fn stage(mode: &'static str, family: Family) -> Stage {
    let stage = Stage::new(mode, family);
    let [a, b] = [Place::PodA, Place::PodB].map(|place| SocketAddr::new(place.ip(family), ECHO.target));
    echo::serve(&stage.lab.network.pods[0].namespace, a);
    echo::serve(&stage.lab.network.pods[1].namespace, b);
    let remote = SocketAddr::new(Place::Remote(5).ip(family), ECHO.target);
    echo::serve(&stage.lab.network.remote, remote);
    stage.hold(service());
    wait_for_service(&stage);
    stage
}

fn wait_for_service(stage: &Stage) {
    let to = SocketAddr::new(Address::ClusterIp.ip(stage.family), ECHO.number);
    stage.lab.namespace(Who::Pod).enter(|| {
        eventually("a service", || {
            std::net::TcpStream::connect_timeout(&to, Duration::from_millis(200)).is_ok()
        });
    });
}

fn loads(stage: &Stage) -> Vec<Load> {
    let cluster_ip = |port| SocketAddr::new(Address::ClusterIp.ip(stage.family), port);
    let node = |port| SocketAddr::new(Address::NodeIp.ip(stage.family), port);
    let (pod, outside) = (stage.lab.namespace(Who::Pod), stage.lab.namespace(Who::Outside));
    vec![
        Load::new_tcp("tcp, new, pod to cluster IP", pod, cluster_ip(80)),
        Load::new_tcp("tcp, new, outside to node port", outside, node(NODE_PORT)),
        Load::new_udp("udp, new, pod to cluster IP", pod, cluster_ip(80)),
        Load::long_tcp("tcp, long, pod to cluster IP", pod, cluster_ip(ECHO.number)),
        Load::long_tcp("tcp, long, outside to node port", outside, node(30007)),
        Load::long_udp("udp, fixed port, pod to cluster IP", pod, cluster_ip(80)),
        Load::long_udp("udp, fixed port, outside to node port", outside, node(NODE_PORT)),
    ]
}

fn has_table(stage: &Stage) -> bool {
    let tables = stage.lab.network.node.run("nft list tables");
    tables.contains("kube-proxy")
}

fn has_chains(stage: &Stage) -> bool {
    let save = of(stage.family, ["iptables-save", "ip6tables-save"]);
    stage.lab.network.node.run(save).contains("KUBE-SERVICES")
}

fn wait_for_mode(stage: &Stage) {
    eventually(stage.mode, || match stage.mode {
        "nftables" => has_table(stage) && !has_chains(stage),
        _ => has_chains(stage) && !has_table(stage),
    });
}

/// Stops the proxy for a while, and starts one in this mode.
fn change_mode(stage: &mut Stage, hammer: &Hammer, mode: &'static str) {
    stage.stop();
    stage.mode = mode;
    hammer.let_ask();
    stage.start();
    wait_for_mode(stage);
    hammer.let_ask();
}

#[test]
fn nobody_notices_a_restart_an_upgrade_or_a_change_of_modes() {
    for family in Family::BOTH {
        let mut stage = stage("nftables", family);
        let report = Hammer::swing(loads(&stage), |hammer| {
            for mode in ["nftables", "iptables"] {
                hammer.step(format!("change to {mode}"), || change_mode(&mut stage, hammer, mode));
                hammer.step(format!("{mode}: killed and started again"), || {
                    change_mode(&mut stage, hammer, mode);
                });
                hammer.step(format!("{mode}: upgraded to the same version"), || {
                    // A file of its own, as in another image.
                    let dir = tempfile::tempdir().unwrap();
                    let upgraded = dir.path().join("kube-proxy");
                    fs::copy(&stage.program, &upgraded).unwrap();
                    let before = std::mem::replace(&mut stage.program, upgraded);
                    stage.end();
                    stage.start();
                    wait_for_service(&stage);
                    hammer.let_ask();
                    stage.program = before;
                });
            }
            hammer.step("change to nftables".to_owned(), || change_mode(&mut stage, hammer, "nftables"));
        });
        println!("{family}:\n{report}");
        assert!(report.failures().next().is_none(), "{:?}", report.failures().collect::<Vec<_>>());
    }
}

#[test]
fn what_strangers_flush_is_back_at_once_and_they_are_named() {
    for family in Family::BOTH {
        let mut stage = stage("nftables", family);
        let [iptables, flush_all] =
            [["iptables", "ip6tables"], ["nft flush ruleset ip", "nft flush ruleset ip6"]]
                .map(|of_both| of(family, of_both));
        let report = Hammer::swing(loads(&stage), |hammer| {
            // The kernel leaves out what has an owner.
            hammer.step("nftables: nft flush ruleset".to_owned(), || {
                stage.lab.network.node.run(flush_all);
                hammer.let_ask();
            });
            hammer.step("change to iptables".to_owned(), || change_mode(&mut stage, hammer, "iptables"));
            for commands in [
                vec![flush_all.to_owned()],
                vec![format!("{iptables} -t nat -F")],
                vec![
                    format!("{iptables} -F"),
                    format!("{iptables} -t nat -F"),
                    format!("{iptables} -t nat -X"),
                ],
            ] {
                // A stranger that comes twice within a second waits for the second pass.
                std::thread::sleep(Duration::from_millis(1_100));
                hammer.step(format!("iptables: {}", commands.join("; ")), || {
                    let repaired = || stage.log().matches("Repaired rules").count();
                    let before = repaired();
                    for command in &commands {
                        // Where our chains are in use again already, they can't be deleted: so much the better.
                        let _ = stage.lab.network.node.enter(|| {
                            let mut words = command.split(' ');
                            std::process::Command::new(words.next().unwrap()).args(words).output()
                        });
                    }
                    eventually("a repair", || repaired() > before);
                    wait_for_service(&stage);
                    hammer.let_ask();
                });
            }
        });
        println!("{family}:\n{report}");
        let afterwards = report.failures_in_between();
        assert!(afterwards.is_empty(), "{} failed afterwards: {:?}", afterwards.len(), afterwards.first());
        let log = stage.log();
        assert!(log.contains(r#""Repaired rules that another process had changed" ipFamily="#), "{log}");
        for stranger in ["nft", iptables] {
            assert!(log.contains(&format!("by=\"{stranger} (")), "{stranger} is not named in {log}");
        }
        for clean in ["nftables: nft flush ruleset", "change to iptables"] {
            assert_eq!(report.failures_in(clean), 0, "{clean}");
        }
    }
}
