//! One name, one type: public types of the workspace that share a name.

use std::collections::BTreeMap;

use crate::source::Type;

/// The places of all types of each name.
#[derive(Debug)]
pub struct Names<'a>(BTreeMap<&'a str, Vec<&'a str>>);

impl<'a> Names<'a> {
    pub fn of(types: &'a [Type]) -> Self {
        let mut names: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for one in types {
            names.entry(&one.name).or_default().push(&one.place);
        }
        Self(names)
    }

    /// `known` has a line `Name count` for each name that is shared, with a reason behind it if it shall stay so.
    pub fn check(&self, known: &str) -> Vec<String> {
        let mut violations = Vec::new();
        let listed: BTreeMap<&str, usize> = known.lines().filter_map(entry).collect();
        for (name, places) in &self.0 {
            let allowed = listed.get(name).copied().unwrap_or(1);
            if places.len() > allowed {
                let places = places.join("\n    ");
                violations.push(format!(
                    "more than {allowed} public type(s) named {name}, rename one:\n    {places}"
                ));
            }
        }
        for (name, count) in listed {
            let found = self.count(name);
            if found < count {
                violations.push(format!(
                    "names.txt allows {count} types named {name}, and there are {found}: \
                     run `cargo run --package layers -- --shrink`"
                ));
            }
        }
        violations
    }

    /// The list with no more in it than there is.
    pub fn shrunk(&self, known: &str) -> String {
        let keep = |line: &str| -> Option<String> {
            let Some((name, count)) = entry(line) else { return Some(line.to_owned()) };
            let found = self.count(name).min(count);
            let reason = line.split_once(':').map(|(_, reason)| format!(":{reason}")).unwrap_or_default();
            (found > 1).then(|| format!("{name} {found}{reason}"))
        };
        known.lines().filter_map(keep).map(|line| line + "\n").collect()
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
