//! An API server that goes away, forgets, changes its mind about us, or hangs up. Rules stay, and what changed is seen.

use std::net::SocketAddr;
use std::time::Duration;

use model::address::Family;
use model::names::Protocol;
use serde_json::{Value, json};
use testkit::lab::{Place, TARGET, Who};
use testkit::talk::Answer;
use tests::cluster::control_plane::ADDRESS;
use tests::cluster::proxy::Mode;
use tests::cluster::relay::Relay;
use tests::cluster::stage::{Stage, cluster_ip};
use tests::cluster::{audit, etcd};
use tests::matrix::{eventually, within};

use crate::{in_each_mode, stage};

in_each_mode!(
    rules_survive_the_api_server_and_changes_are_seen_when_it_is_back,
    a_history_that_is_gone_is_replaced_by_a_list,
    a_token_that_is_no_longer_good_is_read_again,
    a_watch_that_is_cut_is_taken_up_again,
);

/// Longer than the longest wait between two attempts, of a minute. One that begins while the API server is away is all there is:
/// if it does not remember so far back, a list follows within seconds.
const BACK_OFF: Duration = Duration::from_secs(90);

fn relay(stage: &Stage) -> (Relay, SocketAddr) {
    let at = SocketAddr::new(ADDRESS.parse().unwrap(), 7443);
    (Relay::start(&stage.plane().namespace, at, stage.plane().address()), at)
}

/// Waits for as long as the proxy may wait before it asks again.
pub fn moves_to(stage: &Stage, web: &Value, place: Place) {
    for family in Family::BOTH {
        let wanted = SocketAddr::new(place.ip(family), TARGET);
        within(BACK_OFF, "the change is seen", || {
            let answer = stage.ask(Who::Pod, Protocol::Tcp, cluster_ip(web, family));
            matches!(answer, Answer::From { endpoint, .. } if endpoint == wanted)
        });
        stage.reaches(Who::Pod, cluster_ip(web, family), &[place]);
    }
}

/// Down for a minute: many attempts fail, each after a longer wait than the one before.
fn rules_survive_the_api_server_and_changes_are_seen_when_it_is_back(mode: Mode) {
    const DOWN: Duration = Duration::from_secs(60);
    let mut stage = stage();
    let mut proxy = stage.proxy(mode);
    let web = stage.serve("web", &[Place::PodA]);
    moves_to(&stage, &web, Place::PodA);
    stage.plane_mut().stop_api_server();
    let stopped = std::time::Instant::now();
    while stopped.elapsed() < DOWN {
        for family in Family::BOTH {
            let answer = stage.ask(Who::Pod, Protocol::Tcp, cluster_ip(&web, family));
            assert!(
                matches!(answer, Answer::From { .. }),
                "{answer:?} {:?} after the end",
                stopped.elapsed()
            );
        }
        assert!(proxy.is_running());
        std::thread::sleep(Duration::from_millis(50));
    }
    stage.plane_mut().start_api_server();
    stage.move_to("web", &[Place::PodB]);
    moves_to(&stage, &web, Place::PodB);
}

fn a_history_that_is_gone_is_replaced_by_a_list(mode: Mode) {
    let mut stage = stage();
    let (relay, at) = relay(&stage);
    let _proxy = stage.proxy_as(mode, &stage.kubeconfig(at, &stage.certified_proxy()), &[]);
    let (web, gone) = (stage.serve("web", &[Place::PodA]), stage.serve("gone", &[Place::PodA]));
    moves_to(&stage, &web, Place::PodA);
    moves_to(&stage, &gone, Place::PodA);
    relay.close();
    let lists = |stage: &Stage| {
        let log = audit::read(&stage.plane().folder.join("audit.log"), ADDRESS.parse().unwrap());
        let begins_anew = |entry: &&audit::Entry| {
            entry.path() == "/apis/discovery.k8s.io/v1/endpointslices"
                && entry.user.username == "system:kube-proxy"
                && (entry.verb == "list" || entry.parameter("sendInitialEvents").is_some())
        };
        log.iter().filter(begins_anew).count()
    };
    let before = lists(&stage);
    stage.move_to("web", &[Place::PodB]);
    stage.api().delete(&stage.service("gone"));
    // A new API server has no memory of its own, and now its database has none either.
    etcd::compact(&stage.plane().namespace);
    stage.plane_mut().stop_api_server();
    stage.plane_mut().start_api_server();
    relay.reopen();
    moves_to(&stage, &web, Place::PodB);
    for family in Family::BOTH {
        within(BACK_OFF, "what was deleted meanwhile is gone", || {
            let answer = stage.ask(Who::Pod, Protocol::Tcp, cluster_ip(&gone, family));
            !matches!(answer, Answer::From { .. })
        });
    }
    assert!(lists(&stage) > before, "it never listed again, so that its history was not gone");
}

fn a_token_that_is_no_longer_good_is_read_again(mode: Mode) {
    let mut stage = stage();
    let tokens = stage.plane().folder.join("tokens.csv");
    let accept = |token: &str| std::fs::write(&tokens, format!("{token},system:kube-proxy,proxy\n")).unwrap();
    let file = stage.folder().join("token");
    let user = json!({"tokenFile": file});
    accept("first");
    std::fs::write(&file, "first\n").unwrap();
    // It reads the tokens it accepts when it starts.
    stage.plane_mut().stop_api_server();
    stage.plane_mut().start_api_server();
    let _proxy = stage.proxy_as(mode, &stage.kubeconfig(stage.plane().address(), &user), &[]);
    let web = stage.serve("web", &[Place::PodA]);
    moves_to(&stage, &web, Place::PodA);
    accept("second");
    stage.plane_mut().stop_api_server();
    stage.plane_mut().start_api_server();
    within(BACK_OFF, "the old token is refused", || {
        stage.audit().iter().any(|entry| entry.code() == Some(401))
    });
    stage.move_to("web", &[Place::PodB]);
    stage.serves(&web, &[Place::PodA]);
    std::fs::write(&file, "second\n").unwrap();
    moves_to(&stage, &web, Place::PodB);
}

fn a_watch_that_is_cut_is_taken_up_again(mode: Mode) {
    let stage = stage();
    let (relay, at) = relay(&stage);
    let _proxy = stage.proxy_as(mode, &stage.kubeconfig(at, &stage.certified_proxy()), &[]);
    let web = stage.serve("web", &[Place::PodA]);
    moves_to(&stage, &web, Place::PodA);
    for place in [Place::PodB, Place::PodA, Place::Remote(5)] {
        // Between the two slices of the change, whatever is on the wire then.
        stage.move_to("web", &[place]);
        relay.cut();
        moves_to(&stage, &web, place);
    }
    eventually("nothing but the truth", || {
        let answer = stage.ask(Who::Pod, Protocol::Udp, cluster_ip(&web, Family::V4));
        let wanted = SocketAddr::new(Place::Remote(5).ip(Family::V4), TARGET);
        matches!(answer, Answer::From { endpoint, .. } if endpoint == wanted)
    });
}
