use std::collections::BTreeSet;

use model::api;
use model::cluster::Here;
use model::event::{Event, Kind as Objects};
use model::hashing::MAX_HASHED;

use super::live::{Live, through_rules, through_sets};
use super::*;
use crate::iptables::chains::Jump;
use crate::iptables::desired::DesiredRules;
use crate::iptables::listing::Listing;
use crate::iptables::rules::EndpointComments;
use crate::nftables::desired::DesiredTable;
use crate::nftables::desired_sets::DesiredSets;
use crate::nftables::interpreter::{Sets, Slots};
use crate::nftables::sets::{Clients, Element, ElementKey, LookupBy, Set};
use crate::nftables::slots::shares;

const NODE: &str = "192.0.2.11";
const POD: &str = "10.244.0.9";
const CLIENT: &str = "203.0.113.9";

/// A node with one Service, `shop/web`, with every kind of frontend.
struct World {
    settings: ExplainSettings,
    service: api::Service,
    endpoints: Vec<api::SliceEndpoint>,
    weights: Option<String>,
    service_cidr: bool,
}

fn world(mode: Mode, endpoints: &[&str]) -> World {
    let service = "
        metadata: {namespace: shop, name: web}
        spec:
          type: LoadBalancer
          clusterIP: 10.96.0.10
          externalIPs: [198.51.100.1]
          ports: [{name: http, port: 80, nodePort: 30080}]
          healthCheckNodePort: 30999
        status: {loadBalancer: {ingress: [{ip: 198.51.100.2}]}}";
    World {
        settings: ExplainSettings {
            mode,
            mark: Mark::from_bit(14).unwrap(),
            masquerade_all: false,
            from_pod: Some(FromPod::Source("10.244.0.0/16".parse().unwrap())),
            node_port_addresses: NodePortAddresses::new(Family::V4, &[]),
            serves_localhost: mode == Mode::Iptables,
        },
        service: serde_saphyr::from_str(service).unwrap(),
        endpoints: endpoints.iter().map(|text| endpoint(text)).collect(),
        weights: None,
        service_cidr: false,
    }
}

/// `10.244.0.5` is on this node, `10.244.1.5` on another; `not-ready`, `draining`, `zone-a` and the like may follow.
fn endpoint(text: &str) -> api::SliceEndpoint {
    let mut words = text.split(' ');
    let ip = words.next().unwrap();
    let node = if ip.starts_with("10.244.0.") || ip == NODE { "here" } else { "elsewhere" };
    let mut endpoint = api::SliceEndpoint {
        addresses: vec![ip.into()],
        node_name: Some(node.into()),
        ..api::SliceEndpoint::default()
    };
    for word in words {
        let conditions = &mut endpoint.conditions;
        match word {
            "not-ready" => (conditions.ready, conditions.serving) = (Some(false), Some(false)),
            "draining" => (conditions.ready, conditions.terminating) = (Some(false), Some(true)),
            zone => endpoint.hints.for_zones.push(api::Hint { name: zone.into() }),
        }
    }
    endpoint
}

impl World {
    fn external_local(mut self) -> Self {
        self.service.spec.external_traffic_policy = Some("Local".into());
        self
    }

    fn internal_local(mut self) -> Self {
        self.service.spec.internal_traffic_policy = Some("Local".into());
        self
    }

    fn weights(mut self, weights: &str) -> Self {
        self.weights = Some(weights.into());
        self
    }

    fn ranges(mut self, range: &str) -> Self {
        self.service.spec.load_balancer_source_ranges = vec![range.into()];
        self
    }

    fn cluster(&self) -> Cluster {
        let mut cluster = Cluster::new(Here {
            family: Family::V4,
            node_name: "here".into(),
            node_ip: NODE.parse().unwrap(),
            serve_external_ips: true,
            max_hashed: if self.settings.mode == Mode::Iptables { 0 } else { MAX_HASHED },
            started: Default::default(),
        });
        let mut slice: api::EndpointSlice = serde_saphyr::from_str(
            "metadata: {namespace: shop, name: web-1, labels: {kubernetes.io/service-name: web}}
             \naddressType: IPv4\nports: [{name: http, port: 8080}]",
        )
        .unwrap();
        slice.endpoints = self.endpoints.clone();
        slice.metadata.annotations.weight.clone_from(&self.weights);
        let mut node: api::Node = api::Node::default();
        node.metadata.labels.zone = Some("a".into());
        let mut events = vec![
            Event::ServiceApplied(self.service.clone().into()),
            Event::SliceApplied(slice.into()),
            Event::NodeApplied(node.into()),
            Event::Listed(Objects::Service),
            Event::Listed(Objects::EndpointSlice),
        ];
        if self.service_cidr {
            let cidr = "metadata: {name: kubernetes}\nspec: {cidrs: [10.96.0.0/16]}";
            events.push(Event::ServiceCidrApplied(serde_saphyr::from_str(cidr).unwrap()));
        }
        for event in &events {
            let notes = cluster.apply(event);
            let is_annotated = self.weights.is_some() || self.service.metadata.annotations.hash.is_some();
            assert!(notes.is_empty() || is_annotated, "{notes:?}");
        }
        cluster
    }

