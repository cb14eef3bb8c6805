//! What a start costs with each encoding of the API server: bytes, and CPU time of the API server and of kube-proxy.

use std::path::Path;
use std::time::Duration;

use tests::cluster::proxy::Mode;
use tests::cluster::test_cluster::TestCluster;

use crate::figures::FigureLog;
use crate::memory::{cpu_time, status};
use crate::population::wait_for_within;

/// Starts with each encoding, in turns. The median counts.
const ROUNDS: usize = 5;
const SERVE_TIMEOUT: Duration = Duration::from_secs(300);
const ENCODINGS: [(&str, &str); 2] =
    [("json", "application/json"), ("protobuf", "application/vnd.kubernetes.protobuf")];
const FIGURES: [&str; 5] =
    ["received_mib", "api_server_cpu_s", "proxy_cpu_s", "source_thread_cpu_s", "rss_peak_mib"];

/// Measures a cluster that has been populated with these numbers.
pub fn measure(cluster: &TestCluster, services: usize, endpoints: usize) {
    let mut starts = [const { Vec::new() }; 2];
    for _ in 0..ROUNDS {
        for ((_, content_type), starts) in ENCODINGS.iter().zip(&mut starts) {
            starts.push(start(cluster, content_type, services));
        }
    }
    let medians = starts.map(|starts| {
        std::array::from_fn::<_, { FIGURES.len() }, _>(|figure| {
            let mut values: Vec<f64> = starts.iter().map(|start| start[figure]).collect();
            values.sort_by(f64::total_cmp);
            values[ROUNDS / 2]
        })
    });
    for ((name, _), medians) in ENCODINGS.iter().zip(&medians) {
        let mut figures = FigureLog::of(&format!("start-{name}"), services, endpoints);
        FIGURES.iter().zip(medians).for_each(|(figure, value)| figures.record(figure, *value));
    }
    let [json, protobuf] = medians;
    println!("protobuf, as a fraction of JSON:");
    for (figure, (json, protobuf)) in FIGURES.iter().zip(json.iter().zip(protobuf)) {
        println!("  {figure} {:.2}", protobuf / json);
    }
}

/// The figures of one start on a node without rules.
fn start(cluster: &TestCluster, content_type: &str, services: usize) -> [f64; FIGURES.len()] {
    cluster.proxy_with_flags(&["--cleanup".into()]).wait();
    let api_server = api_server(&cluster.control_plane().folder);
    let (bytes, busy) = (received(cluster), cpu_time(api_server));
    let proxy = cluster.proxy_with(Mode::Nftables, &[&format!("--kube-api-content-type={content_type}")]);
    wait_for_within(SERVE_TIMEOUT, cluster, services - 1);
    [
        (received(cluster) - bytes) / f64::from(1 << 20),
        (cpu_time(api_server) - busy).as_secs_f64(),
        cpu_time(proxy.pid()).as_secs_f64(),
        source_thread(proxy.pid()).as_secs_f64(),
        status(proxy.pid(), "VmHWM:"),
    ]
}

/// The bytes that the node has received from the network of the control plane, with TLS and headers.
fn received(cluster: &TestCluster) -> f64 {
    let read = || std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let devices = cluster.lab.network.node.enter(read);
    let line = devices.lines().find_map(|line| line.trim_start().strip_prefix("lan:"));
    line.and_then(|line| line.split_whitespace().next()).unwrap().parse().unwrap()
}

/// The CPU time of the thread that receives and decodes objects.
fn source_thread(process: u32) -> Duration {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
    let read = |thread: &std::fs::DirEntry, file| std::fs::read_to_string(thread.path().join(file)).unwrap();
    let source = threads.into_iter().find(|thread| read(thread, "comm").trim() == "source").unwrap();
    let nanoseconds = read(&source, "schedstat").split(' ').next().unwrap().parse().unwrap();
    Duration::from_nanos(nanoseconds)
}

/// The process whose flags name files in the control plane's folder.
pub fn api_server(folder: &Path) -> u32 {
    let is_api_server = |process: &u32| {
        let command = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command);
        let program = command.split('\0').next().unwrap_or_default();
        program.ends_with("/kube-apiserver") && command.contains(&folder.display().to_string())
    };
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let processes = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    processes.into_iter().find(is_api_server).expect("the API server runs")
}
