//! `render`: what the kernel lists, and what it loads.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Command, Stdio};

use netlink::testing::{in_fresh_netns, run};

use crate::cluster::{Cluster, without_privileges};

#[test]
fn what_is_rendered_is_what_the_kernel_lists() {
    in_fresh_netns(|| {
        let cluster = Cluster::new("nftables");
        cluster.sync();
        for (family, ip) in [("ipv4", "ip"), ("ipv6", "ip6")] {
            let (code, text) = cluster.tool("render", &["--family", family]);
            assert_eq!(code, 0, "{text}");
            let listed = run(&format!("nft list table {ip} kube-proxy"));
            let (ours, theirs) = (words(&text), words(&listed));
            let more = |a: &BTreeMap<String, usize>, b: &BTreeMap<String, usize>| {
                a.iter()
                    .filter(|(word, count)| b.get(*word) != Some(count))
                    .map(|(word, _)| word.clone())
                    .collect::<Vec<_>>()
            };
            assert_eq!((more(&ours, &theirs), more(&theirs, &ours)), (vec![], vec![]), "{family}");
            // `nft` does not read what it prints of rules that use the value of one map in the key of another.
            let is_readable = |line: &&str| {
                let hidden = [" map @endpoints", " map @sticky-endpoints", " @affinity {"];
                !hidden.iter().any(|part| line.contains(part))
            };
            let readable: Vec<&str> = text.lines().filter(is_readable).collect();
            let readable = readable.join("\n");
            // Where there is no such table: of its own maps by example `nft` reads back something else.
            in_fresh_netns(move || feed(&["nft", "-c", "-f", "-"], &readable));
        }
    });
}

/// In any order, without what was counted, how lines are broken, and whose the table is.
fn words(text: &str) -> BTreeMap<String, usize> {
    let lines = text.lines().filter(|line| !line.starts_with("\tflags"));
    let text = lines.collect::<Vec<_>>().join("\n").replace(" counter packets 0 bytes 0", "");
    let mut words = BTreeMap::new();
    for word in text.replace([',', '{', '}'], " ").split_whitespace() {
        *words.entry(word.to_owned()).or_default() += 1;
    }
    words
}

fn feed(command: &[&str], text: &str) {
    let mut child = Command::new(command[0]).args(&command[1..]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{command:?}:\n{text}");
}

#[test]
fn rendering_takes_no_privileges_and_loads() {
    in_fresh_netns(|| {
        let cluster = Cluster::new("iptables");
        cluster.open_to_all();
        for (family, restore) in [("ipv4", "iptables"), ("ipv6", "ip6tables")] {
            let (code, text) = without_privileges(&cluster, "render", &["--family", family]);
            assert_eq!(code, 0, "{text}");
            for variant in ["legacy", "nft"] {
                feed(&[&format!("{restore}-{variant}-restore"), "--test", "--noflush"], &text);
            }
            feed(&[&format!("{restore}-restore"), "--noflush"], &text);
        }
        // Loaded by others than us, it is what we want. That there are no counters may be.
        let (code, text) = cluster.tool("verify", &[]);
        assert_eq!(code, 0, "{text}");
    });
}

#[test]
fn without_node_port_addresses_the_ipvs_mode_serves_node_ports_on_every_address() {
    in_fresh_netns(|| {
        let cluster = Cluster::new("ipvs");
        for address in ["192.0.2.11/32", "2001:db8::11/128"] {
            run(&format!("ip address add {address} dev lo"));
        }
        let (code, text) = cluster.tool("render", &["--family", "ipv4"]);
        assert_eq!(code, 0, "{text}");
        let servers: Vec<&str> = text.lines().filter(|line| line.contains(":30080 -s rr")).collect();
        assert_eq!(servers, ["-A -t 192.0.2.11:30080 -s rr"], "{text}");
    });
}
