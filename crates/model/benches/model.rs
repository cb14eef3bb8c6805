//! The cost of an event, the memory of a cluster, and whether the first grows with the second.
//!
//! Every Service has ten endpoints in one slice. Objects are made one at a time, as the watch delivers them, so that they
//! count neither as memory of the model nor as its work.
#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark stops at what it did not expect")]

use std::alloc::System;
use std::hint::black_box;
use std::time::{Duration, Instant};

use cap::Cap;
use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group};
use model::api;
use model::cluster::Cluster;
use model::event::{Event, Kind};
use testkit::bench::clusters::{self, EndpointChange, here, sticky_service as service};
use testkit::bench::record::Record;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

const SMALL: usize = 1_000;
const LARGE: usize = 10_000;
const ENDPOINTS: usize = 10;
/// The number of Services that change in turn: too many for the processor's caches.
const CHANGING: usize = 500;

fn main() {
    let mut record = Record::of("model");
    weigh(&mut record);
    scale(&mut record);
    events();
    Criterion::default().configure_from_args().final_summary();
}

criterion_group! {
    name = events;
    config = Criterion::default()
        .configure_from_args()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(3))
        .sample_size(20);
    targets = slice_change, unchanged_slice, service_change, zone_change, build
}

/// An endpoint of a slice changes its readiness.
fn slice_change(c: &mut Criterion) {
    let mut group = c.benchmark_group("one slice change");
    for services in [SMALL, LARGE] {
        let mut cluster = full(services);
        let mut changes = alternating(services).cycle();
        group.bench_function(BenchmarkId::from_parameter(services), |b| {
            b.iter(|| change(&mut cluster, changes.next().unwrap()))
        });
    }
    group.finish();
}

/// A slice is applied again with the same content.
fn unchanged_slice(c: &mut Criterion) {
    let mut cluster = full(LARGE);
    let same: Vec<_> = spread(LARGE).map(|number| slice(number, true)).collect();
    let mut same = same.iter().cycle();
    c.bench_function("one slice that says the same", |b| {
        b.iter(|| change(&mut cluster, same.next().unwrap()))
    });
}

/// A Service gets another affinity timeout.
fn service_change(c: &mut Criterion) {
    let mut group = c.benchmark_group("one service change");
    for services in [SMALL, LARGE] {
        let mut cluster = full(services);
        let versions = [600, 601].map(|seconds| spread(services).map(move |number| service(number, seconds)));
        let versions: Vec<_> = versions.into_iter().flatten().collect();
        let mut changes = versions.iter().cycle();
        group.bench_function(BenchmarkId::from_parameter(services), |b| {
            b.iter(|| change(&mut cluster, changes.next().unwrap()))
        });
    }
    group.finish();
}

/// The node moves to another zone, the only event that affects all Services.
fn zone_change(c: &mut Criterion) {
    let mut cluster = full(LARGE);
    let mut zones = ["z1", "z2"].into_iter().cycle().map(|zone| {
        let mut node = api::Node::default();
        node.metadata.labels.zone = Some(zone.into());
        Event::NodeApplied(Box::new(node))
    });
    c.bench_function("zone change with 10,000 services", |b| {
        b.iter(|| change(&mut cluster, &zones.next().unwrap()))
    });
}

/// Builds the whole cluster, not counting the time to make the objects.
fn build(c: &mut Criterion) {
    let mut group = c.benchmark_group("build everything");
    group.sample_size(10);
    for services in [SMALL, LARGE] {
        let events: Vec<Event> = all(services).collect();
        group.bench_function(BenchmarkId::from_parameter(services), |b| {
            b.iter_batched(
                || Cluster::new(here()),
                |mut cluster| {
                    for event in &events {
                        cluster.apply(event);
                    }
                    black_box(cluster.take_changes());
                    cluster
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

/// Prints how the cost of one slice change grows with the cluster. Both clusters take turns, so that other load on the
/// machine affects both.
fn scale(record: &mut Record) {
    let mut clusters = [SMALL, LARGE].map(|services| (full(services), alternating(services), Duration::MAX));
    for _ in 0..30 {
        for (cluster, changes, best) in &mut clusters {
            let start = Instant::now();
            for event in changes.clone() {
                change(cluster, event);
            }
            *best = start.elapsed().min(*best);
        }
    }
    let [small, large] = clusters.map(|(_, changes, best)| best.as_secs_f64() * 1e6 / changes.count() as f64);
    record.keep(SMALL, ENDPOINTS, "slice_change_us", small);
    record.keep(LARGE, ENDPOINTS, "slice_change_us", large);
    println!(
        "one slice change: {small:.2} µs at 1,000 services, {large:.2} µs at 10,000, ratio {:.2} (goal <= 1.5)",
        large / small
    );
}

/// Prints the memory per endpoint, as counted by the allocator and by the kernel.
fn weigh(record: &mut Record) {
    let (allocated, resident) = (ALLOCATOR.allocated(), resident_bytes());
    let mut cluster = full(LARGE);
    let (bytes, grown) = (ALLOCATOR.allocated() - allocated, resident_bytes().saturating_sub(resident));
    let endpoints = LARGE * ENDPOINTS;
    assert_eq!(cluster.counts().endpoints, endpoints);
    println!("model memory: {} bytes per endpoint (goal <= 200)", bytes / endpoints);
    record.keep(LARGE, ENDPOINTS, "bytes_per_endpoint", bytes as f64 / endpoints as f64);
    println!("resident set growth: {} bytes per endpoint, while built", grown / endpoints);

    // Applying everything again must not keep anything twice.
    cluster.apply(&Event::Listing(Kind::Service));
    cluster.apply(&Event::Listing(Kind::EndpointSlice));
    for event in all(LARGE) {
        cluster.apply(&event);
    }
    cluster.apply(&Event::Listed(Kind::Service));
    cluster.apply(&Event::Listed(Kind::EndpointSlice));
    assert!(!cluster.has_changes());
    let again = (ALLOCATOR.allocated() - allocated) / endpoints;
    println!("model memory after everything was listed again: {again} bytes per endpoint");
}

fn change(cluster: &mut Cluster, event: &Event) {
    cluster.apply(event);
    black_box(cluster.take_changes());
}

/// A cluster with all objects, whose changes have been taken.
fn full(services: usize) -> Cluster {
    let mut cluster = Cluster::new(here());
    for event in all(services) {
        cluster.apply(&event);
    }
    drop(cluster.take_changes());
    cluster
}

fn all(services: usize) -> impl Iterator<Item = Event> {
    (0..services).flat_map(|number| [service(number, 600), slice(number, true)])
}

/// Services evenly spread over the cluster.
fn spread(services: usize) -> impl Iterator<Item = usize> + Clone {
    (0..CHANGING).map(move |number| number * (services / CHANGING))
}

/// Every chosen slice with one endpoint unready, then all of them ready again.
fn alternating(services: usize) -> std::vec::IntoIter<&'static Event> {
    let events: Vec<_> =
        [false, true].into_iter().flat_map(|ready| spread(services).map(move |n| slice(n, ready))).collect();
    Vec::leak(events).iter().collect::<Vec<_>>().into_iter()
}

fn slice(number: usize, first_is_ready: bool) -> Event {
    clusters::slice(number, ENDPOINTS, (!first_is_ready).then_some((0, EndpointChange::Unready)))
}

/// The resident set size of this process.
fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).map_or(0, |pages| pages * 4096)
}
