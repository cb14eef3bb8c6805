//! The commands `iptables`, `iptables-save` and `iptables-restore` of one family, as functions.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::address::Family;

use super::error::{Error, lines_around, refused_line, reports_lock};
use super::exec::{Exec, Finished, command_line};
use super::locks::{self, Locks};
use super::version::{Features, Variant};

/// The number of lines that are quoted before and after a refused one.
const QUOTED_LINES: usize = 3;

/// The names of the commands of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names {
    pub iptables: &'static str,
    pub save: &'static str,
    pub restore: &'static str,
}

impl Names {
    pub fn of(family: Family) -> Self {
        match family {
            Family::V4 => Self { iptables: "iptables", save: "iptables-save", restore: "iptables-restore" },
            Family::V6 => {
                Self { iptables: "ip6tables", save: "ip6tables-save", restore: "ip6tables-restore" }
            }
        }
    }
}

/// Runs the commands of one family, one at a time.
#[derive(Debug)]
pub struct Runner {
    exec: Arc<dyn Exec>,
    family: Family,
    names: Names,
    features: Features,
    /// Held while a command runs.
    running: Mutex<()>,
}

/// Whether an object existed before it was ensured.
#[derive(Debug, PartialEq, Eq)]
pub enum Before {
    Absent,
    /// With the output of the command that tried to create it.
    Present(String),
}

impl Runner {
    /// Runs no command but that which prints the version.
    pub fn open(exec: Arc<dyn Exec>, family: Family) -> Result<Self, Error> {
        let names = Names::of(family);
        let features = Features::detect(&*exec, names)?;
        Ok(Self { exec, family, names, features, running: Mutex::default() })
    }

    pub fn family(&self) -> Family {
        self.family
    }

    pub fn variant(&self) -> Variant {
        self.features.variant
    }

    pub fn has_random_fully(&self) -> bool {
        self.features.random_fully
    }

    /// Whether this process was started by us and still runs, or has exited recently.
    pub fn has_run(&self, process: u32) -> bool {
        self.exec.has_run(process)
    }

    /// An error if this family does not work on this machine.
    pub fn check_presence(&self) -> Result<(), Error> {
        self.list("nat", "POSTROUTING").map(drop)
    }

    pub fn ensure_chain(&self, table: &str, chain: &str) -> Result<Before, Error> {
        let _running = self.lock();
        let finished = self.run(&["-N", chain, "-t", table])?;
        match finished.status {
            0 => Ok(Before::Absent),
            1 => Ok(Before::Present(finished.output())),
            _ => Err(self.refused(&["-N", chain, "-t", table], &finished)),
        }
    }

    pub fn flush_chain(&self, table: &str, chain: &str) -> Result<(), Error> {
        let _running = self.lock();
        self.succeed(&["-F", chain, "-t", table]).map(drop)
    }

    pub fn delete_chain(&self, table: &str, chain: &str) -> Result<(), Error> {
        let _running = self.lock();
        self.succeed(&["-X", chain, "-t", table]).map(drop)
    }

    /// The rules of a chain, as `iptables-save` would print them. An error if there is no such chain.
    pub fn list(&self, table: &str, chain: &str) -> Result<String, Error> {
        let _running = self.lock();
        self.succeed(&["-S", chain, "-t", table])
    }

    /// An error if a resource problem kept the command from finding out.
    pub fn chain_exists(&self, table: &str, chain: &str) -> Result<bool, Error> {
        match self.list(table, chain) {
            Ok(_) => Ok(true),
            Err(error) if error.is_resource_problem() => Err(error),
            Err(_) => Ok(false),
        }
    }

    /// Inserts the rule before all others, unless the chain has it anywhere.
    pub fn ensure_rule(&self, table: &str, chain: &str, rule: &[&str]) -> Result<Before, Error> {
        let _running = self.lock();
        if self.has_rule(table, chain, rule)? {
            return Ok(Before::Present(String::new()));
        }
        self.succeed(&[&["-I", chain, "-t", table], rule].concat())?;
        Ok(Before::Absent)
    }

    /// Deletes the rule, if it exists.
    pub fn delete_rule(&self, table: &str, chain: &str, rule: &[&str]) -> Result<(), Error> {
        let _running = self.lock();
        if self.has_rule(table, chain, rule)? {
            self.succeed(&[&["-D", chain, "-t", table], rule].concat())?;
        }
        Ok(())
    }

