//! What clusters are given: manifests that a real API server accepts, and pods that serve with no more rights than they ask
//! for.

mod monitoring;
mod render;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use testkit::lab::Place;
use tests::cluster::api::Trial;
use tests::cluster::kubelet::Pod;
use tests::cluster::manifests::{Applied, apply, find, parse, path, read};
use tests::cluster::proxy::{Mode, Proxy};
use tests::cluster::stage::Stage;
use tests::matrix::eventually;

use crate::{in_each_mode, stage};
use render::{Release, chart, kustomized, lint, overlay, refusal, tool};

in_each_mode!(a_pod_of_the_chart_serves, a_pod_of_the_overlay_serves);

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging").canonicalize().unwrap()
}

/// What the test bed needs said: where the API server is, and that a limit of the whole machine is not ours to set.
fn values(stage: &Stage, mode: Mode) -> Value {
    json!({
        "mode": mode.name(),
        "apiServer": format!("https://{}", stage.plane().address()),
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

/// The overlay of the mode with the API server of the stage in it, as its comments ask for.
fn own_overlay(stage: &Stage, mode: Mode) -> Vec<Value> {
    let kubeconfig =
        std::fs::read_to_string(packaging().join("kustomize/own-config/kubeconfig.conf")).unwrap();
    let address = stage.plane().address().to_string();
    let kubeconfig = kubeconfig.replace("kubernetes.example:6443", &address);
    assert!(kubeconfig.contains(&address), "{kubeconfig}");
    kustomized(
        stage.folder(),
        mode.name(),
        &[("config.conf", &config(mode)), ("kubeconfig.conf", &kubeconfig)],
    )
}

/// The root of the image that a DaemonSet names, with the program that is put to the test.
fn image(stage: &Stage, daemon_set: &Value) -> PathBuf {
    let name = daemon_set["spec"]["template"]["spec"]["containers"][0]["image"].as_str().unwrap();
    let kind = if name.ends_with("-iptables") { "iptables" } else { "nftables" };
    let root = stage.folder().join("image");
    let mut assemble = Command::new(packaging().join("image/assemble-root"));
    let assembled = assemble.arg(kind).arg(&root).arg(stage.kube_proxy()).status().unwrap();
    assert!(assembled.success());
    root
}

fn a_pod_of_the_chart_serves(mode: Mode) {
    let stage = stage();
    serves(&stage, mode, &chart(&values(&stage, mode)));
}

fn a_pod_of_the_overlay_serves(mode: Mode) {
    let stage = stage();
    serves(&stage, mode, &own_overlay(&stage, mode));
}

fn serves(stage: &Stage, mode: Mode, objects: &[Value]) {
    let mut applied = Applied::new(stage.api());
    applied.apply_all(objects);
    let daemon_set = applied.apply(find(objects, "DaemonSet"));
    serves_as_its_pod(stage, mode, &daemon_set);
}

/// First the container that prepares the node, then the one that stays: with its rights and no others, the kernel's
/// settings are as the configuration says, and services are served.
fn serves_as_its_pod(stage: &Stage, mode: Mode, daemon_set: &Value) {
    let pod = Pod::new(stage, daemon_set, &image(stage, daemon_set));
    pod.initialize();
    let setting = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait";
    let found = stage.lab.network.node.enter(|| std::fs::read_to_string(setting)).unwrap();
    assert_eq!(found.trim(), "3540");
    let proxy = pod.run();
    assert_eq!(rights(&proxy), [pod.capabilities(); 3], "\n{}", proxy.log());
    assert_eq!(proxy.metrics("/proxyMode").unwrap().body, mode.name());
    let web = stage.serve("web", &[Place::PodA, Place::Remote(5)]);
    stage.serves(&web, &[Place::PodA, Place::Remote(5)]);
    stage.move_to("web", &[Place::PodB]);
    stage.serves(&web, &[Place::PodB]);
    // One is upstream's own, about a default that it would rather not have.
    let log = proxy.log();
    let complaints =
        log.lines().filter(|line| line.starts_with('E') && !line.contains("nodePortAddresses is unset"));
    assert_eq!(complaints.collect::<Vec<_>>(), [""; 0]);
}

/// Permitted, effective and bounding capabilities of the process, and that it can never get others.
fn rights(proxy: &Proxy) -> [u64; 3] {
    let status = std::fs::read_to_string(format!("/proc/{}/status", proxy.id())).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
        line.unwrap_or_else(|| panic!("no {name} in {status}")).to_owned()
    };
    assert_eq!(field("NoNewPrivs"), "1");
    ["CapPrm", "CapEff", "CapBnd"].map(|name| u64::from_str_radix(&field(name), 16).unwrap())
}

/// As kubeadm v1.36 leaves them behind: cmd/kubeadm/app/phases/addons/proxy/manifests.go.
fn of_kubeadm(stage: &Stage, mode: &str) -> Vec<Value> {
    let manifests = include_str!("packaging/kubeadm.yaml")
        .replace("CONTROL_PLANE_ENDPOINT", &format!("https://{}", stage.plane().address()))
        .replace("MODE", mode);
    parse(&manifests)
}

/// Its objects are taken over, its configuration stays, and what it was allowed beyond our needs is gone.
#[test]
#[ignore = "needs a control plane: make e2e"]
fn the_proxy_of_kubeadm_is_replaced_in_place() {
    let stage = stage();
    let mut applied = Applied::new(stage.api());
    for object in of_kubeadm(&stage, "") {
        applied.create(&object);
    }
    let objects = overlay("kubeadm");
    assert!(objects.iter().all(|object| object["kind"] != "ConfigMap"), "kubeadm's is kept");
    applied.apply_all(&objects);
    let daemon_set = applied.apply(find(&objects, "DaemonSet"));
    let pod = &daemon_set["spec"]["template"]["spec"];
    let [container] = pod["containers"].as_array().unwrap().as_slice() else { panic!("{pod}") };
    assert_eq!(container["securityContext"]["privileged"], false);
    assert_eq!(container["image"], "sluice:0.1.0-iptables");
    // Whoever leaves the mode out means this one.
    serves_as_its_pod(&stage, Mode::Iptables, &daemon_set);
}

/// Where the kubelet uses the legacy variant of iptables, so does the pod, and its rights suffice for that.
#[test]
#[ignore = "needs a control plane: make e2e"]
fn the_variant_of_iptables_is_that_of_the_node() {
    let stage = stage();
    let node = &stage.lab.network.node;
    node.run("iptables-legacy -t mangle -N KUBE-IPTABLES-HINT");
    serves(&stage, Mode::Iptables, &chart(&values(&stage, Mode::Iptables)));
    assert!(node.run("iptables-legacy-save -t nat").contains("KUBE-SVC"));
    assert!(!node.run("iptables-nft-save").contains("KUBE-SVC"));
}

/// The chart over what kubeadm wrote, after the mode was changed there; installed as the migration guide says.
#[test]
#[ignore = "needs a control plane: make e2e"]
fn the_chart_takes_over_from_kubeadm_and_leaves_its_configuration_alone() {
    let stage = stage();
    let mut applied = Applied::new(stage.api());
    let found = of_kubeadm(&stage, "nftables");
    for object in &found {
        applied.create(object);
    }
    let _release =
        Release::install(&stage, &json!({"iptablesPrograms": true, "configMap": {"create": false}}));
    let now = |kind| stage.api().get(&path(find(&found, kind)));
    assert_eq!(now("ConfigMap")["data"], find(&found, "ConfigMap")["data"]);
    let daemon_set = now("DaemonSet");
    assert_eq!(daemon_set["metadata"]["labels"]["app.kubernetes.io/managed-by"], "Helm");
    serves_as_its_pod(&stage, Mode::Nftables, &daemon_set);
}

#[test]
#[ignore = "needs a control plane: make e2e"]
fn whatever_is_rendered_is_what_the_api_server_knows() {
    let stage = stage();
    let mut schemas = Applied::new(stage.api());
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
    renderings.extend([Mode::Nftables, Mode::Iptables].map(|mode| chart(&values(&stage, mode))));
    renderings.extend(["nftables", "iptables", "kubeadm"].map(overlay));
    for object in renderings.iter().flatten() {
        // A kind that was taught just now is served a moment later.
        let mut refused = None;
        let accepted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually("accepted", || {
                refused = apply(stage.api(), object, Trial::DryRun).err();
                !refused.as_ref().is_some_and(|refusal| refusal.to_string().contains("404"))
            });
        }));
        assert!(accepted.is_ok() && refused.is_none(), "{refused:?}\n{object:#}");
    }
    // Every kind that there is was among them.
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
fn values_that_make_no_sense_are_refused_in_words() {
    lint(&json!({"apiServer": "https://192.0.2.1:6443"}));
    for (values, word) in [
        (json!({}), "set apiServer to the address at which nodes reach the API server"),
        (json!({"apiServer": "192.0.2.1"}), "apiServer"),
        (json!({"apiServer": "https://192.0.2.1", "mode": "ipvs"}), "mode"),
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
