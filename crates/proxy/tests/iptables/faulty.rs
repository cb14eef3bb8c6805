//! Commands of which some fail, and fake commands over a kernel made of maps.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kernel::iptables::{Error, Exec, Finished, Variant};
use model::address::Family;
use netlink::faults::Chance;
use plan::iptables::chains::IptablesTable;
use plan::iptables::listing::as_saved;

use crate::fake::Kernel;

/// What can go wrong with a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// It cannot start, because another process has its file open for writing, or because there is no memory.
    Unstarted,
    /// It fails without having changed anything.
    Refused,
    /// Another process holds the lock for longer than the command waits.
    Locked,
    /// It makes its changes and then fails.
    FailedAfterwards,
    /// It is killed before it has changed anything.
    Killed,
    /// It is killed after it has made its changes.
    KilledAfterwards,
    /// It hangs after it has changed the first table, and is stopped.
    TimedOut,
    /// It prints only the first part of the table, at least its name.
    HalfPrinted,
}

/// Runs the commands of another [`Exec`], of which some fail.
#[derive(Debug)]
pub struct Faulty {
    inner: Arc<dyn Exec>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    chance: Chance,
    /// The number of failures in a thousand commands.
    rate: usize,
    injected: BTreeMap<Fault, usize>,
}

impl Faulty {
    pub fn new(inner: Arc<dyn Exec>, seed: u64) -> Self {
        let state = State { chance: Chance::from_seed(seed), rate: 0, injected: BTreeMap::new() };
        Self { inner, state: Mutex::new(state) }
    }

    /// From now on, `rate` of a thousand commands fail.
    pub fn fail(&self, rate: usize) {
        self.state.lock().unwrap().rate = rate;
    }

    pub fn injected(&self) -> BTreeMap<Fault, usize> {
        self.state.lock().unwrap().injected.clone()
    }

    fn next_fault(&self, program: &str, arguments: &[&str]) -> Option<Fault> {
        use Fault::{
            FailedAfterwards, HalfPrinted, Killed, KilledAfterwards, Locked, Refused, TimedOut, Unstarted,
        };
        let possible: &[Fault] = if program.ends_with("-restore") {
            &[Unstarted, Refused, Locked, FailedAfterwards, Killed, KilledAfterwards, TimedOut]
        } else if program.ends_with("-save") {
            &[Unstarted, Refused, Killed, HalfPrinted]
        } else if arguments.contains(&"--version") || arguments.contains(&"-C") || arguments.contains(&"-S") {
            &[Unstarted, Killed]
        } else {
            &[Unstarted, Locked, Killed, KilledAfterwards]
        };
        let mut state = self.state.lock().unwrap();
        let rate = state.rate;
        if state.chance.below(1_000) >= rate {
            return None;
        }
        let fault = state.chance.one_of(possible)?;
        *state.injected.entry(fault).or_default() += 1;
        Some(fault)
    }
}

impl Exec for Faulty {
    fn run(&self, program: &str, arguments: &[&str], input: &[&str]) -> Result<Finished, Error> {
        let command = [&[program], arguments].concat().join(" ");
        let run = || self.inner.run(program, arguments, input);
        let failed = |status, stderr: String| Ok(Finished { status, stdout: String::new(), stderr });
        match self.next_fault(program, arguments) {
            None => run(),
            Some(Fault::Unstarted) => {
                Err(Error::CannotRun { command, source: io::ErrorKind::ExecutableFileBusy.into() })
            }
            Some(Fault::Refused) => failed(1, format!("{program}: line 2 failed")),
            Some(Fault::Locked) => failed(
                4,
                "Another app is currently holding the xtables lock; still 4s 0us time ahead".to_owned(),
            ),
            Some(Fault::FailedAfterwards) => {
                run()?;
                failed(1, format!("{program}: line 2 failed"))
            }
            Some(Fault::Killed) => Err(Error::Killed { command, signal: 9 }),
            Some(Fault::KilledAfterwards) => {
                run()?;
                Err(Error::Killed { command, signal: 9 })
            }
            Some(Fault::TimedOut) => {
                let text = input.concat();
                let first = text.split_inclusive("COMMIT\n").next().unwrap_or_default();
                self.inner.run(program, arguments, &[first])?;
                Err(Error::TimedOut { command, timeout: Duration::from_secs(1) })
            }
            Some(Fault::HalfPrinted) => {
                let mut finished = run()?;
                let lines = finished.stdout.lines().count();
                let kept = 2 + self.state.lock().unwrap().chance.below(lines.saturating_sub(4).max(1));
                finished.stdout =
                    finished.stdout.lines().take(kept).map(|line| format!("{line}\n")).collect();
                Ok(finished)
            }
        }
    }

