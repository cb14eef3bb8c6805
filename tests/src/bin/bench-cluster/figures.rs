//! Prints figures, and appends them as lines of JSON to a file in `target/bench`.

use std::fs::{File, OpenOptions, create_dir_all};
use std::io::Write as _;

use serde_json::json;

pub struct FigureLog {
    bench: String,
    services: usize,
    endpoints: usize,
    file: File,
}

impl FigureLog {
    pub fn of(bench: &str, services: usize, endpoints: usize) -> Self {
        let folder = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("bench");
        create_dir_all(&folder).unwrap();
        let path = folder.join(format!("{bench}.json"));
        let file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        println!("{bench}, {services} services x {endpoints} endpoints:");
        Self { bench: bench.to_owned(), services, endpoints, file }
    }

    pub fn record(&mut self, figure: &str, value: f64) {
        println!("  {figure} {value:.3}");
        let Self { bench, services, endpoints, .. } = &self;
        let line = json!({"bench": bench, "services": services, "endpoints": endpoints, "figure": figure, "value": value});
        writeln!(self.file, "{line}").unwrap();
    }
}
