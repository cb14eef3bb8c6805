//! `make demo` succeeds, and leaves no process and no file behind.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Once;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tempfile::TempDir;
use testkit::wait::Deadline;
use watch::manifest::{Form, read};

/// The running demo, with a temporary folder of its own.
struct Demo {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
    folder: TempDir,
}

impl Demo {
    fn start() -> Self {
        build_proxy();
        let folder = TempDir::new().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_demo"))
            .arg("--quick")
            .env("TMPDIR", folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output, folder }
    }

    /// Reads the output until the proxy serves, and returns its pid.
    fn proxy_pid(&mut self) -> Pid {
        for line in self.output.by_ref().lines().map(Result::unwrap) {
            if let Some((_, rest)) = line.split_once("kube-proxy started as process ") {
                let pid = rest.split(',').next().unwrap().parse().unwrap();
                return Pid::from_raw(pid).unwrap();
            }
        }
        panic!("the proxy did not start");
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The rest of the output, and the exit code unless a signal ended it.
    fn finish(&mut self) -> (String, Option<i32>) {
        let mut text = String::new();
        self.output.read_to_string(&mut text).unwrap();
        (text, self.child.wait().unwrap().code())
    }

    /// The number of files in the temporary folder.
    fn files(&self) -> usize {
        std::fs::read_dir(self.folder.path()).unwrap().count()
    }
}

/// Builds kube-proxy beside the demo unless a current one is there: cargo builds no binary of another package for a test. A
/// test of the whole workspace has built it, possibly with other features, which will do.
fn build_proxy() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let demo = Path::new(env!("CARGO_BIN_EXE_demo"));
        if is_current(&demo.with_file_name("kube-proxy")).unwrap_or(false) {
            return;
        }
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--bin", "kube-proxy"]);
        cargo.args(if cfg!(debug_assertions) { &[][..] } else { &["--release"] });
        cargo.arg("--target-dir").arg(demo.ancestors().nth(2).unwrap());
        cargo.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        assert!(cargo.status().unwrap().success());
    });
}

/// Whether the binary is newer than all of its sources, which cargo lists in a file beside it.
fn is_current(binary: &Path) -> std::io::Result<bool> {
    let built = binary.metadata()?.modified()?;
    for source in std::fs::read_to_string(binary.with_extension("d"))?.split_whitespace().skip(1) {
        if Path::new(source).metadata()?.modified()? > built {
            return Ok(false);
        }
    }
    Ok(true)
}

#[test]
fn the_demo_loses_no_connection() {
    let mut demo = Demo::start();
    let (text, code) = demo.finish();
    assert_eq!(code, Some(0), "{text}");
    for (start, end) in [
        ("service  endpoint ", "update latency"),
        ("         by node port ", " 0"),
        ("dns      pod-c 10.244.0.7:5353 ", ""),
    ] {
        let found = text.lines().any(|line| line.starts_with(start) && line.ends_with(end));
        assert!(found, "no line {start:?} … {end:?} in\n{text}");
    }
    let row = |pod| text.lines().find(|line| line.contains(pod) && line.contains(":8080 ")).unwrap();
    assert!(row("pod-b").contains(" in ") && row("pod-b").contains(", out "), "{text}");
    assert!(row("pod-c").contains(" in "), "{text}");
    assert!(text.contains(" 0 failed; "), "{text}");
    assert!(text.lines().all(|line| line.len() <= 80 || line.contains("--manifests")), "{text}");
    assert_eq!(demo.files(), 0);
}

#[test]
fn ctrl_c_ends_the_demo_and_the_proxy_with_it() {
    let mut demo = Demo::start();
    let proxy = demo.proxy_pid();
    demo.signal(Signal::INT);
    let (text, code) = demo.finish();
    assert_eq!(code, Some(130), "{text}");
    assert!(text.contains("Cleaned up"), "{text}");
    assert!(test_kill_process(proxy).is_err(), "the proxy still runs");
    assert_eq!(demo.files(), 0);
}

#[test]
fn the_proxy_does_not_outlive_a_demo_that_is_killed() {
    let mut demo = Demo::start();
    let proxy = demo.proxy_pid();
    demo.signal(Signal::KILL);
    demo.finish();
    let mut deadline = Deadline::after(Duration::from_secs(30));
    // Gone, or a zombie that its parent has not waited for.
    while std::fs::read(format!("/proc/{}/cmdline", proxy.as_raw_nonzero())).is_ok_and(|it| !it.is_empty()) {
        assert!(!deadline.has_passed(), "the proxy still runs");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn every_example_is_valid() {
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/demo")).unwrap() {
        let path = file.unwrap().path();
        let content = read(&std::fs::read(&path).unwrap(), Form::Yaml, &[]);
        let content = content.unwrap_or_else(|problem| panic!("{path:?}: {problem}"));
        assert!(content.refused.is_empty() && content.foreign.is_empty(), "{path:?}: {content:?}");
        assert!(!content.objects.is_empty(), "{path:?}");
    }
}