    fn explain(&self, from: &str, to: &str) -> Explanation {
        self.try_explain(from, to, None).unwrap()
    }

    fn try_explain(
        &self,
        from: &str,
        to: &str,
        interface: Option<&str>,
    ) -> Result<Explanation, Unanswerable> {
        let packet = Packet {
            source: from.parse().unwrap(),
            source_port: None,
            protocol: Protocol::Tcp,
            destination: to.parse().unwrap(),
            interface: interface.map(Into::into),
        };
        explain(&packet, &self.settings, &addresses(), &self.cluster())
    }

    fn brief(&self, from: &str, to: &str) -> String {
        brief(&self.explain(from, to))
    }
}

fn addresses() -> [IpAddr; 3] {
    [NODE, "192.0.2.12", "127.0.0.1"].map(|ip| ip.parse().unwrap())
}

/// `10.244.0.5 External`, `Refused NoEndpoints`.
fn brief(explanation: &Explanation) -> String {
    if explanation.fate != Fate::Forwarded {
        return format!("{:?} {:?}", explanation.fate, explanation.reason.unwrap());
    }
    let targets = explanation.endpoints.iter().map(|target| match target.masquerade {
        Some(why) => format!("{} {why:?}", target.address.ip()),
        None => target.address.ip().to_string(),
    });
    targets.collect::<Vec<_>>().join(", ")
}

const MODES: [Mode; 2] = [Mode::Nftables, Mode::Iptables];
const CLUSTER_IP: &str = "10.96.0.10:80";
const EXTERNAL_IP: &str = "198.51.100.1:80";
const BALANCER: &str = "198.51.100.2:80";
const NODE_PORT: &str = "192.0.2.11:30080";
const EXTERNAL: [&str; 3] = [EXTERNAL_IP, BALANCER, NODE_PORT];
const BOTH: [&str; 2] = ["10.244.0.5", "10.244.1.5"];

#[test]
fn policy_and_origin_decide_the_endpoints_and_the_source_that_they_see() {
    for mode in MODES {
        let plain = world(mode, &BOTH);
        let local = world(mode, &BOTH).external_local();
        let inside = world(mode, &BOTH).internal_local();
        for (world, from, to, want) in [
            (&plain, POD, CLUSTER_IP, "10.244.0.5, 10.244.1.5"),
            (&plain, CLIENT, CLUSTER_IP, "10.244.0.5 NotFromPod, 10.244.1.5 NotFromPod"),
            (&plain, NODE, CLUSTER_IP, "10.244.0.5 NotFromPod, 10.244.1.5 NotFromPod"),
            (&plain, "10.244.0.5", CLUSTER_IP, "10.244.0.5 Hairpin, 10.244.1.5"),
            (&inside, POD, CLUSTER_IP, "10.244.0.5"),
            (&inside, CLIENT, EXTERNAL_IP, "10.244.0.5 External, 10.244.1.5 External"),
        ] {
            assert_eq!(world.brief(from, to), want, "{mode:?} {from} {to}");
        }
        for to in EXTERNAL {
            let masqueraded = "10.244.0.5 External, 10.244.1.5 External";
            for from in [POD, CLIENT, NODE] {
                assert_eq!(plain.brief(from, to), masqueraded, "{mode:?} {from} {to}");
            }
            assert_eq!(local.brief(CLIENT, to), "10.244.0.5", "{mode:?} {to}");
            assert_eq!(local.brief(POD, to), "10.244.0.5, 10.244.1.5", "{mode:?} {to}");
            assert_eq!(local.brief(NODE, to), "10.244.0.5 FromNode, 10.244.1.5 FromNode", "{mode:?} {to}");
        }
    }
}

#[test]
fn packets_without_an_endpoint_are_refused_or_dropped_as_in_each_mode() {
    use Mode::{Iptables, Nftables};
    for mode in MODES {
        let none = world(mode, &["10.244.0.5 not-ready"]);
        let elsewhere = world(mode, &["10.244.1.5"]).internal_local().external_local();
        for from in [POD, CLIENT, NODE] {
            assert_eq!(none.brief(from, CLUSTER_IP), "Refused NoEndpoints", "{mode:?} {from}");
            assert_eq!(none.brief(from, NODE_PORT), "Refused NoEndpoints", "{mode:?} {from}");
            assert_eq!(elsewhere.brief(from, CLUSTER_IP), "Dropped NoLocalEndpoints", "{mode:?} {from}");
        }
        for to in EXTERNAL {
            assert_eq!(none.brief(CLIENT, to), "Refused NoEndpoints", "{mode:?} {to}");
            assert_eq!(elsewhere.brief(CLIENT, to), "Dropped NoLocalEndpoints", "{mode:?} {to}");
            assert_eq!(elsewhere.brief(POD, to), "10.244.1.5", "{mode:?} {to}");
        }
    }
    let none = |mode| world(mode, &[]);
    assert_eq!(none(Nftables).brief(NODE, EXTERNAL_IP), "Refused NoEndpoints");
    assert_eq!(none(Iptables).brief(NODE, EXTERNAL_IP), "Untouched UncheckedFromNode");
}

