//! Workers with backends that write to memory and that a test can block.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use kernel::inspection::DesiredState;
use kernel::nftables::TableSnapshot;
use kernel::outcome::Outcome;
use model::address::Family;
use model::cluster::Changes;
use model::event::{Event, Kind};
use model::local::NodePortAddresses;
use model::names::ServicePortName;
use plan::explain;
use plan::flows::Contended;
use plan::mark::Mark;
use plan::mode::Mode;
use plan::nftables::desired::DesiredTable;
use plan::nftables::program::ProgramSettings;
use plan::nftables::sets::Balancer;
use watch::recorder::Recorder;

use super::*;
use crate::backend::{Backend, DriftListener, SyncError};
use crate::health::node::NodeHealth;
use crate::health::service::ServiceHealth;
use crate::http::Http;
use crate::metrics::Metrics;
use crate::rate_limit::MinInterval;
use settings::config::ProxyMode;

/// Longer than any step takes, even on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// More than a bounded queue would hold.
const EVENTS: u16 = 30_000;

/// The simulated kernel of one family: endpoint ports by service port.
type FakeKernel = Arc<Mutex<BTreeMap<ServicePortName, Vec<u16>>>>;

#[derive(Debug)]
struct FakeBackend {
    kernel: FakeKernel,
    /// What it loaded before the lists ended.
    preloaded: FakeKernel,
    /// A sync blocks until it receives a message, or until the sender is dropped.
    gate: Receiver<()>,
}

impl Backend for FakeBackend {
    fn sync(&mut self, changes: Changes) -> Result<Outcome, SyncError> {
        let _ = self.gate.recv();
        write(changes, &self.kernel);
        Ok(Outcome::default())
    }

    fn preload(&mut self, take: &mut dyn FnMut() -> Changes) -> bool {
        write(take(), &self.preloaded);
        true
    }

    fn set_node_addresses(&mut self, _all: &[IpAddr], _node_port_ips: &[IpAddr]) -> bool {
        false
    }

    fn suspect_drift(&mut self) {}

    fn drift_listener(&mut self) -> Option<DriftListener> {
        None
    }

    fn contended(&self) -> Contended {
        Contended::All
    }

    fn desired(&self) -> DesiredState {
        DesiredState::Nftables(Box::new(TableSnapshot::from(DesiredTable::new(ProgramSettings {
            family: Family::V4,
            balancer: Balancer::Slots,
            mark: Mark::from_bit(14).unwrap(),
            masquerade_all: false,
            from_pod: None,
            node_ports_everywhere: true,
            can_hash: true,
        }))))
    }

    fn mode(&self) -> &'static str {
        "fake"
    }

    fn title(&self) -> &'static str {
        "Fake"
    }
}

fn write(changes: Changes, kernel: &FakeKernel) {
    let mut held = kernel.lock().unwrap();
    for (name, routing) in changes.routings {
        match routing {
            Some(routing) => {
                let ports = routing.cluster.iter().map(|endpoint| endpoint.port.get()).collect();
                held.insert(name, ports)
            }
            None => held.remove(&name),
        };
    }
}

/// The Service has endpoints of both families, each in a slice of its own.
const SERVICE: &str = "service ns/web 10.96.0.10,fd00:96::10 http:80";

