//! The table in the end, and whether all went well.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use model::address::Family;
use netlink::nftables::Connection as Nftables;
use plan::nftables::elements::Frontend;
use plan::nftables::sets::{Bank, Set};
use tests::namespace::Namespace;

use crate::screen::{bad, good, milliseconds, strong};
use crate::stage::{Pod, WAYS, Way};
use crate::traffic::Connection;

/// All that was seen.
#[derive(Debug)]
pub struct Facts {
    pub connections: Vec<Connection>,
    pub updates: Vec<Update>,
    /// New connections by the kernel's own count.
    pub counted: Vec<(&'static Way, u64)>,
    pub began: Instant,
    pub took: Duration,
}

/// An endpoint that came or went.
#[derive(Debug)]
pub struct Update {
    pub endpoint: SocketAddr,
    pub direction: Direction,
    /// From the edit of the manifest to the first connection it got, or the last one.
    pub latency: Duration,
}

#[derive(Clone, Copy, Debug)]
pub enum Direction {
    In,
    Out,
}

/// How many new connections the rules have seen, by way in: nothing if there are no rules.
pub fn counted_by_kernel(node: &Namespace) -> Vec<(&'static Way, u64)> {
    let mut found = Vec::new();
    for bank in Bank::BOTH {
        let elements = node.enter(|| {
            Nftables::open()?.elements(
                netlink::Family::Ipv4,
                kernel::nftables::TABLE,
                &Set::Frontends(bank).name(),
                |element| {
                    let (frontend, _) = Frontend::from_key(element.key, bank, Family::V4)?;
                    Some((frontend, element.counter?.packets))
                },
            )
        });
        for (frontend, count) in elements.unwrap_or_default().into_iter().flatten() {
            let way = WAYS.into_iter().find(|way| is_for(way, frontend));
            found.extend(way.map(|way| (way, count)));
        }
    }
    found
}

fn is_for(way: &Way, frontend: Frontend) -> bool {
    let ip = (!way.is_node_port()).then_some(way.ip);
    (ip, way.protocol, way.port) == (frontend.ip, frontend.protocol, frontend.port.get())
}

#[derive(Debug)]
pub struct Report(Facts);

impl Report {
    pub fn new(facts: Facts) -> Self {
        Self(facts)
    }

    pub fn is_good(&self) -> bool {
        self.failures().next().is_none()
    }

    fn failures(&self) -> impl Iterator<Item = (&Connection, &String)> {
        self.0.connections.iter().filter_map(|it| Some((it, it.outcome.as_ref().err()?)))
    }

    fn by(&self, way: &Way) -> impl Iterator<Item = &Connection> {
        self.0.connections.iter().filter(move |it| it.way == way)
    }

    fn updates_of(&self, endpoint: SocketAddr) -> String {
        let updates = self.0.updates.iter().filter(|update| update.endpoint == endpoint);
        let words = updates.map(|update| {
            let direction = match update.direction {
                Direction::In => "in",
                Direction::Out => "out",
            };
            let latency = update.latency;
            // Not that it took no time: the next connection came later.
            let latency = if latency.is_zero() { "at once".into() } else { milliseconds(latency) };
            format!("{direction} {latency}")
        });
        words.collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.connections.is_empty() {
            return Ok(());
        }
        let title = row(["service", "endpoint", "connections", "failures", "update latency"]);
        writeln!(f, "\n{}", strong(&title))?;
        for service in ["web", "dns"] {
            self.write_service(f, service)?;
        }
        writeln!(f, "latency: from the edit to the first connection (in) or the last one (out)")?;
        self.write_verdict(f)
    }
}

impl Report {
    fn write_service(&self, f: &mut fmt::Formatter<'_>, service: &str) -> fmt::Result {
        let connections: Vec<_> = self.0.connections.iter().filter(|it| it.way.service == service).collect();
        let endpoints: BTreeSet<_> =
            connections.iter().filter_map(|it| it.outcome.as_ref().ok()).copied().collect();
        let mut name = service;
        for endpoint in endpoints {
            let count = connections.iter().filter(|it| it.reached(endpoint)).count().to_string();
            let pod = Pod::with_ip(endpoint.ip()).map_or("", Pod::name);
            let shown = format!("{pod} {endpoint}");
            writeln!(f, "{}", row([name, &shown, &count, "", &self.updates_of(endpoint)]))?;
            name = "";
        }
        for way in WAYS.into_iter().filter(|way| way.service == service) {
            let (count, failed) =
                (self.by(way).count(), self.by(way).filter(|it| it.outcome.is_err()).count());
            let line = row([name, way.name, &count.to_string(), &failed.to_string(), ""]);
            writeln!(f, "{}", if failed == 0 { good(&line) } else { bad(&line) })?;
            name = "";
        }
        Ok(())
    }

    fn write_verdict(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.0.connections.len();
        let failed = self.failures().count();
        let slowest = self.0.connections.iter().map(|it| it.ended - it.began).max().unwrap_or_default();
        let seconds = self.0.took.as_secs_f64();
        let summary = format!(
            "{total} connections in {seconds:.1} s, {failed} failed; the slowest took {}.",
            milliseconds(slowest)
        );
        writeln!(f, "\n{}", if failed == 0 { good(&summary) } else { bad(&summary) })?;
        for (connection, reason) in self.failures().take(5) {
            let at = (connection.began - self.0.began).as_secs_f64();
            let Way { service, name, .. } = connection.way;
            writeln!(f, "  at {at:.3} s, {service} {name}: {reason}")?;
        }
        let counted: u64 = self.0.counted.iter().map(|(_, count)| count).sum();
        let same = if counted == total as u64 { ", too" } else { "" };
        writeln!(f, "The kernel's own counters say {counted}{same}.")
    }
}

fn row([service, endpoint, connections, failures, update]: [&str; 5]) -> String {
    let line = format!("{service:<8} {endpoint:<22} {connections:>11} {failures:>9}  {update}");
    line.trim_end().to_owned()
}
