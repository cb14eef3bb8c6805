//! The tables of `make bench-upstream` in documents, between `<!-- table: NAME -->` and `<!-- end of table -->`.

use crate::comparison::{Cell, ENDPOINTS, SERVICES, SIZES};
use crate::figures::RecordedFigures;
use crate::units::{Show, count, mebibytes, microseconds, milliseconds, seconds, thousands};

const END: &str = "<!-- end of table -->";

/// The document with all of its tables replaced by those of `figures`.
pub fn update(document: &str, figures: &RecordedFigures) -> String {
    let mut parts = document.split("<!-- table: ");
    let mut updated = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once(" -->").expect("the name of a table");
        let (_, rest) = rest.split_once(END).expect("the end of a table");
        let table = table(name, figures);
        updated += &format!("<!-- table: {name} -->\n\n{table}\n{END}{rest}");
    }
    updated
}

fn table(name: &str, figures: &RecordedFigures) -> String {
    match name {
        "machine" => format!("{}.\n", figures.machine),
        "summary" => by_size(figures, ["sluice-nftables", "upstream-nftables"], &SUMMARY),
        "nftables" => by_size(figures, ["sluice-nftables", "upstream-nftables"], &ROWS),
        "iptables" => by_size(figures, ["sluice-iptables", "upstream-iptables"], &ROWS),
        "first-packet" => {
            by_path(figures, [("first_packet_p50_us", microseconds), ("first_packet_p99_us", microseconds)])
        }
        "rates" => by_path(figures, [("connections_per_s", count), ("packets_per_s", count)]),
        _ => panic!("there is no table {name:?}"),
    }
}

type Row = (&'static str, &'static str, Show);

const SUMMARY: [Row; 5] = [
    ("processor time for one change", "change_cpu_ms", milliseconds),
    ("a change, from the API to a packet, median", "change_p50_ms", milliseconds),
    ("a change, from the API to a packet, 99th percentile", "change_p99_ms", milliseconds),
    ("from the start of the process until Services are served", "served_s", seconds),
    ("resident memory after the start", "rss_mib", mebibytes),
];

const ROWS: [Row; 12] = [
    SUMMARY[0],
    SUMMARY[1],
    SUMMARY[2],
    SUMMARY[3],
    ("processor time of the start", "start_cpu_s", seconds),
    ("received from the API server by a start", "received_mib", mebibytes),
    ("processor time of the API server for a start", "api_server_cpu_s", seconds),
    SUMMARY[4],
    ("resident memory after changes", "rss_changed_mib", mebibytes),
    ("rules in the kernel, IPv4", "rules", count),
    ("sets and maps", "sets", count),
    ("their elements", "elements", count),
];

/// One column per size that was measured, in which a cell has the figures of both.
fn by_size(figures: &RecordedFigures, pair: [&'static str; 2], rows: &[Row]) -> String {
    let is_measured = |(services, endpoints): &(usize, usize)| {
        let (services, endpoints) = (*services, *endpoints);
        let of = |bench| Cell { bench, services, endpoints }.get(figures, "served_s");
        pair.into_iter().any(|bench| of(bench).is_some())
    };
    let sizes: Vec<(usize, usize)> = SIZES.into_iter().filter(is_measured).collect();
    let name = |(services, endpoints): &(usize, usize)| format!("{} x {endpoints}", thousands(*services));
    let names: Vec<String> = sizes.iter().map(name).collect();
    let mut table = header("Sluice / upstream", &names);
    for (title, figure, show) in rows {
        let cell = |&(services, endpoints): &(usize, usize)| {
            let [ours, upstream] = pair.map(|bench| {
                let cell = Cell { bench, services, endpoints };
                let limit = || cell.limit(figures).filter(|_| *figure == "served_s");
                cell.get(figures, figure).map(show).or_else(limit).unwrap_or_else(|| "–".to_owned())
            });
            format!("{ours} / {upstream}")
        };
        table += &line(title, &sizes.iter().map(cell).collect::<Vec<_>>());
    }
    table
}

const NOT_MEASURED: &str = "– / –";

/// One line per number of Services and of endpoints that was measured, and one for a pod that is reached directly on the same nodes.
fn by_path(figures: &RecordedFigures, pair: [(&str, Show); 2]) -> String {
    const COLUMNS: [[&str; 2]; 3] = [
        ["data-path-sluice-nftables", "direct-sluice-nftables"],
        ["data-path-upstream-nftables", "direct-upstream-nftables"],
        ["data-path-upstream-iptables", "direct-upstream-iptables"],
    ];
    let names = ["Sluice, nftables", "upstream, nftables", "upstream, iptables"].map(String::from);
    let mut table = header("Services, endpoints", &names);
    for services in SERVICES {
        for endpoints in [0].into_iter().chain(ENDPOINTS) {
            let cell = |[cluster_ip, direct]: [&'static str; 2]| {
                let bench = if endpoints == 0 { direct } else { cluster_ip };
                let cell = Cell { bench, services, endpoints };
                let shown = |(figure, show): (&str, Show)| cell.get(figures, figure).map(show);
                pair.map(|of| shown(of).unwrap_or_else(|| "–".to_owned())).join(" / ")
            };
            let cells = COLUMNS.map(cell);
            if cells.iter().all(|cell| cell == NOT_MEASURED) {
                continue;
            }
            let endpoints = if endpoints == 0 { "a pod directly".to_owned() } else { thousands(endpoints) };
            table += &line(&format!("{}, {endpoints}", thousands(services)), &cells);
        }
    }
    table
}

fn header(first: &str, names: &[String]) -> String {
    line(first, names) + &line("---", &vec!["---".to_owned(); names.len()])
}

fn line(first: &str, cells: &[String]) -> String {
    format!("| {first} | {} |\n", cells.join(" | "))
}
