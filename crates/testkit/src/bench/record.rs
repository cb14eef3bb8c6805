//! Figures as lines of JSON in `target/bench`. `make charts` draws some of them.

use std::env::current_exe;
use std::fs::{File, create_dir_all};
use std::io::Write;

#[derive(Debug)]
pub struct Record {
    bench: &'static str,
    file: File,
}

impl Record {
    /// Overwrites the record of an earlier run.
    pub fn of(bench: &'static str) -> Self {
        // The benchmark's executable is in `target/release/deps`.
        let folder = current_exe().unwrap().ancestors().nth(3).unwrap().join("bench");
        create_dir_all(&folder).unwrap();
        Self { bench, file: File::create(folder.join(format!("{bench}.json"))).unwrap() }
    }

    pub fn keep(&mut self, services: usize, endpoints: usize, figure: &str, value: f64) {
        // JSON has neither infinity nor NaN.
        if value.is_finite() {
            writeln!(
                self.file,
                r#"{{"bench":"{}","services":{services},"endpoints":{endpoints},"figure":"{figure}","value":{value}}}"#,
                self.bench
            )
            .unwrap();
        }
    }
}
