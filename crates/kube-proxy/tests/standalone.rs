//! The proxy as a process that serves a folder of manifests, alone in a network namespace.
#![allow(clippy::unwrap_used, clippy::panic)]

mod process;

use std::fs;
use std::process::Command;

use netlink::testing::{in_fresh_netns, run};
use process::{Proxy, service, slice};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

fn endpoints() -> String {
    run("nft list map ip kube-proxy endpoints")
}

#[test]
fn bad_manifests_are_reported_by_name_and_the_rest_is_served() {
    in_fresh_netns(|| {
        let dir = TempDir::new().unwrap();
        let write = |name: &str, content: &[u8]| fs::write(dir.path().join(name), content).unwrap();
        write(
            "good.yaml",
            format!("{}---\n{}", service("good", "10.96.0.10"), slice("good", "10.244.0.5")).as_bytes(),
        );
        write("a-negative-port.yaml", service("negative", "10.96.0.11").replace("80", "-80").as_bytes());
        write(
            "b-loopback.yaml",
            format!("{}---\n{}", service("loop", "10.96.0.12"), slice("loop", "127.0.0.5")).as_bytes(),
        );
        write("c-unknown-kind.yaml", b"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n");
        write("d-empty.yaml", b"");
        write("e-large.yaml", &vec![b'x'; 10 << 20]);
        write("f-not-utf8.yaml", b"kind: Service\nmetadata: {name: \xff\xfe}\n");
        write("g-syntax.yaml", b"kind: Service\nspec: {ports: [80\n");
        write("h-type.yaml", service("typed", "10.96.0.13").replace("80", "eighty").as_bytes());
        run("ip link add name v0 type veth peer name v1");
        run("ip address add 192.0.2.7/24 dev v0");
        run("ip link add name nodelocaldns type bridge");
        run("ip address add 10.96.0.10/32 dev nodelocaldns");
        write("i-own.yaml", service("own", "192.0.2.7").as_bytes());
        write("j-loopback.yaml", service("self", "127.0.0.1").as_bytes());
        write(
            "k-name.yaml",
            service("named", "10.96.0.15").replace("80", "80\n    name: \"a\\nb\"").as_bytes(),
        );
        let mut proxy = Proxy::start(dir.path(), &[]);
        for (file, message) in [
            (
                "a-negative-port.yaml",
                "line 1: Service \\\"negative\\\": spec.ports[0].port: Invalid value: -80: must be between 1 and 65535, inclusive",
            ),
            (
                "b-loopback.yaml",
                "line 9: EndpointSlice \\\"loop-1\\\": endpoints[0].addresses[0]: Invalid value: \\\"127.0.0.5\\\": may not be in the loopback range",
            ),
            ("c-unknown-kind.yaml", "line 1: Deployment (apps/v1) \\\"web\\\" is of no use to a proxy"),
            ("d-empty.yaml", "Manifest holds no objects"),
            ("e-large.yaml", "Object 'Kind' is missing"),
            ("f-not-utf8.yaml", "line 2: not valid UTF-8"),
            ("g-syntax.yaml", "line "),
            ("h-type.yaml", "line 7 column 11: Service \\\"typed\\\": expected a whole number"),
            (
                "i-own.yaml",
                "spec.clusterIPs[0]: Invalid value: \\\"192.0.2.7\\\": takes an address of this node",
            ),
            (
                "j-loopback.yaml",
                "spec.clusterIPs[0]: Invalid value: \\\"127.0.0.1\\\": may not be in the loopback",
            ),
            (
                "k-name.yaml",
                "spec.ports[0].name: Invalid value: \\\"a\\\\nb\\\": a lowercase RFC 1123 label must",
            ),
        ] {
            proxy.wait_for(&[file, message]);
        }
        proxy.wait_for_pass("IPv4");
        let listed = endpoints();
        assert!(
            listed.contains("10.96.0.10 . tcp . 80 . 0") && listed.contains("10.244.0.5 . 8080"),
            "{listed}"
        );
        assert!(
            run("nft list set ip kube-proxy no-endpoints").contains("10.96.0.12 . tcp . 80"),
            "its Service is good"
        );

        write("g-syntax.yaml", service("mended", "10.96.0.14").as_bytes());
        proxy.wait_for_pass("IPv4");
        assert!(run("nft list set ip kube-proxy no-endpoints").contains("10.96.0.14 . tcp . 80"));
        assert!(proxy.child.try_wait().unwrap().is_none(), "still running");
    });
}

