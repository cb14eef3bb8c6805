//! The packaging: the API server accepts all manifests, and their pods serve with the capabilities that they ask for.

mod monitoring;
mod render;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use testkit::lab::Place;
use testkit::wait::{USUAL_TIMEOUT, holds_within};
use tests::cluster::api::ApplyMode;
use tests::cluster::kubelet::DaemonSetPod;
use tests::cluster::manifests::{AppliedObjects, apply, find, parse, path, read};
use tests::cluster::proxy::{Mode, Proxy};
use tests::cluster::test_cluster::TestCluster;

use crate::{cluster, in_each_mode};
use render::{Release, chart, kustomized, lint, overlay, refusal, tool};

in_each_mode!(a_pod_of_the_chart_serves, a_pod_of_the_overlay_serves);

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("packaging")
}

/// The chart values that the test needs: the address of the API server, and no change to a limit of the whole machine.
fn values(cluster: &TestCluster, mode: Mode) -> Value {
    json!({
        "mode": mode.name(),
        "apiServer": format!("https://{}", cluster.control_plane().address()),
        "clusterCIDR": "10.244.0.0/16,fd00:10:244::/48",
        "config": {"conntrack": {"maxPerCore": 0, "tcpCloseWaitTimeout": "59m0s"}},
        "verbosity": 2,
    })
}

fn config(mode: Mode) -> String {
    let config = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": mode.name(),
        "clusterCIDR": "10.244.0.0/16,fd00:10:244::/48",
        "clientConnection": {"kubeconfig": "/var/lib/kube-proxy/kubeconfig.conf"},
        "conntrack": {"maxPerCore": 0, "tcpCloseWaitTimeout": "59m0s"},
    });
    config.to_string()
}

/// The overlay of the mode with the address of the API server filled in, as its comments say.
fn edited_overlay(cluster: &TestCluster, mode: Mode) -> Vec<Value> {
    let kubeconfig =
        std::fs::read_to_string(packaging().join("kustomize/own-config/kubeconfig.conf")).unwrap();
    let address = cluster.control_plane().address().to_string();
    let kubeconfig = kubeconfig.replace("kubernetes.example:6443", &address);
    assert!(kubeconfig.contains(&address), "{kubeconfig}");
    kustomized(
        cluster.folder(),
        mode.name(),
        &[("config.conf", &config(mode)), ("kubeconfig.conf", &kubeconfig)],
    )
}

/// Assembles the image that a DaemonSet names, with the binary under test, and returns its root.
fn image(cluster: &TestCluster, daemon_set: &Value) -> PathBuf {
    let name = daemon_set["spec"]["template"]["spec"]["containers"][0]["image"].as_str().unwrap();
    let kind = if name.ends_with("-iptables") { "iptables" } else { "nftables" };
    let root = cluster.folder().join("image");
    let mut assemble = Command::new(packaging().join("image/assemble-root"));
    let assembled = assemble.arg(kind).arg(&root).arg(cluster.kube_proxy()).status().unwrap();
    assert!(assembled.success());
    root
}

fn a_pod_of_the_chart_serves(mode: Mode) {
    let cluster = cluster();
    serves(&cluster, mode, &chart(&values(&cluster, mode)));
}

fn a_pod_of_the_overlay_serves(mode: Mode) {
    let cluster = cluster();
    serves(&cluster, mode, &edited_overlay(&cluster, mode));
}

fn serves(cluster: &TestCluster, mode: Mode, objects: &[Value]) {
    let mut applied = AppliedObjects::new(cluster.api());
    applied.apply_all(objects);
    let daemon_set = applied.apply(find(objects, "DaemonSet"));
    assert_pod_serves(cluster, mode, &daemon_set);
}

