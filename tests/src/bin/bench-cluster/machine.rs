//! The machine and the versions that figures come from, for the captions of charts.

use std::fs::{read_to_string, write};
use std::process::Command;

use serde_json::json;
use tests::cluster::control_plane::components;

use crate::figures::folder;

/// Describes the machine in a file that `make charts` reads.
pub fn record() {
    let cpuinfo = read_to_string("/proc/cpuinfo").unwrap();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let kernel = read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let kernel: Vec<&str> = kernel.split('.').take(2).collect();
    let machine = format!(
        "{} cores of {}, Linux {}, {}, {}; upstream is {}",
        std::thread::available_parallelism().unwrap(),
        model.map_or("an unknown model", |(_, model)| model),
        kernel.join("."),
        version("nft", 2),
        version("iptables", 3),
        version(components().join("kube-proxy").to_str().unwrap(), 2),
    );
    println!("{machine}");
    write(folder().join("machine.json"), format!("{}\n", json!({"machine": machine}))).unwrap();
}

/// The first words that `program --version` prints.
fn version(program: &str, words: usize) -> String {
    let output = Command::new(program).arg("--version").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().take(words).collect::<Vec<_>>().join(" ")
}
