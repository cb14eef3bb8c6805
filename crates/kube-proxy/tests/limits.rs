//! kube-proxy in a container with the least privileges: user nobody, only `CAP_NET_ADMIN`, a read-only root, 64 descriptors,
//! 64 MiB of memory, and the seccomp profiles of `packaging/seccomp`. A real container runtime sets the limits.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use model::address::Family;
use model::names::Protocol;
use tempfile::TempDir;
use testkit::lab::{Address, ClientPlace, Lab, Place, TARGET};
use testkit::manifests::{A, B, EndpointManifest, web, write};
use testkit::namespace::Namespace;
use testkit::probe::{Answer, probe};
use testkit::proxy::service_with_endpoints;
use testkit::wait::within;
use tests::cluster::http;
use tests::cluster::proxy::{HEALTH_ADDRESS, METRICS_ADDRESS};
use tests::container::{Confinement, Container, Image};

const APPLY_TIMEOUT: Duration = Duration::from_secs(60);
const KUBE_PROXY: &str = env!("CARGO_BIN_EXE_kube-proxy");

/// A node, a folder of manifests, and the image that serves them.
struct ContainerLab {
    lab: Lab,
    manifests: TempDir,
    image: Image,
    mode: &'static str,
}

impl ContainerLab {
    fn new(mode: &'static str) -> Self {
        let manifests = TempDir::new().unwrap();
        // Readable for the user nobody.
        Command::new("chmod").arg("755").arg(manifests.path()).status().unwrap();
        let programs = if mode == "iptables" { "iptables" } else { "nftables" };
        let mut image = Image::assemble(programs, Path::new(KUBE_PROXY));
        image.mount(manifests.path(), "/manifests", &["rbind", "ro"]);
        let lab = Self { lab: Lab::new(), manifests, image, mode };
        lab.prepare_node();
        lab
    }

    /// Does the work of the privileged init container.
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

    fn apply(&self, endpoints: &[EndpointManifest]) {
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

    /// Waits until the cluster IPs lead to this endpoint.
    fn wait_for_endpoint(&self, container: &Container<'_>, place: Place) {
        for family in Family::BOTH {
            let desired = SocketAddr::new(place.ip(family), TARGET);
            let to = SocketAddr::new(Address::ClusterIp.ip(family), 80);
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                within(APPLY_TIMEOUT, &format!("{to} leads to {desired}\n{}", container.log()), || {
                    let answer = probe(self.lab.namespace(ClientPlace::Pod), protocol, to);
                    matches!(answer, Answer::From { endpoint, .. } if endpoint == desired)
                });
            }
        }
    }

    fn get(&self, address: &str, path: &str) -> String {
        let response = http::get(self.node(), address.parse().unwrap(), path).unwrap();
        assert_eq!(response.code, 200, "{path}: {}", response.body);
        response.body
    }

    /// Runs a subcommand in the container of the proxy.
    fn subcommand(&self, container: &Container<'_>, words: &[&str]) -> String {
        let mut command = vec!["/usr/local/bin/kube-proxy"];
        command.extend(words);
        command.extend(["--manifests", "/manifests"]);
        command.extend(self.flags());
        command.push("--v=0");
        let output = container.exec(&command);
        let [stdout, stderr] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        assert!(output.status.success(), "{words:?}: {}\n{stdout}{stderr}", output.status);
        stdout
    }
}

/// Serving, changing, metrics, health, subcommands and termination, under all limits at once.
fn serves_under_all_limits(lab: &ContainerLab, confinement: &Confinement) {
    lab.apply(&[A]);
    let mut container = lab.run(confinement);
    lab.wait_for_endpoint(&container, Place::PodA);
    assert_limits(&container, confinement);
    lab.apply(&[B]);
    lab.wait_for_endpoint(&container, Place::PodB);
    assert!(
        lab.get(METRICS_ADDRESS, "/metrics").contains("kubeproxy_sync_proxy_rules_duration_seconds_count")
    );
    assert!(lab.get(HEALTH_ADDRESS, "/healthz").contains("\"healthy\":true"));

    let verified = lab.subcommand(&container, &["verify"]);
    assert_eq!(verified.matches("kernel and plan agree").count(), 2, "{verified}");
    let to = SocketAddr::new(Address::ClusterIp.ip(Family::V4), 80).to_string();
    let explained = lab.subcommand(&container, &["explain", "tcp", &to]);
    assert!(explained.contains(&Place::PodB.ip(Family::V4).to_string()), "{explained}");

    // Upstream warns about the first two, too; the third is set by the pod's manifest.
    let expected = ["nodePortAddresses is unset", "The ipvs proxier is now deprecated", "oom"];
    let log = container.log();
    let errors = log.lines().filter(|line| line.starts_with('E') || line.contains("panicked"));
    let errors: Vec<_> =
        errors.filter(|line| !expected.iter().any(|expected| line.contains(expected))).collect();
    assert_eq!(errors, [""; 0]);

    container.terminate();
    // The exit code of upstream's kube-proxy with pid 1.
    assert_eq!(container.wait().code(), Some(2), "\n{}", container.log());
    lab.wait_for_endpoint(&container, Place::PodB);
}

