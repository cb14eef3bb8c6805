//! A real etcd, API server and controller manager in the network namespace that this is started in.
//!
//! The argument is the folder of their programs. Prints the folder of their files once all are ready, then does what it
//! is told line by line, saying `done` each time: `stop` the API server, `start` it again, `restart etcd`. When nobody can tell it
//! anything any more it ends, and takes everything with it.

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
            other => panic!("what is {other:?}?"),
        }
        println!("done");
    }
}
