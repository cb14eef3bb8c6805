//! Which endpoints a service port uses on this node.

use model::routing::Traffic;

use crate::support::{World, spelled};

/// The endpoints chosen for the only port of a Service.
#[derive(Debug, PartialEq)]
pub struct Chosen {
    pub cluster: String,
    pub local: String,
    pub reachable: String,
    pub has_any: bool,
}

pub const CLUSTER: &str = "ns/web 10.96.0.10 p:80";
pub const INTERNAL_LOCAL: &str = "ns/web 10.96.0.10 p:80 internal-policy=Local";
pub const EXTERNAL_LOCAL: &str = "ns/web 10.96.0.10 NodePort p:80@30080 external-policy=Local";
pub const BOTH_LOCAL: &str =
    "ns/web 10.96.0.10 NodePort p:80@30080 external-policy=Local internal-policy=Local";
pub const INTERNAL_LOCAL_WITH_NODE_PORT: &str = "ns/web 10.96.0.10 NodePort p:80@30080 internal-policy=Local";
/// A load balancer that has neither address nor node port yet.
pub const EXTERNAL_LOCAL_UNREACHABLE: &str =
    "ns/web 10.96.0.10 LoadBalancer p:80 external-policy=Local health=31000";

pub fn world(service: &str, zone: Option<&str>, endpoints: &str) -> World {
    let mut world = World::v4();
    world.zone(zone);
    world.service(service);
    // Endpoints are written by their last octet: `1 local` is 10.0.0.1 on this node.
    let endpoints =
        endpoints.split(" | ").filter(|text| !text.is_empty()).map(|text| format!(" | 10.0.0.{text}"));
    world.slice(&format!("ns/a of web IPv4 p:80{}", endpoints.collect::<String>()));
    world.take();
    world
}

pub fn chosen(service: &str, zone: Option<&str>, endpoints: &str) -> Chosen {
    let world = world(service, zone, endpoints);
    let routing = world.routing("ns/web:p/TCP");
    let short = |text: String| text.replace("10.0.0.", "").replace(":80", "").replace('*', "");
    Chosen {
        cluster: short(spelled(&routing.cluster)),
        local: short(spelled(&routing.local)),
        reachable: short(spelled(&routing.reachable())),
        has_any: routing.has_endpoints(),
    }
}

pub fn choice(cluster: &str, local: &str, reachable: &str, has_any: bool) -> Chosen {
    Chosen { cluster: cluster.into(), local: local.into(), reachable: reachable.into(), has_any }
}

/// Upstream also has cases with the node-hint gate disabled; since 1.35 it cannot be disabled, and we have no gate.
mod test_categorize_endpoints {
    use super::*;

    /// Name, Service, this node's zone, endpoints; then cluster, local, reachable, and whether any node has an endpoint.
    type Case = (
        &'static str,
        &'static str,
        Option<&'static str>,
        &'static str,
        &'static str,
        &'static str,
        &'static str,
        bool,
    );

