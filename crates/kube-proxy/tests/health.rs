//! What probes are told while something is in the way, and that nothing outside keeps the proxy from its work for good.
#![allow(clippy::unwrap_used, clippy::panic)]

mod process;

use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use netlink::Family;
use netlink::nftables::{Batch, Connection, Ownership, Table};
use netlink::testing::{in_fresh_netns, run};
use process::{Proxy, answer, probe, service, slice, wait_until};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, prlimit};
use tempfile::TempDir;

fn folder() -> TempDir {
    let dir = TempDir::new().unwrap();
    write_endpoint(dir.path(), "10.244.0.5");
    dir
}

fn write_endpoint(folder: &Path, endpoint: &str) {
    let text = format!("{}---\n{}", service("web", "10.96.0.10"), slice("web", endpoint));
    fs::write(folder.join("web.yaml"), text).unwrap();
}

fn serves(endpoint: &str) -> bool {
    run("nft list map ip kube-proxy endpoints").contains(endpoint)
}

#[test]
fn a_table_that_another_process_owns_makes_it_not_ready_and_is_taken_when_that_one_lets_go() {
    in_fresh_netns(|| {
        run("ip link set lo up");
        let dir = folder();
        let mut owner = Connection::open().unwrap();
        let mut batch = Batch::new(Family::Ipv4, "kube-proxy");
        batch.add_table(&Table { ownership: Ownership::OwnedPersistent, comment: None });
        owner.commit(&batch).unwrap();

        // So long that only a retry of its own can succeed within this test.
        let mut proxy = Proxy::start(dir.path(), &["--iptables-sync-period=1h"]);
        let ours = fs::read_to_string("/proc/self/comm").unwrap();
        let named = format!("another running process, {} (pid {})", ours.trim(), std::process::id());
        proxy.wait_for(&["\"nftables sync failed\"", "IPv4", "table ip kube-proxy", &named]);
        proxy.wait_for_pass("IPv6");
        assert_eq!(answer("/healthz"), 503, "there is no rule in one family");
        assert_eq!(answer("/livez"), 200, "to start it again would not help");

        drop(owner);
        proxy.wait_for_pass("IPv4");
        wait_until("it is ready", || probe("/healthz") == Some(200));
        assert!(serves("10.244.0.5 . 8080"));
    });
}

#[test]
fn a_sync_that_keeps_failing_shows_after_two_sync_periods() {
    in_fresh_netns(|| {
        run("ip link set lo up");
        let dir = folder();
        let mut owner = Connection::open().unwrap();
        let mut batch = Batch::new(Family::Ipv4, "kube-proxy");
        batch.add_table(&Table { ownership: Ownership::OwnedPersistent, comment: None });
        owner.commit(&batch).unwrap();
        let mut proxy = Proxy::start(dir.path(), &["--iptables-sync-period=2s"]);
        proxy.wait_for(&["\"nftables sync failed\"", "IPv4"]);
        wait_until("the failure shows", || probe("/livez") == Some(503));
        assert_eq!(answer("/healthz"), 503);
        drop(owner);
        wait_until("it is well again", || probe("/livez") == Some(200) && probe("/healthz") == Some(200));
    });
}

#[test]
fn idle_connections_keep_neither_probes_nor_changes_away() {
    // The second one can't be raised.
    for limits in ["--nofile=256:4096", "--nofile=256:256"] {
        in_fresh_netns(move || {
            run("ip link set lo up");
            let dir = folder();
            let mut command = Command::new("prlimit");
            command.args([limits, env!("CARGO_BIN_EXE_kube-proxy")]);
            let mut proxy = Proxy::run(command, dir.path(), &[]);
            proxy.wait_for_pass("IPv4");
            wait_until("it is ready", || probe("/healthz") == Some(200));
            let connect =
                |n: u16| TcpStream::connect((Ipv4Addr::LOCALHOST, [10256, 10249][usize::from(n % 2)]));
            // More than the proxy ever keeps open, fewer than a process may usually open.
            let idle: Vec<_> = (0..600).map(|n| connect(n).unwrap()).collect();
            assert_eq!(answer("/healthz"), 200, "{limits}");
            write_endpoint(dir.path(), "10.244.0.6");
            wait_until("the change is applied", || serves("10.244.0.6 . 8080"));
            drop(idle);
        });
    }
}

