//! Single slices, and the slices of one Service together.

use model::event::Event;

use crate::support::{Taken, World, slice, spelled};

const WEB: &str = "ns/web 10.96.0.10 p:80 q:81";

/// Upstream returns whether a call changed anything; we check whether the slice is pending afterwards.
mod test_endpoint_slice_update {
    use super::*;

    const THREE: &str = "ns/a of web p:80 q:443 | 10.0.1.1 | 10.0.1.2 | 10.0.1.3";

    #[test]
    fn a_slice_with_new_content_is_pending() {
        let cases: &[(&str, &[&str], &str, usize)] = &[
            ("a new slice", &[], THREE, 1),
            ("the same slice again", &[THREE], THREE, 0),
            ("FQDN endpoints are ignored", &[], "ns/a of web FQDN p:80 | example.org", 0),
            ("the other family", &[], "ns/a of web p:80 | fd00::1", 0),
            ("no Service named", &[], "ns/a p:80 | 10.0.1.1", 0),
            ("a slice that overlaps another", &[THREE], "ns/b of web p:80 q:443 | 10.0.1.3 | 10.0.1.4", 1),
            ("some of the ports", &[THREE], "ns/a of web p:80 | 10.0.1.1 | 10.0.1.2 | 10.0.1.3", 1),
            ("some of the endpoints", &[THREE], "ns/a of web p:80 q:443 | 10.0.1.1", 1),
            ("no endpoints left", &[THREE], "ns/a of web p:80 q:443", 1),
            ("another port number", &[THREE], "ns/a of web p:80 q:8443 | 10.0.1.1 | 10.0.1.2 | 10.0.1.3", 1),
            ("another port name", &[THREE], "ns/a of web p:80 r:443 | 10.0.1.1 | 10.0.1.2 | 10.0.1.3", 1),
            ("another protocol", &[THREE], "ns/a of web p:80 q:443/UDP | 10.0.1.1 | 10.0.1.2 | 10.0.1.3", 1),
            ("one unready", &[THREE], "ns/a of web p:80 q:443 | 10.0.1.1 unready | 10.0.1.2 | 10.0.1.3", 1),
            ("ready again", &["ns/a of web p:80 | 10.0.1.1 unready"], "ns/a of web p:80 | 10.0.1.1", 1),
            (
                "unready to draining",
                &["ns/a of web p:80 | 10.0.1.1 unready"],
                "ns/a of web p:80 | 10.0.1.1 draining",
                1,
            ),
            (
                "ready to draining",
                &["ns/a of web p:80 | 10.0.1.1"],
                "ns/a of web p:80 | 10.0.1.1 draining",
                1,
            ),
            (
                "terminating but not serving any more",
                &["ns/a of web p:80 | 10.0.1.1 draining"],
                "ns/a of web p:80 | 10.0.1.1 ready=false serving=false terminating=true",
                1,
            ),
            ("on this node now", &["ns/a of web p:80 | 10.0.1.1"], "ns/a of web p:80 | 10.0.1.1 local", 1),
            (
                "on another other node",
                &["ns/a of web p:80 | 10.0.1.1 node=n2"],
                "ns/a of web p:80 | 10.0.1.1 node=n3",
                0,
            ),
            ("a zone hint", &["ns/a of web p:80 | 10.0.1.1"], "ns/a of web p:80 | 10.0.1.1 zones=z1", 1),
            (
                "another zone hint",
                &["ns/a of web p:80 | 10.0.1.1 zones=z1"],
                "ns/a of web p:80 | 10.0.1.1 zones=z2",
                1,
            ),
            ("a node hint", &["ns/a of web p:80 | 10.0.1.1"], "ns/a of web p:80 | 10.0.1.1 nodes=n1", 1),
            (
                "absent conditions spelled out",
                &["ns/a of web p:80 | 10.0.1.1"],
                "ns/a of web p:80/TCP | 10.0.1.1 ready=true serving=true terminating=false",
                0,
            ),
            ("another Service", &["ns/a of web p:80 | 10.0.1.1"], "ns/a of api p:80 | 10.0.1.1", 1),
        ];
        for (case, before, text, pending) in cases {
            let mut world = World::taken(&[WEB], before);
            world.slice(text);
            assert_eq!(world.cluster.pending(), (0, *pending), "{case}");
            assert_eq!(world.cluster.has_changes(), *pending == 1, "{case}");
        }
    }

