use model::names::NamespacedName;
use model::routing::Traffic;
use model::service::{Addresses, Created};

use super::*;

fn name(service: &str) -> ServicePortName {
    ServicePortName { service: NamespacedName::new("ns", service), port: "".into(), protocol: Protocol::Udp }
}

fn port(number: u16) -> Port {
    Port::from_api(number.into()).unwrap()
}

/// 10.96.0.53:53 with a load balancer and a node port, and these endpoints, given by their last byte.
fn dns(serving: &[u8]) -> Arc<Routing> {
    let endpoint = |n: &u8| Endpoint { ip: [10, 244, 1, *n].into(), local: false, port: port(5353) };
    let endpoints: Arc<[_]> = serving.iter().map(endpoint).collect();
    Arc::new(Routing {
        protocol: Protocol::Udp,
        port: port(53),
        node_port: Some(port(30053)),
        addresses: Arc::new(Addresses {
            cluster_ip: [10, 96, 0, 53].into(),
            external_ips: Box::default(),
            load_balancer_ips: [[203, 0, 113, 5].into()].into(),
            source_ranges: Box::default(),
        }),
        created: Created::UNKNOWN,
        affinity: None,
        cluster: endpoints.clone(),
        local: Arc::default(),
        internal: Traffic::ToCluster,
        external: Traffic::ToCluster,
        preserves_client: false,
        ranges_admit_node: false,
        is_externally_accessible: true,
        health_check_node_port: None,
        serving: endpoints,
    })
}

fn flow(to: &str, answered_by: &str) -> Flow {
    Flow { to: to.parse().unwrap(), answered_by: answered_by.parse().unwrap() }
}

fn node_ips() -> HashSet<IpAddr> {
    ["192.168.0.2", "127.0.0.1", "fe80::2"].map(|ip| ip.parse().unwrap()).into()
}

#[test]
fn the_reference_table_of_flows() {
    let mut flows = Flows::default();
    flows.replace(&name("dns"), Some(&dns(&[2])));
    let doubts = flows.take_doubts();
    let rows = [
        ("10.96.0.53:53", "10.244.1.2:5353", false, "serves"),
        ("10.96.0.53:53", "10.244.1.3:5353", true, "does not serve"),
        ("10.96.0.53:53", "10.244.1.9:5353", true, "gone"),
        ("10.96.0.53:53", "10.244.1.2:5300", true, "its port changed"),
        ("10.96.0.53:53", "10.96.0.53:53", true, "went astray before there were rules"),
        ("203.0.113.5:53", "10.244.1.9:5353", true, "through the load balancer"),
        ("10.96.0.53:5000", "10.244.1.9:5353", false, "no port of the service"),
        ("192.168.0.2:30053", "10.244.1.9:5353", true, "through the node port"),
        ("192.168.0.2:30053", "10.244.1.2:5353", false, "through the node port, and right"),
        ("198.51.100.7:30053", "198.51.100.7:30053", false, "a port of that number out in the world"),
    ];
    for (to, answered_by, is_wrong, why) in rows {
        assert_eq!(
            flows.is_wrong(flow(to, answered_by), &doubts, &node_ips()),
            is_wrong,
            "{to} {answered_by}: {why}"
        );
    }
    let mut without = Flows::default();
    without.replace(&name("dns"), Some(&dns(&[])));
    let doubts = without.take_doubts();
    for (to, answered_by, _, _) in rows.iter().filter(|row| !row.0.ends_with("30053")) {
        assert!(
            !without.is_wrong(flow(to, answered_by), &doubts, &node_ips()),
            "{to} {answered_by} stays: nobody serves"
        );
    }
    let through_node_port = flow("192.168.0.2:30053", "10.244.1.9:5353");
    assert!(without.is_wrong(through_node_port, &doubts, &node_ips()), "but not through the node port");
}

