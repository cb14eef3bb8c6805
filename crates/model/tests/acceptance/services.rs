//! Service ports of Services, and which changes of a Service matter.

use model::address::Family;
use model::api;
use model::event::Event;

use crate::support::{Taken, World, service};

/// The service ports of one Service in a family, and the messages of its notes.
fn read(family: Family, service: api::Service) -> (Vec<String>, Vec<String>) {
    let mut world = World::new(family);
    let notes = world.apply(&Event::ServiceApplied(Box::new(service)));
    world.take();
    (world.frontends(), notes.iter().map(ToString::to_string).collect())
}

mod test_service_to_service_map {
    use super::*;

    #[test]
    fn a_service_has_one_service_port_per_port_of_its_family() {
        use Family::{V4, V6};
        let cases: &[(&str, Family, &str, &[&str])] = &[
            ("no ports, no service", V4, "ns/web 10.96.0.10", &[]),
            ("headless, UDP", V4, "ns/web None dns:53/UDP", &[]),
            ("headless, SCTP", V4, "ns/web None sig:1234/SCTP", &[]),
            ("headless, without ports", V4, "ns/web None", &[]),
            (
                "a cluster IP with two ports",
                V4,
                "ns/web 10.96.0.10 ClusterIP p2:1235/UDP p1:1234/UDP",
                &["ns/web:p1/UDP 10.96.0.10:1234", "ns/web:p2/UDP 10.96.0.10:1235"],
            ),
            (
                "one port name under two protocols is two service ports",
                V4,
                "ns/dns 10.96.0.10 dns:53/UDP dns:53/TCP",
                &["ns/dns:dns/TCP 10.96.0.10:53", "ns/dns:dns/UDP 10.96.0.10:53"],
            ),
            ("a port without name or protocol", V4, "ns/web 10.96.0.10 :80", &["ns/web/TCP 10.96.0.10:80"]),
            (
                "node ports",
                V4,
                "ns/web 10.96.0.10 NodePort a:345/UDP@30345 b:344@30344 c:80@0",
                &[
                    "ns/web:a/UDP 10.96.0.10:345 node-port=30345",
                    "ns/web:b/TCP 10.96.0.10:344 node-port=30344",
                    "ns/web:c/TCP 10.96.0.10:80",
                ],
            ),
            (
                "a node port counts whatever the type says",
                V4,
                "ns/web 10.96.0.10 ClusterIP p:80@30080",
                &["ns/web:p/TCP 10.96.0.10:80 node-port=30080"],
            ),
            (
                "a load balancer",
                V4,
                "ns/web 10.96.0.10 LoadBalancer p:80@30080 lb-ips=203.0.113.1,203.0.113.2",
                &["ns/web:p/TCP 10.96.0.10:80 lb=203.0.113.1:80 lb=203.0.113.2:80 node-port=30080"],
            ),
            (
                "a load-balancer IP counts whatever the type says",
                V4,
                "ns/web 10.96.0.10 p:80 lb-ips=203.0.113.1",
                &["ns/web:p/TCP 10.96.0.10:80 lb=203.0.113.1:80"],
            ),
            (
                "ipMode VIP is the default, anything else is not ours to short-circuit",
                V4,
                "ns/web 10.96.0.10 LoadBalancer p:80 lb-ips=203.0.113.1~VIP,203.0.113.2~Proxy,203.0.113.3,203.0.113.4~",
                &["ns/web:p/TCP 10.96.0.10:80 lb=203.0.113.1:80 lb=203.0.113.3:80"],
            ),
            (
                "an ingress with only a hostname is nothing",
                V4,
                "ns/web 10.96.0.10 LoadBalancer p:80 lb-ips=,203.0.113.3",
                &["ns/web:p/TCP 10.96.0.10:80 lb=203.0.113.3:80"],
            ),
            (
                "a load balancer with policy Local has a health-check port on every service port",
                V4,
                "ns/web 10.96.0.10 LoadBalancer a:80 b:81 lb-ips=203.0.113.1 external-policy=Local health=345",
                &[
                    "ns/web:a/TCP 10.96.0.10:80 lb=203.0.113.1:80 health=345 preserves-client",
                    "ns/web:b/TCP 10.96.0.10:81 lb=203.0.113.1:81 health=345 preserves-client",
                ],
            ),
            (
                "a health-check port means nothing under policy Cluster",
                V4,
                "ns/web 10.96.0.10 LoadBalancer a:80 external-policy=Cluster health=345",
                &["ns/web:a/TCP 10.96.0.10:80"],
            ),
            (
                "nor for a node port",
                V4,
                "ns/web 10.96.0.10 NodePort a:80@30080 external-policy=Local health=345",
                &["ns/web:a/TCP 10.96.0.10:80 node-port=30080 preserves-client"],
            ),
            (
                "policy Local has no effect on a cluster IP that is not externally accessible",
                V4,
                "ns/web 10.96.0.10 ClusterIP a:80 external-policy=Local",
                &["ns/web:a/TCP 10.96.0.10:80"],
            ),
            (
                "it does to one with an external IP, even of the other family",
                V4,
                "ns/web 10.96.0.10 ClusterIP a:80 external-policy=Local external-ips=2001:db8::1",
                &["ns/web:a/TCP 10.96.0.10:80 preserves-client"],
            ),
            ("ExternalName, even with a cluster IP", V4, "ns/web 10.96.0.10 ExternalName p:80", &[]),
            ("an IPv6 cluster IP seen from IPv4", V4, "ns/web fd00:96::10 p:80", &[]),
            ("an IPv4 cluster IP seen from IPv6", V6, "ns/web 10.96.0.10 p:80", &[]),
            ("an IPv6 cluster IP", V6, "ns/web FD00:96:0::10 p:80", &["ns/web:p/TCP [fd00:96::10]:80"]),
            (
                "external IPs of one family, order and repetition kept",
                V4,
                "ns/web 10.96.0.10 p:80 external-ips=198.51.100.2,198.51.100.1,198.51.100.2",
                &[
                    "ns/web:p/TCP 10.96.0.10:80 external=198.51.100.2:80 external=198.51.100.1:80 external=198.51.100.2:80",
                ],
            ),
            (
                "mixed lists seen from IPv4",
                V4,
                "ns/web 10.96.0.10,fd00:96::10 LoadBalancer p:80 external-ips=2001:db8::1,198.51.100.1 \
                 lb-ips=203.0.113.1,2001:db8:f::1 ranges=2001:db8:a::/64,203.0.113.128/25",
                &[
                    "ns/web:p/TCP 10.96.0.10:80 external=198.51.100.1:80 lb=203.0.113.1:80 from=203.0.113.128/25",
                ],
            ),
            (
                "the same seen from IPv6",
                V6,
                "ns/web 10.96.0.10,fd00:96::10 LoadBalancer p:80 external-ips=2001:db8::1,198.51.100.1 \
                 lb-ips=203.0.113.1,2001:db8:f::1 ranges=2001:db8:a::/64,203.0.113.128/25",
                &[
                    "ns/web:p/TCP [fd00:96::10]:80 external=[2001:db8::1]:80 lb=[2001:db8:f::1]:80 from=2001:db8:a::/64",
                ],
            ),
            (
                "old objects: leading zeros are decimal, host bits go",
                V4,
                "ns/web 10.96.0.010 p:80 lb-ips=203.0.113.001 ranges=203.0.113.77/025",
                &["ns/web:p/TCP 10.96.0.10:80 lb=203.0.113.1:80 from=203.0.113.0/25"],
            ),
            (
                "session affinity",
                V4,
                "ns/web 10.96.0.10 p:80 affinity=600",
                &["ns/web:p/TCP 10.96.0.10:80 affinity=600"],
            ),
        ];
        for (case, family, text, want) in cases {
            assert_eq!(read(*family, service(text)).0, *want, "{case}: {text}");
        }
    }