    #[test]
    fn a_known_slice_can_be_removed_and_an_unknown_one_cannot() {
        let mut world = World::taken(&[WEB], &[THREE]);
        world.delete_slice("ns/a");
        assert_eq!(world.cluster.pending(), (0, 1));
        world.take();
        world.delete_slice("ns/a");
        world.delete_slice("ns/never");
        assert_eq!(world.cluster.pending(), (0, 0));
        assert_eq!(world.take(), Taken::nothing());
    }

    #[test]
    fn a_slice_is_pending_once_however_often_it_changes() {
        let mut world = World::v4();
        for count in 1..=5 {
            world.slice(&format!("ns/a of web p:80 | 10.0.1.{count}"));
            assert_eq!(world.cluster.pending(), (0, 1));
        }
        world.slice("ns/b of web p:80 | 10.0.1.9");
        assert_eq!(world.cluster.pending(), (0, 2));
    }

    #[test]
    fn only_slices_of_the_family_that_name_a_service_are_counted() {
        let mut world = World::v4();
        world.slices(&[
            THREE,
            THREE,
            "ns/b of web p:80 | fd00::1",
            "ns/c of web FQDN p:80 | example.org",
            "ns/d p:80 | 10.0.0.1",
        ]);
        assert_eq!(world.cluster.counts().endpoint_changes, 2);
        world.delete_slice("ns/a");
        world.delete_slice("ns/b");
        assert_eq!(world.cluster.counts().endpoint_changes, 3, "only the removal of what we had");
    }

    #[test]
    fn a_slice_without_a_name_or_namespace_is_noted_and_ignored() {
        for text in ["/a of web p:80 | 10.0.0.1", "ns/ of web p:80 | 10.0.0.1", "ns/a p:80 | 10.0.0.1"] {
            let mut world = World::v4();
            let notes = world.slice(text);
            assert_eq!(notes.len(), 1, "{text}: {notes:?}");
            assert!(!world.cluster.has_changes(), "{text}");
        }
        let mut empty_label = slice("ns/a of web p:80 | 10.0.0.1");
        empty_label.metadata.labels.service_name = Some(String::new());
        let mut world = World::v4();
        world.apply(&Event::SliceApplied(Box::new(empty_label)));
        assert!(!world.cluster.has_changes());
    }
}

/// Upstream returns the previous and current endpoints of a Service; ours are the routings before and after.
mod test_checkout_changes {
    use super::*;

    #[test]
    fn without_pending_slices_there_are_no_changes() {
        assert_eq!(World::taken(&[WEB], &[]).take(), Taken::nothing());
    }

    #[test]
    fn the_first_slice_gives_a_service_its_endpoints() {
        let mut world = World::taken(&[WEB], &[]);
        world.slice("ns/a of web p:8080 | 10.0.1.1 | 10.0.1.2");
        assert_eq!(world.take().routings, ["ns/web:p/TCP"]);
        assert_eq!(world.endpoints(), ["ns/web:p/TCP 10.0.1.1:8080 10.0.1.2:8080", "ns/web:q/TCP"]);
    }

    #[test]
    fn a_port_removed_from_a_slice_loses_its_endpoints() {
        let mut world = World::taken(&[WEB], &["ns/a of web p:8080 q:8081 | 10.0.1.1"]);
        assert_eq!(world.endpoints(), ["ns/web:p/TCP 10.0.1.1:8080", "ns/web:q/TCP 10.0.1.1:8081"]);
        world.slice("ns/a of web p:8080 | 10.0.1.1");
        assert_eq!(world.take().routings, ["ns/web:q/TCP"]);
        assert_eq!(world.endpoints(), ["ns/web:p/TCP 10.0.1.1:8080", "ns/web:q/TCP"]);
    }

    #[test]
    fn changes_are_taken_once() {
        let mut world = World::taken(&[WEB], &[]);
        world.slice("ns/a of web p:8080 | 10.0.1.1");
        assert_ne!(world.take(), Taken::nothing());
        assert_eq!(world.take(), Taken::nothing());
    }
}

/// All endpoints of one service port, in upstream's order.
fn merged(slices: &[&str]) -> String {
    let world = World::taken(&[WEB], slices);
    spelled(&world.routing("ns/web:p/TCP").cluster)
}

mod test_endpoints_map_from_esc {
    use super::*;

