//! What ends the proxy, what does not, and what remains afterwards.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::lab::Place;
use tests::cluster::proxy::{Mode, Proxy};
use tests::cluster::test_cluster::TestCluster;

use crate::{cluster, in_each_mode};

in_each_mode!(rules_stay_when_the_proxy_is_terminated);

/// Line 17 of the checklist.
fn rules_stay_when_the_proxy_is_terminated(mode: Mode) {
    let cluster = cluster();
    let mut proxy = cluster.proxy(mode);
    let web = cluster.create_service("web", &[Place::PodA]);
    cluster.wait_until_served(&web, &[Place::PodA]);
    proxy.terminate();
    let status = proxy.wait();
    assert_eq!(status.signal(), Some(15), "{status}");
    cluster.wait_until_served(&web, &[Place::PodA]);
}

/// Starts a proxy with a configuration file, and waits until it serves.
fn start_with_config(cluster: &TestCluster) -> (Proxy, PathBuf) {
    let kubeconfig = cluster.kubeconfig(cluster.control_plane().address(), &cluster.proxy_user());
    let path = cluster.folder().join("config.conf");
    let text = format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {{kubeconfig: {}}}
hostnameOverride: {}
clusterCIDR: 10.244.0.0/16,fd00:10:244::/48
conntrack: {{maxPerCore: 0}}
",
        kubeconfig.display(),
        cluster.node
    );
    std::fs::write(&path, text).unwrap();
    let proxy = cluster.proxy_with_flags(&[format!("--config={}", path.display())]);
    let web = cluster.create_service("web", &[Place::PodA]);
    cluster.wait_until_served(&web, &[Place::PodA]);
    (proxy, path)
}

fn append(path: &Path) {
    let mut file = std::fs::File::options().append(true).open(path).unwrap();
    std::io::Write::write_all(&mut file, b"# changed\n").unwrap();
}

/// Line 10 of the checklist.
#[test]
#[ignore = "needs a control plane: make e2e"]
fn a_configuration_file_that_is_edited_in_place_ends_the_proxy() {
    let cluster = cluster();
    let (mut proxy, path) = start_with_config(&cluster);
    append(&path);
    assert_eq!(proxy.wait().code(), Some(1));
    let log = proxy.log();
    assert!(log.contains("content of the proxy server's configuration file was updated"), "{log}");
}

/// Line 10 of the checklist. That the proxy still applies a change afterwards shows that it had the time to end, and did not.
#[test]
#[ignore = "needs a control plane: make e2e"]
fn a_configuration_file_that_is_touched_or_replaced_does_not_end_the_proxy() {
    let cluster = cluster();
    let (mut proxy, path) = start_with_config(&cluster);
    for command in ["touch", "chmod 600"] {
        let mut words = command.split(' ');
        let mut command = Command::new(words.next().unwrap());
        assert!(command.args(words).arg(&path).status().unwrap().success());
    }
    let copy = path.with_extension("new");
    std::fs::copy(&path, &copy).unwrap();
    std::fs::rename(&copy, &path).unwrap();
    append(&path);
    cluster.move_endpoints("web", &[Place::PodB]);
    let web = cluster.api().get(&cluster.service("web"));
    cluster.wait_until_served(&web, &[Place::PodB]);
    assert!(proxy.is_running());
}
