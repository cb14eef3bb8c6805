//! Figures that benchmarks recorded, one line of JSON each.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq, PartialOrd, Ord)]
struct FigureKey {
    bench: String,
    services: usize,
    endpoints: usize,
    figure: String,
}

#[derive(Deserialize, Serialize)]
struct Line {
    #[serde(flatten)]
    key: FigureKey,
    value: f64,
}

#[derive(Default)]
pub struct RecordedFigures {
    all: BTreeMap<FigureKey, f64>,
    used: RefCell<BTreeSet<FigureKey>>,
}

impl RecordedFigures {
    /// Figures that are read later replace earlier ones.
    pub fn read(&mut self, file: &Path) {
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        for line in text.lines() {
            let Line { key, value } = serde_json::from_str(line)
                .unwrap_or_else(|error| panic!("{}: {error}: {line}", file.display()));
            self.all.insert(key, value);
        }
    }

    pub fn get(&self, bench: &str, services: usize, endpoints: usize, figure: &str) -> Option<f64> {
        let key = FigureKey { bench: bench.to_owned(), services, endpoints, figure: figure.to_owned() };
        let value = self.all.get(&key).copied();
        self.used.borrow_mut().insert(key);
        value
    }

    /// The figures that charts use, in the format of [`Self::read`].
    pub fn used(&self) -> String {
        let used = self.used.borrow();
        let lines = self.all.iter().filter(|(key, _)| used.contains(key));
        let line = |(key, value): (&FigureKey, &f64)| {
            let line = serde_json::to_string(&Line { key: key.clone(), value: *value });
            line.expect("figures are numbers") + "\n"
        };
        lines.map(line).collect()
    }
}
