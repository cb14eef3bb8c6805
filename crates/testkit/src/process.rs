//! A process that cannot outlive whoever started it, and what it says.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};

use rustix::process::{Pid, Signal, kill_process};

use crate::namespace::Namespace;

/// Killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a program in this namespace. What it says goes to the file.
    ///
    /// It dies with the calling thread, for that is what the kernel takes for the parent.
    pub fn start(namespace: &Namespace, program: &Path, arguments: &[String], log: &Path) -> Self {
        let said = File::options().create(true).append(true).open(log).unwrap();
        let child = Command::new("nsenter")
            .arg(format!("--net={}", namespace.path()))
            .args(["setpriv", "--pdeathsig", "KILL"])
            .arg(program)
            .args(arguments)
            .stdout(said.try_clone().unwrap())
            .stderr(said)
            .spawn()
            .unwrap_or_else(|error| panic!("starting {}: {error}", program.display()));
        Self { child, log: log.into() }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Its status, if it has ended by itself.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap()).into_owned()
    }

    /// The end of what it said.
    pub fn last_words(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It fails if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
