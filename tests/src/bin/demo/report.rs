//! The table in the end, and whether all went well.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ::testkit::namespace::Namespace;
use model::address::Family;
use netlink::nftables::Connection as Nftables;
use plan::nftables::elements::Frontend;
use plan::nftables::sets::{Bank, Set};

use crate::screen::{Screen, milliseconds, wrap};
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
                Set::Frontends(bank).name(),
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

/// What the table has beside its first columns, on a screen that has room for it.
const LONGEST_BAR: usize = 40;

impl Report {
    /// The whole of it; empty if nothing was tried.
    pub fn on(&self, screen: Screen) -> String {
        if self.0.connections.is_empty() {
            return String::new();
        }
        let titles = ["service", "endpoint", "connections", "failures", "update latency"];
        let mut lines = vec![String::new(), screen.strong(&self.row(screen, titles, 0))];
        for service in ["web", "dns"] {
            self.write_service(screen, service, &mut lines);
        }
        let legend = "latency: from the edit to the first connection (in) or the last one (out)";
        lines.extend(wrap(legend, screen.width));
        self.write_verdict(screen, &mut lines);
        lines.join("\n") + "\n"
    }

    fn write_service(&self, screen: Screen, service: &str, lines: &mut Vec<String>) {
        let connections: Vec<_> = self.0.connections.iter().filter(|it| it.way.service == service).collect();
        let endpoints: BTreeSet<_> =
            connections.iter().filter_map(|it| it.outcome.as_ref().ok()).copied().collect();
        let mut name = service;
        for endpoint in endpoints {
            let count = connections.iter().filter(|it| it.reached(endpoint)).count();
            let pod = Pod::with_ip(endpoint.ip()).map_or("", Pod::name);
            let shown = format!("{pod} {endpoint}");
            let updates = self.updates_of(endpoint);
            lines.push(self.row(screen, [name, &shown, &count.to_string(), "", &updates], count));
            name = "";
        }
        for way in WAYS.into_iter().filter(|way| way.service == service) {
            let (count, failed) =
                (self.by(way).count(), self.by(way).filter(|it| it.outcome.is_err()).count());
            let fields = [name, way.name, &count.to_string(), &failed.to_string(), ""];
            let line = self.row(screen, fields, count);
            lines.push(if failed == 0 { screen.good(&line) } else { screen.bad(&line) });
            name = "";
        }
    }

    fn write_verdict(&self, screen: Screen, lines: &mut Vec<String>) {
        let total = self.0.connections.len();
        let failed = self.failures().count();
        let slowest = self.0.connections.iter().map(|it| it.ended - it.began).max().unwrap_or_default();
        let seconds = self.0.took.as_secs_f64();
        let summary = format!(
            "{total} connections in {seconds:.1} s, {failed} failed; the slowest took {}.",
            milliseconds(slowest)
        );
        let summary = wrap(&summary, screen.width).join("\n");
        lines.push(String::new());
        lines.push(if failed == 0 { screen.good(&summary) } else { screen.bad(&summary) });
        for (connection, reason) in self.failures().take(5) {
            let at = (connection.began - self.0.began).as_secs_f64();
            let Way { service, name, .. } = connection.way;
            let words = format!("at {at:.3} s, {service} {name}: {reason}");
            lines.extend(wrap(&words, screen.width - 2).into_iter().map(|line| format!("  {line}")));
        }
        let counted: u64 = self.0.counted.iter().map(|(_, count)| count).sum();
        let same = if counted == total as u64 { ", too" } else { "" };
        lines.push(format!("The kernel's own counters say {counted}{same}."));
    }

    /// A line of the table. Where there is room, a bar shows the number of connections.
    fn row(&self, screen: Screen, fields: [&str; 5], connections: usize) -> String {
        let [service, endpoint, count, failures, update] = fields;
        let bar = if screen.is_wide() {
            format!("{:<LONGEST_BAR$}  ", self.bar(connections))
        } else {
            String::new()
        };
        let line = format!("{service:<8} {endpoint:<22} {count:>11} {failures:>9}  {bar}");
        let room = screen.width.saturating_sub(line.chars().count());
        let indent = format!("\n{}", " ".repeat(line.chars().count()));
        format!("{line}{}", wrap(update, room).join(&indent)).trim_end().to_owned()
    }

    fn bar(&self, connections: usize) -> String {
        let mut reached: BTreeMap<SocketAddr, usize> = BTreeMap::new();
        for endpoint in self.0.connections.iter().filter_map(|it| it.outcome.as_ref().ok()) {
            *reached.entry(*endpoint).or_default() += 1;
        }
        let by_way = WAYS.into_iter().map(|way| self.by(way).count());
        let most = by_way.chain(reached.into_values()).max().unwrap_or_default().max(1);
        "#".repeat(connections * LONGEST_BAR / most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::screen::tests::{SIZES, expect};
    use crate::stage::{DNS_BY_CLUSTER_IP, WEB_BY_CLUSTER_IP, WEB_BY_NODE_PORT};

    /// As it went on some day, once without a failure and once with some.
    fn report(failures: usize) -> Report {
        let began = Instant::now();
        let at = Duration::from_millis;
        let mut connections = Vec::new();
        let dns = SocketAddr::new(Pod::C.ip(), 5353);
        for (way, endpoint, count) in [
            (&WEB_BY_NODE_PORT, Pod::A.web(), 2_101),
            (&WEB_BY_CLUSTER_IP, Pod::A.web(), 2_040),
            (&WEB_BY_NODE_PORT, Pod::B.web(), 402),
            (&WEB_BY_CLUSTER_IP, Pod::C.web(), 1_255),
            (&DNS_BY_CLUSTER_IP, dns, 3_312),
        ] {
            let (began, ended) = (began + at(1), began + at(14));
            connections.extend((0..count).map(|_| Connection { way, began, ended, outcome: Ok(endpoint) }));
        }
        for number in 0..failures {
            let began = began + at(1_234 + number as u64);
            let outcome = Err("Connection refused (os error 111)".to_owned());
            connections.push(Connection { way: &WEB_BY_NODE_PORT, began, ended: began + at(3_000), outcome });
        }
        let update = |pod: Pod, direction, latency| Update { endpoint: pod.web(), direction, latency };
        Report::new(Facts {
            counted: vec![(&WEB_BY_NODE_PORT, connections.len() as u64)],
            connections,
            updates: vec![
                update(Pod::B, Direction::In, Duration::from_micros(3_456)),
                update(Pod::C, Direction::In, at(12)),
                update(Pod::B, Direction::Out, Duration::ZERO),
            ],
            began,
            took: Duration::from_millis(15_432),
        })
    }

    #[test]
    fn the_report_fits() {
        for size in SIZES {
            let screen = Screen { width: size.0, has_colours: false };
            expect("report", size, &report(0).on(screen));
            expect("failures", size, &report(7).on(screen));
            assert!(report(0).is_good() && !report(7).is_good());
        }
    }

    #[test]
    fn a_narrow_screen_gets_narrow_lines() {
        let shown = report(1).on(Screen { width: 66, has_colours: false });
        assert!(shown.lines().all(|line| line.chars().count() <= 66), "{shown}");
    }
}
