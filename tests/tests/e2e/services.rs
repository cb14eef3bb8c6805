//! Services of every kind, and what happens to them in their lives.

use std::net::SocketAddr;

use model::address::Family;
use model::names::Protocol;
use serde_json::{Value, json};
use testkit::lab::{Address, NODE_PORT, Place, Who};
use testkit::talk::Answer;
use tests::cluster::objects::{endpoint, service, slice, with};
use tests::cluster::pods::Pods;
use tests::cluster::proxy::Mode;
use tests::cluster::stage::cluster_ip;
use tests::matrix::eventually;

use crate::{in_each_mode, stage};

in_each_mode!(
    every_kind_of_frontend_leads_to_the_pods_of_a_deployment,
    a_service_that_comes_back_with_another_ip_is_served_there_and_nowhere_else,
    a_burst_of_services_is_served_whole,
);

fn every_kind_of_frontend_leads_to_the_pods_of_a_deployment(mode: Mode) {
    let stage = stage();
    let _proxy = stage.proxy(mode);
    let places = [Place::PodA, Place::PodB, Place::Remote(5)];
    let pods = Pods::new(&stage, "web");
    for place in places {
        pods.add(place);
    }
    let port = |name, protocol| json!({"name": name, "protocol": protocol, "port": 80, "targetPort": 8080, "nodePort": NODE_PORT});
    let both = |address: Address| Family::BOTH.map(|family| address.ip(family));
    let web = json!({"spec": {
        "type": "LoadBalancer",
        "selector": {"app": "web"},
        "externalIPs": both(Address::ExternalIp),
        "ports": [port("tcp", "TCP"), port("udp", "UDP")],
    }});
    let web = stage.api().create(&stage.services(), &with(service("web"), web));
    let ingress = both(Address::LoadBalancerIp).map(|ip| json!({"ip": ip}));
    let status = json!({"status": {"loadBalancer": {"ingress": ingress}}});
    stage.api().patch(&format!("{}/status", stage.service("web")), &status);
    for family in Family::BOTH {
        stage.reaches(Who::Pod, cluster_ip(&web, family), &places);
        for (address, port) in
            [(Address::NodeIp, NODE_PORT), (Address::LoadBalancerIp, 80), (Address::ExternalIp, 80)]
        {
            stage.reaches(Who::Outside, SocketAddr::new(address.ip(family), port), &places);
        }
    }
}

fn a_service_that_comes_back_with_another_ip_is_served_there_and_nowhere_else(mode: Mode) {
    let stage = stage();
    let _proxy = stage.proxy(mode);
    let before = stage.serve("web", &[Place::PodA]);
    stage.serves(&before, &[Place::PodA]);
    stage.api().delete(&stage.service("web"));
    let ips = |ips: [&str; 2]| json!({"spec": {"clusterIP": ips[0], "clusterIPs": ips}});
    let after = with(service("web"), ips(["10.96.77.7", "fd00:10:96::7707"]));
    let after = stage.api().create(&stage.services(), &after);
    for family in Family::BOTH {
        stage.reaches(Who::Pod, cluster_ip(&after, family), &[Place::PodA]);
        eventually("the old address is forgotten", || {
            // What becomes of packets to nobody's cluster IP is a matter of the mode.
            let answer = stage.ask(Who::Pod, Protocol::Tcp, cluster_ip(&before, family));
            !matches!(answer, Answer::From { .. })
        });
    }
}

fn a_burst_of_services_is_served_whole(mode: Mode) {
    let stage = stage();
    let _proxy = stage.proxy(mode);
    let names: Vec<String> = (0..100).map(|number| format!("burst-{number}")).collect();
    let slices = names.iter().flat_map(|name| {
        let at_pod = |family| slice(name, family, &[endpoint(Place::PodA.ip(family))]);
        Family::BOTH.map(|family| (stage.slices(), at_pod(family)))
    });
    let services = names.iter().map(|name| (stage.services(), service(name)));
    stage.api().create_all(services.chain(slices));
    let all = stage.api().get(&stage.services());
    let all: &Vec<Value> = all["items"].as_array().unwrap();
    assert_eq!(all.len(), 100);
    for (service, family) in all.iter().flat_map(|service| Family::BOTH.map(|family| (service, family))) {
        eventually("one of a hundred services answers", || {
            let answer = stage.ask(Who::Pod, Protocol::Tcp, cluster_ip(service, family));
            matches!(answer, Answer::From { .. })
        });
    }
}
