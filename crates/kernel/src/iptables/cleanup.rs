//! Removes the rules of this mode when another mode takes over, or on `--cleanup`.

use std::sync::Arc;

use model::address::Family;
use plan::iptables::chains::{CANARY, IptablesTable, Jump, saved_chains};
use plan::iptables::cleanup::{Leftovers, leftovers};

use super::error::{Error, Errors};
use super::exec::{Exec, Programs};
use super::runner::Runner;

/// Removes jumps and chains of the iptables mode or of upstream's ipvs mode, including those of earlier releases. Not an error where
/// iptables is not installed, since then there are no rules either.
pub fn remove(family: Family, which: Leftovers) -> Result<(), Errors> {
    remove_through(Arc::new(Programs::default()), family, which)
}

/// The same with commands run by `exec`.
pub fn remove_through(exec: Arc<dyn Exec>, family: Family, which: Leftovers) -> Result<(), Errors> {
    let opened = Runner::open(exec, family).and_then(|runner| runner.check_presence().map(|()| runner));
    let runner = match opened {
        Ok(runner) => runner,
        Err(error) => {
            tracing::debug!(v = 2, ipFamily = %family, err = %error, "No usable iptables, nothing to clean up");
            return Ok(());
        }
    };
    let mut errors = Vec::new();
    let saved = [IptablesTable::Nat, IptablesTable::Filter].map(|table| (table, runner.save(table.name())));
    for (table, save) in &saved {
        let chains = save.as_ref().ok().map(|save| saved_chains(save).collect::<Vec<&str>>());
        let shared = Jump::own().chain([Jump::FORMER]).filter(|_| which == Leftovers::All);
        for jump in shared.chain(Jump::OF_IPVS).filter(|jump| jump.table == *table) {
            // No jump can lead to a chain that does not exist.
            if chains.as_ref().is_none_or(|chains| chains.contains(&jump.to)) {
                errors.extend(delete(&runner, &jump).err());
            }
        }
    }
    for (table, save) in saved {
        errors.extend(save.and_then(|save| remove_chains(&runner, which, table, &save)).err());
    }
    if which == Leftovers::All {
        // Fails if the chain does not exist.
        let _ = runner.delete_chain("mangle", CANARY);
    }
    if errors.is_empty() { Ok(()) } else { Err(Errors(errors)) }
}

fn delete(runner: &Runner, jump: &Jump) -> Result<(), Error> {
    match runner.delete_rule(jump.table.name(), jump.from, &jump.arguments()) {
        Err(error) if error.is_not_found() => Ok(()),
        result => result,
    }
}

fn remove_chains(runner: &Runner, which: Leftovers, table: IptablesTable, save: &str) -> Result<(), Error> {
    let found: Vec<&str> = saved_chains(save).collect();
    let restore = leftovers(which, table, &found);
    if restore.is_empty() {
        return Ok(());
    }
    runner.restore(table.name(), &restore.pieces().collect::<Vec<&str>>())
}
