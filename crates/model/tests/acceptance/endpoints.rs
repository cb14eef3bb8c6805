//! Changes of slices, and the routings, health checks and flags that follow from them.

use crate::support::{Taken, World};

mod test_get_local_endpoint_ips {
    use super::*;

    #[test]
    fn a_health_check_counts_distinct_addresses_of_ready_local_endpoints() {
        let cases: &[(&str, &[&str], &str)] = &[
            ("no slices", &[], "ns/web 31000=0"),
            ("a remote endpoint", &["ns/a of web p:80 | 10.0.0.1 node=n2"], "ns/web 31000=0"),
            ("an endpoint without a node", &["ns/a of web p:80 | 10.0.0.1"], "ns/web 31000=0"),
            ("a local one", &["ns/a of web p:80 | 10.0.0.1 local"], "ns/web 31000=1"),
            (
                "one address behind two ports counts once",
                &["ns/a of web p:80 q:81 | 10.0.0.1 local"],
                "ns/web 31000=1",
            ),
            (
                "and in two slices, too",
                &[
                    "ns/a of web p:80 | 10.0.0.1 local",
                    "ns/b of web p:81 q:82 | 10.0.0.1 local | 10.0.0.2 local",
                ],
                "ns/web 31000=2",
            ),
            (
                "ports the Service does not have still count",
                &["ns/a of web x:80 | 10.0.0.1 local"],
                "ns/web 31000=1",
            ),
            ("unready ones do not", &["ns/a of web p:80 | 10.0.0.1 local unready"], "ns/web 31000=0"),
            (
                "nor those that only drain, though traffic goes there",
                &["ns/a of web p:80 | 10.0.0.1 local draining"],
                "ns/web 31000=0",
            ),
            (
                "of all this, the ready local ones",
                &[
                    "ns/a of web p:80 | 10.0.0.1 local | 10.0.0.2 node=n2 | 10.0.0.3 local unready | 10.0.0.4 local",
                ],
                "ns/web 31000=2",
            ),
            ("slices of others do not count", &["ns/a of other p:80 | 10.0.0.1 local"], "ns/web 31000=0"),
        ];
        for (case, slices, want) in cases {
            let world = World::taken(
                &["ns/web 10.96.0.10 LoadBalancer p:80 q:81 external-policy=Local health=31000"],
                slices,
            );
            assert_eq!(world.health_checks(), [*want], "{case}");
        }
    }

    #[test]
    fn a_node_without_a_name_has_no_local_endpoints() {
        let mut nowhere = crate::support::here(model::address::Family::V4);
        nowhere.node_name = String::new();
        let mut world = World::on_node(nowhere);
        world.service("ns/web 10.96.0.10 LoadBalancer p:80 external-policy=Local health=31000");
        world.slice("ns/a of web p:80 | 10.0.0.1 node= | 10.0.0.2");
        world.take();
        assert_eq!(world.health_checks(), ["ns/web 31000=0"]);
    }
}

/// Upstream reports updated Services even without a net change; we report changed routings. Upstream requests conntrack cleanup
/// if a change has a UDP port before or after it; we do if the routing of a UDP port differs, also for changes of the Service.
/// Upstream's local counts are our health checks.
mod test_update_endpoints_map {
    use super::*;

    /// Three Services with all ports of the slices below, each with a health check that shows the local count.
    const SERVICES: [&str; 4] = [
        "ns1/ep1 10.96.0.1 LoadBalancer :11/UDP lb-ips=203.0.113.1 external-policy=Local health=31001",
        "ns1/named 10.96.0.2 LoadBalancer p11:11/UDP p12:12 p13:13/UDP p22:22 lb-ips=203.0.113.2 external-policy=Local health=31002",
        "ns2/ep2 10.96.0.3 LoadBalancer p21:21 p22:22 lb-ips=203.0.113.3 external-policy=Local health=31003",
        "ns4/ep4 10.96.0.4 LoadBalancer p44:44/UDP p45:45/UDP lb-ips=203.0.113.4 external-policy=Local health=31004",
    ];

