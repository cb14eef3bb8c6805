//! A kernel made of maps that understands the language of `iptables-restore --noflush`, and refuses what the real one
//! refuses.

use std::collections::{BTreeMap, BTreeSet};

use plan::iptables::chains::{IptablesTable, Jump};

/// Chains of one table with their rules, each without the words that put it there.
pub type Chains = BTreeMap<String, Vec<String>>;

#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    pub filter: Chains,
    pub nat: Chains,
}

/// Why, and at which line.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused(pub usize, pub String);

const FILTER: [&str; 3] = ["INPUT", "FORWARD", "OUTPUT"];
const NAT: [&str; 4] = ["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"];
const TARGETS: [&str; 7] = ["ACCEPT", "DROP", "REJECT", "RETURN", "MARK", "MASQUERADE", "DNAT"];

impl Kernel {
    pub fn empty() -> Self {
        let chains = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), Vec::new())).collect();
        Self { filter: chains(&FILTER), nat: chains(&NAT) }
    }

    pub fn table(&self, table: IptablesTable) -> &Chains {
        match table {
            IptablesTable::Filter => &self.filter,
            IptablesTable::Nat => &self.nat,
        }
    }

    fn table_mut(&mut self, table: IptablesTable) -> &mut Chains {
        match table {
            IptablesTable::Filter => &mut self.filter,
            IptablesTable::Nat => &mut self.nat,
        }
    }

    /// What a full sync does before it restores.
    pub fn ensure_jumps(&mut self) {
        for jump in Jump::ALL {
            let quote = |word: &str| if word.contains(' ') { format!("\"{word}\"") } else { word.into() };
            let rule = jump.arguments().into_iter().map(quote).collect::<Vec<String>>().join(" ");
            let chains = self.table_mut(jump.table);
            chains.entry(jump.to.into()).or_default();
            let from = chains.get_mut(jump.from).unwrap();
            if !from.contains(&rule) {
                from.insert(0, rule);
            }
        }
    }

    /// Each table as a whole or not at all.
    pub fn restore(&mut self, text: &str) -> Result<(), Refused> {
        let mut open: Option<(IptablesTable, Chains)> = None;
        for (line, number) in text.lines().zip(1..) {
            match (line, &mut open) {
                ("*filter", None) => open = Some((IptablesTable::Filter, self.filter.clone())),
                ("*nat", None) => open = Some((IptablesTable::Nat, self.nat.clone())),
                ("COMMIT", Some(_)) => {
                    let (table, chains) = open.take().unwrap();
                    *self.table_mut(table) = chains;
                }
                (_, Some((_, chains))) => {
                    apply(chains, line).map_err(|why| Refused(number, format!("{why}: {line}")))?;
                }
                (_, None) => return Err(Refused(number, format!("outside of a table: {line}"))),
            }
        }
        assert_eq!(open, None, "the text ends before COMMIT");
        Ok(())
    }

    /// The nat chains as `iptables-save` would list them.
    pub fn nat_chains(&self) -> Vec<&str> {
        self.nat.keys().map(String::as_str).collect()
    }

    /// Chains that a packet can come to.
    pub fn reachable(&self, table: IptablesTable) -> BTreeSet<&str> {
        let chains = self.table(table);
        let mut found: BTreeSet<&str> = BTreeSet::new();
        let mut open: Vec<&str> = match table {
            IptablesTable::Filter => FILTER.to_vec(),
            IptablesTable::Nat => NAT.to_vec(),
        };
        while let Some(chain) = open.pop() {
            if found.insert(chain) {
                open.extend(
                    chains[chain].iter().filter_map(|rule| target(rule)).filter(|to| !is_builtin(to)),
                );
            }
        }
        found
    }
}