    #[test]
    fn a_source_range_of_length_zero_admits_all_clients() {
        for (case, family, ranges, want) in [
            ("zero CIDR among others", Family::V4, "10.0.0.0/8,0.0.0.0/0", ""),
            ("any address with /0", Family::V4, "10.1.2.3/0,192.168.0.0/16", ""),
            (
                "a zero CIDR of the other family changes nothing",
                Family::V4,
                "10.0.0.0/8,::/0",
                " from=10.0.0.0/8",
            ),
            ("none of the family", Family::V6, "10.0.0.0/8", ""),
            (
                "order and repetition kept",
                Family::V4,
                "10.2.0.0/16,10.1.0.0/16,10.2.0.0/16",
                " from=10.2.0.0/16 from=10.1.0.0/16 from=10.2.0.0/16",
            ),
        ] {
            let text =
                format!("ns/web 10.96.0.10,fd00:96::10 p:80 lb-ips=203.0.113.1,2001:db8::1 ranges={ranges}");
            let ways_in = match family {
                Family::V4 => "ns/web:p/TCP 10.96.0.10:80 lb=203.0.113.1:80",
                Family::V6 => "ns/web:p/TCP [fd00:96::10]:80 lb=[2001:db8::1]:80",
            };
            assert_eq!(read(family, service(&text)).0, [format!("{ways_in}{want}")], "{case}");
        }
    }

    #[test]
    fn white_space_around_a_source_range_is_ignored() {
        let mut padded = service("ns/web 10.96.0.10 p:80 lb-ips=203.0.113.1");
        padded.spec.load_balancer_source_ranges =
            vec![" 10.1.2.0/28".into(), "\t10.2.0.0/16 \n".into(), "  ".into()];
        let (ports, notes) = read(Family::V4, padded);
        assert_eq!(ports, ["ns/web:p/TCP 10.96.0.10:80 lb=203.0.113.1:80 from=10.1.2.0/28 from=10.2.0.0/16"]);
        assert_eq!(notes, [""; 0]);
    }

