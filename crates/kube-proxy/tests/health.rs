//! Health while something blocks the proxy, and its recovery once the obstacle is gone.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;
use std::time::Duration;

use netlink::Family;
use netlink::nftables::{Batch, NftablesSocket, Ownership, Table};
use netlink::testing::{in_fresh_netns, run};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, prlimit};
use tempfile::{NamedTempFile, TempDir};
use testkit::lab_proxy::link_iptables;
use testkit::proxy::{StandaloneProxy, service_with_endpoints};
use testkit::wait::{TimeoutReader, eventually};

const KUBE_PROXY: &str = env!("CARGO_BIN_EXE_kube-proxy");

/// A folder of manifests with one Service, which also takes the log.
struct Folder {
    manifests: TempDir,
    log: NamedTempFile,
}

impl Folder {
    fn new() -> Self {
        let folder = Self { manifests: TempDir::new().unwrap(), log: NamedTempFile::new().unwrap() };
        folder.write_endpoint("10.244.0.5");
        folder
    }

    fn write_endpoint(&self, endpoint: &str) {
        let text = service_with_endpoints("web", "10.96.0.10", &[endpoint]);
        fs::write(self.manifests.path().join("web.yaml"), text).unwrap();
    }

    fn start(&self, flags: &[&str]) -> StandaloneProxy {
        self.start_command(Command::new(KUBE_PROXY), flags)
    }

    fn start_command(&self, command: Command, flags: &[&str]) -> StandaloneProxy {
        StandaloneProxy::start(command, self.manifests.path(), flags, self.log.path())
    }
}

/// The status code of the health server; `None` if it does not respond.
fn health(path: &str) -> Option<u16> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, 10256)).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
    let mut response = String::new();
    TimeoutReader(stream, Duration::from_secs(5)).read_to_string(&mut response).ok()?;
    response.split(' ').nth(1)?.parse().ok()
}

/// Waits until the health server responds, and returns the status code.
fn first_health(path: &str) -> u16 {
    let mut code = None;
    eventually("the health server responds", || {
        code = health(path);
        code.is_some()
    });
    code.unwrap()
}

fn serves(endpoint: &str) -> bool {
    run("nft list map ip kube-proxy endpoints").contains(endpoint)
}

#[test]
fn a_proxy_is_unready_while_another_process_owns_its_table_and_recovers_afterwards() {
    in_fresh_netns(|| {
        run("ip link set lo up");
        let folder = Folder::new();
        let mut owner = NftablesSocket::open().unwrap();
        let mut batch = Batch::new(Family::Ipv4, "kube-proxy");
        batch.add_table(&Table { ownership: Ownership::OwnedPersistent, comment: None });
        owner.commit(&batch).unwrap();

        // Only a retry can succeed within this test, not a periodic sync.
        let mut proxy = folder.start(&["--iptables-sync-period=1h"]);
        let ours = fs::read_to_string("/proc/self/comm").unwrap();
        let owner_name = format!("another running process, {} (pid {})", ours.trim(), std::process::id());
        proxy.wait_for(&["\"nftables sync failed\"", "IPv4", "table ip kube-proxy", &owner_name]);
        proxy.wait_for_sync("IPv6");
        assert_eq!(first_health("/healthz"), 503, "one family has no rules");
        assert_eq!(first_health("/livez"), 200, "a restart would not help");

        drop(owner);
        proxy.wait_for_sync("IPv4");
        eventually("the proxy is ready", || health("/healthz") == Some(200));
        assert!(serves("10.244.0.5 . 8080"));
    });
}

#[test]
fn a_sync_that_keeps_failing_makes_the_proxy_unhealthy_after_two_sync_periods() {
    in_fresh_netns(|| {
        run("ip link set lo up");
        let folder = Folder::new();
        let mut owner = NftablesSocket::open().unwrap();
        let mut batch = Batch::new(Family::Ipv4, "kube-proxy");
        batch.add_table(&Table { ownership: Ownership::OwnedPersistent, comment: None });
        owner.commit(&batch).unwrap();
        let mut proxy = folder.start(&["--iptables-sync-period=2s"]);
        proxy.wait_for(&["\"nftables sync failed\"", "IPv4"]);
        eventually("the proxy reports the failure", || health("/livez") == Some(503));
        assert_eq!(first_health("/healthz"), 503);
        drop(owner);
        eventually("the proxy is healthy again", || {
            health("/livez") == Some(200) && health("/healthz") == Some(200)
        });
    });
}

