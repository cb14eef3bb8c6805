//! Draws the charts of the book: `charts FOLDER FIGURES...` redraws the charts in FOLDER from its `figures.json` and the
//! newer figures of benchmarks, and updates `figures.json`.

mod bars;
mod figures;

use std::fs;
use std::path::Path;

use bars::{Bar, Chart, Colour, Group};
use figures::RecordedFigures;

const FIGURES_FILE: &str = "figures.json";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, newer @ ..] = &arguments[..] else {
        eprintln!("usage: charts FOLDER FIGURES...");
        std::process::exit(2);
    };
    let folder = Path::new(folder);
    let kept = folder.join(FIGURES_FILE);
    let mut figures = RecordedFigures::default();
    figures.read(&kept);
    newer.iter().for_each(|file| figures.read(Path::new(file)));
    for (name, chart) in charts(&figures) {
        match chart {
            Some(chart) => fs::write(folder.join(name), chart.svg()).unwrap(),
            None => eprintln!("charts: there are no figures for {name}"),
        }
    }
    fs::write(kept, figures.used()).unwrap();
}

fn charts(figures: &RecordedFigures) -> [(&'static str, Option<Chart>); 4] {
    [
        ("one-change.svg", one_change(figures)),
        ("memory.svg", memory(figures)),
        ("cold-load.svg", cold_load(figures)),
        ("any-size.svg", any_size(figures)),
    ]
}

const SIZES: [(usize, usize); 3] = [(1_000, 5), (10_000, 5), (44_000, 1)];

const BOTH: [(&str, &str, Colour); 2] =
    [("cluster-sluice", "Sluice", Colour::Ours), ("cluster-upstream", "upstream v1.36.3", Colour::Other)];

/// A figure of both proxies at every size that has been measured.
fn compared(figures: &RecordedFigures, figure: &str, show: fn(f64) -> String) -> Option<Vec<Group>> {
    let group = |(services, endpoints): (usize, usize)| {
        let bar = |(bench, label, colour): (&str, &str, Colour)| {
            let value = figures.get(bench, services, endpoints, figure)?;
            Some(Bar { label: label.to_owned(), value, shown: show(value), colour })
        };
        let bars: Option<Vec<Bar>> = BOTH.into_iter().map(bar).collect();
        Some(Group { title: size(services, endpoints), bars: bars? })
    };
    let groups: Vec<Group> = SIZES.into_iter().filter_map(group).collect();
    (!groups.is_empty()).then_some(groups)
}

fn one_change(figures: &RecordedFigures) -> Option<Chart> {
    Some(Chart {
        title: "One endpoint changes: processor time until the kernel has it",
        note: "nftables mode; all that the proxy and its commands use for one change, mean of 20. Less is better.",
        groups: compared(figures, "change_cpu_ms", milliseconds)?,
    })
}

fn cold_load(figures: &RecordedFigures) -> Option<Chart> {
    Some(Chart {
        title: "An empty node starts: how long until every Service is served",
        note: "nftables mode; from the start of the process to an answer from the last Service. Less is better.",
        groups: compared(figures, "served_s", seconds)?,
    })
}

fn memory(figures: &RecordedFigures) -> Option<Chart> {
    let mut groups = compared(figures, "rss_mib", mebibytes)?;
    groups.retain(|group| group.title == size(10_000, 5));
    Some(Chart {
        title: "Resident memory of the process",
        note: "nftables mode; after everything is loaded. Less is better.",
        groups,
    })
}

/// The cost of a change by the size of the cluster.
fn any_size(figures: &RecordedFigures) -> Option<Chart> {
    let bar = |(services, endpoints)| {
        let value = figures.get("nftables", services, endpoints, "replaced_cpu50")?;
        let label = format!("{} x {endpoints}", thousands(services));
        Some(Bar { label, value, shown: format!("{value:.0} µs"), colour: Colour::Ours })
    };
    let bars: Option<Vec<Bar>> = SIZES.into_iter().chain([(5_000, 50)]).map(bar).collect();
    Some(Chart {
        title: "One endpoint is replaced: the number of Services does not matter",
        note: "nftables mode, from the object to the kernel; median processor time by Services x endpoints.",
        groups: vec![Group { title: "Sluice".to_owned(), bars: bars? }],
    })
}

fn size(services: usize, endpoints: usize) -> String {
    let thousands = thousands(services);
    let endpoints = if endpoints == 1 { "1 endpoint".to_owned() } else { format!("{endpoints} endpoints") };
    format!("{thousands} Services with {endpoints} each")
}

fn thousands(number: usize) -> String {
    format!("{},{:03}", number / 1_000, number % 1_000)
}

fn milliseconds(value: f64) -> String {
    if value >= 1_000.0 { seconds(value / 1e3) } else { rounded(value, "ms") }
}

fn seconds(value: f64) -> String {
    if value >= 120.0 { format!("{} min", (value / 6.0).round() / 10.0) } else { rounded(value, "s") }
}

fn mebibytes(value: f64) -> String {
    rounded(value, "MiB")
}

/// At least two significant digits.
fn rounded(value: f64, unit: &str) -> String {
    match value {
        10.0.. => format!("{value:.0} {unit}"),
        1.0..10.0 => format!("{value:.1} {unit}"),
        _ => format!("{value:.2} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_charts_of_the_book_match_figures_json() {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/src/charts"));
        let mut figures = RecordedFigures::default();
        figures.read(&folder.join(FIGURES_FILE));
        for (name, chart) in charts(&figures) {
            let found = fs::read_to_string(folder.join(name)).unwrap();
            assert!(
                chart.is_some_and(|chart| chart.svg() == found),
                "{name} is not up to date: run `make charts`"
            );
        }
    }
}
