//! The wires between namespaces and the addresses on them.

use std::net::IpAddr;
use std::process::Command;

use model::address::Family;

use crate::namespace::Namespace;

/// A node with its pods, clients outside the cluster, and the pods of two other nodes.
#[derive(Debug)]
pub struct Network {
    pub node: Namespace,
    pub pods: Vec<Pod>,
    /// Owns further addresses, too: see [`another_client_ip`].
    pub client: Namespace,
    /// Owns the addresses of all pods of the second node.
    pub remote: Namespace,
    /// Owns the addresses of all pods of the third node, which are only clients.
    pub far: Namespace,
    /// The node's default router.
    internet: Namespace,
}

/// A pod of this node.
#[derive(Debug)]
pub struct Pod {
    pub namespace: Namespace,
    pub v4: IpAddr,
    pub v6: IpAddr,
}

fn pair(v4: &str, v6: &str) -> [IpAddr; 2] {
    [v4.parse().unwrap(), v6.parse().unwrap()]
}

pub fn node_ip(family: Family) -> IpAddr {
    of(family, pair("192.0.2.11", "2001:db8:2::11"))
}

/// The node's address on the link to the second node.
pub fn node_ip_towards_remote(family: Family) -> IpAddr {
    of(family, pair("198.51.100.11", "2001:db8:3::11"))
}

pub fn bridge_ip(family: Family) -> IpAddr {
    of(family, pair("10.244.0.1", "fd00:10:244::1"))
}

pub fn client_ip(family: Family) -> IpAddr {
    of(family, pair("192.0.2.200", "2001:db8:2::200"))
}

/// A further address of the client's namespace.
pub fn another_client_ip(family: Family, number: u8) -> IpAddr {
    match family {
        Family::V4 => [100, 64, 7, number].into(),
        Family::V6 => [0x2001, 0xdb8, 7, 0, 0, 0, 0, number.into()].into(),
    }
}

/// The address of a pod of the second node.
pub fn remote_pod_ip(family: Family, number: u8) -> IpAddr {
    match family {
        Family::V4 => [10, 244, 1, number].into(),
        Family::V6 => [0xfd00, 0x10, 0x244, 1, 0, 0, 0, number.into()].into(),
    }
}

/// The address of a pod of the third node.
pub fn far_pod_ip(family: Family) -> IpAddr {
    of(family, pair("10.244.2.9", "fd00:10:244:2::9"))
}

pub fn pod_cidr(family: Family) -> &'static str {
    match family {
        Family::V4 => "10.244.0.0/16",
        Family::V6 => "fd00:10:244::/48",
    }
}

/// The value for `family`.
pub fn of<T>(family: Family, [v4, v6]: [T; 2]) -> T {
    match family {
        Family::V4 => v4,
        Family::V6 => v6,
    }
}

impl Pod {
    pub fn ip(&self, family: Family) -> IpAddr {
        of(family, [self.v4, self.v6])
    }
}

impl Network {
    /// With `pods` pods on this node. The default router forwards nothing and answers with ICMP "administratively prohibited".
    pub fn new(pods: u8) -> Self {
        let network = Self::without_netfilter(pods);
        let border = "table inet border {
            chain forward { type filter hook forward priority 0; reject with icmpx admin-prohibited; }
        }";
        network.internet.run_with_input(Command::new("nft").args(["-f", "-"]), border);
        network
    }

    /// Like [`Self::new`], but adds no rules, so that the kernel loads no module of netfilter. The default router sends packets
    /// back until their hop limit ends.
    pub fn without_netfilter(pods: u8) -> Self {
        let node = Namespace::new();
        node.sysctl("ipv4/ip_forward", "1");
        node.sysctl("ipv6/conf/all/forwarding", "1");
        node.sysctl("ipv4/conf/all/send_redirects", "0");
        node.sysctl("ipv4/conf/default/send_redirects", "0");
        disable_icmp_rate_limit(&node);
        let (client, remote, far, internet) =
            (Namespace::new(), Namespace::new(), Namespace::new(), Namespace::new());
        let pods: Vec<Pod> = (0..pods).map(|number| pod(number + 5)).collect();
        connect(&node, [&client, &remote, &far, &internet], &pods);

        client.ip_all(&[
            "address add 192.0.2.200/24 dev eth0".into(),
            "address add 2001:db8:2::200/64 dev eth0 nodad".into(),
            "route add default via 192.0.2.11".into(),
            "route add default via 2001:db8:2::11".into(),
        ]);
        own(&client, "100.64.7.0/24", "2001:db8:7::/64");

        remote.ip_all(&[
            "address add 198.51.100.12/24 dev eth0".into(),
            "address add 2001:db8:3::12/64 dev eth0 nodad".into(),
            "route add default via 198.51.100.11".into(),
            "route add default via 2001:db8:3::11".into(),
        ]);
        own(&remote, "10.244.1.0/24", "fd00:10:244:1::/64");

        far.ip_all(&[
            "address add 198.18.2.12/24 dev eth0".into(),
            "address add 2001:db8:4::12/64 dev eth0 nodad".into(),
            "route add default via 198.18.2.11".into(),
            "route add default via 2001:db8:4::11".into(),
        ]);
        own(&far, "10.244.2.0/24", "fd00:10:244:2::/64");

        internet.sysctl("ipv4/ip_forward", "1");
        internet.sysctl("ipv6/conf/all/forwarding", "1");
        disable_icmp_rate_limit(&internet);
        internet.ip_all(&[
            "address add 198.18.3.12/24 dev eth0".into(),
            "address add 2001:db8:6::12/64 dev eth0 nodad".into(),
            "route add default via 198.18.3.11".into(),
            "route add default via 2001:db8:6::11".into(),
        ]);
        for pod in &pods {
            // A /32 route sends even traffic between pods through the node, which must see both directions.
            pod.namespace.ip_all(&[
                format!("address add {}/32 dev eth0", pod.v4),
                format!("address add {}/128 dev eth0 nodad", pod.v6),
                "route add default via 10.244.0.1 dev eth0 onlink".into(),
                "route add default via fd00:10:244::1 dev eth0 onlink".into(),
            ]);
        }
        Self { node, pods, client, remote, far, internet }
    }

    /// All addresses of the node.
    pub fn node_ips(family: Family) -> [IpAddr; 6] {
        [
            node_ip(family),
            node_ip_towards_remote(family),
            bridge_ip(family),
            of(family, pair("198.18.2.11", "2001:db8:4::11")),
            of(family, pair("198.18.3.11", "2001:db8:6::11")),
            of(family, pair("127.0.0.1", "::1")),
        ]
    }
}

