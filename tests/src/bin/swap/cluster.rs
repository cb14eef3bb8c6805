//! The cluster, as kubectl shows it and changes it.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use model::address::Family;
use model::names::Protocol;
use serde_json::{Value, json};
use testkit::echo;
use testkit::namespace::Namespace;
use testkit::probe::{Answer, Server, probe};
use testkit::wait::{eventually, within};
use tests::cluster::http;
use tests::cluster::proxy::METRICS_ADDRESS;

/// The ports of the containers in `pods.yaml`.
const WEB: u16 = 8080;
const ECHO: u16 = 8081;
/// kubelet may restart a pod several times, with growing delays, until upstream's proxy can start.
const SYNC_TIMEOUT: Duration = Duration::from_mins(5);

fn kubectl(arguments: &[&str]) -> String {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hack/cluster/kubectl");
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "kubectl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn get(arguments: &[&str]) -> Value {
    serde_json::from_str(&kubectl(&[&["get", "--output", "json"], arguments].concat())).unwrap()
}

fn items(list: &Value) -> &[Value] {
    list["items"].as_array().unwrap()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

/// The addresses in a list of objects with a field `ip`.
fn ips(list: &Value) -> Vec<IpAddr> {
    list.as_array().unwrap().iter().map(|it| text(&it["ip"]).parse().unwrap()).collect()
}

fn with_port(ips: &[IpAddr], port: u16) -> Vec<SocketAddr> {
    ips.iter().map(|ip| SocketAddr::new(*ip, port)).collect()
}

/// The namespace `swap`, deleted when dropped.
#[derive(Debug)]
pub struct Deployed;

impl Drop for Deployed {
    fn drop(&mut self) {
        kubectl(&["delete", "namespace", "swap", "--wait=false"]);
    }
}

/// Deploys a pod per node, and a Service with all kinds of frontends.
pub fn deploy() -> Deployed {
    kubectl(&["create", "namespace", "swap"]);
    let deployed = Deployed;
    let pods = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bin/swap/pods.yaml");
    kubectl(&["apply", "--namespace", "swap", "--filename", pods.to_str().unwrap()]);
    kubectl(&["rollout", "status", "--namespace", "swap", "--timeout", "5m", "daemonset/web"]);
    let addresses = "jsonpath={.status.loadBalancer.ingress}";
    kubectl(&["wait", "--namespace", "swap", "--timeout", "1m", "--for", addresses, "service/web"]);
    deployed
}

/// A running pod of the Service.
#[derive(Debug)]
pub struct Pod {
    pub node: String,
    pub namespace: Namespace,
    ips: Vec<IpAddr>,
}

impl Pod {
    /// Sorted by node.
    pub fn list() -> Vec<Self> {
        let list = get(&["pods", "--namespace", "swap"]);
        let pods = items(&list).iter().map(|pod| Self {
            node: text(&pod["spec"]["nodeName"]),
            namespace: namespace_of(&text(&pod["metadata"]["name"])),
            ips: ips(&pod["status"]["podIPs"]),
        });
        let mut pods: Vec<Self> = pods.collect();
        pods.sort_by(|a, b| a.node.cmp(&b.node));
        pods
    }

    /// Serves in the namespace of the pod until this process ends.
    pub fn serve(&self) {
        std::mem::forget(Server::start_all(&self.namespace, &with_port(&self.ips, WEB)));
        for address in with_port(&self.ips, ECHO) {
            echo::serve(&self.namespace, address);
        }
    }
}

/// The network namespace of the pod, found by the variable that kubelet gives its containers.
fn namespace_of(pod: &str) -> Namespace {
    let variable = format!("HOSTNAME={pod}");
    let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let mut found = processes.filter(|process| {
        let variables = fs::read(process.join("environ")).unwrap_or_default();
        variables.split(|byte| *byte == 0).any(|it| it == variable.as_bytes())
    });
    let process = found.next().unwrap_or_else(|| panic!("no process of the pod {pod}"));
    Namespace::open(process.join("ns/net")).unwrap()
}

/// The Service of the pods.
#[derive(Debug)]
pub struct Service {
    object: Value,
    pub web: u16,
    pub echo: u16,
    pub web_node_port: u16,
    pub echo_node_port: u16,
}

impl Service {
    pub fn read() -> Self {
        let object = get(&["service", "web", "--namespace", "swap"]);
        let port = |name: &str, field: &str| {
            let ports = object["spec"]["ports"].as_array().unwrap();
            let port = ports.iter().find(|port| port["name"] == name).unwrap();
            u16::try_from(port[field].as_u64().unwrap()).unwrap()
        };
        Self {
            web: port("web", "port"),
            echo: port("echo", "port"),
            web_node_port: port("web", "nodePort"),
            echo_node_port: port("echo", "nodePort"),
            object,
        }
    }

    pub fn cluster_ips(&self, port: u16) -> Vec<SocketAddr> {
        let ips = self.object["spec"]["clusterIPs"].as_array().unwrap();
        let ips: Vec<IpAddr> = ips.iter().map(|ip| text(ip).parse().unwrap()).collect();
        with_port(&ips, port)
    }

    pub fn load_balancer_ips(&self, port: u16) -> Vec<SocketAddr> {
        with_port(&ips(&self.object["status"]["loadBalancer"]["ingress"]), port)
    }

    /// Waits until every frontend answers every client.
    pub fn wait_until_served(&self, pods: &[Pod]) {
        let outside = Namespace::open("/run/netns/sluice-outside").unwrap();
        let wait = |from: &Namespace, to: SocketAddr| {
            eventually(&format!("{to} answers"), || {
                matches!(probe(from, Protocol::Tcp, to), Answer::From { .. })
            });
        };
        for to in self.cluster_ips(self.web) {
            pods.iter().for_each(|pod| wait(&pod.namespace, to));
        }
        for to in nodes(self.web_node_port).into_iter().chain(self.load_balancer_ips(self.web)) {
            wait(&outside, to);
        }
    }
}

/// The addresses of all nodes, with a port.
pub fn nodes(port: u16) -> Vec<SocketAddr> {
    let list = get(&["nodes"]);
    let addresses = items(&list).iter().flat_map(|node| node["status"]["addresses"].as_array().unwrap());
    let internal = addresses.filter(|address| address["type"] == "InternalIP");
    internal.map(|it| SocketAddr::new(text(&it["address"]).parse().unwrap(), port)).collect()
}

/// Changes only the image of the DaemonSet, and waits for the rolling update.
pub fn set_image(image: &str) {
    let change = ["--namespace", "kube-system", "daemonset/kube-proxy", &format!("kube-proxy={image}")];
    kubectl(&[&["set", "image"], &change[..]].concat());
    wait_for_proxies();
}

/// Changes the image back to upstream's, whose nftables mode cannot start while our table exists: an init container removes it.
pub fn clean_up_and_set_image(ours: &str, image: &str) {
    let pod = json!({
        "initContainers": [{
            "name": "remove-sluice",
            "image": ours,
            "command": ["/usr/local/bin/kube-proxy", "--cleanup"],
            "securityContext": {"privileged": true},
        }],
        "containers": [{"name": "kube-proxy", "image": image}],
    });
    patch("strategic", &json!({"spec": {"template": {"spec": pod}}}));
}

/// Otherwise every start of a pod would remove the rules, upstream's as well.
pub fn remove_init_containers() {
    patch("json", &json!([{"op": "remove", "path": "/spec/template/spec/initContainers"}]));
}

/// Patches the DaemonSet, and waits for the rolling update.
fn patch(kind: &str, patch: &Value) {
    let patch = patch.to_string();
    let change = ["--namespace", "kube-system", "--type", kind, "--patch", &patch];
    kubectl(&[&["patch", "daemonset", "kube-proxy"], &change[..]].concat());
    wait_for_proxies();
}

pub fn delete_proxy(node: &str) {
    let node = format!("spec.nodeName={node}");
    let selection = ["--selector", "k8s-app=kube-proxy", "--field-selector", &node];
    kubectl(&[&["delete", "pod", "--namespace", "kube-system"], &selection[..]].concat());
    wait_for_proxies();
}

/// Waits until the new pods run and have synced both families; the DaemonSet of kubeadm has no readiness probe.
fn wait_for_proxies() {
    kubectl(&["rollout", "status", "--namespace", "kube-system", "--timeout", "5m", "daemonset/kube-proxy"]);
    for node in items(&get(&["nodes"])) {
        let name = text(&node["metadata"]["name"]);
        let namespace = Namespace::open(format!("/run/netns/sluice-{name}")).unwrap();
        let what = format!("kube-proxy on {name} has synced");
        within(SYNC_TIMEOUT, &what, || syncs(&namespace) == Family::BOTH.len());
    }
}

/// The number of families that kube-proxy has synced since it started.
fn syncs(node: &Namespace) -> usize {
    let page = http::get(node, METRICS_ADDRESS.parse().unwrap(), "/metrics").map(|page| page.body);
    let page = page.unwrap_or_default();
    let values = page.lines().filter_map(|line| {
        line.strip_prefix("kubeproxy_sync_proxy_rules_last_timestamp_seconds{")?
            .rsplit(' ')
            .next()?
            .parse::<f64>()
            .ok()
    });
    values.filter(|time| *time > 0.0).count()
}
