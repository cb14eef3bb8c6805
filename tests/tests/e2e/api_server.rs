//! An API server that stops, loses its history, revokes a token or closes connections: the rules stay, and the proxy catches up.

use std::net::SocketAddr;
use std::time::Duration;

use model::address::Family;
use model::names::Protocol;
use serde_json::{Value, json};
use testkit::lab::{ClientPlace, Place, TARGET};
use testkit::probe::Answer;
use testkit::wait::{eventually, within};
use tests::cluster::control_plane::ADDRESS;
use tests::cluster::proxy::Mode;
use tests::cluster::relay::Relay;
use tests::cluster::test_cluster::{TestCluster, cluster_ip};
use tests::cluster::{audit, etcd};

use crate::{cluster, in_each_mode};

in_each_mode!(
    rules_stay_while_the_api_server_is_down_and_changes_follow_when_it_is_back,
    a_compacted_history_leads_to_a_new_list,
    a_token_that_is_refused_is_read_again,
    a_watch_that_is_cut_is_resumed,
);

/// Longer than the back-off between two attempts, which is at most a minute. Only one such wait is needed: if the history is
/// gone, a list follows within seconds.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(90);

fn relay(cluster: &TestCluster) -> (Relay, SocketAddr) {
    let at = SocketAddr::new(ADDRESS.parse().unwrap(), 7443);
    (Relay::start(&cluster.control_plane().namespace, at, cluster.control_plane().address()), at)
}

/// Waits until the Service is served at `place` only, for as long as the proxy may take to reconnect.
pub fn wait_until_moved(cluster: &TestCluster, web: &Value, place: Place) {
    for family in Family::BOTH {
        let desired = SocketAddr::new(place.ip(family), TARGET);
        within(RECONNECT_TIMEOUT, "the change is applied", || {
            let answer = cluster.probe(ClientPlace::Pod, Protocol::Tcp, cluster_ip(web, family));
            matches!(answer, Answer::From { endpoint, .. } if endpoint == desired)
        });
        cluster.wait_until_reached(ClientPlace::Pod, cluster_ip(web, family), &[place]);
    }
}

/// Down for a minute: many attempts fail, with growing delays between them.
fn rules_stay_while_the_api_server_is_down_and_changes_follow_when_it_is_back(mode: Mode) {
    const DOWN: Duration = Duration::from_secs(60);
    let mut cluster = cluster();
    let mut proxy = cluster.proxy(mode);
    let web = cluster.create_service("web", &[Place::PodA]);
    wait_until_moved(&cluster, &web, Place::PodA);
    cluster.control_plane_mut().stop_api_server();
    let stopped = std::time::Instant::now();
    while stopped.elapsed() < DOWN {
        for family in Family::BOTH {
            let answer = cluster.probe(ClientPlace::Pod, Protocol::Tcp, cluster_ip(&web, family));
            assert!(
                matches!(answer, Answer::From { .. }),
                "{answer:?} {:?} after the API server stopped",
                stopped.elapsed()
            );
        }
        assert!(proxy.is_running());
        std::thread::sleep(Duration::from_millis(50));
    }
    cluster.control_plane_mut().start_api_server();
    cluster.move_endpoints("web", &[Place::PodB]);
    wait_until_moved(&cluster, &web, Place::PodB);
}

fn a_compacted_history_leads_to_a_new_list(mode: Mode) {
    let mut cluster = cluster();
    let (relay, at) = relay(&cluster);
    let _proxy = cluster.proxy_as(mode, &cluster.kubeconfig(at, &cluster.proxy_user()), &[]);
    let (web, gone) =
        (cluster.create_service("web", &[Place::PodA]), cluster.create_service("gone", &[Place::PodA]));
    wait_until_moved(&cluster, &web, Place::PodA);
    wait_until_moved(&cluster, &gone, Place::PodA);
    relay.close();
    let lists = |cluster: &TestCluster| {
        let log = audit::read(&cluster.control_plane().folder.join("audit.log"), ADDRESS.parse().unwrap());
        let is_list = |entry: &&audit::AuditEntry| {
            entry.path() == "/apis/discovery.k8s.io/v1/endpointslices"
                && entry.user.username == "system:kube-proxy"
                && (entry.verb == "list" || entry.parameter("sendInitialEvents").is_some())
        };
        log.iter().filter(is_list).count()
    };
    let before = lists(&cluster);
    cluster.move_endpoints("web", &[Place::PodB]);
    cluster.api().delete(&cluster.service("gone"));
    // A new API server has no watch cache, and now etcd has no history either.
    etcd::compact(&cluster.control_plane().namespace);
    cluster.control_plane_mut().stop_api_server();
    cluster.control_plane_mut().start_api_server();
    relay.reopen();
    wait_until_moved(&cluster, &web, Place::PodB);
    for family in Family::BOTH {
        within(RECONNECT_TIMEOUT, "the Service that was deleted meanwhile is gone", || {
            let answer = cluster.probe(ClientPlace::Pod, Protocol::Tcp, cluster_ip(&gone, family));
            !matches!(answer, Answer::From { .. })
        });
    }
    assert!(lists(&cluster) > before, "the proxy did not list again: the history was not gone");
}

fn a_token_that_is_refused_is_read_again(mode: Mode) {
    let mut cluster = cluster();
    let tokens = cluster.control_plane().folder.join("tokens.csv");
    let accept = |token: &str| std::fs::write(&tokens, format!("{token},system:kube-proxy,proxy\n")).unwrap();
    let file = cluster.folder().join("token");
    let user = json!({"tokenFile": file});
    accept("first");
    std::fs::write(&file, "first\n").unwrap();
    // The API server reads the token file only at its start.
    cluster.control_plane_mut().stop_api_server();
    cluster.control_plane_mut().start_api_server();
    let _proxy = cluster.proxy_as(mode, &cluster.kubeconfig(cluster.control_plane().address(), &user), &[]);
    let web = cluster.create_service("web", &[Place::PodA]);
    wait_until_moved(&cluster, &web, Place::PodA);
    accept("second");
    cluster.control_plane_mut().stop_api_server();
    cluster.control_plane_mut().start_api_server();
    within(RECONNECT_TIMEOUT, "the old token is refused", || {
        cluster.audit().iter().any(|entry| entry.code() == Some(401))
    });
    cluster.move_endpoints("web", &[Place::PodB]);
    cluster.wait_until_served(&web, &[Place::PodA]);
    std::fs::write(&file, "second\n").unwrap();
    wait_until_moved(&cluster, &web, Place::PodB);
}

fn a_watch_that_is_cut_is_resumed(mode: Mode) {
    let cluster = cluster();
    let (relay, at) = relay(&cluster);
    let _proxy = cluster.proxy_as(mode, &cluster.kubeconfig(at, &cluster.proxy_user()), &[]);
    let web = cluster.create_service("web", &[Place::PodA]);
    wait_until_moved(&cluster, &web, Place::PodA);
    for place in [Place::PodB, Place::PodA, Place::Remote(5)] {
        // The watch may be in the middle of the change.
        cluster.move_endpoints("web", &[place]);
        relay.cut();
        wait_until_moved(&cluster, &web, place);
    }
    eventually("UDP follows the last change", || {
        let answer = cluster.probe(ClientPlace::Pod, Protocol::Udp, cluster_ip(&web, Family::V4));
        let desired = SocketAddr::new(Place::Remote(5).ip(Family::V4), TARGET);
        matches!(answer, Answer::From { endpoint, .. } if endpoint == desired)
    });
}