    #[test]
    fn what_cannot_be_parsed_is_noted_and_the_rest_is_served() {
        let text = "ns/web 10.96.0.10 p:80 q:70000 r:81/ICMP s:82@99999 external-ips=bogus,198.51.100.1 \
                    lb-ips=nonsense,203.0.113.1 ranges=10.0.0.0/33,10.0.0.0/8";
        let (ports, notes) = read(Family::V4, service(text));
        let ways_in = |port| {
            format!("10.96.0.10:{port} external=198.51.100.1:{port} lb=203.0.113.1:{port} from=10.0.0.0/8")
        };
        assert_eq!(ports, [format!("ns/web:p/TCP {}", ways_in(80)), format!("ns/web:s/TCP {}", ways_in(82))]);
        for culprit in ["bogus", "nonsense", "10.0.0.0/33", "70000", "ICMP", "99999"] {
            assert!(notes.iter().any(|note| note.contains(culprit)), "{culprit} was not noted: {notes:?}");
        }
    }

    #[test]
    fn session_affinity_lasts_three_hours_by_default() {
        let mut sticky = service("ns/web 10.96.0.10 p:80");
        sticky.spec.session_affinity = Some("ClientIP".into());
        assert_eq!(read(Family::V4, sticky.clone()).0, ["ns/web:p/TCP 10.96.0.10:80 affinity=10800"]);
        sticky.spec.session_affinity_config = Some(api::SessionAffinityConfig::default());
        assert_eq!(read(Family::V4, sticky.clone()).0, ["ns/web:p/TCP 10.96.0.10:80 affinity=10800"]);
        sticky.spec.session_affinity = Some("None".into());
        assert_eq!(read(Family::V4, sticky).0, ["ns/web:p/TCP 10.96.0.10:80"]);
    }

    #[test]
    fn a_local_load_balancer_without_health_check_port_is_noted_and_served() {
        let (ports, notes) =
            read(Family::V4, service("ns/web 10.96.0.10 LoadBalancer p:80 external-policy=Local"));
        assert_eq!(ports, ["ns/web:p/TCP 10.96.0.10:80 preserves-client"]);
        assert_eq!(notes, ["ns/web: Service has no healthcheck nodeport"]);
    }

    #[test]
    fn source_ranges_may_admit_this_node() {
        for (ranges, admitted) in [
            ("192.168.0.0/24", true),
            ("10.0.0.0/8,192.168.0.1/32", true),
            ("192.168.0.2/32", false),
            ("fd00:192::/64", false),
        ] {
            let mut world = World::v4();
            world.service(&format!("ns/web 10.96.0.10 LoadBalancer p:80 lb-ips=203.0.113.1 ranges={ranges}"));
            world.take();
            assert_eq!(world.routing("ns/web:p/TCP").ranges_admit_node, admitted, "{ranges}");
        }
    }

    #[test]
    fn a_new_node_address_is_compared_with_the_source_ranges_again() {
        let mut world = World::v4();
        world.service("ns/api 10.96.0.11 p:80");
        world.service("ns/web 10.96.0.10 LoadBalancer p:80 lb-ips=203.0.113.1 ranges=192.168.0.2/32");
        world.take();
        world.cluster.set_node_ip("192.168.0.1".parse().unwrap());
        assert!(!world.cluster.has_changes(), "the same address is no news");
        world.cluster.set_node_ip("192.168.0.2".parse().unwrap());
        assert_eq!(world.take().routings, ["ns/web:p/TCP"]);
        assert!(world.routing("ns/web:p/TCP").ranges_admit_node);
    }
}

mod test_service_map_update_headless {
    use super::*;

    #[test]
    fn headless_services_are_ignored() {
        let mut world = World::v4();
        world.services(&["ns/headless None", "ns/headless-with-port None p:1234/UDP"]);
        assert_eq!(world.cluster.pending(), (0, 0));
        assert_eq!(world.take(), Taken::nothing());
        assert_eq!(world.cluster.counts().service_changes, 2, "they are counted as seen");
        assert_eq!(world.cluster.counts().service_ports, 0);
    }

    #[test]
    fn a_service_that_becomes_headless_is_removed() {
        let mut world = World::taken(&["ns/web 10.96.0.10 p:80"], &[]);
        world.service("ns/web None p:80");
        assert_eq!(world.take().routings, ["-ns/web:p/TCP"]);
    }
}

mod test_update_service_type_external_name {
    use super::*;

