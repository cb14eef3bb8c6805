//! The charts of `make bench-upstream`.

use crate::bars::{Bar, Chart, Colour, Group};
use crate::figures::RecordedFigures;
use crate::units::{Show, count, mebibytes, microseconds, milliseconds, seconds, thousands};

/// Services, and endpoints of each.
pub const SIZES: [(usize, usize); 4] = [(1_000, 5), (10_000, 5), (44_000, 1), (5_000, 50)];

/// The numbers of Services and of endpoints for which the path of packets is measured.
pub const SERVICES: [usize; 3] = [1, 10_000, 44_000];
pub const ENDPOINTS: [usize; 4] = [1, 10, 100, 5_000];
/// The charts of the path of packets show Services with this number of endpoints.
const CHARTED_ENDPOINTS: usize = 10;

const COMPETITORS: [(&str, &str, Colour); 4] = [
    ("sluice-nftables", "Sluice, nftables", Colour::Ours),
    ("upstream-nftables", "upstream, nftables", Colour::Other),
    ("sluice-iptables", "Sluice, iptables", Colour::Ours),
    ("upstream-iptables", "upstream, iptables", Colour::Other),
];

const PATHS: [(&str, &str, Colour); 4] = [
    ("data-path-sluice-nftables", "Sluice, nftables", Colour::Ours),
    ("data-path-upstream-nftables", "upstream, nftables", Colour::Other),
    ("data-path-upstream-iptables", "upstream, iptables", Colour::Other),
    ("direct-sluice-nftables", "a pod directly", Colour::Other),
];

pub fn charts(figures: &RecordedFigures) -> Vec<(&'static str, Option<Chart>)> {
    let chart = |title, groups: Vec<Group>, note: &str| {
        let notes = vec![note.to_owned(), figures.machine.clone()];
        (!groups.is_empty()).then_some(Chart { title, notes, groups })
    };
    vec![
        (
            "one-change.svg",
            chart(
                "One endpoint changes: processor time until the kernel has it",
                by_size(figures, "change_cpu_ms", milliseconds),
                "All that the proxy and its commands use for one change. Lines: least and most of all rounds. Less is better.",
            ),
        ),
        (
            "change-latency.svg",
            chart(
                "One endpoint changes: from the write to the API to a packet",
                by_size(figures, "change_p50_ms", milliseconds),
                "Bars: median; lines: to the 99th percentile. Less is better.",
            ),
        ),
        (
            "cold-load.svg",
            chart(
                "An empty node starts: how long until Services are served",
                by_size(figures, "served_s", seconds),
                "From the start of the process to the first answer. Lines: least and most of all rounds. Less is better.",
            ),
        ),
        (
            "memory.svg",
            chart(
                "Resident memory of the process",
                by_size(figures, "rss_mib", mebibytes),
                "After the start, without commands that it runs. Lines: least and most of all rounds. Less is better.",
            ),
        ),
        (
            "received.svg",
            chart(
                "An empty node starts: what it receives from the API server",
                by_size(figures, "received_mib", mebibytes),
                "With TLS and headers. Lines: least and most of all rounds. Less is better.",
            ),
        ),
        (
            "api-server.svg",
            chart(
                "An empty node starts: processor time of the API server",
                by_size(figures, "api_server_cpu_s", seconds),
                "Lines: least and most of all rounds. Less is better.",
            ),
        ),
        (
            "first-packet.svg",
            chart(
                "The first packet: how long a TCP connection takes to open",
                by_services(figures, "first_packet_p50_us", microseconds),
                "To a Service with 10 endpoints, or to a pod. Bars: median; lines: to the 99th percentile. Less is better.",
            ),
        ),
        (
            "connections.svg",
            chart(
                "TCP connections per second, one after the other",
                by_services(figures, "connections_per_s", count),
                "To a Service with 10 endpoints, or to a pod. Lines: the middle half of all blocks. More is better.",
            ),
        ),
        (
            "packets.svg",
            chart(
                "Packets per second of one UDP flow",
                by_services(figures, "packets_per_s", count),
                "To a Service with 10 endpoints, or to a pod. Lines: the middle half of all blocks. More is better.",
            ),
        ),
    ]
}

/// A figure of all competitors, by the size of the cluster.
fn by_size(figures: &RecordedFigures, figure: &str, show: Show) -> Vec<Group> {
    let group = |(services, endpoints)| {
        let bars = COMPETITORS.into_iter().filter_map(|(bench, label, colour)| {
            Cell { bench, services, endpoints }.bar(figures, figure, show, label, colour)
        });
        Group { title: size(services, endpoints), bars: bars.collect() }
    };
    SIZES.into_iter().map(group).filter(|group| !group.bars.is_empty()).collect()
}

/// A figure of the path of packets, by the number of Services.
fn by_services(figures: &RecordedFigures, figure: &str, show: Show) -> Vec<Group> {
    let group = |services| {
        let bars = PATHS.into_iter().filter_map(|(bench, label, colour)| {
            let endpoints = if bench.starts_with("direct") { 0 } else { CHARTED_ENDPOINTS };
            Cell { bench, services, endpoints }.bar(figures, figure, show, label, colour)
        });
        let plural = if services == 1 { "" } else { "s" };
        Group { title: format!("{} Service{plural}", thousands(services)), bars: bars.collect() }
    };
    SERVICES.into_iter().map(group).filter(|group| !group.bars.is_empty()).collect()
}

/// Where figures were recorded.
#[derive(Clone, Copy)]
pub struct Cell {
    pub bench: &'static str,
    pub services: usize,
    pub endpoints: usize,
}

impl Cell {
    pub fn get(self, figures: &RecordedFigures, figure: &str) -> Option<f64> {
        figures.get(self.bench, self.services, self.endpoints, figure)
    }

    /// The time limit that a start or a change exceeded.
    pub fn limit(self, figures: &RecordedFigures) -> Option<String> {
        Some(format!("more than {:.0} s", self.get(figures, "limit_s")?))
    }

    /// The figure as a bar, with its spread or the 99th percentile.
    fn bar(
        self,
        figures: &RecordedFigures,
        figure: &str,
        show: Show,
        label: &str,
        colour: Colour,
    ) -> Option<Bar> {
        let get = |figure: &str| self.get(figures, figure);
        let bar = |value, spread, shown| Some(Bar { label: label.to_owned(), value, spread, shown, colour });
        let Some(value) = get(figure) else {
            let limit = get("limit_s").filter(|_| figure == "served_s")?;
            return bar(limit, None, self.limit(figures)?);
        };
        if figure.contains("p50") {
            let p99 = get(&figure.replace("p50", "p99"))?;
            return bar(value, Some((value, p99)), format!("{}, p99 {}", show(value), show(p99)));
        }
        bar(value, get(&format!("{figure}_low")).zip(get(&format!("{figure}_high"))), show(value))
    }
}

fn size(services: usize, endpoints: usize) -> String {
    let thousands = thousands(services);
    let endpoints = if endpoints == 1 { "1 endpoint".to_owned() } else { format!("{endpoints} endpoints") };
    format!("{thousands} Services with {endpoints} each")
}
