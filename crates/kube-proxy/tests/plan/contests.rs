//! What `plan` prints of frontends that several services claim.

use std::fs;

use netlink::testing::in_fresh_netns;

use crate::cluster::{Cluster, web};

#[test]
fn of_two_services_at_one_address_both_are_new() {
    in_fresh_netns(|| {
        let cluster = Cluster::new("nftables");
        cluster.write("a", &web("10.96.0.10", "80", "30086", &[]).replace("web", "a"));
        let (code, text) = cluster.tool("plan", &[]);
        assert_eq!(code, 2, "{text}");
        let want = "+ ipv4 default/web:http\n    + node port 30080/TCP\n    + endpoint 10.244.0.5:8080\n";
        assert!(text.contains(want), "{text}");
    });
}

#[test]
fn a_frontend_that_several_services_claim_is_reported() {
    for (mode, precedence, because) in [
        ("nftables", "firstByName", "the first by name has it"),
        ("iptables", "firstRule", "the first rule has it, in the order of names"),
    ] {
        in_fresh_netns(move || {
            let cluster = Cluster::new(mode);
            let service = |name: &str, number: u8| {
                let (ip, node_port, endpoint) =
                    (format!("10.96.1.{number}"), format!("3020{number}"), format!("10.244.1.{number}"));
                let text = web(&ip, "80", &node_port, &[&endpoint]).replace("web", name);
                text.replace("type: NodePort", "type: NodePort\n  externalIPs: [198.51.100.1]")
            };
            let contests = |what: &str| {
                let lines = cluster.plan(what).into_iter();
                lines.filter(|line| line.starts_with('!')).collect::<Vec<String>>()
            };
            cluster.write("mid", &service("mid", 1));
            cluster.sync();
            cluster.write("zed", &service("zed", 2));
            let at = "! ipv4 198.51.100.1:80/TCP goes to default";
            let want = format!("{at}/mid:http, also claimed by default/zed:http: {because}");
            assert_eq!(contests("a later one comes"), [want], "{mode}");
            let (_, json) = cluster.tool("plan", &["-o", "json"]);
            let json: serde_json::Value = serde_json::from_str(&json).unwrap();
            assert_eq!(
                json[0]["contested"],
                serde_json::json!([{
                    "frontend": "198.51.100.1:80/TCP",
                    "service": "default/mid:http",
                    "precedence": precedence,
                    "denied_to": ["default/zed:http"],
                    "given_up_by": [],
                }]),
                "{mode}"
            );
            cluster.sync();
            fs::remove_file(cluster.folder.path().join("mid.yaml")).unwrap();
            let why = match mode {
                "iptables" => "no longer claimed by default/mid:http",
                _ => "another service had it",
            };
            assert_eq!(contests("only one is left"), [format!("{at}/zed:http, {why}")], "{mode}");
        });
    }
}

#[test]
fn an_endpoint_that_only_some_addresses_lead_to_makes_no_contest() {
    in_fresh_netns(|| {
        let cluster = Cluster::new("nftables");
        let local =
            web("10.96.1.1", "80", "30201", &["10.244.1.1", "10.244.1.2"]).replace("web", "local").replace(
                "type: NodePort",
                "type: NodePort\n  externalTrafficPolicy: Local\n  internalTrafficPolicy: Local",
            );
        let remote = "{addresses: [10.244.1.2], nodeName: node-1}";
        cluster.write("local", &local.replace(remote, "{addresses: [10.244.1.2], nodeName: node-2}"));
        cluster.sync();
        cluster.write("local", &local.replace(&format!(", {remote}"), ""));
        assert_eq!(
            cluster.plan("a remote endpoint goes"),
            ["~ ipv4 default/local:http", "    - endpoint 10.244.1.2:8080 at node port 30201/TCP"]
        );
    });
}
