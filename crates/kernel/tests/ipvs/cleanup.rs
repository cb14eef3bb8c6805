//! Cleanup removes what an ipvs mode left, and nothing of other programs.

use std::io;

use kernel::ipvs::{destroy_sets, remove};
use model::address::Family;
use netlink::testing::run;
use plan::ipvs::servers::INTERFACE;

use crate::setup::{add_real, add_virtual, bind, in_netns_with_ipvs, open, saved};

fn links() -> String {
    run("ip -o link")
}

#[test]
fn virtual_servers_in_excluded_cidrs_stay() {
    in_netns_with_ipvs(|| {
        let mut servers = open(Family::V4);
        servers
            .commit(&[
                add_virtual("10.96.0.10:80/TCP", "rr"),
                add_real("10.96.0.10:80/TCP", "10.244.1.1:8080", 1),
                bind("10.96.0.10"),
            ])
            .unwrap();
        run("ipvsadm -A -t 203.0.113.5:443 -s wlc");
        run("ipvsadm -a -t 203.0.113.5:443 -r 192.0.2.7:443 -g");
        run("ipvsadm -A -f 7 -s rr");
        remove(Family::V4, &["203.0.113.0/24".parse().unwrap(), "2001:db8::/32".parse().unwrap()]).unwrap();
        let want = [
            "-A -f 7 -s rr",
            "-A -t 203.0.113.5:443 -s wlc",
            "-a -t 203.0.113.5:443 -r 192.0.2.7:443 -g -w 1",
        ];
        assert_eq!(saved().into_iter().collect::<Vec<_>>(), want);
        assert!(!links().contains(INTERFACE));
    });
}

#[test]
fn without_the_interface_no_virtual_server_is_ours() {
    in_netns_with_ipvs(|| {
        run("ipvsadm -A -t 203.0.113.5:443 -s wlc");
        remove(Family::V4, &[]).unwrap();
        assert_eq!(saved().len(), 1);
    });
}

#[test]
fn cleanup_of_one_family_leaves_the_other() {
    in_netns_with_ipvs(|| {
        open(Family::V4).commit(&[add_virtual("10.96.0.10:80/TCP", "rr"), bind("10.96.0.10")]).unwrap();
        open(Family::V6)
            .commit(&[add_virtual("[fd00:10:96::a]:80/TCP", "rr"), bind("fd00:10:96::a")])
            .unwrap();
        remove(Family::V4, &[]).unwrap();
        assert_eq!(saved().into_iter().collect::<Vec<_>>(), ["-A -t [fd00:10:96::a]:80 -s rr"]);
        let addresses = run(&format!("ip -o addr show dev {INTERFACE}"));
        assert!(addresses.contains("fd00:10:96::a") && !addresses.contains("10.96.0.10"), "{addresses}");
        remove(Family::V6, &[]).unwrap();
        assert!(saved().is_empty() && !links().contains(INTERFACE));
        remove(Family::V6, &[]).expect("nothing is left");
    });
}

#[test]
fn an_interface_of_another_kind_is_not_deleted() {
    in_netns_with_ipvs(|| {
        run(&format!("ip link add {INTERFACE} type bridge"));
        let error = remove(Family::V4, &[]).unwrap_err();
        assert_eq!(error.to_string(), "kube-ipvs0 is not a dummy interface");
        assert!(links().contains(INTERFACE));
    });
}

#[test]
fn sets_of_upstream_are_destroyed_and_others_stay() {
    in_netns_with_ipvs(|| {
        for family in Family::BOTH {
            destroy_sets(family).expect("there are none");
        }
        for create in [
            "KUBE-CLUSTER-IP hash:ip,port family inet",
            "KUBE-NODE-PORT-TCP bitmap:port range 0-65535",
            "KUBE-6-LOAD-BALANCER-SOURCE-CID hash:ip,port,net family inet6",
            "KUBE-6-HEALTH-CHECK-NODE-PORT bitmap:port range 0-65535",
            "KUBE-CLUSTER-IP-2 hash:ip",
            "KUBE-MINE hash:ip",
        ] {
            run(&format!("ipset create {create}"));
        }
        run("ipset add KUBE-CLUSTER-IP 10.96.0.10,tcp:80");
        let names = || {
            let mut names: Vec<String> = run("ipset list -n").lines().map(str::to_owned).collect();
            names.sort();
            names
        };
        destroy_sets(Family::V4).unwrap();
        assert_eq!(
            names(),
            [
                "KUBE-6-HEALTH-CHECK-NODE-PORT",
                "KUBE-6-LOAD-BALANCER-SOURCE-CID",
                "KUBE-CLUSTER-IP-2",
                "KUBE-MINE"
            ]
        );
        destroy_sets(Family::V6).unwrap();
        assert_eq!(names(), ["KUBE-CLUSTER-IP-2", "KUBE-MINE"]);
    });
}

#[test]
fn a_set_that_a_rule_uses_is_busy_and_the_others_are_destroyed() {
    in_netns_with_ipvs(|| {
        run("ipset create KUBE-LOOP-BACK hash:ip,port,ip");
        run("ipset create KUBE-CLUSTER-IP hash:ip,port");
        run("iptables-legacy -A INPUT -m set --match-set KUBE-LOOP-BACK dst,dst,src -j ACCEPT");
        let error = destroy_sets(Family::V4).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        assert_eq!(error.to_string(), "destroying set KUBE-LOOP-BACK: a rule uses the set");
        assert_eq!(run("ipset list -n").trim(), "KUBE-LOOP-BACK");
        run("iptables-legacy -F INPUT");
        destroy_sets(Family::V4).unwrap();
        assert_eq!(run("ipset list -n"), "");
    });
}