/// Runs the init container and then kube-proxy, with the capabilities of the pod only: sysctls are set as configured, and
/// Services are served.
fn assert_pod_serves(cluster: &TestCluster, mode: Mode, daemon_set: &Value) {
    let pod = DaemonSetPod::new(cluster, daemon_set, &image(cluster, daemon_set));
    pod.run_init_containers();
    let setting = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait";
    let found = cluster.lab.network.node.enter(|| std::fs::read_to_string(setting)).unwrap();
    assert_eq!(found.trim(), "3540");
    let proxy = pod.run();
    assert_eq!(capabilities(&proxy), [pod.capabilities(); 3], "\n{}", proxy.log());
    assert_eq!(proxy.metrics("/proxyMode").unwrap().body, mode.name());
    let web = cluster.create_service("web", &[Place::PodA, Place::Remote(5)]);
    cluster.wait_until_served(&web, &[Place::PodA, Place::Remote(5)]);
    cluster.move_endpoints("web", &[Place::PodB]);
    cluster.wait_until_served(&web, &[Place::PodB]);
    // Upstream logs this error about its default, too.
    let log = proxy.log();
    let errors =
        log.lines().filter(|line| line.starts_with('E') && !line.contains("nodePortAddresses is unset"));
    assert_eq!(errors.collect::<Vec<_>>(), [""; 0]);
}

/// The permitted, effective and bounding capabilities of the process, which must not be able to gain others.
fn capabilities(proxy: &Proxy) -> [u64; 3] {
    let status = std::fs::read_to_string(format!("/proc/{}/status", proxy.pid())).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
        line.unwrap_or_else(|| panic!("no {name} in {status}")).to_owned()
    };
    assert_eq!(field("NoNewPrivs"), "1");
    ["CapPrm", "CapEff", "CapBnd"].map(|name| u64::from_str_radix(&field(name), 16).unwrap())
}

/// The objects that kubeadm v1.36 creates: cmd/kubeadm/app/phases/addons/proxy/manifests.go.
fn kubeadm_objects(cluster: &TestCluster, mode: &str) -> Vec<Value> {
    let manifests = include_str!("packaging/kubeadm.yaml")
        .replace("CONTROL_PLANE_ENDPOINT", &format!("https://{}", cluster.control_plane().address()))
        .replace("MODE", mode);
    parse(&manifests)
}

/// The overlay takes over kubeadm's objects, keeps its configuration, and removes privileges.
#[test]
#[ignore = "needs a control plane: make e2e"]
fn the_proxy_of_kubeadm_is_replaced_in_place() {
    let cluster = cluster();
    let mut applied = AppliedObjects::new(cluster.api());
    for object in kubeadm_objects(&cluster, "") {
        applied.create(&object);
    }
    let objects = overlay("kubeadm");
    assert!(
        objects.iter().all(|object| object["kind"] != "ConfigMap"),
        "the overlay keeps kubeadm's ConfigMap"
    );
    applied.apply_all(&objects);
    let daemon_set = applied.apply(find(&objects, "DaemonSet"));
    let pod = &daemon_set["spec"]["template"]["spec"];
    let [container] = pod["containers"].as_array().unwrap().as_slice() else { panic!("{pod}") };
    assert_eq!(container["securityContext"]["privileged"], false);
    assert_eq!(container["image"], "sluice:0.1.0-iptables");
    // An empty mode means iptables.
    assert_pod_serves(&cluster, Mode::Iptables, &daemon_set);
}

/// Where kubelet uses the legacy variant of iptables, the pod does, too, and its capabilities suffice for that.
#[test]
#[ignore = "needs a control plane: make e2e"]
fn the_pod_uses_the_iptables_variant_of_the_node() {
    let cluster = cluster();
    let node = &cluster.lab.network.node;
    node.run("iptables-legacy -t mangle -N KUBE-IPTABLES-HINT");
    serves(&cluster, Mode::Iptables, &chart(&values(&cluster, Mode::Iptables)));
    assert!(node.run("iptables-legacy-save -t nat").contains("KUBE-SVC"));
    assert!(!node.run("iptables-nft-save").contains("KUBE-SVC"));
}

/// The chart replaces kubeadm's objects after a change of the mode, installed as the migration guide says.
#[test]
#[ignore = "needs a control plane: make e2e"]
fn the_chart_takes_over_from_kubeadm_and_keeps_its_configuration() {
    let cluster = cluster();
    let mut applied = AppliedObjects::new(cluster.api());
    let found = kubeadm_objects(&cluster, "nftables");
    for object in &found {
        applied.create(object);
    }
    let _release =
        Release::install(&cluster, &json!({"iptablesPrograms": true, "configMap": {"create": false}}));
    let now = |kind| cluster.api().get(&path(find(&found, kind)));
    assert_eq!(now("ConfigMap")["data"], find(&found, "ConfigMap")["data"]);
    let daemon_set = now("DaemonSet");
    assert_eq!(daemon_set["metadata"]["labels"]["app.kubernetes.io/managed-by"], "Helm");
    assert_pod_serves(&cluster, Mode::Nftables, &daemon_set);
}

