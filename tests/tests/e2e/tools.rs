//! The subcommands read the same API server as the proxy and agree with it.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use model::address::Family;
use testkit::lab::{ClientPlace, Place, TARGET};
use tests::cluster::proxy::{Mode, binary, flags};
use tests::cluster::test_cluster::{TestCluster, cluster_ip};

use crate::{SUPERVISOR, cluster, in_each_mode};

in_each_mode!(subcommands_that_read_the_api_server_agree_with_the_proxy);

/// Runs a subcommand, and returns its exit code and output.
fn subcommand(cluster: &TestCluster, mode: Mode, words: &[&str]) -> (i32, String) {
    let kubeconfig = cluster.kubeconfig(cluster.control_plane().address(), &cluster.proxy_user());
    let mut command = Command::new(binary(Path::new(SUPERVISOR)));
    command.args(words).args(flags(mode, &cluster.node, &kubeconfig)).arg("--v=0");
    let output = cluster.lab.network.node.enter(|| command.output()).unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.is_empty(), "{words:?}: {stderr}");
    (output.status.code().unwrap(), String::from_utf8_lossy(&output.stdout).into_owned())
}

fn subcommands_that_read_the_api_server_agree_with_the_proxy(mode: Mode) {
    let cluster = cluster();
    let service = cluster.create_service("web", &[Place::PodA, Place::PodB]);
    let proxy = cluster.proxy(mode);
    cluster.wait_until_served(&service, &[Place::PodA, Place::PodB]);

    assert_eq!(subcommand(&cluster, mode, &["plan"]), (0, String::new()));
    let (code, verified) = subcommand(&cluster, mode, &["verify"]);
    assert_eq!((code, verified.matches("kernel and plan agree").count()), (0, 2), "{verified}");
    for family in Family::BOTH {
        let (from, to) = (
            ClientPlace::Pod.ip(family, 0, Place::PodA.ip(family)).to_string(),
            cluster_ip(&service, family),
        );
        let (code, text) =
            subcommand(&cluster, mode, &["explain", "--live", "--from", &from, "tcp", &to.to_string()]);
        assert_eq!(code, 0, "{text}");
        for place in [Place::PodA, Place::PodB] {
            let endpoint = SocketAddr::new(place.ip(family), TARGET);
            assert!(text.contains(&format!("{endpoint} ")), "{endpoint} is not in\n{text}");
        }
        assert!(text.contains("50%") && text.contains("the kernel agrees"), "{text}");
    }

    drop(proxy);
    cluster.move_endpoints("web", &[Place::PodA, Place::Remote(5)]);
    let (code, text) = subcommand(&cluster, mode, &["plan"]);
    assert_eq!(code, 2, "{text}");
    for family in Family::BOTH {
        for (sign, place) in [("-", Place::PodB), ("+", Place::Remote(5))] {
            let line = format!("{sign} endpoint {}\n", SocketAddr::new(place.ip(family), TARGET));
            assert!(text.contains(&line), "{line:?} is not in\n{text}");
        }
    }
    assert_eq!(text.matches(" endpoint ").count(), 4 * 2, "two ports, two families:\n{text}");
}
