//! How we handle upstream's quirks, section 18 of the specification.

use model::address::Family;
use model::event::Event;
use model::routing::{Frontend, Traffic};

use crate::support::{Taken, World, here, slice, spelled};

const WEB: &str = "ns/web 10.96.0.10 p:80";

/// Upstream syncs for any new version of a slice.
mod m1_metadata_only_updates {
    use super::*;

    #[test]
    fn a_slice_with_the_same_content_is_no_change() {
        let mut world = World::taken(&[WEB], &["ns/a of web p:80 | 10.0.0.1"]);
        let mut touched = slice("ns/a of web p:80 at=2026-11-15T11:00:00Z | 10.0.0.1");
        touched.metadata.labels.headless = Some(String::new());
        touched.metadata.deletion_timestamp = Some("2026-11-15T11:00:00Z".into());
        world.apply(&Event::SliceApplied(Box::new(touched)));
        assert!(!world.cluster.has_changes());
        assert_eq!(world.take(), Taken::nothing(), "not even a time to measure");
    }
}

/// Upstream keeps an empty record for every deleted slice that it did not know.
mod m2_unknown_slices {
    use super::*;

    #[test]
    fn deleting_an_unknown_slice_leaves_no_record() {
        let mut world = World::v4();
        for number in 0..100 {
            world.delete_slice(&format!("ns/s{number}"));
        }
        assert_eq!(world.cluster.pending(), (0, 0));
        assert_eq!(world.take(), Taken::nothing());
        let shown = format!("{:?}", world.cluster);
        assert!(!shown.contains("s42"), "{shown}");
    }

    #[test]
    fn a_deleted_service_without_slices_leaves_no_record() {
        let mut world = World::v4();
        world.slice("ns/a of passing p:80 | 10.0.0.1");
        world.take();
        world.delete_slice("ns/a");
        world.take();
        let shown = format!("{:?}", world.cluster);
        assert!(!shown.contains("passing"), "{shown}");
    }
}

/// Upstream keeps the slice with the old Service, too.
mod m3_a_slice_changes_its_service {
    use super::*;

    const BOTH: [&str; 2] = [WEB, "ns/api 10.96.0.11 p:80"];

    #[test]
    fn its_endpoints_move_to_the_new_service() {
        let mut world = World::taken(&BOTH, &["ns/a of web p:80 | 10.0.0.1", "ns/b of web p:80 | 10.0.0.2"]);
        world.slice("ns/a of api p:80 | 10.0.0.1");
        assert_eq!(world.take().routings, ["ns/api:p/TCP", "ns/web:p/TCP"]);
        assert_eq!(world.endpoints(), ["ns/api:p/TCP 10.0.0.1:80", "ns/web:p/TCP 10.0.0.2:80"]);
    }

    #[test]
    fn deleting_it_afterwards_removes_it_from_both() {
        let mut world = World::taken(&BOTH, &["ns/a of web p:80 | 10.0.0.1"]);
        world.slice("ns/a of api p:80 | 10.0.0.1");
        world.delete_slice("ns/a");
        world.take();
        assert_eq!(world.endpoints(), ["ns/api:p/TCP", "ns/web:p/TCP"]);
        assert_eq!(world.cluster.counts().endpoints, 0);
    }

    #[test]
    fn moving_it_back_is_no_change() {
        let mut world = World::taken(&BOTH, &["ns/a of web p:80 | 10.0.0.1"]);
        world.slice("ns/a of api p:80 | 10.0.0.1");
        world.slice("ns/a of orphan p:80 | 10.0.0.1");
        world.slice("ns/a of web p:80 | 10.0.0.1");
        assert_eq!(world.cluster.pending(), (0, 0));
        assert_eq!(world.take(), Taken::nothing());
        assert_eq!(world.endpoints(), ["ns/api:p/TCP", "ns/web:p/TCP 10.0.0.1:80"]);
    }

    #[test]
    fn a_slice_that_loses_its_label_belongs_to_no_service() {
        let mut world = World::taken(&BOTH, &["ns/a of web p:80 | 10.0.0.1"]);
        world.slice("ns/a p:80 | 10.0.0.1");
        assert_eq!(world.take().routings, ["ns/web:p/TCP"]);
        assert_eq!(world.endpoints(), ["ns/api:p/TCP", "ns/web:p/TCP"]);
    }

    /// The API server rejects this; a folder of manifests does not.
    #[test]
    fn a_slice_that_changes_its_family_is_removed_from_the_old_one() {
        let mut world = World::taken(&BOTH, &["ns/a of web p:80 | 10.0.0.1"]);
        world.slice("ns/a of web p:80 | fd00::1");
        assert_eq!(world.take().routings, ["ns/web:p/TCP"]);
        assert_eq!(world.endpoints(), ["ns/api:p/TCP", "ns/web:p/TCP"]);
    }
}

mod m11_external_ips_behind_a_gate {
    use super::*;

    #[test]
    fn external_ips_are_not_served_but_make_the_service_externally_accessible() {
        let mut closed = here(Family::V4);
        closed.serve_external_ips = false;
        let mut world = World::on_node(closed);
        world.service(
            "ns/web 10.96.0.10 p:80 external-ips=198.51.100.1 external-policy=Local internal-policy=Local",
        );
        world.slice("ns/a of web p:80 | 10.0.0.1 local | 10.0.0.2");
        world.take();
        assert_eq!(world.frontends(), ["ns/web:p/TCP 10.96.0.10:80 preserves-client"]);
        let routing = world.routing("ns/web:p/TCP");
        assert!(routing.is_externally_accessible);
        assert!(!routing.frontends().any(|frontend| matches!(frontend, Frontend::ExternalIp(_))));
        assert_eq!(
            spelled(&routing.cluster),
            "10.0.0.1:80* 10.0.0.2:80",
            "kept for the unused external chain"
        );
        assert_eq!(routing.external, Traffic::ToLocal);
    }

    #[test]
    fn external_ips_of_the_other_family_do_not_count() {
        let mut world = World::v4();
        world.service("ns/web 10.96.0.10 p:80 external-ips=2001:db8::1");
        world.take();
        assert!(!world.routing("ns/web:p/TCP").is_externally_accessible);
    }
}

mod m12_source_ranges_of_one_family {
    use super::*;

    #[test]
    fn source_ranges_of_one_family_do_not_restrict_the_other() {
        let text = "ns/web 10.96.0.10,fd00:96::10 LoadBalancer p:80 lb-ips=203.0.113.1,2001:db8::1 ranges=10.0.0.0/8";
        for (family, ranges) in [(Family::V4, 1), (Family::V6, 0)] {
            let mut world = World::new(family);
            world.service(text);
            world.take();
            let routing = world.routing("ns/web:p/TCP");
            assert_eq!(routing.addresses.load_balancer_ips.len(), 1, "{family}");
            assert_eq!(routing.addresses.source_ranges.len(), ranges, "{family}");
        }
    }

    #[test]
    fn invalid_source_ranges_count_as_absent() {
        let mut world = World::v4();
        world.service("ns/web 10.96.0.10 LoadBalancer p:80 lb-ips=203.0.113.1 ranges=everyone");
        world.take();
        assert_eq!(world.routing("ns/web:p/TCP").addresses.source_ranges.len(), 0);
    }
}
