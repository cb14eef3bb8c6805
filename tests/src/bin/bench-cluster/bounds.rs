//! A start from the API server beside its two bounds, measured in turns: the time in which a client receives the same lists, and
//! the time in which the kernel takes the same elements. Then memory, after the start and after many changes.

use std::time::{Duration, Instant};

use kernel::nftables::KernelTable;
use model::address::Family;
use model::cluster::Cluster;
use model::event::Event;
use plan::nftables::plan::NftablesPlan;
use serde::de::DeserializeOwned;
use serde_json::Value;
use testkit::namespace::Namespace;
use tests::cluster::proxy::Mode;
use tests::cluster::test_cluster::{TestCluster, cluster_ip};
use tests::node::program_settings;
use tests::options::Options;

use crate::competitors::{BenchNode, Competitor, Project, wait_until_idle};
use crate::figures::{FigureLog, median};
use crate::memory::status;
use crate::population::{name, places, populate_with_tcp, slice_at};
use crate::{setting, starts};

const LIMIT: Duration = Duration::from_secs(300);
const STREAM: &str =
    "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf;stream=watch";
/// The annotation of the event that ends such a list.
const END: &[u8] = b"k8s.io/initial-events-end";

pub fn measure(cluster: &mut TestCluster, services: usize, endpoints: usize) {
    let places = places(endpoints);
    populate_with_tcp(cluster, services, &places);
    let frontend = |number| cluster_ip(&cluster.api().get(&cluster.service(&name(number))), Family::V4);
    let frontends = [0, services / 2, services - 1].map(frontend);
    let competitor = Competitor::new(cluster, Project::Sluice, Mode::Nftables);
    let (mut wire, mut load, mut figures) =
        (Vec::new(), Vec::new(), [const { Vec::new() }; starts::FIGURES.len()]);
    let mut last = None;
    for _ in 0..setting("ROUNDS", 5) {
        if let Some((proxy, node)) = last.take() {
            drop(proxy);
            BenchNode::remove(node, cluster);
        }
        wire.push(time_to_receive(cluster).as_secs_f64());
        load.push(time_to_load(cluster).as_secs_f64());
        let node = BenchNode::join(cluster);
        let (proxy, start) = starts::measure(cluster, &node, &competitor, &frontends, LIMIT).expect("served");
        figures.iter_mut().zip(start).for_each(|(figure, value)| figure.push(value));
        last = Some((proxy, node));
    }
    let mut log = FigureLog::of("start-bounds", services, endpoints);
    log.record_spread("receive_s", &wire, 0, 100);
    log.record_spread("kernel_load_s", &load, 0, 100);
    for (figure, values) in starts::FIGURES.iter().zip(&figures) {
        log.record_spread(figure, values, 0, 100);
    }
    log.record("served_by_bound", median(&figures[0]) / median(&wire).max(median(&load)));
    let (proxy, node) = last.expect("a start");
    let changes = setting("CHANGES", 10_000);
    for change in 0..changes {
        let moved = &places[..places.len() - change % 2];
        let service = name(change / 2 % services);
        cluster.api().replace(&cluster.slice(&service, Family::V4), &slice_at(&service, moved));
    }
    wait_until_idle(proxy.pid(), LIMIT);
    log.record("changes", changes as f64);
    log.record("rss_changed_mib", status(proxy.pid(), "VmRSS:"));
    drop(proxy);
    node.remove(cluster);
}

/// Receives the lists of Services and slices at the same time, as a stream of protobuf, and decodes nothing.
fn time_to_receive(cluster: &TestCluster) -> Duration {
    let began = Instant::now();
    let paths = ["/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices"];
    cluster.api().receive_all(paths.map(|path| (format!("{path}?{STREAM}"), PROTOBUF)), END);
    began.elapsed()
}

/// Commits all elements to a new table in one transaction. Receiving and planning them does not count.
fn time_to_load(cluster: &TestCluster) -> Duration {
    let mut model = Cluster::new(testkit::node(Family::V4));
    objects(cluster, &cluster.services()).for_each(|it| _ = model.apply(&Event::ServiceApplied(it)));
    objects(cluster, &cluster.slices()).for_each(|it| _ = model.apply(&Event::SliceApplied(it)));
    let settings = program_settings(Family::V4, &Options::default());
    Namespace::new().enter(move || {
        let mut table = KernelTable::open(Family::V4).unwrap();
        let mut plan = NftablesPlan::new(settings);
        assert_eq!(plan.steps(model.take_changes()), None);
        let steps = plan.steps_from(table.read(plan.desired()).unwrap());
        let began = Instant::now();
        table.commit(&steps).unwrap();
        began.elapsed()
    })
}

fn objects<T: DeserializeOwned>(cluster: &TestCluster, path: &str) -> impl Iterator<Item = T> {
    let Value::Array(items) = cluster.api().get(path)["items"].take() else { panic!("a list of {path}") };
    items.into_iter().map(|item| serde_json::from_value(item).unwrap())
}
