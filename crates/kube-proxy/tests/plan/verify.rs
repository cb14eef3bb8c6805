//! `verify`, by objects and by asking the running proxy.

use std::process::Command;
use std::time::Duration;

use netlink::testing::in_fresh_netns;
use testkit::wait::Deadline;

use crate::cluster::{Cluster, MODES, outcome, web};

/// Runs the command of a foreign writer. The table of a proxy that was killed belongs to it for a moment longer.
fn damage(command: &str) {
    let mut deadline = Deadline::after(Duration::from_secs(10));
    let mut words = command.split(' ');
    let program = words.next().unwrap();
    let arguments: Vec<&str> = words.collect();
    while !Command::new(program).args(&arguments).status().unwrap().success() {
        assert!(!deadline.has_passed(), "{command}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn verify_names_the_damage_and_only_that() {
    for (mode, command, want, for_users) in [
        (
            "nftables",
            "nft delete element ip kube-proxy cluster-ips { 10.96.0.10 }",
            "  missing element cluster-ips { 10.96.0.10 } (default/web:http)\n",
            &[][..],
        ),
        (
            "nftables",
            "nft delete element ip kube-proxy endpoints { 0x2 . 0 }",
            "  missing element endpoints { 0x00000002 . 0 : 10.244.0.9 . 8080 } (default/dns:http)\n",
            &["ipv4: effects on services:", "  default/dns:http: missing endpoint 10.244.0.9:8080"],
        ),
        (
            "iptables",
            "iptables -t nat -D KUBE-SERVICES 1",
            "  missing -t nat -A KUBE-SERVICES -d 10.96.0.53/32 -p tcp -m comment --comment \"default/dns:http cluster IP\" -m tcp --dport 53 -j KUBE-SVC-",
            &["ipv4: effects on services:", "  default/dns:http: missing 10.96.0.53:53/TCP"],
        ),
    ] {
        in_fresh_netns(move || {
            let cluster = Cluster::new(mode);
            cluster.sync();
            damage(command);
            let (code, text) = cluster.tool("verify", &[]);
            assert_eq!(code, 2, "{text}");
            let lines: Vec<&str> = text.lines().collect();
            assert!(lines[0].starts_with("ipv4: 1 of "), "{text}");
            assert!(format!("{}\n", lines[1]).starts_with(want), "{text}");
            assert_eq!(lines[2..lines.len() - 1], *for_users, "{text}");
            assert!(lines[lines.len() - 1].starts_with("ipv6: kernel and plan agree ("), "{text}");
            let (code, text) = cluster.tool("verify", &["-o=json"]);
            assert_eq!(code, 2);
            let found: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(found[0]["differences"][0]["kind"], "missing");
        });
    }
}

/// The running proxy is asked, wherever it takes its objects from.
fn verify_running() -> (i32, String) {
    outcome(Command::new(env!("CARGO_BIN_EXE_kube-proxy")).arg("verify").output().unwrap())
}

#[test]
fn the_running_proxy_answers() {
    for mode in MODES {
        in_fresh_netns(move || {
            let (code, text) = verify_running();
            assert_eq!(code, 1, "{text}");
            assert!(text.contains("Error: querying the proxy at 127.0.0.1:10249 (is it running"), "{text}");
            let cluster = Cluster::new(mode);
            let _proxy = cluster.start();
            cluster.wait_until_verified();
            let (code, text) = verify_running();
            assert_eq!(code, 0, "{text}");
            let lines: Vec<&str> = text.lines().collect();
            assert!(lines[0].starts_with("ipv4: kernel and plan agree ("), "{text}");
            assert!(lines[1].starts_with("ipv6: kernel and plan agree ("), "{text}");
            // It applies edits: the desired state is compared as it is now.
            cluster.write("dns", &web("10.96.0.53", "53", "30053", &["10.244.0.8"]).replace("web", "dns"));
            cluster.wait_until_verified();
            assert_eq!(verify_running().0, 0);
        });
    }
}
