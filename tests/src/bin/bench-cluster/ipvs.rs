//! Compares the ipvs mode with upstream's: the cost of one changed endpoint. `make bench-ipvs` runs it.
//!
//! Few machines have IPVS, so both proxies run one after the other in a VM. The API server runs outside, where the VM reaches it
//! through QEMU's NAT.
//!
//! ```text
//!   this machine                                        VM
//!   etcd, API server  <--- QEMU in their namespace ---  bench-cluster ipvs-node: kube-proxy, upstream's kube-proxy
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use model::address::Family;
use testkit::namespace::Namespace;
use testkit::process::Process;
use testkit::wait::within;
use tests::cluster::api::ApiClient;
use tests::cluster::control_plane::components;
use tests::cluster::kubeconfig;
use tests::cluster::objects::slice_name;
use tests::cluster::proxy::{Mode, flags};
use tests::cluster::test_cluster::{TestCluster, cluster_ip};

use crate::memory::status;
use crate::population::{PLACES, name, populate_with_tcp, slice_at};

/// Where the VM has the files that [`measure`] shares with it.
const SHARED: &str = "/share";
const CHANGES: u32 = 4;
/// Longer than the minimum interval between two syncs of either proxy.
const PAUSE: Duration = Duration::from_secs(2);
/// Upstream needs many minutes for a start with an emulated processor.
const TIMEOUT: Duration = Duration::from_secs(3_600);

/// Creates Services with five endpoints each, and measures both proxies in a VM with the kernel `kernel`.
pub fn measure(cluster: &TestCluster, kernel: &str, services: usize) {
    populate_with_tcp(cluster, services, &PLACES);
    let control_plane = cluster.control_plane();
    let stage = tempfile::tempdir_in(&control_plane.folder).unwrap();
    let share = |from: &Path, name: &str| {
        fs::copy(from, stage.path().join(name)).unwrap();
    };
    for user in ["admin", "kube-proxy"] {
        for ending in ["crt", "key"] {
            let file = format!("{user}.{ending}");
            share(&control_plane.folder.join(&file), &file);
        }
        let shared = Path::new(SHARED);
        kubeconfig::write(
            &stage.path().join(format!("{user}.kubeconfig")),
            &control_plane.address().to_string(),
            shared,
            &kubeconfig::certificate_user(shared, user),
        );
    }
    share(&control_plane.folder.join("ca.crt"), "ca.crt");
    share(&std::env::current_exe().unwrap(), "bench-cluster");
    share(&components().join("kube-proxy"), "upstream");
    share(cluster.kube_proxy(), "sluice");
    let mut run = Command::new("hack/vm/run");
    run.args(["--net", "--timeout", &TIMEOUT.as_secs().to_string(), "--share"])
        .arg(format!("{}:{SHARED}", stage.path().display()))
        .args([kernel, "./bench-cluster", "ipvs-node", cluster.namespace(), &services.to_string()]);
    let status = control_plane.namespace.spawn(&mut run).unwrap().wait().unwrap();
    assert!(status.success(), "{run:?}: {status}");
}

/// Runs in the VM: measures upstream's proxy, then ours on a node that has been cleaned up. The API namespace `namespace` has the
/// Services; the node has the same name.
pub fn measure_on_node(namespace: &str, services: usize) {
    let shared = Path::new(SHARED);
    let here = Namespace::current();
    let api = ApiClient::open(&here, &shared.join("admin.kubeconfig"));
    netlink::testing::run("modprobe -a nf_conntrack ip_vs ip_vs_rr nlmon");
    netlink::testing::run("ip link add nlmon0 type nlmon");
    netlink::testing::run("ip link set nlmon0 up");
    let [upstream, ours] = ["upstream", "sluice"].map(|program| {
        let mut proxy = NodeProxy::start(&here, shared, program, namespace);
        let figures = proxy.measure(&api, namespace, services);
        drop(proxy);
        // Upstream's own --cleanup fails here.
        netlink::testing::run(&format!("{} --cleanup", shared.join("sluice").display()));
        figures
    });
    println!(
        "  upstream's CPU time per change is {:.0} times ours",
        upstream.as_secs_f64() / ours.as_secs_f64()
    );
}

