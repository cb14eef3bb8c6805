//! The commands `iptables`, `iptables-save` and `iptables-restore` of one family, as functions.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::address::Family;

use super::error::{Error, lines_around, refused_line, says_locked};
use super::exec::{Exec, Finished, command_line};
use super::locks::{self, Locks};
use super::version::{Features, Variant};

/// How many lines are quoted before and after one that is refused.
const CONTEXT: usize = 3;

/// What the commands of a family are called.
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

/// Runs them, one at a time.
#[derive(Debug)]
pub struct Runner {
    exec: Arc<dyn Exec>,
    family: Family,
    names: Names,
    features: Features,
    turn: Mutex<()>,
}

/// Whether something was there before it was asked for.
#[derive(Debug, PartialEq, Eq)]
pub enum Before {
    Absent,
    /// With what the command said to that.
    Present(String),
}

impl Runner {
    /// Asks for the version, and for nothing else.
    pub fn open(exec: Arc<dyn Exec>, family: Family) -> Result<Self, Error> {
        let names = Names::of(family);
        let features = Features::detect(&*exec, names)?;
        Ok(Self { exec, family, names, features, turn: Mutex::default() })
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

    /// Whether a process that changed rules is or lately was one of ours.
    pub fn has_run(&self, process: u32) -> bool {
        self.exec.has_run(process)
    }

    /// An error if this family cannot be used on this machine.
    pub fn check_presence(&self) -> Result<(), Error> {
        self.list("nat", "POSTROUTING").map(drop)
    }

    pub fn ensure_chain(&self, table: &str, chain: &str) -> Result<Before, Error> {
        let _turn = self.turn();
        let finished = self.run(&["-N", chain, "-t", table])?;
        match finished.status {
            0 => Ok(Before::Absent),
            1 => Ok(Before::Present(finished.said())),
            _ => Err(self.refused(&["-N", chain, "-t", table], &finished)),
        }
    }

    pub fn flush_chain(&self, table: &str, chain: &str) -> Result<(), Error> {
        let _turn = self.turn();
        self.succeed(&["-F", chain, "-t", table]).map(drop)
    }

    pub fn delete_chain(&self, table: &str, chain: &str) -> Result<(), Error> {
        let _turn = self.turn();
        self.succeed(&["-X", chain, "-t", table]).map(drop)
    }

    /// The rules of a chain, as `iptables-save` would print them. An error if there is no such chain.
    pub fn list(&self, table: &str, chain: &str) -> Result<String, Error> {
        let _turn = self.turn();
        self.succeed(&["-S", chain, "-t", table])
    }

    /// An error that is a resource problem leaves the question open.
    pub fn chain_exists(&self, table: &str, chain: &str) -> Result<bool, Error> {
        match self.list(table, chain) {
            Ok(_) => Ok(true),
            Err(error) if error.is_resource_problem() => Err(error),
            Err(_) => Ok(false),
        }
    }

    /// Puts the rule in front of all others, unless the chain has it somewhere.
    pub fn ensure_rule(&self, table: &str, chain: &str, rule: &[&str]) -> Result<Before, Error> {
        let _turn = self.turn();
        if self.has_rule(table, chain, rule)? {
            return Ok(Before::Present(String::new()));
        }
        self.succeed(&[&["-I", chain, "-t", table], rule].concat())?;
        Ok(Before::Absent)
    }

    /// No error if there is no such rule.
    pub fn delete_rule(&self, table: &str, chain: &str, rule: &[&str]) -> Result<(), Error> {
        let _turn = self.turn();
        if self.has_rule(table, chain, rule)? {
            self.succeed(&[&["-D", chain, "-t", table], rule].concat())?;
        }
        Ok(())
    }

    /// What the table holds, in words.
    pub fn save(&self, table: &str) -> Result<String, Error> {
        let _turn = self.turn();
        self.saved(table)
    }

    /// Changes one table, and no other whatever the text says.
    pub fn restore(&self, table: &str, text: &[&str]) -> Result<(), Error> {
        self.feed(&["-T", table], text)
    }

    /// Changes all tables that the text names.
    pub fn restore_all(&self, text: &[&str]) -> Result<(), Error> {
        self.feed(&[], text)
    }

    fn feed(&self, which: &[&str], text: &[&str]) -> Result<(), Error> {
        let _turn = self.turn();
        let _locks = if self.features.restore_wait.is_empty() { Some(Locks::acquire()?) } else { None };
        let arguments = [self.features.restore_wait, which, &["--noflush", "--counters"]].concat();
        let finished = self.exec.run(self.names.restore, &arguments, text)?;
        if finished.status == 0 {
            return Ok(());
        }
        let said = said(&finished);
        let line = refused_line(&said).unwrap_or_default();
        let lines = lines_around(text.iter().copied(), line, CONTEXT);
        let command = command_line(self.names.restore, &arguments);
        Err(Error::Failed { command, status: finished.status, said, lines })
    }

    /// Whether the rule is there, wherever in the chain.
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
        // It takes no lock and knows no word for waiting.
        let arguments = ["-t", table];
        let finished = self.exec.run(self.names.save, &arguments, &[])?;
        // What somebody put there with `nft` may be beyond its words. It then prints nothing but that, and succeeds; an
        // empty table this is not.
        let is_beyond_words =
            finished.stdout.lines().any(|line| line.starts_with('#') && line.contains("is incompatible"));
        // It does not notice that it could not write. What is missing from half a table would be taken for gone: jumps
        // would be made twice, and chains emptied to be made.
        let says_something = finished.stdout.lines().any(|line| !line.is_empty() && !line.starts_with('#'));
        let is_whole = !says_something || finished.stdout.lines().any(|line| line == "COMMIT");
        if finished.status == 0 && !is_beyond_words && is_whole {
            return Ok(finished.stdout);
        }
        let command = command_line(self.names.save, &arguments);
        Err(Error::Failed { command, status: finished.status, said: said(&finished), lines: Vec::new() })
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
        Error::Failed { command, status: finished.status, said: said(finished), lines: Vec::new() }
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a command said, and who kept it from its work if that was a lock.
fn said(finished: &Finished) -> String {
    let said = finished.said();
    match says_locked(&said).then(locks::holder).flatten() {
        Some(holder) => {
            let lines: Vec<&str> = said.lines().map(str::trim).collect();
            format!("{} (it is held by {holder})", lines.join("; "))
        }
        None => said,
    }
}

/// For versions that cannot check: whether one of the chain's saved rules is made of the same words.
fn is_saved(save: &str, chain: &str, rule: &[&str]) -> bool {
    let split = |word: &str| -> Vec<String> {
        word.trim_matches('"').split_whitespace().map(|part| without_zeros(part.trim_matches('"'))).collect()
    };
    let wanted: Vec<String> = rule.iter().flat_map(|word| split(word)).collect();
    let start = format!("-A {chain} ");
    save.lines().filter_map(|line| line.strip_prefix(&start)).any(|line| {
        let found = split(line);
        found.len() == wanted.len() && wanted.iter().all(|word| found.contains(word))
    })
}

/// Marks are saved without the zeros that we write.
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
        Script::default().says("iptables --version", "iptables v1.8.9 (legacy)")
    }

