//! Services of every type, from creation to deletion.

use std::net::SocketAddr;

use model::address::Family;
use model::names::Protocol;
use serde_json::{Value, json};
use testkit::lab::{Address, ClientPlace, NODE_PORT, Place};
use testkit::probe::Answer;
use testkit::wait::eventually;
use tests::cluster::objects::{endpoint, service, slice, with};
use tests::cluster::pods::Pods;
use tests::cluster::proxy::Mode;
use tests::cluster::test_cluster::cluster_ip;

use crate::{cluster, in_each_mode};

in_each_mode!(
    every_kind_of_frontend_leads_to_the_pods_of_a_deployment,
    a_service_that_is_recreated_with_another_ip_is_served_only_there,
    a_burst_of_services_is_served_completely,
);

fn every_kind_of_frontend_leads_to_the_pods_of_a_deployment(mode: Mode) {
    let cluster = cluster();
    let _proxy = cluster.proxy(mode);
    let places = [Place::PodA, Place::PodB, Place::Remote(5)];
    let pods = Pods::new(&cluster, "web");
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
    let web = cluster.api().create(&cluster.services(), &with(service("web"), web));
    let ingress = both(Address::LoadBalancerIp).map(|ip| json!({"ip": ip}));
    let status = json!({"status": {"loadBalancer": {"ingress": ingress}}});
    cluster.api().patch(&format!("{}/status", cluster.service("web")), &status);
    for family in Family::BOTH {
        cluster.wait_until_reached(ClientPlace::Pod, cluster_ip(&web, family), &places);
        for (address, port) in
            [(Address::NodeIp, NODE_PORT), (Address::LoadBalancerIp, 80), (Address::ExternalIp, 80)]
        {
            cluster.wait_until_reached(
                ClientPlace::Outside,
                SocketAddr::new(address.ip(family), port),
                &places,
            );
        }
    }
}

fn a_service_that_is_recreated_with_another_ip_is_served_only_there(mode: Mode) {
    let cluster = cluster();
    let _proxy = cluster.proxy(mode);
    let before = cluster.create_service("web", &[Place::PodA]);
    cluster.wait_until_served(&before, &[Place::PodA]);
    cluster.api().delete(&cluster.service("web"));
    let ips = |ips: [&str; 2]| json!({"spec": {"clusterIP": ips[0], "clusterIPs": ips}});
    let after = with(service("web"), ips(["10.96.77.7", "fd00:10:96::7707"]));
    let after = cluster.api().create(&cluster.services(), &after);
    for family in Family::BOTH {
        cluster.wait_until_reached(ClientPlace::Pod, cluster_ip(&after, family), &[Place::PodA]);
        eventually("the old address is no longer served", || {
            // The modes treat packets to an unused cluster IP differently.
            let answer = cluster.probe(ClientPlace::Pod, Protocol::Tcp, cluster_ip(&before, family));
            !matches!(answer, Answer::From { .. })
        });
    }
}

fn a_burst_of_services_is_served_completely(mode: Mode) {
    let cluster = cluster();
    let _proxy = cluster.proxy(mode);
    let names: Vec<String> = (0..100).map(|number| format!("burst-{number}")).collect();
    let slices = names.iter().flat_map(|name| {
        let at_pod = |family| slice(name, family, &[endpoint(Place::PodA.ip(family))]);
        Family::BOTH.map(|family| (cluster.slices(), at_pod(family)))
    });
    let services = names.iter().map(|name| (cluster.services(), service(name)));
    cluster.api().create_all(services.chain(slices));
    let all = cluster.api().get(&cluster.services());
    let all: &Vec<Value> = all["items"].as_array().unwrap();
    assert_eq!(all.len(), 100);
    for (service, family) in all.iter().flat_map(|service| Family::BOTH.map(|family| (service, family))) {
        eventually("one of a hundred services answers", || {
            let answer = cluster.probe(ClientPlace::Pod, Protocol::Tcp, cluster_ip(service, family));
            matches!(answer, Answer::From { .. })
        });
    }
}
