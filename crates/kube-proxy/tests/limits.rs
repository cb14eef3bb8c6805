//! The binary with next to nothing: uid nobody with `CAP_NET_ADMIN` alone, a root that cannot be written, 64 descriptors,
//! 64 MiB of memory, and the seccomp profiles of `packaging/seccomp`. A real container runtime sets the limits.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use model::address::Family;
use model::names::Protocol;
use tempfile::TempDir;
use testkit::lab::{Address, Lab, Place, TARGET, Who};
use testkit::namespace::Namespace;
use testkit::talk::{Answer, ask};
use tests::cluster::http;
use tests::cluster::proxy::{HEALTH, METRICS};
use tests::container::{Confinement, Container, Image};
use tests::manifests::{A, B, Endpoint, web, write};
use tests::matrix::within;

const APPLY_TIMEOUT: Duration = Duration::from_secs(60);
const KUBE_PROXY: &str = env!("CARGO_BIN_EXE_kube-proxy");

/// A node with a folder of manifests, and the image that serves it.
struct Bench {
    lab: Lab,
    manifests: TempDir,
    image: Image,
    mode: &'static str,
}

impl Bench {
    fn new(mode: &'static str) -> Self {
        let manifests = TempDir::new().unwrap();
        // Readable for nobody.
        Command::new("chmod").arg("755").arg(manifests.path()).status().unwrap();
        let mut image = Image::assemble(mode, Path::new(KUBE_PROXY));
        image.mount(manifests.path(), "/manifests", &["rbind", "ro"]);
        let bench = Self { lab: Lab::new(), manifests, image, mode };
        bench.prepare_node();
        bench
    }

    /// As the first container of the pod does, which is privileged and ends.
    fn prepare_node(&self) {
        let mut command = Command::new(KUBE_PROXY);
        command.args(self.flags()).arg("--init-only").arg("--manifests").arg(self.manifests.path());
        let output = self.node().enter(|| command.output()).unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    fn node(&self) -> &Namespace {
        &self.lab.network.node
    }

    fn flags(&self) -> Vec<&'static str> {
        vec![
            "--proxy-mode",
            self.mode,
            "--hostname-override=node-1",
            "--conntrack-max-per-core=0",
            "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48",
            "--v=2",
        ]
    }

    fn serve(&self, endpoints: &[Endpoint]) {
        for family in Family::BOTH {
            let mut service = web(endpoints);
            service.name = if family == Family::V4 { "web4" } else { "web6" };
            self.write(service.name, &write(&[service.into()], family));
        }
    }

    fn write(&self, name: &str, manifests: &str) {
        let path = self.manifests.path().join(format!("{name}.yaml"));
        let next = path.with_extension("tmp");
        fs::write(&next, manifests).unwrap();
        fs::rename(next, path).unwrap();
    }

    fn run(&self, confinement: &Confinement) -> Container<'_> {
        let mut command = vec!["/usr/local/bin/kube-proxy", "--manifests", "/manifests"];
        command.extend(self.flags());
        Container::run(&self.image, self.node(), confinement, &command)
    }

    /// Waits until a pod that connects to the cluster IP is answered by that endpoint.
    fn reaches(&self, container: &Container<'_>, place: Place) {
        for family in Family::BOTH {
            let wanted = SocketAddr::new(place.ip(family), TARGET);
            let to = SocketAddr::new(Address::ClusterIp.ip(family), 80);
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                within(APPLY_TIMEOUT, &format!("{to} leads to {wanted}\n{}", container.log()), || {
                    let answer = ask(self.lab.namespace(Who::Pod), protocol, to);
                    matches!(answer, Answer::From { endpoint, .. } if endpoint == wanted)
                });
            }
        }
    }

    fn get(&self, address: &str, path: &str) -> String {
        let answer = http::get(self.node(), address.parse().unwrap(), path).unwrap();
        assert_eq!(answer.code, 200, "{path}: {}", answer.body);
        answer.body
    }

    /// A tool in the container of the proxy.
    fn tool(&self, container: &Container<'_>, words: &[&str]) -> String {
        let mut command = vec!["/usr/local/bin/kube-proxy"];
        command.extend(words);
        command.extend(["--manifests", "/manifests"]);
        command.extend(self.flags());
        command.push("--v=0");
        let output = container.exec(&command);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {}\n{said}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }
}

/// All that a proxy is asked to do, under all limits at once.
fn serves_under_all_limits(bench: &Bench, confinement: &Confinement) {
    bench.serve(&[A]);
    let mut container = bench.run(confinement);
    bench.reaches(&container, Place::PodA);
    limits_hold(&container, confinement);
    bench.serve(&[B]);
    bench.reaches(&container, Place::PodB);
    assert!(bench.get(METRICS, "/metrics").contains("kubeproxy_sync_proxy_rules_duration_seconds_count"));
    assert!(bench.get(HEALTH, "/healthz").contains("\"healthy\":true"));

    let verified = bench.tool(&container, &["verify"]);
    assert_eq!(verified.matches("kernel and plan agree").count(), 2, "{verified}");
    let to = SocketAddr::new(Address::ClusterIp.ip(Family::V4), 80).to_string();
    let explained = bench.tool(&container, &["explain", "tcp", &to]);
    assert!(explained.contains(&Place::PodB.ip(Family::V4).to_string()), "{explained}");

    // Upstream's own complaint about a default that it would rather not have, and what the pod's manifest sets already.
    let expected = ["nodePortAddresses is unset", "oom"];
    let log = container.log();
    let complaints = log.lines().filter(|line| line.starts_with('E') || line.contains("panicked"));
    let complaints: Vec<_> =
        complaints.filter(|line| !expected.iter().any(|expected| line.contains(expected))).collect();
    assert_eq!(complaints, [""; 0]);

    container.terminate();
    // As upstream's ends as the first process of a container.
    assert_eq!(container.wait().code(), Some(2), "\n{}", container.log());
    bench.reaches(&container, Place::PodB);
}

