//! Errors of the iptables commands, which name the command.

use std::fmt;
use std::io;
use std::time::Duration;

/// Exit status of `iptables` if a resource, such as the lock, is not available at the moment.
const RESOURCE_PROBLEM: i32 = 4;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command is not installed, or may not be run.
    #[error("cannot run {command:?}, check that iptables is installed and found through PATH")]
    CannotRun { command: String, source: io::Error },
    #[error("{command:?} ended with status {status}: {}{}", output.trim(), Quoted(lines))]
    Failed { command: String, status: i32, output: String, lines: Vec<(usize, String)> },
    #[error("{command:?} did not end within {timeout:?} and was stopped")]
    TimedOut { command: String, timeout: Duration },
    #[error("{command:?} was killed by signal {signal}")]
    Killed { command: String, signal: i32 },
    /// Only with versions that are so old that we have to take their locks ourselves.
    #[error("cannot acquire the {which} iptables lock {name}{}", if is_held(source) { ": another process holds it" } else { "" })]
    Lock { which: &'static str, name: String, source: io::Error },
}

impl Error {
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::CannotRun { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// Whether another process held a lock. What the kernel holds has no part in such an error.
    pub fn is_contention(&self) -> bool {
        match self {
            Self::Lock { .. } => true,
            Self::Failed { output, .. } => reports_lock(output),
            Self::CannotRun { .. } | Self::TimedOut { .. } | Self::Killed { .. } => false,
        }
    }

    /// Whether the command read its input and refused it, so that it may accept another input.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Failed { .. }) && !self.is_contention()
    }

    /// Whether the error is about the match that counts packets.
    pub fn names_counters(&self) -> bool {
        matches!(self, Self::Failed { output, .. } if output.contains("nfacct"))
    }

    /// Whether the command could not do its work, rather than found that an object does not exist.
    pub fn is_resource_problem(&self) -> bool {
        match self {
            Self::Failed { status, .. } => *status == RESOURCE_PROBLEM,
            Self::CannotRun { .. } | Self::TimedOut { .. } | Self::Killed { .. } | Self::Lock { .. } => true,
        }
    }

    /// Whether the object to be deleted does not exist.
    pub fn is_not_found(&self) -> bool {
        const MESSAGES: [&str; 4] = [
            "No chain/target/match by that name",
            "No such file or directory",
            "does a matching rule exist",
            "does not exist",
        ];
        matches!(self, Self::Failed { output, .. } if MESSAGES.iter().any(|message| output.contains(message)))
    }
}

/// Whether another process holds the lock, rather than that the lock cannot be created.
fn is_held(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::AddrInUse)
}

/// Whether a command reports that another process holds the lock.
pub fn reports_lock(output: &str) -> bool {
    output.contains("xtables lock") || output.contains("xtables.lock")
}

/// The errors of an operation that went on after each of them.
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

/// The lines of the input around the refused one.
struct Quoted<'a>(&'a [(usize, String)]);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(number, line)| write!(f, " | line {number}: {line}"))
    }
}

/// The number of the line of the input that a restore refuses. Versions differ in how they report it, and the nft variant often
/// names the line after the refused one.
pub fn refused_line(output: &str) -> Option<usize> {
    output.split("line").skip(1).find_map(|after| {
        let number = after.strip_prefix(':').unwrap_or(after).strip_prefix(' ')?;
        let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    })
}

/// Line number `line` of the text with up to `around` lines before and after it, all with their numbers.
pub fn lines_around<'a>(
    text: impl Iterator<Item = &'a str>,
    line: usize,
    around: usize,
) -> Vec<(usize, String)> {
    if line == 0 {
        return Vec::new();
    }
    let range = line.saturating_sub(around)..=line.saturating_add(around);
    let numbered = text.flat_map(str::lines).zip(1..).filter(|(_, number)| range.contains(number));
    numbered.map(|(text, number)| (number, text.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refused_line_is_found_in_the_output_of_every_version() {
        for (output, line) in [
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
            assert_eq!(refused_line(output), line, "{output}");
        }
    }

    // Upstream's TestExtractLines.
    #[test]
    fn only_lines_that_exist_are_quoted() {
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
    fn an_error_names_the_command_and_quotes_the_refused_line() {
        let error = Error::Failed {
            command: "iptables-restore -w 5 --noflush --counters".into(),
            status: 1,
            output: "iptables-restore: line 2 failed\n".into(),
            lines: vec![(1, "*nat".into()), (2, "-X KUBE-A".into())],
        };
        assert_eq!(
            error.to_string(),
            "\"iptables-restore -w 5 --noflush --counters\" ended with status 1: iptables-restore: line 2 failed \
             | line 1: *nat | line 2: -X KUBE-A"
        );
    }
}