    fn old(version: &str) -> Script {
        let script = Script::default().says("iptables --version", &format!("iptables v{version}"));
        script.fails("iptables-restore --version", 1, "")
    }

    // Upstream's TestIPTablesCommands and TestNewDualStack.
    #[test]
    fn a_family_is_present_if_its_nat_table_can_be_listed() {
        for (family, iptables) in [(Family::V4, "iptables"), (Family::V6, "ip6tables")] {
            let command = format!("{iptables} -w 5 -S POSTROUTING -t nat");
            let version = format!("{iptables} --version");
            let works = modern().says(&version, "v1.8.9").says(&command, "-P POSTROUTING ACCEPT");
            Runner::open(Arc::new(works.clone()), family).unwrap().check_presence().unwrap();
            assert_eq!(works.ran(), [version.clone(), command.clone()]);
            let broken = modern().says(&version, "v1.8.9").fails(&command, 3, "no such table");
            let error = Runner::open(Arc::new(broken), family).unwrap().check_presence().unwrap_err();
            assert_eq!(error.to_string(), format!("\"{command}\" ended with status 3: no such table"));
            let nothing = Runner::open(Arc::new(Script::default()), family);
            assert!(nothing.unwrap_err().is_missing());
        }
    }

    // Upstream's TestEnsureChainIPv4/IPv6.
    #[test]
    fn a_chain_is_made_or_was_there_before() {
        let command = "iptables -w 5 -N KUBE-A -t nat";
        let made = runner(&modern().says(command, ""));
        assert_eq!(made.ensure_chain("nat", "KUBE-A").unwrap(), Before::Absent);
        let exists = runner(&modern().fails(command, 1, "Chain already exists."));
        let before = Before::Present("Chain already exists.".into());
        assert_eq!(exists.ensure_chain("nat", "KUBE-A").unwrap(), before);
        let broken = runner(&modern().fails(command, 2, ""));
        assert!(broken.ensure_chain("nat", "KUBE-A").is_err());
    }

