//! Lists and repeated lists, both families, and the Node object.

use model::address::Family;
use model::event::{Event, Kind};

use crate::support::{Taken, World};

const WEB: &str = "ns/web 10.96.0.10,fd00:96::10 p:80";
const WEB_V4: &str = "ns/web-4 of web p:8080 | 10.0.0.1";
const WEB_V6: &str = "ns/web-6 of web p:8080 | fd00::1";

mod test_initial_sync {
    use super::*;

    #[test]
    fn a_store_is_complete_once_services_and_slices_have_been_listed() {
        for order in [[Kind::Service, Kind::EndpointSlice], [Kind::EndpointSlice, Kind::Service]] {
            let mut world = World::v4();
            assert!(!world.cluster.is_complete());
            world.list(Kind::ServiceCidr, &["default 10.96.0.0/16"]);
            assert!(!world.cluster.is_complete(), "service CIDRs are not waited for, nor do they suffice");
            world.list(order[0], &[]);
            assert!(!world.cluster.is_complete(), "only {:?}", order[0]);
            world.apply(&Event::Listing(order[1]));
            assert!(!world.cluster.is_complete(), "a list that has only begun");
            world.apply(&Event::Listed(order[1]));
            assert!(world.cluster.is_complete());
        }
    }

    #[test]
    fn the_objects_of_the_first_lists_are_applied_when_the_lists_end() {
        let mut world = World::v4();
        world.list(Kind::Service, &[WEB, "ns/api 10.96.0.11 p:80"]);
        world.list(Kind::EndpointSlice, &[WEB_V4, WEB_V6]);
        assert_eq!(world.take().routings, ["ns/api:p/TCP", "ns/web:p/TCP"]);
        assert_eq!(world.endpoints(), ["ns/api:p/TCP", "ns/web:p/TCP 10.0.0.1:8080"]);
    }

    #[test]
    fn a_store_stays_complete_while_it_is_listed_again() {
        let mut world = World::v4();
        world.list(Kind::Service, &[WEB]);
        world.list(Kind::EndpointSlice, &[]);
        world.apply(&Event::Listing(Kind::Service));
        assert!(world.cluster.is_complete());
        world.take();
        assert_eq!(world.ports(), ["ns/web:p/TCP"], "nothing is gone until the list has ended");
    }
}

/// Not among upstream's cases, because client-go hides it: a source that may have missed events lists again.
mod relisting {
    use super::*;

    #[test]
    fn objects_that_a_new_list_lacks_are_deleted() {
        let mut world = World::v4();
        world.list(Kind::Service, &[WEB, "ns/api 10.96.0.11 p:80"]);
        world.list(Kind::EndpointSlice, &[WEB_V4, "ns/api-1 of api p:8080 | 10.0.0.2"]);
        world.list(Kind::ServiceCidr, &["default 10.96.0.0/16", "more 10.97.0.0/16"]);
        world.take();

        world.list(Kind::Service, &[WEB]);
        assert_eq!(world.cluster.pending(), (1, 0));
        assert_eq!(world.take().routings, ["-ns/api:p/TCP"]);

        world.list(Kind::EndpointSlice, &["ns/api-1 of api p:8080 | 10.0.0.2"]);
        assert_eq!(world.cluster.pending(), (0, 1));
        assert_eq!(world.take().routings, ["ns/web:p/TCP"]);
        assert_eq!(world.endpoints(), ["ns/web:p/TCP"]);

        world.list(Kind::ServiceCidr, &["more 10.97.0.0/16"]);
        assert_eq!(world.take().service_cidrs.unwrap(), ["10.97.0.0/16"]);
    }

    #[test]
    fn the_same_list_again_is_no_change() {
        let mut world = World::v4();
        for _ in 0..2 {
            world.list(Kind::Service, &[WEB]);
            world.list(Kind::EndpointSlice, &[WEB_V4]);
            world.list(Kind::ServiceCidr, &["default 10.96.0.0/16"]);
            world.take();
        }
        world.list(Kind::Service, &[WEB]);
        world.list(Kind::EndpointSlice, &[WEB_V4]);
        world.list(Kind::ServiceCidr, &["default 10.96.0.0/16"]);
        assert!(!world.cluster.has_changes());
        assert_eq!(world.take(), Taken::nothing());
    }

    #[test]
    fn a_list_that_is_restarted_counts_from_its_second_beginning() {
        let mut world = World::v4();
        world.list(Kind::Service, &[WEB, "ns/api 10.96.0.11 p:80"]);
        world.apply(&Event::Listing(Kind::Service));
        world.service("ns/api 10.96.0.11 p:80");
        world.list(Kind::Service, &[WEB]);
        world.take();
        assert_eq!(world.ports(), ["ns/web:p/TCP"]);
    }