    #[test]
    fn the_slices_of_a_service_are_merged_by_port() {
        let cases: &[(&str, &[&str], &str)] = &[
            (
                "one slice, some here",
                &["ns/a of web p:80 | 10.0.1.1 local | 10.0.1.2 node=n2 | 10.0.1.3"],
                "10.0.1.1:80* 10.0.1.2:80 10.0.1.3:80",
            ),
            (
                "two slices, one port",
                &["ns/a of web p:80 | 10.0.1.1 | 10.0.1.2", "ns/b of web p:80 | 10.0.2.1 | 10.0.2.2"],
                "10.0.1.1:80 10.0.1.2:80 10.0.2.1:80 10.0.2.2:80",
            ),
            (
                "overlapping slices",
                &["ns/a of web p:80 | 10.0.1.1 | 10.0.1.2", "ns/b of web p:80 | 10.0.1.2 | 10.0.1.3"],
                "10.0.1.1:80 10.0.1.2:80 10.0.1.3:80",
            ),
            (
                "all unready in one slice",
                &[
                    "ns/a of web p:80 | 10.0.1.1 unready | 10.0.1.2 unready",
                    "ns/b of web p:80 | 10.0.2.1 | 10.0.2.2",
                ],
                "10.0.2.1:80 10.0.2.2:80",
            ),
            (
                "all unready in both",
                &["ns/a of web p:80 | 10.0.1.1 unready", "ns/b of web p:80 | 10.0.2.1 unready"],
                "",
            ),
            (
                "draining in one slice while the other is ready",
                &["ns/a of web p:80 | 10.0.1.1 draining", "ns/b of web p:80 | 10.0.2.1"],
                "10.0.2.1:80",
            ),
            (
                "draining in both",
                &["ns/a of web p:80 | 10.0.1.1 draining", "ns/b of web p:80 | 10.0.2.1 draining"],
                "10.0.1.1:80 10.0.2.1:80",
            ),
            (
                "slices of other Services and namespaces have no say",
                &[
                    "ns/a of web p:80 | 10.0.1.1",
                    "ns/b of other p:80 | 10.0.2.1",
                    "other/a of web p:80 | 10.0.3.1",
                ],
                "10.0.1.1:80",
            ),
            (
                "one address twice in a slice",
                &["ns/a of web p:80 | 10.0.1.1 | 10.0.1.2 | 10.0.1.1"],
                "10.0.1.1:80 10.0.1.2:80",
            ),
            ("one port twice in a slice", &["ns/a of web p:80 p:80 | 10.0.1.1"], "10.0.1.1:80"),
            (
                "one port name with two numbers in a slice",
                &["ns/a of web p:80 p:8080 | 10.0.1.1"],
                "10.0.1.1:80 10.0.1.1:8080",
            ),
            ("one port name with another protocol is another port", &["ns/a of web p:80/UDP | 10.0.1.1"], ""),
            (
                "one spelling per address",
                &["ns/a of web p:80 | 10.0.01.001", "ns/b of web p:80 | ::ffff:10.0.1.1"],
                "10.0.1.1:80",
            ),
            (
                "ordered as text",
                &[
                    "ns/a of web p:80 | 10.244.2.6 | 10.244.2.17",
                    "ns/b of web p:8 | 10.244.2.17 | 10.244.10.1",
                ],
                "10.244.10.1:8 10.244.2.17:8 10.244.2.17:80 10.244.2.6:80",
            ),
        ];
        for (case, slices, want) in cases {
            assert_eq!(merged(slices), *want, "{case}");
        }
    }

    #[test]
    fn ipv6_endpoints_are_ordered_as_bracketed_text() {
        let mut world = World::new(model::address::Family::V6);
        world.service("ns/web fd00:96::1 p:80");
        world.slice("ns/a of web p:80 | fd00::a | fd00::9 | fd00::10 | FD00:0::1:0");
        world.take();
        assert_eq!(
            world.endpoints(),
            ["ns/web:p/TCP [fd00::10]:80 [fd00::1:0]:80 [fd00::9]:80 [fd00::a]:80"]
        );
    }

    #[test]
    fn only_the_first_address_of_an_endpoint_is_used() {
        let mut object = slice("ns/a of web p:80 | 10.0.1.1");
        object.endpoints[0].addresses.push("10.0.1.2".into());
        let mut world = World::taken(&[WEB], &[]);
        world.apply(&Event::SliceApplied(Box::new(object)));
        world.take();
        assert_eq!(spelled(&world.routing("ns/web:p/TCP").cluster), "10.0.1.1:80");
    }

