//! Upstream's tests of the iptables mode that are about rules, under their names: same situations, own objects.

use std::collections::BTreeSet;

use crate::examples;
use crate::fake::Kernel;
use crate::options::{DetectLocal, Options};
use crate::world::World;

const NODE: &str = "192.168.0.2";
const OUTSIDE: &str = "203.0.113.200";
const POD: &str = "10.244.1.200";

fn world(options: Options, lines: &str) -> World {
    let mut world = World::new(options);
    world.apply_lines(lines).sync();
    world
}

fn check(world: &World, cases: &[(&str, &str, &str)]) {
    for (from, to, want) in cases {
        assert_eq!(world.fates(&format!("{from} -> {to}")), *want, "{from} -> {to}");
    }
}

#[test]
fn test_overall_iptables_rules() {
    // A cluster IP, a balancer without local endpoint, a node port, an external IP with two endpoints, a balancer with
    // ranges and affinity, and no endpoints: each as in its example, and all in one.
    let all = ["E1", "E4", "E5", "E6", "E7b", "E15"];
    let mut together = World::new(Options::default());
    let mut want = Kernel::empty();
    want.ensure_jumps();
    for example in all {
        examples::apply(&mut together, example);
        let mut alone = examples::world(example);
        alone.sync();
        for (chains, part) in [(&mut want.filter, alone.kernel.filter), (&mut want.nat, alone.kernel.nat)] {
            for (chain, rules) in part {
                let into: &mut Vec<String> = chains.entry(chain).or_default();
                let fresh: Vec<String> = rules.into_iter().filter(|rule| !into.contains(rule)).collect();
                into.extend(fresh);
            }
        }
    }
    let synced = together.sync();
    let as_sets = |kernel: &Kernel| {
        [&kernel.filter, &kernel.nat].map(|chains| {
            let sorted = chains.iter().map(|(name, rules)| (name.clone(), rules.iter().cloned().collect()));
            sorted.collect::<Vec<(String, BTreeSet<String>)>>()
        })
    };
    assert_eq!(as_sets(&together.kernel), as_sets(&want));
    assert_eq!(
        together.kernel.nat["KUBE-SERVICES"].last(),
        want.nat["KUBE-SERVICES"].iter().find(|r| r.contains("last rule"))
    );
    let written: usize =
        together.kernel.nat.iter().filter(|(name, _)| name.starts_with("KUBE-")).map(|(_, r)| r.len()).sum();
    assert_eq!(synced.counts.nat, written);
}

#[test]
fn test_no_endpoints_reject() {
    let world = world(
        Options::default(),
        "service ns/none 10.96.0.1 p:80@30001 external-ips=198.51.100.1 LoadBalancer lb-ips=203.0.113.1",
    );
    for from in [POD, OUTSIDE, NODE] {
        check(
            &world,
            &[
                (from, "10.96.0.1:80", "reject"),
                (from, "10.96.0.1:81", "pass"),
                (from, "10.96.0.1:80/udp", "pass"),
            ],
        );
    }
    for from in [POD, OUTSIDE] {
        check(
            &world,
            &[
                (from, "198.51.100.1:80", "reject"),
                (from, "203.0.113.1:80", "reject"),
                (from, "192.168.0.2:30001", "reject"),
            ],
        );
    }
}

#[test]
fn test_cluster_ip_general() {
    let world = world(
        Options::default(),
        "service ns/one 10.96.0.1 http:80
         slice ns/one of one http:80 10.244.1.1@node-1
         service ns/two 10.96.0.2 http:80 https:443
         slice ns/two of two http:80 https:8443 10.244.1.2@node-1 10.244.2.2@node-2
         service ns/three 10.96.0.3 tcp:80 udp:80/UDP sctp:80/SCTP
         slice ns/three of three tcp:8001 udp:8002/UDP sctp:8003/SCTP 10.244.1.3@node-1",
    );
    check(
        &world,
        &[
            (POD, "10.96.0.1:80", "10.244.1.1:80"),
            (NODE, "10.96.0.1:80", "10.244.1.1:80 masqueraded"),
            (OUTSIDE, "10.96.0.1:80", "10.244.1.1:80 masqueraded"),
            ("10.244.1.1", "10.96.0.1:80", "10.244.1.1:80 masqueraded"), // to itself
            (POD, "10.96.0.2:80", "10.244.1.2:80, 10.244.2.2:80"),
            ("10.244.1.2", "10.96.0.2:80", "10.244.1.2:80 masqueraded, 10.244.2.2:80"),
            (POD, "10.96.0.2:443", "10.244.1.2:8443, 10.244.2.2:8443"),
            (POD, "10.96.0.1:443", "pass"), // another service's port
            (POD, "10.96.0.3:80", "10.244.1.3:8001"),
            (POD, "10.96.0.3:80/udp", "10.244.1.3:8002"),
            (POD, "10.96.0.3:80/sctp", "10.244.1.3:8003"),
            (POD, "10.96.0.2:80/udp", "pass"),
        ],
    );
}