    #[test]
    fn external_names_are_ignored_even_with_a_cluster_ip() {
        let mut world = World::v4();
        world.service("ns/elsewhere 10.96.0.10 ExternalName blah:1234/UDP");
        assert!(!world.cluster.has_changes());
        assert_eq!(world.take(), Taken::nothing());
        world.delete_service("ns/elsewhere");
        assert_eq!(world.take(), Taken::nothing());
    }

    #[test]
    fn a_service_that_becomes_an_external_name_is_removed() {
        let mut world = World::taken(&["ns/web 10.96.0.10 p:80"], &[]);
        world.service("ns/web 10.96.0.10 ExternalName p:80");
        assert_eq!(world.take().routings, ["-ns/web:p/TCP"]);
    }
}

mod test_build_service_map_add_remove {
    use super::*;

    const SERVICES: [&str; 6] = [
        "one/cluster-ip 10.96.0.4 a:1234/UDP b:1235/UDP c:1236/SCTP",
        "two/node-port 10.96.0.10 NodePort a:345/UDP@30345 b:344@30344",
        "one/balanced 10.96.0.11 LoadBalancer a:8675/UDP@31061 b:8676@31062 lb-ips=203.0.113.4 external-ips=198.51.100.9",
        "one/local-balanced 10.96.0.12 LoadBalancer p:8677/UDP@31063 lb-ips=203.0.113.3 external-policy=Local health=345",
        "one/headless None p:80",
        "one/elsewhere 10.96.0.13 ExternalName p:80",
    ];

    #[test]
    fn each_added_and_removed_service_port_is_one_change() {
        let mut world = World::v4();
        world.services(&SERVICES);
        assert_eq!(world.cluster.pending(), (4, 0), "neither headless nor elsewhere");
        assert_eq!(
            world.take(),
            Taken {
                routings: [
                    "one/balanced:a/UDP",
                    "one/balanced:b/TCP",
                    "one/cluster-ip:a/UDP",
                    "one/cluster-ip:b/UDP",
                    "one/cluster-ip:c/SCTP",
                    "one/local-balanced:p/UDP",
                    "two/node-port:a/UDP",
                    "two/node-port:b/TCP",
                ]
                .map(Into::into)
                .into(),
                health_checks: vec!["one/local-balanced 345=0".into()],
                touches_udp: true,
                ..Taken::nothing()
            }
        );
        assert_eq!(world.cluster.counts().service_ports, 8);

        // One loses ports, the others are deleted.
        world.service("one/cluster-ip 10.96.0.4 a:1235/UDP");
        for gone in ["two/node-port", "one/balanced", "one/local-balanced"] {
            world.delete_service(gone);
        }
        let changes = world.take();
        assert_eq!(
            changes.routings,
            [
                "-one/balanced:a/UDP",
                "-one/balanced:b/TCP",
                "one/cluster-ip:a/UDP",
                "-one/cluster-ip:b/UDP",
                "-one/cluster-ip:c/SCTP",
                "-one/local-balanced:p/UDP",
                "-two/node-port:a/UDP",
                "-two/node-port:b/TCP",
            ]
        );
        assert_eq!(changes.health_checks, ["-one/local-balanced"]);
        assert_eq!(world.frontends(), ["one/cluster-ip:a/UDP 10.96.0.4:1235"]);
        assert_eq!(world.health_checks(), [""; 0]);
        assert_eq!(world.cluster.counts().service_ports, 1);
    }

    #[test]
    fn only_ports_that_differ_are_changes() {
        let mut world = World::taken(&["ns/web 10.96.0.10 a:80 b:81 c:82/UDP"], &[]);
        world.service("ns/web 10.96.0.10 a:80 b:8081 d:83");
        let changes = world.take();
        assert_eq!(changes.routings, ["ns/web:b/TCP", "-ns/web:c/UDP", "ns/web:d/TCP"]);
        assert!(changes.touches_udp, "a UDP port was removed");
        world.service("ns/web 10.96.0.10 a:80 b:81 d:83");
        assert!(!world.take().touches_udp, "only TCP changed");
    }

    #[test]
    fn a_frontend_is_new_if_the_service_port_did_not_have_it() {
        let new = |world: &mut World| -> Vec<String> {
            let changes = world.cluster.take_changes();
            changes.new_frontends.iter().map(|(protocol, at)| format!("{protocol} {at:?}")).collect()
        };
        let mut world = World::v4();
        world.service("ns/web 10.96.0.10 a:80 c:82/UDP");
        assert_eq!(new(&mut world), ["TCP ClusterIp(10.96.0.10:80)", "UDP ClusterIp(10.96.0.10:82)"]);
        world.service("ns/web 10.96.0.10 a:80 b:81 c:82/UDP");
        assert_eq!(new(&mut world), ["TCP ClusterIp(10.96.0.10:81)"]);
        world.service("ns/web 10.96.0.10 a:80 b:83");
        assert_eq!(new(&mut world), ["TCP ClusterIp(10.96.0.10:83)"]);
        let all: Vec<_> = world.cluster.frontends().collect();
        assert_eq!(all.len(), 2, "{all:?}");
        world.slice("ns/web-1 of web a:8080 | 10.0.0.1");
        assert!(!world.cluster.take_changes().routings.is_empty());
        world.slice("ns/web-1 of web a:8080 | 10.0.0.2");
        assert_eq!(new(&mut world), [""; 0], "endpoints are no frontends");
        world.delete_service("ns/web");
        assert_eq!(new(&mut world), [""; 0]);
    }

