//! The proxy as a process that serves a folder of manifests, alone in a network namespace.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::path::Path;
use std::process::Command;

use netlink::testing::{in_fresh_netns, run};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use testkit::proxy::{
    StandaloneProxy, service_manifest as service, service_with_endpoints, slice_manifest as slice,
};

const KUBE_PROXY: &str = env!("CARGO_BIN_EXE_kube-proxy");

/// Starts the proxy with a log file beside the folder of manifests.
fn start(manifests: &Path, flags: &[&str]) -> StandaloneProxy {
    start_command(Command::new(KUBE_PROXY), manifests, flags)
}

fn start_command(command: Command, manifests: &Path, flags: &[&str]) -> StandaloneProxy {
    // A hidden file, which the proxy does not read as a manifest.
    StandaloneProxy::start(command, manifests, flags, &manifests.join(".log"))
}

fn endpoints() -> String {
    run("nft list map ip kube-proxy endpoints")
}

#[test]
fn bad_manifests_are_logged_by_file_name_and_the_others_are_served() {
    in_fresh_netns(|| {
        let dir = TempDir::new().unwrap();
        let write = |name: &str, content: &[u8]| fs::write(dir.path().join(name), content).unwrap();
        write("good.yaml", service_with_endpoints("good", "10.96.0.10", &["10.244.0.5"]).as_bytes());
        write("a-negative-port.yaml", service("negative", "10.96.0.11").replace("80", "-80").as_bytes());
        write("b-loopback.yaml", service_with_endpoints("loop", "10.96.0.12", &["127.0.0.5"]).as_bytes());
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
        let mut proxy = start(dir.path(), &[]);
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
        proxy.wait_for_sync("IPv4");
        let listed = endpoints();
        assert!(listed.contains("0x00000002 . 0 ") && listed.contains("10.244.0.5 . 8080"), "{listed}");
        assert!(
            run("nft list set ip kube-proxy no-endpoints").contains("10.96.0.12 . tcp . 80"),
            "only its slice is bad"
        );

        write("g-syntax.yaml", service("fixed", "10.96.0.14").as_bytes());
        proxy.wait_for_sync("IPv4");
        assert!(run("nft list set ip kube-proxy no-endpoints").contains("10.96.0.14 . tcp . 80"));
        assert!(proxy.is_running());
    });
}

#[test]
fn changed_manifests_are_applied_and_a_broken_one_keeps_its_last_objects() {
    in_fresh_netns(|| {
        let dir = TempDir::new().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write("web.yaml", &service("web", "10.96.0.10"));
        write("slice.yaml", &slice("web", "10.244.0.5"));
        let mut proxy = start(dir.path(), &[]);
        proxy.wait_for_sync("IPv4");
        write("slice.yaml", &slice("web", "10.244.0.6"));
        let sync = proxy.wait_for_sync("IPv4");
        assert!(sync.contains("added=1 deleted=1") && sync.contains("fullSync=false"), "{sync}");
        assert!(endpoints().contains("10.244.0.6 . 8080"));

        write("slice.yaml", "kind: {\n");
        proxy.wait_for(&["Failed to read manifest", "slice.yaml", "keptObjects=1"]);
        assert!(endpoints().contains("10.244.0.6 . 8080"));

        fs::remove_file(dir.path().join("slice.yaml")).unwrap();
        proxy.wait_for_sync("IPv4");
        assert!(!endpoints().contains("10.244.0.6"));
    });
}

#[test]
fn a_restart_changes_no_rule() {
    in_fresh_netns(|| {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join("web.yaml"), service_with_endpoints("web", "10.96.0.10", &["10.244.0.5"]))
            .unwrap();
        let mut first = start(dir.path(), &[]);
        first.wait_for_sync("IPv4");
        first.wait_for_sync("IPv6");
        drop(first); // SIGKILL
        assert!(endpoints().contains("10.244.0.5 . 8080"), "the rules stay without the proxy");
        let mut second = start(dir.path(), &[]);
        let sync = second.wait_for_sync("IPv4");
        assert!(sync.contains("added=0 deleted=0"), "{sync}");
    });
}

#[test]
fn other_processes_cannot_remove_the_table() {
    in_fresh_netns(|| {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join("web.yaml"), service_with_endpoints("web", "10.96.0.10", &["10.244.0.5"]))
            .unwrap();
        let mut proxy = start(dir.path(), &[]);
        proxy.wait_for_sync("IPv4");
        run("nft flush ruleset");
        assert!(endpoints().contains("10.244.0.5 . 8080"));
        let deleted = Command::new("nft").args(["delete", "table", "ip", "kube-proxy"]).output().unwrap();
        assert!(!deleted.status.success());
    });
}

