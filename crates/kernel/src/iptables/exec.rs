//! Runs a program until it exits, in the network namespace of the calling thread.
//!
//! Input and output are memory files, not pipes. So neither side waits for the other, and a program that takes a lock before it
//! reads its input does not hold it while we write.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use super::error::Error;

/// Longer than any command should take, so that only a program that hangs is stopped.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// How long a program may take to exit after SIGTERM before it gets SIGKILL.
const KILL_DELAY: Duration = Duration::from_secs(10);
/// The number of processes that are remembered as ours: more than can run before we receive the notification of what the first
/// one changed.
const MAX_RECENT: usize = 64;

/// Runs programs.
pub trait Exec: fmt::Debug + Send + Sync {
    /// Returns when the program has exited, with any status. An error if it did not start, or did not exit by itself.
    fn run(&self, program: &str, arguments: &[&str], input: &[&str]) -> Result<Finished, Error>;

    /// Whether this process was started by us and still runs, or has exited recently.
    fn has_run(&self, process: u32) -> bool;
}

/// The exit status and output of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Finished {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    /// Standard output, then standard error.
    pub fn output(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}

/// Runs the programs of this machine.
#[derive(Debug)]
pub struct Programs {
    /// The folder of the programs. `None` to search `PATH`.
    folder: Option<PathBuf>,
    timeout: Duration,
    /// The ids of processes that we have started, newest first; at most [`MAX_RECENT`].
    recent: Mutex<VecDeque<u32>>,
}

impl Default for Programs {
    fn default() -> Self {
        Self { folder: None, timeout: COMMAND_TIMEOUT, recent: Mutex::default() }
    }
}

impl Programs {
    /// The programs of one folder only.
    pub fn of(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()), ..Self::default() }
    }

    #[cfg(test)]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    fn start(&self, program: &str, arguments: &[&str], files: [&File; 3]) -> io::Result<Child> {
        let path = self.folder.as_ref().map_or_else(|| program.into(), |folder| folder.join(program));
        let [stdin, stdout, stderr] = files.map(File::try_clone);
        let mut command = Command::new(path);
        command.args(arguments).stdin(Stdio::from(stdin?));
        command.stdout(Stdio::from(stdout?)).stderr(Stdio::from(stderr?));
        // Locked before the process starts, so that `has_run` never misses a process that runs.
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let child = command.spawn()?;
        recent.truncate(MAX_RECENT - 1);
        recent.push_front(child.id());
        Ok(child)
    }
}

impl Exec for Programs {
    fn run(&self, program: &str, arguments: &[&str], input: &[&str]) -> Result<Finished, Error> {
        let command = || command_line(program, arguments);
        let cannot = |source| Error::CannotRun { command: command(), source };
        let mut stdin = memory_file().map_err(cannot)?;
        input.iter().try_for_each(|piece| stdin.write_all(piece.as_bytes())).map_err(cannot)?;
        stdin.rewind().map_err(cannot)?;
        let (stdout, stderr) = (memory_file().map_err(cannot)?, memory_file().map_err(cannot)?);

        let started = Instant::now();
        let mut child = self.start(program, arguments, [&stdin, &stdout, &stderr]).map_err(cannot)?;
        let ended_in_time = match ends_within(&mut child, self.timeout) {
            Ok(ended) => ended,
            // No process may go on to change rules after we have returned.
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(cannot(error));
            }
        };
        if !ended_in_time {
            stop(&mut child).map_err(cannot)?;
        }
        let status = child.wait().map_err(cannot)?;
        tracing::trace!(v = 4, command = command(), %status, elapsed = ?started.elapsed(), "Ran command");
        if !ended_in_time {
            return Err(Error::TimedOut { command: command(), timeout: self.timeout });
        }
        let Some(code) = status.code() else {
            let signal = status.signal().unwrap_or_default();
            return Err(Error::Killed { command: command(), signal });
        };
        let [stdout, stderr] = [stdout, stderr].map(content);
        Ok(Finished { status: code, stdout: stdout.map_err(cannot)?, stderr: stderr.map_err(cannot)? })
    }

    fn has_run(&self, process: u32) -> bool {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner).contains(&process)
    }
}

/// The command line, without quotes.
pub fn command_line(program: &str, arguments: &[&str]) -> String {
    [&[program], arguments].concat().join(" ")
}

fn memory_file() -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC;
    // Machines with `vm.memfd_noexec` require this flag; kernels before 6.3 do not know it.
    let fd = memfd_create("iptables", flags | MemfdFlags::NOEXEC_SEAL)
        .or_else(|_| memfd_create("iptables", flags))?;
    Ok(File::from(fd))
}

fn content(mut file: File) -> io::Result<String> {
    file.rewind()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

fn ends_within(child: &mut Child, time: Duration) -> io::Result<bool> {
    let end = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let deadline = Instant::now() + time;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
        match poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&left)) {
            Ok(ended) => return Ok(ended > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn stop(child: &mut Child) -> io::Result<()> {
    kill_process(Pid::from_child(child), Signal::TERM)?;
    if ends_within(child, KILL_DELAY)? { Ok(()) } else { child.kill() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(program: &str, arguments: &[&str], input: &[&str]) -> Result<Finished, Error> {
        Programs::default().run(program, arguments, input)
    }

    #[test]
    fn output_errors_and_status_are_separate() {
        let got = run("sh", &["-c", "cat; echo bad >&2; exit 3"], &["a", "b\n"]).unwrap();
        assert_eq!(got, Finished { status: 3, stdout: "ab\n".into(), stderr: "bad\n".into() });
        assert_eq!(got.output(), "ab\nbad\n");
    }

    #[test]
    fn input_and_output_may_be_larger_than_a_pipe() {
        let much = "0123456789abcde\n".repeat(100_000);
        assert_eq!(run("cat", &[], &[&much]).unwrap().stdout, much);
    }

    #[test]
    fn a_missing_program_and_a_killed_one_are_different_errors() {
        // In a folder that can be read, unlike those which the PATH of another user may list.
        let folder = Programs::of(env!("CARGO_MANIFEST_DIR"));
        let missing = folder.run("no-such-program", &[], &[]).unwrap_err();
        assert!(missing.is_missing(), "{missing}");
        let killed = run("sh", &["-c", "kill -9 $$"], &[]).unwrap_err();
        assert!(matches!(killed, Error::Killed { signal: 9, .. }), "{killed}");
    }

    #[test]
    fn a_program_that_hangs_is_stopped() {
        let programs = Programs::default().with_timeout(Duration::from_millis(50));
        let error = programs.run("sleep", &["60"], &[]).unwrap_err();
        assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    }

    #[test]
    fn recent_processes_are_remembered() {
        let programs = Programs::default();
        let first: u32 = programs.run("sh", &["-c", "echo $$"], &[]).unwrap().stdout.trim().parse().unwrap();
        assert!(programs.has_run(first) && !programs.has_run(1));
        for _ in 0..MAX_RECENT {
            programs.run("true", &[], &[]).unwrap();
        }
        assert!(!programs.has_run(first));
    }
}