/// A kube-proxy in a control group of its own, which counts the CPU time of the commands that it runs, too.
struct NodeProxy {
    process: Process,
    group: PathBuf,
    name: &'static str,
}

impl NodeProxy {
    fn start(here: &Namespace, shared: &Path, name: &'static str, node: &str) -> Self {
        let group = Path::new("/sys/fs/cgroup").join(name);
        fs::create_dir(&group).unwrap();
        let mut flags = flags(Mode::Ipvs, node, &shared.join("kube-proxy.kubeconfig"));
        // Without the periodic work of either proxy, which has nothing to do with a change.
        flags.extend(["--ipvs-sync-period=1h".into(), "--v=0".into()]);
        if name == "sluice" {
            flags.push("--audit-interval=0".into());
        }
        let log = shared.join(format!("{name}.log"));
        let process = Process::start(here, &shared.join(name), &flags, &log);
        fs::write(group.join("cgroup.procs"), process.pid().to_string()).unwrap();
        Self { process, group, name }
    }

    /// Prints the figures, and returns the CPU time per change.
    fn measure(&mut self, api: &ApiClient, namespace: &str, services: usize) -> Duration {
        // One more for the API server itself.
        within(TIMEOUT, "all virtual servers exist", || {
            std::thread::sleep(PAUSE);
            assert!(self.process.try_wait().is_none(), "{} ended:\n{}", self.name, self.process.log_tail());
            virtual_servers() > services
        });
        self.wait_until_idle();
        println!(
            "  {}: start {:.1?} of CPU time, {:.0} MiB resident",
            self.name,
            self.cpu_time(),
            status(self.process.pid(), "VmRSS:")
        );
        let (before, messages) = (self.cpu_time(), netlink_messages());
        for change in 0..CHANGES {
            let service = name(change as usize * 7);
            let slices = format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices");
            // Upstream's turn removes an endpoint, ours adds it again, both of as many Services.
            api.replace(
                &format!("{slices}/{}", slice_name(&service, Family::V4)),
                &slice_at(&service, &PLACES[..self.endpoints()]),
            );
            self.wait_until_idle();
        }
        let (spent, messages) =
            ((self.cpu_time() - before) / CHANGES, (netlink_messages() - messages) / u64::from(CHANGES));
        for change in 0..CHANGES {
            let service =
                api.get(&format!("/api/v1/namespaces/{namespace}/services/{}", name(change as usize * 7)));
            let listed =
                netlink::testing::run(&format!("ipvsadm -Ln -t {}", cluster_ip(&service, Family::V4)));
            assert_eq!(listed.matches("->").count(), self.endpoints() + 1, "{listed}");
        }
        println!("  {}: one change {spent:.1?} of CPU time, {messages} netlink messages", self.name);
        spent
    }

    fn endpoints(&self) -> usize {
        if self.name == "upstream" { PLACES.len() - 1 } else { PLACES.len() }
    }

    /// Returns after a second in which the proxy used less than a hundredth of the processor.
    fn wait_until_idle(&self) {
        std::thread::sleep(PAUSE);
        let mut before = self.cpu_time();
        within(TIMEOUT, "kube-proxy is idle", || {
            std::thread::sleep(Duration::from_secs(1));
            let now = self.cpu_time();
            now - std::mem::replace(&mut before, now) < Duration::from_millis(10)
        });
    }

    fn cpu_time(&self) -> Duration {
        let stat = fs::read_to_string(self.group.join("cpu.stat")).unwrap();
        let usage = stat.lines().find_map(|line| line.strip_prefix("usage_usec ")).unwrap();
        Duration::from_micros(usage.parse().unwrap())
    }
}

/// The number of TCP services of IPVS.
fn virtual_servers() -> usize {
    fs::read_to_string("/proc/net/ip_vs").unwrap().lines().filter(|line| line.starts_with("TCP")).count()
}

/// Netlink messages that have passed in either direction, where several in one buffer count as one.
fn netlink_messages() -> u64 {
    let count = fs::read_to_string("/sys/class/net/nlmon0/statistics/rx_packets").unwrap();
    count.trim().parse().unwrap()
}
