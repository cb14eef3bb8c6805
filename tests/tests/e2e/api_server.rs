//! An API server that goes away, forgets, changes its mind about us, or hangs up. Rules stay, and what changed is seen.

use std::net::SocketAddr;
use std::time::Duration;

use model::address::Family;
use model::names::Protocol;
use serde_json::{Value, json};
use testkit::lab::{Place, TARGET, Who};
use testkit::probe::Answer;
use testkit::wait::{eventually, within};
use tests::cluster::control_plane::ADDRESS;
use tests::cluster::proxy::Mode;
use tests::cluster::relay::Relay;
use tests::cluster::test_cluster::{TestCluster, cluster_ip};
use tests::cluster::{audit, etcd};

use crate::{cluster, in_each_mode};

in_each_mode!(
    rules_survive_the_api_server_and_changes_are_seen_when_it_is_back,
    a_history_that_is_gone_is_replaced_by_a_list,
    a_token_that_is_no_longer_good_is_read_again,
    a_watch_that_is_cut_is_taken_up_again,
);

/// Longer than the longest wait between two attempts, of a minute. One that begins while the API server is away is all there is:
/// if it does not remember so far back, a list follows within seconds.
const BACK_OFF: Duration = Duration::from_secs(90);

fn relay(cluster: &TestCluster) -> (Relay, SocketAddr) {
    let at = SocketAddr::new(ADDRESS.parse().unwrap(), 7443);
    (Relay::start(&cluster.control_plane().namespace, at, cluster.control_plane().address()), at)
}

/// Waits for as long as the proxy may wait before it asks again.
pub fn moves_to(cluster: &TestCluster, web: &Value, place: Place) {
    for family in Family::BOTH {
        let wanted = SocketAddr::new(place.ip(family), TARGET);
        within(BACK_OFF, "the change is seen", || {
            let answer = cluster.probe(Who::Pod, Protocol::Tcp, cluster_ip(web, family));
            matches!(answer, Answer::From { endpoint, .. } if endpoint == wanted)
        });
        cluster.wait_until_reached(Who::Pod, cluster_ip(web, family), &[place]);
    }
}

/// Down for a minute: many attempts fail, each after a longer wait than the one before.
fn rules_survive_the_api_server_and_changes_are_seen_when_it_is_back(mode: Mode) {
    const DOWN: Duration = Duration::from_secs(60);
    let mut cluster = cluster();
    let mut proxy = cluster.proxy(mode);
    let web = cluster.create_service("web", &[Place::PodA]);
    moves_to(&cluster, &web, Place::PodA);
    cluster.control_plane_mut().stop_api_server();
    let stopped = std::time::Instant::now();
    while stopped.elapsed() < DOWN {
        for family in Family::BOTH {
            let answer = cluster.probe(Who::Pod, Protocol::Tcp, cluster_ip(&web, family));
            assert!(
                matches!(answer, Answer::From { .. }),
                "{answer:?} {:?} after the end",
                stopped.elapsed()
            );
        }
        assert!(proxy.is_running());
        std::thread::sleep(Duration::from_millis(50));
    }
    cluster.control_plane_mut().start_api_server();
    cluster.move_endpoints("web", &[Place::PodB]);
    moves_to(&cluster, &web, Place::PodB);
}

fn a_history_that_is_gone_is_replaced_by_a_list(mode: Mode) {
    let mut cluster = cluster();
    let (relay, at) = relay(&cluster);
    let _proxy = cluster.proxy_as(mode, &cluster.kubeconfig(at, &cluster.proxy_user()), &[]);
    let (web, gone) =
        (cluster.create_service("web", &[Place::PodA]), cluster.create_service("gone", &[Place::PodA]));
    moves_to(&cluster, &web, Place::PodA);
    moves_to(&cluster, &gone, Place::PodA);
    relay.close();
    let lists = |cluster: &TestCluster| {
        let log = audit::read(&cluster.control_plane().folder.join("audit.log"), ADDRESS.parse().unwrap());
        let begins_anew = |entry: &&audit::AuditEntry| {
            entry.path() == "/apis/discovery.k8s.io/v1/endpointslices"
                && entry.user.username == "system:kube-proxy"
                && (entry.verb == "list" || entry.parameter("sendInitialEvents").is_some())
        };
        log.iter().filter(begins_anew).count()
    };
    let before = lists(&cluster);
    cluster.move_endpoints("web", &[Place::PodB]);
    cluster.api().delete(&cluster.service("gone"));
    // A new API server has no memory of its own, and now its database has none either.
    etcd::compact(&cluster.control_plane().namespace);
    cluster.control_plane_mut().stop_api_server();
    cluster.control_plane_mut().start_api_server();
    relay.reopen();
    moves_to(&cluster, &web, Place::PodB);
    for family in Family::BOTH {
        within(BACK_OFF, "what was deleted meanwhile is gone", || {
            let answer = cluster.probe(Who::Pod, Protocol::Tcp, cluster_ip(&gone, family));
            !matches!(answer, Answer::From { .. })
        });
    }
    assert!(lists(&cluster) > before, "it never listed again, so that its history was not gone");
}

fn a_token_that_is_no_longer_good_is_read_again(mode: Mode) {
    let mut cluster = cluster();
    let tokens = cluster.control_plane().folder.join("tokens.csv");
    let accept = |token: &str| std::fs::write(&tokens, format!("{token},system:kube-proxy,proxy\n")).unwrap();
    let file = cluster.folder().join("token");
    let user = json!({"tokenFile": file});
    accept("first");
    std::fs::write(&file, "first\n").unwrap();
    // It reads the tokens it accepts when it starts.
    cluster.control_plane_mut().stop_api_server();
    cluster.control_plane_mut().start_api_server();
    let _proxy = cluster.proxy_as(mode, &cluster.kubeconfig(cluster.control_plane().address(), &user), &[]);
    let web = cluster.create_service("web", &[Place::PodA]);
    moves_to(&cluster, &web, Place::PodA);
    accept("second");
    cluster.control_plane_mut().stop_api_server();
    cluster.control_plane_mut().start_api_server();
    within(BACK_OFF, "the old token is refused", || {
        cluster.audit().iter().any(|entry| entry.code() == Some(401))
    });
    cluster.move_endpoints("web", &[Place::PodB]);
    cluster.wait_until_served(&web, &[Place::PodA]);
    std::fs::write(&file, "second\n").unwrap();
    moves_to(&cluster, &web, Place::PodB);
}

fn a_watch_that_is_cut_is_taken_up_again(mode: Mode) {
    let cluster = cluster();
    let (relay, at) = relay(&cluster);
    let _proxy = cluster.proxy_as(mode, &cluster.kubeconfig(at, &cluster.proxy_user()), &[]);
    let web = cluster.create_service("web", &[Place::PodA]);
    moves_to(&cluster, &web, Place::PodA);
    for place in [Place::PodB, Place::PodA, Place::Remote(5)] {
        // Between the two slices of the change, whatever is on the wire then.
        cluster.move_endpoints("web", &[place]);
        relay.cut();
        moves_to(&cluster, &web, place);
    }
    eventually("nothing but the truth", || {
        let answer = cluster.probe(Who::Pod, Protocol::Udp, cluster_ip(&web, Family::V4));
        let wanted = SocketAddr::new(Place::Remote(5).ip(Family::V4), TARGET);
        matches!(answer, Answer::From { endpoint, .. } if endpoint == wanted)
    });
}
