//! The book is correct: its links have targets, and its commands print what it shows.
//!
//! The commands of a block marked `console,demo` run on a node made of network namespaces, in a folder with a copy of
//! `examples`; each chapter has its own node. In their output:
//!
//! * a line `…` stands for any lines, and `…` at the end of a line for the rest of it;
//! * the head of a log line is not compared;
//! * in a block marked `numbers`, any number may stand for any other;
//! * in a block marked `unordered`, elements may come in any order.
//!
//! A block marked `start` holds a command that keeps running: the lines below it must appear in its output in that order,
//! with anything in between. Its output goes to `kube-proxy.log`, its pid to `kube-proxy.pid`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    reason = "tests"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use testkit::lab::Lab;
use testkit::wait::Deadline;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(20);
const ANY: &str = "…";

fn chapters() -> Vec<PathBuf> {
    let files = fs::read_dir(Path::new(ROOT).join("docs/src")).unwrap();
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|it| it == "md"));
    paths.sort();
    paths
}

#[test]
fn commands_print_what_the_book_says() {
    let mut run = 0;
    for chapter in chapters() {
        let text = fs::read_to_string(&chapter).unwrap();
        let blocks: Vec<_> = Block::all(&text).into_iter().filter(|block| block.is("demo")).collect();
        if blocks.is_empty() {
            continue;
        }
        let mut node = Node::new();
        for block in blocks {
            let place = format!("{}:{}", chapter.file_name().unwrap().display(), block.line);
            run += block.commands().len();
            node.perform(&block, &place);
        }
    }
    assert!(run > 10, "only {run} commands were found in the book");
}

/// A fenced block of a chapter.
struct Block<'a> {
    labels: Vec<&'a str>,
    line: usize,
    lines: Vec<&'a str>,
}

impl<'a> Block<'a> {
    fn all(text: &'a str) -> Vec<Self> {
        let mut blocks: Vec<Self> = Vec::new();
        let mut inside = false;
        for (number, line) in text.lines().enumerate() {
            match line.strip_prefix("```") {
                Some(_) if inside => inside = false,
                Some(labels) => {
                    inside = true;
                    blocks.push(Self {
                        labels: labels.split(',').collect(),
                        line: number + 1,
                        lines: Vec::new(),
                    });
                }
                None if inside => blocks.last_mut().unwrap().lines.push(line),
                None => {}
            }
        }
        blocks
    }

    fn is(&self, label: &str) -> bool {
        self.labels.contains(&label)
    }

    /// Each command with its continuation lines, and the output that the book shows.
    fn commands(&self) -> Vec<(String, Vec<&'a str>)> {
        let mut commands: Vec<(String, Vec<&str>)> = Vec::new();
        for line in &self.lines {
            match (line.strip_prefix("$ "), commands.last_mut()) {
                (Some(command), _) => commands.push((command.to_owned(), Vec::new())),
                (None, Some((command, _))) if command.ends_with('\\') => {
                    command.pop();
                    command.push_str(line.trim_start());
                }
                (None, Some((_, output))) => output.push(line),
                (None, None) => panic!("line {}: a block starts with a command", self.line),
            }
        }
        commands
    }
}

/// A node, and the working folder of its user.
struct Node {
    lab: Lab,
    folder: TempDir,
    started: Vec<Child>,
}

