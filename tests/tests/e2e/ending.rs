//! What ends the proxy, what does not, and what stays when it has ended.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::lab::Place;
use tests::cluster::proxy::{Mode, Proxy};
use tests::cluster::stage::Stage;
use tests::matrix::eventually;

use crate::{in_each_mode, stage};

in_each_mode!(rules_stay_when_the_proxy_is_told_to_go);

/// Line 17 of the checklist.
fn rules_stay_when_the_proxy_is_told_to_go(mode: Mode) {
    let stage = stage();
    let mut proxy = stage.proxy(mode);
    let web = stage.serve("web", &[Place::PodA]);
    stage.serves(&web, &[Place::PodA]);
    proxy.terminate();
    let status = proxy.wait();
    assert_eq!(status.signal(), Some(15), "{status}");
    stage.serves(&web, &[Place::PodA]);
}

/// A proxy that was told everything by a file.
fn configured(stage: &Stage) -> (Proxy, PathBuf) {
    let kubeconfig = stage.kubeconfig(stage.plane().address(), &stage.certified_proxy());
    let path = stage.folder().join("config.conf");
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
        stage.node
    );
    std::fs::write(&path, text).unwrap();
    let proxy = stage.proxy_told(&[format!("--config={}", path.display())]);
    let web = stage.serve("web", &[Place::PodA]);
    stage.serves(&web, &[Place::PodA]);
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
    let stage = stage();
    let (mut proxy, path) = configured(&stage);
    append(&path);
    assert_eq!(proxy.wait().code(), Some(1));
    let log = proxy.log();
    assert!(log.contains("content of the proxy server's configuration file was updated"), "{log}");
}

/// Line 10 of the checklist. That it still hears of the node afterwards shows that it had the time to end, and did not.
#[test]
#[ignore = "needs a control plane: make e2e"]
fn a_configuration_file_that_is_touched_or_replaced_does_not() {
    let stage = stage();
    let (mut proxy, path) = configured(&stage);
    for command in ["touch", "chmod 600"] {
        let mut words = command.split(' ');
        let mut command = Command::new(words.next().unwrap());
        assert!(command.args(words).arg(&path).status().unwrap().success());
    }
    let copy = path.with_extension("new");
    std::fs::copy(&path, &copy).unwrap();
    std::fs::rename(&copy, &path).unwrap();
    append(&path);
    stage.move_to("web", &[Place::PodB]);
    let web = stage.api().get(&stage.service("web"));
    stage.serves(&web, &[Place::PodB]);
    eventually("it runs", || proxy.is_running());
}
