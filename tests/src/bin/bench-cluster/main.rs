//! What the proxy costs in a cluster with a real API server, beside what it should cost. `make bench-e2e` runs it.

mod latency;
mod memory;
mod population;

use std::path::PathBuf;

use tests::cluster::proxy::binary;
use tests::cluster::stage::Stage;

fn main() {
    let supervisor = beside_us("control-plane");
    let program = binary(&supervisor);
    let size = program.metadata().map(|file| file.len());
    let size = size.unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    println!("binary: {:.1} MiB", mebibytes(size));
    latency::measure(&Stage::new(&supervisor));
    let stage = Stage::new(&supervisor);
    memory::measure(&stage);
    // Dropping it would delete ten thousand services one by one, which takes longer than all before. The control plane
    // goes with us, and they with it.
    std::process::exit(0);
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