#[test]
fn source_ranges_restrict_only_the_load_balancer_ip() {
    for mode in MODES {
        let closed = world(mode, &BOTH).ranges("203.0.113.0/24");
        let forwarded = "10.244.0.5 External, 10.244.1.5 External";
        assert_eq!(closed.brief(CLIENT, BALANCER), forwarded);
        assert_eq!(closed.brief(POD, BALANCER), "Dropped NotInSourceRanges");
        assert_eq!(closed.brief(NODE, BALANCER), "Dropped NotInSourceRanges");
        assert_eq!(closed.brief(POD, EXTERNAL_IP), forwarded);
    }
    // In the iptables mode a Service without endpoints has no such chain.
    let empty = |mode| world(mode, &[]).ranges("203.0.113.0/24");
    assert_eq!(empty(Mode::Nftables).brief(POD, BALANCER), "Dropped NotInSourceRanges");
    assert_eq!(empty(Mode::Iptables).brief(POD, BALANCER), "Refused NoEndpoints");
}

#[test]
fn destinations_without_a_service_are_untouched_unless_they_are_cluster_ips() {
    for (to, nftables, iptables) in [
        ("10.96.0.10:81", "Refused NoSuchPort", "Untouched NoSuchPort"),
        ("10.96.0.99:80", "Dropped UnusedClusterIp", "Untouched NoService"),
        ("198.51.100.1:81", "Untouched NoService", "Untouched NoService"),
        ("192.0.2.11:80", "Untouched NoService", "Untouched NoService"),
    ] {
        for (mode, want) in [(Mode::Nftables, nftables), (Mode::Iptables, iptables)] {
            let world = World { service_cidr: true, ..world(mode, &BOTH) };
            assert_eq!(world.brief(POD, to), want, "{mode:?} {to}");
        }
    }
}

#[test]
fn node_ports_answer_where_they_are_served() {
    for mode in MODES {
        let mut some = world(mode, &BOTH);
        some.settings.node_port_addresses =
            NodePortAddresses::new(Family::V4, &["192.0.2.11/32".parse().unwrap()]);
        some.settings.serves_localhost = false;
        assert!(some.brief(CLIENT, NODE_PORT).contains("External"));
        assert_eq!(some.brief(CLIENT, "192.0.2.12:30080"), "Untouched NodePortNotServedHere");
        assert_eq!(some.brief("127.0.0.1", "127.0.0.1:30080"), "Untouched NodePortNotServedHere");
    }
    let everywhere = |mode| world(mode, &BOTH).brief("127.0.0.1", "127.0.0.1:30080");
    assert_eq!(everywhere(Mode::Nftables), "Untouched NodePortNotServedHere");
    assert_eq!(everywhere(Mode::Iptables), "10.244.0.5 External, 10.244.1.5 External");
}

#[test]
fn what_is_delivered_to_the_node_itself_keeps_its_source() {
    for mode in MODES {
        let world = world(mode, &[NODE]);
        assert_eq!(world.brief(CLIENT, NODE_PORT), NODE);
        assert_eq!(world.brief(NODE, NODE_PORT), "192.0.2.11 External");
    }
    // What the node sends to itself traverses more rules after the one that masquerades.
    for mode in MODES {
        let mut world = world(mode, &[NODE]);
        world.settings.from_pod = None;
        assert_eq!(world.brief(NODE, CLUSTER_IP), "192.0.2.11 Hairpin", "{mode:?}");
    }
}

#[test]
fn unused_endpoints_are_reported_with_the_reason() {
    let all = ["10.244.0.5 a", "10.244.0.6 not-ready", "10.244.1.7 draining", "10.244.1.8 b c"];
    let explanation = world(Mode::Nftables, &all).explain(POD, CLUSTER_IP);
    assert_eq!(brief(&explanation), "10.244.0.5");
    let unused: Vec<_> = (explanation.unused.iter())
        .map(|one| (one.address.to_string(), one.reason, one.zones.join(" ")))
        .collect();
    assert_eq!(
        unused,
        [
            ("10.244.0.6:8080".into(), UnusedReason::NotReady, String::new()),
            ("10.244.1.7:8080".into(), UnusedReason::Draining, String::new()),
            ("10.244.1.8:8080".into(), UnusedReason::ForOtherZones, "b c".into()),
        ]
    );
    let local = world(Mode::Nftables, &["10.244.0.5", "10.244.1.5"]).external_local();
    let explanation = local.explain(CLIENT, NODE_PORT);
    assert_eq!(explanation.unused.len(), 1);
    assert_eq!(explanation.unused[0].reason, UnusedReason::OnAnotherNode);
}

