//! The least that kube-proxy needs: user nobody, only `CAP_NET_ADMIN`, a read-only root, 64 descriptors, 64 MiB of memory, and
//! a seccomp profile of `packaging/seccomp`.

use std::fs;
use std::path::Path;
use std::process::Command;

use testkit::lab::Place;
use tests::cluster::kubeconfig;
use tests::cluster::proxy::{Mode, flags};
use tests::container::{Confinement, Container, Image};

use crate::{cluster, in_each_mode};

in_each_mode!(a_confined_proxy_follows_the_api_server);

/// The folder of the container with the kubeconfig file and the certificates.
const FOLDER: &str = "/var/lib/kube-proxy";

fn a_confined_proxy_follows_the_api_server(mode: Mode) {
    let mut cluster = cluster();
    // The work of the privileged init container.
    let kubeconfig = cluster.kubeconfig(cluster.control_plane().address(), &cluster.proxy_user());
    let mut prepare = Command::new(cluster.kube_proxy());
    prepare.args(flags(mode, &cluster.node, &kubeconfig)).arg("--init-only");
    assert!(cluster.lab.network.node.enter(|| prepare.output()).unwrap().status.success());

    // Readable for the user nobody.
    let folder = tempfile::Builder::new().permissions(permissions()).tempdir().unwrap();
    for name in ["ca.crt", "kube-proxy.crt", "kube-proxy.key"] {
        fs::copy(cluster.control_plane().folder.join(name), folder.path().join(name)).unwrap();
    }
    let user = kubeconfig::certificate_user(Path::new(FOLDER), "kube-proxy");
    let server = cluster.control_plane().address().to_string();
    kubeconfig::write(&folder.path().join("kubeconfig"), &server, Path::new(FOLDER), &user);
    let (profile, seccomp) = match mode {
        Mode::Nftables => ("nftables", "nftables.json"),
        Mode::Iptables => ("iptables", "iptables.json"),
        Mode::Ipvs => panic!("no image for this mode"),
    };
    let mut image = Image::assemble(profile, cluster.kube_proxy());
    image.mount(folder.path(), FOLDER, &["rbind", "ro"]);

    let flags = flags(mode, &cluster.node, &Path::new(FOLDER).join("kubeconfig"));
    let mut command = vec!["/usr/local/bin/kube-proxy"];
    command.extend(flags.iter().map(String::as_str));
    let container =
        Container::run(&image, &cluster.lab.network.node, &Confinement::with_seccomp(seccomp), &command);
    let web = cluster.create_service("web", &[Place::PodA]);
    cluster.wait_until_served(&web, &[Place::PodA]);
    cluster.move_endpoints("web", &[Place::PodB]);
    cluster.wait_until_served(&web, &[Place::PodB]);
    cluster.control_plane_mut().stop_api_server();
    cluster.control_plane_mut().start_api_server();
    cluster.move_endpoints("web", &[Place::PodA]);
    crate::api_server::wait_until_moved(&cluster, &web, Place::PodA);
    let log = container.log();
    assert!(!log.contains("panicked") && !log.contains("Too many open files"), "{log}");
}

/// A folder that every user may enter.
fn permissions() -> fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o755)
}