    /// The API server rejects this; in upstream the later one overwrites the earlier.
    #[test]
    fn of_two_ports_with_the_same_identity_the_last_wins() {
        let mut world = World::v4();
        world.service("ns/web 10.96.0.10 a:80 b:90 a:81/UDP a:82");
        world.take();
        assert_eq!(
            world.frontends(),
            ["ns/web:a/TCP 10.96.0.10:82", "ns/web:a/UDP 10.96.0.10:81", "ns/web:b/TCP 10.96.0.10:90"]
        );
    }
}

mod test_build_service_map_service_update {
    use super::*;

    const PLAIN: &str = "ns/web 10.96.0.4 ClusterIP p1:1234/UDP p2:1235";
    const BALANCED: &str = "ns/web 10.96.0.4 LoadBalancer p1:1234/UDP@31234 p2:1235@31235 lb-ips=203.0.113.3 \
                            external-policy=Local health=345";

    #[test]
    fn a_change_of_type_is_a_change_and_irrelevant_fields_are_not() {
        let mut world = World::v4();
        let both = ["ns/web:p1/UDP", "ns/web:p2/TCP"];
        world.service(PLAIN);
        let changes = world.take();
        assert_eq!((changes.routings, changes.health_checks), (both.map(Into::into).into(), vec![]));

        world.service(BALANCED);
        let changes = world.take();
        assert_eq!(changes.routings, both);
        assert_eq!(changes.health_checks, ["ns/web 345=0"]);

        world.service(BALANCED);
        assert_eq!(world.cluster.pending(), (0, 0));
        assert_eq!(world.take(), Taken::nothing(), "the same again is no change");
        assert_eq!(world.health_checks(), ["ns/web 345=0"], "and takes nothing away");

        world.service(PLAIN);
        let changes = world.take();
        assert_eq!(changes.routings, both);
        assert_eq!(changes.health_checks, ["-ns/web"]);
        assert_eq!(world.frontends(), ["ns/web:p1/UDP 10.96.0.4:1234", "ns/web:p2/TCP 10.96.0.4:1235"]);
    }

    #[test]
    fn changes_of_relevant_fields_are_changes_and_others_are_not() {
        const BASE: &str = "ns/web 10.96.0.4 LoadBalancer p:80@30080 lb-ips=203.0.113.3 health=345";
        for (case, text) in [
            ("cluster IP", "ns/web 10.96.0.5 LoadBalancer p:80@30080 lb-ips=203.0.113.3 health=345"),
            ("port", "ns/web 10.96.0.4 LoadBalancer p:81@30080 lb-ips=203.0.113.3 health=345"),
            ("protocol", "ns/web 10.96.0.4 LoadBalancer p:80/UDP@30080 lb-ips=203.0.113.3 health=345"),
            ("port name", "ns/web 10.96.0.4 LoadBalancer q:80@30080 lb-ips=203.0.113.3 health=345"),
            ("node port", "ns/web 10.96.0.4 LoadBalancer p:80@30081 lb-ips=203.0.113.3 health=345"),
            ("LB IP", "ns/web 10.96.0.4 LoadBalancer p:80@30080 lb-ips=203.0.113.4 health=345"),
            (
                "external IP",
                "ns/web 10.96.0.4 LoadBalancer p:80@30080 lb-ips=203.0.113.3 external-ips=198.51.100.1",
            ),
            ("range", "ns/web 10.96.0.4 LoadBalancer p:80@30080 lb-ips=203.0.113.3 ranges=10.0.0.0/8"),
            ("affinity", "ns/web 10.96.0.4 LoadBalancer p:80@30080 lb-ips=203.0.113.3 affinity=5"),
            (
                "policy",
                "ns/web 10.96.0.4 LoadBalancer p:80@30080 lb-ips=203.0.113.3 external-policy=Local health=345",
            ),
        ] {
            let mut world = World::taken(&[BASE], &[]);
            world.service(text);
            assert_eq!(world.cluster.pending(), (1, 0), "{case}");
            assert!(!world.take().routings.is_empty(), "{case}");
        }
        for (case, text) in [
            (
                "health port under policy Cluster",
                "ns/web 10.96.0.4 LoadBalancer p:80@30080 lb-ips=203.0.113.3 health=346",
            ),
            ("type", "ns/web 10.96.0.4 NodePort p:80@30080 lb-ips=203.0.113.3"),
            ("spelling of an address", "ns/web 10.096.0.04 LoadBalancer p:80/TCP@30080 lb-ips=203.0.113.003"),
            ("an address of the other family", "ns/web 10.96.0.4 p:80@30080 lb-ips=203.0.113.3,2001:db8::1"),
        ] {
            let mut world = World::taken(&[BASE], &[]);
            world.service(text);
            assert_eq!(world.cluster.pending(), (0, 0), "{case}");
            assert_eq!(world.take(), Taken::nothing(), "{case}");
        }
    }