fn slice(family: Family, port: u16) -> Event {
    let ip = match family {
        Family::V4 => "10.244.1.5",
        Family::V6 => "fd00:244::5",
    };
    testkit::event(&format!("slice ns/web-{family} of web http:{port} | {ip}"))
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

struct Started {
    worker: FamilyHandle,
    kernel: FakeKernel,
    preloaded: FakeKernel,
    gate: Sender<()>,
}

fn start(family: Family) -> Started {
    let metrics = Arc::new(Metrics::new(ProxyMode::Nftables));
    let worker = spawn(testkit::node(family), metrics.clone(), Recorder::to_log()).unwrap();
    let (gate, gated) = channel();
    let [kernel, preloaded] = [FakeKernel::default(), FakeKernel::default()];
    let node_port_addresses = NodePortAddresses::new(family, &[]);
    let health = Arc::new(NodeHealth::new(Duration::from_secs(30), [family], metrics.clone()));
    let service_health = ServiceHealth::new(
        family,
        &node_port_addresses,
        "n1".into(),
        Http::start().unwrap(),
        health.clone(),
        Recorder::to_log(),
    );
    let (flows, _) = FlowFollower::new(family, Contended::All);
    let start = Start {
        node_ip: family.loopback(),
        backend: Box::new(FakeBackend { kernel: kernel.clone(), preloaded: preloaded.clone(), gate: gated }),
        flows,
        node_port_addresses: node_port_addresses.clone(),
        explain_settings: explain::ExplainSettings {
            mode: Mode::Nftables,
            mark: Mark::from_bit(14).unwrap(),
            masquerade_all: false,
            from_pod: None,
            serves_localhost: false,
            node_port_addresses,
        },
        min_interval: MinInterval::Fixed(Duration::ZERO),
        sync_period: Duration::from_secs(30),
        health,
        service_health,
        take_over: Box::new(|| {}),
    };
    worker.start(start);
    Started { worker, kernel, preloaded, gate }
}

#[test]
fn a_family_whose_sync_blocks_delays_neither_the_source_nor_the_other_family() {
    let [blocked, free] = [start(Family::V4), start(Family::V6)];
    drop(free.gate);
    let workers = [blocked.worker.clone(), free.worker.clone()];
    let source = thread::spawn(move || {
        let apply = |event: Event| {
            let event = Arc::new(event);
            workers.iter().for_each(|worker| worker.apply(event.clone()));
        };
        for kind in [Kind::Service, Kind::EndpointSlice] {
            apply(Event::Listing(kind));
            apply(Event::Listed(kind));
        }
        apply(testkit::event(SERVICE));
        for port in 1..=EVENTS {
            Family::BOTH.into_iter().for_each(|family| apply(slice(family, port)));
        }
    });
    let ports = |kernel: &FakeKernel| kernel.lock().unwrap().values().flatten().copied().collect::<Vec<_>>();
    wait_until("the source has sent everything", || source.is_finished());
    wait_until("the other family serves the last event", || ports(&free.kernel) == [EVENTS]);
    assert_eq!(ports(&blocked.kernel), [0; 0], "a sync of the blocked family waits");
    drop(blocked.gate);
    wait_until("the blocked family serves the last event", || ports(&blocked.kernel) == [EVENTS]);
}

#[test]
fn services_are_loaded_while_the_lists_arrive_and_each_of_them_once() {
    const SERVICES: usize = 2_000;
    let Started { worker, kernel, preloaded, gate } = start(Family::V4);
    drop(gate);
    let apply = |event: Event| worker.apply(Arc::new(event));
    let names = |kernel: &FakeKernel| kernel.lock().unwrap().keys().cloned().collect::<Vec<_>>();
    for number in 0..SERVICES {
        let ip = format!("10.96.{}.{}", number / 250, 1 + number % 250);
        apply(testkit::event(&format!("service ns/s{number} {ip} http:80")));
        apply(testkit::event(&format!("slice ns/s{number} of s{number} http:8080 | 10.244.1.5")));
    }
    wait_until("some are loaded early", || !names(&preloaded).is_empty());
    assert_eq!(names(&kernel), [], "no sync before the lists have ended");
    apply(Event::Listed(Kind::Service));
    apply(Event::Listed(Kind::EndpointSlice));
    wait_until("all are loaded", || names(&kernel).len() + names(&preloaded).len() >= SERVICES);
    let early = names(&preloaded);
    assert!(names(&kernel).iter().all(|name| !early.contains(name)), "the first sync writes the others");
}
