//! Runs a program to its end, in the network namespace of the calling thread.
//!
//! Input and output lie in memory files, not in pipes: nobody waits for anybody, and a program that takes a lock before
//! it reads its input does not hold it while we write.

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

/// Longer than anything should take; it only keeps a program that hangs from hanging us.
const PATIENCE: Duration = Duration::from_secs(5 * 60);
/// How long a program that was asked to stop may take before it is made to.
const GRACE: Duration = Duration::from_secs(10);
/// Processes that are remembered as ours: more than can run before somebody hears of what the first did.
const REMEMBERED: usize = 64;

/// Runs programs.
pub trait Exec: fmt::Debug + Send + Sync {
    /// An error if it could not be run to its end, however it ended then.
    fn run(&self, program: &str, arguments: &[&str], input: &[&str]) -> Result<Finished, Error>;

    /// Whether the process is or lately was one of ours.
    fn has_run(&self, process: u32) -> bool;
}

/// What a program left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Finished {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    /// Everything it said, whereto ever.
    pub fn said(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}

/// The machine's own programs.
#[derive(Debug)]
pub struct Programs {
    /// Where they are; by default wherever `PATH` finds them.
    folder: Option<PathBuf>,
    patience: Duration,
    recent: Mutex<VecDeque<u32>>,
}

impl Default for Programs {
    fn default() -> Self {
        Self { folder: None, patience: PATIENCE, recent: Mutex::default() }
    }
}

impl Programs {
    /// Those of one folder and no others.
    pub fn of(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()), ..Self::default() }
    }

    #[cfg(test)]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    fn start(&self, program: &str, arguments: &[&str], files: [&File; 3]) -> io::Result<Child> {
        let path = self.folder.as_ref().map_or_else(|| program.into(), |folder| folder.join(program));
        let [stdin, stdout, stderr] = files.map(File::try_clone);
        let mut command = Command::new(path);
        command.args(arguments).stdin(Stdio::from(stdin?));
        command.stdout(Stdio::from(stdout?)).stderr(Stdio::from(stderr?));
        // Nobody may ask whose process it is before we know.
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let child = command.spawn()?;
        recent.truncate(REMEMBERED - 1);
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
        let ended_in_time = match ends_within(&mut child, self.patience) {
            Ok(ended) => ended,
            // Nobody may be left at work on the rules that we know nothing of.
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
            return Err(Error::Stuck { command: command(), patience: self.patience });
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

/// As a person would type it, but for quotes.
pub fn command_line(program: &str, arguments: &[&str]) -> String {
    [&[program], arguments].concat().join(" ")
}

fn memory_file() -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC;
    // Some machines want it said that nobody will execute it, older kernels do not know the word.
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
    if ends_within(child, GRACE)? { Ok(()) } else { child.kill() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(program: &str, arguments: &[&str], input: &[&str]) -> Result<Finished, Error> {
        Programs::default().run(program, arguments, input)
    }

    #[test]
    fn input_output_and_status_are_kept_apart() {
        let got = run("sh", &["-c", "cat; echo bad >&2; exit 3"], &["a", "b\n"]).unwrap();
        assert_eq!(got, Finished { status: 3, stdout: "ab\n".into(), stderr: "bad\n".into() });
        assert_eq!(got.said(), "ab\nbad\n");
    }

    #[test]
    fn more_than_a_pipe_holds_goes_in_and_out() {
        let much = "0123456789abcde\n".repeat(100_000);
        assert_eq!(run("cat", &[], &[&much]).unwrap().stdout, much);
    }

    #[test]
    fn what_cannot_be_run_is_told_from_what_fails() {
        let missing = run("no-such-program", &[], &[]).unwrap_err();
        assert!(missing.is_missing(), "{missing}");
        let killed = run("sh", &["-c", "kill -9 $$"], &[]).unwrap_err();
        assert!(matches!(killed, Error::Killed { signal: 9, .. }), "{killed}");
    }

    #[test]
    fn a_program_that_hangs_is_stopped() {
        let hasty = Programs::default().with_patience(Duration::from_millis(50));
        let stuck = hasty.run("sleep", &["60"], &[]).unwrap_err();
        assert!(matches!(stuck, Error::Stuck { .. }), "{stuck}");
    }

    #[test]
    fn processes_are_remembered_for_a_while() {
        let programs = Programs::default();
        let first: u32 = programs.run("sh", &["-c", "echo $$"], &[]).unwrap().stdout.trim().parse().unwrap();
        assert!(programs.has_run(first) && !programs.has_run(1));
        for _ in 0..REMEMBERED {
            programs.run("true", &[], &[]).unwrap();
        }
        assert!(!programs.has_run(first));
    }
}
