//! The worked examples of the specification, section 19.

use model::address::Family;

use crate::support::{Taken, World};
use crate::topology::{CLUSTER, EXTERNAL_LOCAL, EXTERNAL_LOCAL_UNREACHABLE, INTERNAL_LOCAL, choice, chosen};

/// 19.1, with A, B and C written 1, 2 and 3.
#[test]
#[rustfmt::skip]
fn categorization_matches_the_worked_table() {
    for (case, service, endpoints, want) in [
        ("Cluster/Cluster", CLUSTER, "1 | 2 unready", choice("1", "", "1", true)),
        ("Cluster, all terminating", CLUSTER, "1 draining | 2 draining", choice("1 2", "", "1 2", true)),
        ("Cluster, only not ready", CLUSTER, "1 ready=false serving=true", choice("", "", "", false)),
        ("internal Local, remote", INTERNAL_LOCAL, "1", choice("", "", "", true)),
        ("internal Local", INTERNAL_LOCAL, "1 local | 2", choice("", "1", "1", true)),
        ("external Local with node port", EXTERNAL_LOCAL, "1 local | 2", choice("1 2", "1", "1 2", true)),
        ("external Local, draining here", EXTERNAL_LOCAL, "1 local draining | 2", choice("2", "1", "1 2", true)),
        ("external Local but nothing external", EXTERNAL_LOCAL_UNREACHABLE, "1 local | 2", choice("1 2", "", "1 2", true)),
        ("zone hints", CLUSTER, "1 zones=z1 | 2 zones=z2", choice("1", "", "1", true)),
        ("zone hints, one without", CLUSTER, "1 zones=z1 | 2", choice("1 2", "", "1 2", true)),
        ("zone hints, ours not ready", CLUSTER, "1 zones=z1 unready | 2 zones=z2", choice("2", "", "2", true)),
        ("node hints before zone hints", CLUSTER, "1 nodes=n1 zones=z1 | 2 nodes=n2 zones=z1", choice("1", "", "1", true)),
        ("node hints for others", CLUSTER, "1 nodes=n2 zones=z1 | 2 nodes=n3 zones=z2", choice("1", "", "1", true)),
        ("node hint on one only", CLUSTER, "1 nodes=n1 zones=z1 | 2 zones=z1", choice("1 2", "", "1 2", true)),
        ("external Local with zone hints", EXTERNAL_LOCAL, "1 local zones=z2 | 2 zones=z1 | 3 zones=z2", choice("2", "1", "1 2", true)),
    ] {
        assert_eq!(chosen(service, Some("z1"), endpoints), want, "{case}");
    }
}

/// 19.2. What upstream returns from an update, whether anything is pending, is our `has_changes`.
mod tracker_sequences {
    use super::*;

    const S1: &str = "ns/s1 10.96.0.1 p:80";
    const S2: &str = "ns/s2 10.96.0.2 p:80";

    #[test]
    fn a_service_added_and_deleted_before_a_sync_leaves_nothing_pending() {
        let mut world = World::v4();
        world.service(S1);
        assert!(world.cluster.has_changes());
        world.delete_service("ns/s1");
        assert!(!world.cluster.has_changes());
    }

    #[test]
    fn an_irrelevant_update_keeps_others_pending() {
        let mut world = World::taken(&[S1, S2], &[]);
        world.service(S2);
        assert!(!world.cluster.has_changes());
        world.service("ns/s1 10.96.0.1 p:81");
        world.service(S2);
        assert!(world.cluster.has_changes());
        assert_eq!(world.take().routings, ["ns/s1:p/TCP"]);
    }

    /// Upstream keeps a pending removal and reports the Service as updated; we cancel both, which the specification allows.
    #[test]
    fn a_slice_added_and_deleted_before_a_sync_leaves_nothing_pending() {
        let mut world = World::taken(&[S1], &[]);
        world.slice("ns/x of s1 p:8080 | 10.0.0.1");
        assert_eq!(world.cluster.pending(), (0, 1));
        world.delete_slice("ns/x");
        assert_eq!(world.cluster.pending(), (0, 0));
        assert_eq!(world.take(), Taken::nothing());
        assert_eq!(world.endpoints(), ["ns/s1:p/TCP"]);
    }

    #[test]
    fn deleting_an_unknown_slice_is_no_change() {
        let mut world = World::taken(&[S1], &[]);
        world.delete_slice("ns/x");
        assert!(!world.cluster.has_changes());
    }

    #[test]
    fn trigger_times_after_the_start_accumulate_until_a_slice_is_deleted() {
        let mut world = World::v4();
        world.slice("ns/x of s1 p:80 at=2026-11-15T09:59:59Z | 10.0.0.1");
        assert_eq!(world.take().trigger_times, [""; 0]);
        world.slice("ns/y of s1 p:80 at=2026-11-15T10:00:01Z | 10.0.0.2");
        world.slice("ns/y of s1 p:80 at=2026-11-15T10:00:02Z | 10.0.0.3");
        assert_eq!(world.take().trigger_times, ["ns/s1: 2026-11-15T10:00:01Z 2026-11-15T10:00:02Z"]);
        world.slice("ns/y of s1 p:80 at=2026-11-15T10:00:03Z | 10.0.0.4");
        world.delete_slice("ns/x");
        assert_eq!(world.take().trigger_times, [""; 0]);
    }
}

/// 19.4. We note `bogus` once per Service and family, upstream logs it once per port.
#[test]
fn a_service_with_addresses_of_both_families_is_split_between_them() {
    let text = "ns/web 10.96.0.70,fd00:96::70 LoadBalancer p:80 external-ips=198.51.100.070,2001:db8::070,bogus, \
                ranges=203.0.113.0/24,::/0 lb-ips=203.0.113.90,2001:db8::90";
    for (family, want) in [
        (Family::V4, "10.96.0.70:80 external=198.51.100.70:80 lb=203.0.113.90:80 from=203.0.113.0/24"),
        (Family::V6, "[fd00:96::70]:80 external=[2001:db8::70]:80 lb=[2001:db8::90]:80"),
    ] {
        let mut world = World::new(family);
        let notes: Vec<_> = world.service(text).iter().map(ToString::to_string).collect();
        world.take();
        assert_eq!(world.frontends(), [format!("ns/web:p/TCP {want}")], "{family}");
        assert_eq!(notes.len(), 1, "{family}: {notes:?}");
        assert!(notes[0].contains("bogus"), "{family}: {notes:?}");
    }
}
