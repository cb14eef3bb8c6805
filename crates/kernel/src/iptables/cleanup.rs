//! Removes the rules of this mode when another mode takes over, or on `--cleanup`.

use std::sync::Arc;

use model::address::Family;
use plan::iptables::chains::{CANARY, IptablesTable, Jump, saved_chains};
use plan::iptables::cleanup::leftovers;

use super::error::{Error, Errors};
use super::exec::{Exec, Programs};
use super::runner::Runner;

/// Removes our jumps and chains, including those of earlier releases and of upstream's ipvs mode. Not an error where iptables is not installed, since then
/// there are no rules either.
pub fn remove(family: Family) -> Result<(), Errors> {
    remove_through(Arc::new(Programs::default()), family)
}

/// The same with commands run by `exec`.
pub fn remove_through(exec: Arc<dyn Exec>, family: Family) -> Result<(), Errors> {
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
        for jump in Jump::own().chain([Jump::FORMER]).chain(Jump::OF_IPVS).filter(|jump| jump.table == *table)
        {
            // No jump can lead to a chain that does not exist.
            if chains.as_ref().is_none_or(|chains| chains.contains(&jump.to)) {
                errors.extend(delete(&runner, &jump).err());
            }
        }
    }
    for (table, save) in saved {
        errors.extend(save.and_then(|save| remove_chains(&runner, table, &save)).err());
    }
    // Fails if the chain does not exist.
    let _ = runner.delete_chain("mangle", CANARY);
    if errors.is_empty() { Ok(()) } else { Err(Errors(errors)) }
}

fn delete(runner: &Runner, jump: &Jump) -> Result<(), Error> {
    match runner.delete_rule(jump.table.name(), jump.from, &jump.arguments()) {
        Err(error) if error.is_not_found() => Ok(()),
        result => result,
    }
}

fn remove_chains(runner: &Runner, table: IptablesTable, save: &str) -> Result<(), Error> {
    let found: Vec<&str> = saved_chains(save).collect();
    let restore = leftovers(table, &found);
    if restore.is_empty() {
        return Ok(());
    }
    runner.restore(table.name(), &restore.pieces().collect::<Vec<&str>>())
}
