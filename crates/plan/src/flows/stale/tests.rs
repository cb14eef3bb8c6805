use model::address::Family;
use model::names::NamespacedName;
use model::service::Created;

use super::*;

pub fn name(service: &str) -> ServicePortName {
    ServicePortName { service: NamespacedName::new("ns", service), port: "".into(), protocol: Protocol::Udp }
}

pub fn port(number: u16) -> Port {
    Port::from_api(number.into()).unwrap()
}

/// 10.96.0.53:53 with a load-balancer IP and a node port, and these endpoints, given by their last byte.
pub fn dns(serving: &[u8]) -> Arc<Routing> {
    service("10.96.0.53 LoadBalancer p:53/UDP@30053 lb-ips=203.0.113.5", serving)
}

fn service(service: &str, serving: &[u8]) -> Arc<Routing> {
    let endpoints: String = serving.iter().map(|n| format!(" | 10.244.1.{n}")).collect();
    let lines = format!("service ns/dns {service}\nslice ns/dns-1 of dns p:5353/UDP{endpoints}");
    testkit::routing(Family::V4, &lines).1
}

pub fn flow(to: &str, answered_by: &str) -> TrackedFlow {
    let (to, answered_by) = (to.parse().unwrap(), answered_by.parse().unwrap());
    TrackedFlow { protocol: Protocol::Udp, to, answered_by, has_reply: false }
}

pub fn node_ips() -> HashSet<IpAddr> {
    ["192.168.0.2", "127.0.0.1", "fe80::2"].map(|ip| ip.parse().unwrap()).into()
}

fn take(flows: &mut Flows) -> Rechecks {
    flows.take_rechecks(|_| false).0
}

fn judge(rechecks: &Rechecks, flow: &TrackedFlow) -> FlowVerdict {
    let found = rechecks.at_address(flow).or_else(|| rechecks.at_node_port(flow, &node_ips()));
    found.map_or(FlowVerdict::NotConcerned, |(destination, recheck)| recheck.judge(destination, flow))
}

fn is_stale(rechecks: &Rechecks, flow: TrackedFlow) -> bool {
    judge(rechecks, &flow) == FlowVerdict::Stale
}

#[test]
fn the_table_of_udp_flows_that_upstream_has() {
    let mut flows = Flows::new(Contended::All);
    flows.replace(&name("dns"), Some(&dns(&[2])));
    let rechecks = take(&mut flows);
    let rows = [
        ("10.96.0.53:53", "10.244.1.2:5353", false, "serves"),
        ("10.96.0.53:53", "10.244.1.3:5353", true, "does not serve"),
        ("10.96.0.53:53", "10.244.1.9:5353", true, "gone"),
        ("10.96.0.53:53", "10.244.1.2:5300", true, "its port changed"),
        ("10.96.0.53:53", "10.96.0.53:53", true, "never translated"),
        ("203.0.113.5:53", "10.244.1.9:5353", true, "through the load balancer"),
        ("10.96.0.53:5000", "10.244.1.9:5353", false, "no port of the service"),
        ("192.168.0.2:30053", "10.244.1.9:5353", true, "through the node port"),
        ("192.168.0.2:30053", "10.244.1.2:5353", false, "through the node port, and serves"),
        ("198.51.100.7:30053", "198.51.100.7:30053", false, "the same port of another host"),
    ];
    for (to, answered_by, stale, why) in rows {
        assert_eq!(is_stale(&rechecks, flow(to, answered_by)), stale, "{to} {answered_by}: {why}");
    }
    let mut without = Flows::new(Contended::All);
    without.replace(&name("dns"), Some(&dns(&[])));
    let rechecks = take(&mut without);
    for (to, answered_by, _, _) in rows.iter().filter(|row| !row.0.ends_with("30053")) {
        assert!(!is_stale(&rechecks, flow(to, answered_by)), "{to} {answered_by} stays: it has no endpoints");
    }
    let through_node_port = flow("192.168.0.2:30053", "10.244.1.9:5353");
    assert!(is_stale(&rechecks, through_node_port), "but not through the node port");
}

#[test]
fn over_tcp_and_sctp_only_attempts_from_before_the_rules_are_stale() {
    for protocol in [Protocol::Tcp, Protocol::Sctp] {
        let mut flows = Flows::new(Contended::All);
        flows.gain(protocol, Frontend::ClusterIp("10.96.0.80:80".parse().unwrap()));
        flows.gain(protocol, Frontend::NodePort(port(30080)));
        let rechecks = take(&mut flows);
        for (to, answered_by, has_reply, stale, why) in [
            ("10.96.0.80:80", "10.96.0.80:80", false, true, "never translated, never answered"),
            ("10.96.0.80:80", "10.96.0.80:80", true, false, "answered by another host"),
            ("10.96.0.80:80", "10.244.1.9:80", false, false, "on its way to an endpoint"),
            (
                "10.96.0.80:80",
                "10.244.1.9:80",
                true,
                false,
                "a connection, whether or not the endpoint exists",
            ),
            ("10.96.0.80:81", "10.96.0.80:81", false, false, "another port"),
            ("192.168.0.2:30080", "192.168.0.2:30080", false, true, "through the node port"),
            ("192.168.0.2:30080", "192.168.0.2:30080", true, false, "a server of the node's own"),
            ("198.51.100.7:30080", "198.51.100.7:30080", false, false, "another host"),
        ] {
            let flow = TrackedFlow { protocol, has_reply, ..flow(to, answered_by) };
            assert_eq!(is_stale(&rechecks, flow), stale, "{to} {answered_by}: {why}");
            let other = TrackedFlow { protocol: Protocol::Udp, ..flow };
            assert!(!is_stale(&rechecks, other), "another protocol has other frontends");
        }
    }
}

