//! Two proxies in iptables mode on one node, as after an upgrade that leaves the old one running.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use netlink::testing::{in_fresh_netns, run};
use tempfile::TempDir;
use testkit::proxy::{StandaloneProxy, service_with_endpoints};
use testkit::wait::within;

const KUBE_PROXY: &str = env!("CARGO_BIN_EXE_kube-proxy");

fn start(dir: &Path, name: &str, manifests: &Path) -> StandaloneProxy {
    let flags = ["--proxy-mode=iptables", "--audit-interval=0"];
    StandaloneProxy::start(Command::new(KUBE_PROXY), manifests, &flags, &dir.join(name))
}

fn count(proxy: &StandaloneProxy, text: &str) -> usize {
    proxy.log().matches(text).count()
}

/// The log lines of syncs that wrote rules. The last line may be incomplete.
fn write_lines(log: &str) -> impl Iterator<Item = &str> {
    let complete = log.rsplit_once('\n').map_or("", |(complete, _)| complete);
    let syncs = complete.lines().filter(|line| line.contains("\"SyncProxyRules complete\""));
    syncs.filter(|line| !line.contains("restores=0"))
}

fn writes(proxy: &StandaloneProxy) -> usize {
    write_lines(&proxy.log()).count()
}

const DAY: f64 = 86_400.0;

/// The second of the day at which a line was logged: `I1116 03:44:08.123456 ...`.
fn time(line: &str) -> f64 {
    let mut parts = line.split(' ').nth(1).unwrap().split(':').map(|part| part.parse::<f64>().unwrap());
    parts.by_ref().take(3).fold(0.0, |sum, part| sum * 60.0 + part)
}

fn eventually(what: &str, condition: impl FnMut() -> bool) {
    within(Duration::from_secs(60), what, condition);
}

fn serves(endpoint: u8) -> bool {
    run("iptables-save -t nat").contains(&format!("--to-destination 10.244.1.{endpoint}:8080"))
}

fn manifests(dir: &Path, name: &str, endpoint: u8) -> PathBuf {
    let folder = dir.join(format!("{name}-manifests"));
    fs::create_dir_all(&folder).unwrap();
    let text = service_with_endpoints("web", "10.96.0.1", &[format!("10.244.1.{endpoint}")]);
    let next = dir.join("next");
    fs::write(&next, text).unwrap();
    fs::rename(next, folder.join("web.yaml")).unwrap();
    folder
}

#[test]
fn two_proxies_with_the_same_objects_stop_writing() {
    in_fresh_netns(|| {
        let dir = TempDir::new().unwrap();
        let both = manifests(dir.path(), "both", 1);
        let one = start(dir.path(), "one", &both);
        eventually("the first proxy serves", || serves(1));
        let other = start(dir.path(), "other", &both);
        let settled = || count(&one, "ours are unchanged") > 0 && writes(&other) > 0;
        eventually("the first proxy finds that the other wrote the same rules", settled);
        for endpoint in 2..5 {
            manifests(dir.path(), "both", endpoint);
            eventually("both proxies apply the change", || serves(endpoint));
        }
        // One proxy may see what the other wrote before it receives the change itself.
        let all_writes = || writes(&one) + writes(&other);
        let is_quiet = || {
            let before = all_writes();
            sleep(Duration::from_secs(2));
            all_writes() == before
        };
        eventually("both proxies stop writing", is_quiet);
        assert!(serves(4));
        assert_eq!(count(&one, "keeps changing the rules") + count(&other, "keeps changing the rules"), 0);
    });
}

#[test]
fn two_proxies_with_different_objects_back_off_and_log_it_once() {
    in_fresh_netns(|| {
        let dir = TempDir::new().unwrap();
        let one = start(dir.path(), "one", &manifests(dir.path(), "one", 1));
        eventually("the first proxy serves", || serves(1));
        let other = start(dir.path(), "other", &manifests(dir.path(), "other", 2));
        let backs_off = "\"Another process keeps changing the rules";
        eventually("both proxies back off", || count(&one, backs_off) > 0 && count(&other, backs_off) > 0);
        let writes_after = |proxy: &StandaloneProxy| {
            let log = proxy.log();
            let (_, rest) = log.split_once(backs_off).unwrap();
            write_lines(rest).map(time).collect::<Vec<_>>()
        };
        within(Duration::from_secs(120), "both proxies write again", || {
            [&one, &other].iter().all(|proxy| writes_after(proxy).len() > 1)
        });
        for proxy in [&one, &other] {
            // The delays are 2 s, then 4 s; without them there are dozens of writes a second.
            let times = writes_after(proxy);
            assert!(times.windows(2).all(|pair| (pair[1] - pair[0]).rem_euclid(DAY) > 1.0), "{times:?}");
            assert_eq!(count(proxy, backs_off), 1);
            assert_eq!(count(proxy, "\"Repaired rules that another process had changed\""), 5);
            let log = proxy.log();
            let line = log.lines().find(|line| line.contains(backs_off)).unwrap();
            assert!(line.contains("by=\"iptables-restor") && line.contains("delay=\"2s\""), "{line}");
        }
    });
}
