//! Figures that benchmarks have kept: a line of JSON each.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq, PartialOrd, Ord)]
struct What {
    bench: String,
    services: usize,
    endpoints: usize,
    figure: String,
}

#[derive(Deserialize, Serialize)]
struct Line {
    #[serde(flatten)]
    what: What,
    value: f64,
}

#[derive(Default)]
pub struct Figures {
    all: BTreeMap<What, f64>,
    asked_for: RefCell<BTreeSet<What>>,
}

impl Figures {
    /// What is read later counts.
    pub fn read(&mut self, file: &Path) {
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        for line in text.lines() {
            let Line { what, value } = serde_json::from_str(line)
                .unwrap_or_else(|error| panic!("{}: {error}: {line}", file.display()));
            self.all.insert(what, value);
        }
    }

    pub fn get(&self, bench: &str, services: usize, endpoints: usize, figure: &str) -> Option<f64> {
        let what = What { bench: bench.to_owned(), services, endpoints, figure: figure.to_owned() };
        let value = self.all.get(&what).copied();
        self.asked_for.borrow_mut().insert(what);
        value
    }

    /// Those that somebody has asked for, as they can be read again.
    pub fn shown(&self) -> String {
        let asked_for = self.asked_for.borrow();
        let shown = self.all.iter().filter(|(what, _)| asked_for.contains(what));
        let line = |(what, value): (&What, &f64)| {
            let line = serde_json::to_string(&Line { what: what.clone(), value: *value });
            line.expect("figures are numbers") + "\n"
        };
        shown.map(line).collect()
    }
}
