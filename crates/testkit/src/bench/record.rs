//! Figures as lines of JSON, in the folder `bench` of the target folder. `make charts` draws some of them.

use std::env::current_exe;
use std::fs::{File, create_dir_all};
use std::io::Write;

#[derive(Debug)]
pub struct Record {
    bench: &'static str,
    file: File,
}

impl Record {
    /// Overwrites what an earlier run of this benchmark has recorded.
    pub fn of(bench: &'static str) -> Self {
        // A benchmark is in `release/deps`.
        let folder = current_exe().unwrap().ancestors().nth(3).unwrap().join("bench");
        create_dir_all(&folder).unwrap();
        Self { bench, file: File::create(folder.join(format!("{bench}.json"))).unwrap() }
    }

    pub fn keep(&mut self, services: usize, endpoints: usize, figure: &str, value: f64) {
        // JSON has no other numbers.
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