    struct Transition<'a> {
        name: &'a str,
        before: &'a [&'a str],
        after: &'a [&'a str],
        /// After the transition, without service ports that have no endpoints.
        endpoints: &'a [&'a str],
        changed: &'a [&'a str],
        touches_udp: bool,
        /// After the transition, without those that count zero.
        local: &'a [&'a str],
    }

    const UNNAMED: &str = "ns1/ep1-1 of ep1 :11/UDP | 1.1.1.1";
    const NAMED_LOCAL: &str = "ns1/named-1 of named p11:11/UDP | 1.1.1.1 local";
    const NAMED_12: &str = "ns1/named-2 of named p12:12 | 1.1.1.2";
    const NAMED_12_LOCAL: &str = "ns1/named-2 of named p12:12 p13:13/UDP | 1.1.1.3 local";
    const EP2: &str = "ns2/ep2-1 of ep2 p21:21 p22:22 | 2.2.2.2 local | 2.2.2.3 node=n2";

    const TRANSITIONS: [Transition; 18] = [
        Transition {
            name: "nothing stays nothing",
            before: &[],
            after: &[],
            endpoints: &[],
            changed: &[],
            touches_udp: false,
            local: &[],
        },
        Transition {
            name: "no change, unnamed port",
            before: &[UNNAMED],
            after: &[UNNAMED],
            endpoints: &["ns1/ep1/UDP 1.1.1.1:11"],
            changed: &[],
            touches_udp: false,
            local: &[],
        },
        Transition {
            name: "no change, named port, local",
            before: &[NAMED_LOCAL],
            after: &[NAMED_LOCAL],
            endpoints: &["ns1/named:p11/UDP 1.1.1.1:11*"],
            changed: &[],
            touches_udp: false,
            local: &["ns1/named 31002=1"],
        },
        Transition {
            name: "no change, several slices",
            before: &[NAMED_LOCAL, NAMED_12],
            after: &[NAMED_LOCAL, NAMED_12],
            endpoints: &["ns1/named:p11/UDP 1.1.1.1:11*", "ns1/named:p12/TCP 1.1.1.2:12"],
            changed: &[],
            touches_udp: false,
            local: &["ns1/named 31002=1"],
        },
        Transition {
            name: "no change, several slices, several ports, local",
            before: &[NAMED_LOCAL, NAMED_12_LOCAL],
            after: &[NAMED_LOCAL, NAMED_12_LOCAL],
            endpoints: &[
                "ns1/named:p11/UDP 1.1.1.1:11*",
                "ns1/named:p12/TCP 1.1.1.3:12*",
                "ns1/named:p13/UDP 1.1.1.3:13*",
            ],
            changed: &[],
            touches_udp: false,
            local: &["ns1/named 31002=2"],
        },
        Transition {
            name: "no change, several Services, slices, addresses and ports",
            before: &[NAMED_LOCAL, NAMED_12_LOCAL, EP2],
            after: &[NAMED_LOCAL, NAMED_12_LOCAL, EP2],
            endpoints: &[
                "ns1/named:p11/UDP 1.1.1.1:11*",
                "ns1/named:p12/TCP 1.1.1.3:12*",
                "ns1/named:p13/UDP 1.1.1.3:13*",
                "ns2/ep2:p21/TCP 2.2.2.2:21* 2.2.2.3:21",
                "ns2/ep2:p22/TCP 2.2.2.2:22* 2.2.2.3:22",
            ],
            changed: &[],
            touches_udp: false,
            local: &["ns1/named 31002=2", "ns2/ep2 31003=1"],
        },
        Transition {
            name: "add the first slice",
            before: &[],
            after: &["ns1/ep1-1 of ep1 :11/UDP | 1.1.1.1 local"],
            endpoints: &["ns1/ep1/UDP 1.1.1.1:11*"],
            changed: &["ns1/ep1/UDP"],
            touches_udp: true,
            local: &["ns1/ep1 31001=1"],
        },
        Transition {
            name: "remove the only slice",
            before: &["ns1/ep1-1 of ep1 :11/UDP | 1.1.1.1 local"],
            after: &[],
            endpoints: &[],
            changed: &["ns1/ep1/UDP"],
            touches_udp: true,
            local: &[],
        },
        Transition {
            name: "add an address and a port",
            before: &[NAMED_LOCAL],
            after: &["ns1/named-1 of named p11:11/UDP p12:12 | 1.1.1.1 local | 1.1.1.2 local"],
            endpoints: &[
                "ns1/named:p11/UDP 1.1.1.1:11* 1.1.1.2:11*",
                "ns1/named:p12/TCP 1.1.1.1:12* 1.1.1.2:12*",
            ],
            changed: &["ns1/named:p11/UDP", "ns1/named:p12/TCP"],
            touches_udp: true,
            local: &["ns1/named 31002=2"],
        },
        Transition {
            name: "remove an address and a port",
            before: &["ns1/named-1 of named p11:11/UDP p12:12 | 1.1.1.1 local | 1.1.1.2"],
            after: &["ns1/named-1 of named p11:11/UDP | 1.1.1.1 local"],
            endpoints: &["ns1/named:p11/UDP 1.1.1.1:11*"],
            changed: &["ns1/named:p11/UDP", "ns1/named:p12/TCP"],
            touches_udp: true,
            local: &["ns1/named 31002=1"],
        },
        Transition {
            name: "add a slice to a Service that has one",
            before: &[NAMED_LOCAL],
            after: &[NAMED_LOCAL, NAMED_12],
            endpoints: &["ns1/named:p11/UDP 1.1.1.1:11*", "ns1/named:p12/TCP 1.1.1.2:12"],
            changed: &["ns1/named:p12/TCP"],
            touches_udp: false,
            local: &["ns1/named 31002=1"],
        },
        Transition {
            name: "remove a slice from a Service that keeps one",
            before: &[NAMED_LOCAL, NAMED_12],
            after: &[NAMED_LOCAL],
            endpoints: &["ns1/named:p11/UDP 1.1.1.1:11*"],
            changed: &["ns1/named:p12/TCP"],
            touches_udp: false,
            local: &["ns1/named 31002=1"],
        },
        Transition {
            name: "rename a port",
            before: &[NAMED_LOCAL],
            after: &["ns1/named-1 of named p13:11/UDP | 1.1.1.1 local"],
            endpoints: &["ns1/named:p13/UDP 1.1.1.1:11*"],
            changed: &["ns1/named:p11/UDP", "ns1/named:p13/UDP"],
            touches_udp: true,
            local: &["ns1/named 31002=1"],
        },
        Transition {
            name: "renumber a port",
            before: &[NAMED_LOCAL],
            after: &["ns1/named-1 of named p11:22/UDP | 1.1.1.1 local"],
            endpoints: &["ns1/named:p11/UDP 1.1.1.1:22*"],
            changed: &["ns1/named:p11/UDP"],
            touches_udp: true,
            local: &["ns1/named 31002=1"],
        },
        Transition {
            name: "slices come, go and change at once",
            before: &[
                NAMED_LOCAL,
                "ns2/ep2-1 of ep2 p22:22 | 2.2.2.2 local | 2.2.2.22 local",
                "ns2/ep2-2 of ep2 p21:21 | 2.2.2.3",
                "ns4/ep4-1 of ep4 p44:44/UDP | 4.4.4.4 local | 4.4.4.5 local",
                "ns4/ep4-2 of ep4 p45:45/UDP | 4.4.4.6 local",
            ],
            after: &[
                "ns1/named-1 of named p11:11/UDP | 1.1.1.1 local | 1.1.1.11",
                "ns1/named-2 of named p12:12 p22:122 | 1.1.1.2",
                "ns4/ep4-1 of ep4 p44:44/UDP | 4.4.4.4 local",
                "ns1/ep1-1 of ep1 :11/UDP | 3.3.3.3",
            ],
            endpoints: &[
                "ns1/ep1/UDP 3.3.3.3:11",
                "ns1/named:p11/UDP 1.1.1.11:11 1.1.1.1:11*",
                "ns1/named:p12/TCP 1.1.1.2:12",
                "ns1/named:p22/TCP 1.1.1.2:122",
                "ns4/ep4:p44/UDP 4.4.4.4:44*",
            ],
            changed: &[
                "ns1/ep1/UDP",
                "ns1/named:p11/UDP",
                "ns1/named:p12/TCP",
                "ns1/named:p22/TCP",
                "ns2/ep2:p21/TCP",
                "ns2/ep2:p22/TCP",
                "ns4/ep4:p44/UDP",
                "ns4/ep4:p45/UDP",
            ],
            touches_udp: true,
            local: &["ns1/named 31002=1", "ns4/ep4 31004=1"],
        },
        Transition {
            name: "from no address to one",
            before: &["ns1/ep1-1 of ep1 :11/UDP"],
            after: &[UNNAMED],
            endpoints: &["ns1/ep1/UDP 1.1.1.1:11"],
            changed: &["ns1/ep1/UDP"],
            touches_udp: true,
            local: &[],
        },
        Transition {
            name: "from ready to terminating: traffic stays, the health check fails",
            before: &["ns1/ep1-1 of ep1 :11/UDP | 1.1.1.1 local ready=true serving=true terminating=false"],
            after: &["ns1/ep1-1 of ep1 :11/UDP | 1.1.1.1 local draining"],
            endpoints: &["ns1/ep1/UDP 1.1.1.1:11*"],
            // Upstream reports the Service; only its health check differs.
            changed: &[],
            touches_udp: false,
            local: &[],
        },
        Transition {
            name: "from terminating to gone",
            before: &["ns1/ep1-1 of ep1 :11/UDP | 1.1.1.1 local draining"],
            after: &["ns1/ep1-1 of ep1 :11/UDP"],
            endpoints: &[],
            changed: &["ns1/ep1/UDP"],
            touches_udp: true,
            local: &[],
        },
    ];

    /// Deletes the slices that are not in `after`, and applies all others.
    fn transit(world: &mut World, before: &[&str], after: &[&str]) {
        let slice_name = |text: &str| text.split(' ').next().unwrap().to_owned();
        for gone in before.iter().filter(|old| !after.iter().any(|new| slice_name(new) == slice_name(old))) {
            world.delete_slice(&slice_name(gone));
        }
        world.slices(after);
    }

    #[test]
    fn every_transition_leads_to_its_result_and_returns_what_differs() {
        for t in &TRANSITIONS {
            let mut world = World::taken(&SERVICES, t.before);
            transit(&mut world, t.before, t.after);
            let changes = world.take();
            let with_endpoints: Vec<_> =
                world.endpoints().into_iter().filter(|line| line.contains(' ')).collect();
            assert_eq!(with_endpoints, t.endpoints, "{}", t.name);
            assert_eq!(changes.routings, t.changed, "{}", t.name);
            assert_eq!(changes.touches_udp, t.touches_udp, "{}", t.name);
            let local: Vec<_> =
                world.health_checks().into_iter().filter(|line| !line.ends_with("=0")).collect();
            assert_eq!(local, t.local, "{}", t.name);
            assert!(!world.cluster.has_changes(), "{}", t.name);
        }
    }

    #[test]
    fn a_transition_undone_before_changes_are_taken_is_no_change() {
        for t in &TRANSITIONS {
            let mut world = World::taken(&SERVICES, t.before);
            transit(&mut world, t.before, t.after);
            transit(&mut world, t.after, t.before);
            assert_eq!(world.cluster.pending(), (0, 0), "{}", t.name);
            assert_eq!(world.take(), Taken::nothing(), "{}", t.name);
        }
    }

    #[test]
    fn a_draining_slice_fails_the_health_check() {
        let mut world = World::taken(&SERVICES, &["ns1/ep1-1 of ep1 :11/UDP | 1.1.1.1 local"]);
        world.slice("ns1/ep1-1 of ep1 :11/UDP | 1.1.1.1 local draining");
        assert_eq!(world.take().health_checks, ["ns1/ep1 31001=0"]);
    }

    #[test]
    fn a_udp_endpoint_that_stops_serving_touches_udp_even_if_the_chosen_endpoints_stay() {
        let service = "ns/dns 10.96.0.53 dns:53/UDP";
        let mut world = World::taken(&[service], &["ns/a of dns dns:53/UDP | 10.0.0.1 | 10.0.0.2 draining"]);
        assert_eq!(world.endpoints(), ["ns/dns:dns/UDP 10.0.0.1:53"]);
        world
            .slice("ns/a of dns dns:53/UDP | 10.0.0.1 | 10.0.0.2 ready=false serving=false terminating=true");
        let changes = world.take();
        assert!(changes.touches_udp, "flows to 10.0.0.2 are stale");
        assert_eq!(changes.routings, ["ns/dns:dns/UDP"]);
        assert_eq!(world.endpoints(), ["ns/dns:dns/UDP 10.0.0.1:53"]);
    }

    #[test]
    fn the_endpoints_of_all_ports_are_counted_whether_usable_or_not() {
        let mut world = World::taken(&SERVICES, &[EP2, NAMED_12]);
        assert_eq!(world.cluster.counts().endpoints, 5);
        world.slice("ns2/ep2-1 of ep2 p21:21 p22:22 | 2.2.2.2 unready");
        world.take();
        assert_eq!(world.cluster.counts().endpoints, 3);
        world.delete_slice("ns2/ep2-1");
        world.delete_slice("ns1/named-2");
        world.take();
        assert_eq!(world.cluster.counts().endpoints, 0);
    }
}

