//! The cost of a Service with weights or with hashed clients: what one change writes, and how long it takes, in a small and in a
//! large cluster.

use model::api;
use model::cluster::Cluster;
use model::event::Event;
use plan::nftables::program::ProgramSettings;
use proxy::backend::Backend as _;

use crate::{Spent, open, percentiles};
use testkit::bench::clusters::{EndpointChange, here, service, slice};
use testkit::bench::figures::{goal, run, say};

/// The numbers of other Services.
const SERVICES: [usize; 2] = [1_000, 10_000];
/// The number of the Service that is measured, and of the endpoints that it has.
const MEASURED: usize = 20_000;
const ENDPOINTS: [usize; 3] = [3, 10, 100];
const CHANGES: usize = 100;

/// What one change does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Replaces one endpoint of a Service without weights.
    Plain,
    /// Doubles one of different weights, or restores it.
    Weight,
    /// Takes one endpoint from a Service with hashed clients, or returns it.
    Hash,
}

pub fn report() {
    println!(
        "\nbalance: one change of a Service with n endpoints, elements written, and microseconds of processor time at the median"
    );
    println!(
        "{:>12} {:>4} {:>20} {:>26} {:>26}   weight, 10k / 1k <= 1.5",
        "services", "n", "endpoint replaced", "weight doubled", "hashed, endpoint lost"
    );
    let found = SERVICES.map(|services| run(&["balance", &services.to_string()]));
    for (services, figures) in SERVICES.iter().zip(&found) {
        for endpoints in ENDPOINTS {
            let of = |kind: &str| {
                let [written, spent] =
                    ["written", "cpu50"].map(|what| figures.median(&format!("{kind}_{endpoints}_{what}")));
                format!("{written:.0} ({spent:.0})")
            };
            let name = format!("weight_{endpoints}_cpu50");
            let ratio = figures.median(&name) / found[0].median(&name);
            let ratio = if *services == SERVICES[0] { String::new() } else { goal(ratio, 1.5) };
            println!(
                "{services:>12} {endpoints:>4} {:>20} {:>26} {:>26}   {ratio:>23}",
                of("plain"),
                of("weight"),
                of("hash")
            );
        }
    }
}

/// Measures with this number of other Services.
pub fn measure(services: usize, settings: ProgramSettings) {
    let mut cluster = Cluster::new(here());
    for number in 0..services {
        cluster.apply(&service(number));
        cluster.apply(&slice(number, 5, None));
    }
    let mut table = open(settings);
    table.sync(cluster.take_changes()).unwrap();
    for (kind, name) in [(Kind::Plain, "plain"), (Kind::Weight, "weight"), (Kind::Hash, "hash")] {
        for endpoints in ENDPOINTS {
            cluster.apply(&hashed(kind));
            let (mut spent, mut written) = (Vec::new(), Vec::new());
            for number in 0..=CHANGES {
                let event = changed(kind, endpoints, number % 2 == 1);
                let (took, outcome) = Spent::by(|| {
                    cluster.apply(&event);
                    table.sync(cluster.take_changes()).unwrap()
                });
                // The first one adds the endpoints.
                if number > 0 {
                    spent.push(took);
                    written.push(outcome.added + outcome.deleted);
                }
            }
            percentiles(&format!("{name}_{endpoints}"), &spent);
            written.sort_unstable();
            say(&format!("{name}_{endpoints}_written"), written[CHANGES / 2] as f64);
        }
    }
}

fn hashed(kind: Kind) -> Event {
    let Event::ServiceApplied(mut service) = service(MEASURED) else { panic!("not a Service") };
    service.metadata.annotations.hash = (kind == Kind::Hash).then(|| "ClientIP".into());
    Event::ServiceApplied(service)
}

fn changed(kind: Kind, endpoints: usize, is_changed: bool) -> Event {
    let special = match kind {
        Kind::Plain => Some((1, EndpointChange::Replaced)),
        Kind::Hash => Some((1, EndpointChange::Unready)),
        Kind::Weight => None,
    };
    let Event::SliceApplied(mut slice) = slice(MEASURED, endpoints, special.filter(|_| is_changed)) else {
        panic!("not a slice")
    };
    if kind == Kind::Weight {
        let weight = |(number, endpoint): (usize, &api::SliceEndpoint)| {
            let weight = 10 + number % 7 * 10;
            let weight = if is_changed && number == 1 { 2 * weight } else { weight };
            format!("{}={weight}", endpoint.addresses[0])
        };
        let weights: Vec<String> = slice.endpoints.iter().enumerate().map(weight).collect();
        slice.metadata.annotations.weight = Some(weights.join(","));
    }
    Event::SliceApplied(slice)
}