    #[test]
    fn invalid_endpoints_and_ports_are_noted_and_ignored() {
        let mut object =
            slice("ns/a of web p:80 q:0 q:65536 q:-1 q:81/ICMP | 10.0.1.1 | nonsense | fd00::1 | 10.0.1.2");
        object.endpoints[3].addresses.clear();
        object.ports.push(model::api::EndpointPort { name: None, protocol: None, port: Some(82) });
        object.ports.push(model::api::EndpointPort { name: Some("q".into()), protocol: None, port: None });
        let mut world = World::taken(&[WEB], &[]);
        let notes = world.apply(&Event::SliceApplied(Box::new(object)));
        world.take();
        assert_eq!(world.endpoints(), ["ns/web:p/TCP 10.0.1.1:80", "ns/web:q/TCP"]);
        assert_eq!(notes.len(), 9, "{notes:#?}");
    }

    #[test]
    fn an_unnamed_slice_port_is_the_unnamed_service_port_and_no_other() {
        let mut world = World::v4();
        world.services(&["ns/one 10.96.0.1 :80", "ns/two 10.96.0.2 http:80"]);
        world.slices(&["ns/a of one :8080 http:8081 | 10.0.1.1", "ns/b of two :8080 | 10.0.1.2"]);
        world.take();
        assert_eq!(world.endpoints(), ["ns/one/TCP 10.0.1.1:8080", "ns/two:http/TCP"]);
    }
}

mod test_endpoint_info_by_service_port {
    use super::*;

    #[test]
    fn one_address_with_different_port_numbers_is_different_endpoints() {
        let slices = [
            "ns/a of web p:80 | 10.0.1.1 local | 10.0.1.2",
            "ns/b of web p:8080 | 10.0.1.1 local | 10.0.1.2",
        ];
        assert_eq!(merged(&slices), "10.0.1.1:80* 10.0.1.1:8080* 10.0.1.2:80 10.0.1.2:8080");
    }

    /// The endpoint's node shows which of the two entries was used: the local one is marked by a star.
    #[test]
    fn of_two_entries_for_one_endpoint_the_last_that_is_not_terminating_wins() {
        for (case, first, second, want) in [
            ("living after terminating", "terminating=true", "local", "*"),
            ("terminating after living", "local", "terminating=true", "*"),
            ("both living: the later slice", "", "local", "*"),
            ("both living: the later slice again", "local", "", ""),
            ("both terminating: the earlier slice", "local terminating=true", "terminating=true", "*"),
            ("both terminating: the earlier slice again", "terminating=true", "local terminating=true", ""),
            (
                "unready after ready is still the later one",
                "",
                "local ready=false serving=true terminating=false",
                "none",
            ),
        ] {
            let want = if want == "none" { String::new() } else { format!("10.0.1.1:80{want}") };
            let (a, b) = (
                format!("ns/a of web p:80 | 10.0.1.1 {first}"),
                format!("ns/b of web p:80 | 10.0.1.1 {second}"),
            );
            assert_eq!(merged(&[&a, &b]), want, "{case}");
            // Slices are merged in the order of their names, not of their arrival.
            assert_eq!(merged(&[&b, &a]), want, "{case}, arriving the other way round");
            let together =
                format!("ns/a of web p:80 | 10.0.1.1 {first} | 10.0.0.9 unready | 10.0.1.1 {second}");
            assert_eq!(merged(&[&together]), want, "{case}, within one slice");
        }
    }
}

/// Upstream compares whole objects. We compare their content regardless of order, so its two "out of order" cases are no
/// changes.
mod test_es_data_changed {
    use super::*;

    const BASE: &str = "ns/a of web p:80 q:443 | 10.0.1.1 | 10.0.1.2 unready";

    #[test]
    fn a_slice_with_different_content_is_a_change() {
        for (case, text, changed) in [
            ("identical", BASE, false),
            ("ports out of order", "ns/a of web q:443 p:80 | 10.0.1.1 | 10.0.1.2 unready", false),
            ("endpoints out of order", "ns/a of web p:80 q:443 | 10.0.1.2 unready | 10.0.1.1", false),
            ("a port more", "ns/a of web p:80 q:443 r:53 | 10.0.1.1 | 10.0.1.2 unready", true),
            ("a port less", "ns/a of web p:80 | 10.0.1.1 | 10.0.1.2 unready", true),
            ("an endpoint more", "ns/a of web p:80 q:443 | 10.0.1.1 | 10.0.1.2 unready | 10.0.1.3", true),
            ("an endpoint less", "ns/a of web p:80 q:443 | 10.0.1.1", true),
            ("an endpoint replaced", "ns/a of web p:80 q:443 | 10.0.1.1 | 10.0.1.3 unready", true),
            ("conditions swapped", "ns/a of web p:80 q:443 | 10.0.1.1 unready | 10.0.1.2", true),
        ] {
            let mut world = World::taken(&[WEB], &[BASE]);
            world.slice(text);
            assert_eq!(world.cluster.has_changes(), changed, "{case}");
        }
    }