#[test]
fn only_what_can_make_a_flow_wrong_is_a_reason_to_look() {
    for (before, now, looks) in [
        (&[2][..], &[2][..], false),
        (&[2], &[2, 3], false),
        (&[2, 3], &[2], true),
        (&[2], &[3], true),
        (&[2], &[], true),
        (&[], &[2], true),
    ] {
        let mut flows = Flows::default();
        flows.replace(&name("dns"), Some(&dns(before)));
        assert!(!flows.take_doubts().is_empty(), "a new address may have been sent to before");
        flows.replace(&name("dns"), Some(&dns(now)));
        assert_eq!(!flows.take_doubts().is_empty(), looks, "{before:?} {now:?}");
    }
}

#[test]
fn nothing_is_said_about_services_that_did_not_change() {
    let mut flows = Flows::default();
    flows.replace(&name("dns"), Some(&dns(&[2])));
    flows.take_doubts();
    let astray = flow("10.96.0.53:53", "10.244.1.9:5353");
    let doubts = flows.take_doubts();
    assert!(!flows.is_wrong(astray, &doubts, &node_ips()));
}

#[test]
fn a_service_that_goes_takes_its_flows_along_unless_another_one_has_its_address() {
    let served = flow("10.96.0.53:53", "10.244.1.2:5353");
    let own = flow("192.168.0.2:30053", "192.168.0.2:30053");
    let mut flows = Flows::default();
    flows.replace(&name("dns"), Some(&dns(&[2])));
    flows.replace(&name("heir"), Some(&dns(&[2, 3])));
    flows.take_doubts();
    flows.replace(&name("dns"), None);
    let doubts = flows.clone_doubts();
    assert!(!flows.is_wrong(served, &doubts, &node_ips()), "the heir serves it");
    flows.replace(&name("heir"), None);
    let doubts = flows.clone_doubts();
    assert!(flows.is_wrong(served, &doubts, &node_ips()));
    assert!(!flows.is_wrong(own, &doubts, &node_ips()), "a server of the node's own");
}

#[test]
fn where_nothing_was_ever_sent_nothing_can_be_wrong() {
    let to = Destination::Address("10.96.0.53:53".parse().unwrap());
    let remains = |flows: &mut Flows| {
        let mut doubts = flows.take_doubts();
        doubts.dismiss_unused(|_| true);
        !doubts.is_empty()
    };
    let mut flows = Flows::default();
    flows.replace(&name("dns"), Some(&dns(&[2])));
    assert_eq!(flows.clone_doubts().only_ip(), None, "there are several, and a node port");
    assert!(remains(&mut flows), "flows may be older than our rules");
    flows.replace(&name("dns"), Some(&dns(&[3])));
    assert!(!remains(&mut flows));
    flows.doubt_everything();
    assert!(remains(&mut flows), "others may have sent flows anywhere");
    flows.replace(&name("dns"), Some(&dns(&[])));
    assert!(!remains(&mut flows));
    flows.replace(&name("dns"), Some(&dns(&[2])));
    assert!(remains(&mut flows), "while there was nobody, packets went where they liked");

    flows.replace(&name("dns"), Some(&dns(&[2, 3])));
    flows.replace(&name("dns"), Some(&dns(&[2])));
    let doubts = flows.take_doubts();
    assert!(!flows.is_used(to));
    assert!(
        flows.is_wrong(flow("10.96.0.53:53", "10.244.1.3:5353"), &doubts, &node_ips()) && !flows.is_used(to)
    );
    assert!(
        !flows.is_wrong(flow("10.96.0.53:53", "10.244.1.2:5353"), &doubts, &node_ips()) && flows.is_used(to)
    );
    flows.replace(&name("dns"), None);
    assert!(!flows.is_used(to), "whoever has the address next begins anew");
}

/// Takes the doubts, and shows what is known to be wrong of those.
fn wrong_ones(flows: &mut Flows) -> (Doubts, Vec<String>) {
    let doubts = flows.take_doubts();
    let shown = |flow: &Flow| format!("{} {}", flow.to, flow.answered_by);
    let mut wrong: Vec<_> = flows.wrong_ones(&doubts, &node_ips(), 100).unwrap().iter().map(shown).collect();
    wrong.sort();
    (doubts, wrong)
}