    #[rustfmt::skip]
    const CASES: [Case; 40] = [
        ("no endpoints", CLUSTER, Some("z1"), "", "", "", "", false),
        ("no endpoints, policies Local", BOTH_LOCAL, Some("z1"), "", "", "", "", false),

        // Zone hints.
        ("zone hints are followed", CLUSTER, Some("z1"), "1 zones=z1 | 2 zones=z2 | 3 zones=z1", "1 3", "", "1 3", true),
        ("an endpoint may be meant for several zones", CLUSTER, Some("z2"), "1 zones=z1 | 2 zones=z1,z2 | 3 zones=z3", "2", "", "2", true),
        ("one endpoint without zone hint: none counts", CLUSTER, Some("z1"), "1 zones=z1 | 2", "1 2", "", "1 2", true),
        ("no endpoint is meant for this zone: no hint counts", CLUSTER, Some("z9"), "1 zones=z1 | 2 zones=z2", "1 2", "", "1 2", true),
        ("a node without zone follows no zone hint", CLUSTER, None, "1 zones=z1 | 2 zones=z2", "1 2", "", "1 2", true),
        ("a node with an empty zone follows none either", CLUSTER, Some(""), "1 zones=z1 | 2 zones=z2", "1 2", "", "1 2", true),
        ("unless a hint is literally empty", CLUSTER, None, "1 zones= | 2 zones=z2", "1", "", "1", true),
        ("an unready endpoint without hint does not matter", CLUSTER, Some("z1"), "1 zones=z1 | 2 zones=z2 | 3 unready", "1", "", "1", true),
        ("an unready endpoint of our zone does not help", CLUSTER, Some("z1"), "1 zones=z1 unready | 2 zones=z2 | 3 zones=z3", "2 3", "", "2 3", true),
        ("a draining endpoint of our zone does not help either", CLUSTER, Some("z1"), "1 zones=z1 draining | 2 zones=z2", "2", "", "2", true),
        ("once only draining ones are left, hints are over", CLUSTER, Some("z1"), "1 zones=z1 draining | 2 zones=z2 draining", "1 2", "", "1 2", true),

        // Node hints.
        ("node hints are followed", CLUSTER, Some("z1"), "1 nodes=n1 | 2 nodes=n2", "1", "", "1", true),
        ("node hints come before zone hints", CLUSTER, Some("z1"), "1 nodes=n1 zones=z1 | 2 nodes=n2 zones=z1", "1", "", "1", true),
        ("no node hint for us: zone hints decide", CLUSTER, Some("z1"), "1 nodes=n2 zones=z1 | 2 nodes=n3 zones=z2", "1", "", "1", true),
        ("an endpoint without node hint: zone hints decide", CLUSTER, Some("z1"), "1 nodes=n1 zones=z2 | 2 zones=z1", "2", "", "2", true),
        ("neither hint is complete", CLUSTER, Some("z1"), "1 nodes=n1 | 2 zones=z1", "1 2", "", "1 2", true),
        ("node hints need no zone", CLUSTER, None, "1 nodes=n1,n2 | 2 nodes=n3 | 3 nodes=n2,n1", "1 3", "", "1 3", true),
        ("an unready endpoint hinted here: zone hints decide", CLUSTER, Some("z1"), "1 nodes=n1 zones=z1 unready | 2 nodes=n2 zones=z2 | 3 nodes=n3 zones=z1", "3", "", "3", true),

        // Hints and policies.
        ("hints never narrow what is local", EXTERNAL_LOCAL, Some("z1"), "1 local zones=z2 | 2 zones=z1 | 3 zones=z2", "2", "1", "1 2", true),
        ("node hints neither", EXTERNAL_LOCAL, Some("z1"), "1 local nodes=n2 | 2 nodes=n1", "2", "1", "1 2", true),
        ("local is part of cluster: the union is cluster", EXTERNAL_LOCAL, Some("z1"), "1 local zones=z1 | 2 zones=z1 | 3 zones=z2", "1 2", "1", "1 2", true),

        // Conditions.
        ("ready only", CLUSTER, None, "1 | 2 unready | 3 draining", "1", "", "1", true),
        ("draining when nothing is ready", CLUSTER, None, "1 draining | 2 unready | 3 draining", "1 3", "", "1 3", true),
        ("terminating and no longer serving is no use", CLUSTER, None, "1 ready=false serving=false terminating=true", "", "", "", false),
        ("serving, not ready, not terminating is no use", CLUSTER, None, "1 ready=false serving=true", "", "", "", false),
        ("serving says nothing about an absent ready", CLUSTER, None, "1 serving=false", "1", "", "1", true),
        ("absent serving means serving", CLUSTER, None, "1 ready=false terminating=true", "1", "", "1", true),

        // Policies.
        ("internal Local, cluster IP only: cluster is not computed", INTERNAL_LOCAL, None, "1 local | 2", "", "1", "1", true),
        ("internal Local, only remote ones: there is one, but not here", INTERNAL_LOCAL, None, "1 | 2", "", "", "", true),
        ("internal Local, all unready: there is none at all", INTERNAL_LOCAL, None, "1 local unready | 2 unready", "", "", "", false),
        ("internal Local, ready elsewhere and draining here", INTERNAL_LOCAL, None, "1 local draining | 2", "", "1", "1", true),
        ("internal Local, draining elsewhere only", INTERNAL_LOCAL, None, "1 local unready | 2 draining", "", "", "", true),
        ("internal Local but reachable from outside: both", INTERNAL_LOCAL_WITH_NODE_PORT, None, "1 local | 2", "1 2", "1", "1 2", true),
        ("external Local: both", EXTERNAL_LOCAL, None, "1 local | 2", "1 2", "1", "1 2", true),
        ("external Local, draining here: a union beyond cluster", EXTERNAL_LOCAL, None, "2 local draining | 1 | 3", "1 3", "2", "1 2 3", true),
        ("external Local, everything drains", BOTH_LOCAL, None, "1 local draining | 2 draining", "1 2", "1", "1 2", true),
        ("external Local, but not externally accessible", EXTERNAL_LOCAL_UNREACHABLE, None, "1 local | 2", "1 2", "", "1 2", true),
        ("local never falls back to remote", EXTERNAL_LOCAL, None, "1 local unready | 2", "2", "", "2", true),
    ];

