//! Measures kube-proxy in a cluster with a real API server, and compares with goals. `make bench-e2e` runs it.
//!
//! `bench-cluster upstream SERVICESxENDPOINTS MODE...` compares starts, changes and memory with upstream's kube-proxy, and
//! `bench-cluster data-path SERVICES` the path of packets (`make bench-upstream`);
//! `bench-cluster start SERVICESxENDPOINTS` compares a start with the time of the wire and of the kernel alone, and measures memory;
//! `bench-cluster encodings SERVICES ENDPOINTS` compares starts with protobuf and with JSON;
//! `bench-cluster ipvs KERNEL SERVICES` compares the ipvs mode with upstream's in a VM, where it runs as `bench-cluster ipvs-node`;
//! `bench-cluster nodes NAME COUNT SERVICES` measures many kube-proxies with one API server, upstream's if NAME is `upstream`.

mod bounds;
mod changes;
mod competitors;
mod data_path;
mod encodings;
mod figures;
mod ipvs;
mod latency;
mod machine;
mod memory;
mod nodes;
mod population;
mod ruleset;
mod starts;
mod upstream;

use std::path::PathBuf;

use population::{PLACES, populate_with_tcp};
use tests::cluster::proxy::{Mode, binary};
use tests::cluster::test_cluster::TestCluster;

const SERVICES: usize = 10_000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["ipvs-node", namespace, services] = arguments[..] {
        return ipvs::measure_on_node(namespace, services.parse().unwrap());
    }
    let supervisor = sibling("control-plane");
    let program = binary(&supervisor);
    let size = program.metadata().map(|file| file.len());
    let size = size.unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    println!("binary: {:.1} MiB", mebibytes(size));
    if arguments.is_empty() {
        latency::measure(&TestCluster::new(&supervisor));
    }
    let mut cluster = TestCluster::new(&supervisor);
    match arguments[..] {
        [] => {
            populate_with_tcp(&cluster, SERVICES, &PLACES);
            memory::measure(&cluster, SERVICES, PLACES.len());
            encodings::measure(&cluster, SERVICES, PLACES.len());
        }
        ["encodings", services, endpoints] => {
            let [services, endpoints] = [services, endpoints].map(|number| number.parse().unwrap());
            populate_with_tcp(&cluster, services, &PLACES[..endpoints]);
            encodings::measure(&cluster, services, endpoints);
        }
        ["upstream", size, ref modes @ ..] => {
            let (services, endpoints) = size.split_once('x').expect("SERVICESxENDPOINTS");
            let [services, endpoints] = [services, endpoints].map(|number| number.parse().unwrap());
            let modes: Vec<Mode> = modes.iter().map(|mode| self::mode(mode)).collect();
            machine::record();
            upstream::measure(&mut cluster, services, endpoints, &modes);
        }
        ["start", size] => {
            let (services, endpoints) = size.split_once('x').expect("SERVICESxENDPOINTS");
            bounds::measure(&mut cluster, services.parse().unwrap(), endpoints.parse().unwrap());
        }
        ["data-path", services] => {
            machine::record();
            data_path::measure(&mut cluster, services.parse().unwrap());
        }
        ["ipvs", kernel, services] => ipvs::measure(&cluster, kernel, services.parse().unwrap()),
        ["nodes", name, count, services] => {
            let [count, services] = [count, services].map(|number| number.parse().unwrap());
            nodes::measure(&mut cluster, name, count, services);
        }
        _ => panic!("unknown arguments {arguments:?}"),
    }
    exit();
}

/// Exits without dropping the cluster, which would delete ten thousand Services one by one. The control plane ends with this
/// process.
fn exit() -> ! {
    std::process::exit(0)
}

fn mode(name: &str) -> Mode {
    match name {
        "nftables" => Mode::Nftables,
        "iptables" => Mode::Iptables,
        _ => panic!("unknown mode {name}"),
    }
}

/// A number from the environment.
fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |value| value.parse().expect("a number"))
}

fn sibling(name: &str) -> PathBuf {
    std::env::current_exe().unwrap().with_file_name(name)
}

fn mebibytes(bytes: u64) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "printed with one decimal")]
    let bytes = bytes as f64;
    bytes / f64::from(1 << 20)
}