    #[test]
    fn hints_are_sets() {
        let mut world = World::taken(&[WEB], &["ns/a of web p:80 | 10.0.1.1 zones=z1,z2 nodes=n1,n2"]);
        world.slice("ns/a of web p:80 | 10.0.1.1 zones=z2,z1,z1 nodes=n2,n1");
        assert!(!world.cluster.has_changes());
    }
}

mod test_endpoint_slice_cache_cleared_correctly {
    use super::*;

    #[test]
    fn nothing_is_left_of_a_service_whose_slices_are_all_deleted() {
        let mut world = World::v4();
        world.slices(&["ns/a of one p:80 | 10.0.1.1", "ns/b of two p:80 | 10.0.2.1"]);
        world.take();
        assert_eq!(world.cluster.counts().endpoints, 2);
        world.delete_slice("ns/a");
        world.take();
        assert_eq!(world.cluster.counts().endpoints, 1);
        world.service("ns/one 10.96.0.1 p:80");
        world.service("ns/two 10.96.0.2 p:80");
        world.take();
        assert_eq!(world.endpoints(), ["ns/one:p/TCP", "ns/two:p/TCP 10.0.2.1:80"]);
        world.delete_slice("ns/b");
        world.take();
        assert_eq!(world.cluster.counts().endpoints, 0);
        assert_eq!(world.endpoints(), ["ns/one:p/TCP", "ns/two:p/TCP"]);
    }

    #[test]
    fn a_slice_deleted_before_changes_are_taken_is_no_change() {
        let mut world = World::v4();
        world.slice("ns/a of one p:80 | 10.0.1.1");
        world.delete_slice("ns/a");
        assert_eq!(world.cluster.pending(), (0, 0));
        assert_eq!(world.take(), Taken::nothing());
        assert_eq!(world.cluster.counts().endpoints, 0);
    }
}

mod test_same_service_endpoint_slice_cache_cleared_correctly {
    use super::*;

    #[test]
    fn a_service_keeps_the_endpoints_of_its_remaining_slice() {
        let mut world = World::taken(&[WEB], &["ns/a of web p:80 | 10.0.1.1", "ns/b of web p:80 | 10.0.1.2"]);
        world.delete_slice("ns/a");
        world.take();
        assert_eq!(world.endpoints(), ["ns/web:p/TCP 10.0.1.2:80", "ns/web:q/TCP"]);
        world.delete_slice("ns/b");
        world.take();
        assert_eq!(world.endpoints(), ["ns/web:p/TCP", "ns/web:q/TCP"]);
        world.delete_service("ns/web");
        world.take();
        let counts = world.cluster.counts();
        assert_eq!((counts.endpoints, counts.service_ports), (0, 0));
    }

    #[test]
    fn deleting_both_slices_leaves_nothing() {
        let mut world = World::taken(&[WEB], &["ns/a of web p:80 | 10.0.1.1", "ns/b of web p:80 | 10.0.1.2"]);
        world.delete_slice("ns/b");
        world.delete_slice("ns/a");
        assert_eq!(world.take().routings, ["ns/web:p/TCP"]);
        assert_eq!(world.endpoints(), ["ns/web:p/TCP", "ns/web:q/TCP"]);
        assert_eq!(world.cluster.counts().endpoints, 0);
    }
}

mod weights {
    use super::*;
    use model::routing::Traffic;

    const SLICE: &str = "ns/a of web p:80";

    fn weighted(annotation: &str) -> World {
        let mut world = World::taken(&[WEB], &[]);
        world.slice(&format!("{SLICE} weights={annotation} | 10.0.1.1 | 10.0.1.2 | 10.0.1.3"));
        world.take();
        world
    }