#[test]
fn changes_are_followed_and_a_file_that_breaks_changes_nothing() {
    in_fresh_netns(|| {
        let dir = TempDir::new().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write("web.yaml", &service("web", "10.96.0.10"));
        write("slice.yaml", &slice("web", "10.244.0.5"));
        let mut proxy = Proxy::start(dir.path(), &[]);
        proxy.wait_for_pass("IPv4");
        write("slice.yaml", &slice("web", "10.244.0.6"));
        let pass = proxy.wait_for_pass("IPv4");
        assert!(pass.contains("added=1 deleted=1") && pass.contains("fullSync=false"), "{pass}");
        assert!(endpoints().contains("10.244.0.6 . 8080"));

        write("slice.yaml", "kind: {\n");
        proxy.wait_for(&["Failed to read manifest", "slice.yaml", "keptObjects=1"]);
        assert!(endpoints().contains("10.244.0.6 . 8080"));

        fs::remove_file(dir.path().join("slice.yaml")).unwrap();
        proxy.wait_for_pass("IPv4");
        assert!(!endpoints().contains("10.244.0.6"));
    });
}

#[test]
fn a_restart_finds_everything_in_place() {
    in_fresh_netns(|| {
        let dir = TempDir::new().unwrap();
        fs::write(
            dir.path().join("web.yaml"),
            format!("{}---\n{}", service("web", "10.96.0.10"), slice("web", "10.244.0.5")),
        )
        .unwrap();
        let mut first = Proxy::start(dir.path(), &[]);
        first.wait_for_pass("IPv4");
        first.wait_for_pass("IPv6");
        drop(first); // SIGKILL
        assert!(endpoints().contains("10.244.0.5 . 8080"), "rules stay when the proxy goes");
        let mut second = Proxy::start(dir.path(), &[]);
        let pass = second.wait_for_pass("IPv4");
        assert!(pass.contains("added=0 deleted=0"), "{pass}");
    });
}

#[test]
fn strangers_cannot_remove_the_table() {
    in_fresh_netns(|| {
        let dir = TempDir::new().unwrap();
        fs::write(
            dir.path().join("web.yaml"),
            format!("{}---\n{}", service("web", "10.96.0.10"), slice("web", "10.244.0.5")),
        )
        .unwrap();
        let mut proxy = Proxy::start(dir.path(), &[]);
        proxy.wait_for_pass("IPv4");
        run("nft flush ruleset");
        assert!(endpoints().contains("10.244.0.5 . 8080"));
        let deleted = Command::new("nft").args(["delete", "table", "ip", "kube-proxy"]).output().unwrap();
        assert!(!deleted.status.success());
    });
}

#[test]
fn cleanup_removes_what_was_left() {
    in_fresh_netns(|| {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join("web.yaml"), service("web", "10.96.0.10")).unwrap();
        let mut proxy = Proxy::start(dir.path(), &[]);
        proxy.wait_for_pass("IPv4");
        proxy.wait_for_pass("IPv6");
        drop(proxy);
        for _ in 0..2 {
            let cleaned = Command::new(env!("CARGO_BIN_EXE_kube-proxy")).arg("--cleanup").status().unwrap();
            assert!(cleaned.success(), "also when there is nothing to remove");
            assert_eq!(run("nft list ruleset"), "");
        }
    });
}