#[test]
fn only_what_can_make_a_flow_stale_is_a_reason_to_recheck() {
    for (before, now, rechecked) in [
        (&[2][..], &[2][..], false),
        (&[2], &[2, 3], false),
        (&[2, 3], &[2], true),
        (&[2], &[3], true),
        (&[2], &[], true),
        (&[], &[2], true),
    ] {
        let mut flows = Flows::new(Contended::All);
        flows.replace(&name("dns"), Some(&dns(before)));
        assert!(!take(&mut flows).is_empty(), "clients may have sent to a new address before");
        flows.replace(&name("dns"), Some(&dns(now)));
        assert_eq!(!take(&mut flows).is_empty(), rechecked, "{before:?} {now:?}");
    }
}

#[test]
fn services_that_did_not_change_are_not_rechecked() {
    let mut flows = Flows::new(Contended::All);
    flows.replace(&name("dns"), Some(&dns(&[2])));
    take(&mut flows);
    let outdated = flow("10.96.0.53:53", "10.244.1.9:5353");
    assert_eq!(judge(&take(&mut flows), &outdated), FlowVerdict::NotConcerned);
    let frontends: Vec<_> = dns(&[2]).frontends().map(|frontend| (Protocol::Udp, frontend)).collect();
    flows.recheck_everything(frontends);
    assert_eq!(judge(&take(&mut flows), &outdated), FlowVerdict::Stale);
}

#[test]
fn flows_to_a_deleted_service_are_stale_unless_another_service_has_its_address() {
    let served = flow("10.96.0.53:53", "10.244.1.2:5353");
    let own = flow("192.168.0.2:30053", "192.168.0.2:30053");
    let mut flows = Flows::new(Contended::All);
    flows.replace(&name("dns"), Some(&dns(&[2])));
    flows.replace(&name("successor"), Some(&dns(&[2, 3])));
    take(&mut flows);
    flows.replace(&name("dns"), None);
    assert!(!is_stale(&take(&mut flows), served), "the successor serves it");
    flows.replace(&name("successor"), None);
    let rechecks = take(&mut flows);
    assert!(is_stale(&rechecks, served));
    assert!(!is_stale(&rechecks, own), "a server of the node's own");
}

#[test]
fn a_flow_is_judged_by_the_latest_endpoints() {
    let to = Destination::Address("10.96.0.53:53".parse().unwrap());
    let back = flow("10.96.0.53:53", "10.244.1.2:5353");
    let mut flows = Flows::new(Contended::All);
    flows.replace(&name("dns"), Some(&dns(&[2, 3])));
    take(&mut flows);
    flows.replace(&name("dns"), Some(&dns(&[3])));
    let mut rechecks = take(&mut flows);
    assert!(is_stale(&rechecks, back));
    let changed = flows.replace(&name("dns"), Some(&dns(&[2, 3])));
    assert!(changed.contains(&to), "sent although nothing needs a recheck");
    assert!(take(&mut flows).is_empty());
    rechecks.update(to, &flows.serving(to));
    assert!(!is_stale(&rechecks, back));
    let other = Destination::Address("10.96.0.54:53".parse().unwrap());
    let before = rechecks.clone();
    rechecks.update(other, &flows.serving(other));
    assert_eq!(rechecks, before, "an update starts no recheck");
}

#[test]
fn without_a_matched_packet_only_untranslated_flows_can_be_stale() {
    let rechecks = |flows: &mut Flows| {
        let (all, if_used) = flows.take_rechecks(|_| true);
        (!all.is_empty(), !if_used.is_empty())
    };
    let mut flows = Flows::new(Contended::All);
    flows.replace(&name("dns"), Some(&dns(&[2])));
    assert_eq!(rechecks(&mut flows), (true, false), "flows may be older than our rules");
    flows.replace(&name("dns"), Some(&dns(&[3])));
    assert_eq!(rechecks(&mut flows), (false, true));
    flows.recheck_everything(dns(&[3]).frontends().map(|frontend| (Protocol::Udp, frontend)));
    assert_eq!(rechecks(&mut flows), (true, false), "other rules may have translated");
    flows.replace(&name("dns"), Some(&dns(&[])));
    assert_eq!(rechecks(&mut flows), (false, true));
    flows.replace(&name("dns"), Some(&dns(&[2])));
    assert_eq!(rechecks(&mut flows), (true, false), "without endpoints no rule translated");
}