#[test]
fn test_load_balancer() {
    let service = "service ns/lb 10.96.0.1 p:80@30001 LoadBalancer lb-ips=203.0.113.1,203.0.113.2 ranges=192.168.0.0/24,_203.0.113.128/25_
                   slice ns/lb of lb p:8080 10.244.1.1@node-1";
    let open = "10.244.1.1:8080 masqueraded";
    let behind = world(Options::default(), service);
    for balancer in ["203.0.113.1:80", "203.0.113.2:80"] {
        check(
            &behind,
            &[
                (OUTSIDE, balancer, open),
                ("203.0.113.100", balancer, "drop"),
                (POD, balancer, "drop"),
                (NODE, balancer, open),
                ("203.0.113.1", balancer, open), // this node, by the balancer's own address
            ],
        );
    }
    for from in [OUTSIDE, "203.0.113.100", POD] {
        check(&behind, &[(from, "192.168.0.2:30001", open)]); // ranges are not for node ports
    }
    check(&behind, &[(POD, "10.96.0.1:80", "10.244.1.1:8080")]);

    let strict = world(Options::default(), &service.replace("192.168.0.0/24,", ""));
    check(&strict, &[(NODE, "203.0.113.1:80", "drop"), ("203.0.113.1", "203.0.113.1:80", "drop")]);
}

#[test]
fn test_node_ports() {
    const V4: &str = "service ns/np 10.96.0.1 p:80@30001 NodePort\nslice ns/np of np p:80 10.244.1.1@node-1";
    const V6: &str =
        "service ns/np fd00:96::1 p:80@30001 NodePort\nslice ns/np of np p:80 fd00:10:244:1::1@node-1";
    // Family, node ports at localhost, addresses; then what answers: 192.168.0.2, 192.168.1.2, 127.0.0.1, and whether
    // the network is kept from localhost.
    for (v6, localhost, cidrs, answers, firewall) in [
        (false, true, &[][..], [true, true, true], true),
        (false, false, &[], [true, true, false], false),
        (false, true, &["192.168.0.0/24"], [true, false, false], false),
        (false, true, &["192.168.0.0/24", "127.0.0.0/8"], [true, false, true], true),
        (false, false, &["192.168.0.0/24", "127.0.0.0/8"], [true, false, false], false),
        (false, true, &["fd00::/8"], [true, true, true], true),
        (true, true, &[], [true, true, false], false),
        (true, true, &["fd00:192:168::2/128", "::1/128"], [true, true, false], false),
    ] {
        let options = Options {
            localhost_node_ports: localhost,
            node_port_addresses: cidrs.iter().map(|cidr| (*cidr).to_owned()).collect(),
            ..if v6 { Options::v6() } else { Options::default() }
        };
        let case = format!("{options:?}");
        let world = world(options, if v6 { V6 } else { V4 });
        let (outside, addresses) = if v6 {
            ("2001:db8::9", ["[fd00:192:168::2]", "[fd00:192:168::2]", "[::1]"])
        } else {
            (OUTSIDE, [NODE, "192.168.1.2", "127.0.0.1"])
        };
        for (address, answers) in addresses.iter().zip(answers) {
            // Only the node itself can send to localhost.
            let from = if address.contains("127") || address.contains("::1]") {
                address.trim_matches(['[', ']'])
            } else {
                outside
            };
            let fate = world.fates(&format!("{from} -> {address}:30001"));
            assert_eq!(fate.ends_with("masqueraded"), answers, "{address}: {fate}: {case}");
        }
        let kept_out = !world.kernel.filter["KUBE-FIREWALL"].is_empty();
        assert_eq!(kept_out, firewall, "{case}");
        if firewall {
            assert_eq!(world.fates("198.51.100.99 -> 127.0.0.1:22"), "drop");
        }
    }
}