    /// The table in the format of `iptables-save`.
    pub fn save(&self, table: &str) -> Result<String, Error> {
        let _running = self.lock();
        self.saved(table)
    }

    /// Changes one table and ignores what the text has for others.
    pub fn restore(&self, table: &str, text: &[&str]) -> Result<(), Error> {
        self.feed(&["-T", table], text)
    }

    /// Changes all tables that the text names.
    pub fn restore_all(&self, text: &[&str]) -> Result<(), Error> {
        self.feed(&[], text)
    }

    fn feed(&self, which: &[&str], text: &[&str]) -> Result<(), Error> {
        let _running = self.lock();
        let _locks = if self.features.restore_wait.is_empty() { Some(Locks::acquire()?) } else { None };
        let arguments = [self.features.restore_wait, which, &["--noflush", "--counters"]].concat();
        let finished = self.exec.run(self.names.restore, &arguments, text)?;
        if finished.status == 0 {
            return Ok(());
        }
        let output = explained(&finished);
        let line = refused_line(&output).unwrap_or_default();
        let lines = lines_around(text.iter().copied(), line, QUOTED_LINES);
        let command = command_line(self.names.restore, &arguments);
        Err(Error::Failed { command, status: finished.status, output, lines })
    }

    /// Whether the chain has the rule anywhere.
    pub fn has_rule(&self, table: &str, chain: &str, rule: &[&str]) -> Result<bool, Error> {
        if !self.features.check {
            return Ok(is_saved(&self.saved(table)?, chain, rule));
        }
        let arguments = [&["-C", chain, "-t", table], rule].concat();
        let finished = self.run(&arguments)?;
        match finished.status {
            0 => Ok(true),
            1 => Ok(false),
            _ => Err(self.refused(&arguments, &finished)),
        }
    }

    fn saved(&self, table: &str) -> Result<String, Error> {
        // It takes no lock, and has no option to wait.
        let arguments = ["-t", table];
        let finished = self.exec.run(self.names.save, &arguments, &[])?;
        // It cannot print a table with some rules that were added with `nft`. Then it prints only that the table is
        // incompatible, and succeeds. That must not pass for an empty table.
        let is_incompatible =
            finished.stdout.lines().any(|line| line.starts_with('#') && line.contains("is incompatible"));
        // It does not notice failed writes. If half a table passed for a whole one, we would add jumps twice and flush chains that
        // we mean to create.
        let has_content = finished.stdout.lines().any(|line| !line.is_empty() && !line.starts_with('#'));
        let is_whole = !has_content || finished.stdout.lines().any(|line| line == "COMMIT");
        if finished.status == 0 && !is_incompatible && is_whole {
            return Ok(finished.stdout);
        }
        let command = command_line(self.names.save, &arguments);
        Err(Error::Failed {
            command,
            status: finished.status,
            output: explained(&finished),
            lines: Vec::new(),
        })
    }

    fn succeed(&self, arguments: &[&str]) -> Result<String, Error> {
        let finished = self.run(arguments)?;
        if finished.status == 0 { Ok(finished.stdout) } else { Err(self.refused(arguments, &finished)) }
    }

    fn run(&self, arguments: &[&str]) -> Result<Finished, Error> {
        self.exec.run(self.names.iptables, &[self.features.wait, arguments].concat(), &[])
    }