/// Upstream adds a time with every update of a slice. We compare the content, so an update of the annotation alone is no
/// change and adds nothing.
mod test_last_change_trigger_time {
    use super::*;

    enum Do {
        Apply(&'static str),
        Delete(&'static str),
        Take,
    }
    use Do::{Apply, Delete, Take};

    const T0: &str = "2026-11-15T10:00:00Z";
    const T1: &str = "2026-11-15T10:00:01Z";
    const T2: &str = "2026-11-15T10:00:02.5Z";

    #[test]
    fn trigger_times_accumulate_until_they_are_taken() {
        let cases: &[(&str, &[Do], &[&str])] = &[
            ("an added slice", &[Apply("ns/a of web p:80 at=$1 | 10.0.0.1")], &["ns/web: $1"]),
            (
                "two slices of one Service",
                &[Apply("ns/a of web p:80 at=$1 | 10.0.0.1"), Apply("ns/b of web p:80 at=$2 | 10.0.0.2")],
                &["ns/web: $1 $2"],
            ),
            (
                "two Services",
                &[Apply("ns/b of web p:80 at=$2 | 10.0.0.2"), Apply("ns/a of api p:80 at=$1 | 10.0.0.1")],
                &["ns/api: $1", "ns/web: $2"],
            ),
            (
                "an update",
                &[Apply("ns/a of web p:80 at=$1 | 10.0.0.1"), Apply("ns/a of web p:80 at=$2 | 10.0.0.2")],
                &["ns/web: $1 $2"],
            ),
            (
                "an update without annotation",
                &[Apply("ns/a of web p:80 at=$1 | 10.0.0.1"), Apply("ns/a of web p:80 | 10.0.0.2")],
                &["ns/web: $1"],
            ),
            ("no annotation at all", &[Apply("ns/a of web p:80 | 10.0.0.1")], &[]),
            ("from the moment we started", &[Apply("ns/a of web p:80 at=$0 | 10.0.0.1")], &[]),
            ("from before we started", &[Apply("ns/a of web p:80 at=2026-11-15T09:59:59Z | 10.0.0.1")], &[]),
            (
                "in another time zone",
                &[Apply("ns/a of web p:80 at=2026-11-15T12:00:01+02:00 | 10.0.0.1")],
                &["ns/web: $1"],
            ),
            ("not a time", &[Apply("ns/a of web p:80 at=yesterday | 10.0.0.1")], &[]),
            (
                "an update that changes only the annotation",
                &[Apply("ns/a of web p:80 at=$1 | 10.0.0.1"), Apply("ns/a of web p:80 at=$2 | 10.0.0.1")],
                &["ns/web: $1"],
            ),
            ("a deletion forgets them", &[Apply("ns/a of web p:80 at=$1 | 10.0.0.1"), Delete("ns/a")], &[]),
            (
                "the deletion of any slice of the Service forgets all",
                &[
                    Apply("ns/a of web p:80 at=$1 | 10.0.0.1"),
                    Apply("ns/b of web p:80 | 10.0.0.2"),
                    Delete("ns/b"),
                ],
                &[],
            ),
            (
                "but not those of other Services",
                &[
                    Apply("ns/a of web p:80 at=$1 | 10.0.0.1"),
                    Apply("ns/b of api p:80 at=$2 | 10.0.0.2"),
                    Delete("ns/b"),
                ],
                &["ns/web: $1"],
            ),
            (
                "the deletion of an unknown slice forgets nothing",
                &[Apply("ns/a of web p:80 at=$1 | 10.0.0.1"), Delete("ns/b")],
                &["ns/web: $1"],
            ),
            (
                "add, delete, add",
                &[
                    Apply("ns/a of web p:80 at=$1 | 10.0.0.1"),
                    Delete("ns/a"),
                    Apply("ns/a of web p:80 at=$2 | 10.0.0.1"),
                ],
                &["ns/web: $2"],
            ),
            (
                "what was taken is not returned again",
                &[
                    Apply("ns/a of web p:80 at=$1 | 10.0.0.1"),
                    Take,
                    Apply("ns/a of web p:80 at=$2 | 10.0.0.2"),
                ],
                &["ns/web: $2"],
            ),
            ("a slice of the other family has no say", &[Apply("ns/a of web p:80 at=$1 | fd00::1")], &[]),
            (
                "changed and changed back: nothing will be done, so nothing is measured",
                &[
                    Apply("ns/a of web p:80 | 10.0.0.1"),
                    Take,
                    Apply("ns/a of web p:80 at=$1 | 10.0.0.2"),
                    Apply("ns/a of web p:80 at=$2 | 10.0.0.1"),
                ],
                &[],
            ),
            (
                "a slice that moves to another Service leaves no times behind",
                &[
                    Apply("ns/a of web p:80 | 10.0.0.1"),
                    Take,
                    Apply("ns/a of api p:80 at=$1 | 10.0.0.1"),
                    Apply("ns/a of web p:80 at=$2 | 10.0.0.1"),
                ],
                &[],
            ),
            (
                "a slice that moves to another Service counts there",
                &[Apply("ns/a of web p:80 at=$1 | 10.0.0.1"), Apply("ns/a of api p:80 at=$2 | 10.0.0.1")],
                &["ns/api: $2"],
            ),
        ];
        let spell = |text: &str| text.replace("$0", T0).replace("$1", T1).replace("$2", T2);
        for (case, steps, want) in cases {
            let mut world = World::v4();
            for step in *steps {
                match step {
                    Apply(text) => drop(world.slice(&spell(text))),
                    Delete(slice) => world.delete_slice(slice),
                    Take => drop(world.take()),
                }
            }
            let want: Vec<_> = want.iter().map(|line| spell(line)).collect();
            assert_eq!(world.take().trigger_times, want, "{case}");
            assert_eq!(world.take().trigger_times, [""; 0], "{case}, taken again");
        }
    }

    #[test]
    fn an_invalid_trigger_time_is_noted() {
        let notes = World::v4().slice("ns/a of web p:80 at=yesterday | 10.0.0.1");
        assert!(notes.iter().any(|note| note.to_string().contains("yesterday")), "{notes:?}");
    }

    #[test]
    fn trigger_times_alone_are_no_change_for_the_kernel() {
        let mut world = World::v4();
        world.slice(&format!("ns/a of orphan p:80 at={T1} | 10.0.0.1"));
        let changes = world.cluster.take_changes();
        assert!(changes.is_empty());
        assert_eq!(changes.trigger_times.len(), 1);
    }
}
