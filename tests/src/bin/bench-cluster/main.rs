//! What the proxy costs in a cluster with a real API server, beside what it should cost. `make bench-e2e` runs it.
//!
//! `bench-cluster compare NAME SERVICES ENDPOINTS` measures what can be measured of any kube-proxy, and keeps it under that name.

mod compare;
mod figures;
mod latency;
mod memory;
mod population;

use std::path::PathBuf;

use tests::cluster::proxy::binary;
use tests::cluster::test_cluster::TestCluster;

fn main() {
    let supervisor = beside_us("control-plane");
    let program = binary(&supervisor);
    let size = program.metadata().map(|file| file.len());
    let size = size.unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    println!("binary: {:.1} MiB", mebibytes(size));
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [what, name, services, endpoints] = &words[..]
        && what == "compare"
    {
        let [services, endpoints] = [services, endpoints].map(|number| number.parse().unwrap());
        let cluster = TestCluster::new(&supervisor);
        compare::measure(&cluster, name, services, endpoints);
        end();
    }
    latency::measure(&TestCluster::new(&supervisor));
    let cluster = TestCluster::new(&supervisor);
    memory::measure(&cluster);
    end();
}

/// Without dropping the cluster: that would delete ten thousand services one by one, which takes longer than all before.
/// The control plane goes with us, and they with it.
fn end() -> ! {
    std::process::exit(0)
}

fn beside_us(name: &str) -> PathBuf {
    std::env::current_exe().unwrap().with_file_name(name)
}

fn mebibytes(bytes: u64) -> f64 {
    // A figure for people.
    #[allow(clippy::cast_precision_loss)]
    let bytes = bytes as f64;
    bytes / f64::from(1 << 20)
}
