//! `plan`, `verify` and `render` beside a real proxy, each test alone in a network namespace.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use netlink::testing::{in_fresh_netns, run};
use tempfile::TempDir;
use testkit::patience::Deadline;

const MODES: [&str; 2] = ["nftables", "iptables"];

/// A folder of manifests, and how proxies and tools are told of it.
struct Cluster {
    folder: TempDir,
    mode: &'static str,
}

/// A running proxy, killed when dropped.
struct Proxy(Child);

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Cluster {
    fn new(mode: &'static str) -> Self {
        run("ip link set lo up");
        let cluster = Self { folder: TempDir::new().unwrap(), mode };
        cluster.write("web", &web("10.96.0.10", "80", "30080", &["10.244.0.5", "10.244.0.6", "10.244.0.7"]));
        cluster.write("dns", &web("10.96.0.53", "53", "30053", &["10.244.0.9"]).replace("web", "dns"));
        cluster.write("sticky", &sticky());
        cluster.write("none", &web("10.96.0.11", "80", "30081", &[]).replace("web", "none"));
        cluster
    }

    fn write(&self, name: &str, content: &str) {
        let next = self.folder.path().join("next");
        fs::write(&next, content).unwrap();
        fs::rename(next, self.folder.path().join(format!("{name}.yaml"))).unwrap();
    }

    fn open_to_all(&self) {
        fs::set_permissions(self.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn flags(&self) -> Vec<String> {
        let mode = self.mode;
        vec![
            format!("--proxy-mode={mode}"),
            format!("--manifests={}", self.folder.path().display()),
            "--hostname-override=node-1".into(),
            "--conntrack-max-per-core=0".into(),
            "--iptables-min-sync-period=0".into(),
            "--cluster-cidr=10.244.0.0/16".into(),
        ]
    }

    fn start(&self) -> Proxy {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kube-proxy"));
        Proxy(command.args(self.flags()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// What a proxy leaves that has synced and ended.
    fn sync(&self) {
        let _proxy = self.start();
        self.wait_until_verified();
    }

    fn wait_until_verified(&self) {
        let mut deadline = Deadline::after(Duration::from_secs(30));
        loop {
            let (code, text) = self.tool("verify", &[]);
            if code == 0 {
                return;
            }
            assert!(!deadline.has_passed(), "{}: {text}", self.mode);
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn tool(&self, name: &str, more: &[&str]) -> (i32, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kube-proxy"));
        outcome(command.arg(name).args(self.flags()).args(more).output().unwrap())
    }

    /// Lines of a plan but for the sum at its end, which must say that there is something.
    fn plan(&self, what: &str) -> Vec<String> {
        let (code, text) = self.tool("plan", &[]);
        assert_eq!(code, 2, "{} {what}: {text}", self.mode);
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let sum = lines.pop().unwrap();
        assert!(sum.starts_with(&format!("ipv4 {}: ", self.mode)), "{text}");
        lines
    }
}

/// The running proxy is asked, wherever it takes its objects from.
fn verify_running() -> (i32, String) {
    outcome(Command::new(env!("CARGO_BIN_EXE_kube-proxy")).arg("verify").output().unwrap())
}

fn outcome(output: Output) -> (i32, String) {
    let stderr = String::from_utf8(output.stderr).unwrap();
    let text = String::from_utf8(output.stdout).unwrap() + &stderr;
    (output.status.code().unwrap(), text)
}

fn web(ip: &str, port: &str, node_port: &str, endpoints: &[&str]) -> String {
    let endpoints: Vec<String> =
        endpoints.iter().map(|ip| format!("{{addresses: [{ip}], nodeName: node-1}}")).collect();
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: web}}
spec:
  type: NodePort
  clusterIP: {ip}
  ports: [{{name: http, port: {port}, nodePort: {node_port}}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-1, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
ports: [{{name: http, port: 8080}}]
endpoints: [{}]
",
        endpoints.join(", ")
    )
}

fn sticky() -> String {
    web("10.96.0.12", "80", "30082", &["10.244.0.20", "10.244.0.21"])
        .replace("web", "sticky")
        .replace("type: NodePort", "type: NodePort\n  sessionAffinity: ClientIP")
}

const NOTHING: (i32, String) = (0, String::new());

#[test]
fn after_a_sync_there_is_nothing_to_do_whether_the_proxy_runs_or_not() {
    for mode in MODES {
        in_fresh_netns(move || {
            let cluster = Cluster::new(mode);
            let (code, text) = cluster.tool("plan", &[]);
            assert_eq!(code, 2, "{text}");
            assert!(text.contains("+ ipv4 default/web:http\n    + node port 30080/TCP\n    + 10.96.0.10:80/TCP\n    + endpoint 10.244.0.5:8080\n"), "{text}");
            assert!(
                text.contains("+ ipv4 default/none:http\n    + node port 30081/TCP refused: no endpoints\n"),
                "{text}"
            );
            assert!(text.contains("    + session affinity 10800s\n"), "{text}");
            let proxy = cluster.start();
            cluster.wait_until_verified();
            assert_eq!(cluster.tool("plan", &[]), NOTHING, "{mode}, while it runs");
            drop(proxy);
            assert_eq!(cluster.tool("plan", &[]), NOTHING, "{mode}, after it ended");
        });
    }
}

#[test]
fn a_plan_prints_the_edit_and_nothing_else() {
    let three = ["10.244.0.5", "10.244.0.6", "10.244.0.7"];
    let edits: [(&str, &str, String, &[&str]); 14] = [
        (
            "another cluster IP",
            "web",
            web("10.96.0.99", "80", "30080", &three),
            &["~ ipv4 default/web:http", "    - 10.96.0.10:80/TCP", "    + 10.96.0.99:80/TCP"],
        ),
        (
            "another port and other endpoints",
            "dns",
            web("10.96.0.53", "54", "30053", &["10.244.0.10"]).replace("web", "dns"),
            &[
                "~ ipv4 default/dns:http",
                "    - 10.96.0.53:53/TCP",
                "    - endpoint 10.244.0.9:8080",
                "    + 10.96.0.53:54/TCP",
                "    + endpoint 10.244.0.10:8080",
            ],
        ),
        (
            "another endpoint",
            "web",
            web("10.96.0.10", "80", "30080", &["10.244.0.5", "10.244.0.8", "10.244.0.7"]),
            &["~ ipv4 default/web:http", "    - endpoint 10.244.0.6:8080", "    + endpoint 10.244.0.8:8080"],
        ),
        (
            "one less",
            "web",
            web("10.96.0.10", "80", "30080", &["10.244.0.5", "10.244.0.7"]),
            &["~ ipv4 default/web:http", "    - endpoint 10.244.0.6:8080"],
        ),
        (
            "one more",
            "sticky",
            sticky().replace(
                "[{addresses: [10.244.0.20]",
                "[{addresses: [10.244.0.19]}, {addresses: [10.244.0.20]",
            ),
            &["~ ipv4 default/sticky:http", "    + endpoint 10.244.0.19:8080"],
        ),
        (
            "another node port",
            "web",
            web("10.96.0.10", "80", "30090", &three),
            &["~ ipv4 default/web:http", "    - node port 30080/TCP", "    + node port 30090/TCP"],
        ),
        (
            "no endpoints any more",
            "dns",
            web("10.96.0.53", "53", "30053", &[]).replace("web", "dns"),
            &[
                "~ ipv4 default/dns:http",
                "    - node port 30053/TCP",
                "    - 10.96.0.53:53/TCP",
                "    - endpoint 10.244.0.9:8080",
                "    + node port 30053/TCP refused: no endpoints",
                "    + 10.96.0.53:53/TCP refused: no endpoints",
            ],
        ),
        (
            "no affinity any more",
            "sticky",
            sticky().replace("sessionAffinity: ClientIP", "sessionAffinity: None"),
            &["~ ipv4 default/sticky:http", "    - session affinity 10800s"],
        ),
        (
            "affinity, and one more",
            "web",
            web("10.96.0.10", "80", "30080", &["10.244.0.5", "10.244.0.6", "10.244.0.7", "10.244.0.8"])
                .replace("type: NodePort", "type: NodePort\n  sessionAffinity: ClientIP"),
            &["~ ipv4 default/web:http", "    + session affinity 10800s", "    + endpoint 10.244.0.8:8080"],
        ),
        (
            "affinity, and another endpoint instead of the only one",
            "dns",
            web("10.96.0.53", "53", "30053", &["10.244.0.10"])
                .replace("web", "dns")
                .replace("type: NodePort", "type: NodePort\n  sessionAffinity: ClientIP"),
            &[
                "~ ipv4 default/dns:http",
                "    - endpoint 10.244.0.9:8080",
                "    + session affinity 10800s",
                "    + endpoint 10.244.0.10:8080",
            ],
        ),
        (
            "no affinity any more, and other endpoints",
            "sticky",
            sticky()
                .replace("sessionAffinity: ClientIP", "sessionAffinity: None")
                .replace("10.244.0.20", "10.244.0.22")
                .replace("10.244.0.21", "10.244.0.23"),
            &[
                "~ ipv4 default/sticky:http",
                "    - session affinity 10800s",
                "    - endpoint 10.244.0.20:8080",
                "    - endpoint 10.244.0.21:8080",
                "    + endpoint 10.244.0.22:8080",
                "    + endpoint 10.244.0.23:8080",
            ],
        ),
        (
            "a name like an option, without endpoints",
            "node-js",
            web("10.96.0.15", "80", "30085", &[]).replace("web", "node-js"),
            &[
                "+ ipv4 default/node-js:http",
                "    + node port 30085/TCP refused: no endpoints",
                "    + 10.96.0.15:80/TCP refused: no endpoints",
            ],
        ),
        (
            "a new service",
            "new",
            web("10.96.0.14", "80", "30084", &["10.244.0.5"]).replace("web", "new"),
            &[
                "+ ipv4 default/new:http",
                "    + node port 30084/TCP",
                "    + 10.96.0.14:80/TCP",
                "    + endpoint 10.244.0.5:8080",
            ],
        ),
        (
            "nothing",
            "web",
            web("10.96.0.10", "80", "30080", &three).replace("  type", "  # a remark\n  type"),
            &[],
        ),
    ];
    for mode in MODES {
        let edits = edits.clone();
        in_fresh_netns(move || {
            let cluster = Cluster::new(mode);
            cluster.sync();
            for (what, name, content, want) in edits {
                let path = cluster.folder.path().join(format!("{name}.yaml"));
                let before = fs::read_to_string(&path).ok();
                cluster.write(name, &content);
                if want.is_empty() {
                    assert_eq!(cluster.tool("plan", &[]), NOTHING, "{mode}: {what}");
                } else {
                    assert_eq!(cluster.plan(what), want, "{mode}: {what}");
                }
                match before {
                    Some(before) => cluster.write(name, &before),
                    None => fs::remove_file(path).unwrap(),
                }
            }
            assert_eq!(cluster.tool("plan", &[]), NOTHING, "{mode}: all as it was");
            a_service_that_goes(&cluster);
        });
    }
}

#[test]
fn a_change_of_policy_is_told_whatever_changes_besides() {
    for (mode, at) in [("nftables", "node port 30080/TCP"), ("iptables", "external traffic")] {
        in_fresh_netns(move || {
            let cluster = Cluster::new(mode);
            cluster.sync();
            let two = web("10.96.0.10", "80", "30080", &["10.244.0.5", "10.244.0.6"]);
            cluster.write(
                "web",
                &two.replace("type: NodePort", "type: NodePort\n  externalTrafficPolicy: Local"),
            );
            assert_eq!(
                cluster.plan("policy"),
                [
                    "~ ipv4 default/web:http",
                    "    - endpoint 10.244.0.7:8080",
                    &format!("    + {at} keeps client addresses")
                ],
                "{mode}"
            );
        });
    }
}

#[test]
fn an_endpoint_that_moves_to_another_node_is_told_with_its_service() {
    in_fresh_netns(|| {
        let cluster = Cluster::new("nftables");
        cluster.sync();
        let dns = web("10.96.0.53", "53", "30053", &["10.244.0.9"]).replace("web", "dns");
        cluster.write("dns", &dns.replace("nodeName: node-1", "nodeName: node-2"));
        assert_eq!(
            cluster.plan("another node"),
            [
                "~ ipv4 default/dns:http",
                "    - endpoint 10.244.0.9:8080 is on this node, and can connect to itself"
            ]
        );
    });
}

#[test]
fn a_udp_service_that_goes_is_one_service() {
    in_fresh_netns(|| {
        let cluster = Cluster::new("iptables");
        let dns = web("10.96.0.53", "53", "30053", &["10.244.0.9"]).replace("web", "dns");
        cluster.write("dns", &dns.replace("port: ", "protocol: UDP, port: "));
        cluster.sync();
        fs::remove_file(cluster.folder.path().join("dns.yaml")).unwrap();
        assert_eq!(
            cluster.plan("a service that goes"),
            [
                "- ipv4 default/dns:http",
                "    - node port 30053/UDP",
                "    - 10.96.0.53:53/UDP",
                "    - endpoint 10.244.0.9:8080"
            ]
        );
    });
}

#[test]
fn of_two_services_at_one_address_both_are_new() {
    in_fresh_netns(|| {
        let cluster = Cluster::new("nftables");
        cluster.write("a", &web("10.96.0.10", "80", "30086", &[]).replace("web", "a"));
        let (code, text) = cluster.tool("plan", &[]);
        assert_eq!(code, 2, "{text}");
        let want = "+ ipv4 default/web:http\n    + node port 30080/TCP\n    + endpoint 10.244.0.5:8080\n";
        assert!(text.contains(want), "{text}");
    });
}

#[test]
fn who_gets_an_address_that_several_ask_for_is_told_when_that_changes() {
    for mode in MODES {
        in_fresh_netns(move || {
            let cluster = Cluster::new(mode);
            let service = |name: &str, number: u8| {
                let (ip, node_port, endpoint) =
                    (format!("10.96.1.{number}"), format!("3020{number}"), format!("10.244.1.{number}"));
                let text = web(&ip, "80", &node_port, &[&endpoint]).replace("web", name);
                text.replace("type: NodePort", "type: NodePort\n  externalIPs: [198.51.100.1]")
            };
            let contests = |what: &str| {
                let lines = cluster.plan(what).into_iter();
                let told = lines.filter_map(|line| Some(line.strip_prefix("! ipv4 ")?.to_owned()));
                told.collect::<Vec<_>>()
            };
            let remove = |name| fs::remove_file(cluster.folder.path().join(format!("{name}.yaml"))).unwrap();
            cluster.write("mid", &service("mid", 1));
            cluster.sync();
            cluster.write("zed", &service("zed", 2));
            let because = match mode {
                "iptables" => "the first rule has it, in the order of names",
                _ => "the first by name has it",
            };
            let mid = "198.51.100.1:80/TCP goes to default/mid:http, also claimed by default/zed:http";
            let want = format!("{mid}: {because}");
            assert_eq!(contests("a later one comes"), [want], "{mode}");
            let (_, json) = cluster.tool("plan", &["-o", "json"]);
            let json: serde_json::Value = serde_json::from_str(&json).unwrap();
            assert_eq!(
                json[0]["contested"],
                serde_json::json!([{
                    "frontend": "198.51.100.1:80/TCP",
                    "service": "default/mid:http",
                    "precedence": if mode == "iptables" { "firstRule" } else { "firstByName" },
                    "denied_to": ["default/zed:http"],
                    "given_up_by": [],
                }]),
                "{mode}"
            );
            cluster.sync();
            cluster.write("mid", &service("mid", 1).replace("10.244.1.1", "10.244.1.9"));
            assert_eq!(contests("another endpoint"), [""; 0], "{mode}");
            cluster.write("mid", &service("mid", 1));
            cluster.write("dns", &service("dns", 9).replace("198.51.100.1", "198.51.100.9"));
            assert_eq!(contests("who asks for something else"), [""; 0], "{mode}");
            cluster.sync();
            cluster.write(
                "dns",
                &service("dns", 9).replace("198.51.100.1", "198.51.100.9").replace("http", "www"),
            );
            let renamed = cluster.tool("plan", &[]).1;
            assert!(!renamed.contains("! ipv4"), "{mode}: {renamed}");
            cluster.write("abc", &service("abc", 3));
            let want = "198.51.100.1:80/TCP goes to default/abc:http, \
                        also claimed by default/mid:http and default/zed:http";
            let want = format!("{want}: {because}");
            assert_eq!(contests("an earlier one comes"), [want], "{mode}");
            cluster.sync();
            remove("abc");
            let no_more = |names: &str| if mode == "iptables" { names.to_owned() } else { String::new() };
            let want = format!("{mid}{}: {because}", no_more(", no longer claimed by default/abc:http"));
            assert_eq!(contests("the one that had it goes"), [want], "{mode}");
            cluster.sync();
            remove("mid");
            let want = match mode {
                "iptables" => "default/zed:http, no longer claimed by default/mid:http",
                _ => "default/zed:http, another service had it",
            };
            assert_eq!(
                contests("only one is left"),
                [format!("198.51.100.1:80/TCP goes to {want}")],
                "{mode}"
            );
        });
    }
}

#[test]
fn an_endpoint_that_only_some_addresses_lead_to_makes_no_contest() {
    in_fresh_netns(|| {
        let cluster = Cluster::new("nftables");
        let local =
            web("10.96.1.1", "80", "30201", &["10.244.1.1", "10.244.1.2"]).replace("web", "local").replace(
                "type: NodePort",
                "type: NodePort\n  externalTrafficPolicy: Local\n  internalTrafficPolicy: Local",
            );
        let remote = "{addresses: [10.244.1.2], nodeName: node-1}";
        cluster.write("local", &local.replace(remote, "{addresses: [10.244.1.2], nodeName: node-2}"));
        cluster.sync();
        cluster.write("local", &local.replace(&format!(", {remote}"), ""));
        assert_eq!(
            cluster.plan("a remote endpoint goes"),
            ["~ ipv4 default/local:http", "    - endpoint 10.244.1.2:8080 at node port 30201/TCP"]
        );
    });
}

/// Only the iptables mode writes beside its rules whose they are.
fn a_service_that_goes(cluster: &Cluster) {
    fs::remove_file(cluster.folder.path().join("dns.yaml")).unwrap();
    let (first, at) = match cluster.mode {
        "iptables" => ("- ipv4 default/dns:http", ""),
        _ => ("- ipv4 of no service", " at node port 30053/TCP, 10.96.0.53:53/TCP"),
    };
    let endpoint = format!("    - endpoint 10.244.0.9:8080{at}");
    assert_eq!(
        cluster.plan("a service that goes"),
        [first, "    - node port 30053/TCP", "    - 10.96.0.53:53/TCP", &endpoint],
        "{}",
        cluster.mode
    );
}

#[test]
fn a_plan_can_be_read_by_programs_and_in_every_detail() {
    in_fresh_netns(|| {
        let cluster = Cluster::new("nftables");
        cluster.sync();
        assert_eq!(cluster.tool("plan", &["-o", "json"]), (0, "[]\n".into()));
        cluster.write("dns", &web("10.96.0.53", "53", "30053", &["10.244.0.8"]).replace("web", "dns"));
        let (code, text) = cluster.tool("plan", &["--objects"]);
        assert_eq!(code, 2);
        assert!(
            text.contains("    + element endpoints { 10.96.0.53 . tcp . 53 . 0 : 10.244.0.8 . 8080 }\n"),
            "{text}"
        );
        let (code, text) = cluster.tool("plan", &["-o=json"]);
        assert_eq!(code, 2);
        let plan: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(plan[0]["family"], "ipv4");
        assert_eq!(plan[0]["changes"][0]["service"], "default/dns:http");
        assert_eq!(
            plan[0]["changes"][0]["lines"],
            serde_json::json!(["- endpoint 10.244.0.9:8080", "+ endpoint 10.244.0.8:8080"])
        );
        assert_eq!(plan[0]["add"], 3);
        assert_eq!(plan[0]["objects"].as_array().unwrap().len(), 6);
    });
}

#[test]
fn a_change_of_modes_says_what_clients_will_notice() {
    in_fresh_netns(|| {
        let mut cluster = Cluster::new("iptables");
        cluster.sync();
        cluster.mode = "nftables";
        let (code, text) = cluster.tool("plan", &[]);
        assert_eq!(code, 2);
        for line in [
            "ipv4: takes over from the iptables mode (",
            "    node port 30080/TCP (default/web:http) stops answering on 127.0.0.1\n",
            "    ports that no service has at a cluster IP are refused instead of sent to the network, as at 10.96.0.53 (default/dns:http) and 3 more\n",
            "    forwarded packets that belong to no connection (ct state invalid) are no longer dropped\n",
            "    clients of default/sticky:http (session affinity 10800s) are balanced once more",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
        assert!(!text.contains("(default/none:http) stops"), "it never answered:\n{text}");
        run("iptables -P FORWARD DROP");
        let (_, text) = cluster.tool("plan", &[]);
        assert!(text.contains("    the FORWARD chain of iptables drops what no rule accepts"), "{text}");
        run("iptables -P FORWARD ACCEPT");

        cluster.sync();
        let mut gone = Deadline::after(Duration::from_secs(20));
        while cluster.tool("plan", &[]) != NOTHING {
            assert!(!gone.has_passed(), "the other mode's rules go: {:?}", cluster.tool("plan", &[]));
            let _proxy = cluster.start();
            std::thread::sleep(Duration::from_secs(1));
        }
        cluster.mode = "iptables";
        let (code, text) = cluster.tool("plan", &[]);
        assert_eq!(code, 2);
        for line in [
            "ipv4: takes over from the nftables mode of this program (",
            "    node port 30080/TCP (default/web:http) starts to answer on 127.0.0.1\n",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
    });
}

/// The modes differ in what serves node ports if nobody says it.
#[test]
fn a_change_of_modes_names_the_addresses_that_fall_silent() {
    in_fresh_netns(|| {
        let mut cluster = Cluster::new("iptables");
        run("ip addr add 192.0.2.11/32 dev lo");
        run("ip addr add 198.51.100.7/32 dev lo");
        let node = "apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}
";
        cluster.write("node", node);
        cluster.sync();
        cluster.mode = "nftables";
        let (_, text) = cluster.tool("plan", &[]);
        let line = "    node port 30080/TCP (default/web:http) stops answering on 198.51.100.7\n";
        assert!(text.contains(line) && !text.contains("answering on 192.0.2.11"), "{text}");
    });
}

#[test]
fn who_may_not_look_is_told_so() {
    in_fresh_netns(|| {
        let cluster = Cluster::new("nftables");
        cluster.open_to_all();
        let (code, text) = as_nobody(&cluster, "plan", &[]);
        assert_eq!(code, 1, "{text}");
        assert!(
            text.starts_with(
                "Error: reading the ipv4 rules of the kernel (it takes root or CAP_NET_ADMIN): "
            ),
            "{text}"
        );
    });
}

#[test]
fn what_is_refused_is_named_and_the_rest_is_answered_for() {
    in_fresh_netns(|| {
        let cluster = Cluster::new("nftables");
        cluster.sync();
        cluster.write("web", &web("10.96.0.10", "eighty", "30080", &["10.244.0.5"]));
        cluster.write("broken", "kind: {\n");
        let warning = "Warning: answering without what is refused above (2 in all)\n";
        let dns = ["--from=10.244.0.9", "tcp", "10.96.0.53:53"];
        for (tool, more, code, part) in [
            ("plan", &[][..], 2, "    - 10.96.0.10:80/TCP\n"),
            ("verify", &[], 2, "surplus element cluster-ips { 10.96.0.10 }"),
            ("render", &["--family=ipv4"], 0, "10.96.0.53 . tcp . 53"),
            ("explain", &dns, 0, "cluster IP of default/dns:http"),
        ] {
            let (found, text) = cluster.tool(tool, more);
            assert_eq!(found, code, "{tool}: {text}");
            for part in [part, warning, "web.yaml", "expected a whole number", "broken.yaml"] {
                assert!(text.contains(part), "{tool}: {part:?} is not in {text}");
            }
        }

        // On standard output and nothing else, for programs.
        let json = |tool: &str, more: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_kube-proxy"));
            let output = command.arg(tool).args(cluster.flags()).args(["-o", "json"]).args(more).output();
            serde_json::from_slice::<serde_json::Value>(&output.unwrap().stdout).unwrap()
        };
        let answers = [
            json("plan", &[])[0]["left_out"].clone(),
            json("verify", &[])[0]["left_out"].clone(),
            json("explain", &dns)["leftOut"].clone(),
        ];
        for left_out in answers {
            let left_out: Vec<&str> =
                left_out.as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
            assert!(left_out[0].starts_with("broken.yaml: line "), "{left_out:?}");
            assert_eq!(
                left_out[1..],
                ["web.yaml: line 7 column 30: Service \"web\": expected a whole number"]
            );
        }
    });
}

#[test]
fn a_plan_of_nothing_says_to_programs_what_was_left_out() {
    in_fresh_netns(|| {
        let cluster = Cluster::new("nftables");
        cluster.sync();
        cluster.write("broken", "kind: {\n");
        let (code, text) = cluster.tool("plan", &["-o", "json"]);
        assert_eq!(code, 0, "{text}");
        assert!(text.contains("\"left_out\": [\n"), "{text}");
    });
}

#[test]
fn cleaning_up_beside_a_running_proxy_says_what_to_do() {
    in_fresh_netns(|| {
        let cluster = Cluster::new("nftables");
        let _proxy = cluster.start();
        cluster.wait_until_verified();
        let (code, text) =
            outcome(Command::new(env!("CARGO_BIN_EXE_kube-proxy")).arg("--cleanup").output().unwrap());
        assert_eq!(code, 1, "{text}");
        assert!(text.contains("belongs to a proxy that is still running; stop that one first"), "{text}");
    });
}

#[test]
fn a_table_of_somebody_else_is_written_anew() {
    in_fresh_netns(|| {
        let cluster = Cluster::new("nftables");
        run("nft add table ip kube-proxy");
        run("nft add chain ip kube-proxy services");
        run(
            "nft add map ip kube-proxy service-ips { type ipv4_addr . inet_proto . inet_service : verdict ; }",
        );
        let (code, text) = cluster.tool("plan", &[]);
        assert_eq!(code, 2);
        assert!(
            text.contains("ipv4: takes over from a table kube-proxy that is not this program's ("),
            "{text}"
        );
        assert!(text.contains("+ ipv4 default/web:http\n"), "{text}");
    });
}

/// A stranger's command. The table of a proxy that was killed is its own for a moment longer.
fn harm(command: &str) {
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
    for (mode, damage, want) in [
        (
            "nftables",
            "nft delete element ip kube-proxy cluster-ips { 10.96.0.10 }",
            "  missing element cluster-ips { 10.96.0.10 } (default/web:http)\n",
        ),
        (
            "iptables",
            "iptables -t nat -D KUBE-SERVICES 1",
            "  missing -t nat -A KUBE-SERVICES -d 10.96.0.53/32 -p tcp -m comment --comment \"default/dns:http cluster IP\" -m tcp --dport 53 -j KUBE-SVC-",
        ),
    ] {
        in_fresh_netns(move || {
            let cluster = Cluster::new(mode);
            cluster.sync();
            harm(damage);
            let (code, text) = cluster.tool("verify", &[]);
            assert_eq!(code, 2, "{text}");
            let lines: Vec<&str> = text.lines().collect();
            assert!(lines[0].starts_with("ipv4: 1 of "), "{text}");
            assert!(format!("{}\n", lines[1]).starts_with(want), "{text}");
            assert!(lines[2].starts_with("ipv6: kernel and plan agree ("), "{text}");
            assert_eq!(lines.len(), 3, "{text}");
            let (code, text) = cluster.tool("verify", &["-o=json"]);
            assert_eq!(code, 2);
            let found: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(found[0]["differences"][0]["kind"], "missing");
        });
    }
}

#[test]
fn the_running_proxy_can_be_asked() {
    for mode in MODES {
        in_fresh_netns(move || {
            let (code, text) = verify_running();
            assert_eq!(code, 1, "{text}");
            assert!(text.contains("Error: asking the proxy at 127.0.0.1:10249 (is it running"), "{text}");
            let cluster = Cluster::new(mode);
            let _proxy = cluster.start();
            cluster.wait_until_verified();
            let (code, text) = verify_running();
            assert_eq!(code, 0, "{text}");
            let lines: Vec<&str> = text.lines().collect();
            assert!(lines[0].starts_with("ipv4: kernel and plan agree ("), "{text}");
            assert!(lines[1].starts_with("ipv6: kernel and plan agree ("), "{text}");
            // It hears of edits: what it wants is what is in the kernel, not what we read first.
            cluster.write("dns", &web("10.96.0.53", "53", "30053", &["10.244.0.8"]).replace("web", "dns"));
            cluster.wait_until_verified();
            assert_eq!(verify_running().0, 0);
        });
    }
}

#[test]
fn what_the_running_proxy_would_not_heed_is_refused() {
    for tool in [&["verify"][..], &["explain", "tcp", "10.96.0.10:80"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kube-proxy"));
        command.args(tool).args(["--hostname-override=node-1", "--proxy-mode=iptables", "--v=0"]);
        let (code, text) = outcome(command.output().unwrap());
        assert_eq!(code, 1, "{text}");
        assert!(text.starts_with("Error: --proxy-mode: the proxy that runs on this node is asked"), "{text}");
    }
}

#[test]
fn what_is_rendered_is_what_the_kernel_lists() {
    in_fresh_netns(|| {
        let cluster = Cluster::new("nftables");
        cluster.sync();
        for (family, ip) in [("ipv4", "ip"), ("ipv6", "ip6")] {
            let (code, text) = cluster.tool("render", &["--family", family]);
            assert_eq!(code, 0, "{text}");
            let listed = run(&format!("nft list table {ip} kube-proxy"));
            let (ours, theirs) = (words(&text), words(&listed));
            let more = |a: &BTreeMap<String, usize>, b: &BTreeMap<String, usize>| {
                a.iter()
                    .filter(|(word, count)| b.get(*word) != Some(count))
                    .map(|(word, _)| word.clone())
                    .collect::<Vec<_>>()
            };
            assert_eq!((more(&ours, &theirs), more(&theirs, &ours)), (vec![], vec![]), "{family}");
            // `nft` does not read what it prints of the rules of session affinity.
            let is_readable =
                |line: &&str| !line.contains(" map @sticky-endpoints") && !line.contains(" @affinity {");
            let readable: Vec<&str> = text.lines().filter(is_readable).collect();
            let readable = readable.join("\n");
            // Where there is no such table: of its own maps by example `nft` reads back something else.
            in_fresh_netns(move || feed(&["nft", "-c", "-f", "-"], &readable));
        }
    });
}

/// In any order, without what was counted, how lines are broken, and whose the table is.
fn words(text: &str) -> BTreeMap<String, usize> {
    let lines = text.lines().filter(|line| !line.starts_with("\tflags"));
    let text = lines.collect::<Vec<_>>().join("\n").replace(" counter packets 0 bytes 0", "");
    let mut words = BTreeMap::new();
    for word in text.replace([',', '{', '}'], " ").split_whitespace() {
        *words.entry(word.to_owned()).or_default() += 1;
    }
    words
}

fn feed(command: &[&str], text: &str) {
    let mut child = Command::new(command[0]).args(&command[1..]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{command:?}:\n{text}");
}

#[test]
fn rendering_takes_no_privileges_and_loads() {
    in_fresh_netns(|| {
        let cluster = Cluster::new("iptables");
        cluster.open_to_all();
        for (family, restore) in [("ipv4", "iptables"), ("ipv6", "ip6tables")] {
            let (code, text) = as_nobody(&cluster, "render", &["--family", family]);
            assert_eq!(code, 0, "{text}");
            for variant in ["legacy", "nft"] {
                feed(&[&format!("{restore}-{variant}-restore"), "--test", "--noflush"], &text);
            }
            feed(&[&format!("{restore}-restore"), "--noflush"], &text);
        }
        // Loaded by others than us, it is what we want. That there are no counters may be.
        let (code, text) = cluster.tool("verify", &[]);
        assert_eq!(code, 0, "{text}");
    });
}

fn as_nobody(cluster: &Cluster, tool: &str, more: &[&str]) -> (i32, String) {
    // The build folder may be closed to others.
    let copy = cluster.folder.path().join("kube-proxy");
    fs::copy(env!("CARGO_BIN_EXE_kube-proxy"), &copy).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--clear-groups"]).arg(&copy).arg(tool).args(cluster.flags()).args(more);
    let output = command.output();
    fs::remove_file(copy).unwrap();
    outcome(output.unwrap())
}