    fn refused(&self, arguments: &[&str], finished: &Finished) -> Error {
        let command = command_line(self.names.iptables, &[self.features.wait, arguments].concat());
        Error::Failed { command, status: finished.status, output: explained(finished), lines: Vec::new() }
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The output of a command, with the holder of the lock if it reports one.
fn explained(finished: &Finished) -> String {
    let output = finished.output();
    match reports_lock(&output).then(locks::holder).flatten() {
        Some(holder) => {
            let lines: Vec<&str> = output.lines().map(str::trim).collect();
            format!("{} (it is held by {holder})", lines.join("; "))
        }
        None => output,
    }
}

/// Whether one of the chain's saved rules has the same words; for versions without `-C`.
fn is_saved(save: &str, chain: &str, rule: &[&str]) -> bool {
    let split = |word: &str| -> Vec<String> {
        word.trim_matches('"').split_whitespace().map(|part| without_zeros(part.trim_matches('"'))).collect()
    };
    let desired: Vec<String> = rule.iter().flat_map(|word| split(word)).collect();
    let start = format!("-A {chain} ");
    save.lines().filter_map(|line| line.strip_prefix(&start)).any(|line| {
        let found = split(line);
        found.len() == desired.len() && desired.iter().all(|word| found.contains(word))
    })
}

/// `iptables-save` prints marks without the leading zeros that we write.
fn without_zeros(word: &str) -> String {
    let Some(digits) = word.strip_prefix("0x") else { return word.to_owned() };
    format!("0x{}", digits.trim_start_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iptables::fake::Script;

    fn runner(script: &Script) -> Runner {
        Runner::open(Arc::new(script.clone()), Family::V4).unwrap()
    }

    fn modern() -> Script {
        Script::default().prints("iptables --version", "iptables v1.8.9 (legacy)")
    }

    fn old(version: &str) -> Script {
        let script = Script::default().prints("iptables --version", &format!("iptables v{version}"));
        script.fails("iptables-restore --version", 1, "")
    }

    // Upstream's TestIPTablesCommands and TestNewDualStack.
    #[test]
    fn a_family_is_present_if_its_nat_table_can_be_listed() {
        for (family, iptables) in [(Family::V4, "iptables"), (Family::V6, "ip6tables")] {
            let command = format!("{iptables} -w 5 -S POSTROUTING -t nat");
            let version = format!("{iptables} --version");
            let works = modern().prints(&version, "v1.8.9").prints(&command, "-P POSTROUTING ACCEPT");
            Runner::open(Arc::new(works.clone()), family).unwrap().check_presence().unwrap();
            assert_eq!(works.ran(), [version.clone(), command.clone()]);
            let broken = modern().prints(&version, "v1.8.9").fails(&command, 3, "no such table");
            let error = Runner::open(Arc::new(broken), family).unwrap().check_presence().unwrap_err();
            assert_eq!(error.to_string(), format!("\"{command}\" ended with status 3: no such table"));
            let nothing = Runner::open(Arc::new(Script::default()), family);
            assert!(nothing.unwrap_err().is_missing());
        }
    }

    // Upstream's TestEnsureChainIPv4/IPv6.
    #[test]
    fn ensuring_a_chain_reports_whether_it_existed() {
        let command = "iptables -w 5 -N KUBE-A -t nat";
        let created = runner(&modern().prints(command, ""));
        assert_eq!(created.ensure_chain("nat", "KUBE-A").unwrap(), Before::Absent);
        let exists = runner(&modern().fails(command, 1, "Chain already exists."));
        let before = Before::Present("Chain already exists.".into());
        assert_eq!(exists.ensure_chain("nat", "KUBE-A").unwrap(), before);
        let broken = runner(&modern().fails(command, 2, ""));
        assert!(broken.ensure_chain("nat", "KUBE-A").is_err());
    }

    // Upstream's TestFlushChain and TestDeleteChain.
    #[test]
    fn a_chain_is_flushed_and_deleted() {
        let script =
            modern().prints("iptables -w 5 -F A -t nat", "").prints("iptables -w 5 -X A -t filter", "");
        let runner = runner(&script.fails("iptables -w 5 -F B -t nat", 1, "").fails(
            "iptables -w 5 -X B -t nat",
            1,
            "",
        ));
        runner.flush_chain("nat", "A").unwrap();
        runner.delete_chain("filter", "A").unwrap();
        assert!(runner.flush_chain("nat", "B").is_err() && runner.delete_chain("nat", "B").is_err());
    }

    #[test]
    fn a_chain_exists_or_not_or_the_lock_hides_it() {
        let command = "iptables -w 5 -S A -t mangle";
        assert!(runner(&modern().prints(command, "-N A")).chain_exists("mangle", "A").unwrap());
        let absent = modern().fails(command, 1, "iptables: No chain/target/match by that name.");
        assert!(!runner(&absent).chain_exists("mangle", "A").unwrap());
        let blocked = modern().fails(command, 4, "Another app is currently holding the xtables lock.");
        assert!(runner(&blocked).chain_exists("mangle", "A").unwrap_err().is_contention());
    }

    // Upstream's TestEnsureRule* and TestDeleteRule*.
    #[test]
    fn a_rule_is_checked_before_it_is_inserted_or_deleted() {
        let rule = ["-m", "comment", "--comment", "two words", "-j", "B"];
        let of = |verb: &str| format!("iptables -w 5 {verb} A -t nat -m comment --comment two words -j B");
        let (check, insert, delete) = (&of("-C"), &of("-I"), &of("-D"));
        let ensure = |script: &Script| {
            runner(script).ensure_rule("nat", "A", &rule).map_err(|error| error.to_string())
        };
        let remove = |script: &Script| {
            runner(script).delete_rule("nat", "A", &rule).map_err(|error| error.to_string())
        };

        let present = modern().prints(check, "").prints(delete, "");
        assert_eq!(ensure(&present), Ok(Before::Present(String::new())));
        assert_eq!(remove(&present), Ok(()));
        assert_eq!(
            present.ran()[1..],
            [check.clone(), "iptables --version".into(), check.clone(), delete.clone()]
        );

        let absent = modern().fails(check, 1, "").prints(insert, "");
        assert_eq!(ensure(&absent), Ok(Before::Absent));
        assert_eq!(remove(&absent), Ok(()));
        assert_eq!(absent.ran().last(), Some(check));

        let broken = modern().fails(check, 2, "what?");
        assert!(ensure(&broken).unwrap_err().contains("what?") && remove(&broken).is_err());
        assert!(ensure(&modern().fails(check, 1, "").fails(insert, 1, "no")).unwrap_err().contains("-I A"));
        assert!(remove(&modern().prints(check, "").fails(delete, 1, "no")).unwrap_err().contains("-D A"));
    }

    // Upstream's TestCheckRuleWithoutCheckPresent/Absent.
    #[test]
    fn rules_of_old_versions_are_checked_in_the_saved_table() {
        let save = "*nat\n:A - [0:0]\n-A A -m comment --comment \"two words\" -m mark --mark 0x4000/0x4000 -j B\nCOMMIT\n";
        let script = old("1.4.9").prints("iptables-save -t nat", save);
        let has = |chain: &str, rule: &[&str]| runner(&script).has_rule("nat", chain, rule).unwrap();
        let rule = [
            "-m",
            "comment",
            "--comment",
            "two words",
            "-m",
            "mark",
            "--mark",
            "0x00004000/0x4000",
            "-j",
            "B",
        ];
        assert!(has("A", &rule));
        assert!(!has("A", &rule[..8]), "the saved rule has more words");
        assert!(!has("B", &rule));
        assert!(!has("A", &[&rule[..9], &["C"]].concat()));
    }

    // Upstream's TestSaveIntoIPv4/IPv6.
    #[test]
    fn a_save_is_the_printed_table_or_an_error() {
        let works = modern().prints("iptables-save -t nat", "*nat\nCOMMIT\n");
        assert_eq!(runner(&works).save("nat").unwrap(), "*nat\nCOMMIT\n");
        let broken = modern().fails("iptables-save -t nat", 1, "why not");
        assert!(runner(&broken).save("nat").unwrap_err().to_string().ends_with("why not"));
        let half = modern().prints("iptables-save -t nat", "# Generated\n*nat\n:A - [0:0]\n");
        assert!(runner(&half).save("nat").is_err(), "the end is missing");
        let nothing = modern().prints("iptables-save -t nat", "# Generated\n");
        runner(&nothing).save("nat").expect("some versions print nothing for a table that does not exist");
    }

    // Upstream's TestRestore*, TestRestoreAll* and their flag combinations.
    #[test]
    fn a_restore_waits_for_the_lock_if_its_version_can() {
        let backported = Script::default()
            .prints("iptables --version", "iptables v1.4.21")
            .prints("iptables-restore --version", "iptables-restore v1.4.21");
        for (script, flags) in [(modern(), " -w 5"), (backported, " -w")] {
            let one = format!("iptables-restore{flags} -T nat --noflush --counters");
            let all = format!("iptables-restore{flags} --noflush --counters");
            let script = script.prints(&one, "").prints(&all, "");
            let runner = runner(&script);
            runner.restore("nat", &["*nat\n", "COMMIT\n"]).unwrap();
            runner.restore_all(&["*nat\n", "COMMIT\n"]).unwrap();
            assert_eq!(script.ran().split_off(script.ran().len() - 2), [one, all]);
            assert_eq!(script.input(), "*nat\nCOMMIT\n*nat\nCOMMIT\n");
        }
    }

    #[test]
    fn a_refused_restore_quotes_the_lines_around_the_error() {
        let command = "iptables-restore -w 5 --noflush --counters";
        let script = modern().fails(command, 1, "iptables-restore: line 3 failed\n");
        let error = runner(&script).restore_all(&["*nat\n", "-X A\n-X B\n", "COMMIT\n"]).unwrap_err();
        let text = error.to_string();
        assert!(
            text.ends_with("line 3 failed | line 1: *nat | line 2: -X A | line 3: -X B | line 4: COMMIT"),
            "{text}"
        );
    }
}
