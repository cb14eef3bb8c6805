//! The subcommands read the same API server as the proxy, and come to the same end.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use model::address::Family;
use testkit::lab::{Place, TARGET, Who};
use tests::cluster::proxy::{Mode, binary, flags};
use tests::cluster::stage::{Stage, cluster_ip};

use crate::{SUPERVISOR, in_each_mode, stage};

in_each_mode!(tools_that_read_the_api_server_agree_with_the_proxy);

/// Its exit code and what it printed.
fn tool(stage: &Stage, mode: Mode, words: &[&str]) -> (i32, String) {
    let kubeconfig = stage.kubeconfig(stage.plane().address(), &stage.certified_proxy());
    let mut command = Command::new(binary(Path::new(SUPERVISOR)));
    command.args(words).args(flags(mode, &stage.node, &kubeconfig)).arg("--v=0");
    let output = stage.lab.network.node.enter(|| command.output()).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.is_empty(), "{words:?}: {said}");
    (output.status.code().unwrap(), String::from_utf8_lossy(&output.stdout).into_owned())
}

fn tools_that_read_the_api_server_agree_with_the_proxy(mode: Mode) {
    let stage = stage();
    let service = stage.serve("web", &[Place::PodA, Place::PodB]);
    let proxy = stage.proxy(mode);
    stage.serves(&service, &[Place::PodA, Place::PodB]);

    assert_eq!(tool(&stage, mode, &["plan"]), (0, String::new()));
    let (code, verified) = tool(&stage, mode, &["verify"]);
    assert_eq!((code, verified.matches("kernel and plan agree").count()), (0, 2), "{verified}");
    for family in Family::BOTH {
        let (from, to) =
            (Who::Pod.ip(family, 0, Place::PodA.ip(family)).to_string(), cluster_ip(&service, family));
        let (code, said) =
            tool(&stage, mode, &["explain", "--live", "--from", &from, "tcp", &to.to_string()]);
        assert_eq!(code, 0, "{said}");
        for place in [Place::PodA, Place::PodB] {
            let endpoint = SocketAddr::new(place.ip(family), TARGET);
            assert!(said.contains(&format!("{endpoint} ")), "{endpoint} is not in\n{said}");
        }
        assert!(said.contains("50%") && said.contains("the kernel agrees"), "{said}");
    }

    drop(proxy);
    stage.move_to("web", &[Place::PodA, Place::Remote(5)]);
    let (code, said) = tool(&stage, mode, &["plan"]);
    assert_eq!(code, 2, "{said}");
    for family in Family::BOTH {
        for (sign, place) in [("-", Place::PodB), ("+", Place::Remote(5))] {
            let line = format!("{sign} endpoint {}\n", SocketAddr::new(place.ip(family), TARGET));
            assert!(said.contains(&line), "{line:?} is not in\n{said}");
        }
    }
    assert_eq!(said.matches(" endpoint ").count(), 4 * 2, "two ports, two families:\n{said}");
}