    #[test]
    fn internal_policy_is_a_change_even_without_endpoints() {
        // The routing may stay the same, but the Service differs and is pending.
        let mut world =
            World::taken(&["ns/web 10.96.0.4 p:80"], &["ns/web-1 of web p:8080 | 10.0.0.1 node=n2"]);
        world.service("ns/web 10.96.0.4 p:80 internal-policy=Local");
        assert_eq!(world.take().routings, ["ns/web:p/TCP"]);
        assert_eq!(world.cluster.counts().internal_without_local, 1);
        world.service("ns/web 10.96.0.4 p:80 internal-policy=Cluster");
        assert_eq!(world.take().routings, ["ns/web:p/TCP"]);
        assert_eq!(world.cluster.counts().internal_without_local, 0);
    }
}

mod test_service_cache_leaks {
    use super::*;

    #[test]
    fn a_service_added_and_deleted_before_changes_are_taken_leaves_nothing() {
        let mut world = World::v4();
        world.service("ns/web 10.96.0.10 p:80");
        assert!(world.cluster.has_changes());
        world.delete_service("ns/web");
        assert_eq!(world.cluster.pending(), (0, 0));
        assert!(!world.cluster.has_changes());
        assert_eq!(world.take(), Taken::nothing());
        assert_eq!(world.cluster.counts().service_changes, 2, "both were seen");
        assert_eq!(world.cluster.counts().service_ports, 0);
    }

    #[test]
    fn a_service_deleted_and_recreated_before_changes_are_taken_has_not_changed() {
        let mut world = World::taken(&["ns/web 10.96.0.10 p:80"], &["ns/web-1 of web p:8080 | 10.0.0.1"]);
        world.delete_service("ns/web");
        assert_eq!(world.cluster.pending(), (1, 0));
        world.service("ns/web 10.96.0.10 p:80");
        assert_eq!(world.cluster.pending(), (0, 0));
        assert_eq!(world.take(), Taken::nothing());
        assert_eq!(world.endpoints(), ["ns/web:p/TCP 10.0.0.1:8080"]);
    }

    #[test]
    fn deleting_an_unknown_service_changes_nothing() {
        let mut world = World::v4();
        world.delete_service("ns/web");
        assert!(!world.cluster.has_changes());
        assert_eq!(world.take(), Taken::nothing());
    }
}

mod test_should_skip_service {
    use super::*;

    #[test]
    fn services_without_a_cluster_ip_of_their_own_are_skipped() {
        let with = |cluster_ip: &str, kind: Option<&str>| {
            let mut service = service("ns/web - p:80");
            service.spec.cluster_ip = cluster_ip.into();
            service.spec.r#type = kind.map(Into::into);
            service
        };
        for (case, service, skipped) in [
            ("no cluster IP", with("", None), true),
            ("headless", with("None", Some("ClusterIP")), true),
            ("ExternalName without cluster IP", with("", Some("ExternalName")), true),
            ("ExternalName with one", with("10.96.0.1", Some("ExternalName")), true),
            ("an unreadable cluster IP", with("pending", Some("ClusterIP")), true),
            ("ClusterIP", with("10.96.0.1", Some("ClusterIP")), false),
            ("NodePort", with("10.96.0.1", Some("NodePort")), false),
            ("LoadBalancer", with("10.96.0.1", Some("LoadBalancer")), false),
            ("no type", with("10.96.0.1", None), false),
            ("an unknown type", with("10.96.0.1", Some("Teleport")), false),
        ] {
            assert_eq!(read(Family::V4, service).0.is_empty(), skipped, "{case}");
        }
    }

    #[test]
    fn a_headless_or_empty_first_cluster_ip_skips_both_families() {
        for first in ["", "None"] {
            let mut dual = service("ns/web 10.96.0.1,fd00:96::1 p:80");
            dual.spec.cluster_ip = first.into();
            for family in Family::BOTH {
                assert_eq!(read(family, dual.clone()).0, [""; 0], "{first:?} in {family}");
            }
        }
    }
}

mod test_get_cluster_ip_by_family {
    use super::*;