#[test]
fn test_health_check_node_port() {
    let options = Options { node_port_addresses: vec!["127.0.0.0/8".into()], ..Options::default() };
    let mut world = world(
        options,
        "service ns/lb 10.96.0.1 p:80@30001 LoadBalancer lb-ips=203.0.113.1 external-policy=Local health=32100",
    );
    assert_eq!(world.fates(&format!("{OUTSIDE} -> {NODE}:32100")), "accept");
    world.apply_lines("delete service ns/lb").sync();
    assert_eq!(world.fates(&format!("{OUTSIDE} -> {NODE}:32100")), "pass");
}

#[test]
fn test_drop_invalid_rule() {
    for (liberal, nfacct, want) in [
        (
            false,
            true,
            Some(
                "-m conntrack --ctstate INVALID -m nfacct --nfacct-name ct_state_invalid_dropped_pkts -j DROP",
            ),
        ),
        (false, false, Some("-m conntrack --ctstate INVALID -j DROP")),
        (true, true, None),
    ] {
        let world = world(Options { tcp_be_liberal: liberal, nfacct, ..Options::default() }, "");
        let rules = &world.kernel.filter["KUBE-FORWARD"];
        assert_eq!(rules.iter().find(|rule| rule.contains("INVALID")).map(String::as_str), want);
        assert_eq!(rules.len(), 2 + usize::from(want.is_some()));
    }
}

#[test]
fn test_masquerade_rule() {
    for random_fully in [false, true] {
        let world = world(Options { random_fully, ..Options::default() }, "");
        let rules = &world.kernel.nat["KUBE-POSTROUTING"];
        assert_eq!(rules[2].ends_with("-j MASQUERADE --random-fully"), random_fully);
        assert_eq!(rules[2].ends_with("-j MASQUERADE"), !random_fully);
    }
}

#[test]
fn test_external_traffic_policy() {
    let lines =
        "service ns/svc 10.96.0.1 p:80@30001 external-ips=198.51.100.1 LoadBalancer lb-ips=203.0.113.1 external-policy=Local health=32100
                 slice ns/svc of svc p:80 10.244.1.1@node-1 10.244.2.1@node-2";
    let both = "10.244.1.1:80, 10.244.2.1:80";
    let both_masqueraded = "10.244.1.1:80 masqueraded, 10.244.2.1:80 masqueraded";
    let local = world(Options::default(), lines);
    let cluster = world(Options::default(), &lines.replace("Local health=32100", "Cluster"));
    for external in ["198.51.100.1:80", "203.0.113.1:80", "192.168.0.2:30001"] {
        check(
            &local,
            &[
                (OUTSIDE, external, "10.244.1.1:80"),
                (POD, external, both),
                (NODE, external, both_masqueraded),
            ],
        );
        check(
            &cluster,
            &[
                (OUTSIDE, external, both_masqueraded),
                (POD, external, both_masqueraded),
                (NODE, external, both_masqueraded),
            ],
        );
    }
    check(&local, &[(POD, "10.96.0.1:80", both), (OUTSIDE, "10.96.0.1:80", both_masqueraded)]);
    check(&cluster, &[(POD, "10.96.0.1:80", both), (OUTSIDE, "10.96.0.1:80", both_masqueraded)]);

    let remote = world(Options::default(), &lines.replace("10.244.1.1@node-1 ", ""));
    for external in ["198.51.100.1:80", "203.0.113.1:80", "192.168.0.2:30001"] {
        check(&remote, &[(OUTSIDE, external, "drop"), (POD, external, "10.244.2.1:80")]);
    }
}

#[test]
fn test_internal_traffic_policy() {
    for (policy, endpoints, want) in [
        ("Cluster", "10.244.1.1@node-1 10.244.2.1@node-2", "10.244.1.1:80, 10.244.2.1:80"),
        ("Local", "10.244.1.1@node-1 10.244.2.1@node-2", "10.244.1.1:80"),
        ("Local", "10.244.1.1@node-1 10.244.1.2@node-1 10.244.2.1@node-2", "10.244.1.1:80, 10.244.1.2:80"),
        ("Local", "10.244.2.1@node-2 10.244.3.1@node-3", "drop"),
        ("Local", "", "reject"),
    ] {
        let lines = format!(
            "service ns/svc 10.96.0.1 p:80 internal-policy={policy}\nslice ns/svc of svc p:80 {endpoints}"
        );
        let mut world = world(Options::default(), &lines);
        check(&world, &[(POD, "10.96.0.1:80", want)]);
        world.apply_lines("delete slice ns/svc").sync();
        check(&world, &[(POD, "10.96.0.1:80", "reject")]);
    }
}