#[test]
fn the_kernel_filters_by_protocol_and_by_a_common_address() {
    let address = |to: &str| Destination::Address(to.parse().unwrap());
    let node_port = Destination::NodePort(port(30053));
    let one: IpAddr = [10, 96, 0, 1].into();
    let (tcp, udp) = (Protocol::Tcp, Protocol::Udp);
    let filter = |protocol, destination| FlowFilter { protocol, destination, only_attempts: protocol == tcp };
    for (keys, expected) in [
        (vec![], vec![]),
        (vec![(udp, address("10.96.0.1:53"))], vec![filter(udp, Some(one))]),
        (vec![(udp, address("10.96.0.1:53")), (udp, address("10.96.0.1:54"))], vec![filter(udp, Some(one))]),
        (vec![(udp, address("10.96.0.1:53")), (udp, address("10.96.0.2:53"))], vec![filter(udp, None)]),
        (vec![(udp, address("10.96.0.1:53")), (udp, node_port)], vec![filter(udp, None)]),
        (
            vec![(udp, node_port), (tcp, address("10.96.0.1:53"))],
            vec![filter(tcp, Some(one)), filter(udp, None)],
        ),
    ] {
        assert_eq!(filters(keys.iter()), expected, "{keys:?}");
    }
}

#[test]
fn a_contended_destination_is_served_by_the_winner() {
    let created = |mut routing: Arc<Routing>, second: &str| {
        let created = Created::from_api(&format!("2026-11-16T10:00:{second}Z")).unwrap();
        Arc::get_mut(&mut routing).unwrap().created = created;
        routing
    };
    let to_first = flow("203.0.113.5:53", "10.244.1.2:5353");
    let to_second = flow("203.0.113.5:53", "10.244.1.3:5353");
    for (contended, first_only) in [(Contended::FirstOnly, true), (Contended::All, false)] {
        let mut flows = Flows::new(contended);
        flows.replace(&name("b"), Some(&created(dns(&[2]), "02")));
        take(&mut flows);
        flows.replace(&name("c"), Some(&created(dns(&[3]), "01")));
        let rechecks = take(&mut flows);
        assert_eq!(
            is_stale(&rechecks, to_first),
            first_only,
            "the one created first takes over: {contended:?}"
        );
        assert!(!is_stale(&rechecks, to_second));

        flows.replace(&name("c"), Some(&created(dns(&[]), "01")));
        let rechecks = take(&mut flows);
        assert_eq!(!is_stale(&rechecks, to_second), first_only, "it has no endpoints: {contended:?}");
        assert!(!is_stale(&rechecks, to_first));

        flows.replace(&name("c"), Some(&created(dns(&[3]), "01")));
        take(&mut flows);
        // Deleted and created again between two syncs.
        flows.replace(&name("c"), Some(&created(dns(&[3]), "03")));
        let rechecks = take(&mut flows);
        assert_eq!(is_stale(&rechecks, to_second), first_only, "{contended:?}");
        assert!(!is_stale(&rechecks, to_first));
    }
}

#[test]
fn a_cluster_ip_is_served_by_the_service_it_belongs_to() {
    let other = service("10.96.0.54 NodePort p:53/UDP@30053 external-ips=10.96.0.53", &[3]);
    let mut flows = Flows::new(Contended::FirstOnly);
    flows.replace(&name("dns"), Some(&dns(&[2])));
    flows.replace(&name("another"), Some(&other));
    let rechecks = take(&mut flows);
    assert!(!is_stale(&rechecks, flow("10.96.0.53:53", "10.244.1.2:5353")));
    assert!(is_stale(&rechecks, flow("10.96.0.53:53", "10.244.1.3:5353")));
    assert!(is_stale(&rechecks, flow("192.168.0.2:30053", "10.244.1.2:5353")), "the first by name has it");
}

#[test]
fn a_frontend_at_an_address_of_the_node_keeps_its_flows_when_a_node_port_of_that_number_changes() {
    let external = service("10.96.0.54 p:30053/UDP external-ips=192.168.0.2", &[7]);
    let mut flows = Flows::new(Contended::All);
    flows.replace(&name("dns"), Some(&dns(&[2])));
    flows.replace(&name("external"), Some(&external));
    take(&mut flows);
    flows.replace(&name("dns"), Some(&dns(&[3])));
    let rechecks = take(&mut flows);
    let served = flow("192.168.0.2:30053", "10.244.1.7:5353");
    assert_eq!(judge(&rechecks, &served), FlowVerdict::NotConcerned, "rules look up the address first");
    assert!(
        is_stale(&rechecks, flow("127.0.0.1:30053", "10.244.1.2:5353")),
        "the node port at another address"
    );

    flows.replace(&name("external"), None);
    take(&mut flows);
    flows.replace(&name("dns"), Some(&dns(&[4])));
    assert!(is_stale(&take(&mut flows), served), "the node port is served at this address, too");
    assert!(flows.addresses.values().flatten().all(|at| at.port() != 30053), "nothing is left of it");
}