    /// `clusterIP`, `ipFamilies` and `clusterIPs`, then the cluster IP of each family.
    #[test]
    #[rustfmt::skip]
    fn each_family_has_its_own_cluster_ip() {
        for (case, cluster_ip, families, cluster_ips, v4, v6) in [
            ("IPv4 only", "10.0.0.10", "IPv4", "10.0.0.10", "10.0.0.10", ""),
            ("IPv6 only", "fd00::10", "IPv6", "fd00::10", "", "fd00::10"),
            ("IPv4 first", "10.0.0.10", "IPv4,IPv6", "10.0.0.10,fd00::10", "10.0.0.10", "fd00::10"),
            ("IPv6 first", "fd00::10", "IPv6,IPv4", "fd00::10,10.0.0.10", "10.0.0.10", "fd00::10"),
            ("from before dual stack, IPv4", "10.0.0.10", "", "", "10.0.0.10", ""),
            ("from before dual stack, IPv6", "fd00::10", "", "", "", "fd00::10"),
            ("without families the list is not read", "10.0.0.10", "", "10.0.0.11", "10.0.0.10", ""),
            ("a family whose address is still missing", "10.0.0.10", "IPv4,IPv6", "10.0.0.10", "10.0.0.10", ""),
            ("families without addresses", "10.0.0.10", "IPv4", "", "", ""),
            ("unreadable", "10.0.0.10", "IPv4", "10.0.0", "", ""),
            // Upstream accepts it; the API server cannot produce it.
            ("of another family than it claims", "10.0.0.10", "IPv6", "10.0.0.10", "", ""),
        ] {
            let list = |text: &str| text.split(',').filter(|text| !text.is_empty()).map(Into::into).collect();
            let mut object = service("ns/web - :80");
            object.spec.cluster_ip = cluster_ip.into();
            object.spec.ip_families = list(families);
            object.spec.cluster_ips = list(cluster_ips);
            for (family, want) in [(Family::V4, v4), (Family::V6, v6)] {
                let mut world = World::new(family);
                world.apply(&Event::ServiceApplied(Box::new(object.clone())));
                world.take();
                let found = world.cluster.routings().first().map(|(_, routing)| routing.addresses.cluster_ip.to_string());
                assert_eq!(found.unwrap_or_default(), want, "{case} in {family}");
            }
        }
    }
}

mod hashing {
    use super::*;
    use crate::support::here;
    use model::annotations::IgnoredReason;
    use model::cluster::Here;
    use model::hashing::ClientHash;

    const WEB: &str = "ns/web 10.96.0.10 p:80";

    fn service(hash: Option<&str>) -> Event {
        let mut service = crate::support::service(WEB);
        service.metadata.annotations.hash = hash.map(Into::into);
        Event::ServiceApplied(service.into())
    }

    fn ignored(world: &World) -> Option<(String, IgnoredReason)> {
        let found = world.cluster.current_service_ports(|_, _| true);
        found[0].ignored_hash.map(|(text, why)| (text.to_owned(), why))
    }

    #[test]
    fn clients_are_hashed_by_what_the_annotation_says() {
        let mut world = World::v4();
        for (hash, want) in [
            (Some("ClientIP"), Some(ClientHash::Address)),
            (Some("ClientIPAndPort"), Some(ClientHash::AddressAndPort)),
            (None, None),
        ] {
            assert_eq!(world.apply(&service(hash)), []);
            world.take();
            assert_eq!(world.routing("ns/web:p/TCP").hash, want);
            assert_eq!(ignored(&world), None);
        }
    }

    #[test]
    fn an_invalid_annotation_is_ignored_and_noted_once() {
        let mut world = World::v4();
        let notes = world.apply(&service(Some("clientip")));
        let want = r#"ns/web: Ignoring invalid hash of clients: service.sluice.io/hash "clientip""#;
        assert_eq!(notes.iter().map(ToString::to_string).collect::<Vec<_>>(), [want]);
        assert_eq!(notes[0].event, None);
        assert_eq!(world.apply(&service(Some("clientip"))), []);
        world.take();
        assert_eq!(world.routing("ns/web:p/TCP").hash, None);
        assert_eq!(ignored(&world), Some(("clientip".into(), IgnoredReason::Invalid)));
        world.delete_service("ns/web");
        assert_eq!(world.apply(&service(Some("clientip"))).len(), 1, "of another Service");
    }

    #[test]
    fn where_hashing_is_not_supported_endpoints_are_chosen_at_random_and_an_event_says_so() {
        let mut world = World::on_node(Here { max_hashed: 0, ..here(Family::V4) });
        let notes = world.apply(&service(Some("ClientIP")));
        let event = notes[0].event.as_ref().map(|(service, reason)| format!("{service} {reason}"));
        assert_eq!(event.as_deref(), Some("ns/web HashingNotSupported"));
        assert_eq!(world.apply(&service(Some("ClientIP"))), []);
        world.take();
        assert_eq!(world.routing("ns/web:p/TCP").hash, None);
        assert_eq!(ignored(&world), Some(("ClientIP".into(), IgnoredReason::Unsupported)));
        assert_eq!(world.apply(&service(None)), []);
        assert_eq!(ignored(&world), None);
    }