#[test]
fn a_manifest_that_could_not_be_read_for_lack_of_a_file_descriptor_is_read_later() {
    in_fresh_netns(|| {
        let dir = folder();
        let mut proxy = Proxy::start(dir.path(), &[]);
        proxy.wait_for_pass("IPv4");
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        let allow = |current| {
            prlimit(Some(proxy.pid()), Resource::Nofile, Rlimit { current: Some(current), maximum }).unwrap()
        };
        // Those of standard input and output, which are taken. With none at all not even `poll` would work.
        let before = allow(3);
        write_endpoint(dir.path(), "10.244.0.6");
        proxy.wait_for(&["Failed to read manifest", "web.yaml", "Too many open files"]);
        prlimit(Some(proxy.pid()), Resource::Nofile, before).unwrap();
        wait_until("the change is applied", || serves("10.244.0.6 . 8080"));
    });
}

#[test]
fn the_number_of_open_files_is_raised() {
    in_fresh_netns(|| {
        let dir = folder();
        let mut command = Command::new("prlimit");
        command.args(["--nofile=256:4096", env!("CARGO_BIN_EXE_kube-proxy")]);
        let mut proxy = Proxy::run(command, dir.path(), &[]);
        proxy.wait_for_pass("IPv4");
        let limits = fs::read_to_string(format!("/proc/{}/limits", proxy.child.id())).unwrap();
        let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
        assert_eq!(files.split_whitespace().nth(3), Some("4096"), "{files}");
    });
}

#[test]
fn signals_without_a_meaning_do_nothing() {
    in_fresh_netns(|| {
        let dir = folder();
        let mut proxy = Proxy::start(dir.path(), &[]);
        proxy.wait_for_pass("IPv4");
        for signal in [Signal::USR1, Signal::USR2, Signal::ALARM] {
            proxy.signal(signal);
        }
        write_endpoint(dir.path(), "10.244.0.6");
        proxy.wait_for_pass("IPv4");
        assert!(proxy.child.try_wait().unwrap().is_none());
        proxy.signal(Signal::TERM);
        assert!(proxy.child.wait().unwrap().code().is_none(), "ended by the signal");
    });
}

/// The legacy iptables under the names that every program expects.
fn legacy_programs(folder: &Path) -> io::Result<String> {
    for name in ["iptables", "ip6tables"] {
        for what in ["", "-save", "-restore"] {
            symlink(format!("/usr/sbin/{name}-legacy{what}"), folder.join(format!("{name}{what}")))?;
        }
    }
    Ok(format!("{}:{}", folder.display(), std::env::var("PATH").unwrap()))
}

#[test]
fn a_lock_that_is_held_at_the_start_is_reported_as_that_and_by_whom() {
    in_fresh_netns(|| {
        let (dir, programs) = (folder(), TempDir::new().unwrap());
        let lock = programs.path().join("xtables.lock");
        let held = fs::File::create(&lock).unwrap();
        flock(&held, FlockOperation::LockExclusive).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_kube-proxy"));
        command.env("PATH", legacy_programs(programs.path()).unwrap()).env("XTABLES_LOCKFILE", &lock);
        let mut proxy = Proxy::run(command, dir.path(), &["--proxy-mode=iptables"]);
        let holder = format!("(pid {})", std::process::id());
        proxy.wait_for(&["Error running ProxyServer", "another process holds its lock", &holder]);
        assert_eq!(proxy.child.wait().unwrap().code(), Some(1));
    });
}
