//! What `plan` prints of an edit.

use std::fs;

use netlink::testing::{in_fresh_netns, run};

use crate::cluster::{Cluster, MODES, NOTHING, web};

#[test]
fn after_a_sync_there_is_nothing_to_do_whether_the_proxy_runs_or_not() {
    for mode in MODES {
        in_fresh_netns(move || {
            let cluster = Cluster::new(mode);
            let (code, text) = cluster.tool("plan", &[]);
            assert_eq!(code, 2, "{text}");
            assert!(text.contains("+ ipv4 default/web:http\n    + node port 30080/TCP\n    + 10.96.0.10:80/TCP\n    + endpoint 10.244.0.5:8080\n"), "{text}");
            assert!(
                text.contains("+ ipv4 default/none:http\n    + node port 30081/TCP refused: no endpoints\n"),
                "{text}"
            );
            assert!(text.contains("    + session affinity 10800s\n"), "{text}");
            let proxy = cluster.start();
            cluster.wait_until_verified();
            assert_eq!(cluster.tool("plan", &[]), NOTHING, "{mode}, while it runs");
            drop(proxy);
            assert_eq!(cluster.tool("plan", &[]), NOTHING, "{mode}, after it ended");
        });
    }
}

/// Against real kernels; the tests of `plan::served` have more of them.
#[test]
fn a_plan_prints_the_edit_and_nothing_else() {
    let three = ["10.244.0.5", "10.244.0.6", "10.244.0.7"];
    let edits: [(&str, &str, String, &[&str]); 5] = [
        (
            "another port and other endpoints",
            "dns",
            web("10.96.0.53", "54", "30053", &["10.244.0.10"]).replace("web", "dns"),
            &[
                "~ ipv4 default/dns:http",
                "    - 10.96.0.53:53/TCP",
                "    - endpoint 10.244.0.9:8080",
                "    + 10.96.0.53:54/TCP",
                "    + endpoint 10.244.0.10:8080",
            ],
        ),
        (
            "one endpoint less",
            "web",
            web("10.96.0.10", "80", "30080", &["10.244.0.5", "10.244.0.7"]),
            &["~ ipv4 default/web:http", "    - endpoint 10.244.0.6:8080"],
        ),
        (
            "affinity, and another endpoint instead of the only one",
            "dns",
            web("10.96.0.53", "53", "30053", &["10.244.0.10"])
                .replace("web", "dns")
                .replace("type: NodePort", "type: NodePort\n  sessionAffinity: ClientIP"),
            &[
                "~ ipv4 default/dns:http",
                "    - endpoint 10.244.0.9:8080",
                "    + session affinity 10800s",
                "    + endpoint 10.244.0.10:8080",
            ],
        ),
        (
            "a name like an option, without endpoints",
            "node-js",
            web("10.96.0.15", "80", "30085", &[]).replace("web", "node-js"),
            &[
                "+ ipv4 default/node-js:http",
                "    + node port 30085/TCP refused: no endpoints",
                "    + 10.96.0.15:80/TCP refused: no endpoints",
            ],
        ),
        (
            "nothing",
            "web",
            web("10.96.0.10", "80", "30080", &three).replace("  type", "  # a remark\n  type"),
            &[],
        ),
    ];
    for mode in MODES {
        let edits = edits.clone();
        in_fresh_netns(move || {
            let cluster = Cluster::new(mode);
            cluster.sync();
            for (what, name, content, want) in edits {
                let path = cluster.folder.path().join(format!("{name}.yaml"));
                let before = fs::read_to_string(&path).ok();
                cluster.write(name, &content);
                if want.is_empty() {
                    assert_eq!(cluster.tool("plan", &[]), NOTHING, "{mode}: {what}");
                } else {
                    assert_eq!(cluster.plan(what), want, "{mode}: {what}");
                }
                match before {
                    Some(before) => cluster.write(name, &before),
                    None => fs::remove_file(path).unwrap(),
                }
            }
            assert_eq!(cluster.tool("plan", &[]), NOTHING, "{mode}: all as it was");
            a_service_that_goes(&cluster);
        });
    }
}

