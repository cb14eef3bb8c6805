//! `make demo`: kube-proxy at work on a node made of network namespaces, with real connections all the while.
//!
//! ```text
//!   client 192.0.2.200 -- node 192.0.2.11 -+- pod-a 10.244.0.5
//!                            kube-proxy    +- pod-b 10.244.0.6
//!                                          +- pod-c 10.244.0.7
//! ```
//!
//! Touches nothing outside these namespaces but a temporary folder, and that is gone in the end, as is the proxy.

mod manifests;
mod network;
mod proxy;
mod report;
mod screen;
mod stage;
mod timeline;
mod traffic;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::report::Report;
use crate::screen::Screen;
use crate::stage::Stage;
use crate::timeline::{Stop, Tempo, Timeline};

const USAGE: &str = "usage: demo [--quick | --stay]

  --quick   the same in a third of the time
  --stay    afterwards leave the proxy running to look around, until Ctrl-C";

/// As a shell says that Ctrl-C ended something.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (tempo, stay) = match *words {
        [] => (Tempo::CALM, false),
        ["--quick"] => (Tempo::QUICK, false),
        ["--stay"] => (Tempo::CALM, true),
        [proxy::INSIDE, namespace, parent, ref command @ ..] => {
            return proxy::become_it(namespace, parent, command);
        }
        _ => return complain(USAGE),
    };
    if !rustix::process::geteuid().is_root() {
        return complain("demo: needs root, to make network namespaces; try: sudo make demo");
    }
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, stopped.clone()).expect("these signals can be caught");
    }
    // The lab tells by panicking what it can't do; a visitor wants the reason and not the place in our code.
    let hush = stopped.clone();
    std::panic::set_hook(Box::new(move |panic| {
        if !hush.load(Ordering::Relaxed) {
            let reason = panic.payload_as_str().unwrap_or("for an unknown reason");
            eprintln!("demo: gave up: {reason}");
        }
    }));
    let outcome = catch_unwind(AssertUnwindSafe(|| run(tempo, stay, &stopped)));
    outcome.unwrap_or_else(|_| {
        if stopped.load(Ordering::Relaxed) { INTERRUPTED.into() } else { ExitCode::FAILURE }
    })
}

fn complain(line: &str) -> ExitCode {
    eprintln!("{line}");
    ExitCode::FAILURE
}

/// Whatever it makes is gone when it returns.
fn run(tempo: Tempo, stay: bool, stopped: &AtomicBool) -> ExitCode {
    let mut stage = Stage::set();
    let screen = Screen::here();
    println!("{}", screen.introduction(&proxy::flags(stage.manifests.folder())));
    let mut timeline = Timeline::new(&mut stage, tempo, screen, stopped);
    let outcome = timeline.tell();
    let report = Report::new(timeline.end());
    // It may be another by now.
    let screen = Screen::here();
    println!("{}", report.on(screen));
    let code = match outcome {
        Ok(proxy) => {
            if stay {
                let (folder, log) = (stage.manifests.folder(), stage.log_file());
                println!("{}", screen.invitation(folder, &log, &stage.node().path(), &proxy::binary()));
                proxy.wait_until(stopped);
            }
            if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(Stop::Interrupted) => INTERRUPTED.into(),
        Err(Stop::Failed(what)) => {
            println!("{}\n", screen.bad(&format!("Failed: {what}.")));
            ExitCode::FAILURE
        }
    };
    if code == ExitCode::FAILURE {
        println!("The last lines of kube-proxy's log:\n{}\n", stage.last_log_lines(10));
    }
    drop(stage);
    println!("Cleaned up: no process, namespace or file of the demo is left.");
    if code == ExitCode::SUCCESS && !stay {
        println!("To look around in it: make demo DEMO=--stay");
    }
    code
}