#[test]
fn test_terminating_endpoints_traffic_policy() {
    // What traffic from outside to the balancer gets, by policy Local and by policy Cluster.
    for (endpoints, local, cluster) in [
        (
            "10.244.1.1@node-1 10.244.1.2@node-1 10.244.1.3@node-1 draining 10.244.2.1@node-2 unready terminating=true",
            "10.244.1.1:80, 10.244.1.2:80",
            "10.244.1.1:80 masqueraded, 10.244.1.2:80 masqueraded",
        ),
        (
            "10.244.1.1@node-1 draining 10.244.1.2@node-1 unready terminating=true 10.244.2.1@node-2",
            "10.244.1.1:80",
            "10.244.2.1:80 masqueraded",
        ),
        (
            "10.244.1.1@node-1 draining 10.244.2.1@node-2 draining",
            "10.244.1.1:80",
            "10.244.1.1:80 masqueraded, 10.244.2.1:80 masqueraded",
        ),
        ("10.244.1.1@node-1 unready terminating=true 10.244.2.1@node-2", "drop", "10.244.2.1:80 masqueraded"),
        ("10.244.2.1@node-2 draining", "drop", "10.244.2.1:80 masqueraded"),
        (
            "10.244.1.1@node-1 unready terminating=true 10.244.2.1@node-2 unready terminating=true",
            "reject",
            "reject",
        ),
    ] {
        for (policy, want) in [("Local", local), ("Cluster", cluster)] {
            let lines = format!(
                "service ns/svc 10.96.0.1 p:80 LoadBalancer lb-ips=203.0.113.1 external-policy={policy}\nslice ns/svc of svc p:80 {endpoints}"
            );
            let mut world = world(Options::default(), &lines);
            assert_eq!(world.fates(&format!("{OUTSIDE} -> 203.0.113.1:80")), want, "{policy}: {endpoints}");
            world.apply_lines("delete slice ns/svc").sync();
            check(&world, &[(OUTSIDE, "203.0.113.1:80", "reject"), (POD, "10.96.0.1:80", "reject")]);
        }
    }
}

#[test]
fn test_internal_external_masquerade() {
    let lines = "
        service ns/cluster 10.96.0.1 p:80@30001 LoadBalancer lb-ips=203.0.113.1
        service ns/external 10.96.0.2 p:80@30002 LoadBalancer lb-ips=203.0.113.2 external-policy=Local health=32100
        service ns/internal 10.96.0.3 p:80@30003 LoadBalancer lb-ips=203.0.113.3 internal-policy=Local
        slice ns/cluster of cluster p:80 10.244.1.1@node-1 10.244.2.1@node-2
        slice ns/external of external p:80 10.244.1.2@node-1 10.244.2.2@node-2
        slice ns/internal of internal p:80 10.244.1.3@node-1 10.244.2.3@node-2";
    // Which endpoints answer (l for the local one, r for the remote one; capital if masqueraded) with the defaults,
    // without a detector, with masqueradeAll, and with both changes.
    let flows: [(&str, &str, [&str; 4]); 30] = [
        (POD, "10.96.0.1:80", ["lr", "lr", "LR", "LR"]),
        (POD, "192.168.0.2:30001", ["LR"; 4]),
        (POD, "203.0.113.1:80", ["LR"; 4]),
        (NODE, "10.96.0.1:80", ["LR", "lr", "LR", "LR"]),
        (NODE, "192.168.0.2:30001", ["LR"; 4]),
        (NODE, "127.0.0.1:30001", ["LR"; 4]),
        (NODE, "203.0.113.1:80", ["LR"; 4]),
        (OUTSIDE, "10.96.0.1:80", ["LR", "lr", "LR", "LR"]),
        (OUTSIDE, "192.168.0.2:30001", ["LR"; 4]),
        (OUTSIDE, "203.0.113.1:80", ["LR"; 4]),
        (POD, "10.96.0.2:80", ["lr", "lr", "LR", "LR"]),
        // Without a detector pods are outsiders, and short circuits are for the node alone.
        (POD, "192.168.0.2:30002", ["lr", "l", "lr", "l"]),
        (POD, "203.0.113.2:80", ["lr", "l", "lr", "l"]),
        (NODE, "10.96.0.2:80", ["LR", "lr", "LR", "LR"]),
        (NODE, "192.168.0.2:30002", ["LR"; 4]),
        (NODE, "127.0.0.1:30002", ["LR"; 4]),
        (NODE, "203.0.113.2:80", ["LR"; 4]),
        (OUTSIDE, "10.96.0.2:80", ["LR", "lr", "LR", "LR"]),
        (OUTSIDE, "192.168.0.2:30002", ["l"; 4]),
        (OUTSIDE, "203.0.113.2:80", ["l"; 4]),
        (POD, "10.96.0.3:80", ["l", "l", "L", "L"]),
        (POD, "192.168.0.2:30003", ["LR"; 4]),
        (POD, "203.0.113.3:80", ["LR"; 4]),
        (NODE, "10.96.0.3:80", ["L", "l", "L", "L"]),
        (NODE, "192.168.0.2:30003", ["LR"; 4]),
        (NODE, "127.0.0.1:30003", ["LR"; 4]),
        (NODE, "203.0.113.3:80", ["LR"; 4]),
        (OUTSIDE, "10.96.0.3:80", ["L", "l", "L", "L"]),
        (OUTSIDE, "192.168.0.2:30003", ["LR"; 4]),
        (OUTSIDE, "203.0.113.3:80", ["LR"; 4]),
    ];
    for (column, (detects, all)) in
        [(true, false), (false, false), (true, true), (false, true)].into_iter().enumerate()
    {
        let mut options = Options { masquerade_all: all, ..Options::default() };
        if !detects {
            options.detect_local = DetectLocal::default();
        }
        let world = world(options, lines);
        for (from, to, want) in flows {
            let fates = world.fates(&format!("{from} -> {to}"));
            let letters = fates.split(", ").map(|fate| {
                let letter = if fate.starts_with("10.244.1.") { "l" } else { "r" };
                if fate.ends_with("masqueraded") { letter.to_uppercase() } else { letter.to_owned() }
            });
            assert_eq!(letters.collect::<String>(), want[column], "{from} -> {to}, {detects} {all}: {fates}");
        }
    }
}

