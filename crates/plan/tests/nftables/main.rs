//! The elements of Services without annotations of ours, in nftables mode. `elements.txt` pins them to the byte: a kernel holds them
//! while the proxy is upgraded, and what changes in them is written again for each Service. `SLUICE_ELEMENTS=write` updates it.

#![allow(clippy::unwrap_used, reason = "tests stop at what they did not expect")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use model::address::Family;
use model::cluster::{Cluster, Here};
use model::local::FromPod;
use plan::mark::Mark;
use plan::nftables::desired::DesiredTable;
use plan::nftables::program::ProgramSettings;
use plan::nftables::sets::Balancer;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

/// The objects of the examples of the ipvs mode, which have every kind of Service.
fn examples() -> Vec<(String, String)> {
    let read = |entry: fs::DirEntry| {
        let text = fs::read_to_string(entry.path()).unwrap();
        let objects = text.split("\n## ").next().unwrap().lines().filter(|line| !line.starts_with('#'));
        let name = entry.path().file_stem().unwrap().to_string_lossy().into_owned();
        (name, objects.map(|line| format!("{line}\n")).collect())
    };
    let mut all: Vec<_> =
        folder().join("ipvs/examples").read_dir().unwrap().map(|entry| read(entry.unwrap())).collect();
    all.sort();
    all
}

fn elements(family: Family, objects: &str) -> String {
    let (node_ip, pods) = match family {
        Family::V4 => ("192.0.2.10", "10.244.0.0/16"),
        Family::V6 => ("fd00:192:0:2::10", "fd00:10:244::/56"),
    };
    let here = Here { node_ip: node_ip.parse().unwrap(), serve_external_ips: true, ..testkit::node(family) };
    let mut cluster = Cluster::new(here);
    for event in testkit::objects::events(objects) {
        cluster.apply(&event);
    }
    let mut desired = DesiredTable::new(ProgramSettings {
        family,
        balancer: Balancer::Slots,
        mark: Mark::from_bit(14).unwrap(),
        masquerade_all: false,
        from_pod: Some(FromPod::Source(pods.parse().unwrap())),
        node_ports_everywhere: true,
        can_hash: true,
    });
    desired.accept(cluster.take_changes().routings);
    let lines = desired.elements().into_iter().map(|element| {
        let shown = element.show(family).replace("\n", " ");
        format!("{} {shown}\n", element.set.name())
    });
    lines.collect()
}

#[test]
fn services_without_annotations_render_to_the_byte_as_before() {
    let mut text = String::new();
    for (name, objects) in examples() {
        for family in Family::BOTH {
            let _ = write!(text, "## {name} {family:?}\n{}\n", elements(family, &objects));
        }
    }
    let file = folder().join("nftables/elements.txt");
    if env::var("SLUICE_ELEMENTS").is_ok_and(|value| value == "write") {
        fs::write(&file, &text).unwrap();
    }
    let pinned = fs::read_to_string(file).unwrap();
    for (ours, pinned) in text.lines().zip(pinned.lines()) {
        assert_eq!(ours, pinned);
    }
    assert_eq!(text.lines().count(), pinned.lines().count());
}
