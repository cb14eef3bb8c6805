//! What upstream's ipvs mode programmed on a running kernel. Each `examples/*.txt` has objects, then what `ipvsadm-save -n` listed,
//! the addresses of `kube-ipvs0`, and those ipsets whose entries our sets have as well.

use std::collections::BTreeSet;

use model::address::Family;
use model::names::Protocol;
use plan::ipvs::plan::IpvsPlan;
use plan::ipvs::text;
use plan::nftables::elements::FrontendKey;
use plan::nftables::sets::{Element, LookupBy, Set};

use crate::world::{plan, settings};

/// On the node of every example.
const ALWAYS: &str = "service default/kubernetes 10.96.0.1 https:443
    slice default/kubernetes of kubernetes https:6443 | 192.0.2.1";

/// The parts of an example.
struct Example {
    objects: String,
    servers: BTreeSet<String>,
    bound: BTreeSet<String>,
    ipsets: BTreeSet<String>,
}

fn example(text: &str) -> Example {
    let mut parts = text.split("\n## ");
    let objects = parts.next().unwrap().lines().filter(|line| !line.starts_with('#'));
    let objects = objects.map(|line| format!("{line}\n")).collect::<String>() + ALWAYS;
    let mut lines = |title: &str| -> BTreeSet<String> {
        let mut lines = parts.next().unwrap().lines();
        assert_eq!(lines.next(), Some(title));
        lines.filter(|line| !line.is_empty()).map(Into::into).collect()
    };
    Example {
        servers: lines("ipvsadm-save -n"),
        bound: lines("kube-ipvs0"),
        ipsets: lines("ipset save"),
        objects,
    }
}

fn check(text: &str) {
    let example = example(text);
    let plans = Family::BOTH.map(|family| plan(settings(family), &example.objects));
    let servers = plans.iter().map(|plan| text::servers(&plan.servers().all())).collect::<String>();
    same(servers.lines().map(Into::into), &example.servers);
    let bound = plans.iter().flat_map(|plan| plan.desired().bound_ips());
    same(bound.map(|ip| ip.to_string()), &example.bound);
    same(plans.iter().flat_map(ipsets), &comparable(&example.ipsets));
}

/// Two lists of what differs say more than two long lists.
fn same(ours: impl Iterator<Item = String>, upstream: &BTreeSet<String>) {
    let ours: BTreeSet<String> = ours.collect();
    let only = |one: &BTreeSet<String>, other| one.difference(other).cloned().collect::<Vec<_>>();
    assert_eq!((only(&ours, upstream), only(upstream, &ours)), (Vec::new(), Vec::new()));
}

/// Upstream distinguishes kinds of frontends by their sets, and has node ports of SCTP once for each address.
fn comparable(ipsets: &BTreeSet<String>) -> BTreeSet<String> {
    let entry = |line: &String| {
        let (set, entry) = line.strip_prefix("add KUBE-").unwrap().split_once(' ').unwrap();
        let set = set.strip_prefix("6-").unwrap_or(set);
        let node_port = |protocol: &str| format!("{protocol}:{}", entry.rsplit(':').next().unwrap());
        Some(match set {
            "CLUSTER-IP" | "EXTERNAL-IP" | "LOAD-BALANCER" => format!("frontends {entry}"),
            "EXTERNAL-IP-LOCAL" => format!("external-local {entry}\nfrontends {entry}"),
            "LOAD-BALANCER-LOCAL" => format!("external-local {entry}"),
            "LOAD-BALANCER-FW" => format!("firewalled {entry}"),
            "HEALTH-CHECK-NODE-PORT" => format!("health-check-ports tcp:{entry}"),
            "NODE-PORT-TCP" => format!("nodeports {}", node_port("tcp")),
            "NODE-PORT-UDP" => format!("nodeports {}", node_port("udp")),
            "NODE-PORT-SCTP-HASH" => format!("nodeports {}", node_port("sctp")),
            "NODE-PORT-LOCAL-TCP" => format!("nodeports-local {}", node_port("tcp")),
            "NODE-PORT-LOCAL-UDP" => format!("nodeports-local {}", node_port("udp")),
            // Ours are aggregated; packets show what they do.
            "LOAD-BALANCER-SOURCE-CIDR" | "LOAD-BALANCER-SOURCE-IP" => return None,
            other => panic!("{other}"),
        })
    };
    let entries = ipsets.iter().filter_map(entry);
    entries.flat_map(|lines| lines.split('\n').map(String::from).collect::<Vec<_>>()).collect()
}

fn ipsets(plan: &IpvsPlan) -> Vec<String> {
    let family = plan.desired().settings().family;
    let name = |protocol| match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    };
    let entry = |element: &Element, by| {
        let (FrontendKey { ip, protocol, port }, _) =
            FrontendKey::from_key(element.key.as_bytes(), by, family).unwrap();
        let ip = ip.map(|ip| format!("{ip},")).unwrap_or_default();
        format!("{} {ip}{}:{port}", element.set.name(), name(protocol))
    };
    let entries = plan.desired().elements().into_iter().filter_map(|element| {
        let (Set::Frontends(by) | Set::ExternalLocal(by)) = element.set else {
            let alone = [(Set::Firewalled, LookupBy::Address), (Set::HealthCheckPorts, LookupBy::NodePort)];
            let (_, by) = alone.iter().find(|(set, _)| *set == element.set)?;
            return Some(entry(&element, *by));
        };
        Some(entry(&element, by))
    });
    entries.collect()
}

macro_rules! examples {
    ($($name:ident $file:literal,)*) => {
        $(#[test]
        fn $name() {
            check(include_str!(concat!("examples/", $file, ".txt")));
        })*
    };
}

examples! {
    affinity "affinity",
    clusterip_basic "clusterip-basic",
    dual_stack "dual-stack",
    etp_local "etp-local",
    external_ips "external-ips",
    itp_local "itp-local",
    no_endpoints "no-endpoints",
    nodeport "nodeport",
    sctp "sctp",
    source_ranges "source-ranges",
    terminating "terminating",
}
