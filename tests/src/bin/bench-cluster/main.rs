//! Measures kube-proxy in a cluster with a real API server, and compares with goals. `make bench-e2e` runs it.
//!
//! `bench-cluster compare NAME SERVICES ENDPOINTS` measures any kube-proxy and records the figures under that name;
//! `bench-cluster encodings SERVICES ENDPOINTS` compares starts with protobuf and with JSON.

mod compare;
mod encodings;
mod figures;
mod latency;
mod memory;
mod population;

use std::path::PathBuf;

use population::{PLACES, populate_with_tcp};
use tests::cluster::proxy::binary;
use tests::cluster::test_cluster::TestCluster;

const SERVICES: usize = 10_000;

fn main() {
    let supervisor = sibling("control-plane");
    let program = binary(&supervisor);
    let size = program.metadata().map(|file| file.len());
    let size = size.unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    println!("binary: {:.1} MiB", mebibytes(size));
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] => {
            latency::measure(&TestCluster::new(&supervisor));
            let cluster = TestCluster::new(&supervisor);
            populate_with_tcp(&cluster, SERVICES, &PLACES);
            memory::measure(&cluster, SERVICES, PLACES.len());
            encodings::measure(&cluster, SERVICES, PLACES.len());
            exit();
        }
        ["encodings", services, endpoints] => {
            let [services, endpoints] = [services, endpoints].map(|number| number.parse().unwrap());
            let cluster = TestCluster::new(&supervisor);
            populate_with_tcp(&cluster, services, &PLACES[..endpoints]);
            encodings::measure(&cluster, services, endpoints);
            exit();
        }
        ["compare", name, services, endpoints] => {
            let [services, endpoints] = [services, endpoints].map(|number| number.parse().unwrap());
            let cluster = TestCluster::new(&supervisor);
            compare::measure(&cluster, name, services, endpoints);
            exit();
        }
        _ => panic!("unknown arguments {arguments:?}"),
    }
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
