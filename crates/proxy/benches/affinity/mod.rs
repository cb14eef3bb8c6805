//! The cost of thousands of Services with session affinity, all with different timeouts, for a Service without affinity.
#![allow(clippy::indexing_slicing, reason = "a benchmark stops at what it did not expect")]

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use model::api;
use model::cluster::{Changes, Cluster};
use model::event::Event;
use netlink::nftables::NftablesSocket;
use netlink::testing::run as command;
use plan::nftables::program::ProgramSettings;

use proxy::backend::{Backend as _, Nftables};

use crate::open;
use testkit::bench::clusters::{EndpointChange, deletions, here, service, slice};
use testkit::bench::figures::{Figures, goal, processor, run, say};

/// The number of Services besides the one that is measured.
const SERVICES: usize = 5_000;
/// The number of the Service that is measured.
const UNRELATED: usize = 60_000;
const PROBES: usize = 400;
const ROUNDS: usize = 3;
const FAMILY: netlink::Family = netlink::Family::Ipv4;

pub fn report() {
    println!(
        "\nsession affinity: {SERVICES} Services, with a timeout of its own each, with one for all, or without affinity"
    );
    // In turns, so that other load of the machine affects all kinds.
    let kinds = [SERVICES.to_string(), "1".into(), "0".into()];
    let mut found: [Vec<Figures>; 3] = Default::default();
    for _ in 0..ROUNDS {
        for (kind, found) in kinds.iter().zip(&mut found) {
            found.push(run(&["affinity", kind]));
        }
    }
    let median = |kind: usize, name: &str| {
        let mut all: Vec<f64> = found[kind].iter().map(|figures| figures.median(name)).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    println!("{:>58} {:>9} {:>9} {:>9}   each / none   each / one", "", "each", "one", "none");
    for (name, what, max_of_none, max_of_one) in [
        ("connect", "µs to connect to a Service without affinity", Some(1.2), None),
        // Each commit walks all chains of the namespace, which takes 20 ns for each.
        ("change", "µs of processor time to replace its endpoint", Some(1.5), None),
        // The number of elements to read does not depend on their timeouts.
        ("restart", "ms of processor time to adopt the table", None, Some(1.5)),
        ("gone", "ms of processor time until all of them are deleted", None, None),
        ("connect_after", "µs to connect when they are deleted", Some(1.2), None),
        ("restart_after", "ms of processor time to adopt the table then", Some(1.5), None),
        ("left", "objects left then", Some(1.0), None),
    ] {
        let [each, one, none] = [0, 1, 2].map(|kind| median(kind, name));
        let ratio = |base: f64, max: Option<f64>| {
            let ratio = each / base;
            max.map_or_else(|| format!("{ratio:.2}"), |max| goal(ratio, max))
        };
        let (of_none, of_one) = (ratio(none, max_of_none), ratio(one, max_of_one));
        println!("{what:>58} {each:>9.1} {one:>9.1} {none:>9.1}   {of_none:>11}   {of_one:>10}");
    }
}

/// Measures with this number of different timeouts, or without affinity if it is zero.
pub fn measure(timeouts: usize, settings: ProgramSettings) {
    let endpoint: SocketAddr = "10.200.0.1:8080".parse().unwrap();
    command("ip link set lo up");
    command(&format!("ip address add {} dev lo", endpoint.ip()));
    command("ip route add default dev lo");
    let listener = TcpListener::bind(endpoint).unwrap();
    std::thread::spawn(move || listener.incoming().for_each(drop));

    let mut cluster = Cluster::new(here());
    for number in 0..SERVICES {
        cluster.apply(&sticky(number, timeouts));
        cluster.apply(&slice(number, 1, None));
    }
    cluster.apply(&service(UNRELATED));
    cluster.apply(&serving(endpoint));
    let mut table = open(settings.clone());
    sync(&mut table, cluster.take_changes());
    say("connect", connect());
    say("change", change(&mut cluster, &mut table, endpoint));
    drop(table);
    let (mut table, spent) = restart(&cluster_again(timeouts, endpoint), settings.clone());
    say("restart", spent);

    let start = processor();
    for some in (0..SERVICES).collect::<Vec<_>>().chunks(500) {
        some.iter().flat_map(|number| deletions(*number)).for_each(|event| _ = cluster.apply(&event));
        sync(&mut table, cluster.take_changes());
    }
    say("gone", processor() - start);
    say("connect_after", connect());
    say("left", objects());
    drop(table);
    let (_, spent) = restart(&only(endpoint), settings);
    say("restart_after", spent);
    say("left", objects());
}

fn sticky(number: usize, timeouts: usize) -> Event {
    let Event::ServiceApplied(mut service) = service(number) else { unreachable!("it is a Service") };
    if timeouts > 0 {
        // Between one second and one day.
        let seconds = i64::try_from(number % timeouts).unwrap() * 17 + 1;
        service.spec.session_affinity = Some("ClientIP".into());
        let client_ip = Some(api::ClientIpConfig { timeout_seconds: Some(seconds) });
        service.spec.session_affinity_config = Some(api::SessionAffinityConfig { client_ip });
    }
    Event::ServiceApplied(service)
}

/// The slice of the unrelated Service, with an endpoint that answers.
fn serving(endpoint: SocketAddr) -> Event {
    let Event::SliceApplied(mut slice) = slice(UNRELATED, 1, None) else { unreachable!("it is a slice") };
    slice.endpoints[0].addresses = vec![endpoint.ip().to_string()];
    Event::SliceApplied(slice)
}

fn cluster_again(timeouts: usize, endpoint: SocketAddr) -> Vec<Event> {
    let all = (0..SERVICES).flat_map(|number| [sticky(number, timeouts), slice(number, 1, None)]);
    all.chain(only(endpoint)).collect()
}

fn only(endpoint: SocketAddr) -> Vec<Event> {
    vec![service(UNRELATED), serving(endpoint)]
}

fn restart(events: &[Event], settings: ProgramSettings) -> (Nftables, f64) {
    let mut cluster = Cluster::new(here());
    events.iter().for_each(|event| _ = cluster.apply(event));
    let changes = cluster.take_changes();
    let start = processor();
    let mut table = open(settings);
    let outcome = table.sync(changes).unwrap();
    assert_eq!((outcome.added, outcome.deleted), (0, 0));
    (table, processor() - start)
}

fn sync(table: &mut Nftables, changes: Changes) {
    table.sync(changes).unwrap();
}

/// The median time of a connection, in microseconds.
fn connect() -> f64 {
    let to = SocketAddr::new("10.96.234.96".parse().unwrap(), 80);
    let probe = || {
        let start = Instant::now();
        let connection = TcpStream::connect_timeout(&to, Duration::from_secs(5)).unwrap();
        let elapsed = start.elapsed();
        drop(connection);
        elapsed.as_secs_f64() * 1e6
    };
    median((0..PROBES).map(|_| probe()).collect())
}

/// The median processor time to replace the endpoint of the unrelated Service, in microseconds.
fn change(cluster: &mut Cluster, table: &mut Nftables, endpoint: SocketAddr) -> f64 {
    let events = [slice(UNRELATED, 1, Some((0, EndpointChange::Replaced))), serving(endpoint)];
    let spent = events.iter().cycle().take(PROBES).map(|event| {
        cluster.apply(event);
        let changes = cluster.take_changes();
        let start = processor();
        sync(table, changes);
        (processor() - start) * 1e3
    });
    median(spent.collect())
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// The number of chains, rules, sets and elements.
fn objects() -> f64 {
    let mut connection = NftablesSocket::open().unwrap();
    let table = kernel::nftables::TABLE;
    let sets = connection.sets(FAMILY, table).unwrap();
    let elements: usize =
        sets.iter().map(|set| connection.elements(FAMILY, table, &set.name, |_| ()).unwrap().len()).sum();
    let chains = connection.chains(FAMILY, table).unwrap().len();
    (chains + connection.rules(FAMILY, table).unwrap().len() + sets.len() + elements) as f64
}
