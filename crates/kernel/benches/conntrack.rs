//! What it costs to look for flows that a change has made wrong, in a table full of flows that have nothing to do with it.
//!
//! The kernel can't find flows by their destination: to list some it goes through all, of every protocol and namespace. So
//! the cheapest look is the one that is not taken, and the nftables mode knows when there is nothing to be found. Where
//! there may be, and a look takes long, a trap is laid, and looks are rare.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    missing_docs,
    reason = "a benchmark stops at what it did not expect"
)]

mod shared;

use std::fs::{read_to_string, write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use kernel::conntrack::{Conntrack, Destination};
use kernel::nftables::{Change, Table};
use model::address::Family;
use model::api;
use model::cluster::Cluster;
use model::event::Event;
use netlink::conntrack::{Connection, Direction};
use netlink::testing::{in_fresh_netns, run};
use plan::mark::Mark;
use plan::nftables::program::Settings;

use shared::figures::{goal, processor};
use shared::objects::{here, service, slice};

const UNRELATED: u32 = 500_000;
const LIMIT: &str = "/proc/sys/net/netfilter/nf_conntrack_max";
const CHANGES: usize = 20;
/// Whenever the last look was.
const LONGEST_REST: Duration = Duration::from_secs(300);
/// Longer than until flows are looked at once more.
const MOMENT: Duration = Duration::from_secs(2);

/// Puts the limit of the machine back when dropped.
struct Limit(String);

impl Limit {
    fn raise() -> Self {
        let before = read_to_string(LIMIT).unwrap();
        write(LIMIT, (2 * UNRELATED).to_string()).unwrap();
        Self(before)
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        write(LIMIT, self.0.trim()).unwrap();
    }
}

fn main() {
    let _limit = Limit::raise();
    in_fresh_netns(|| {
        run("ip link set lo up");
        run("ip route add default dev lo");
        let mut line = Line::new();
        println!(
            "\none UDP service of 1,000 loses an endpoint, {CHANGES} times in a row: milliseconds of processor time for its flows"
        );
        println!(
            "{:>18} {:>22} {:>22} {:>22}",
            "flows in the table", "never used from here", "used from here", "a look at all flows"
        );
        for unrelated in [0, UNRELATED] {
            fill(unrelated);
            line.look_at_all();
            let look = line.look_at_all();
            let unused = line.measure(0);
            let used = line.measure(1);
            println!("{unrelated:>18} {:>22} {:>22} {look:>22.2}", goal(unused, 5.0), goal(used, 5.0));
        }
        println!(
            "a look that takes more than 5 ms comes at most once in 1,000 times as long, or in 5 minutes"
        );
    });
}

/// A node that serves UDP services, as far as flows and rules are concerned.
struct Line {
    cluster: Cluster,
    table: Table,
    conntrack: Conntrack,
}

impl Line {
    fn new() -> Self {
        let mut cluster = Cluster::new(here());
        for number in 0..1_000 {
            cluster.apply(&udp(service(number)));
            cluster.apply(&udp(slice(number, 2, None)));
        }
        let settings = Settings {
            family: Family::V4,
            mark: Mark::from_bit(14).unwrap(),
            masquerade_all: false,
            from_pod: None,
            node_ports_everywhere: true,
        };
        let mut line =
            Self { cluster, table: Table::open(settings).unwrap(), conntrack: Conntrack::new(Family::V4) };
        line.pass();
        line.look();
        line
    }

    /// Returns the processor time that was spent on flows, not on rules.
    fn pass(&mut self) -> f64 {
        let changes = self.cluster.take_changes();
        let before = processor();
        self.conntrack.hear(&changes.routings);
        let took = processor() - before;
        let change = Change { routings: changes.routings, ..Change::default() };
        self.table.sync(change).unwrap();
        self.conntrack.follow_rules();
        took
    }

    /// Does all that is due now or will be in a moment. Returns the processor time it took.
    fn look(&mut self) -> f64 {
        let mut took = 0.0;
        while let Some(due) = self.conntrack.due()
            && due < Instant::now() + MOMENT
        {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let before = processor();
            let (conntrack, table) = (&mut self.conntrack, &mut self.table);
            conntrack.look(Instant::now(), |at: Destination| table.is_unused(at).unwrap()).unwrap();
            took += processor() - before;
        }
        took
    }

    /// As after somebody else's rules have gone: what there is to know of flows is known afterwards.
    fn look_at_all(&mut self) -> f64 {
        self.conntrack.doubt_everything();
        let before = processor();
        self.conntrack.look(Instant::now() + LONGEST_REST, |_| false).unwrap();
        let took = processor() - before;
        while let Some(due) = self.conntrack.due() {
            self.conntrack.look(due, |_| false).unwrap();
        }
        took
    }

    /// The median of what it takes to follow one change of the service with that number; all but the first are used.
    fn measure(&mut self, number: usize) -> f64 {
        if number > 0 {
            let client = UdpSocket::bind("127.0.0.1:0").unwrap();
            let ip = IpAddr::from([10, 96, 0, number as u8]);
            // Where it goes there is nobody. That it went is what counts.
            let _ = client.send_to(b"?", (ip, 80));
        }
        let mut all: Vec<f64> = (0..2 * CHANGES)
            .map(|change| {
                let endpoints = if change % 2 == 0 { 1 } else { 2 };
                self.cluster.apply(&udp(shrunk(number, endpoints)));
                self.pass() + self.look()
            })
            .step_by(2)
            .collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap()
    }
}

fn shrunk(number: usize, endpoints: usize) -> Event {
    let Event::SliceApplied(mut slice) = slice(number, 2, None) else { panic!("a slice") };
    slice.endpoints.truncate(endpoints);
    Event::SliceApplied(slice)
}

fn udp(event: Event) -> Event {
    let udp = || Some("UDP".to_owned());
    match event {
        Event::ServiceApplied(mut service) => {
            service.spec.ports.iter_mut().for_each(|port: &mut api::ServicePort| port.protocol = udp());
            Event::ServiceApplied(service)
        }
        Event::SliceApplied(mut slice) => {
            slice.ports.iter_mut().for_each(|port: &mut api::EndpointPort| port.protocol = udp());
            Event::SliceApplied(slice)
        }
        _ => panic!("services and slices"),
    }
}

/// TCP connections of nobody.
fn fill(flows: u32) {
    let flow = |number: u32| Direction {
        protocol: 6,
        source: SocketAddr::new(
            Ipv4Addr::from(0x0a01_0000 + number / 50_000).into(),
            (1_000 + number % 50_000) as u16,
        ),
        destination: SocketAddr::new(Ipv4Addr::from(0x0a02_0000 + number % 1_000).into(), 443),
    };
    let all: Vec<Direction> = (0..flows).map(flow).collect();
    Connection::open().unwrap().make(netlink::Family::Ipv4, &all).unwrap();
    std::thread::sleep(Duration::from_millis(100));
}
