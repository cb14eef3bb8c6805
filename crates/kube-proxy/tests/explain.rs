//! `kube-proxy explain`: from a folder with no proxy running, and from a proxy that runs.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};

use model::address::Family;
use netlink::testing::{in_fresh_netns, run};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::lab::Address;
use testkit::lab_proxy::LabProxy;
use testkit::manifests::{A, B, R, State, web, write};
use testkit::wait::eventually;

const KUBE_PROXY: &str = env!("CARGO_BIN_EXE_kube-proxy");

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/demo");

fn explain(arguments: &[&str]) -> Command {
    let mut command = Command::new(KUBE_PROXY);
    command.arg("explain").args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What it says of the demo's folder.
fn of_demo(mode: &str, arguments: &[&str]) -> String {
    let mut command = explain(&["--manifests", DEMO, "--hostname-override", "demo-node"]);
    command.args(["--proxy-mode", mode, "--cluster-cidr", "10.244.0.0/16"]).args(arguments);
    said(&command.output().unwrap())
}

fn said(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    assert_eq!(err, "");
    out.into_owned()
}

/// Why it says nothing.
fn trouble(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn explain_live_names_the_rules_of_another_mode() {
    in_fresh_netns(|| {
        let nothing = of_demo("nftables", &["--live", "tcp", "10.96.0.10:80"]);
        assert!(nothing.ends_with("  the kernel DISAGREES: it does not handle it\n"), "{nothing}");
        let mut render = Command::new(KUBE_PROXY);
        render.args(["render", "--family=ipv4", "--proxy-mode=iptables", "--manifests", DEMO]);
        render.args(["--hostname-override=demo-node", "--cluster-cidr=10.244.0.0/16"]);
        let folder = TempDir::new().unwrap();
        let rules = folder.path().join("rules");
        fs::write(&rules, render.output().unwrap().stdout).unwrap();
        run(&format!("iptables-restore --noflush {}", rules.display()));
        assert!(of_demo("iptables", &["--live", "tcp", "10.96.0.10:80"]).ends_with("  the kernel agrees\n"));
        let wrong = of_demo("nftables", &["--live", "tcp", "10.96.0.10:80"]);
        assert!(
            wrong.ends_with(
                "the kernel also has those of the iptables mode: use the --proxy-mode of the proxy\n"
            ),
            "{wrong}"
        );
    });
}

#[test]
fn a_folder_is_explained_with_no_proxy_running() {
    in_fresh_netns(|| {
        let from_pod = of_demo("nftables", &["--from", "10.244.0.6", "TCP", "10.96.0.10:80"]);
        assert_eq!(
            from_pod,
            "10.244.0.6 -> tcp 10.96.0.10:80
  cluster IP of default/web:http (nftables mode)
  from a pod; internalTrafficPolicy Cluster
  goes to the only endpoint, which sees the client's own address:
    10.244.0.5:8080   100%  this node
  path: services > cluster-ip-1
"
        );
        let from_outside = of_demo("iptables", &["--from", "203.0.113.9", "tcp", "192.0.2.11:30080"]);
        assert_eq!(
            from_outside,
            "203.0.113.9 -> tcp 192.0.2.11:30080
  node port of default/web:http (iptables mode)
  from outside the cluster; externalTrafficPolicy Cluster
  goes to the only endpoint, which sees this node's address (external traffic, policy Cluster):
    10.244.0.5:8080   100%  this node
  path: KUBE-SERVICES > KUBE-NODEPORTS > KUBE-EXT-CDGGSHYLG3RE2FKL > KUBE-SVC-CDGGSHYLG3RE2FKL
"
        );
        let unused = of_demo("nftables", &["udp", "10.96.0.99:53"]);
        assert_eq!(
            unused,
            "192.0.2.11 -> udp 10.96.0.99:53
  unused cluster IP (nftables mode)
  from this node itself
  dropped: the client times out: it belongs to a service CIDR, and no service uses it
  path: forward-check > cluster-ips-check
"
        );
    });
}

const RICH: &str = "
apiVersion: v1
kind: Node
metadata: {name: node-1, labels: {topology.kubernetes.io/zone: a}}
status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 10.96.0.10
  externalIPs: [198.51.100.1]
  sessionAffinity: ClientIP
  ports: [{name: http, port: 80}]
---
apiVersion: v1
kind: Service
metadata: {name: web-2, namespace: shop}
spec: {clusterIP: 10.96.0.77, externalIPs: [198.51.100.1], ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [10.244.0.5], nodeName: node-1, hints: {forZones: [{name: a}]}}
- {addresses: [10.244.0.6], nodeName: node-1, conditions: {ready: false}}
- {addresses: [10.244.1.5], nodeName: node-2, hints: {forZones: [{name: a}]}}
- {addresses: [10.244.1.16], nodeName: node-2, conditions: {ready: false, serving: true, terminating: true}}
- {addresses: [10.244.2.7], nodeName: node-3, hints: {forZones: [{name: b}]}}
";

#[test]
fn all_there_is_to_say_is_said() {
    in_fresh_netns(|| {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("all.yaml"), RICH).unwrap();
        let folder = folder.path().to_str().unwrap();
        let ask = |arguments: &[&str]| {
            let mut command = explain(&["--manifests", folder, "--hostname-override", "node-1"]);
            command.args(["--proxy-mode", "nftables", "--cluster-cidr", "10.244.0.0/16"]).args(arguments);
            said(&command.output().unwrap())
        };
        assert_eq!(
            ask(&["--from", "10.244.0.5", "tcp", "10.96.0.10:80"]),
            "10.244.0.5 -> tcp 10.96.0.10:80
  cluster IP of shop/web:http (nftables mode)
  from a pod; internalTrafficPolicy Cluster
  goes to one of 2 endpoints:
    10.244.0.5:8080     50%  this node; sees this node's address (back to the pod it comes from)
    10.244.1.5:8080     50%  another node; sees the client's own address
  session affinity: 3h
  not used:
    10.244.0.6:8080          not ready
    10.244.1.16:8080         terminating, while others are ready
    10.244.2.7:8080          for other zones (hints: b)
  path: services > cluster-ip > pick
"
        );
        let contested = ask(&["--from", "203.0.113.9", "tcp", "198.51.100.1:80"]);
        assert!(contested.contains("  external IP of shop/web:http (nftables mode)\n"), "{contested}");
        assert!(
            contested.contains("  also claimed by shop/web-2: the first by name has it\n"),
            "{contested}"
        );
        assert_eq!(
            ask(&["tcp", "10.96.0.77:80"]),
            "192.0.2.11 -> tcp 10.96.0.77:80
  cluster IP of shop/web-2 (nftables mode)
  from this node itself; internalTrafficPolicy Cluster
  refused at once: no usable endpoint exists
  path: forward-check > service-endpoints-check > no-endpoints
"
        );
    });
}

#[test]
fn programs_read_json() {
    in_fresh_netns(|| {
        let json: Value = serde_json::from_str(&of_demo(
            "nftables",
            &["-o", "json", "--from", "10.244.0.5", "tcp", "10.96.0.10:80"],
        ))
        .unwrap();
        assert_eq!(
            json,
            json!({
                "source": "10.244.0.5",
                "protocol": "tcp",
                "destination": "10.96.0.10:80",
                "mode": "nftables",
                "origin": "pod",
                "frontend": {
                    "kind": "clusterIP",
                    "namespace": "default",
                    "service": "web",
                    "port": "http",
                    "deniedTo": [],
                },
                "policy": {"field": "internalTrafficPolicy", "value": "Cluster", "shortCircuit": false},
                "fate": "forwarded",
                "reason": null,
                "toThisNode": false,
                "endpoints": [{
                    "address": "10.244.0.5:8080",
                    "probability": 1.0,
                    "onThisNode": true,
                    "masquerade": "hairpin",
                }],
                "unused": [],
                "affinitySeconds": null,
                "chains": ["services", "cluster-ip-1"],
                "pending": false,
                "context": {
                    "fromPod": {"cidr": "10.244.0.0/16"},
                    "masqueradeAll": false,
                    "mark": 16384,
                    "nodePortsEverywhere": false,
                },
            })
        );
    });
}

#[test]
fn what_is_wrong_with_a_question_is_said() {
    in_fresh_netns(|| {
        for (arguments, want) in [
            (
                &["tcp", "10.96.0.10"][..],
                "Error: \"10.96.0.10\" is not an address with a port, such as 10.96.0.10:80 or [fd00::1]:80",
            ),
            (&["tcp", "10.96.0.10:80", "--from", "web-0"], "Error: --from: \"web-0\" is not an IP address"),
            (
                &["icmp", "10.96.0.10"],
                "Error: \"icmp\": services support only tcp, udp and sctp; \
                 a reply to ping does not depend on the service\n",
            ),
            (&["tpc", "10.96.0.10:80"], "Error: \"tpc\": services support only tcp, udp and sctp\n"),
            (&["10.96.0.10:80"], "required arguments were not provided:\n  <ADDRESS:PORT>"),
            (
                &["tcp", "10.96.0.10:80"],
                "Error: querying the proxy at 127.0.0.1:10249 (is it running, and is this its --metrics-bind-address?)",
            ),
            (
                &["tcp", "10.96.0.10:80", "--from", "fd00::1", "--manifests", DEMO],
                "Error: source and destination are not of the same IP family",
            ),
            (
                &[
                    "tcp",
                    "10.96.0.10:80",
                    "--from",
                    "10.1.1.1",
                    "--manifests",
                    DEMO,
                    "--detect-local-mode=BridgeInterface",
                    "--pod-bridge-interface=cni0",
                ],
                "name that of this packet with --interface",
            ),
        ] {
            let said = trouble(&explain(arguments).output().unwrap());
            assert!(said.contains(want), "{arguments:?}: {said}");
        }
    });
}

/// Both families are served, but the node is known by an address of one.
const HALF_KNOWN: &str = "
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10, 'fd00:10:96::10'], ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-6, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv6
ports: [{port: 8080}]
endpoints: [{addresses: ['fd00:10:244::5'], nodeName: node-1}]
";