#[test]
fn flows_that_a_change_makes_wrong_are_known_without_looking() {
    let mut flows = Flows::default();
    flows.replace(&name("dns"), Some(&dns(&[2, 3])));
    let (doubts, wrong) = wrong_ones(&mut flows);
    let astray = [
        "10.96.0.53:53 10.96.0.53:53",
        "192.168.0.2:30053 192.168.0.2:30053",
        "203.0.113.5:53 203.0.113.5:53",
    ];
    assert_eq!(wrong, astray, "not a server of the node's own on the loopback");
    flows.forget_who_left(&doubts);

    flows.replace(&name("dns"), Some(&dns(&[3, 4])));
    let to_second = [
        "10.96.0.53:53 10.244.1.2:5353",
        "127.0.0.1:30053 10.244.1.2:5353",
        "192.168.0.2:30053 10.244.1.2:5353",
        "203.0.113.5:53 10.244.1.2:5353",
    ];
    let (doubts, wrong) = wrong_ones(&mut flows);
    assert_eq!(wrong, to_second);
    for flow in flows.wrong_ones(&doubts, &node_ips(), 100).unwrap() {
        assert!(flows.is_wrong(flow, &doubts, &node_ips()), "{flow:?}: so says who looks");
    }
    flows.replace(&name("dns"), Some(&dns(&[2, 3, 4])));
    assert_eq!(flows.wrong_ones(&doubts, &node_ips(), 100).unwrap(), HashSet::new(), "it is back");
    flows.replace(&name("dns"), Some(&dns(&[3, 4])));
    let (doubts, wrong) = wrong_ones(&mut flows);
    assert_eq!(wrong, to_second);
    flows.forget_who_left(&doubts);
    assert_eq!(flows.wrong_ones(&doubts, &node_ips(), 100).unwrap(), HashSet::new(), "nothing is left of it");
}

#[test]
fn who_left_a_service_that_nobody_serves_is_remembered() {
    let mut flows = Flows::default();
    flows.replace(&name("dns"), Some(&dns(&[2])));
    let (doubts, _) = wrong_ones(&mut flows);
    flows.forget_who_left(&doubts);
    flows.replace(&name("dns"), Some(&dns(&[])));
    let (doubts, wrong) = wrong_ones(&mut flows);
    let through_node_port = ["127.0.0.1:30053 10.244.1.2:5353", "192.168.0.2:30053 10.244.1.2:5353"];
    assert_eq!(wrong, through_node_port, "others may be served again");
    flows.forget_who_left(&doubts);
    flows.replace(&name("dns"), Some(&dns(&[3])));
    let (doubts, wrong) = wrong_ones(&mut flows);
    assert!(wrong.contains(&"10.96.0.53:53 10.244.1.2:5353".to_owned()), "{wrong:?}");
    assert!(wrong.contains(&"10.96.0.53:53 10.96.0.53:53".to_owned()), "{wrong:?}");
    flows.forget_who_left(&doubts);

    assert_eq!(flows.wrong_ones(&doubts, &node_ips(), 0), Some(HashSet::new()));
    flows.replace(&name("dns"), None);
    let (doubts, wrong) = wrong_ones(&mut flows);
    assert_eq!(flows.wrong_ones(&doubts, &node_ips(), 3), None, "too many");
    assert_eq!(wrong.len(), 4, "{wrong:?}");
    flows.forget_who_left(&doubts);
    assert!(flows.left.is_empty(), "{:?}", flows.left);
}

#[test]
fn who_is_seen_to_answer_for_a_service_that_nobody_serves_is_remembered_too() {
    let mut flows = Flows::default();
    flows.replace(&name("dns"), Some(&dns(&[])));
    let doubts = flows.take_doubts();
    let kept = flow("10.96.0.53:53", "10.244.1.2:5353");
    assert!(!flows.is_wrong(kept, &doubts, &node_ips()), "as a look after a restart finds it");
    flows.forget_who_left(&doubts);
    flows.replace(&name("dns"), Some(&dns(&[3])));
    let (_, wrong) = wrong_ones(&mut flows);
    assert!(wrong.contains(&"10.96.0.53:53 10.244.1.2:5353".to_owned()), "{wrong:?}");
}

impl Flows {
    fn clone_doubts(&self) -> Doubts {
        self.doubtful.clone()
    }
}
