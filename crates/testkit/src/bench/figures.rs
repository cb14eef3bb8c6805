//! Figures that a child process measures and prints. Each measurement gets a process, so that none inherits the memory of
//! another.

use std::collections::BTreeSet;
use std::env::current_exe;
use std::process::Command;

use rustix::time::{ClockId, clock_gettime};

use super::clusters::Size;
use super::record::Record;

/// The output of a child process: each line is a name and a number.
#[derive(Debug)]
pub struct Figures(String);

/// Runs this benchmark as a child process with these arguments.
pub fn run(arguments: &[&str]) -> Figures {
    let output = Command::new(current_exe().unwrap()).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Figures(String::from_utf8(output.stdout).unwrap())
}

impl Figures {
    pub fn all(&self, name: &str) -> Vec<f64> {
        let of_line = |line: &str| line.split_once(' ').filter(|(found, _)| *found == name)?.1.parse().ok();
        self.0.lines().filter_map(of_line).collect()
    }

    pub fn median(&self, name: &str) -> f64 {
        let mut all = self.all(name);
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
    }

    pub fn sum(&self, name: &str) -> f64 {
        self.all(name).iter().sum()
    }

    /// Records the median of every figure.
    pub fn keep(&self, size: Size, record: &mut Record) {
        let names = self.0.lines().filter_map(|line| line.split_once(' ')).map(|(name, _)| name);
        for name in names.collect::<BTreeSet<_>>() {
            record.keep(size.services, size.endpoints, name, self.median(name));
        }
    }

    pub fn say_as(&self, prefix: &str) {
        self.0.lines().for_each(|line| println!("{prefix}{line}"));
    }
}

/// Prints a figure for the parent process to read.
pub fn say(name: &str, number: f64) {
    println!("{name} {number}");
}

/// The value, and whether it is within `limit`.
pub fn goal(value: f64, limit: f64) -> String {
    format!("{value:.2} {}", if value <= limit { "ok" } else { "MISSED" })
}

/// The CPU time of this thread, in milliseconds.
pub fn processor() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}
