//! What `plan` prints where another mode serves.

use std::time::Duration;

use netlink::testing::{in_fresh_netns, run};
use testkit::wait::Deadline;

use crate::cluster::{Cluster, NOTHING};

#[test]
fn a_change_of_modes_says_what_clients_will_notice() {
    in_fresh_netns(|| {
        let mut cluster = Cluster::new("iptables");
        cluster.sync();
        cluster.mode = "nftables";
        let (code, text) = cluster.tool("plan", &[]);
        assert_eq!(code, 2);
        for line in [
            "ipv4: takes over from the iptables mode (",
            "    node port 30080/TCP (default/web:http) stops answering on 127.0.0.1\n",
            "    unused ports of cluster IPs are refused instead of routed to the network, for example of 10.96.0.53 (default/dns:http) and 3 more\n",
            "    forwarded packets that belong to no connection (ct state invalid) are no longer dropped\n",
            "    clients of default/sticky:http (session affinity 10800s) may be sent to another endpoint once",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
        assert!(!text.contains("(default/none:http) stops"), "it never answered:\n{text}");
        run("iptables -P FORWARD DROP");
        let (_, text) = cluster.tool("plan", &[]);
        assert!(text.contains("    the policy of the iptables FORWARD chain is DROP"), "{text}");
        run("iptables -P FORWARD ACCEPT");

        cluster.sync();
        let mut gone = Deadline::after(Duration::from_secs(20));
        while cluster.tool("plan", &[]) != NOTHING {
            assert!(!gone.has_passed(), "the other mode's rules go: {:?}", cluster.tool("plan", &[]));
            let _proxy = cluster.start();
            std::thread::sleep(Duration::from_secs(1));
        }
        cluster.mode = "iptables";
        let (code, text) = cluster.tool("plan", &[]);
        assert_eq!(code, 2);
        for line in [
            "ipv4: takes over from the nftables mode of this program (",
            "    node port 30080/TCP (default/web:http) starts answering on 127.0.0.1\n",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
    });
}

/// Without --nodeport-addresses the modes differ in which addresses serve node ports.
#[test]
fn a_change_of_modes_names_the_addresses_that_fall_silent() {
    in_fresh_netns(|| {
        let mut cluster = Cluster::new("iptables");
        run("ip addr add 192.0.2.11/32 dev lo");
        run("ip addr add 198.51.100.7/32 dev lo");
        let node = "apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}
";
        cluster.write("node", node);
        cluster.sync();
        cluster.mode = "nftables";
        let (_, text) = cluster.tool("plan", &[]);
        let line = "    node port 30080/TCP (default/web:http) stops answering on 198.51.100.7\n";
        assert!(text.contains(line) && !text.contains("answering on 192.0.2.11"), "{text}");
    });
}
