use std::sync::Arc;

use model::names::ServicePortName;
use model::routing::Routing;

use super::*;
use crate::flows::stale::tests::{dns, flow, name, node_ips};
use crate::flows::{Contended, Flows};

/// A family worker and its scanner thread; the test controls the clock and the conntrack table.
struct Family {
    flows: Flows,
    scanner: Scanner,
    now: Instant,
}

fn routings(endpoints: Option<&[u8]>) -> Vec<(ServicePortName, Option<Arc<Routing>>)> {
    vec![(name("dns"), endpoints.map(dns))]
}

impl Family {
    fn new() -> Self {
        let mut scanner = Scanner::default();
        scanner.receive(ScanRequest::NodeIps(node_ips()));
        Self { flows: Flows::new(Contended::FirstOnly), scanner, now: Instant::now() }
    }

    /// One sync that gives the Service these endpoints, or deletes it. Counters say that no packet matched.
    fn sync(&mut self, endpoints: Option<&[u8]>) {
        let prepared = self.flows.prepare(&routings(endpoints));
        let committed = self.flows.committed(self.now, |_| true);
        prepared.into_iter().chain(committed).for_each(|request| self.scanner.receive(request));
    }

    /// Runs all scans that are due now or later. Returns their number.
    fn scan_all(&mut self, table: &mut Vec<TrackedFlow>) -> usize {
        let mut scans = 0;
        loop {
            match self.scanner.next(self.now) {
                Action::Scan(scan) => {
                    table.retain(|flow| !self.scanner.judge(&scan, flow));
                    self.scanner.done(scan, self.now, Duration::ZERO, true);
                    scans += 1;
                }
                Action::Wait(Some(until)) => self.now = until,
                Action::Wait(None) => return scans,
            }
        }
    }
}

fn served(by: u8) -> TrackedFlow {
    flow("10.96.0.53:53", &format!("10.244.1.{by}:5353"))
}

#[test]
fn an_endpoint_that_returns_before_a_scan_deletes_keeps_its_flows() {
    let mut family = Family::new();
    family.sync(Some(&[1, 2, 3]));
    let mut table = vec![served(1), served(2), served(3)];
    family.scan_all(&mut table);
    family.sync(Some(&[3]));
    let Action::Scan(mut scan) = family.scanner.next(family.now + Duration::from_secs(60)) else {
        panic!("a scan is due")
    };
    let mut stale: Vec<TrackedFlow> =
        table.iter().copied().filter(|flow| family.scanner.judge(&scan, flow)).collect();
    assert_eq!(stale, [served(1), served(2)]);
    // The scan has listed the flows, and the next sync adds one of the endpoints again.
    let request = family.flows.prepare(&routings(Some(&[2, 3]))).unwrap();
    family.scanner.receive_during(request, &mut scan);
    stale.retain(|flow| family.scanner.judge(&scan, flow));
    assert_eq!(stale, [served(1)]);
}

#[test]
fn counters_are_used_only_for_destinations_without_flows_from_earlier_scans() {
    for (mut table, scans, deleted) in [(vec![served(1)], 2, 1), (vec![], 0, 0)] {
        let mut family = Family::new();
        family.sync(Some(&[1, 2]));
        let before = table.len();
        family.scan_all(&mut table);
        assert_eq!(table.len(), before, "it may be older than our counters");
        family.sync(Some(&[2]));
        assert_eq!(family.scan_all(&mut table), scans);
        assert_eq!(before - table.len(), deleted);
        assert_eq!(family.scanner.used.len(), deleted);
        family.sync(None);
        family.scan_all(&mut table);
        assert!(family.scanner.used.is_empty(), "no state is left of a deleted Service");
    }
}

#[test]
fn flows_to_destinations_that_are_no_frontends_stay_and_leave_no_state() {
    let mut family = Family::new();
    family.sync(Some(&[1]));
    let mut table = vec![flow("10.96.0.53:53", "10.96.0.53:53")];
    family.sync(None);
    family.scan_all(&mut table);
    assert_eq!(table.len(), 1, "it was never translated");
    assert!(family.scanner.used.is_empty());
}

#[test]
fn node_ports_are_judged_by_the_latest_addresses_of_the_node() {
    let mut family = Family::new();
    let mut table = vec![flow("192.168.0.9:30053", "10.244.1.9:5353")];
    family.sync(Some(&[1]));
    family.scan_all(&mut table);
    assert_eq!(table.len(), 1, "another host");
    family.scanner.receive(ScanRequest::NodeIps(["192.168.0.9".parse().unwrap()].into()));
    family.sync(None);
    family.scan_all(&mut table);
    assert_eq!(table, []);
}
