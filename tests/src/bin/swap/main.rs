//! Swaps the image of kube-proxy in the cluster of `make cluster PROXY=kubeadm` under load from pods, nodes and outside, and prints the
//! failed requests of each step: to our image, each pod of kube-proxy deleted in turn, and back to upstream's image.
//!
//! The argument is the mode of the cluster. Fails if a request failed on the way to our image, or while it ran. What upstream's proxy
//! loses on the way back and when it restarts is only printed.

mod cluster;

use std::process::ExitCode;
use std::time::Duration;

use testkit::hammer::{Hammer, Load};
use testkit::namespace::Namespace;

use cluster::{
    Pod, Service, clean_up_and_set_image, delete_proxy, deploy, nodes, remove_init_containers, set_image,
};

/// As `hack/cluster/node` imports it.
const OURS: &str = concat!("registry.example/sluice:", env!("CARGO_PKG_VERSION"));
const UPSTREAM: &str = "registry.k8s.io/kube-proxy:v1.36.3";
/// Between two requests of one load: the loads share a small machine with all nodes.
const INTERVAL: Duration = Duration::from_millis(20);

fn main() -> ExitCode {
    let mode = std::env::args().nth(1).expect("the mode");
    let ours = OURS.to_owned() + if mode == "iptables" { "-iptables" } else { "" };
    let deployed = deploy();
    let pods = Pod::list();
    pods.iter().for_each(Pod::serve);
    let service = Service::read();
    service.wait_until_served(&pods);

    let to_ours = "set image: to ours";
    let deletion = |whose: &str, pod: &Pod| format!("delete pod: {whose} on {}", pod.node);
    let report = Hammer::run(loads(&pods, &service), |hammer| {
        let step = |name: &str, action: &dyn Fn()| {
            eprintln!("swap: {name}");
            hammer.step(name.to_owned(), || {
                action();
                hammer.wait_for_requests();
            });
        };
        step(to_ours, &|| set_image(&ours));
        for pod in &pods {
            step(&deletion("ours", pod), &|| delete_proxy(&pod.node));
        }
        if mode == "nftables" {
            step("clean up, and set image: back to upstream's", &|| clean_up_and_set_image(&ours, UPSTREAM));
            step("remove the init container that cleaned up", &remove_init_containers);
        } else {
            step("set image: back to upstream's", &|| set_image(UPSTREAM));
        }
        for pod in &pods {
            step(&deletion("upstream's", pod), &|| delete_proxy(&pod.node));
        }
    });
    print!("{report}");
    drop(deployed);
    let of_ours = pods.iter().map(|pod| deletion("ours", pod)).chain([to_ours.to_owned()]);
    let failed: usize = of_ours.map(|step| report.failures_in(&step)).sum();
    println!("{failed} requests failed on the way to our image and while it ran");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// New and long-lived connections: from a pod of each node and from each node to cluster IPs, and from outside to the node port of each
/// node and to the load-balancer IPs.
fn loads(pods: &[Pod], service: &Service) -> Vec<Load> {
    let outside = Namespace::open("/run/netns/sluice-outside").unwrap();
    let mut loads = Vec::new();
    for pod in pods {
        let node = &pod.node;
        for to in service.cluster_ips(service.web) {
            loads.push(Load::new_tcp(&format!("tcp, new, pod on {node} to {to}"), &pod.namespace, to));
        }
        for to in service.cluster_ips(service.echo) {
            loads.push(Load::long_tcp(&format!("tcp, long, pod on {node} to {to}"), &pod.namespace, to));
        }
        let to = service.cluster_ips(service.web)[0];
        loads.push(Load::new_udp(&format!("udp, new, pod on {node} to {to}"), &pod.namespace, to));
        let from = Namespace::open(format!("/run/netns/sluice-{node}")).unwrap();
        loads.push(Load::new_tcp(&format!("tcp, new, {node} to {to}"), &from, to));
    }
    for to in nodes(service.web_node_port).into_iter().chain(service.load_balancer_ips(service.web)) {
        loads.push(Load::new_tcp(&format!("tcp, new, outside to {to}"), &outside, to));
    }
    for to in nodes(service.echo_node_port).into_iter().chain(service.load_balancer_ips(service.echo)) {
        loads.push(Load::long_tcp(&format!("tcp, long, outside to {to}"), &outside, to));
    }
    loads.into_iter().map(|load| load.with_interval(INTERVAL)).collect()
}