#[test]
fn the_node_is_known_by_its_manifest_or_by_the_default_route() {
    in_fresh_netns(|| {
        run("ip link set lo up");
        run("ip link add name v0 type veth peer name v1");
        run("ip link set v0 up");
        run("ip link set v1 up");
        run("ip address add 192.0.2.7/24 dev v0");
        run("ip route add default via 192.0.2.1");
        let dir = TempDir::new().unwrap();
        let node_port = service("web", "10.96.0.10")
            .replace("spec:", "spec:\n  type: NodePort")
            .replace("- port: 80", "- {port: 80, nodePort: 30080}");
        fs::write(dir.path().join("web.yaml"), format!("{node_port}---\n{}", slice("web", "10.244.0.5")))
            .unwrap();
        let mut proxy = Proxy::start(dir.path(), &[]);
        let ips = proxy.wait_for(&["Successfully retrieved NodeIPs"]);
        assert!(ips.contains("192.0.2.7"), "{ips}");
        proxy.wait_for_pass("IPv4");
        assert!(run("nft list set ip kube-proxy nodeport-ips").contains("192.0.2.7"));
        drop(proxy);

        let node = "{apiVersion: v1, kind: Node, metadata: {name: node-1}, status: {addresses: [{type: InternalIP, address: 192.0.2.8}]}}";
        fs::write(dir.path().join("node.yaml"), node).unwrap();
        let mut proxy = Proxy::start(dir.path(), &[]);
        let ips = proxy.wait_for(&["Successfully retrieved NodeIPs"]);
        assert!(ips.contains("192.0.2.8") && !ips.contains("192.0.2.7"), "{ips}");
        proxy.wait_for_pass("IPv4");
        run("ip address add 192.0.2.8/24 dev v0");
        proxy.wait_for_pass("IPv4");
        assert!(
            run("nft list set ip kube-proxy nodeport-ips").contains("192.0.2.8"),
            "an address that comes later"
        );
    });
}

#[test]
fn connection_tracking_is_set_up_and_what_cannot_be_is_fatal() {
    in_fresh_netns(|| {
        let dir = TempDir::new().unwrap();
        let timeout =
            || run("cat /proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established").trim().to_owned();
        let mut proxy = Proxy::start(dir.path(), &["--conntrack-tcp-timeout-established=1h"]);
        proxy.wait_for(&["\"Set sysctl\"", "nf_conntrack_tcp_timeout_established", "value=3600"]);
        proxy.wait_for_pass("IPv4");
        assert_eq!(timeout(), "3600");
        drop(proxy);
        let mut again = Proxy::start(dir.path(), &["--conntrack-tcp-timeout-established=1h"]);
        again.wait_for_pass("IPv4");
        let set_again = again.unread.iter().any(|line| line.contains("timeout_established\" value"));
        assert!(!set_again, "a value that is right is left alone");
        drop(again);
        // Only the initial namespace may say how many connections there can be.
        let mut refused = Proxy::start(dir.path(), &["--conntrack-max-per-core=12345"]);
        refused.wait_for(&["Error running ProxyServer", "could not set conntrack parameters from kube-proxy configuration: net/netfilter/nf_conntrack_max"]);
        assert_eq!(refused.child.wait().unwrap().code(), Some(1));
    });
}

#[test]
fn what_cannot_be_served_says_so() {
    let dir = TempDir::new().unwrap();
    let folder = dir.path().to_str().unwrap();
    for (flags, want) in [
        (&["--proxy-mode=ipvs", "--manifests", folder][..], "can't use the IPVS proxier: not available yet"),
        (
            &["--proxy-mode=nftables", "--manifests", "/nowhere/at/all"],
            "reading manifests in /nowhere/at/all",
        ),
        (
            &["--proxy-mode=nftables"],
            "unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be defined",
        ),
        (
            &["--manifests", folder, "--master=http://127.0.0.1:1"],
            "--manifests cannot be combined with --kubeconfig or --master",
        ),
    ] {
        let flags: Vec<String> = flags.iter().map(ToString::to_string).collect();
        in_fresh_netns(move || {
            // How many connections there may be is a matter of the whole machine: no namespace may say.
            let mut command = Command::new(env!("CARGO_BIN_EXE_kube-proxy"));
            let output = command.arg("--conntrack-max-per-core=0").args(&flags).output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{flags:?}");
            assert!(stderr.contains(want), "{flags:?}: {stderr}");
        });
    }
}

#[test]
fn as_the_first_process_of_a_container_a_signal_ends_it_and_its_rules_stay() {
    in_fresh_netns(|| {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("web.yaml"), service("web", "10.96.0.1")).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", env!("CARGO_BIN_EXE_kube-proxy")]);
        let mut proxy = Proxy::run(command, folder.path(), &[]);
        proxy.wait_for_pass("IPv4");
        let id = proxy.child.id();
        let first = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
        let first = Pid::from_raw(first.trim().parse().unwrap()).unwrap();
        kill_process(first, Signal::TERM).unwrap();
        assert_eq!(proxy.child.wait().unwrap().code(), Some(2), "as a Go program ends there");
        assert!(run("nft list tables").contains("table ip kube-proxy"));
    });
}
