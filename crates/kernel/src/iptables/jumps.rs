//! The jumps from the built-in chains to ours: creates those that are missing, and leaves the others where they are.

use std::collections::{BTreeSet, HashSet};

use plan::iptables::chains::{IptablesTable, Jump, saved_chains};
use plan::iptables::restore::Restore;

use super::error::Error;
use super::runner::{Before, Runner};

/// Creates the jumps that are missing, and returns the nat table as it was before. `None` if it could not be read.
pub fn ensure(runner: &Runner) -> Result<Option<String>, Error> {
    let saved = [IptablesTable::Filter, IptablesTable::Nat].map(|table| runner.save(table.name()));
    let [filter, nat] = match saved {
        [Ok(filter), Ok(nat)] => [filter, nat],
        [Err(error), _] | [_, Err(error)] => {
            tracing::warn!(ipFamily = %runner.family(), err = %error, "Failed to execute iptables-save: stale chains will not be deleted");
            Jump::ALL.iter().try_for_each(|jump| ensure_one(runner, jump))?;
            return Ok(None);
        }
    };
    let (restore, uncertain) = missing(&filter, &nat);
    if !restore.is_empty() {
        runner.restore_all(&restore.pieces().collect::<Vec<&str>>())?;
    }
    uncertain.iter().try_for_each(|jump| ensure_one(runner, jump))?;
    Ok(Some(nat))
}

/// The restore that creates jumps between chains where no rule leads from one to the other, and the jumps that `-C` has to check:
/// there a rule leads to our chain, but some versions may print our jump differently.
fn missing(filter: &str, nat: &str) -> (Restore, Vec<Jump>) {
    let mut restore = Restore::default();
    let mut uncertain = Vec::new();
    for (table, save) in [(IptablesTable::Filter, filter), (IptablesTable::Nat, nat)] {
        let chains: HashSet<&str> = saved_chains(save).collect();
        let rules: HashSet<&str> = save.lines().filter(|line| !line.starts_with("-A KUBE-")).collect();
        let section = restore.section(table);
        let mut created = BTreeSet::new();
        for jump in Jump::ALL.into_iter().filter(|jump| jump.table == table) {
            let (from, to) = (format!("-A {} ", jump.from), format!(" -j {}", jump.to));
            if rules.contains(jump.saved().as_str()) {
                continue;
            }
            if rules.iter().any(|rule| rule.starts_with(&from) && rule.ends_with(&to)) {
                uncertain.push(jump);
                continue;
            }
            if !chains.contains(jump.to) && created.insert(jump.to) {
                section.chain(jump.to);
            }
            section.insert(jump.from, 1, &jump.rule());
        }
    }
    (restore, uncertain)
}

/// Whether a chain has all jumps that begin there, as `-C` finds. A jump that cannot be checked counts as present.
pub fn exist(runner: &Runner, table: &str, chain: &str) -> bool {
    let jumps = Jump::ALL.into_iter().filter(|jump| jump.table.name() == table && jump.from == chain);
    jumps.into_iter().all(|jump| runner.has_rule(table, chain, &jump.arguments()).unwrap_or(true))
}

fn ensure_one(runner: &Runner, jump: &Jump) -> Result<(), Error> {
    let table = jump.table.name();
    let chain = runner.ensure_chain(table, jump.to)?;
    let ensured = runner.ensure_rule(table, jump.from, &jump.arguments()).map(drop);
    ensured.map_err(|error| with_chain_output(error, chain))
}

/// If `-N` fails we assume that the chain exists. If that was wrong, inserting the jump fails, and the error has to include why
/// `-N` failed.
fn with_chain_output(error: Error, chain: Before) -> Error {
    match (error, chain) {
        (Error::Failed { command, status, output, lines }, Before::Present(why)) => {
            let output = format!("{} (its chain was not created: {})", output.trim(), why.trim());
            Error::Failed { command, status, output, lines }
        }
        (error, _) => error,
    }
}

/// Whether a chain has all jumps that begin there, by the listing of its rules.
pub fn are_listed(table: &str, chain: &str, listed: &str) -> bool {
    let begin_here = Jump::ALL.iter().filter(|jump| jump.table.name() == table && jump.from == chain);
    begin_here.map(Jump::saved).all(|jump| listed.lines().any(|line| line == jump))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_restore_creates_all_jumps_in_empty_tables() {
        let (restore, uncertain) = missing("", "*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n");
        let text = restore.to_string();
        assert_eq!(text.lines().filter(|line| line.starts_with("-I")).count(), 14, "{text}");
        assert_eq!(text.matches(":KUBE-SERVICES - [0:0]\n").count(), 2, "once for each table");
        assert!(uncertain.is_empty());
    }

    #[test]
    fn existing_jumps_are_left_alone() {
        let saved = |table: IptablesTable| {
            let jumps = Jump::ALL.into_iter().filter(|jump| jump.table == table);
            let chains = jumps.clone().map(|jump| format!(":{} - [0:0]\n", jump.to));
            let rules = jumps.map(|jump| format!("{}\n", jump.saved()));
            format!("*{}\n{}{}COMMIT\n", table.name(), chains.collect::<String>(), rules.collect::<String>())
        };
        let (filter, nat) = (saved(IptablesTable::Filter), saved(IptablesTable::Nat));
        let (restore, uncertain) = missing(&filter, &nat);
        assert!(restore.is_empty() && uncertain.is_empty(), "{restore} {uncertain:?}");

        let missing_jump = Jump::ALL[3];
        let (restore, uncertain) = missing(&filter.replace(&missing_jump.saved(), ""), &nat);
        assert_eq!(restore.to_string().matches("-I ").count(), 1, "{restore}");
        assert!(!restore.to_string().contains(":KUBE-") && uncertain.is_empty(), "{restore} {uncertain:?}");

        let otherwise = missing_jump.saved().replace("-m comment", "-m  comment");
        let (restore, uncertain) = missing(&filter.replace(&missing_jump.saved(), &otherwise), &nat);
        assert!(restore.is_empty());
        assert_eq!(uncertain, [missing_jump], "it may be the same jump, printed differently");
    }

    #[test]
    fn a_chain_is_complete_when_all_its_jumps_are_listed() {
        let jumps: String = Jump::ALL.map(|jump| jump.saved() + "\n").concat();
        assert!(are_listed("nat", "OUTPUT", &jumps) && are_listed("filter", "INPUT", &jumps));
        assert!(!are_listed("nat", "OUTPUT", "-P OUTPUT ACCEPT\n"));
        assert!(are_listed("nat", "INPUT", ""), "no jump begins there");
    }
}