fn apply(chains: &mut Chains, line: &str) -> Result<(), String> {
    if let Some(chain) = line.strip_prefix(':') {
        let name = chain.strip_suffix(" - [0:0]").ok_or("not a chain line")?;
        if name.len() > 28 {
            return Err("chain name too long".into());
        }
        chains.insert(name.into(), Vec::new());
        return Ok(());
    }
    let (verb, rest) = line.split_once(' ').ok_or("not a command")?;
    let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    if verb == "-X" {
        return remove(chains, name);
    }
    let leads_nowhere = target(rest).is_some_and(|to| !is_builtin(to) && !chains.contains_key(to));
    let rules = chains.get_mut(name).ok_or("no chain by that name")?;
    let (at, rule) = match verb {
        "-A" => (rules.len(), rest),
        "-I" => {
            let (at, rule) = rest.split_once(' ').ok_or("no rule")?;
            (at.parse::<usize>().map_err(|error| error.to_string())? - 1, rule)
        }
        "-D" => {
            let at: usize = rest.parse().map_err(|_| "not a position")?;
            return if (1..=rules.len()).contains(&at) {
                rules.remove(at - 1);
                Ok(())
            } else {
                Err("index of deletion too big".into())
            };
        }
        _ => return Err("unknown command".into()),
    };
    if at > rules.len() {
        return Err("index of insertion too big".into());
    }
    if rule.is_empty() || rule.contains("  ") || rule.ends_with(' ') {
        return Err("sloppily written".into());
    }
    if leads_nowhere {
        return Err("jump to a chain that is missing".into());
    }
    rules.insert(at, rule.into());
    Ok(())
}

fn remove(chains: &mut Chains, name: &str) -> Result<(), String> {
    let rules = chains.get(name).ok_or("no chain by that name")?;
    if !rules.is_empty() {
        return Err("directory not empty".into());
    }
    if chains.values().flatten().any(|rule| target(rule) == Some(name)) {
        return Err("too many links".into());
    }
    chains.remove(name);
    Ok(())
}

pub fn is_builtin(target: &str) -> bool {
    TARGETS.contains(&target)
}

/// What comes after `-j`. No comment of ours contains that.
pub fn target(rule: &str) -> Option<&str> {
    let (before, after) = rule.split_once("-j ")?;
    assert!(before.is_empty() || before.ends_with(' '), "{rule}");
    after.split(' ').next()
}

// Upstream's TestFakeIPTables: the fake refuses what the kernel refuses.
#[test]
fn the_fake_refuses_what_the_kernel_refuses() {
    let good = "*nat\n:A - [0:0]\n:B - [0:0]\n-A A -j B\n-A A -j ACCEPT\nCOMMIT\n";
    for (text, why) in [
        ("*nat\n-A A -j MISSING\nCOMMIT\n", "jump to a chain that is missing"),
        ("*nat\n-A MISSING -j ACCEPT\nCOMMIT\n", "no chain by that name"),
        ("*nat\n-X MISSING\nCOMMIT\n", "no chain by that name"),
        ("*nat\n-X A\nCOMMIT\n", "directory not empty"),
        ("*nat\n-X B\nCOMMIT\n", "too many links"),
        ("*nat\n-D A 3\nCOMMIT\n", "index of deletion too big"),
        ("*nat\n-I A 4 -j ACCEPT\nCOMMIT\n", "index of insertion too big"),
    ] {
        let mut kernel = Kernel::empty();
        kernel.restore(good).unwrap();
        let before = kernel.clone();
        let line = text.lines().nth(1).unwrap();
        assert_eq!(kernel.restore(text), Err(Refused(2, format!("{why}: {line}"))));
        assert_eq!(kernel, before);
    }
    let mut kernel = Kernel::empty();
    kernel.restore(good).unwrap();
    kernel.restore("*nat\n-I A 3 -j DROP\n-D A 1\n-X B\nCOMMIT\n").unwrap();
    assert_eq!(kernel.nat["A"], ["-j ACCEPT", "-j DROP"]);
    kernel.restore("*nat\n:A - [0:0]\nCOMMIT\n").unwrap();
    assert!(kernel.nat["A"].is_empty() && !kernel.nat.contains_key("B"));
}
