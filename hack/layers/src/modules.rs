//! Finds cycles among the children of each module.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{Module, ModulePath};

/// The largest cycle of modules that is allowed.
const MAX_CYCLE: usize = 3;

/// For each child, the siblings that it uses and the location of the first use.
type Graph<'a> = BTreeMap<&'a str, BTreeMap<&'a str, String>>;

pub fn check(modules: &[Module]) -> Vec<String> {
    let krate = Crate { modules: modules.iter().map(|module| (module.path.clone(), module)).collect() };
    let mut graphs: BTreeMap<&[String], Graph<'_>> = BTreeMap::new();
    for module in modules {
        for (mention, line) in &module.mentions {
            let Some(used) = krate.resolve(&module.path, mention, 0) else { continue };
            let shared = module.path.iter().zip(&used.path).take_while(|(a, b)| a == b).count();
            let (Some(user), Some(other)) = (module.path.get(shared), used.path.get(shared)) else {
                continue; // one of them contains the other
            };
            let parent = module.path.get(..shared).unwrap_or_default();
            let uses = graphs.entry(parent).or_default().entry(user).or_default();
            uses.entry(other).or_insert_with(|| format!("{}:{line}", module.file));
        }
    }
    graphs.values().flat_map(violations).collect()
}

fn violations(graph: &Graph<'_>) -> Vec<String> {
    let cycles = cycles(graph);
    let large = cycles.into_iter().filter(|cycle| cycle.len() > MAX_CYCLE);
    large
        .map(|cycle| {
            let names: Vec<&str> = cycle.iter().copied().collect();
            let mut text = format!("{} modules use each other: {}", names.len(), names.join(", "));
            for (user, uses) in graph.iter().filter(|(user, _)| cycle.contains(*user)) {
                for (other, location) in uses.iter().filter(|(other, _)| cycle.contains(*other)) {
                    text += &format!("\n    {user} -> {other}    {location}");
                }
            }
            text
        })
        .collect()
}

/// The strongly connected components with more than one module.
fn cycles<'a>(graph: &Graph<'a>) -> Vec<BTreeSet<&'a str>> {
    let reach: BTreeMap<&str, BTreeSet<&'a str>> =
        graph.keys().map(|start| (*start, reachable(graph, start))).collect();
    let mut found: Vec<BTreeSet<&'a str>> = Vec::new();
    for (&module, beyond) in graph.keys().map(|key| (key, reach.get(key).cloned().unwrap_or_default())) {
        let is_mutual = |other: &&&str| reach.get(**other).is_some_and(|back| back.contains(module));
        let cycle: BTreeSet<&'a str> = beyond.iter().filter(is_mutual).copied().collect();
        if cycle.len() > 1 && !found.contains(&cycle) {
            found.push(cycle);
        }
    }
    found
}

fn reachable<'a>(graph: &Graph<'a>, start: &str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&str> = vec![start];
    while let Some(module) = open.pop() {
        for (other, _) in graph.get(module).into_iter().flatten() {
            if found.insert(*other) {
                open.push(other);
            }
        }
    }
    found
}

struct Crate<'a> {
    modules: BTreeMap<ModulePath, &'a Module>,
}

impl<'a> Crate<'a> {
    /// The last module on `path`, starting at the module `from`. `None` if the path leads out of the crate.
    fn resolve(&self, from: &[String], path: &[String], depth: usize) -> Option<&'a Module> {
        let mut here: ModulePath = from.to_vec();
        let mut rest = path.iter().map(String::as_str).peekable();
        match rest.peek() {
            Some(&"crate") => {
                here.clear();
                rest.next();
            }
            Some(&"self") => drop(rest.next()),
            Some(&"super") => {
                while rest.next_if(|segment| *segment == "super").is_some() {
                    here.pop();
                }
            }
            Some(first) => {
                let module = self.modules.get(&here)?;
                let is_child = self.modules.contains_key(&child(&here, first));
                // A name that `use` imports was counted at the `use`.
                let is_own_child = is_child && !module.imports.contains_key(*first);
                if !is_own_child {
                    return None;
                }
            }
            None => return None,
        }
        for segment in rest {
            let next = child(&here, segment);
            if self.modules.contains_key(&next) {
                here = next;
                continue;
            }
            let module = self.modules.get(&here)?;
            // Follow re-exports to the module that defines the name.
            return match module.imports.get(segment) {
                Some(origin) if depth < 8 && here != from => {
                    self.resolve(&here, origin, depth + 1).or(Some(module))
                }
                _ => Some(module),
            };
        }
        self.modules.get(&here).copied()
    }
}

fn child(parent: &[String], name: &str) -> ModulePath {
    parent.iter().cloned().chain([name.to_owned()]).collect()
}
