//! The jumps from the kernel's chains to ours, made where they are missing and left where they are.

use std::collections::{BTreeSet, HashSet};

use plan::iptables::chains::{IptablesTable, Jump, saved_chains};
use plan::iptables::restore::Restore;

use super::error::Error;
use super::runner::{Before, Runner};

/// Makes sure of all jumps, and returns the nat table as it was before, unless it could not be read.
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
    let (restore, in_doubt) = missing(&filter, &nat);
    if !restore.is_empty() {
        runner.restore_all(&restore.pieces().collect::<Vec<&str>>())?;
    }
    in_doubt.iter().try_for_each(|jump| ensure_one(runner, jump))?;
    Ok(Some(nat))
}

/// What makes the jumps that are not there, since nothing leads from the one chain to the other. Where something does, but
/// not as we would print it, some version may print it differently: whoever prints it has to say.
fn missing(filter: &str, nat: &str) -> (Restore, Vec<Jump>) {
    let mut restore = Restore::default();
    let mut in_doubt = Vec::new();
    for (table, save) in [(IptablesTable::Filter, filter), (IptablesTable::Nat, nat)] {
        let chains: HashSet<&str> = saved_chains(save).collect();
        let rules: HashSet<&str> = save.lines().filter(|line| !line.starts_with("-A KUBE-")).collect();
        let section = restore.section(table);
        let mut made = BTreeSet::new();
        for jump in Jump::ALL.into_iter().filter(|jump| jump.table == table) {
            let (from, to) = (format!("-A {} ", jump.from), format!(" -j {}", jump.to));
            if rules.contains(jump.saved().as_str()) {
                continue;
            }
            if rules.iter().any(|rule| rule.starts_with(&from) && rule.ends_with(&to)) {
                in_doubt.push(jump);
                continue;
            }
            if !chains.contains(jump.to) && made.insert(jump.to) {
                section.chain(jump.to);
            }
            section.insert(jump.from, 1, &jump.rule());
        }
    }
    (restore, in_doubt)
}

/// Whether all jumps of a chain are there. If nobody can tell, they are.
pub fn are_there(runner: &Runner, table: &str, chain: &str) -> bool {
    let jumps = Jump::ALL.into_iter().filter(|jump| jump.table.name() == table && jump.from == chain);
    jumps.into_iter().all(|jump| runner.has_rule(table, chain, &jump.arguments()).unwrap_or(true))
}

fn ensure_one(runner: &Runner, jump: &Jump) -> Result<(), Error> {
    let table = jump.table.name();
    let chain = runner.ensure_chain(table, jump.to)?;
    let ensured = runner.ensure_rule(table, jump.from, &jump.arguments()).map(drop);
    ensured.map_err(|error| with_doubt(error, chain))
}

/// That a chain could not be made is taken to mean that there is one; if that was wrong, it shows here.
fn with_doubt(error: Error, chain: Before) -> Error {
    match (error, chain) {
        (Error::Failed { command, status, said, lines }, Before::Present(why)) => {
            let said = format!("{} (its chain was not made: {})", said.trim(), why.trim());
            Error::Failed { command, status, said, lines }
        }
        (error, _) => error,
    }
}

/// Whether the chain has all jumps that begin there, by its rules as they are listed.
pub fn are_in(table: &str, chain: &str, listed: &str) -> bool {
    let begin_here = Jump::ALL.iter().filter(|jump| jump.table.name() == table && jump.from == chain);
    begin_here.map(Jump::saved).all(|jump| listed.lines().any(|line| line == jump))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_an_empty_machine_one_restore_makes_all() {
        let (restore, in_doubt) = missing("", "*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n");
        let text = restore.to_string();
        assert_eq!(text.lines().filter(|line| line.starts_with("-I")).count(), 14, "{text}");
        assert_eq!(text.matches(":KUBE-SERVICES - [0:0]\n").count(), 2, "once for each table");
        assert!(in_doubt.is_empty());
    }

    #[test]
    fn what_is_there_is_left_alone() {
        let saved = |table: IptablesTable| {
            let jumps = Jump::ALL.into_iter().filter(|jump| jump.table == table);
            let chains = jumps.clone().map(|jump| format!(":{} - [0:0]\n", jump.to));
            let rules = jumps.map(|jump| format!("{}\n", jump.saved()));
            format!("*{}\n{}{}COMMIT\n", table.name(), chains.collect::<String>(), rules.collect::<String>())
        };
        let (filter, nat) = (saved(IptablesTable::Filter), saved(IptablesTable::Nat));
        let (restore, in_doubt) = missing(&filter, &nat);
        assert!(restore.is_empty() && in_doubt.is_empty(), "{restore} {in_doubt:?}");

        let unseen = Jump::ALL[3];
        let (restore, in_doubt) = missing(&filter.replace(&unseen.saved(), ""), &nat);
        assert_eq!(restore.to_string().matches("-I ").count(), 1, "{restore}");
        assert!(!restore.to_string().contains(":KUBE-") && in_doubt.is_empty(), "{restore} {in_doubt:?}");

        let otherwise = unseen.saved().replace("-m comment", "-m  comment");
        let (restore, in_doubt) = missing(&filter.replace(&unseen.saved(), &otherwise), &nat);
        assert!(restore.is_empty());
        assert_eq!(in_doubt, [unseen], "it may only look different");
    }

    #[test]
    fn a_chain_is_complete_when_all_its_jumps_are_listed() {
        let jumps: String = Jump::ALL.map(|jump| jump.saved() + "\n").concat();
        assert!(are_in("nat", "OUTPUT", &jumps) && are_in("filter", "INPUT", &jumps));
        assert!(!are_in("nat", "OUTPUT", "-P OUTPUT ACCEPT\n"));
        assert!(are_in("nat", "INPUT", ""), "none begins there");
    }
}
