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
#[serde(untagged)]
enum Line {
    Figure {
        #[serde(flatten)]
        key: FigureKey,
        value: f64,
    },
    Machine {
        machine: String,
    },
}

#[derive(Default)]
pub struct RecordedFigures {
    all: BTreeMap<FigureKey, f64>,
    used: RefCell<BTreeSet<FigureKey>>,
    /// The machine and the versions of a comparison with upstream.
    pub machine: String,
}

impl RecordedFigures {
    /// Figures that are read later replace earlier ones.
    pub fn read(&mut self, file: &Path) {
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        for line in text.lines() {
            match serde_json::from_str(line) {
                Ok(Line::Figure { key, value }) => _ = self.all.insert(key, value),
                Ok(Line::Machine { machine }) => self.machine = machine,
                Err(error) => panic!("{}: {error}: {line}", file.display()),
            }
        }
    }

    pub fn get(&self, bench: &str, services: usize, endpoints: usize, figure: &str) -> Option<f64> {
        let key = FigureKey { bench: bench.to_owned(), services, endpoints, figure: figure.to_owned() };
        let value = self.all.get(&key).copied();
        self.used.borrow_mut().insert(key);
        value
    }

    /// The figures that charts and tables use, in the format of [`Self::read`].
    pub fn used(&self) -> String {
        let used = self.used.borrow();
        let lines = self.all.iter().filter(|(key, _)| used.contains(key));
        let line = |(key, value): (&FigureKey, &f64)| Line::Figure { key: key.clone(), value: *value };
        let machine = Line::Machine { machine: self.machine.clone() };
        let to_text = |line| serde_json::to_string(&line).expect("figures are numbers") + "\n";
        lines.map(line).chain([machine]).map(to_text).collect()
    }
}