    #[test]
    fn endpoints_have_the_weights_of_the_annotation_unless_all_are_alike() {
        for (annotation, endpoints, weights) in [
            ("10.0.1.1=1,10.0.1.2=2,5", "10.0.1.1:80 10.0.1.2:80 10.0.1.3:80", &[1, 2, 5][..]),
            ("10.0.1.2=200", "10.0.1.1:80 10.0.1.2:80 10.0.1.3:80", &[100, 200, 100]),
            ("7", "10.0.1.1:80 10.0.1.2:80 10.0.1.3:80", &[]),
            ("10.0.1.2=0", "10.0.1.1:80 10.0.1.3:80", &[]),
            ("10.0.1.2=0,10.0.1.3=3", "10.0.1.1:80 10.0.1.3:80", &[100, 3]),
            ("10.0.1.1=0,10.0.1.2=0,1", "10.0.1.3:80", &[]),
            ("0", "10.0.1.1:80 10.0.1.2:80 10.0.1.3:80", &[]),
            ("many", "10.0.1.1:80 10.0.1.2:80 10.0.1.3:80", &[]),
        ] {
            let world = weighted(annotation);
            let routing = world.routing("ns/web:p/TCP");
            assert_eq!(spelled(&routing.cluster), endpoints, "{annotation}");
            assert_eq!(routing.weights(Traffic::ToCluster), weights, "{annotation}");
        }
    }

    #[test]
    fn endpoints_of_several_slices_have_weights_of_their_own() {
        let mut world = weighted("3");
        world.slice("ns/b of web p:80 weights=0 | 10.0.1.4");
        world.slice("ns/c of web p:80 | 10.0.1.5 local");
        world.take();
        let routing = world.routing("ns/web:p/TCP");
        assert_eq!(routing.weights(Traffic::ToCluster), [3, 3, 3, 100]);
        assert_eq!(spelled(&routing.cluster), "10.0.1.1:80 10.0.1.2:80 10.0.1.3:80 10.0.1.5:80*");
    }

    #[test]
    fn flows_to_an_endpoint_of_weight_zero_are_not_stale() {
        let mut world = World::taken(&["ns/dns 10.96.0.53 p:53/UDP"], &[]);
        world.slice("ns/a of dns p:53/UDP weights=10.0.1.1=0 | 10.0.1.1 | 10.0.1.2");
        world.take();
        let routing = world.routing("ns/dns:p/UDP");
        assert_eq!(spelled(&routing.cluster), "10.0.1.2:53");
        assert_eq!(spelled(&routing.serving), "10.0.1.1:53 10.0.1.2:53");
    }

    /// As with `publishNotReadyAddresses`.
    #[test]
    fn an_endpoint_of_weight_zero_that_is_published_though_not_ready_serves() {
        let mut world = World::taken(&["ns/dns 10.96.0.53 p:53/UDP"], &[]);
        for (others, cluster) in [(" | 10.0.1.2", "10.0.1.2:53"), ("", "10.0.1.1:53")] {
            let mut slice = slice(&format!("ns/a of dns p:53/UDP weights=10.0.1.1=0 | 10.0.1.1{others}"));
            slice.endpoints[0].conditions.serving = Some(false);
            world.apply(&Event::SliceApplied(slice.into()));
            world.take();
            let routing = world.routing("ns/dns:p/UDP");
            assert_eq!(spelled(&routing.cluster), cluster);
            assert_eq!(spelled(&routing.serving).split(' ').next(), Some("10.0.1.1:53"));
        }
    }

    #[test]
    fn an_invalid_annotation_is_noted_once() {
        let mut world = World::taken(&[WEB], &[]);
        let note = r#"ns/a: Ignoring invalid weights of endpoints: service.sluice.io/weight "1,2""#;
        for (slice, want) in [
            ("weights=1,2 | 10.0.1.1", vec![note]),
            ("weights=1,2 | 10.0.1.1 | 10.0.1.2", vec![]),
            ("weights=1 | 10.0.1.1", vec![]),
            ("weights=1,2 | 10.0.1.1", vec![note]),
        ] {
            let notes = world.slice(&format!("{SLICE} {slice}"));
            assert_eq!(notes.iter().map(ToString::to_string).collect::<Vec<_>>(), want, "{slice}");
        }
        let ignored = |world: &World| {
            let ports = world.cluster.current_service_ports(|_, _| true);
            ports
                .iter()
                .flat_map(|port| port.invalid_weights.clone())
                .map(|(a, b)| format!("{a} {b}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(ignored(&world), ["a 1,2", "a 1,2"], "for each port");
        world.delete_slice("ns/a");
        world.slice("ns/a of web p:80 | 10.0.1.1");
        assert_eq!(ignored(&world), [""; 0]);
    }
}
