//! As little as a proxy needs: uid nobody with `CAP_NET_ADMIN` alone, a root that cannot be written, 64 descriptors, 64 MiB of
//! memory, and a seccomp profile of `packaging/seccomp`.

use std::fs;
use std::path::Path;
use std::process::Command;

use testkit::lab::Place;
use tests::cluster::kubeconfig;
use tests::cluster::proxy::{Mode, flags};
use tests::container::{Confinement, Container, Image};

use crate::{in_each_mode, stage};

in_each_mode!(a_confined_proxy_follows_the_api_server);

/// Where the container has its kubeconfig file and what that names.
const FOLDER: &str = "/var/lib/kube-proxy";

fn a_confined_proxy_follows_the_api_server(mode: Mode) {
    let mut stage = stage();
    // As the privileged container of the pod does.
    let kubeconfig = stage.kubeconfig(stage.plane().address(), &stage.certified_proxy());
    let mut prepare = Command::new(stage.kube_proxy());
    prepare.args(flags(mode, &stage.node, &kubeconfig)).arg("--init-only");
    assert!(stage.lab.network.node.enter(|| prepare.output()).unwrap().status.success());

    // Of files that nobody may read.
    let folder = tempfile::Builder::new().permissions(permissions()).tempdir().unwrap();
    for name in ["ca.crt", "kube-proxy.crt", "kube-proxy.key"] {
        fs::copy(stage.plane().folder.join(name), folder.path().join(name)).unwrap();
    }
    let user = kubeconfig::certified(Path::new(FOLDER), "kube-proxy");
    let server = stage.plane().address().to_string();
    kubeconfig::write(&folder.path().join("kubeconfig"), &server, Path::new(FOLDER), &user);
    let (profile, seccomp) = match mode {
        Mode::Nftables => ("nftables", "nftables.json"),
        Mode::Iptables => ("iptables", "iptables.json"),
    };
    let mut image = Image::assemble(profile, stage.kube_proxy());
    image.mount(folder.path(), FOLDER, &["rbind", "ro"]);

    let flags = flags(mode, &stage.node, &Path::new(FOLDER).join("kubeconfig"));
    let mut command = vec!["/usr/local/bin/kube-proxy"];
    command.extend(flags.iter().map(String::as_str));
    let container =
        Container::run(&image, &stage.lab.network.node, &Confinement::with_seccomp(seccomp), &command);
    let web = stage.serve("web", &[Place::PodA]);
    stage.serves(&web, &[Place::PodA]);
    stage.move_to("web", &[Place::PodB]);
    stage.serves(&web, &[Place::PodB]);
    stage.plane_mut().stop_api_server();
    stage.plane_mut().start_api_server();
    stage.move_to("web", &[Place::PodA]);
    crate::api_server::moves_to(&stage, &web, Place::PodA);
    let log = container.log();
    assert!(!log.contains("panicked") && !log.contains("Too many open files"), "{log}");
}

/// A folder that every user may enter.
fn permissions() -> fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o755)
}
