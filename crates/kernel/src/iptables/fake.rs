//! Commands that answer from a script, for tests of what is run and what is made of the answers.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use super::error::Error;
use super::exec::{Exec, Finished, command_line};

/// Shared by its clones. A command that is not in it is not installed.
#[derive(Clone, Debug, Default)]
pub struct Script {
    answers: BTreeMap<String, Finished>,
    ran: Arc<Mutex<Vec<String>>>,
    fed: Arc<Mutex<String>>,
}

impl Script {
    pub fn says(self, command: &str, stdout: &str) -> Self {
        self.answers(command, Finished { stdout: stdout.into(), ..Finished::default() })
    }

    pub fn fails(self, command: &str, status: i32, stderr: &str) -> Self {
        self.answers(command, Finished { status, stderr: stderr.into(), ..Finished::default() })
    }

    fn answers(mut self, command: &str, finished: Finished) -> Self {
        self.answers.insert(command.into(), finished);
        self
    }

    /// The command lines, in the order in which they were run.
    pub fn ran(&self) -> Vec<String> {
        self.ran.lock().unwrap().clone()
    }

    /// All input, one after the other.
    pub fn fed(&self) -> String {
        self.fed.lock().unwrap().clone()
    }
}

impl Exec for Script {
    fn run(&self, program: &str, arguments: &[&str], input: &[&str]) -> Result<Finished, Error> {
        let command = command_line(program, arguments);
        self.ran.lock().unwrap().push(command.clone());
        self.fed.lock().unwrap().extend(input.iter().copied());
        let missing =
            || Error::CannotRun { command: command.clone(), source: io::ErrorKind::NotFound.into() };
        self.answers.get(&command).cloned().ok_or_else(missing)
    }

    fn has_run(&self, _: u32) -> bool {
        false
    }
}
