//! The final table, and whether all connections succeeded.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ::testkit::namespace::Namespace;
use model::address::Family;
use netlink::nftables::NftablesSocket as Nftables;
use plan::nftables::elements::FrontendKey;
use plan::nftables::sets::{LookupBy, Set};

use crate::cluster::{DemoFrontend, DemoPod, FRONTENDS};
use crate::screen::{Screen, milliseconds, wrap};
use crate::traffic::Attempt;

/// Everything that the demo observed.
#[derive(Debug)]
pub struct Observations {
    pub connections: Vec<Attempt>,
    pub updates: Vec<Update>,
    /// New connections by frontend, by the kernel's counters.
    pub counted: Vec<(&'static DemoFrontend, u64)>,
    pub began: Instant,
    pub took: Duration,
}

/// An endpoint that was added or removed.
#[derive(Debug)]
pub struct Update {
    pub endpoint: SocketAddr,
    pub change: EndpointChange,
    /// From the edit of the manifest to the first connection to an added endpoint, or the last one to a removed one.
    pub latency: Duration,
}

#[derive(Clone, Copy, Debug)]
pub enum EndpointChange {
    Added,
    Removed,
}

/// New connections by frontend, by the kernel's counters; empty while there are no rules.
pub fn kernel_counts(node: &Namespace) -> Vec<(&'static DemoFrontend, u64)> {
    let mut found = Vec::new();
    for by in LookupBy::BOTH {
        let elements = node.enter(|| {
            Nftables::open()?.elements(
                netlink::Family::Ipv4,
                kernel::nftables::TABLE,
                Set::Frontends(by).name(),
                |element| {
                    let (key, _) = FrontendKey::from_key(element.key, by, Family::V4)?;
                    Some((key, element.counter?.packets))
                },
            )
        });
        for (key, count) in elements.unwrap_or_default().into_iter().flatten() {
            let frontend = FRONTENDS.into_iter().find(|frontend| is_for(frontend, key));
            found.extend(frontend.map(|frontend| (frontend, count)));
        }
    }
    found
}

fn is_for(frontend: &DemoFrontend, key: FrontendKey) -> bool {
    let ip = (!frontend.is_node_port()).then_some(frontend.ip);
    (ip, frontend.protocol, frontend.port) == (key.ip, key.protocol, key.port.get())
}

#[derive(Debug)]
pub struct DemoReport(Observations);

impl DemoReport {
    pub fn new(observations: Observations) -> Self {
        Self(observations)
    }

    pub fn is_success(&self) -> bool {
        self.failures().next().is_none()
    }

    fn failures(&self) -> impl Iterator<Item = (&Attempt, &String)> {
        self.0.connections.iter().filter_map(|it| Some((it, it.outcome.as_ref().err()?)))
    }

    fn attempts_at(&self, frontend: &DemoFrontend) -> impl Iterator<Item = &Attempt> {
        self.0.connections.iter().filter(move |it| it.frontend == frontend)
    }