/// Only rules of the iptables mode name the service they are for.
fn a_service_that_goes(cluster: &Cluster) {
    fs::remove_file(cluster.folder.path().join("dns.yaml")).unwrap();
    let service = if cluster.mode == "iptables" { "default/dns:http" } else { "(no service)" };
    assert_eq!(
        cluster.plan("a service that goes"),
        [
            &format!("- ipv4 {service}"),
            "    - node port 30053/TCP",
            "    - 10.96.0.53:53/TCP",
            "    - endpoint 10.244.0.9:8080"
        ],
        "{}",
        cluster.mode
    );
}

#[test]
fn a_change_of_policy_is_printed_with_other_changes() {
    for mode in MODES {
        in_fresh_netns(move || {
            let cluster = Cluster::new(mode);
            cluster.sync();
            let two = web("10.96.0.10", "80", "30080", &["10.244.0.5", "10.244.0.6"]);
            cluster.write(
                "web",
                &two.replace("type: NodePort", "type: NodePort\n  externalTrafficPolicy: Local"),
            );
            assert_eq!(
                cluster.plan("policy"),
                [
                    "~ ipv4 default/web:http",
                    "    - endpoint 10.244.0.7:8080",
                    "    + node port 30080/TCP keeps client addresses"
                ],
                "{mode}"
            );
        });
    }
}

#[test]
fn an_endpoint_that_moves_to_another_node_is_printed_with_its_service() {
    in_fresh_netns(|| {
        let cluster = Cluster::new("nftables");
        cluster.sync();
        let dns = web("10.96.0.53", "53", "30053", &["10.244.0.9"]).replace("web", "dns");
        cluster.write("dns", &dns.replace("nodeName: node-1", "nodeName: node-2"));
        assert_eq!(
            cluster.plan("another node"),
            [
                "~ ipv4 default/dns:http",
                "    - endpoint 10.244.0.9:8080 is on this node, and can connect to itself"
            ]
        );
    });
}

#[test]
fn a_udp_service_that_goes_is_one_service() {
    in_fresh_netns(|| {
        let cluster = Cluster::new("iptables");
        let dns = web("10.96.0.53", "53", "30053", &["10.244.0.9"]).replace("web", "dns");
        cluster.write("dns", &dns.replace("port: ", "protocol: UDP, port: "));
        cluster.sync();
        fs::remove_file(cluster.folder.path().join("dns.yaml")).unwrap();
        assert_eq!(
            cluster.plan("a service that goes"),
            [
                "- ipv4 default/dns:http",
                "    - node port 30053/UDP",
                "    - 10.96.0.53:53/UDP",
                "    - endpoint 10.244.0.9:8080"
            ]
        );
    });
}

#[test]
fn a_plan_can_be_read_by_programs_and_in_every_detail() {
    in_fresh_netns(|| {
        let cluster = Cluster::new("nftables");
        cluster.sync();
        assert_eq!(cluster.tool("plan", &["-o", "json"]), (0, "[]\n".into()));
        cluster.write("dns", &web("10.96.0.53", "53", "30053", &["10.244.0.8"]).replace("web", "dns"));
        let (code, text) = cluster.tool("plan", &["--objects"]);
        assert_eq!(code, 2);
        assert!(text.contains("    + element endpoints { 0x00000002 . 0 : 10.244.0.8 . 8080 }\n"), "{text}");
        let (code, text) = cluster.tool("plan", &["-o=json"]);
        assert_eq!(code, 2);
        let plan: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(plan[0]["family"], "ipv4");
        assert_eq!(plan[0]["changes"][0]["service"], "default/dns:http");
        assert_eq!(
            plan[0]["changes"][0]["lines"],
            serde_json::json!(["- endpoint 10.244.0.9:8080", "+ endpoint 10.244.0.8:8080"])
        );
        assert_eq!(plan[0]["add"], 2);
        assert_eq!(plan[0]["objects"].as_array().unwrap().len(), 4);
    });
}

#[test]
fn a_foreign_table_is_replaced() {
    in_fresh_netns(|| {
        let cluster = Cluster::new("nftables");
        run("nft add table ip kube-proxy");
        run("nft add chain ip kube-proxy services");
        run(
            "nft add map ip kube-proxy service-ips { type ipv4_addr . inet_proto . inet_service : verdict ; }",
        );
        let (code, text) = cluster.tool("plan", &[]);
        assert_eq!(code, 2);
        assert!(text.contains("ipv4: takes over from the kube-proxy table of another program ("), "{text}");
        assert!(text.contains("+ ipv4 default/web:http\n"), "{text}");
    });
}