#[test]
fn probabilities_add_up_to_one() {
    let explanation =
        world(Mode::Nftables, &["10.244.0.5", "10.244.0.6", "10.244.1.7"]).explain(POD, CLUSTER_IP);
    let sum: f64 = explanation.endpoints.iter().map(|target| target.probability).sum();
    assert!((sum - 1.0).abs() < 1e-9, "{sum}");
}

#[test]
fn pods_are_recognized_by_their_interface_if_it_is_known() {
    for mode in MODES {
        let mut world = world(mode, &BOTH);
        world.settings.from_pod = Some(FromPod::InterfacePrefix("veth".into()));
        let origin = |from, interface| {
            world.try_explain(from, CLUSTER_IP, interface).map(|explanation| explanation.origin)
        };
        assert_eq!(origin(CLIENT, Some("veth3")), Ok(Origin::Pod));
        assert_eq!(origin(POD, Some("eth0")), Ok(Origin::Elsewhere));
        assert_eq!(origin(NODE, None), Ok(Origin::Node));
        assert!(matches!(origin(POD, None), Err(Unanswerable::Interface(_))));
        world.settings.from_pod = None;
        let explanation = world.explain(POD, CLUSTER_IP);
        assert_eq!((explanation.origin, &*brief(&explanation)), (Origin::Unknown, "10.244.0.5, 10.244.1.5"));
    }
}

#[test]
fn impossible_packets_are_not_explained() {
    let world = world(Mode::Nftables, &BOTH);
    assert_eq!(world.try_explain("fd00::1", CLUSTER_IP, None), Err(Unanswerable::Families));
    assert_eq!(world.try_explain(POD, "127.0.0.1:30080", None), Err(Unanswerable::Loopback));
}

/// The sets that the plan for a world desires, without some elements.
struct Table<'a> {
    desired: DesiredSets<'a>,
    is_missing: &'a dyn Fn(&Element) -> bool,
}

impl Sets for Table<'_> {
    type Error = std::convert::Infallible;

    fn find(&mut self, set: Set, key: ElementKey) -> Result<Option<Element>, Self::Error> {
        Ok(self.desired.find(set, key)?.filter(|element| !(self.is_missing)(element)))
    }

    fn slots(&mut self, list: u32) -> Result<Slots, Self::Error> {
        let slots = self.desired.slots(list)?;
        let element = |(slot, to): &(u32, SocketAddr)| {
            let port = model::names::Port::from_api(to.port().into()).unwrap();
            let endpoint = model::routing::Endpoint { ip: to.ip(), local: false, port };
            Element::pair(Set::Endpoints, ElementKey::EMPTY.number(list).slot(*slot), &endpoint)
        };
        Ok(slots.iter().filter(|slot| !(self.is_missing)(&element(slot))).copied().collect())
    }
}

/// What a kernel does that holds the desired state for this world, without some elements.
fn live(world: &World, explanation: &Explanation, is_missing: &dyn Fn(&Element) -> bool) -> Live {
    let mut cluster = world.cluster();
    let mut table = DesiredTable::new(world.settings.nftables(Family::V4));
    table.accept(cluster.take_changes().routings);
    table.replace_service_cidrs(cluster.service_cidrs());
    let desired = DesiredSets::new(&table);
    through_sets(explanation, &addresses(), &mut Table { desired, is_missing }).unwrap()
}

/// Every kind of source with every kind of destination.
fn packets() -> impl Iterator<Item = (&'static str, &'static str)> {
    let to =
        [CLUSTER_IP, EXTERNAL_IP, BALANCER, NODE_PORT, "10.96.0.10:81", "10.96.0.99:80", "198.51.100.1:81"];
    [POD, "10.244.0.5", CLIENT, NODE].into_iter().flat_map(move |from| to.map(|to| (from, to)))
}

fn worlds(mode: Mode) -> Vec<World> {
    let endpoints: [&[&str]; 4] =
        [&BOTH, &["10.244.1.5"], &[], &["10.244.0.5 b", "10.244.1.5 a", "10.244.1.6 a"]];
    let of = |endpoints: &[&str]| {
        let plain = || world(mode, endpoints);
        [
            plain(),
            plain().internal_local(),
            plain().external_local(),
            plain().external_local().ranges("203.0.113.0/24"),
            World { service_cidr: true, ..plain().ranges("10.244.0.0/16") },
        ]
    };
    endpoints.into_iter().flat_map(of).collect()
}