#[test]
fn test_load_balancer_ingress_route_type_proxy() {
    for (ip, want) in [
        ("203.0.113.1", "10.244.1.1:80 masqueraded"),
        ("203.0.113.1~VIP", "10.244.1.1:80 masqueraded"),
        ("203.0.113.1~Proxy", "pass"),
    ] {
        let lines = format!(
            "service ns/lb 10.96.0.1 p:80@30001 LoadBalancer lb-ips={ip}\nslice ns/lb of lb p:80 10.244.1.1@node-1"
        );
        let world = world(Options::default(), &lines);
        check(
            &world,
            &[(OUTSIDE, "203.0.113.1:80", want), (OUTSIDE, "192.168.0.2:30001", "10.244.1.1:80 masqueraded")],
        );
    }
}

#[test]
fn test_bad_ips() {
    let world = world(
        Options::default(),
        "service ns/bad 172.30.0.041 p:80@30001 external-ips=192.168.099.022 LoadBalancer lb-ips=1.2.3.004 ranges=203.0.113.000/025
         slice ns/bad of bad p:80 10.244.001.005@node-1",
    );
    let text: String =
        world.kernel.nat.values().chain(world.kernel.filter.values()).flatten().cloned().collect();
    for (sloppy, canonical) in [
        ("172.30.0.041", "172.30.0.41"),
        ("192.168.099.022", "192.168.99.22"),
        ("1.2.3.004", "1.2.3.4"),
        ("203.0.113.000/025", "203.0.113.0/25"),
        ("10.244.001.005", "10.244.1.5"),
    ] {
        assert!(!text.contains(sloppy) && text.contains(canonical), "{sloppy}");
    }
}

// Upstream leaves the choice among services that claim the same address to chance.
#[test]
fn of_two_services_with_one_address_the_first_by_name_has_it() {
    let mut world = world(
        Options::default(),
        "service ns/b 10.96.0.1 p:80\nslice ns/b of b p:80 10.244.1.2@node-1\n
         service ns/c 10.96.0.1 p:80\nslice ns/c of c p:80 10.244.1.3@node-1",
    );
    check(&world, &[(POD, "10.96.0.1:80", "10.244.1.2:80")]);
    world.apply_lines("service ns/a 10.96.0.1 p:80\nslice ns/a of a p:80 10.244.1.1@node-1").sync();
    check(&world, &[(POD, "10.96.0.1:80", "10.244.1.1:80")]);
    world.apply_lines("delete service ns/a\ndelete service ns/b").sync();
    check(&world, &[(POD, "10.96.0.1:80", "10.244.1.3:80")]);
}