/// What the kernel says of the process, not what the runtime was told.
fn limits_hold(container: &Container<'_>, confinement: &Confinement) {
    let process = format!("/proc/{}", container.id());
    let status = fs::read_to_string(format!("{process}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
        line.unwrap_or_else(|| panic!("no {name} in {status}")).to_owned()
    };
    assert_eq!(field("Uid"), [confinement.user.to_string().as_str(); 4].join("\t"));
    let numbers = [("CAP_NET_ADMIN", 12), ("CAP_NET_RAW", 13)];
    let granted = numbers.iter().filter(|(name, _)| confinement.capabilities.contains(name));
    let granted = granted.fold(0, |sum, (_, number)| sum | 1 << number);
    for set in ["CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(u64::from_str_radix(&field(set), 16), Ok(granted), "{set}");
    }
    assert_eq!((field("NoNewPrivs").as_str(), field("Seccomp").as_str()), ("1", "2"));
    let limits = fs::read_to_string(format!("{process}/limits")).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let descriptors = confinement.descriptors.to_string();
    assert_eq!(files.split_whitespace().skip(3).take(2).collect::<Vec<_>>(), [&descriptors; 2], "{files}");
    assert!(fs::write(format!("{process}/root/written"), "").is_err(), "the root can be written");
}

#[test]
fn the_nftables_mode_serves_under_all_limits() {
    serves_under_all_limits(&Bench::new("nftables"), &Confinement::with_seccomp("nftables.json"));
}

#[test]
fn the_iptables_mode_serves_under_all_limits() {
    serves_under_all_limits(&Bench::new("iptables"), &Confinement::with_seccomp("iptables.json"));
}

/// It talks to the kernel through a raw socket, and only root may read which of its tables exist.
#[test]
fn the_legacy_variant_of_iptables_needs_root_and_one_capability_more() {
    let bench = Bench::new("iptables");
    // As a kubelet does on a node that uses this variant.
    bench.node().run("iptables-legacy -t mangle -N KUBE-IPTABLES-HINT");
    let mut confinement = Confinement::with_seccomp("iptables.json");
    confinement.user = 0;
    confinement.capabilities.push("CAP_NET_RAW");
    serves_under_all_limits(&bench, &confinement);
    assert!(bench.node().run("iptables-legacy-save -t nat").contains("KUBE-SERVICES"));
}

/// Memory that the kernel allocates for the rules counts, too.
#[test]
fn many_services_fit_into_64_mib() {
    const SERVICES: usize = 10_000;
    const ENDPOINTS: usize = 5;
    let bench = Bench::new("nftables");
    bench.serve(&[A]);
    for first in (0..SERVICES).step_by(100) {
        bench.write(&format!("many-{first}"), &many(first..first + 100, ENDPOINTS));
    }
    let container = bench.run(&Confinement::with_seccomp("nftables.json"));
    bench.reaches(&container, Place::PodA);
    let elements = || bench.node().run("nft list set ip kube-proxy frontends").matches("10.97.").count();
    within(APPLY_TIMEOUT, "all services are in the kernel", || elements() == SERVICES);
    bench.serve(&[B]);
    bench.reaches(&container, Place::PodB);
    println!("{SERVICES} services x {ENDPOINTS} endpoints: at most {:?} bytes", container.peak_memory());
}

fn many(services: Range<usize>, endpoints: usize) -> String {
    let mut text = String::new();
    for number in services {
        let (high, low) = (number / 250, number % 250 + 1);
        let addresses: Vec<_> =
            (1..=endpoints).map(|n| format!("{{addresses: [10.{}.{high}.{low}]}}", 100 + n)).collect();
        write!(
            text,
            "apiVersion: v1
kind: Service
metadata: {{name: s{number}}}
spec: {{clusterIP: 10.97.{high}.{low}, ports: [{{port: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: s{number}-1, labels: {{kubernetes.io/service-name: s{number}}}}}
addressType: IPv4
ports: [{{port: 8080}}]
endpoints: [{}]
---
",
            addresses.join(", ")
        )
        .unwrap();
    }
    text
}

/// Runs a script in the image with the iptables programs, and returns whether it succeeded.
fn succeeds(image: &Image, seccomp: Option<&'static str>, script: &str) -> bool {
    let node = Namespace::new();
    let confinement = Confinement { seccomp, ..Confinement::with_seccomp("") };
    Container::run(image, &node, &confinement, &["/bin/sh", "-c", script]).wait().success()
}

#[test]
fn the_profiles_deny_what_they_do_not_list() {
    let image = Image::assemble("iptables", Path::new(KUBE_PROXY));
    for program in ["/usr/bin/unshare", "/usr/bin/true"] {
        fs::copy(program, image.root().join(program.trim_start_matches('/'))).unwrap();
    }
    // Another process, then a namespace of its own, which the kernel lets anybody have; without a profile both work.
    let (fork, namespace) = ("/usr/bin/true; /usr/bin/true", "exec /usr/bin/unshare --user /usr/bin/true");
    assert!(succeeds(&image, None, fork) && succeeds(&image, None, namespace));
    assert!(succeeds(&image, Some("nftables.json"), "exec /usr/bin/true"));
    assert!(!succeeds(&image, Some("nftables.json"), fork), "a process was forked");
    assert!(!succeeds(&image, Some("nftables.json"), namespace), "a user namespace was made");
    assert!(succeeds(&image, Some("iptables.json"), fork));
    assert!(!succeeds(&image, Some("iptables.json"), namespace), "a user namespace was made");
}