#[test]
fn desired_sets_lead_where_the_explanation_says() {
    for world in worlds(Mode::Nftables) {
        for (from, to) in packets() {
            let explanation = world.explain(from, to);
            let live = live(&world, &explanation, &|_| false);
            assert!(live.agrees, "{live:?}\n{explanation:#?}");
        }
    }
}

#[test]
fn a_missing_element_is_visible_in_the_live_answer() {
    let world = world(Mode::Nftables, &BOTH);
    let explanation = world.explain(POD, CLUSTER_IP);
    for (set, fate) in [
        (Set::Endpoints, Fate::Dropped),
        (Set::Lists(LookupBy::Address, Clients::All), Fate::Refused),
        (Set::Frontends(LookupBy::Address), Fate::Dropped),
    ] {
        let live = live(&world, &explanation, &|element| element.set == set);
        assert_eq!((live.agrees, live.fate), (false, fate), "{set:?}");
    }
    let gone = |element: &Element| element.endpoint().is_some_and(|(ip, _)| ip.to_string() == "10.244.1.5");
    let half = live(&world, &explanation, &gone);
    assert!(!half.agrees && half.may_miss);
    assert_eq!(half.endpoints, ["10.244.0.5:8080".parse().unwrap()].into());
    let explanation = world.explain("10.244.0.5", CLUSTER_IP);
    let seen = live(&world, &explanation, &|element| element.set == Set::Hairpin);
    assert!(!seen.agrees && seen.masqueraded.is_empty());
}

/// The tables of a world, as `iptables-save` prints them.
fn rules(world: &World) -> [String; 2] {
    let settings = crate::iptables::program::RuleSettings {
        family: Family::V4,
        mark: world.settings.mark,
        masquerade_all: false,
        from_pod: world.settings.from_pod.clone(),
        localhost_node_ports: true,
        node_port_addresses: world.settings.node_port_addresses.clone(),
        abilities: Default::default(),
    };
    let routings = world.cluster().take_changes().routings.into_iter();
    let desired = DesiredRules {
        tail: settings.tail(&[]),
        services: routings.map(|(name, it)| (name, it.unwrap(), EndpointComments::Written)).collect(),
        stale: BTreeSet::new(),
        settings,
    };
    let [filter, nat] = desired.tables();
    [("nat", nat), ("filter", filter)].map(|(table, Listing(chains))| {
        let jumps = Jump::ALL.into_iter().rev().filter(|jump| jump.table.name() == table);
        let mut text: String = jumps.map(|jump| jump.saved() + "\n").collect();
        for (name, rules) in chains {
            text += &format!(":{name} - [0:0]\n");
            text.extend(rules.iter().map(|rule| format!("-A {name} {rule}\n")));
        }
        text
    })
}

#[test]
fn rules_lead_where_the_explanation_says() {
    for world in worlds(Mode::Iptables) {
        let [nat, filter] = rules(&world);
        for (from, to) in packets() {
            let explanation = world.explain(from, to);
            let live = through_rules(&explanation, &nat, &filter, &addresses());
            assert!(live.agrees, "{live:?}\n{explanation:#?}\n{nat}{filter}");
        }
    }
}

#[test]
fn a_missing_rule_is_visible_in_the_live_answer() {
    let world = world(Mode::Iptables, &BOTH);
    let [nat, filter] = rules(&world);
    let explanation = world.explain(POD, CLUSTER_IP);
    let live = |nat: &str| through_rules(&explanation, nat, &filter, &addresses());
    assert!(live(&nat).agrees);
    // The last endpoint gets what the random rules before it leave over; without it, that goes nowhere.
    let without: Vec<&str> = nat.lines().filter(|line| !line.contains("-> 10.244.1.5:8080")).collect();
    assert!(without.len() < nat.lines().count());
    let found = live(&without.join("\n"));
    assert!(!found.agrees && found.may_miss, "{found:?}");
    assert_eq!(live("").fate, Fate::Untouched);
    let unmarked = nat.replace("-j MARK --set-xmark 0x4000/0x4000", "-j CONNMARK --save-mark");
    let found = live(&unmarked);
    assert!(found.agrees, "a pod's packet is not marked: {found:?}");
    let explanation = world.explain(CLIENT, CLUSTER_IP);
    let found = through_rules(&explanation, &unmarked, &filter, &addresses());
    assert_eq!((found.agrees, &*found.not_understood), (false, &["-j CONNMARK --save-mark".to_owned()][..]));
}

