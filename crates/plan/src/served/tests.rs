//! Tests of both modes, from the same lines of objects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::address::Family;
use model::cluster::Changes;
use model::local::{FromPod, NodePortAddresses};
use model::names::ServicePortName;
use model::routing::{Endpoint, Routing, Traffic};
use testkit::routings;

use super::*;
use crate::difference::{DifferenceKind, KernelObject};
use crate::iptables::compare::{Tolerance, compare};
use crate::iptables::desired::DesiredRules;
use crate::iptables::listing::Listing;
use crate::iptables::program::{Abilities, RuleSettings};
use crate::iptables::rules::EndpointComments;
use crate::ipvs::desired::{DesiredVirtual, ServerSettings};
use crate::ipvs::plan::IpvsPlan;
use crate::ipvs::servers::{ActualReal, ActualServers, ActualVirtual, RealServer};
use crate::mark::Mark;
use crate::mode::Mode;
use crate::nftables::desired::{DesiredTable, difference};
use crate::nftables::elements::frontends;
use crate::nftables::program;
use crate::nftables::sets::{Element, Set};
use crate::nftables::steps::{ActualState, ActualTable, TableContent};

const FAMILY: Family = Family::V4;

/// Every kind of frontend, endpoints on this and on other nodes, and Services that are refused or dropped.
const CLUSTER: &str = "
    service ns/web 10.96.0.10 LoadBalancer http:80@30080 external-ips=198.51.100.1 lb-ips=198.51.100.2 ranges=203.0.113.0/24,192.0.2.7/32
    slice   ns/web-1 of web http:8080 | 10.244.0.5 local | 10.244.1.6 node=n2
    service ns/near 10.96.0.11 NodePort http:80@30081 external-policy=Local affinity=10800
    slice   ns/near-1 of near http:8080 | 10.244.0.7 local | 10.244.1.8 node=n2
    service ns/far 10.96.0.12 NodePort http:80@30082 external-policy=Local internal-policy=Local
    slice   ns/far-1 of far http:8080 | 10.244.1.9 node=n2
    service ns/none 10.96.0.13 NodePort http:80@30083
    service ns/dns 10.96.0.53 dns:53/UDP metrics:9153
    slice   ns/dns-1 of dns dns:53/UDP metrics:9153 | 10.244.0.9 local
";

const MODES: [Mode; 2] = [Mode::Nftables, Mode::Iptables];

type Routings = Vec<(ServicePortName, Arc<Routing>)>;