    /// A Service with ports of these names, and clients hashed by their address.
    fn hashed(name: &str, created: &str, ports: &str) -> Event {
        let ports = ports.chars().map(|port| format!(" {port}:8{}", port as u32 % 10)).collect::<String>();
        let mut service = crate::support::service(&format!("ns/{name} 10.96.0.10{ports}"));
        service.metadata.annotations.hash = Some("ClientIP".into());
        service.metadata.creation_timestamp = Some(format!("2026-11-19T{created}Z"));
        Event::ServiceApplied(service.into())
    }

    /// The service ports whose clients are hashed.
    fn all_hashed(world: &World) -> String {
        let routings = world.cluster.routings().into_iter();
        let hashed = routings.filter(|(_, routing)| routing.hash.is_some());
        hashed.map(|(name, _)| name.to_string()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_clients_of_the_oldest_services_are_hashed_up_to_a_limit() {
        let mut world = World::on_node(Here { max_hashed: 3, ..here(Family::V4) });
        let mut step = |event: &Event, all: &str, over_limit: &[&str]| {
            let notes = world.apply(event);
            let noted: Vec<_> = notes.iter().map(|note| note.event.clone().unwrap()).collect();
            let want: Vec<_> =
                over_limit.iter().map(|it| (crate::support::name(it), "HashingLimitReached")).collect();
            assert_eq!(noted, want, "{event:?}");
            assert_eq!(world.apply(event), [], "it is noted once");
            let changed = world.take().routings;
            assert_eq!(all_hashed(&world), all, "{event:?}");
            let current = world.cluster.current_service_ports(|_, _| true);
            for port in current {
                let is_over_limit = port.ignored_hash == Some(("ClientIP", IgnoredReason::OverLimit));
                assert_eq!(is_over_limit, port.routing.hash.is_none(), "{:?}", port.name);
            }
            changed
        };
        step(&hashed("b", "10:00:02", "pq"), "ns/b:p ns/b:q", &[]);
        step(&hashed("d", "10:00:04", "pq"), "ns/b:p ns/b:q ns/d:p", &["ns/d"]);
        step(&hashed("e", "10:00:05", "p"), "ns/b:p ns/b:q ns/d:p", &["ns/e"]);
        let changed = step(&hashed("c", "10:00:03", "p"), "ns/b:p ns/b:q ns/c:p", &[]);
        assert_eq!(changed, ["ns/c:p/TCP", "ns/d:p/TCP"]);
        // Of the same second: the name decides.
        step(&hashed("a", "10:00:03", "p"), "ns/a:p ns/b:p ns/b:q", &["ns/c"]);
        // The next one gets what a Service leaves, and no other changes.
        let delete = |name| Event::ServiceDeleted(crate::support::name(name));
        let changed = step(&delete("ns/b"), "ns/a:p ns/c:p ns/d:p", &[]);
        assert_eq!(changed, ["-ns/b:p/TCP", "-ns/b:q/TCP", "ns/c:p/TCP", "ns/d:p/TCP"]);
        step(&hashed("a", "10:00:03", "pqr"), "ns/a:p ns/a:q ns/a:r", &["ns/c"]);
        step(&delete("ns/a"), "ns/c:p ns/d:p ns/d:q", &[]);
        step(&delete("ns/c"), "ns/d:p ns/d:q ns/e:p", &[]);
    }

    #[test]
    fn an_older_service_that_is_gone_before_changes_are_taken_takes_no_hash() {
        let mut world = World::on_node(Here { max_hashed: 1, ..here(Family::V4) });
        world.apply(&hashed("b", "10:00:02", "p"));
        world.take();
        world.apply(&hashed("a", "10:00:01", "p"));
        world.delete_service("ns/a");
        assert!(!world.cluster.has_changes());
        assert_eq!(world.take().routings, [""; 0]);
        assert_eq!(all_hashed(&world), "ns/b:p");
    }

    #[test]
    fn a_service_that_was_taken_early_gets_the_hash_of_one_that_was_not() {
        let mut world = World::on_node(Here { max_hashed: 1, ..here(Family::V4) });
        world.apply(&hashed("a", "10:00:01", "p"));
        world.apply(&hashed("b", "10:00:02", "p"));
        world.slice("ns/b-1 of b p:80 | 10.0.1.1");
        assert_eq!(world.cluster.take_early(9).routings.len(), 1);
        assert_eq!(all_hashed(&world), "");
        world.delete_service("ns/a");
        assert!(world.cluster.has_changes());
        world.cluster.discard_changes();
        assert_eq!(all_hashed(&world), "ns/b:p");
    }
}
