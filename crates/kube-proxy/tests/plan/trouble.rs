//! Missing privileges, manifests that are refused, flags that do not apply.

use std::process::Command;

use netlink::testing::in_fresh_netns;

use crate::cluster::{Cluster, outcome, web, without_privileges};

#[test]
fn plan_without_privileges_fails_with_a_clear_error() {
    in_fresh_netns(|| {
        let cluster = Cluster::new("nftables");
        cluster.open_to_all();
        let (code, text) = without_privileges(&cluster, "plan", &[]);
        assert_eq!(code, 1, "{text}");
        assert!(
            text.starts_with(
                "Error: reading the ipv4 rules of the kernel (it takes root or CAP_NET_ADMIN): "
            ),
            "{text}"
        );
    });
}

#[test]
fn what_is_refused_is_named_and_the_rest_is_answered_for() {
    in_fresh_netns(|| {
        let cluster = Cluster::new("nftables");
        cluster.sync();
        cluster.write("web", &web("10.96.0.10", "eighty", "30080", &["10.244.0.5"]));
        cluster.write("broken", "kind: {\n");
        let warning = "Warning: ignoring 2 rejected files or objects, see above\n";
        let dns = ["--from=10.244.0.9", "tcp", "10.96.0.53:53"];
        for (tool, more, code, part) in [
            ("plan", &[][..], 2, "    - 10.96.0.10:80/TCP\n"),
            ("verify", &[], 2, "unexpected element cluster-ips { 10.96.0.10 }"),
            ("render", &["--family=ipv4"], 0, "10.96.0.53 . tcp . 53"),
            ("explain", &dns, 0, "cluster IP of default/dns:http"),
        ] {
            let (found, text) = cluster.tool(tool, more);
            assert_eq!(found, code, "{tool}: {text}");
            for part in [part, warning, "web.yaml", "expected a whole number", "broken.yaml"] {
                assert!(text.contains(part), "{tool}: {part:?} is not in {text}");
            }
        }

        // On standard output and nothing else, for programs.
        let json = |tool: &str, more: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_kube-proxy"));
            let output = command.arg(tool).args(cluster.flags()).args(["-o", "json"]).args(more).output();
            serde_json::from_slice::<serde_json::Value>(&output.unwrap().stdout).unwrap()
        };
        let answers = [
            json("plan", &[])[0]["left_out"].clone(),
            json("verify", &[])[0]["left_out"].clone(),
            json("explain", &dns)["leftOut"].clone(),
        ];
        for left_out in answers {
            let left_out: Vec<&str> =
                left_out.as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
            assert!(left_out[0].starts_with("broken.yaml: line "), "{left_out:?}");
            assert_eq!(
                left_out[1..],
                ["web.yaml: line 7 column 30: Service \"web\": expected a whole number"]
            );
        }
    });
}

#[test]
fn a_plan_of_nothing_says_to_programs_what_was_left_out() {
    in_fresh_netns(|| {
        let cluster = Cluster::new("nftables");
        cluster.sync();
        cluster.write("broken", "kind: {\n");
        let (code, text) = cluster.tool("plan", &["-o", "json"]);
        assert_eq!(code, 0, "{text}");
        assert!(text.contains("\"left_out\": [\n"), "{text}");
    });
}

#[test]
fn cleaning_up_beside_a_running_proxy_says_what_to_do() {
    in_fresh_netns(|| {
        let cluster = Cluster::new("nftables");
        let _proxy = cluster.start();
        cluster.wait_until_verified();
        let (code, text) =
            outcome(Command::new(env!("CARGO_BIN_EXE_kube-proxy")).arg("--cleanup").output().unwrap());
        assert_eq!(code, 1, "{text}");
        assert!(text.contains("belongs to a proxy that is still running; stop that one first"), "{text}");
    });
}

#[test]
fn what_the_running_proxy_would_not_heed_is_refused() {
    for tool in [&["verify"][..], &["explain", "tcp", "10.96.0.10:80"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kube-proxy"));
        command.args(tool).args(["--hostname-override=node-1", "--proxy-mode=iptables", "--v=0"]);
        let (code, text) = outcome(command.output().unwrap());
        assert_eq!(code, 1, "{text}");
        assert!(
            text.starts_with("Error: --proxy-mode: the proxy that runs on this node is queried"),
            "{text}"
        );
    }
}
