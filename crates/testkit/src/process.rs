//! A process in a namespace that cannot outlive its parent, with its output in a log file.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};

use rustix::process::{Pid, Signal, kill_process};

use crate::namespace::Namespace;

/// A running process, killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `program` in `namespace` and appends its output to `log`.
    ///
    /// The process dies with the calling thread, which is what `PR_SET_PDEATHSIG` takes for the parent.
    pub fn start(namespace: &Namespace, program: &Path, arguments: &[String], log: &Path) -> Self {
        let output = File::options().create(true).append(true).open(log).unwrap();
        let child = Command::new("nsenter")
            .arg(format!("--net={}", namespace.path()))
            .args(["setpriv", "--pdeathsig", "KILL"])
            .arg(program)
            .args(arguments)
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap_or_else(|error| panic!("starting {}: {error}", program.display()));
        Self { child, log: log.into() }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The exit status, or `None` while the process runs.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap()).into_owned()
    }

    /// The last lines of the log.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