    fn updates_of(&self, endpoint: SocketAddr) -> String {
        let updates = self.0.updates.iter().filter(|update| update.endpoint == endpoint);
        let words = updates.map(|update| {
            let word = match update.change {
                EndpointChange::Added => "in",
                EndpointChange::Removed => "out",
            };
            let latency = update.latency;
            // Zero: no connection after the edit.
            let latency = if latency.is_zero() { "at once".into() } else { milliseconds(latency) };
            format!("{word} {latency}")
        });
        words.collect::<Vec<_>>().join(", ")
    }
}

/// The width of the bars that a wide screen has room for.
const LONGEST_BAR: usize = 40;

impl DemoReport {
    /// The whole report; empty if there was no connection.
    pub fn render(&self, screen: Screen) -> String {
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
        let connections: Vec<_> =
            self.0.connections.iter().filter(|it| it.frontend.service == service).collect();
        let endpoints: BTreeSet<_> =
            connections.iter().filter_map(|it| it.outcome.as_ref().ok()).copied().collect();
        let mut name = service;
        for endpoint in endpoints {
            let count = connections.iter().filter(|it| it.reached(endpoint)).count();
            let pod = DemoPod::with_ip(endpoint.ip()).map_or("", DemoPod::name);
            let shown = format!("{pod} {endpoint}");
            let updates = self.updates_of(endpoint);
            lines.push(self.row(screen, [name, &shown, &count.to_string(), "", &updates], count));
            name = "";
        }
        for frontend in FRONTENDS.into_iter().filter(|frontend| frontend.service == service) {
            let (count, failed) = (
                self.attempts_at(frontend).count(),
                self.attempts_at(frontend).filter(|it| it.outcome.is_err()).count(),
            );
            let fields = [name, frontend.name, &count.to_string(), &failed.to_string(), ""];
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
            let DemoFrontend { service, name, .. } = connection.frontend;
            let words = format!("at {at:.3} s, {service} {name}: {reason}");
            lines.extend(wrap(&words, screen.width - 2).into_iter().map(|line| format!("  {line}")));
        }
        let counted: u64 = self.0.counted.iter().map(|(_, count)| count).sum();
        let same = if counted == total as u64 { ", too" } else { "" };
        lines.push(format!("The kernel's own counters say {counted}{same}."));
    }

    /// A line of the table. On a wide screen a bar shows the number of connections.
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
        let by_frontend = FRONTENDS.into_iter().map(|frontend| self.attempts_at(frontend).count());
        let most = by_frontend.chain(reached.into_values()).max().unwrap_or_default().max(1);
        "#".repeat(connections * LONGEST_BAR / most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{DNS_BY_CLUSTER_IP, WEB_BY_CLUSTER_IP, WEB_BY_NODE_PORT};
    use crate::screen::tests::{SIZES, expect};

    /// A report of a typical run with this many failures.
    fn report(failures: usize) -> DemoReport {
        let began = Instant::now();
        let at = Duration::from_millis;
        let mut connections = Vec::new();
        let dns = SocketAddr::new(DemoPod::C.ip(), 5353);
        for (frontend, endpoint, count) in [
            (&WEB_BY_NODE_PORT, DemoPod::A.web(), 2_101),
            (&WEB_BY_CLUSTER_IP, DemoPod::A.web(), 2_040),
            (&WEB_BY_NODE_PORT, DemoPod::B.web(), 402),
            (&WEB_BY_CLUSTER_IP, DemoPod::C.web(), 1_255),
            (&DNS_BY_CLUSTER_IP, dns, 3_312),
        ] {
            let (began, ended) = (began + at(1), began + at(14));
            connections.extend((0..count).map(|_| Attempt { frontend, began, ended, outcome: Ok(endpoint) }));
        }
        for number in 0..failures {
            let began = began + at(1_234 + number as u64);
            let outcome = Err("Connection refused (os error 111)".to_owned());
            connections.push(Attempt {
                frontend: &WEB_BY_NODE_PORT,
                began,
                ended: began + at(3_000),
                outcome,
            });
        }
        let update = |pod: DemoPod, change, latency| Update { endpoint: pod.web(), change, latency };
        DemoReport::new(Observations {
            counted: vec![(&WEB_BY_NODE_PORT, connections.len() as u64)],
            connections,
            updates: vec![
                update(DemoPod::B, EndpointChange::Added, Duration::from_micros(3_456)),
                update(DemoPod::C, EndpointChange::Added, at(12)),
                update(DemoPod::B, EndpointChange::Removed, Duration::ZERO),
            ],
            began,
            took: Duration::from_millis(15_432),
        })
    }

    #[test]
    fn the_report_fits_the_screen() {
        for size in SIZES {
            let screen = Screen { width: size.0, has_colours: false };
            expect("report", size, &report(0).render(screen));
            expect("failures", size, &report(7).render(screen));
            assert!(report(0).is_success() && !report(7).is_success());
        }
    }

    #[test]
    fn a_narrow_screen_gets_narrow_lines() {
        let shown = report(1).render(Screen { width: 66, has_colours: false });
        assert!(shown.lines().all(|line| line.chars().count() <= 66), "{shown}");
    }
}
