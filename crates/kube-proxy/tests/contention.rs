//! Services that claim the same addresses: the proxy logs conflicts, but does not flood the log.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::process::Command;
use std::time::Duration;

use netlink::testing::{in_fresh_netns, run};
use tempfile::TempDir;
use testkit::proxy::StandaloneProxy;
use testkit::wait::within;

const KUBE_PROXY: &str = env!("CARGO_BIN_EXE_kube-proxy");

fn manifest(namespace: &str, number: u8) -> String {
    let ips: Vec<String> = (1..=20).map(|n| format!("203.0.113.{n}")).collect();
    format!(
        "apiVersion: v1
kind: Service
metadata: {{namespace: {namespace}, name: web, creationTimestamp: \"2026-11-16T10:00:0{number}Z\"}}
spec: {{clusterIP: 10.96.0.{number}, externalIPs: [{}], ports: [{{port: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{namespace: {namespace}, name: web-1, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
ports: [{{name: \"\", port: 8080}}]
endpoints: [{{addresses: [10.244.1.{number}]}}]
",
        ips.join(", ")
    )
}

fn wait_for(what: &str, condition: impl FnMut() -> bool) {
    within(Duration::from_secs(60), what, condition);
}

#[test]
fn a_service_that_flaps_does_not_flood_the_log() {
    const FLAPS: usize = 100;
    in_fresh_netns(|| {
        let dir = TempDir::new().unwrap();
        let (manifests, log) = (dir.path().join("manifests"), dir.path().join("log"));
        fs::create_dir(&manifests).unwrap();
        fs::write(manifests.join("victim.yaml"), manifest("victim", 1)).unwrap();
        let _proxy = StandaloneProxy::start(Command::new(KUBE_PROXY), &manifests, &[], &log);
        let synced = || run("nft list tables").contains("ip kube-proxy");
        wait_for("the first sync", synced);
        let serves = |ip: &str| run("nft list set ip kube-proxy cluster-ips").contains(ip);
        wait_for("the Service", || serves("10.96.0.1"));
        for _ in 0..FLAPS {
            fs::write(dir.path().join("next"), manifest("attacker", 2)).unwrap();
            fs::rename(dir.path().join("next"), manifests.join("attacker.yaml")).unwrap();
            wait_for("the other Service", || serves("10.96.0.2"));
            fs::remove_file(manifests.join("attacker.yaml")).unwrap();
            wait_for("the other Service is gone", || !serves("10.96.0.2"));
        }
        let log = fs::read_to_string(&log).unwrap();
        let lines: Vec<&str> = log.lines().filter(|line| line.contains("203.0.113.1:80/TCP")).collect();
        assert!((2..=10).contains(&lines.len()), "{} lines: {lines:#?}", lines.len());
        let about = "winner=\"victim/web\" others=\"attacker/web\" frontends=20 first=\"203.0.113.1:80/TCP, 203.0.113.2:80/TCP, 203.0.113.3:80/TCP\"";
        assert!(
            lines[0].contains("\"Several Services claim the same address and port")
                && lines[0].contains(about),
            "{}",
            lines[0]
        );
        assert!(
            lines[1].contains("\"Services no longer claim the same address and port\"")
                && lines[1].contains(about),
            "{}",
            lines[1]
        );
    });
}
