//! What can go wrong between us and the commands, in words that name the command.

use std::fmt;
use std::io;
use std::time::Duration;

/// Exit status of `iptables` when it could not get what it needs for a moment, such as the lock.
const RESOURCE_PROBLEM: i32 = 4;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The commands are not installed, or not where we may run them.
    #[error("cannot run {command:?}, check that iptables is installed and found through PATH")]
    CannotRun { command: String, source: io::Error },
    #[error("{command:?} ended with status {status}: {}{}", said.trim(), Quoted(lines))]
    Failed { command: String, status: i32, said: String, lines: Vec<(usize, String)> },
    #[error("{command:?} did not end within {patience:?} and was stopped")]
    Stuck { command: String, patience: Duration },
    #[error("{command:?} was killed by signal {signal}")]
    Killed { command: String, signal: i32 },
    /// Only with versions so old that we have to take their locks ourselves.
    #[error("cannot acquire the {which} iptables lock {name}{}", if is_held(source) { ": another process holds it" } else { "" })]
    Lock { which: &'static str, name: String, source: io::Error },
}

impl Error {
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::CannotRun { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// Whether it may go better in a moment, and what the kernel holds is no part of the question.
    pub fn is_contention(&self) -> bool {
        match self {
            Self::Lock { .. } => true,
            Self::Failed { said, .. } => says_locked(said),
            Self::CannotRun { .. } | Self::Stuck { .. } | Self::Killed { .. } => false,
        }
    }

    /// Whether the command read what it was given and refused it, so that something else may be accepted.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Failed { .. }) && !self.is_contention()
    }

    /// Whether a refusal is for the match that feeds packet counters.
    pub fn names_counters(&self) -> bool {
        matches!(self, Self::Failed { said, .. } if said.contains("nfacct"))
    }

    /// Whether the command could not do its work for now, rather than found that something is not there.
    pub fn is_resource_problem(&self) -> bool {
        match self {
            Self::Failed { status, .. } => *status == RESOURCE_PROBLEM,
            Self::CannotRun { .. } | Self::Stuck { .. } | Self::Killed { .. } | Self::Lock { .. } => true,
        }
    }

    /// Whether what was to be deleted is not there.
    pub fn is_not_found(&self) -> bool {
        const WORDS: [&str; 4] = [
            "No chain/target/match by that name",
            "No such file or directory",
            "does a matching rule exist",
            "does not exist",
        ];
        matches!(self, Self::Failed { said, .. } if WORDS.iter().any(|words| said.contains(words)))
    }
}

/// Whether a lock was not to be had because another process has it, rather than because it can't be made.
fn is_held(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::AddrInUse)
}

/// Whether that is what a command says when another process holds the lock for too long.
pub fn says_locked(said: &str) -> bool {
    said.contains("xtables lock") || said.contains("xtables.lock")
}

/// Several things that went wrong on the way; the way was gone to its end.
#[derive(Debug)]
pub struct Errors(pub Vec<Error>);

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, error) in self.0.iter().enumerate() {
            let separator = if at == 0 { "" } else { "; " };
            write!(f, "{separator}{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Errors {}

/// The lines of the input around the one that was refused.
struct Quoted<'a>(&'a [(usize, String)]);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(number, line)| write!(f, " | line {number}: {line}"))
    }
}

/// The line of the input that a restore complains about. Each version has its own way to say it, and the nft variant
/// often names the line after the one it means.
pub fn refused_line(said: &str) -> Option<usize> {
    said.split("line").skip(1).find_map(|after| {
        let number = after.strip_prefix(':').unwrap_or(after).strip_prefix(' ')?;
        let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    })
}

/// The numbered lines of the text, up to `around` before and after that one.
pub fn lines_around<'a>(
    text: impl Iterator<Item = &'a str>,
    line: usize,
    around: usize,
) -> Vec<(usize, String)> {
    if line == 0 {
        return Vec::new();
    }
    let wanted = line.saturating_sub(around)..=line.saturating_add(around);
    let numbered = text.flat_map(str::lines).zip(1..).filter(|(_, number)| wanted.contains(number));
    numbered.map(|(text, number)| (number, text.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_names_the_line_in_its_own_way() {
        for (said, line) in [
            ("iptables-restore: line 3 failed", Some(3)),
            ("iptables-restore: line 51 failed\n", Some(51)),
            (
                "iptables-restore v1.8.9 (legacy): unknown option \"--bogus\"\nError occurred at line: 3\nTry ...",
                Some(3),
            ),
            (
                "v1.8.9 (nf_tables): \nline 12: CHAIN_DEL failed (Device or resource busy): chain KUBE-B",
                Some(12),
            ),
            ("Another app is currently holding the xtables lock", None),
            ("on the command line", None),
            ("", None),
        ] {
            assert_eq!(refused_line(said), line, "{said}");
        }
    }

    // Upstream's TestExtractLines.
    #[test]
    fn the_lines_around_one_are_those_that_exist() {
        let numbers = |line, around| {
            let lines = lines_around(["a\nb\nc\n", "d\ne\n"].into_iter(), line, around);
            lines.into_iter().map(|(number, text)| format!("{number}{text}")).collect::<String>()
        };
        for (line, around, want) in [
            (3, 0, "3c"),
            (3, 1, "2b3c4d"),
            (1, 1, "1a2b"),
            (5, 1, "4d5e"),
            (3, 9, "1a2b3c4d5e"),
            (9, 2, ""),
            (0, 3, ""),
        ] {
            assert_eq!(numbers(line, around), want, "{line} ± {around}");
        }
    }

    #[test]
    fn an_error_says_what_was_run_and_what_was_refused() {
        let error = Error::Failed {
            command: "iptables-restore -w 5 --noflush --counters".into(),
            status: 1,
            said: "iptables-restore: line 2 failed\n".into(),
            lines: vec![(1, "*nat".into()), (2, "-X KUBE-A".into())],
        };
        assert_eq!(
            error.to_string(),
            "\"iptables-restore -w 5 --noflush --counters\" ended with status 1: iptables-restore: line 2 failed \
             | line 1: *nat | line 2: -X KUBE-A"
        );
    }
}