#[test]
fn a_health_check_is_answered_by_the_proxy_itself() {
    let status = |explanation: &Explanation| explanation.health_check.as_ref().map(|check| check.status);
    for mode in [Mode::Nftables, Mode::Iptables] {
        for (endpoints, want) in [(&["10.244.0.5"][..], 200), (&["10.244.0.5 not-ready", "10.244.1.5"], 503)]
        {
            let world = world(mode, endpoints).external_local();
            let explanation = world.explain(CLIENT, "192.0.2.11:30999");
            assert_eq!(brief(&explanation), "Untouched HealthCheck", "{mode:?}");
            assert_eq!(status(&explanation), Some(want), "{mode:?} {endpoints:?}");
        }
        let mut elsewhere = world(mode, &["10.244.0.5"]).external_local();
        elsewhere.settings.node_port_addresses =
            NodePortAddresses::new(Family::V4, &["192.0.2.12/32".parse().unwrap()]);
        for (world, to) in [
            (&world(mode, &["10.244.0.5"]), "192.0.2.11:30999"),
            (&world(mode, &["10.244.0.5"]).external_local(), "198.51.100.2:30999"),
            (&elsewhere, "192.0.2.11:30999"),
        ] {
            let explanation = world.explain(CLIENT, to);
            assert_eq!(
                (brief(&explanation).as_str(), status(&explanation)),
                ("Untouched NoService", None),
                "{to}"
            );
        }
    }
}

#[test]
fn probabilities_are_those_of_the_mode() {
    let pods: Vec<String> = (1..=17).map(|number| format!("10.244.0.{number}")).collect();
    let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
    for (mode, want) in [(Mode::Iptables, vec![1.0 / 17.0; 17]), (Mode::Nftables, shares(17))] {
        let explanation = world(mode, &pods).explain(CLIENT, "10.96.0.10:80");
        let found: Vec<f64> = explanation.endpoints.iter().map(|target| target.probability).collect();
        // iptables prints ten decimals of each probability, and the kernel keeps multiples of 2^-31.
        let is_same = found.iter().zip(&want).all(|(found, want)| (found - want).abs() < 1e-7);
        assert!(found.len() == want.len() && is_same, "{mode:?} {found:?} {want:?}");
    }
}

#[test]
fn probabilities_follow_weights() {
    for mode in [Mode::Nftables, Mode::Iptables, Mode::Ipvs] {
        let world = world(mode, &["10.244.0.5", "10.244.1.6", "10.244.1.7"])
            .weights("10.244.0.5=1,10.244.1.6=3,10.244.1.7=0");
        let explanation = world.explain(CLIENT, "10.96.0.10:80");
        let found = explanation.endpoints.iter();
        let found: Vec<_> = found.map(|it| (it.address.to_string(), it.probability, it.weight)).collect();
        let want = [("10.244.0.5:8080".into(), 0.25, Some(1)), ("10.244.1.6:8080".into(), 0.75, Some(3))];
        assert_eq!(found, want, "{mode:?}");
        let unused = explanation.unused.iter().map(|it| (it.address.to_string(), it.reason));
        assert_eq!(unused.collect::<Vec<_>>(), [("10.244.1.7:8080".into(), UnusedReason::WithoutWeight)]);
    }
}

#[test]
fn an_annotation_that_is_ignored_is_reported() {
    let world = world(Mode::Nftables, &["10.244.0.5", "10.244.1.6"]).weights("heavy");
    let explanation = world.explain(CLIENT, "10.96.0.10:80");
    assert_eq!(
        explanation.ignored,
        [IgnoredAnnotation {
            slice: Some("web-1".into()),
            annotation: "service.sluice.io/weight".into(),
            value: "heavy".into(),
            reason: IgnoredReason::Invalid,
        }]
    );
    assert!(explanation.endpoints.iter().all(|it| it.weight.is_none()));
}

