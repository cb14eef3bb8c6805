//! A rolling update under load: no connection fails.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use model::address::Family;
use model::names::Protocol;
use serde_json::json;
use testkit::hammer::SetOnDrop;
use testkit::lab::{ClientPlace, Place, TARGET};
use testkit::network::remote_pod_ip;
use testkit::probe::{Answer, Server, probe_here};
use testkit::wait::within;
use tests::cluster::objects::{service, with};
use tests::cluster::pods::Pods;
use tests::cluster::proxy::Mode;
use tests::cluster::test_cluster::{TestCluster, cluster_ip};

use crate::{cluster, in_each_mode};

in_each_mode!(no_connection_fails_during_a_rolling_update);

/// The numbers of the pods, of which `REPLICAS` run at a time.
const PODS: std::ops::Range<u8> = 20..29;
const REPLICAS: u8 = 3;

/// Between two connections of one load. A faster load would reuse source ports that conntrack still knows.
const INTERVAL: Duration = Duration::from_millis(4);

/// A client that connects to one frontend until the end.
struct RollingLoad<'a> {
    cluster: &'a TestCluster,
    from: ClientPlace,
    protocol: Protocol,
    to: SocketAddr,
    connections: AtomicU64,
    failures: Mutex<Vec<Answer>>,
}

impl RollingLoad<'_> {
    fn run(&self, end: &AtomicBool) {
        self.cluster.lab.namespace(self.from).move_in();
        let source = self.from.source(Family::of(self.to.ip()), 0);
        while !end.load(Ordering::Relaxed) {
            match probe_here(source, self.protocol, self.to, Duration::from_secs(5)) {
                Answer::From { .. } => _ = self.connections.fetch_add(1, Ordering::Relaxed),
                failure => self.failures.lock().unwrap().push(failure),
            }
            std::thread::sleep(INTERVAL);
        }
    }
}

/// Removed pods keep serving, as pods do for their grace period, so that packets in flight are answered.
fn no_connection_fails_during_a_rolling_update(mode: Mode) {
    let cluster = cluster();
    let _proxy = cluster.proxy(mode);
    let all =
        Family::BOTH.map(|family| PODS.map(move |pod| SocketAddr::new(remote_pod_ip(family, pod), TARGET)));
    let all: Vec<SocketAddr> = all.into_iter().flatten().collect();
    let _servers = Server::start_all(&cluster.lab.network.remote, &all);
    let web = json!({"spec": {"selector": {"app": "web"}}});
    let web = cluster.api().create(&cluster.services(), &with(service("web"), web));
    let pods = Pods::new(&cluster, "web");
    let first: Vec<Place> = PODS.take(REPLICAS.into()).map(Place::Remote).collect();
    first.iter().for_each(|place| pods.add(*place));
    cluster.wait_until_served(&web, &first);

    let loads: Vec<RollingLoad<'_>> = Family::BOTH
        .into_iter()
        .flat_map(|family| [Protocol::Tcp, Protocol::Udp].map(|protocol| (family, protocol)))
        .map(|(family, protocol)| RollingLoad {
            cluster: &cluster,
            from: ClientPlace::Pod,
            protocol,
            to: cluster_ip(&web, family),
            connections: AtomicU64::new(0),
            failures: Mutex::default(),
        })
        .collect();
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = SetOnDrop(&end);
        for load in &loads {
            scope.spawn(|| load.run(&end));
        }
        roll(&cluster, &pods, &web, &loads);
    });
    for load in &loads {
        let (count, failures) = (load.connections.load(Ordering::Relaxed), load.failures.lock().unwrap());
        println!("{}/{}: {count} connections", load.to, load.protocol);
        assert_eq!(*failures, [], "of {count} connections to {}/{}", load.to, load.protocol);
    }
}

/// Adds a new pod and removes an old one, until all are new.
fn roll(cluster: &TestCluster, pods: &Pods<'_>, web: &serde_json::Value, loads: &[RollingLoad<'_>]) {
    for new in PODS.skip(REPLICAS.into()) {
        pods.add(Place::Remote(new));
        wait_for_change(cluster, web, new, true);
        wait_for_connections(loads);
        let old = new - REPLICAS;
        pods.terminate(Place::Remote(old));
        wait_for_change(cluster, web, old, false);
        wait_for_connections(loads);
        pods.remove(Place::Remote(old));
    }
}

/// Waits until every load has made some connections, so that every load meets every step.
fn wait_for_connections(loads: &[RollingLoad<'_>]) {
    let connections = |load: &RollingLoad<'_>| load.connections.load(Ordering::Relaxed);
    let before: Vec<u64> = loads.iter().map(connections).collect();
    within(Duration::from_secs(30), "connections", || {
        loads.iter().zip(&before).all(|(load, before)| connections(load) >= before + 50)
    });
}

/// Waits until a pod receives connections, or none any more.
fn wait_for_change(cluster: &TestCluster, web: &serde_json::Value, pod: u8, receives: bool) {
    for family in Family::BOTH {
        let pod = SocketAddr::new(remote_pod_ip(family, pod), TARGET);
        within(Duration::from_secs(20), "a change of endpoints", || {
            let answers =
                (0..30).map(|_| cluster.probe(ClientPlace::Pod, Protocol::Tcp, cluster_ip(web, family)));
            let mut answers =
                answers.map(|it| matches!(it, Answer::From { endpoint, .. } if endpoint == pod));
            answers.any(|it| it) == receives
        });
    }
}