    #[test]
    fn a_slice_listed_with_the_other_family_is_removed_from_this_one() {
        let mut world = World::v4();
        world.list(Kind::Service, &[WEB]);
        world.list(Kind::EndpointSlice, &["ns/web-1 of web p:8080 | 10.0.0.1"]);
        world.take();
        world.list(Kind::EndpointSlice, &["ns/web-1 of web p:8080 | fd00::1"]);
        world.take();
        assert_eq!(world.endpoints(), ["ns/web:p/TCP"]);
    }

    #[test]
    fn a_list_of_one_kind_does_not_affect_the_others() {
        let mut world = World::v4();
        world.list(Kind::Service, &[WEB]);
        world.list(Kind::EndpointSlice, &[WEB_V4]);
        world.list(Kind::ServiceCidr, &["default 10.96.0.0/16"]);
        world.take();
        world.list(Kind::EndpointSlice, &[]);
        world.take();
        assert_eq!(world.ports(), ["ns/web:p/TCP"]);
        assert_eq!(world.cluster.service_cidrs().len(), 1);
    }
}

mod test_new_service_added_and_notified {
    use super::*;

    #[test]
    fn a_new_service_is_a_change() {
        let mut world = World::v4();
        world.service(WEB);
        assert!(world.cluster.has_changes());
        assert_eq!(world.take().routings, ["ns/web:p/TCP"]);
    }
}

mod test_service_added_removed_set_and_notified {
    use super::*;

    #[test]
    fn services_added_and_removed_together_are_taken_together() {
        let mut world = World::taken(&["ns/a 10.96.0.1 p:80"], &[]);
        world.service("ns/b 10.96.0.2 p:80");
        world.delete_service("ns/a");
        world.service("ns/c 10.96.0.3 p:80");
        assert_eq!(world.cluster.pending(), (3, 0));
        assert_eq!(world.take().routings, ["-ns/a:p/TCP", "ns/b:p/TCP", "ns/c:p/TCP"]);
    }

    #[test]
    fn a_service_replaced_under_its_name_is_one_change() {
        let mut world = World::taken(&["ns/a 10.96.0.1 p:80"], &["ns/a-1 of a p:8080 | 10.0.0.1"]);
        world.delete_service("ns/a");
        world.service("ns/a 10.96.0.2 p:80");
        assert_eq!(world.take().routings, ["ns/a:p/TCP"]);
        assert_eq!(world.frontends(), ["ns/a:p/TCP 10.96.0.2:80"]);
        assert_eq!(world.endpoints(), ["ns/a:p/TCP 10.0.0.1:8080"]);
    }
}

/// Upstream's several handlers correspond to our stores of the two families.
mod test_new_services_multiple_handlers_added_and_notified {
    use super::*;

    #[test]
    fn a_dual_stack_service_is_a_change_in_each_family_with_its_own_address() {
        for (family, want) in [(Family::V4, "10.96.0.10:80"), (Family::V6, "[fd00:96::10]:80")] {
            let mut world = World::new(family);
            world.service(WEB);
            world.take();
            assert_eq!(world.frontends(), [format!("ns/web:p/TCP {want}")]);
        }
    }
}

mod test_new_endpoints_multiple_handlers_added_and_notified {
    use super::*;

    #[test]
    fn each_family_applies_only_its_own_slices() {
        for (family, want) in [(Family::V4, "10.0.0.1:8080"), (Family::V6, "[fd00::1]:8080")] {
            let mut world = World::new(family);
            world.service(WEB);
            world.slices(&[WEB_V4, WEB_V6]);
            assert_eq!(world.cluster.pending(), (1, 1));
            world.take();
            assert_eq!(world.endpoints(), [format!("ns/web:p/TCP {want}")]);
        }
    }
}

mod test_new_endpoints_multiple_handlers_add_remove_set_and_notified {
    use super::*;

    #[test]
    fn deleting_a_slice_of_one_family_does_not_affect_the_other() {
        let mut v4 = World::taken(&[WEB], &[WEB_V4]);
        v4.delete_slice("ns/web-6");
        assert!(!v4.cluster.has_changes());
        v4.delete_slice("ns/web-4");
        assert_eq!(v4.take().routings, ["ns/web:p/TCP"]);
    }
}

mod test_new_node_topology_config {
    use super::*;

    const HINTED: &str = "ns/web-4 of web p:8080 | 10.0.0.1 zones=z1 | 10.0.0.2 zones=z2";