    #[test]
    fn endpoints_are_chosen_by_policy_condition_and_hint() {
        for (case, service, zone, endpoints, cluster, local, reachable, has_any) in CASES {
            assert_eq!(
                chosen(service, zone, endpoints),
                choice(cluster, local, reachable, has_any),
                "{case}"
            );
        }
    }

    #[test]
    fn the_union_is_sorted_as_text() {
        let found = chosen(EXTERNAL_LOCAL, None, "6 local draining | 17 | 5");
        assert_eq!(found, choice("17 5", "6", "17 5 6", true));
    }

    /// Traffic is rejected if no node has an endpoint, and dropped if this node has none but must.
    #[test]
    fn traffic_is_rejected_without_endpoints_and_dropped_without_local_ones() {
        use Traffic::{DropNoLocalEndpoints as Drop, RejectNoEndpoints as Reject, ToCluster, ToLocal};
        for (case, service, endpoints, internal, external, from_inside) in [
            ("Cluster, none", CLUSTER, "", Reject, Reject, Reject),
            ("Cluster, one", CLUSTER, "1", ToCluster, ToCluster, ToCluster),
            ("both Local, none", BOTH_LOCAL, "1 unready", Reject, Reject, Reject),
            ("both Local, only elsewhere", BOTH_LOCAL, "1", Drop, Drop, ToCluster),
            ("both Local, one here", BOTH_LOCAL, "1 local | 2", ToLocal, ToLocal, ToCluster),
            ("both Local, draining here", BOTH_LOCAL, "1 local draining | 2", ToLocal, ToLocal, ToCluster),
            ("external Local, only elsewhere", EXTERNAL_LOCAL, "1", ToCluster, Drop, ToCluster),
            ("external Local, one here", EXTERNAL_LOCAL, "1 local | 2", ToCluster, ToLocal, ToCluster),
            (
                "internal Local, only elsewhere",
                INTERNAL_LOCAL_WITH_NODE_PORT,
                "1",
                Drop,
                ToCluster,
                ToCluster,
            ),
            (
                "internal Local, one here",
                INTERNAL_LOCAL_WITH_NODE_PORT,
                "1 local | 2",
                ToLocal,
                ToCluster,
                ToCluster,
            ),
        ] {
            let world = world(service, None, endpoints);
            let routing = world.routing("ns/web:p/TCP");
            assert_eq!((routing.internal, routing.external), (internal, external), "{case}");
            assert_eq!(routing.external_from_inside(), from_inside, "{case}");
            for traffic in [internal, external, from_inside] {
                let nothing = matches!(traffic, Drop | Reject);
                assert_eq!(routing.endpoints(traffic).is_empty(), nothing, "{case}: {traffic:?}");
            }
            let counts = world.cluster.counts();
            let counted = (counts.internal_without_local == 1, counts.external_without_local == 1);
            assert_eq!(counted, (internal == Drop, external == Drop), "{case}");
        }
    }

    /// Upstream counts these, too, though no packet can be dropped: see `Counts::external_without_local`.
    #[test]
    fn an_unreachable_local_load_balancer_counts_as_lacking_local_endpoints() {
        let mut world = world(EXTERNAL_LOCAL_UNREACHABLE, None, "1 local | 2");
        assert_eq!(world.cluster.counts().external_without_local, 1);
        assert_eq!(world.health_checks(), ["ns/web 31000=1"]);
        world.delete_service("ns/web");
        world.take();
        assert_eq!(world.cluster.counts().external_without_local, 0);
    }

    #[test]
    fn udp_routings_keep_all_serving_endpoints_regardless_of_policy() {
        let mut world = World::v4();
        world.service("ns/dns 10.96.0.53 p:53/UDP q:53 internal-policy=Local");
        world.slice("ns/a of dns p:53/UDP q:53 | 10.0.0.1 | 10.0.0.2 unready | 10.0.0.3 draining local | 10.0.0.4 ready=false");
        world.take();
        assert_eq!(spelled(&world.routing("ns/dns:p/UDP").serving), "10.0.0.1:53 10.0.0.3:53* 10.0.0.4:53");
        assert_eq!(spelled(&world.routing("ns/dns:p/UDP").local), "10.0.0.3:53*");
        assert_eq!(spelled(&world.routing("ns/dns:q/TCP").serving), "", "TCP flows end by themselves");
    }
}