    fn has_run(&self, process: u32) -> bool {
        self.inner.has_run(process)
    }
}

/// The commands of one family over a kernel made of maps. The tests that run with both ensure that it behaves as the real ones.
#[derive(Debug)]
pub struct Fake {
    variant: Variant,
    family: Family,
    pub kernel: Mutex<Kernel>,
    /// The states after each change since the last `take_states`.
    states: Mutex<Vec<Kernel>>,
}

impl Fake {
    pub fn new(variant: Variant, family: Family) -> Self {
        Self { variant, family, kernel: Mutex::new(Kernel::empty()), states: Mutex::default() }
    }

    pub fn take_states(&self) -> Vec<Kernel> {
        std::mem::take(&mut self.states.lock().unwrap())
    }

    fn save(&self, table: IptablesTable) -> String {
        let kernel = self.kernel.lock().unwrap();
        let mut text = format!("# Generated by iptables-save\n*{}\n", table.name());
        for (chain, rules) in kernel.table(table) {
            let policy = if chain.starts_with("KUBE-") { "-" } else { "ACCEPT" };
            writeln!(text, ":{chain} {policy} [0:0]").unwrap();
            assert!(rules.iter().all(|rule| !rule.contains('\n')));
        }
        for (chain, rules) in kernel.table(table) {
            for rule in rules {
                writeln!(text, "-A {chain} {}", as_saved(rule, self.family)).unwrap();
            }
        }
        text + "COMMIT\n# Completed\n"
    }

    fn restore(&self, text: &str) -> Finished {
        let mut kernel = self.kernel.lock().unwrap();
        let restored = kernel.restore(text);
        self.states.lock().unwrap().push(kernel.clone());
        match restored {
            Ok(()) => Finished::default(),
            Err(refused) => {
                failure(1, &format!("iptables-restore: line {} failed: {}", refused.0, refused.1))
            }
        }
    }

    fn change(&self, arguments: &[&str]) -> Finished {
        let [verb, chain, "-t", table, rule @ ..] = arguments else { panic!("{arguments:?}") };
        let quote = |word: &&str| if word.contains(' ') { format!("\"{word}\"") } else { (*word).to_owned() };
        let rule = rule.iter().map(quote).collect::<Vec<_>>().join(" ");
        let table = if *table == "nat" { IptablesTable::Nat } else { IptablesTable::Filter };
        let rules = self.kernel.lock().unwrap().table(table).get(*chain).cloned();
        let apply = |line: String| self.restore(&format!("*{}\n{line}\nCOMMIT\n", table.name()));
        match (*verb, rules) {
            ("-N", Some(_)) => failure(1, "iptables: Chain already exists."),
            ("-N", None) => apply(format!(":{chain} - [0:0]")),
            (_, None) => failure(1, "iptables: No chain/target/match by that name."),
            ("-S", Some(rules)) => {
                let lines = rules.iter().map(|rule| format!("-A {chain} {}\n", as_saved(rule, self.family)));
                Finished { stdout: lines.collect(), ..Finished::default() }
            }
            ("-C", Some(rules)) => {
                let has = rules.iter().any(|it| as_saved(it, self.family) == as_saved(&rule, self.family));
                if has { Finished::default() } else { failure(1, "iptables: Bad rule") }
            }
            ("-I", Some(_)) => apply(format!("-I {chain} 1 {rule}")),
            _ => panic!("{arguments:?}"),
        }
    }
}

fn failure(status: i32, stderr: &str) -> Finished {
    Finished { status, stderr: stderr.to_owned(), ..Finished::default() }
}

impl Exec for Fake {
    fn run(&self, program: &str, arguments: &[&str], input: &[&str]) -> Result<Finished, Error> {
        let arguments = arguments.strip_prefix(&["-w", "5"]).unwrap_or(arguments);
        Ok(match arguments {
            ["--version"] => {
                let variant = if self.variant == Variant::Nft { "nf_tables" } else { "legacy" };
                Finished { stdout: format!("{program} v1.8.9 ({variant})\n"), ..Finished::default() }
            }
            ["-t", "nat"] => Finished { stdout: self.save(IptablesTable::Nat), ..Finished::default() },
            ["-t", "filter"] => Finished { stdout: self.save(IptablesTable::Filter), ..Finished::default() },
            ["--noflush", "--counters"] => self.restore(&input.concat()),
            _ => self.change(arguments),
        })
    }

    fn has_run(&self, _: u32) -> bool {
        false
    }
}