    #[test]
    fn a_new_zone_changes_routings_and_the_same_zone_does_not() {
        let mut world = World::taken(&[WEB, "ns/api 10.96.0.11 p:80"], &[HINTED]);
        assert_eq!(world.endpoints(), ["ns/api:p/TCP", "ns/web:p/TCP 10.0.0.1:8080 10.0.0.2:8080"]);
        for (zone, changed, endpoints) in [
            (Some("z1"), true, "ns/web:p/TCP 10.0.0.1:8080"),
            (Some("z1"), false, "ns/web:p/TCP 10.0.0.1:8080"),
            (Some("z2"), true, "ns/web:p/TCP 10.0.0.2:8080"),
            (None, true, "ns/web:p/TCP 10.0.0.1:8080 10.0.0.2:8080"),
            (None, false, "ns/web:p/TCP 10.0.0.1:8080 10.0.0.2:8080"),
        ] {
            world.zone(zone);
            assert_eq!(world.cluster.has_changes(), changed, "{zone:?}");
            let changes = world.take();
            assert_eq!(changes.routings, if changed { vec!["ns/web:p/TCP"] } else { vec![] }, "{zone:?}");
            assert_eq!(world.endpoints()[1], endpoints, "{zone:?}");
        }
    }

    #[test]
    fn other_labels_are_no_change() {
        let mut world = World::taken(&[WEB], &[HINTED]);
        let mut node = model::api::Node::default();
        node.metadata.name = "n1".into();
        node.metadata.labels.service_name = Some("whatever".into());
        node.spec.pod_cidrs = vec!["10.0.0.0/24".into()];
        world.apply(&Event::NodeApplied(Box::new(node)));
        assert!(!world.cluster.has_changes());
    }

    #[test]
    fn deleting_the_node_object_keeps_the_zone() {
        let mut world = World::taken(&[WEB], &[HINTED]);
        world.zone(Some("z1"));
        world.take();
        world.apply(&Event::NodeDeleted);
        assert!(!world.cluster.has_changes());
        assert_eq!(world.endpoints(), ["ns/web:p/TCP 10.0.0.1:8080"]);
    }
}

mod what_there_is_to_do {
    use super::*;

    #[test]
    fn a_routing_a_health_check_or_a_cidr_alone_is_a_change() {
        const LOCAL: &str = "ns/web 10.96.0.10 LoadBalancer p:80 external-policy=Local health=31000";
        let mut world = World::v4();
        assert!(world.cluster.take_changes().is_empty());

        world.service("ns/api 10.96.0.11 p:80");
        assert!(!world.cluster.take_changes().is_empty(), "a routing");

        world.service_cidr("default", "10.96.0.0/16");
        assert!(!world.cluster.take_changes().is_empty(), "a service CIDR");

        world.service(LOCAL);
        world.slice("ns/web-1 of web p:80 | 10.0.0.1 local");
        world.cluster.take_changes();
        world.slice("ns/web-1 of web p:80 x:81 | 10.0.0.1 local draining");
        let changes = world.cluster.take_changes();
        assert_eq!((changes.routings.len(), changes.health_checks.len()), (0, 1));
        assert!(!changes.is_empty(), "a health check");

        world.slice("ns/web-1 of web p:80 | 10.0.0.1 local draining");
        assert!(world.cluster.take_changes().is_empty(), "no Service has this port");
    }
}

/// Upstream has no cases for these. Backends get the whole list when it differs.
mod service_cidrs {
    use super::*;

    #[test]
    fn changed_cidrs_of_the_family_are_sorted_and_without_duplicates() {
        let mut world = World::v4();
        world.service_cidr("default", "10.96.0.0/16,fd00:96::/112");
        assert_eq!(world.take().service_cidrs.unwrap(), ["10.96.0.0/16"]);
        world.service_cidr("more", "10.95.0.0/16");
        world.service_cidr("same", "10.96.0.1/16");
        assert_eq!(world.take().service_cidrs.unwrap(), ["10.95.0.0/16", "10.96.0.0/16"]);
        world.service_cidr("default", "10.96.0.0/16,fd00:96::/112");
        assert_eq!(world.take(), Taken::nothing(), "the same again");
        world.apply(&Event::ServiceCidrDeleted("default".into()));
        assert_eq!(world.take(), Taken::nothing(), "another object still says so");
        world.apply(&Event::ServiceCidrDeleted("same".into()));
        assert_eq!(world.take().service_cidrs.unwrap(), ["10.95.0.0/16"]);
        world.apply(&Event::ServiceCidrDeleted("unknown".into()));
        assert_eq!(world.take(), Taken::nothing());
    }

    #[test]
    fn what_is_added_and_deleted_before_changes_are_taken_is_no_change() {
        let mut world = World::v4();
        world.service_cidr("default", "10.96.0.0/16");
        world.apply(&Event::ServiceCidrDeleted("default".into()));
        assert!(!world.cluster.has_changes());
        assert_eq!(world.take(), Taken::nothing());
    }

    #[test]
    fn an_object_of_the_other_family_is_no_change() {
        let mut world = World::v4();
        world.service_cidr("default", "fd00:96::/112");
        assert!(!world.cluster.has_changes());
        assert_eq!(world.take(), Taken::nothing());
    }

    #[test]
    fn what_cannot_be_parsed_is_noted() {
        let notes = World::v4().service_cidr("default", "10.96.0.0/16,nonsense");
        assert_eq!(notes.len(), 1);
        assert!(notes[0].to_string().contains("nonsense"));
    }
}