impl Node {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let examples = Path::new(ROOT).join("examples");
        let copied = Command::new("cp").arg("-r").arg(examples).arg(folder.path()).status().unwrap();
        assert!(copied.success());
        Self { lab: Lab::new(), folder, started: Vec::new() }
    }

    fn perform(&mut self, block: &Block<'_>, place: &str) {
        for (command, expected) in block.commands() {
            if block.is("start") {
                self.start(&command, &expected, place);
                continue;
            }
            // Changes take a moment to reach the kernel.
            let mut deadline = Deadline::after(OUTPUT_TIMEOUT);
            loop {
                let printed = self.run(&command);
                let comparison = if block.is("unordered") {
                    compare_unordered(&expected, &printed)
                } else {
                    compare(&expected, &printed, block.is("numbers"))
                };
                match comparison {
                    Ok(()) => break,
                    Err(_) if !deadline.has_passed() && is_repeatable(&command) => {
                        std::thread::sleep(Duration::from_millis(100));
                    }
                    Err(why) => panic!("{place}: {command}\n{why}\nprinted:\n{printed}"),
                }
            }
        }
    }

    fn command(&self, line: &str) -> Command {
        let binary = Path::new(env!("CARGO_BIN_EXE_kube-proxy"));
        let path = format!(
            "{}:{}:/usr/sbin:/sbin",
            binary.parent().unwrap().display(),
            std::env::var("PATH").unwrap()
        );
        let mut bash = Command::new("bash");
        bash.args(["-c", line]).current_dir(self.folder.path()).env("PATH", path).env("TZ", "UTC");
        bash
    }

    fn run(&self, line: &str) -> String {
        let mut bash = self.command(&format!("{{ {line}\n}} 2>&1"));
        let child = self.lab.network.node.spawn(bash.stdin(Stdio::null()).stdout(Stdio::piped())).unwrap();
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
    }

    fn start(&mut self, line: &str, expected: &[&str], place: &str) {
        // One proxy at a time, except for one that `timeout` limits.
        if !line.starts_with("timeout") {
            self.stop();
        }
        let log =
            self.folder.path().join(if line.starts_with("timeout") { "other.log" } else { "kube-proxy.log" });
        let file = fs::File::create(&log).unwrap();
        let mut bash = self.command(&format!("exec {line}"));
        bash.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        let child = self.lab.network.node.spawn(&mut bash).unwrap();
        fs::write(self.folder.path().join("kube-proxy.pid"), child.id().to_string()).unwrap();
        self.started.push(child);
        let mut deadline = Deadline::after(OUTPUT_TIMEOUT);
        loop {
            let printed = fs::read_to_string(&log).unwrap();
            let mut lines = printed.lines();
            let missing = expected.iter().find(|want| !lines.any(|line| matches(want, line, true)));
            let Some(missing) = missing else { return };
            assert!(!deadline.has_passed(), "{place}: {line}\ndoes not print {missing}\nprinted:\n{printed}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn stop(&mut self) {
        for mut child in self.started.drain(..) {
            // `timeout` forwards SIGTERM to its child; it cannot forward SIGKILL.
            let _ = kill_process(Pid::from_child(&child), Signal::TERM);
            let _ = child.wait();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Whether a command only reads, so that it may run again until it prints what the book shows.
fn is_repeatable(command: &str) -> bool {
    ["nft list", "iptables-save", "kube-proxy verify", "curl", "grep", "cat"]
        .iter()
        .any(|word| command.starts_with(word))
}

fn compare(expected: &[&str], printed: &str, numbers: bool) -> Result<(), String> {
    let mut printed = printed.lines().peekable();
    let mut expected = expected.iter().peekable();
    while let Some(want) = expected.next() {
        if **want == *ANY {
            let Some(next) = expected.peek() else { return Ok(()) };
            while printed.next_if(|line| !matches(next, line, numbers)).is_some() {}
            continue;
        }
        match printed.next() {
            Some(line) if matches(want, line, numbers) => {}
            other => return Err(format!("expected: {want}\nfound:    {}", other.unwrap_or("nothing more"))),
        }
    }
    printed.next().map_or(Ok(()), |line| Err(format!("expected: nothing more\nfound:    {line}")))
}

/// Compares elements and lines in any order.
fn compare_unordered(expected: &[&str], printed: &str) -> Result<(), String> {
    let parts = |text: &str| {
        let text = text.replace("elements = {", "\n").replace(['}', ','], "\n");
        let mut parts: Vec<_> =
            text.lines().map(|line| line.trim().to_owned()).filter(|it| !it.is_empty()).collect();
        parts.sort();
        parts
    };
    let (want, found) = (parts(&expected.join("\n")), parts(printed));
    if want == found { Ok(()) } else { Err(format!("expected: {want:?}\nfound:    {found:?}")) }
}

fn matches(want: &str, line: &str, numbers: bool) -> bool {
    let plain = |text: &str| {
        let text = without_log_header(text.trim_end());
        if numbers { without_numbers(&text) } else { text }
    };
    match want.strip_suffix(ANY) {
        Some(start) => plain(line).starts_with(&plain(start)),
        None => plain(want) == plain(line),
    }
}

/// `I1116 03:44:08.123456   12345 run.rs:94] "Version info"` without time, pid and source line.
fn without_log_header(line: &str) -> String {
    let is_log = line.len() > 20
        && matches!(line.as_bytes()[0], b'I' | b'W' | b'E')
        && line.as_bytes()[1].is_ascii_digit();
    match line.split_once("] ") {
        Some((_, rest)) if is_log => format!("{} {rest}", &line[..1]),
        _ => line.to_owned(),
    }
}

fn without_numbers(line: &str) -> String {
    let mut text = String::new();
    for letter in line.chars() {
        match letter {
            '0'..='9' | '.' if text.ends_with('0') => {}
            '0'..='9' => text.push('0'),
            other => text.push(other),
        }
    }
    // Units of time, and padding of columns.
    text.replace("0µs", "0ms").replace("0s", "0ms").split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn every_link_has_a_target() {
    let summary = fs::read_to_string(Path::new(ROOT).join("docs/src/SUMMARY.md")).unwrap();
    let listed: BTreeSet<_> = links(&summary).into_iter().collect();
    let mut documents = chapters();
    for path in &documents {
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(name == "SUMMARY.md" || listed.contains(name), "docs/src/SUMMARY.md does not list {name}");
    }
    documents
        .extend(["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"].map(|name| Path::new(ROOT).join(name)));
    for path in documents {
        let text = fs::read_to_string(&path).unwrap();
        for link in links(&text) {
            if link.contains("://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            assert!(target.exists(), "{}: {link} does not exist", path.display());
            let found = anchor.is_empty() || anchors(&fs::read_to_string(&target).unwrap()).contains(anchor);
            assert!(found, "{}: no heading for {link}", path.display());
        }
    }
}

/// Link and image targets outside of code blocks.
fn links(text: &str) -> Vec<&str> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in text.lines() {
        inside ^= line.starts_with("```");
        if !inside {
            found.extend(line.split("](").skip(1).filter_map(|rest| rest.split(')').next()));
            found.extend(line.split("src=\"").skip(1).filter_map(|rest| rest.split('"').next()));
        }
    }
    found
}

/// The anchors of all headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let slug = |line: &str| {
        let line = line.trim_start_matches('#').trim().to_lowercase();
        let letters = line.chars().filter(|it| it.is_alphanumeric() || [' ', '-', '_'].contains(it));
        letters.collect::<String>().replace(' ', "-")
    };
    headings.map(slug).collect()
}

#[test]
fn comparison_ignores_only_what_the_block_allows() {
    let printed = "I1116 03:44:08.123456   12345 run.rs:94] \"Done\" elapsed=\"1.5ms\"\na 1\nb\nc\n";
    for (expected, numbers, fits) in [
        (
            &["I1201 00:00:00.000000       1 other.rs:1] \"Done\" elapsed=\"1.5ms\"", "a 1", "b", "c"][..],
            false,
            true,
        ),
        (
            &["I1201 00:00:00.000000       1 other.rs:1] \"Done\" elapsed=\"912µs\"", "a 2", "b", "c"],
            true,
            true,
        ),
        (
            &["I1201 00:00:00.000000       1 other.rs:1] \"Done\" elapsed=\"912µs\"", "a 1", "b", "c"],
            false,
            false,
        ),
        (&["…", "b", "c"], false, true),
        (&["…", "b"], false, false),
        (&["…", "b", "…"], false, true),
        (&["…", "d", "…"], false, false),
        (&["…", "a…", "b", "c"], false, true),
        (
            &["E1201 00:00:00.000000       1 other.rs:1] \"Done\" elapsed=\"1.5ms\"", "a 1", "b", "c"],
            false,
            false,
        ),
    ] {
        assert_eq!(compare(expected, printed, numbers).is_ok(), fits, "{expected:?}");
    }
}