#[test]
fn a_hash_that_is_ignored_is_reported() {
    for (mode, hash, hashed, want) in [
        (Mode::Nftables, "ClientIP", true, None),
        (Mode::Nftables, "all", false, Some(IgnoredReason::Invalid)),
        (Mode::Iptables, "ClientIP", false, Some(IgnoredReason::Unsupported)),
    ] {
        let mut world = world(mode, &["10.244.0.5", "10.244.1.6"]);
        world.service.metadata.annotations.hash = Some(hash.into());
        let explanation = world.explain(CLIENT, "10.96.0.10:80");
        assert_eq!(explanation.hash.is_some(), hashed, "{mode:?} {hash}");
        let found: Vec<_> = explanation.ignored.iter().map(|it| (&*it.value, it.reason)).collect();
        assert_eq!(found, want.map(|reason| (hash, reason)).into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn an_endpoint_in_a_likelier_slot_is_likelier() {
    let pods: Vec<String> = (1..=17).map(|number| format!("10.244.0.{number}")).collect();
    let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
    let world = world(Mode::Nftables, &pods);
    let mut cluster = world.cluster();
    cluster.discard_changes();
    let (_, routing) = cluster.routings().into_iter().next().unwrap();
    let mut slots: Vec<_> = routing.cluster.to_vec();
    slots.rotate_left(2);
    let packet = Packet {
        source: CLIENT.parse().unwrap(),
        source_port: None,
        protocol: Protocol::Tcp,
        destination: "10.96.0.10:80".parse().unwrap(),
        interface: None,
    };
    let in_slots = |_: &ServicePortName| SlotAssignment { cluster: &slots, local: &[] };
    let explanation = explain_in_slots(&packet, &world.settings, &[], &cluster, in_slots).unwrap();
    let least = explanation.endpoints.iter().min_by(|a, b| a.probability.total_cmp(&b.probability)).unwrap();
    assert_eq!(Some(least.address.ip()), slots.last().map(|last| last.ip));
}

#[test]
fn of_several_claims_to_an_address_the_winner_is_reported_with_the_reason() {
    use crate::nftables::claims::Precedence;
    let old = Some("2026-11-16T10:00:00Z");
    let new = Some("2026-11-16T10:00:01Z");
    // The other one comes first by name. Both have endpoints.
    for (mode, created, address, has_it, why) in [
        (Mode::Nftables, [old, new], "198.51.100.1", "web", Precedence::CreatedFirst),
        (Mode::Nftables, [new, old], "198.51.100.1", "other", Precedence::CreatedFirst),
        (Mode::Nftables, [None, None], "198.51.100.1", "other", Precedence::FirstByName),
        (Mode::Nftables, [new, old], "10.96.0.10", "web", Precedence::ClusterIp),
        (Mode::Iptables, [old, new], "198.51.100.1", "other", Precedence::FirstRule),
        (Mode::Iptables, [old, new], "10.96.0.10", "other", Precedence::FirstRule),
    ] {
        let mut world = world(mode, &["10.244.0.5"]);
        world.service.metadata.creation_timestamp = created[0].map(Into::into);
        let mut cluster = world.cluster();
        let mut other = world.service.clone();
        other.metadata.name = "other".into();
        other.metadata.creation_timestamp = created[1].map(Into::into);
        other.spec.cluster_ip = "10.96.0.77".into();
        other.spec.external_ips = vec![address.into()];
        other.status = api::ServiceStatus::default();
        let slice: api::EndpointSlice = serde_saphyr::from_str(
            "metadata: {namespace: shop, name: other-1, labels: {kubernetes.io/service-name: other}}
             \naddressType: IPv4\nports: [{name: http, port: 8080}]\nendpoints: [{addresses: [10.244.0.6]}]",
        )
        .unwrap();
        for event in [Event::ServiceApplied(other.into()), Event::SliceApplied(slice.into())] {
            cluster.apply(&event);
        }
        let packet = Packet {
            source: CLIENT.parse().unwrap(),
            source_port: None,
            protocol: Protocol::Tcp,
            destination: format!("{address}:80").parse().unwrap(),
            interface: None,
        };
        let addresses = [NODE.parse().unwrap()];
        let frontend = explain(&packet, &world.settings, &addresses, &cluster).unwrap().frontend.unwrap();
        assert_eq!((&*frontend.service, frontend.precedence), (has_it, Some(why)), "{mode:?} {created:?}");
        let denied = if has_it == "web" { "shop/other:http" } else { "shop/web:http" };
        assert_eq!(frontend.denied_to, [denied]);
    }
}

/// Where the modes differ: the table "What packets meet" of the specification of the ipvs mode.
mod ipvs {
    use super::*;

    const ALL: &str = "10.244.0.5 External, 10.244.1.5 External";

    fn ipvs(endpoints: &[&str]) -> World {
        world(Mode::Ipvs, endpoints)
    }

    #[test]
    fn ports_of_no_service_are_refused_at_every_service_address() {
        for to in ["10.96.0.10:81", "198.51.100.1:81", "198.51.100.2:22", "10.96.0.10:30080"] {
            for from in [POD, CLIENT, NODE] {
                assert_eq!(ipvs(&BOTH).brief(from, to), "Refused NoSuchPort", "{from} to {to}");
            }
        }
        assert_eq!(ipvs(&BOTH).brief(POD, "10.96.0.99:80"), "Untouched NoService");
        assert_eq!(ipvs(&BOTH).brief(POD, "192.0.2.11:80"), "Untouched NoService");
    }

    #[test]
    fn ipvs_itself_refuses_what_has_no_endpoints() {
        for from in [POD, CLIENT, NODE] {
            for to in [CLUSTER_IP, EXTERNAL_IP, BALANCER, NODE_PORT] {
                assert_eq!(ipvs(&[]).brief(from, to), "Refused NoEndpoints", "{from} to {to}");
            }
        }
    }

    #[test]
    fn source_ranges_come_before_ipvs_except_from_the_node() {
        let closed = ipvs(&BOTH).ranges("203.0.113.0/24");
        assert_eq!(closed.brief(CLIENT, BALANCER), ALL);
        assert_eq!(closed.brief(POD, BALANCER), "Dropped NotInSourceRanges");
        assert_eq!(closed.brief(NODE, BALANCER), "Dropped NotInSourceRanges");
        assert_eq!(closed.brief(NODE, EXTERNAL_IP), ALL);
        let empty = ipvs(&[]).ranges("203.0.113.0/24");
        assert_eq!(empty.brief(POD, BALANCER), "Dropped NotInSourceRanges");
        assert_eq!(empty.brief(NODE, BALANCER), "Refused NoEndpoints");
        assert_eq!(ipvs(&BOTH).ranges("192.0.2.0/24").brief(NODE, BALANCER), ALL);
    }

    #[test]
    fn node_ports_are_served_at_every_address_but_loopback() {
        assert_eq!(ipvs(&BOTH).brief(CLIENT, NODE_PORT), ALL);
        assert_eq!(ipvs(&BOTH).brief(NODE, "192.0.2.12:30080"), ALL);
        assert_eq!(ipvs(&BOTH).brief("127.0.0.1", "127.0.0.1:30080"), "Untouched NodePortNotServedHere");
        let mut some = ipvs(&BOTH);
        some.settings.node_port_addresses =
            NodePortAddresses::new(Family::V4, &["192.0.2.11/32".parse().unwrap()]);
        assert_eq!(some.brief(CLIENT, "192.0.2.12:30080"), "Untouched NodePortNotServedHere");
    }

    #[test]
    fn policy_local_is_the_same_for_all_clients_and_falls_back_to_all_endpoints() {
        for to in [EXTERNAL_IP, BALANCER, NODE_PORT] {
            for from in [POD, CLIENT, NODE] {
                let local = |endpoints: &[&str]| ipvs(endpoints).external_local().brief(from, to);
                assert_eq!(local(&BOTH), "10.244.0.5", "{from} to {to}");
                assert_eq!(local(&["10.244.1.5"]), "10.244.1.5", "{from} to {to}");
                assert_eq!(local(&["10.244.0.5 draining", "10.244.1.5"]), "10.244.0.5", "{from} to {to}");
            }
        }
        let internal = |world: World| world.internal_local().brief(POD, CLUSTER_IP);
        assert_eq!(internal(ipvs(&BOTH)), "10.244.0.5");
        assert_eq!(internal(ipvs(&["10.244.1.5"])), "10.244.1.5", "it is also accessible from outside");
        let mut only = ipvs(&["10.244.1.5"]);
        only.service.spec.r#type = None;
        only.service.spec.external_ips.clear();
        only.service.status = api::ServiceStatus::default();
        only.service.spec.ports[0].node_port = None;
        assert_eq!(internal(only), "Refused NoLocalEndpoints");
    }

    #[test]
    fn cluster_ips_masquerade_for_the_same_reasons() {
        let both = "10.244.0.5 NotFromPod, 10.244.1.5 NotFromPod";
        assert_eq!(ipvs(&BOTH).brief(POD, CLUSTER_IP), "10.244.0.5, 10.244.1.5");
        assert_eq!(ipvs(&BOTH).brief(CLIENT, CLUSTER_IP), both);
        assert_eq!(ipvs(&BOTH).brief(NODE, CLUSTER_IP), both);
        assert_eq!(ipvs(&BOTH).brief("10.244.0.5", CLUSTER_IP), "10.244.0.5 Hairpin, 10.244.1.5");
        let mut unknown = ipvs(&["10.244.1.5"]);
        unknown.settings.from_pod = None;
        assert_eq!(unknown.brief(CLIENT, CLUSTER_IP), "10.244.1.5");
        assert_eq!(unknown.brief(NODE, CLUSTER_IP), "10.244.1.5 FromNode");
        unknown.settings.masquerade_all = true;
        assert_eq!(unknown.brief(CLIENT, CLUSTER_IP), "10.244.1.5 All");
    }

    #[test]
    fn the_chains_before_ipvs_and_the_affinity_that_it_has_are_shown() {
        let mut sticky = ipvs(&BOTH);
        sticky.service.spec.session_affinity = Some("ClientIP".into());
        let client_ip = Some(api::ClientIpConfig { timeout_seconds: Some(61) });
        sticky.service.spec.session_affinity_config = Some(api::SessionAffinityConfig { client_ip });
        let explanation = sticky.explain(CLIENT, CLUSTER_IP);
        assert_eq!(explanation.chains, ["services", "frontend", "cluster-ip"]);
        assert_eq!(explanation.affinity_seconds, Some(61), "it is not rounded");
        assert!(explanation.to_this_node);
        let dropped = sticky.ranges("192.0.2.0/24").explain(CLIENT, BALANCER);
        assert_eq!(dropped.chains, ["firewall-check"]);
    }

    #[test]
    fn load_balancers_may_check_their_own_address() {
        let local = ipvs(&BOTH).external_local();
        for to in [NODE, "198.51.100.2"] {
            let explanation = local.explain(CLIENT, &format!("{to}:30999"));
            assert_eq!((explanation.fate, explanation.reason), (Fate::Untouched, Some(Reason::HealthCheck)));
        }
    }
}
