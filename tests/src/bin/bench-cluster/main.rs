//! Measures kube-proxy in a cluster with a real API server, and compares with goals. `make bench-e2e` runs it.
//!
//! `bench-cluster compare NAME SERVICES ENDPOINTS` measures any kube-proxy and records the figures under that name.

mod compare;
mod figures;
mod latency;
mod memory;
mod population;

use std::path::PathBuf;

use tests::cluster::proxy::binary;
use tests::cluster::test_cluster::TestCluster;

fn main() {
    let supervisor = sibling("control-plane");
    let program = binary(&supervisor);
    let size = program.metadata().map(|file| file.len());
    let size = size.unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    println!("binary: {:.1} MiB", mebibytes(size));
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [command, name, services, endpoints] = &arguments[..]
        && command == "compare"
    {
        let [services, endpoints] = [services, endpoints].map(|number| number.parse().unwrap());
        let cluster = TestCluster::new(&supervisor);
        compare::measure(&cluster, name, services, endpoints);
        exit();
    }
    latency::measure(&TestCluster::new(&supervisor));
    let cluster = TestCluster::new(&supervisor);
    memory::measure(&cluster);
    exit();
}

/// Exits without dropping the cluster, which would delete ten thousand Services one by one. The control plane ends with this
/// process.
fn exit() -> ! {
    std::process::exit(0)
}

fn sibling(name: &str) -> PathBuf {
    std::env::current_exe().unwrap().with_file_name(name)
}

fn mebibytes(bytes: u64) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "printed with one decimal")]
    let bytes = bytes as f64;
    bytes / f64::from(1 << 20)
}
