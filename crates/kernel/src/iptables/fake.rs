//! Commands with scripted results, for tests of which commands we run and how we interpret their results.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use super::error::Error;
use super::exec::{Exec, Finished, command_line};

/// Clones share the record of commands. A command that is not in the script is not installed.
#[derive(Clone, Debug, Default)]
pub struct Script {
    results: BTreeMap<String, Finished>,
    ran: Arc<Mutex<Vec<String>>>,
    input: Arc<Mutex<String>>,
}

impl Script {
    pub fn prints(self, command: &str, stdout: &str) -> Self {
        self.finishes(command, Finished { stdout: stdout.into(), ..Finished::default() })
    }

    pub fn fails(self, command: &str, status: i32, stderr: &str) -> Self {
        self.finishes(command, Finished { status, stderr: stderr.into(), ..Finished::default() })
    }

    fn finishes(mut self, command: &str, finished: Finished) -> Self {
        self.results.insert(command.into(), finished);
        self
    }

    /// The command lines, in the order in which they ran.
    pub fn ran(&self) -> Vec<String> {
        self.ran.lock().unwrap().clone()
    }

    /// The input of all commands, concatenated.
    pub fn input(&self) -> String {
        self.input.lock().unwrap().clone()
    }
}

impl Exec for Script {
    fn run(&self, program: &str, arguments: &[&str], input: &[&str]) -> Result<Finished, Error> {
        let command = command_line(program, arguments);
        self.ran.lock().unwrap().push(command.clone());
        self.input.lock().unwrap().extend(input.iter().copied());
        let missing =
            || Error::CannotRun { command: command.clone(), source: io::ErrorKind::NotFound.into() };
        self.results.get(&command).cloned().ok_or_else(missing)
    }

    fn has_run(&self, _: u32) -> bool {
        false
    }
}
