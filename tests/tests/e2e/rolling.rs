//! A rolling update under load: nobody who connects notices.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use model::address::Family;
use model::names::Protocol;
use serde_json::json;
use testkit::lab::{Place, TARGET, Who};
use testkit::network::remote_pod_ip;
use testkit::talk::{Answer, Server, ask_here};
use tests::cluster::objects::{service, with};
use tests::cluster::pods::Pods;
use tests::cluster::proxy::Mode;
use tests::cluster::stage::{Stage, cluster_ip};
use tests::matrix::within;

use crate::{in_each_mode, stage};

in_each_mode!(no_connection_fails_during_a_rolling_update);

/// Numbers of the pods, of which so many run at a time.
const PODS: std::ops::Range<u8> = 20..29;
const AT_A_TIME: u8 = 3;

/// Between two connections of one load. So many that all ports are used twice would meet what the kernel remembers of
/// the first time.
const INTERVAL: Duration = Duration::from_millis(4);

/// Connects to one frontend again and again.
struct Load<'a> {
    stage: &'a Stage,
    from: Who,
    protocol: Protocol,
    to: SocketAddr,
    connections: AtomicU64,
    failures: Mutex<Vec<Answer>>,
}

impl Load<'_> {
    fn press(&self, end: &AtomicBool) {
        self.stage.lab.namespace(self.from).move_in();
        let source = self.from.source(Family::of(self.to.ip()), 0);
        while !end.load(Ordering::Relaxed) {
            match ask_here(source, self.protocol, self.to, Duration::from_secs(5)) {
                Answer::From { .. } => _ = self.connections.fetch_add(1, Ordering::Relaxed),
                failure => self.failures.lock().unwrap().push(failure),
            }
            std::thread::sleep(INTERVAL);
        }
    }
}

/// Those that are removed serve on, as pods do for their grace period: what is on its way to them arrives.
fn no_connection_fails_during_a_rolling_update(mode: Mode) {
    let stage = stage();
    let _proxy = stage.proxy(mode);
    let all =
        Family::BOTH.map(|family| PODS.map(move |pod| SocketAddr::new(remote_pod_ip(family, pod), TARGET)));
    let all: Vec<SocketAddr> = all.into_iter().flatten().collect();
    let _servers = Server::start_all(&stage.lab.network.remote, &all);
    let web = json!({"spec": {"selector": {"app": "web"}}});
    let web = stage.api().create(&stage.services(), &with(service("web"), web));
    let pods = Pods::new(&stage, "web");
    let first: Vec<Place> = PODS.take(AT_A_TIME.into()).map(Place::Remote).collect();
    first.iter().for_each(|place| pods.add(*place));
    stage.serves(&web, &first);

    let loads: Vec<Load<'_>> = Family::BOTH
        .into_iter()
        .flat_map(|family| [Protocol::Tcp, Protocol::Udp].map(|protocol| (family, protocol)))
        .map(|(family, protocol)| Load {
            stage: &stage,
            from: Who::Pod,
            protocol,
            to: cluster_ip(&web, family),
            connections: AtomicU64::new(0),
            failures: Mutex::default(),
        })
        .collect();
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for load in &loads {
            scope.spawn(|| load.press(&end));
        }
        // However it ends, the load has to.
        let rolled =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| roll(&stage, &pods, &web, &loads)));
        end.store(true, Ordering::Relaxed);
        rolled.unwrap_or_else(|failure| std::panic::resume_unwind(failure));
    });
    for load in &loads {
        let (count, failures) = (load.connections.load(Ordering::Relaxed), load.failures.lock().unwrap());
        println!("{}/{}: {count} connections", load.to, load.protocol);
        assert_eq!(*failures, [], "of {count} connections to {}/{}", load.to, load.protocol);
    }
}

/// One new pod, then one old one less, until all are new.
fn roll(stage: &Stage, pods: &Pods<'_>, web: &serde_json::Value, loads: &[Load<'_>]) {
    for new in PODS.skip(AT_A_TIME.into()) {
        pods.add(Place::Remote(new));
        heard(stage, web, new, true);
        let_connect(loads);
        let old = new - AT_A_TIME;
        pods.terminate(Place::Remote(old));
        heard(stage, web, old, false);
        let_connect(loads);
        pods.remove(Place::Remote(old));
    }
}

/// However fast the proxy is, every load meets every step.
fn let_connect(loads: &[Load<'_>]) {
    let connections = |load: &Load<'_>| load.connections.load(Ordering::Relaxed);
    let before: Vec<u64> = loads.iter().map(connections).collect();
    within(Duration::from_secs(30), "connections", || {
        loads.iter().zip(&before).all(|(load, before)| connections(load) >= before + 50)
    });
}

/// Waits until a pod gets connections, or gets none any more.
fn heard(stage: &Stage, web: &serde_json::Value, pod: u8, wanted: bool) {
    for family in Family::BOTH {
        let pod = SocketAddr::new(remote_pod_ip(family, pod), TARGET);
        within(Duration::from_secs(20), "a change of endpoints", || {
            let answers = (0..30).map(|_| stage.ask(Who::Pod, Protocol::Tcp, cluster_ip(web, family)));
            let mut answers =
                answers.map(|it| matches!(it, Answer::From { endpoint, .. } if endpoint == pod));
            answers.any(|it| it) == wanted
        });
    }
}
