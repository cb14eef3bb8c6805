//! Finds public types of the workspace that share a name.

use std::collections::BTreeMap;

use crate::source::Type;

/// The locations of the types of each name.
#[derive(Debug)]
pub struct Names<'a>(BTreeMap<&'a str, Vec<&'a str>>);

impl<'a> Names<'a> {
    pub fn of(types: &'a [Type]) -> Self {
        let mut names: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for found in types {
            names.entry(&found.name).or_default().push(&found.location);
        }
        Self(names)
    }

    /// `list` is the content of `names.txt`: a line `Name count` or `Name count: reason` for each shared name.
    pub fn check(&self, list: &str) -> Vec<String> {
        let mut violations = Vec::new();
        let listed: BTreeMap<&str, usize> = list.lines().filter_map(entry).collect();
        for (name, locations) in &self.0 {
            let allowed = listed.get(name).copied().unwrap_or(1);
            if locations.len() > allowed {
                let locations = locations.join("\n    ");
                violations.push(format!(
                    "more than {allowed} public type(s) named {name}, rename one:\n    {locations}"
                ));
            }
        }
        for (name, count) in listed {
            let found = self.count(name);
            if found < count {
                violations.push(format!(
                    "names.txt allows {count} types named {name}, but there are {found}: \
                     run `cargo run --package layers -- --shrink`"
                ));
            }
        }
        violations
    }

    /// `list` without names that are no longer shared, and with reduced counts.
    pub fn shrunk(&self, list: &str) -> String {
        let keep = |line: &str| -> Option<String> {
            let Some((name, count)) = entry(line) else { return Some(line.to_owned()) };
            let found = self.count(name).min(count);
            let reason = line.split_once(':').map(|(_, reason)| format!(":{reason}")).unwrap_or_default();
            (found > 1).then(|| format!("{name} {found}{reason}"))
        };
        list.lines().filter_map(keep).map(|line| line + "\n").collect()
    }

    fn count(&self, name: &str) -> usize {
        self.0.get(name).map_or(0, Vec::len)
    }
}

fn entry(line: &str) -> Option<(&str, usize)> {
    let (name, rest) = line.split_once(' ')?;
    let count = rest.split(':').next()?.trim().parse().ok()?;
    (!line.starts_with('#')).then_some((name, count))
}
