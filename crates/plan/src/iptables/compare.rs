//! The chains and rules of a table that differ from the desired ones. Jumps from the kernel's own chains are not compared here,
//! since those chains may have foreign rules.

use std::collections::{BTreeSet, HashMap};

use crate::difference::{Difference, DifferenceKind, KernelObject};
use crate::iptables::chains::{FIREWALL, IptablesTable, Purpose};
use crate::iptables::listing::{Listing, without_comment};

/// Which differences are ignored.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance<'a> {
    /// Chains that a later sync removes.
    pub stale: &'a BTreeSet<String>,
    /// Whether rules that choose endpoints may have or lack their comments, which large clusters leave out.
    pub comments: bool,
}

pub fn compare(
    table: IptablesTable,
    desired: &Listing,
    actual: &Listing,
    tolerance: Tolerance<'_>,
) -> Vec<Difference> {
    let chain =
        |kind, name: &str| Difference::new(kind, KernelObject::SavedChain { table, chain: name.to_owned() });
    let rule = |kind, name: &str, rule: &str| {
        Difference::new(
            kind,
            KernelObject::SavedRule { table, chain: name.to_owned(), rule: rule.to_owned() },
        )
    };
    let mut all = Vec::new();
    for (name, rules) in &desired.0 {
        let Some(found) = actual.0.get(name) else {
            all.push(chain(DifferenceKind::Missing, name));
            all.extend(rules.iter().map(|text| rule(DifferenceKind::Missing, name, text)));
            continue;
        };
        let has_optional_comments = tolerance.comments
            && matches!(Purpose::of(name), Some(Purpose::Cluster | Purpose::Local | Purpose::Endpoint));
        let (missing, unexpected, is_reordered) = if has_optional_comments {
            rule_differences(rules, found, |rule| without_comment(rule))
        } else {
            rule_differences(rules, found, String::as_str)
        };
        all.extend(missing.into_iter().map(|text| rule(DifferenceKind::Missing, name, text)));
        // Kubelet writes KUBE-FIREWALL, too.
        if name != FIREWALL {
            all.extend(unexpected.into_iter().map(|text| rule(DifferenceKind::Unexpected, name, text)));
            all.extend(is_reordered.then(|| chain(DifferenceKind::Changed, name)));
        }
    }
    let is_unexpected = |name: &str| {
        table == IptablesTable::Nat
            && Purpose::of(name).is_some()
            && !desired.0.contains_key(name)
            && !tolerance.stale.contains(name)
    };
    for (name, rules) in actual.0.iter().filter(|(name, _)| is_unexpected(name)) {
        all.push(chain(DifferenceKind::Unexpected, name));
        all.extend(rules.iter().map(|text| rule(DifferenceKind::Unexpected, name, text)));
    }
    all
}

/// The missing rules, the unexpected rules, and whether, without any of these, the order differs. Rules are equal if their `key`
/// is; a rule may occur several times.
fn rule_differences<'a, K: Eq + std::hash::Hash>(
    desired: &'a [String],
    actual: &'a [String],
    key: impl Fn(&'a String) -> K,
) -> (Vec<&'a str>, Vec<&'a str>, bool) {
    if desired.iter().map(&key).eq(actual.iter().map(&key)) {
        return (Vec::new(), Vec::new(), false);
    }
    let mut left: HashMap<K, usize> = HashMap::new();
    actual.iter().for_each(|rule| *left.entry(key(rule)).or_default() += 1);
    let mut take = |rule: &&'a String| {
        let count = left.get_mut(&key(rule)).filter(|count| **count > 0);
        count.map(|count| *count -= 1).is_some()
    };
    let missing: Vec<&str> = desired.iter().filter(|rule| !take(rule)).map(String::as_str).collect();
    let unexpected: Vec<&str> = actual.iter().filter(|rule| take(rule)).map(String::as_str).collect();
    let is_reordered = missing.is_empty() && unexpected.is_empty();
    (missing, unexpected, is_reordered)
}
