//! Draws the charts of the book: `charts FOLDER FIGURES...` redraws the charts in FOLDER from its `figures.json` and the
//! newer figures of benchmarks, and updates `figures.json` and the tables of the documents.

mod bars;
mod comparison;
mod figures;
mod tables;
mod units;

use std::fs;
use std::path::Path;

use bars::{Bar, Chart, Colour, Group};
use figures::RecordedFigures;
use units::thousands;

const FIGURES_FILE: &str = "figures.json";

/// Documents with tables, relative to the folder of the charts.
const DOCUMENTS: [&str; 2] = ["../measurements.md", "../../../README.md"];

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
    for document in DOCUMENTS.map(|document| folder.join(document)) {
        let text = fs::read_to_string(&document).unwrap();
        fs::write(&document, tables::update(&text, &figures)).unwrap();
    }
    fs::write(kept, figures.used()).unwrap();
}

fn charts(figures: &RecordedFigures) -> Vec<(&'static str, Option<Chart>)> {
    let mut charts = comparison::charts(figures);
    charts.push(("any-size.svg", any_size(figures)));
    charts
}

/// The cost of a change by the size of the cluster.
fn any_size(figures: &RecordedFigures) -> Option<Chart> {
    let bar = |(services, endpoints)| {
        let value = figures.get("nftables", services, endpoints, "replaced_cpu50")?;
        let label = format!("{} x {endpoints}", thousands(services));
        Some(Bar { label, value, spread: None, shown: format!("{value:.0} µs"), colour: Colour::Ours })
    };
    let bars: Option<Vec<Bar>> = comparison::SIZES.into_iter().map(bar).collect();
    Some(Chart {
        title: "One endpoint is replaced: the number of Services does not matter",
        notes: vec![
            "nftables mode, from the object to the kernel; median processor time by Services x endpoints."
                .into(),
        ],
        groups: vec![Group { title: "Sluice".to_owned(), bars: bars? }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_charts_and_tables_match_figures_json() {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/src/charts"));
        let mut figures = RecordedFigures::default();
        figures.read(&folder.join(FIGURES_FILE));
        for (name, chart) in charts(&figures) {
            let found = fs::read_to_string(folder.join(name)).ok();
            assert!(chart.map(|chart| chart.svg()) == found, "{name} is not up to date: run `make charts`");
        }
        for name in DOCUMENTS {
            let text = fs::read_to_string(folder.join(name)).unwrap();
            assert!(tables::update(&text, &figures) == text, "{name} is not up to date: run `make charts`");
        }
    }
}