    // Upstream's TestFlushChain and TestDeleteChain.
    #[test]
    fn a_chain_is_flushed_and_deleted() {
        let script = modern().says("iptables -w 5 -F A -t nat", "").says("iptables -w 5 -X A -t filter", "");
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
    fn a_chain_exists_or_not_or_nobody_knows() {
        let command = "iptables -w 5 -S A -t mangle";
        assert!(runner(&modern().says(command, "-N A")).chain_exists("mangle", "A").unwrap());
        let absent = modern().fails(command, 1, "iptables: No chain/target/match by that name.");
        assert!(!runner(&absent).chain_exists("mangle", "A").unwrap());
        let blocked = modern().fails(command, 4, "Another app is currently holding the xtables lock.");
        assert!(runner(&blocked).chain_exists("mangle", "A").unwrap_err().is_contention());
    }

    // Upstream's TestEnsureRule* and TestDeleteRule*.
    #[test]
    fn a_rule_is_looked_for_before_it_is_inserted_or_deleted() {
        let rule = ["-m", "comment", "--comment", "two words", "-j", "B"];
        let of = |verb: &str| format!("iptables -w 5 {verb} A -t nat -m comment --comment two words -j B");
        let (check, insert, delete) = (&of("-C"), &of("-I"), &of("-D"));
        let ensure = |script: &Script| {
            runner(script).ensure_rule("nat", "A", &rule).map_err(|error| error.to_string())
        };
        let remove = |script: &Script| {
            runner(script).delete_rule("nat", "A", &rule).map_err(|error| error.to_string())
        };

        let present = modern().says(check, "").says(delete, "");
        assert_eq!(ensure(&present), Ok(Before::Present(String::new())));
        assert_eq!(remove(&present), Ok(()));
        assert_eq!(
            present.ran()[1..],
            [check.clone(), "iptables --version".into(), check.clone(), delete.clone()]
        );

        let absent = modern().fails(check, 1, "").says(insert, "");
        assert_eq!(ensure(&absent), Ok(Before::Absent));
        assert_eq!(remove(&absent), Ok(()));
        assert_eq!(absent.ran().last(), Some(check));

        let broken = modern().fails(check, 2, "what?");
        assert!(ensure(&broken).unwrap_err().contains("what?") && remove(&broken).is_err());
        assert!(ensure(&modern().fails(check, 1, "").fails(insert, 1, "no")).unwrap_err().contains("-I A"));
        assert!(remove(&modern().says(check, "").fails(delete, 1, "no")).unwrap_err().contains("-D A"));
    }

    // Upstream's TestCheckRuleWithoutCheckPresent/Absent.
    #[test]
    fn old_versions_are_checked_by_what_they_save() {
        let save = "*nat\n:A - [0:0]\n-A A -m comment --comment \"two words\" -m mark --mark 0x4000/0x4000 -j B\nCOMMIT\n";
        let script = old("1.4.9").says("iptables-save -t nat", save);
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
    fn a_save_is_what_was_printed_or_why_not() {
        let works = modern().says("iptables-save -t nat", "*nat\nCOMMIT\n");
        assert_eq!(runner(&works).save("nat").unwrap(), "*nat\nCOMMIT\n");
        let broken = modern().fails("iptables-save -t nat", 1, "why not");
        assert!(runner(&broken).save("nat").unwrap_err().to_string().ends_with("why not"));
        let half = modern().says("iptables-save -t nat", "# Generated\n*nat\n:A - [0:0]\n");
        assert!(runner(&half).save("nat").is_err(), "the end is missing");
        let nothing = modern().says("iptables-save -t nat", "# Generated\n");
        runner(&nothing).save("nat").expect("some versions print nothing of a table that is not there");
    }

    // Upstream's TestRestore*, TestRestoreAll* and their flag combinations.
    #[test]
    fn a_restore_waits_as_its_version_can() {
        let backported = Script::default()
            .says("iptables --version", "iptables v1.4.21")
            .says("iptables-restore --version", "iptables-restore v1.4.21");
        for (script, flags) in [(modern(), " -w 5"), (backported, " -w")] {
            let one = format!("iptables-restore{flags} -T nat --noflush --counters");
            let all = format!("iptables-restore{flags} --noflush --counters");
            let script = script.says(&one, "").says(&all, "");
            let runner = runner(&script);
            runner.restore("nat", &["*nat\n", "COMMIT\n"]).unwrap();
            runner.restore_all(&["*nat\n", "COMMIT\n"]).unwrap();
            assert_eq!(script.ran().split_off(script.ran().len() - 2), [one, all]);
            assert_eq!(script.fed(), "*nat\nCOMMIT\n*nat\nCOMMIT\n");
        }
    }

    #[test]
    fn a_refused_restore_quotes_the_lines_around() {
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
