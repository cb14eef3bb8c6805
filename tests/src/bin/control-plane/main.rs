//! Supervises etcd, the API server and the controller manager in the current network namespace.
//!
//! The argument is the folder of their binaries. Prints the folder of their files once all are ready, then reads commands
//! from standard input and answers each with `done`: `stop` and `start` for the API server, and `restart etcd`. Ends with its
//! standard input, and ends all components then.

mod components;
mod pki;

use std::path::Path;

use components::Components;
use tempfile::TempDir;

fn main() {
    let binaries = std::env::args().nth(1).expect("the folder of the components");
    let folder = TempDir::new().unwrap();
    let mut components = Components::start(Path::new(&binaries), folder.path());
    println!("{}", folder.path().display());
    for line in std::io::stdin().lines().map_while(Result::ok) {
        match line.as_str() {
            "stop" => components.stop_api_server(),
            "start" => components.start_api_server(),
            "restart etcd" => components.restart_etcd(),
            other => panic!("unknown command {other:?}"),
        }
        println!("done");
    }
}
