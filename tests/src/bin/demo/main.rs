//! `make demo`: kube-proxy at work on a node made of network namespaces, with real connections all the while.
//!
//! ```text
//!   client 192.0.2.200 -- node 192.0.2.11 -+- pod-a 10.244.0.5
//!                            kube-proxy    +- pod-b 10.244.0.6
//!                                          +- pod-c 10.244.0.7
//! ```
//!
//! Touches nothing outside these namespaces but a temporary folder, which it removes in the end.

mod cluster;
mod manifests;
mod network;
mod proxy;
mod report;
mod screen;
mod timeline;
mod traffic;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::cluster::DemoCluster;
use crate::report::DemoReport;
use crate::screen::Screen;
use crate::timeline::{Stop, Tempo, Timeline};

const USAGE: &str = "usage: demo [--quick | --stay]

  --quick   the same in a third of the time
  --stay    afterwards leave the proxy running to look around, until Ctrl-C";

/// The exit code that shells use for a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (tempo, stay) = match *words {
        [] => (Tempo::CALM, false),
        ["--quick"] => (Tempo::QUICK, false),
        ["--stay"] => (Tempo::CALM, true),
        [proxy::EXEC_ARGUMENT, namespace, parent, ref command @ ..] => {
            return proxy::exec_in_namespace(namespace, parent, command);
        }
        _ => return fail(USAGE),
    };
    if !rustix::process::geteuid().is_root() {
        return fail("demo: needs root, to make network namespaces; try: sudo make demo");
    }
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, stopped.clone()).expect("these signals can be caught");
    }
    // testkit panics on failure. Users need the reason, not the location in our code.
    let is_silent = stopped.clone();
    std::panic::set_hook(Box::new(move |panic| {
        if !is_silent.load(Ordering::Relaxed) {
            let reason = panic.payload_as_str().unwrap_or("unknown reason");
            eprintln!("demo: gave up: {reason}");
        }
    }));
    let outcome = catch_unwind(AssertUnwindSafe(|| run(tempo, stay, &stopped)));
    outcome.unwrap_or_else(|_| {
        if stopped.load(Ordering::Relaxed) { INTERRUPTED.into() } else { ExitCode::FAILURE }
    })
}

fn fail(line: &str) -> ExitCode {
    eprintln!("{line}");
    ExitCode::FAILURE
}

/// Leaves no namespace, process or file behind when it returns.
fn run(tempo: Tempo, stay: bool, stopped: &AtomicBool) -> ExitCode {
    let mut cluster = DemoCluster::new();
    let screen = Screen::stdout();
    println!("{}", screen.introduction(&proxy::flags(cluster.manifests.folder())));
    let mut timeline = Timeline::new(&mut cluster, tempo, screen, stopped);
    let outcome = timeline.run();
    let report = DemoReport::new(timeline.finish());
    // The terminal may have been resized.
    let screen = Screen::stdout();
    println!("{}", report.render(screen));
    let code = match outcome {
        Ok(proxy) => {
            if stay {
                let (folder, log) = (cluster.manifests.folder(), cluster.log_file());
                println!(
                    "{}",
                    screen.commands_to_try(folder, &log, &cluster.node().path(), &proxy::binary())
                );
                proxy.wait_until(stopped);
            }
            if report.is_success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(Stop::Interrupted) => INTERRUPTED.into(),
        Err(Stop::Failed(what)) => {
            println!("{}\n", screen.bad(&format!("Failed: {what}.")));
            ExitCode::FAILURE
        }
    };
    if code == ExitCode::FAILURE {
        println!("The last lines of kube-proxy's log:\n{}\n", cluster.last_log_lines(10));
    }
    drop(cluster);
    println!("Cleaned up: no process, namespace or file of the demo is left.");
    if code == ExitCode::SUCCESS && !stay {
        println!("To look around in it: make demo DEMO=--stay");
    }
    code
}