/// Checks what the kernel enforces, not what the runtime was configured to do.
fn assert_limits(container: &Container<'_>, confinement: &Confinement) {
    let process = format!("/proc/{}", container.pid());
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
    serves_under_all_limits(&ContainerLab::new("nftables"), &Confinement::with_seccomp("nftables.json"));
}

#[test]
#[ignore = "needs a kernel with IPVS"]
fn ipvs_serves_under_all_limits() {
    serves_under_all_limits(&ContainerLab::new("ipvs"), &Confinement::with_seccomp("nftables.json"));
}

#[test]
fn the_iptables_mode_serves_under_all_limits() {
    serves_under_all_limits(&ContainerLab::new("iptables"), &Confinement::with_seccomp("iptables.json"));
}

/// It uses a raw socket, and only root may read which tables exist.
#[test]
fn the_legacy_variant_of_iptables_needs_root_and_one_capability_more() {
    let lab = ContainerLab::new("iptables");
    // kubelet leaves this chain on a node that uses the legacy variant.
    lab.node().run("iptables-legacy -t mangle -N KUBE-IPTABLES-HINT");
    let mut confinement = Confinement::with_seccomp("iptables.json");
    confinement.user = 0;
    confinement.capabilities.push("CAP_NET_RAW");
    serves_under_all_limits(&lab, &confinement);
    assert!(lab.node().run("iptables-legacy-save -t nat").contains("KUBE-SERVICES"));
}

/// The limit includes memory that the kernel allocates for the rules.
#[test]
fn many_services_fit_into_64_mib() {
    const SERVICES: usize = 10_000;
    const ENDPOINTS: usize = 5;
    let lab = ContainerLab::new("nftables");
    lab.apply(&[A]);
    for first in (0..SERVICES).step_by(100) {
        lab.write(&format!("many-{first}"), &many(first..first + 100, ENDPOINTS));
    }
    let container = lab.run(&Confinement::with_seccomp("nftables.json"));
    lab.wait_for_endpoint(&container, Place::PodA);
    let elements = || lab.node().run("nft list set ip kube-proxy frontends").matches("10.97.").count();
    within(APPLY_TIMEOUT, "all services are in the kernel", || elements() == SERVICES);
    lab.apply(&[B]);
    lab.wait_for_endpoint(&container, Place::PodB);
    println!("{SERVICES} services x {ENDPOINTS} endpoints: at most {:?} bytes", container.peak_memory());
}

fn many(services: Range<usize>, endpoints: usize) -> String {
    let manifests = services.map(|number| {
        let (high, low) = (number / 250, number % 250 + 1);
        let endpoints: Vec<_> = (1..=endpoints).map(|n| format!("10.{}.{high}.{low}", 100 + n)).collect();
        service_with_endpoints(&format!("s{number}"), &format!("10.97.{high}.{low}"), &endpoints)
    });
    manifests.collect::<Vec<_>>().join("---\n")
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
    // Without a profile the kernel allows both to any user.
    let (fork, namespace) = ("/usr/bin/true; /usr/bin/true", "exec /usr/bin/unshare --user /usr/bin/true");
    assert!(succeeds(&image, None, fork) && succeeds(&image, None, namespace));
    assert!(succeeds(&image, Some("nftables.json"), "exec /usr/bin/true"));
    assert!(!succeeds(&image, Some("nftables.json"), fork), "the profile allows fork");
    assert!(!succeeds(&image, Some("nftables.json"), namespace), "the profile allows user namespaces");
    assert!(succeeds(&image, Some("iptables.json"), fork));
    assert!(!succeeds(&image, Some("iptables.json"), namespace), "the profile allows user namespaces");
}