/// Connects the node's `eth0` to `eth3` to `others`, in this order, and its bridge to the pods.
fn connect(node: &Namespace, others: [&Namespace; 4], pods: &[Pod]) {
    let mut lines = vec![
        "link add cbr0 type bridge".to_string(),
        "address add 10.244.0.1/24 dev cbr0".into(),
        "address add fd00:10:244::1/64 dev cbr0 nodad".into(),
        "link set cbr0 up".into(),
    ];
    let veth = |port: &str, other: &Namespace| {
        [
            format!("link add {port} type veth peer name eth0 netns {}", other.path()),
            format!("link set {port} up"),
        ]
    };
    for (number, other) in others.into_iter().enumerate() {
        lines.extend(veth(&format!("eth{number}"), other));
    }
    for (number, pod) in pods.iter().enumerate() {
        let port = format!("pod{number}");
        lines.extend(veth(&port, &pod.namespace));
        // A pod that reaches itself through a Service: the bridge sends the packet back out of the port it came in.
        lines.push(format!("link set {port} master cbr0"));
        lines.push(format!("link set {port} type bridge_slave hairpin on"));
    }
    node.ip_all(&lines);
    for other in others.into_iter().chain(pods.iter().map(|pod| &pod.namespace)) {
        other.ip("link set eth0 up");
    }
    node.ip_all(&[
        "address add 192.0.2.11/24 dev eth0".into(),
        "address add 2001:db8:2::11/64 dev eth0 nodad".into(),
        "address add 198.51.100.11/24 dev eth1".into(),
        "address add 2001:db8:3::11/64 dev eth1 nodad".into(),
        "address add 198.18.2.11/24 dev eth2".into(),
        "address add 2001:db8:4::11/64 dev eth2 nodad".into(),
        "address add 198.18.3.11/24 dev eth3".into(),
        // The default route uses the node's main address as source.
        "address add 2001:db8:6::11/64 dev eth3 preferred_lft 0 nodad".into(),
        "address add 2001:db8:2::11/128 dev eth3 nodad".into(),
        "route add 100.64.7.0/24 via 192.0.2.200".into(),
        "route add 2001:db8:7::/64 via 2001:db8:2::200".into(),
        "route add 10.244.1.0/24 via 198.51.100.12".into(),
        "route add fd00:10:244:1::/64 via 2001:db8:3::12".into(),
        "route add 10.244.2.0/24 via 198.18.2.12".into(),
        "route add fd00:10:244:2::/64 via 2001:db8:4::12".into(),
        "route add default via 198.18.3.12 src 192.0.2.11".into(),
        "route add default via 2001:db8:6::12".into(),
    ]);
}

/// Without a rate limit every refused probe gets its ICMP error.
fn disable_icmp_rate_limit(namespace: &Namespace) {
    namespace.sysctl("ipv4/icmp_ratemask", "0");
    // The mask lists the types to limit: 255 is none that is used.
    namespace.sysctl("ipv6/icmp/ratemask", "255");
}

/// Makes every address of these networks a local one.
fn own(namespace: &Namespace, v4: &str, v6: &str) {
    namespace.ip_all(&[format!("route add local {v4} dev lo"), format!("route add local {v6} dev lo")]);
    namespace.sysctl("ipv6/ip_nonlocal_bind", "1");
}

fn pod(host: u8) -> Pod {
    let namespace = Namespace::new();
    // The node tells pods of one bridge to bypass it, which no longer translates their packets then.
    namespace.sysctl("ipv6/conf/default/accept_redirects", "0");
    Pod {
        namespace,
        v4: IpAddr::from([10, 244, 0, host]),
        v6: IpAddr::from([0xfd00, 0x10, 0x244, 0, 0, 0, 0, host.into()]),
    }
}
