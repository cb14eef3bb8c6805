//! Two proxies in iptables mode on one node, as when one is left behind by an upgrade.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use netlink::testing::{in_fresh_netns, run};
use tempfile::TempDir;
use testkit::patience::Deadline;

/// A running proxy, killed when dropped.
struct Proxy {
    child: Child,
    log: PathBuf,
}

impl Proxy {
    fn start(dir: &Path, name: &str, manifests: &Path) -> Self {
        let log = dir.join(name);
        let child = Command::new(env!("CARGO_BIN_EXE_kube-proxy"))
            .args(["--proxy-mode=iptables", "--hostname-override=node-1", "-v=2", "--manifests"])
            .arg(manifests)
            .args(["--conntrack-max-per-core=0", "--iptables-min-sync-period=0", "--audit-interval=0"])
            .stderr(Stdio::from(fs::File::create(&log).unwrap()))
            .spawn()
            .unwrap();
        Self { child, log }
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    fn count(&self, what: &str) -> usize {
        self.log().matches(what).count()
    }

    /// Syncs that wrote something.
    fn writes(&self) -> usize {
        let log = self.log();
        let syncs = log.lines().filter(|line| line.contains("\"SyncProxyRules complete\""));
        syncs.filter(|line| !line.contains("restores=0")).count()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            println!("{}:\n{}", self.log.display(), self.log());
        }
    }
}

fn eventually(what: &str, so: impl Fn() -> bool) {
    let mut deadline = Deadline::after(Duration::from_secs(60));
    while !so() {
        assert!(!deadline.has_passed(), "{what}");
        sleep(Duration::from_millis(10));
    }
}

fn serves(endpoint: u8) -> bool {
    run("iptables-save -t nat").contains(&format!("--to-destination 10.244.1.{endpoint}:8080"))
}

fn manifests(dir: &Path, name: &str, endpoint: u8) -> PathBuf {
    let folder = dir.join(format!("{name}-manifests"));
    fs::create_dir_all(&folder).unwrap();
    let text = format!(
        "apiVersion: v1
kind: Service
metadata: {{name: web}}
spec: {{clusterIP: 10.96.0.1, ports: [{{port: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-1, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
ports: [{{name: \"\", port: 8080}}]
endpoints: [{{addresses: [10.244.1.{endpoint}]}}]
"
    );
    let next = dir.join("next");
    fs::write(&next, text).unwrap();
    fs::rename(next, folder.join("web.yaml")).unwrap();
    folder
}

#[test]
fn two_that_want_the_same_leave_each_other_alone() {
    in_fresh_netns(|| {
        let dir = TempDir::new().unwrap();
        let both = manifests(dir.path(), "both", 1);
        let one = Proxy::start(dir.path(), "one", &both);
        eventually("the first one serves", || serves(1));
        let other = Proxy::start(dir.path(), "other", &both);
        let at_peace = || one.count("they are as they should be") > 0 && other.writes() > 0;
        eventually("the first one finds that the other wrote the same", at_peace);
        for endpoint in 2..5 {
            manifests(dir.path(), "both", endpoint);
            eventually("a change", || serves(endpoint));
        }
        // The one may see what the other wrote before it hears of the change itself.
        let writes = || one.writes() + other.writes();
        let is_quiet = || {
            let before = writes();
            sleep(Duration::from_secs(2));
            writes() == before
        };
        eventually("nobody writes any more", is_quiet);
        assert!(serves(4));
        assert_eq!(one.count("keeps changing the rules") + other.count("keeps changing the rules"), 0);
    });
}

#[test]
fn two_that_want_something_else_fight_ever_more_slowly_and_say_so_once() {
    in_fresh_netns(|| {
        let dir = TempDir::new().unwrap();
        let one = Proxy::start(dir.path(), "one", &manifests(dir.path(), "one", 1));
        eventually("the first one serves", || serves(1));
        let other = Proxy::start(dir.path(), "other", &manifests(dir.path(), "other", 2));
        let slowed = "\"Another process keeps changing the rules";
        eventually("both are slowed down", || one.count(slowed) > 0 && other.count(slowed) > 0);
        // From here on the least delays are 2 and 4 seconds; without them there were dozens of writes.
        sleep(Duration::from_secs(6));
        for proxy in [&one, &other] {
            assert!(proxy.writes() <= 12, "{} writes", proxy.writes());
            assert_eq!(proxy.count(slowed), 1);
            assert_eq!(proxy.count("\"Repaired rules that another process had changed\""), 5);
            let log = proxy.log();
            let line = log.lines().find(|line| line.contains(slowed)).unwrap();
            assert!(line.contains("by=\"iptables-restor") && line.contains("delay=\"2s\""), "{line}");
        }
    });
}
