//! Prints figures, and appends them as lines of JSON to a file in `target/bench`.

use std::fs::{File, OpenOptions, create_dir_all};
use std::io::Write as _;
use std::path::PathBuf;

use serde_json::json;

pub struct FigureLog {
    bench: String,
    services: usize,
    endpoints: usize,
    file: File,
}

impl FigureLog {
    pub fn of(bench: &str, services: usize, endpoints: usize) -> Self {
        let path = folder().join(format!("{bench}.json"));
        let file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        println!("{bench}, {services} services x {endpoints} endpoints:");
        Self { bench: bench.to_owned(), services, endpoints, file }
    }

    pub fn record(&mut self, figure: &str, value: f64) {
        println!("  {figure} {value:.3}");
        self.write(figure, value);
    }

    /// Records the median, and the spread as two figures of their own: the values at the percentiles `low` and `high`.
    pub fn record_spread(&mut self, figure: &str, values: &[f64], low: usize, high: usize) {
        let [low, middle, high] = [low, 50, high].map(|percent| percentile(values, percent));
        println!("  {figure} {middle:.3} ({low:.3} to {high:.3})");
        self.write(figure, middle);
        self.write(&format!("{figure}_low"), low);
        self.write(&format!("{figure}_high"), high);
    }

    fn write(&mut self, figure: &str, value: f64) {
        let Self { bench, services, endpoints, .. } = &self;
        let line = json!({"bench": bench, "services": services, "endpoints": endpoints, "figure": figure, "value": value});
        writeln!(self.file, "{line}").unwrap();
    }
}

/// `target/bench`.
pub fn folder() -> PathBuf {
    let folder = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("bench");
    create_dir_all(&folder).unwrap();
    folder
}

pub fn median(values: &[f64]) -> f64 {
    percentile(values, 50)
}

/// `values` is not empty.
pub fn percentile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[(sorted.len() - 1) * percent / 100]
}