/// In our own namespace; killed when dropped.
struct Proxy(Child);

impl Proxy {
    fn start(manifests: &str) -> Self {
        let mut command = Command::new(KUBE_PROXY);
        command.args(["--manifests", manifests, "--hostname-override=node-1", "--proxy-mode=nftables"]);
        Self(command.arg("--conntrack-max-per-core=0").stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_node_speaks_from_the_address_that_its_kernel_picks() {
    in_fresh_netns(|| {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("all.yaml"), HALF_KNOWN).unwrap();
        let folder = folder.path().to_str().unwrap();
        let ask = || {
            let mut command = explain(&["--manifests", folder, "--hostname-override", "node-1"]);
            command.args(["--proxy-mode", "nftables", "tcp", "[fd00:10:96::10]:80"]).output().unwrap()
        };
        let elsewhere = trouble(&ask());
        let want = "Error: node \"node-1\" has no IPv6 address and is not this machine: specify the \
                    source with --from\n";
        assert_eq!(elsewhere, want);
        run("ip link set lo up");
        run("ip link add eth0 type veth peer name wire");
        run("ip link set wire up");
        run("ip address add 192.0.2.11/24 dev eth0");
        run("ip link set eth0 up");
        let nowhere = trouble(&ask());
        let want = "Error: this node itself can't send to fd00:10:96::10 (network is unreachable): \
                    say with --from where the packet comes from\n";
        assert_eq!(nowhere, want);
        run("ip address add 2001:db8::11/64 dev eth0 nodad");
        run("ip route add default via 2001:db8::1 dev eth0");
        let own = said(&ask());
        assert!(own.starts_with("2001:db8::11 -> tcp [fd00:10:96::10]:80\n"), "{own}");
        assert!(own.contains("  from this node itself; "), "{own}");
        let _proxy = Proxy::start(folder);
        let ask = || explain(&["tcp", "[fd00:10:96::10]:80"]).output().unwrap();
        eventually("the proxy answers as the folder does", || String::from_utf8_lossy(&ask().stdout) == own);
        run("ip -6 route delete default");
        let nowhere = trouble(&ask());
        assert!(
            nowhere.contains(": this node itself can't send to fd00:10:96::10 (network is unreachable): say"),
            "{nowhere}"
        );
    });
}

#[test]
fn a_running_proxy_knows_who_sits_in_a_likelier_slot() {
    let manifests = |endpoints: &[String]| {
        let endpoints: String = endpoints.iter().map(|ip| format!("- {{addresses: [{ip}]}}\n")).collect();
        let (head, _) = RICH.split_once("- {addresses").unwrap();
        format!("{head}{endpoints}")
    };
    let all: Vec<String> = (10..27).map(|number| format!("10.244.0.{number}")).collect();
    in_fresh_netns(move || {
        run("ip link set lo up");
        let (folder, aside) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let hold = |endpoints: &[String]| {
            fs::write(aside.path().join("all.yaml"), manifests(endpoints)).unwrap();
            fs::rename(aside.path().join("all.yaml"), folder.path().join("all.yaml")).unwrap();
        };
        let manifests = folder.path().to_str().unwrap();
        let ask = |arguments: &[&str]| {
            let question = ["-o", "json", "tcp", "10.96.0.10:80"];
            let output = explain(&[arguments, &question[..]].concat()).output().unwrap();
            serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default()
        };
        let has = |answer: &Value, count: usize| {
            answer["pending"] == false && answer["endpoints"].as_array().unwrap().len() == count
        };
        let least = |answer: &Value| {
            let chance = |endpoint: &Value| endpoint["probability"].as_f64().unwrap();
            let mut endpoints = answer["endpoints"].as_array().unwrap().clone();
            assert!((endpoints.iter().map(chance).sum::<f64>() - 1.0).abs() < 1e-9, "{answer}");
            endpoints.sort_by(|a, b| chance(a).total_cmp(&chance(b)));
            assert!(chance(&endpoints[0]) < chance(&endpoints[1]), "{answer}");
            endpoints[0]["address"].clone()
        };
        hold(&all[1..]);
        let _proxy = Proxy::start(manifests);
        eventually("the proxy has sixteen endpoints", || has(&ask(&[]), 16));
        hold(&all);
        eventually("the proxy has seventeen endpoints", || has(&ask(&[]), 17));
        // The newest endpoint has the last slot, though a proxy that starts now would assign slots in order.
        assert_eq!(least(&ask(&[])), "10.244.0.10:8080");
        let anew = ["--manifests", manifests, "--hostname-override=node-1", "--proxy-mode=nftables"];
        assert_eq!(least(&ask(&anew)), "10.244.0.26:8080");
    });
}

const HEALTH_CHECKED: &str = "
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  type: LoadBalancer
  externalTrafficPolicy: Local
  healthCheckNodePort: 30999
  clusterIP: 10.96.0.10
  ports: [{port: 80, nodePort: 30080}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints:
- {addresses: [10.244.0.5], nodeName: node-1}
- {addresses: [10.244.0.6], nodeName: node-1, conditions: {ready: false}}
- {addresses: [10.244.1.5], nodeName: node-2}
";

/// What a load balancer receives there; `None` if nothing listens.
fn health_check(address: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.split(' ').nth(1).map(str::to_owned)
}

#[test]
fn explain_answers_for_health_check_node_ports() {
    in_fresh_netns(|| {
        run("ip link set lo up");
        run("ip address add 192.0.2.11/32 dev lo");
        let (folder, aside) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let hold = |manifests: &str| {
            fs::write(aside.path().join("all.yaml"), manifests).unwrap();
            fs::rename(aside.path().join("all.yaml"), folder.path().join("all.yaml")).unwrap();
        };
        let manifests = folder.path().to_str().unwrap();
        let of_folder = ["--manifests", manifests, "--hostname-override=node-1", "--proxy-mode=nftables"];
        let ask = |arguments: &[&str]| {
            explain(&[arguments, &["tcp", "192.0.2.11:30999"]].concat()).output().unwrap()
        };
        let says = |answer: &str| {
            format!(
                "192.0.2.11 -> tcp 192.0.2.11:30999
  health-check node port of shop/web (nftables mode)
  from this node itself
  not handled by the rules, delivered to the node itself: the proxy itself {answer}
"
            )
        };
        hold(HEALTH_CHECKED);
        let well = says("answers there, with 200: the service has 1 ready endpoint on this node");
        assert_eq!(said(&ask(&of_folder)), well);
        let taken = TcpListener::bind("192.0.2.11:30999").unwrap();
        let _proxy = Proxy::start(manifests);
        let silent = says(
            "should answer there, but cannot: listen tcp 192.0.2.11:30999: bind: address already in use",
        );
        eventually("the proxy can't listen", || String::from_utf8_lossy(&ask(&[]).stdout) == silent);
        drop(taken);
        let unwell = says("answers there, with 503: the service has no ready endpoint on this node");
        for (manifests, want, code) in [
            (HEALTH_CHECKED.replace("10.244.0.5", "10.244.0.7"), &well, "200"),
            (
                HEALTH_CHECKED.replace("[10.244.0.5], nodeName: node-1", "[10.244.0.5], nodeName: node-2"),
                &unwell,
                "503",
            ),
        ] {
            hold(&manifests);
            assert_eq!(said(&ask(&of_folder)), *want);
            eventually("the proxy answers", || health_check("192.0.2.11:30999").as_deref() == Some(code));
            eventually("the proxy says so", || String::from_utf8_lossy(&ask(&[]).stdout) == *want);
        }
        let json: Value = serde_json::from_str(&said(&ask(&["-o", "json"]))).unwrap();
        assert_eq!((&json["fate"], &json["reason"]), (&json!("untouched"), &json!("healthCheck")));
        assert_eq!(
            json["healthCheck"],
            json!({"namespace": "shop", "service": "web", "localEndpoints": 0, "proxyIsHealthy": true, "status": 503})
        );
        let udp = explain(&["udp", "192.0.2.11:30999"]).output().unwrap();
        assert!(said(&udp).contains("not a service address"));
    });
}

#[test]
fn a_running_proxy_explains_itself() {
    for mode in ["nftables", "iptables"] {
        let proxy = LabProxy::new(KUBE_PROXY, mode, Family::V4);
        let ask = |arguments: &[&str]| {
            let child = proxy.lab.network.node.spawn(&mut explain(arguments)).unwrap();
            child.wait_with_output().unwrap()
        };
        proxy.apply(web(&[A, R.but(State::Unready)]).external_local());
        let balancer = format!("{}:80", Address::LoadBalancerIp.ip(Family::V4));
        let arguments = ["--from", "192.0.2.200", "tcp", &balancer];
        eventually("the proxy knows the service", || {
            let output = ask(&arguments);
            output.status.success() && said(&output).contains("10.244.0.5:8080")
        });
        let text = said(&ask(&arguments));
        let lines: Vec<&str> = text.lines().collect();
        let first = format!("192.0.2.200 -> tcp {balancer}");
        let second = format!("  load-balancer IP of default/web:tcp-80 ({mode} mode)");
        assert_eq!(
            lines[..7],
            [
                &*first,
                &*second,
                "  from outside the cluster; externalTrafficPolicy Local",
                "  goes to the only endpoint, which sees the client's own address:",
                "    10.244.0.5:8080   100%  this node",
                "  not used:",
                "    10.244.1.5:8080         not on this node",
            ],
            "{text}"
        );
        // From the node itself, the policy does not bind.
        let own: Value = serde_json::from_str(&said(&ask(&["-o", "json", "tcp", &balancer]))).unwrap();
        assert_eq!(own["source"], "192.0.2.11");
        assert_eq!(own["policy"]["shortCircuit"], true);
        assert_eq!(own["endpoints"][0]["masquerade"], "fromNode");
        assert_eq!(own["unused"][0]["reason"], "notReady");
        // What is in the kernel is what should be there, and not what another folder asks for.
        let live = |arguments: &[&str]| {
            said(&ask(&[&["--live", "--from", "192.0.2.200", "tcp", &*balancer], arguments].concat()))
        };
        eventually("the kernel holds the service", || live(&[]).contains("  the kernel agrees\n"));
        let folder = TempDir::new().unwrap();
        let other = web(&[B]).external_local();
        fs::write(folder.path().join("all.yaml"), write(&[other.into()], Family::V4)).unwrap();
        let folder = folder.path().to_str().unwrap();
        let arguments = ["--manifests", folder, "--hostname-override=node-1", "--proxy-mode", mode];
        let text = live(&[&arguments[..], &["--cluster-cidr=10.244.0.0/16"]].concat());
        assert!(text.contains("    10.244.0.6:8080   100%  this node\n"), "{text}");
        assert!(text.ends_with("  the kernel DISAGREES: it forwards to 10.244.0.5:8080\n"), "{text}");
        let odd = trouble(&ask(&["--from", "fd00::1", "tcp", &balancer]));
        assert!(odd.contains("source and destination are not of the same IP family"), "{odd}");
    }
}