fn sorted(lines: &str) -> Routings {
    let mut all = routings(FAMILY, lines);
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

fn table(lines: &str) -> DesiredTable {
    let mut table = DesiredTable::new(program::ProgramSettings {
        family: FAMILY,
        balancer: crate::nftables::sets::Balancer::Slots,
        mark: Mark::from_bit(14).unwrap(),
        masquerade_all: false,
        from_pod: Some(FromPod::Source("10.244.0.0/16".parse().unwrap())),
        node_ports_everywhere: true,
        can_hash: true,
    });
    table.accept(sorted(lines).into_iter().map(|(name, routing)| (name, Some(routing))).collect());
    table
}

fn tables(lines: &str) -> [Listing; 2] {
    let settings = RuleSettings {
        family: FAMILY,
        mark: Mark::from_bit(14).unwrap(),
        masquerade_all: false,
        from_pod: Some(FromPod::Source("10.244.0.0/16".parse().unwrap())),
        localhost_node_ports: true,
        node_port_addresses: NodePortAddresses::new(FAMILY, &[]),
        abilities: Abilities::default(),
    };
    let services = sorted(lines).into_iter();
    DesiredRules {
        tail: settings.tail(&[]),
        settings,
        services: services.map(|(name, routing)| (name, routing, EndpointComments::Written)).collect(),
        stale: BTreeSet::new(),
    }
    .tables()
}

/// The comparison of a proxy with the objects `after`, in a kernel that was synced with the objects `before`.
fn comparison(mode: Mode, before: &str, after: &str) -> KernelComparison {
    match mode {
        Mode::Nftables => elements_compared(table(before).elements(), after),
        Mode::Iptables => rules_compared(&tables(before), after),
        Mode::Ipvs => {
            let before = ipvs(before);
            servers_compared(&actual(&before), before.desired().elements(), after)
        }
    }
}

fn ipvs(lines: &str) -> IpvsPlan {
    let servers = ServerSettings::new("rr", Vec::new());
    let mut plan = IpvsPlan::new(table("").settings().clone(), servers);
    let node_ips = ["192.0.2.11", "192.0.2.12"].map(|ip| ip.parse().unwrap());
    plan.set_node_addresses(&node_ips, &node_ips);
    let routings = sorted(lines).into_iter().map(|(name, routing)| (name, Some(routing))).collect();
    plan.steps(Changes { routings, ..Changes::default() });
    plan
}

/// A kernel that holds what the plan desires.
fn actual(plan: &IpvsPlan) -> ActualServers {
    let real = |(real, weight): (RealServer, u32)| (real, ActualReal { weight, ..ActualReal::default() });
    let server = |it: DesiredVirtual| ActualVirtual {
        server: it.server,
        real_servers: it.real_servers.into_iter().map(real).collect(),
    };
    ActualServers {
        virtual_servers: plan.servers().all().into_iter().map(|(at, it)| (at, server(it))).collect(),
        bound: plan.desired().bound_ips().collect(),
    }
}

fn servers_compared(found: &ActualServers, actual: Vec<Element>, after: &str) -> KernelComparison {
    let plan = ipvs(after);
    let desired = plan.desired().elements();
    KernelComparison::of_servers(&plan.servers(), found, &desired, element_differences(&actual, &desired), 0)
}

fn elements_compared(actual: Vec<Element>, after: &str) -> KernelComparison {
    let mut table = table(after);
    let ids = actual.iter().filter(|element| matches!(element.set, Set::Lists(..))).copied().collect();
    let content = TableContent { elements: actual.clone(), ids, ..TableContent::default() };
    table.steps_from(&ActualState { generation: None, table: ActualTable::Ours(content) });
    let desired = table.elements();
    KernelComparison::of_elements(&table, &desired, element_differences(&actual, &desired), 0)
}

fn element_differences(actual: &[Element], desired: &[Element]) -> Vec<Difference> {
    let (unexpected, missing) = difference(actual, desired);
    let of_kind = |kind, elements: Vec<Element>| {
        elements.into_iter().map(move |it| Difference::new(kind, KernelObject::Element(FAMILY, it)))
    };
    of_kind(DifferenceKind::Unexpected, unexpected).chain(of_kind(DifferenceKind::Missing, missing)).collect()
}

fn rules_compared(actual: &[Listing; 2], after: &str) -> KernelComparison {
    use crate::iptables::chains::IptablesTable::{Filter, Nat};
    let desired = tables(after);
    let tolerance = Tolerance { stale: &BTreeSet::new(), comments: false };
    let mut all = compare(Filter, &desired[0], &actual[0], tolerance);
    all.extend(compare(Nat, &desired[1], &actual[1], tolerance));
    KernelComparison::of_rules(&desired, actual, all)
}

/// Each change, and its facts.
fn reported(comparison: &KernelComparison) -> Vec<String> {
    let mut lines = Vec::new();
    for change in comparison.changes() {
        let service = change.service.map_or("of no service".into(), |name| name.to_string());
        lines.push(format!("{} {service}", change.kind.sign()));
        lines.extend(change.facts.iter().map(|fact| format!("{} {}", fact.kind.sign(), fact.text)));
    }
    lines
}

/// What the model decided, in the terms of this module.
fn expected(routings: &Routings) -> BTreeMap<FrontendKey, ServedFrontend> {
    let mut all = BTreeMap::new();
    for (name, routing) in routings {
        for frontend in frontends(routing) {
            all.insert(frontend, decided(name, routing, &frontend));
        }
    }
    all
}

fn decided(name: &ServicePortName, routing: &Routing, frontend: &FrontendKey) -> ServedFrontend {
    let is_external = frontend.ip != Some(routing.addresses.cluster_ip);
    let traffic = if is_external { routing.external } else { routing.internal };
    let targets = |traffic| -> BTreeSet<ServedEndpoint> {
        routing.endpoints(traffic).iter().map(|Endpoint { ip, port, .. }| (*ip, *port)).collect()
    };
    let inside = (is_external && routing.preserves_client && routing.has_endpoints())
        .then(|| targets(routing.external_from_inside()));
    let forwards = !targets(traffic).is_empty() || inside.as_ref().is_some_and(|inside| !inside.is_empty());
    let ranges = &routing.addresses.source_ranges;
    let is_balancer = frontend.ip.is_some_and(|ip| routing.addresses.load_balancer_ips.contains(&ip));
    let show = |range: &ipnet::IpNet| match range.prefix_len() {
        32 => range.addr().to_string(),
        _ => range.to_string(),
    };
    ServedFrontend {
        claims: vec![name.clone()],
        precedence: None,
        forwards,
        endpoints: targets(traffic),
        shares: BTreeMap::new(),
        hash: None,
        inside,
        refusal: match traffic {
            Traffic::ToCluster | Traffic::ToLocal => None,
            Traffic::RejectNoEndpoints => Some(RefusalReason::NoEndpoints),
            Traffic::DropNoLocalEndpoints => Some(RefusalReason::NoLocalEndpoints),
        },
        affinity: routing.affinity.filter(|_| forwards),
        sources: (is_balancer && !ranges.is_empty()).then(|| ranges.iter().map(show).collect()),
    }
}

#[test]
fn elements_and_rules_are_read_as_what_the_model_decided() {
    for mode in MODES {
        let mut served = comparison(mode, CLUSTER, CLUSTER).actual.frontends;
        let want = expected(&sorted(CLUSTER));
        assert_eq!(served.keys().collect::<Vec<_>>(), want.keys().collect::<Vec<_>>(), "{mode:?}");
        for (frontend, want) in want {
            assert_eq!(served.remove(&frontend), Some(want), "{mode:?} {frontend}");
        }
    }
}

#[test]
fn equal_states_have_no_differences() {
    for mode in MODES {
        assert_eq!(reported(&comparison(mode, CLUSTER, CLUSTER)), [""; 0], "{mode:?}");
    }
}

#[test]
fn an_edit_is_reported_without_anything_else() {
    let edit = |from: &str, to: &str| {
        let edited = CLUSTER.replace(from, to);
        assert_ne!(edited, CLUSTER, "{from}");
        edited
    };
    let edits: [(&str, String, &[&str]); 11] = [
        (
            "another cluster IP",
            edit("10.96.0.10", "10.96.0.99"),
            &["~ ns/web:http", "- 10.96.0.10:80/TCP", "+ 10.96.0.99:80/TCP"],
        ),
        (
            "another cluster IP and port of all that it has",
            edit("10.96.0.53 dns:53/UDP", "10.96.0.54 dns:54/UDP"),
            &[
                "~ ns/dns:dns",
                "- 10.96.0.53:53/UDP",
                "+ 10.96.0.54:54/UDP",
                "~ ns/dns:metrics",
                "- 10.96.0.53:9153/TCP",
                "+ 10.96.0.54:9153/TCP",
            ],
        ),
        (
            "another endpoint",
            edit("10.244.1.8", "10.244.1.18"),
            &["~ ns/near:http", "- endpoint 10.244.1.8:8080", "+ endpoint 10.244.1.18:8080"],
        ),
        (
            "an endpoint here in place of one elsewhere",
            edit("10.244.1.9 node=n2", "10.244.0.19 local"),
            &[
                "~ ns/far:http",
                "- node port 30082/TCP dropped: no endpoints on this node",
                "- 10.96.0.12:80/TCP dropped: no endpoints on this node",
                "- endpoint 10.244.1.9:8080 at node port 30082/TCP",
                "+ 10.96.0.12:80/TCP",
                "+ endpoint 10.244.0.19:8080",
            ],
        ),
        (
            "no endpoints any more",
            edit("| 10.244.0.7 local | 10.244.1.8 node=n2", ""),
            &[
                "~ ns/near:http",
                "- node port 30081/TCP",
                "- 10.96.0.11:80/TCP",
                "- endpoint 10.244.0.7:8080",
                "- endpoint 10.244.1.8:8080",
                "+ node port 30081/TCP refused: no endpoints",
                "+ 10.96.0.11:80/TCP refused: no endpoints",
            ],
        ),
        (
            "no affinity any more",
            edit(" affinity=10800", ""),
            &["~ ns/near:http", "- session affinity 10800s"],
        ),
        (
            "another timeout",
            edit(" affinity=10800", " affinity=60"),
            &["~ ns/near:http", "- session affinity 10800s", "+ session affinity 60s"],
        ),
        (
            "another policy",
            edit("30081 external-policy=Local", "30081 external-policy=Cluster"),
            &["~ ns/near:http", "- node port 30081/TCP keeps client addresses"],
        ),
        (
            "another source range",
            edit("203.0.113.0/24,", ""),
            &[
                "~ ns/web:http",
                "- 198.51.100.2:80/TCP only from 192.0.2.7, 203.0.113.0/24",
                "+ 198.51.100.2:80/TCP only from 192.0.2.7",
            ],
        ),
        (
            "a new load-balancer IP",
            edit("lb-ips=198.51.100.2", "lb-ips=198.51.100.2,198.51.100.3"),
            &[
                "~ ns/web:http",
                "+ 198.51.100.3:80/TCP",
                "+ 198.51.100.3:80/TCP only from 192.0.2.7, 203.0.113.0/24",
            ],
        ),
        (
            "a new service",
            format!(
                "{CLUSTER}
                 service ns/new 10.96.0.20 NodePort http:80@30090 external-policy=Local affinity=60
                 slice ns/new-1 of new http:8080 | 10.244.0.5 local"
            ),
            &[
                "+ ns/new:http",
                "+ node port 30090/TCP",
                "+ node port 30090/TCP keeps client addresses",
                "+ 10.96.0.20:80/TCP",
                "+ session affinity 60s",
                "+ endpoint 10.244.0.5:8080",
            ],
        ),
    ];
    for mode in MODES {
        for (what, edited, want) in &edits {
            assert_eq!(reported(&comparison(mode, CLUSTER, edited)), *want, "{mode:?}: {what}");
        }
    }
    // IPVS does not distinguish clients: with policy Local, all of them get the same endpoints.
    let in_ipvs: [(&str, &[&str]); 4] = [
        (
            "another endpoint",
            &[
                "~ ns/near:http",
                "- endpoint 10.244.1.8:8080 at 10.96.0.11:80/TCP",
                "+ endpoint 10.244.1.18:8080 at 10.96.0.11:80/TCP",
            ],
        ),
        (
            "an endpoint here in place of one elsewhere",
            &["~ ns/far:http", "- endpoint 10.244.1.9:8080", "+ endpoint 10.244.0.19:8080"],
        ),
        (
            "no endpoints any more",
            &[
                "~ ns/near:http",
                "- node port 30081/TCP",
                "- 10.96.0.11:80/TCP",
                "- endpoint 10.244.0.7:8080",
                "- endpoint 10.244.1.8:8080 at 10.96.0.11:80/TCP",
                "+ node port 30081/TCP refused: no endpoints",
                "+ 10.96.0.11:80/TCP refused: no endpoints",
            ],
        ),
        (
            "another policy",
            &[
                "~ ns/near:http",
                "- node port 30081/TCP keeps client addresses",
                "+ endpoint 10.244.1.8:8080 at node port 30081/TCP",
            ],
        ),
    ];
    for (what, edited, want) in &edits {
        let want = in_ipvs.iter().find(|(it, _)| it == what).map_or(*want, |(_, want)| want);
        assert_eq!(reported(&comparison(Mode::Ipvs, CLUSTER, edited)), want, "ipvs: {what}");
    }
}

#[test]
fn weights_are_reported_as_shares() {
    let service = "service ns/web 10.96.0.10 NodePort http:80@30080\n";
    let weighted = |weights: &str| {
        format!(
            "{service}slice ns/web-1 of web http:8080{weights} | 10.244.0.5 local | 10.244.1.6 | 10.244.1.7"
        )
    };
    for mode in [Mode::Nftables, Mode::Iptables, Mode::Ipvs] {
        let changes =
            |before: &str, after: &str| reported(&comparison(mode, &weighted(before), &weighted(after)));
        assert_eq!(
            changes("", " weights=1,10.244.0.5=2"),
            [
                "~ ns/web:http",
                "- endpoint 10.244.0.5:8080 gets 33.3% of connections",
                "- endpoint 10.244.1.6:8080 gets 33.3% of connections",
                "- endpoint 10.244.1.7:8080 gets 33.3% of connections",
                "+ endpoint 10.244.0.5:8080 gets 50% of connections",
                "+ endpoint 10.244.1.6:8080 gets 25% of connections",
                "+ endpoint 10.244.1.7:8080 gets 25% of connections",
            ],
            "{mode:?}"
        );
        assert_eq!(
            changes(" weights=1,10.244.0.5=2", " weights=1,10.244.0.5=0"),
            [
                "~ ns/web:http",
                "- endpoint 10.244.0.5:8080",
                "- endpoint 10.244.1.6:8080 gets 25% of connections",
                "- endpoint 10.244.1.7:8080 gets 25% of connections",
                "+ endpoint 10.244.1.6:8080 gets 50% of connections",
                "+ endpoint 10.244.1.7:8080 gets 50% of connections",
            ],
            "{mode:?}"
        );
        // Except that IPVS has another scheduler.
        let other_scheduler: &[&str] = if mode == Mode::Ipvs { &["~ ns/web:http"] } else { &[] };
        assert_eq!(changes(" weights=7", ""), other_scheduler, "{mode:?}");
    }
}

#[test]
fn hashing_is_reported_with_the_clients_that_move() {
    let hashed = |hash: &str, endpoints: &str| {
        format!("service ns/web 10.96.0.10 http:80{hash}\nslice ns/web-1 of web http:8080 {endpoints}")
    };
    for mode in [Mode::Nftables, Mode::Ipvs] {
        let changes = |before: &str, after: &str| reported(&comparison(mode, before, after));
        let (two, three) = ("| 10.244.1.5 | 10.244.1.6", "| 10.244.1.5 | 10.244.1.6 | 10.244.1.7");
        assert_eq!(
            changes(&hashed("", two), &hashed(" hash=ClientIP", two)),
            ["~ ns/web:http", "+ 10.96.0.10:80/TCP hashes clients by address"],
            "{mode:?}"
        );
        assert_eq!(
            changes(&hashed(" hash=ClientIP", two), &hashed(" hash=ClientIPAndPort", two)),
            [
                "~ ns/web:http",
                "- 10.96.0.10:80/TCP hashes clients by address",
                "+ 10.96.0.10:80/TCP hashes clients by address and port"
            ],
            "{mode:?}"
        );
        let mut want = vec!["~ ns/web:http", "- endpoint 10.244.1.7:8080"];
        want.extend((mode == Mode::Nftables).then_some("+ 33.4% of clients get another endpoint"));
        assert_eq!(
            changes(&hashed(" hash=ClientIP", three), &hashed(" hash=ClientIP", two)),
            want,
            "{mode:?}"
        );
        // A single endpoint needs no table, but has all clients.
        let [one, two] = ["| 10.244.1.5", two].map(|endpoints| hashed(" hash=ClientIP", endpoints));
        for found in [changes(&one, &two), changes(&two, &one)] {
            let moved = found.iter().any(|line| line == "+ 50.0% of clients get another endpoint");
            assert_eq!(moved, mode == Mode::Nftables, "{found:?}");
        }
    }
}

/// Only rules of iptables have the names of Services.
#[test]
fn a_deleted_service_is_reported_by_its_frontends() {
    for (mode, service) in [(Mode::Nftables, "of no service"), (Mode::Iptables, "ns/none:http")] {
        let gone = CLUSTER.replace("    service ns/none 10.96.0.13 NodePort http:80@30083\n", "");
        let want = [
            &format!("- {service}"),
            "- node port 30083/TCP refused: no endpoints",
            "- 10.96.0.13:80/TCP refused: no endpoints",
        ];
        assert_eq!(reported(&comparison(mode, CLUSTER, &gone)), want, "{mode:?}");
    }
}

/// A missing element may not change what is served, but it is found, and belongs to the right Service.
#[test]
fn any_element_that_is_missing_is_found_with_its_service() {
    let all = table(CLUSTER).elements();
    for (at, element) in all.iter().enumerate() {
        let mut actual = all.clone();
        actual.remove(at);
        let found = elements_compared(actual, CLUSTER);
        // A slot that is empty in the kernel may get another endpoint than before, and a service port gets a new id if the kernel
        // does not have its old one; nothing else changes.
        let has_ids = |set: Set| matches!(set, Set::Endpoints | Set::StickyEndpoints | Set::Sticky(_));
        let may_change =
            |set: Set| set == element.set || (matches!(element.set, Set::Lists(..)) && has_ids(set));
        let others =
            found.differences.iter().filter(|it| it.object != KernelObject::Element(FAMILY, *element));
        assert!(
            others.clone().all(|it| matches!(&it.object, KernelObject::Element(_, it) if may_change(it.set))),
            "{element:?}: {:?}",
            others.collect::<Vec<_>>()
        );
        let its_own = found.with_owners().filter(|(it, _)| it.kind == DifferenceKind::Missing);
        let owners: BTreeSet<_> = its_own.map(|(_, service)| service).collect();
        assert!(owners.len() == 1 && !owners.contains(&None), "{element:?}: {owners:?}");
    }
}

#[test]
fn any_element_that_is_unexpected_is_found() {
    let all = table(CLUSTER).elements();
    let more = format!(
        "{CLUSTER}
         service ns/new 10.96.0.20 LoadBalancer http:80@30090 lb-ips=198.51.100.20 ranges=10.0.0.0/8 external-policy=Local health=30999
         slice ns/new-1 of new http:8080 | 10.244.0.20 local"
    );
    let (_, unexpected) = difference(&all, &table(&more).elements());
    assert!(unexpected.len() > 10, "{unexpected:?}");
    for element in unexpected {
        let mut actual = all.clone();
        actual.push(element);
        actual.sort_unstable();
        let found = elements_compared(actual, CLUSTER).differences;
        assert_eq!(
            found,
            [Difference::new(DifferenceKind::Unexpected, KernelObject::Element(FAMILY, element))]
        );
    }
}

#[test]
fn any_rule_that_is_missing_repeated_or_out_of_order_is_found() {
    let all = tables(CLUSTER);
    for (table, listing) in all.iter().enumerate() {
        let chains = listing.0.iter().filter(|(_, rules)| !rules.is_empty());
        for (chain, rules) in chains {
            let with = |rules: Vec<String>| {
                let mut actual = all.clone();
                actual[table].0.insert(chain.clone(), rules);
                rules_compared(&actual, CLUSTER).differences
            };
            // Kubelet writes KUBE-FIREWALL, too.
            let is_ours = usize::from(chain != crate::iptables::chains::FIREWALL);
            for at in 0..rules.len() {
                let mut changed = rules.clone();
                changed.remove(at);
                let found = with(changed);
                assert!(
                    found.len() == 1 && found[0].kind == DifferenceKind::Missing,
                    "{chain} {at}: {found:?}"
                );
                let mut changed = rules.clone();
                changed.insert(at, rules[at].clone());
                let found = with(changed);
                assert_eq!(found.len(), is_ours, "{chain} {at}: {found:?}");
                if at > 0 && rules[at] != rules[at - 1] {
                    let mut changed = rules.clone();
                    changed.swap(at - 1, at);
                    assert_eq!(with(changed).len(), is_ours, "{chain} {at}");
                }
            }
        }
    }
}

/// A missing rule of the nat table is reported with its Service, whatever it does.
#[test]
fn a_missing_rule_belongs_to_its_service() {
    let all = tables(CLUSTER);
    for (chain, rules) in &all[1].0 {
        for (at, rule) in rules.iter().enumerate().filter(|(_, rule)| rule.contains("ns/dns:dns")) {
            let mut actual = all.clone();
            actual[1].0.get_mut(chain).unwrap().remove(at);
            let found = rules_compared(&actual, CLUSTER);
            let owners: Vec<_> =
                found.with_owners().map(|(_, service)| service.unwrap().to_string()).collect();
            assert_eq!(owners, ["ns/dns:dns"], "{chain} {rule}");
        }
    }
}

#[test]
fn a_contest_is_reported_when_it_begins_or_ends() {
    // `mid=9` has another endpoint than `mid`; `other` claims another address.
    let service = |word: &str| {
        let (name, endpoint) = word.split_once('=').unwrap_or((word, ""));
        let (number, at) = match name {
            "mid" => (1, "198.51.100.1"),
            "zed" => (2, "198.51.100.1"),
            "abc" => (3, "198.51.100.1"),
            _ => (4, "198.51.100.9"),
        };
        format!(
            "service ns/{name} 10.96.1.{number} http:80 external-ips={at}
             slice ns/{name}-1 of {name} http:8080 | 10.244.1.{endpoint}{number}\n"
        )
    };
    let objects = |names: &str| names.split_whitespace().map(service).collect::<String>();
    let line = |text: &str| match text {
        "" => String::new(),
        text => format!("198.51.100.1:80/TCP goes to {text}"),
    };
    for (what, before, after, want) in [
        ("a later one comes", "mid", "mid zed", ["mid, also claimed by zed"; 2]),
        ("both come", "", "mid zed", ["mid, also claimed by zed"; 2]),
        ("another endpoint", "mid zed", "mid=9 zed", [""; 2]),
        ("one that claims another address", "mid zed", "mid zed other", [""; 2]),
        ("an earlier one comes", "mid zed", "abc mid zed", ["abc, also claimed by mid and zed"; 2]),
        (
            "the one that has it goes",
            "abc mid zed",
            "mid zed",
            ["mid, also claimed by zed", "mid, also claimed by zed, no longer claimed by abc"],
        ),
        (
            "only one is left",
            "mid zed",
            "zed",
            ["zed, another service had it", "zed, no longer claimed by mid"],
        ),
        ("one that does not have it goes", "mid zed", "mid", ["", "mid, no longer claimed by zed"]),
    ] {
        for (mode, want) in MODES.into_iter().zip(want) {
            let contests = comparison(mode, &objects(before), &objects(after)).contests();
            let found: Vec<String> = contests
                .into_iter()
                .map(|contest| Contest { precedence: None, ..contest }.to_string())
                .map(|text| text.replace("ns/", "").replace(":http", ""))
                .collect();
            assert_eq!(found.join("\n"), line(want), "{mode:?}: {what}");
        }
    }
}

/// The service port has another name, but serves the same.
#[test]
fn a_service_port_that_is_renamed_makes_no_contest() {
    for mode in MODES {
        let cluster = CLUSTER.replace("http:80@30081", "http:80@30081 external-ips=198.51.100.9");
        let contests = comparison(mode, &cluster, &cluster.replace("http", "www")).contests();
        assert_eq!(contests, [], "{mode:?}");
    }
}

/// Foreign writers may put any rules into our chains: loops, nonsense, and names without a protocol.
#[test]
fn foreign_rules_are_read_as_far_as_they_make_sense() {
    let nat = Listing::parse(
        "-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-A
         -A KUBE-SERVICES -d nonsense -p tcp -m tcp --dport 80 -j KUBE-SVC-A
         -A KUBE-SERVICES -d 10.96.0.2/32 -p icmp -j KUBE-SVC-A
         -A KUBE-SERVICES -d 10.96.0.3/32 -p tcp -m tcp --dport 80 -j KUBE-FW-A
         -A KUBE-FW-A -s 2001:db8::/32 -j KUBE-EXT-A
         -A KUBE-EXT-A -j KUBE-FW-A
         -A KUBE-EXT-A -j KUBE-SVC-A
         -A KUBE-SVC-A -j KUBE-SVC-A
         -A KUBE-SVC-A -j KUBE-SEP-A
         -A KUBE-SEP-A -j DNAT --to-destination 10.1.1.1:70000
         -A KUBE-SEP-A -j DNAT --to-destination 10.1.1.1:80"
            .replace("         -A", "-A")
            .as_str(),
    );
    let served = Served::from_rules(&[Listing::default(), nat]).frontends;
    let services: Vec<(String, &ServedFrontend)> =
        served.iter().map(|(at, it)| (at.to_string(), it)).collect();
    let [(first, open), (second, restricted)] = services.as_slice() else { panic!("{services:?}") };
    assert_eq!((first.as_str(), second.as_str()), ("10.96.0.1:80/TCP", "10.96.0.3:80/TCP"));
    assert_eq!(open.endpoints.len(), 1);
    assert_eq!(restricted.endpoints, open.endpoints);
    assert_eq!(restricted.sources, Some(["2001:db8::/32".to_owned()].into()));
}

mod ipvs_differences {
    use super::*;
    use crate::ipvs::servers::VirtualAddress;

    #[test]
    fn equal_states_have_no_differences() {
        assert_eq!(reported(&comparison(Mode::Ipvs, CLUSTER, CLUSTER)), [""; 0]);
    }

    fn at(text: &str) -> VirtualAddress {
        let address: std::net::SocketAddr = text.parse().unwrap();
        let port = Port::from_api(address.port().into()).unwrap();
        VirtualAddress { ip: address.ip(), protocol: Protocol::Tcp, port }
    }

    /// The differences after a foreign writer has changed the servers of [`CLUSTER`], and what they mean.
    fn after(change: impl FnOnce(&mut ActualServers)) -> (Vec<String>, Vec<String>) {
        let plan = ipvs(CLUSTER);
        let mut found = actual(&plan);
        change(&mut found);
        let comparison = servers_compared(&found, plan.desired().elements(), CLUSTER);
        (comparison.differences.iter().map(ToString::to_string).collect(), reported(&comparison))
    }

    #[test]
    fn a_missing_virtual_server_is_a_frontend_that_is_not_served() {
        let (differences, meaning) = after(|found| _ = found.virtual_servers.remove(&at("10.96.0.10:80")));
        assert_eq!(
            differences,
            [
                "missing: -A -t 10.96.0.10:80 -s rr",
                "missing: -a -t 10.96.0.10:80 -r 10.244.0.5:8080 -m -w 1",
                "missing: -a -t 10.96.0.10:80 -r 10.244.1.6:8080 -m -w 1",
            ]
        );
        let endpoint = |ip: &str| format!("+ endpoint {ip}:8080 at 10.96.0.10:80/TCP");
        assert_eq!(
            meaning,
            [
                "~ ns/web:http".into(),
                "+ 10.96.0.10:80/TCP".into(),
                endpoint("10.244.0.5"),
                endpoint("10.244.1.6")
            ]
        );
    }

    #[test]
    fn a_missing_address_makes_all_its_frontends_unreachable() {
        let (differences, meaning) = after(|found| _ = found.bound.remove(&"10.96.0.53".parse().unwrap()));
        assert_eq!(differences, ["missing: address 10.96.0.53 dev kube-ipvs0"]);
        assert_eq!(meaning, ["~ ns/dns:dns", "+ 10.96.0.53:53/UDP"], "a shared object belongs to the first");
    }

    #[test]
    fn a_node_port_needs_a_virtual_server_at_each_address() {
        let (_, meaning) = after(|found| {
            let real = &mut found.virtual_servers.get_mut(&at("192.0.2.12:30080")).unwrap().real_servers;
            real.pop_last();
        });
        assert_eq!(meaning, ["~ ns/web:http", "+ endpoint 10.244.1.6:8080 at node port 30080/TCP"]);
        let (_, meaning) = after(|found| _ = found.virtual_servers.remove(&at("192.0.2.11:30081")));
        assert_eq!(meaning, ["~ ns/near:http", "+ node port 30081/TCP"]);
    }

    #[test]
    fn a_real_server_that_ends_its_connections_is_no_difference_but_one_without_weight_is() {
        let change = |weight, ip: &str| {
            let real = RealServer { ip: ip.parse().unwrap(), port: Port::from_api(8080).unwrap() };
            after(|found| {
                let found = found.virtual_servers.get_mut(&at("10.96.0.10:80")).unwrap();
                found.real_servers.insert(real, ActualReal { weight, ..ActualReal::default() });
            })
        };
        assert_eq!(change(0, "10.244.9.9"), (vec![], vec![]));
        let text = |ip| format!("-a -t 10.96.0.10:80 -r {ip}:8080 -m -w 1");
        let (differences, meaning) = change(1, "10.244.9.9");
        assert_eq!(differences, [format!("unexpected: {}", text("10.244.9.9"))]);
        assert_eq!(meaning, ["~ ns/web:http", "- endpoint 10.244.9.9:8080 at 10.96.0.10:80/TCP"]);
        let (differences, meaning) = change(0, "10.244.1.6");
        assert_eq!(differences, [format!("changed: {}", text("10.244.1.6"))]);
        assert_eq!(meaning, ["~ ns/web:http", "+ endpoint 10.244.1.6:8080 at 10.96.0.10:80/TCP"]);
    }

    #[test]
    fn foreign_virtual_servers_are_unexpected_unless_excluded() {
        let plan = ipvs(CLUSTER);
        let mut found = actual(&plan);
        let foreign = found.virtual_servers[&at("10.96.0.13:80")].clone();
        found.virtual_servers.insert(at("9.9.9.9:9"), foreign);
        found.bound.insert("9.9.9.8".parse().unwrap());
        let settings = |cidrs: &[&str]| {
            ServerSettings::new("rr", cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect())
        };
        let compared = |cidrs| {
            let settings = settings(cidrs);
            let servers = crate::ipvs::desired::DesiredServers { settings: &settings, ..plan.servers() };
            let found = crate::ipvs::compare::compare(&found, &servers);
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let address = "unexpected: address 9.9.9.8 dev kube-ipvs0";
        assert_eq!(compared(&[]), ["unexpected: -A -t 9.9.9.9:9 -s rr", address]);
        assert_eq!(compared(&["9.9.9.0/24"]), [address]);
    }
}