#[test]
fn cleanup_removes_all_rules() {
    in_fresh_netns(|| {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join("web.yaml"), service("web", "10.96.0.10")).unwrap();
        let mut proxy = start(dir.path(), &[]);
        proxy.wait_for_sync("IPv4");
        proxy.wait_for_sync("IPv6");
        drop(proxy);
        for _ in 0..2 {
            let cleaned = Command::new(KUBE_PROXY).arg("--cleanup").status().unwrap();
            assert!(cleaned.success(), "cleanup succeeds also when there is nothing to remove");
            assert_eq!(run("nft list ruleset"), "");
        }
    });
}

#[test]
fn the_node_ip_comes_from_the_node_manifest_or_the_default_route() {
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
        let mut proxy = start(dir.path(), &[]);
        let ips = proxy.wait_for(&["Successfully retrieved NodeIPs"]);
        assert!(ips.contains("192.0.2.7"), "{ips}");
        proxy.wait_for_sync("IPv4");
        assert!(run("nft list set ip kube-proxy nodeport-ips").contains("192.0.2.7"));
        drop(proxy);

        let node = "{apiVersion: v1, kind: Node, metadata: {name: node-1}, status: {addresses: [{type: InternalIP, address: 192.0.2.8}]}}";
        fs::write(dir.path().join("node.yaml"), node).unwrap();
        let mut proxy = start(dir.path(), &[]);
        let ips = proxy.wait_for(&["Successfully retrieved NodeIPs"]);
        assert!(ips.contains("192.0.2.8") && !ips.contains("192.0.2.7"), "{ips}");
        proxy.wait_for_sync("IPv4");
        run("ip address add 192.0.2.8/24 dev v0");
        proxy.wait_for_sync("IPv4");
        assert!(
            run("nft list set ip kube-proxy nodeport-ips").contains("192.0.2.8"),
            "an address that is assigned later"
        );
    });
}

#[test]
fn conntrack_sysctls_are_set_and_a_failure_is_fatal() {
    in_fresh_netns(|| {
        let dir = TempDir::new().unwrap();
        let timeout =
            || run("cat /proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established").trim().to_owned();
        let mut proxy = start(dir.path(), &["--conntrack-tcp-timeout-established=1h"]);
        proxy.wait_for(&["\"Set sysctl\"", "nf_conntrack_tcp_timeout_established", "value=3600"]);
        proxy.wait_for_sync("IPv4");
        assert_eq!(timeout(), "3600");
        drop(proxy);
        let mut again = start(dir.path(), &["--conntrack-tcp-timeout-established=1h"]);
        again.wait_for_sync("IPv4");
        let set_again = again.log().lines().any(|line| line.contains("timeout_established\" value"));
        assert!(!set_again, "a value that is right is not written again");
        drop(again);
        // Only the initial network namespace may set nf_conntrack_max.
        let mut refused = start(dir.path(), &["--conntrack-max-per-core=12345"]);
        refused.wait_for(&["Error running ProxyServer", "could not set conntrack parameters from kube-proxy configuration: net/netfilter/nf_conntrack_max"]);
        assert_eq!(refused.wait().code(), Some(1));
    });
}

#[test]
fn a_proxy_that_cannot_start_says_why() {
    let dir = TempDir::new().unwrap();
    let folder = dir.path().to_str().unwrap();
    for (flags, want) in [
        // Where the kernel has IPVS, it has no such scheduler.
        (
            &["--proxy-mode=ipvs", "--ipvs-scheduler=none", "--manifests", folder][..],
            "can't use the IPVS proxier: ",
        ),
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
            // Only the initial network namespace may set nf_conntrack_max.
            let mut command = Command::new(KUBE_PROXY);
            let output = command.arg("--conntrack-max-per-core=0").args(&flags).output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{flags:?}");
            assert!(stderr.contains(want), "{flags:?}: {stderr}");
        });
    }
}

#[test]
fn a_proxy_with_pid_1_ends_on_sigterm_and_its_rules_stay() {
    in_fresh_netns(|| {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("web.yaml"), service("web", "10.96.0.1")).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", KUBE_PROXY]);
        let mut proxy = start_command(command, folder.path(), &[]);
        proxy.wait_for_sync("IPv4");
        let id = proxy.pid().as_raw_nonzero();
        let first = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
        let first = Pid::from_raw(first.trim().parse().unwrap()).unwrap();
        kill_process(first, Signal::TERM).unwrap();
        assert_eq!(proxy.wait().code(), Some(2), "the exit code of a Go program with pid 1");
        assert!(run("nft list tables").contains("table ip kube-proxy"));
    });
}
