//! Figures for people, and for machines: a line of JSON each, in `bench` of the target folder.

use std::fs::{File, OpenOptions, create_dir_all};
use std::io::Write as _;

use serde_json::json;

pub struct Figures {
    bench: String,
    services: usize,
    endpoints: usize,
    file: File,
}

impl Figures {
    pub fn of(bench: &str, services: usize, endpoints: usize) -> Self {
        let folder = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("bench");
        create_dir_all(&folder).unwrap();
        let path = folder.join(format!("{bench}.json"));
        let file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        println!("{bench}, {services} services x {endpoints} endpoints:");
        Self { bench: bench.to_owned(), services, endpoints, file }
    }

    pub fn say(&mut self, figure: &str, value: f64) {
        println!("  {figure} {value:.3}");
        let Self { bench, services, endpoints, .. } = &self;
        let line = json!({"bench": bench, "services": services, "endpoints": endpoints, "figure": figure, "value": value});
        writeln!(self.file, "{line}").unwrap();
    }
}