#[test]
fn idle_connections_block_neither_health_checks_nor_syncs() {
    // The proxy can raise the first limit, but not the second.
    for limits in ["--nofile=256:4096", "--nofile=256:256"] {
        in_fresh_netns(move || {
            run("ip link set lo up");
            let folder = Folder::new();
            let mut command = Command::new("prlimit");
            command.args([limits, KUBE_PROXY]);
            let mut proxy = folder.start_command(command, &[]);
            proxy.wait_for_sync("IPv4");
            eventually("the proxy is ready", || health("/healthz") == Some(200));
            let connect =
                |n: u16| TcpStream::connect((Ipv4Addr::LOCALHOST, [10256, 10249][usize::from(n % 2)]));
            // More than the proxy keeps open, fewer than this process may open.
            let idle: Vec<_> = (0..600).map(|n| connect(n).unwrap()).collect();
            assert_eq!(first_health("/healthz"), 200, "{limits}");
            folder.write_endpoint("10.244.0.6");
            eventually("the change is applied", || serves("10.244.0.6 . 8080"));
            drop(idle);
        });
    }
}

#[test]
fn a_manifest_that_could_not_be_opened_for_lack_of_descriptors_is_read_later() {
    in_fresh_netns(|| {
        let folder = Folder::new();
        let mut proxy = folder.start(&[]);
        proxy.wait_for_sync("IPv4");
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        let allow = |current| {
            prlimit(Some(proxy.pid()), Resource::Nofile, Rlimit { current: Some(current), maximum }).unwrap()
        };
        // The three standard descriptors are in use. With a limit of zero even `poll` would fail.
        let before = allow(3);
        folder.write_endpoint("10.244.0.6");
        proxy.wait_for(&["Failed to read manifest", "web.yaml", "Too many open files"]);
        prlimit(Some(proxy.pid()), Resource::Nofile, before).unwrap();
        eventually("the change is applied", || serves("10.244.0.6 . 8080"));
    });
}

#[test]
fn the_proxy_raises_its_limit_of_open_files() {
    in_fresh_netns(|| {
        let folder = Folder::new();
        let mut command = Command::new("prlimit");
        command.args(["--nofile=256:4096", KUBE_PROXY]);
        let mut proxy = folder.start_command(command, &[]);
        proxy.wait_for_sync("IPv4");
        let limits = fs::read_to_string(format!("/proc/{}/limits", proxy.pid().as_raw_nonzero())).unwrap();
        let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
        assert_eq!(files.split_whitespace().nth(3), Some("4096"), "{files}");
    });
}

#[test]
fn signals_that_the_proxy_does_not_use_are_ignored() {
    in_fresh_netns(|| {
        let folder = Folder::new();
        let mut proxy = folder.start(&[]);
        proxy.wait_for_sync("IPv4");
        for signal in [Signal::USR1, Signal::USR2, Signal::ALARM] {
            proxy.signal(signal);
        }
        folder.write_endpoint("10.244.0.6");
        proxy.wait_for_sync("IPv4");
        assert!(proxy.is_running());
        proxy.signal(Signal::TERM);
        assert!(proxy.wait().code().is_none(), "ended by the signal");
    });
}

#[test]
fn a_lock_that_another_process_holds_at_startup_is_reported_with_its_holder() {
    in_fresh_netns(|| {
        let (folder, programs) = (Folder::new(), TempDir::new().unwrap());
        let lock = programs.path().join("xtables.lock");
        let held = fs::File::create(&lock).unwrap();
        flock(&held, FlockOperation::LockExclusive).unwrap();
        let mut command = Command::new(KUBE_PROXY);
        link_iptables("legacy", programs.path());
        let path = format!("{}:{}", programs.path().display(), std::env::var("PATH").unwrap());
        command.env("PATH", path).env("XTABLES_LOCKFILE", &lock);
        let mut proxy = folder.start_command(command, &["--proxy-mode=iptables"]);
        let holder = format!("(pid {})", std::process::id());
        proxy.wait_for(&["Error running ProxyServer", "another process holds its lock", &holder]);
        assert_eq!(proxy.wait().code(), Some(1));
    });
}