#[test]
#[ignore = "needs a control plane: make e2e"]
fn the_api_server_accepts_all_rendered_objects() {
    let cluster = cluster();
    let mut schemas = AppliedObjects::new(cluster.api());
    for file in ["servicemonitors", "prometheusrules"] {
        let path = tool("operator-schemas").join(format!("monitoring.coreos.com_{file}.yaml"));
        schemas.apply_all(&read(&path));
    }
    let everything = json!({
        "mode": "iptables",
        "apiServer": "https://192.0.2.1:6443",
        "clusterCIDR": "10.244.0.0/16,fd00:10:244::/48",
        "config": {"iptables": {"minSyncPeriod": "1s"}, "nodePortAddresses": ["primary"], "conntrack": {"min": 1_048_576}},
        "image": {"repository": "registry.example/sluice", "tag": "1", "pullPolicy": "Always", "pullSecrets": [{"name": "pull"}]},
        "extraArgs": ["--masquerade-all"],
        "verbosity": 4,
        "connectionMetrics": true,
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "proxy", "operator": "NotIn", "values": ["none"]}]},
        ]}}},
        "resources": {"limits": {"memory": "256Mi"}},
        "updateStrategy": {"type": "OnDelete", "rollingUpdate": null},
        "podLabels": {"team": "network"},
        "podAnnotations": {"note": "hello"},
        "seccompProfile": {"type": "Localhost", "localhostProfile": "sluice/iptables.json"},
        "seLinuxOptions": {"type": "spc_t"},
        "serviceMonitor": {"enabled": true, "interval": "15s", "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": true, "labels": {"release": "prometheus"}},
        "dashboard": {"enabled": true},
    });
    let least = json!({
        "configMap": {"create": false}, "clusterRoleBinding": {"create": false}, "priorityClassName": "",
        "tolerations": [], "nodeSelector": null, "resources": null, "name": "other",
    });
    let mut renderings = vec![chart(&everything), chart(&least)];
    renderings
        .extend([Mode::Nftables, Mode::Iptables, Mode::Ipvs].map(|mode| chart(&values(&cluster, mode))));
    renderings.extend(["nftables", "iptables", "kubeadm"].map(overlay));
    for object in renderings.iter().flatten() {
        // The API server serves a new CRD only after a moment.
        let mut refused = None;
        let is_served = holds_within(USUAL_TIMEOUT, || {
            refused = apply(cluster.api(), object, ApplyMode::DryRun).err();
            !refused.as_ref().is_some_and(|error| error.to_string().contains("404"))
        });
        assert!(is_served && refused.is_none(), "{refused:?}\n{object:#}");
    }
    // The renderings covered every kind.
    let kinds: std::collections::BTreeSet<&str> =
        renderings.iter().flatten().map(|object| object["kind"].as_str().unwrap()).collect();
    let all = [
        "ClusterRoleBinding",
        "ConfigMap",
        "DaemonSet",
        "PrometheusRule",
        "Service",
        "ServiceAccount",
        "ServiceMonitor",
    ];
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), all);
}

#[test]
#[ignore = "needs the tools of packaging: make e2e"]
fn invalid_chart_values_are_refused_with_a_reason() {
    lint(&json!({"apiServer": "https://192.0.2.1:6443"}));
    for (values, word) in [
        (json!({}), "set apiServer to the address at which nodes reach the API server"),
        (json!({"apiServer": "192.0.2.1"}), "apiServer"),
        (json!({"apiServer": "https://192.0.2.1", "mode": "userspace"}), "mode"),
        (json!({"apiServer": "https://192.0.2.1", "config": {"mode": "iptables"}}), "config"),
        (json!({"apiServer": "https://192.0.2.1", "conectionMetrics": true}), "conectionMetrics"),
        (
            json!({"apiServer": "https://192.0.2.1", "seccompProfile": {"type": "Localhost"}}),
            "localhostProfile",
        ),
        (
            json!({"apiServer": "https://192.0.2.1", "seccompProfile": {"localhostProfile": "sluice/nftables.json"}}),
            "localhostProfile",
        ),
    ] {
        let refusal = refusal(&values);
        assert!(refusal.contains(word), "{values}: {refusal}");
    }
}
