//! The packet matrix: who may reach what, through which frontend, and whom the endpoint sees.

use std::time::Duration;

use model::address::Family;
use model::names::Protocol;

use crate::matrix::Expected::{Refused, Silence, Strays, Untouched};
use crate::matrix::{
    CLUSTER_IP, Case, EVERYONE, EVERYWHERE, EXTERNAL, EXTERNAL_IP, LOAD_BALANCER_IP, Mode,
    NODE_PORT_AT_NODE_IP, OTHER_CLUSTER_IP, ProbeTarget, case, differs, masqueraded, plain,
};
use crate::options::{DetectLocal, Options};
use testkit::lab::ClientPlace::{Crowd, Node, Outside, Pod, PodA, RemotePod};
use testkit::lab::{Address, NODE_PORT, OTHER_TARGET, TARGET};
use testkit::manifests::{
    A, ALL, B, EndpointManifest, HOST, Manifest, PortManifest, R, S, ServiceManifest, State, web,
};

const TCP: &[Protocol] = &[Protocol::Tcp];
const UDP: &[Protocol] = &[Protocol::Udp];
const SCTP: &[Protocol] = &[Protocol::Sctp];

/// Who the default configuration takes for a pod.
const PODS: &[testkit::lab::ClientPlace] = &[Pod, RemotePod];
const NOT_PODS: &[testkit::lab::ClientPlace] = &[Node, Outside];

/// Long enough to outlast every test.
const THREE_HOURS: u32 = 10_800;

impl Case {
    /// Everyone is refused everywhere, except that in iptables mode what this node itself sends to an external address
    /// is not looked at and leaves it.
    fn expect_refusal_everywhere(self) -> Self {
        self.expect(&[Pod, RemotePod, Outside], EVERYWHERE, Refused)
            .expect(&[Node], &[CLUSTER_IP, NODE_PORT_AT_NODE_IP], Refused)
            .expect(&[Node], &[EXTERNAL_IP, LOAD_BALANCER_IP], differs(Refused, Strays))
    }
}

/// The cases for a mode.
pub fn of(mode: Mode) -> Vec<Case> {
    let mut cases = all();
    cases.extend(match mode {
        Mode::Nftables | Mode::Ipvs => [node_ports_not_on_loopback(), hashing()].concat(),
        Mode::Iptables => node_ports_on_loopback(),
    });
    cases
}

/// The cases for every mode.
fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(policies_and_masquerading());
    cases.extend(without_endpoints());
    cases.extend(draining());
    cases.extend(hints());
    cases.extend(frontends());
    cases.extend(hairpin());
    cases.extend(telling_pods());
    cases.extend(marks());
    cases.extend(node_ports());
    cases.extend(source_ranges());
    cases.extend(affinity());
    cases.extend(shared_addresses());
    cases.extend(affinity_by_frontend());
    cases.extend(older_flows());
    cases
}

/// Where a mode keeps node ports from loopback.
fn node_ports_not_on_loopback() -> Vec<Case> {
    let on_loopback = NODE_PORT_AT_NODE_IP.at(Address::Loopback);
    vec![
        case("node ports are not served on loopback, though everywhere else")
            .hold([web(&[A, R]).into()])
            .expect(&[Node], &[on_loopback], Untouched)
            .hold([web(&[]).into()])
            .expect(&[Node], &[on_loopback], Untouched),
        case("node ports are not served on loopback, though listed")
            .with(Options {
                node_port_addresses: &["127.0.0.0/8", "192.0.2.0/24", "::1/128", "2001:db8:2::/64"],
                ..Options::default()
            })
            .hold([web(&[A, R]).into()])
            .expect(&[Node], &[on_loopback], Untouched)
            .expect(&[Node, Outside], &[NODE_PORT_AT_NODE_IP], masqueraded(&[A, R])),
    ]
}

/// Where a mode can hash clients.
fn hashing() -> Vec<Case> {
    let all = [A, R, S];
    vec![
        case("clients are hashed by their address")
            .hold([web(&all).hashed("ClientIP").external_local().into()])
            .expect(PODS, &[CLUSTER_IP], plain(&all).sticking())
            .expect(NOT_PODS, &[CLUSTER_IP], masqueraded(&all).sticking())
            .expect(PODS, EXTERNAL, plain(&all).sticking().but_in_ipvs(plain(&[A])))
            .expect(&[Node], EXTERNAL, masqueraded(&all).sticking().but_in_ipvs(plain(&[A])))
            .expect(&[Outside], EXTERNAL, plain(&[A]))
            .hold([web(&all).hashed("ClientIP").into()])
            .expect(&[Outside, Node], EXTERNAL, masqueraded(&all).sticking()),
        case("clients are hashed by their address and port")
            .hold([web(&all).hashed("ClientIPAndPort").external_local().into()])
            .expect(PODS, &[CLUSTER_IP], plain(&all))
            .expect(PODS, EXTERNAL, plain(&all).but_in_ipvs(plain(&[A])))
            .expect(&[Outside], EXTERNAL, plain(&[A]))
            .hold([web(&all).hashed("ClientIPAndPort").into()])
            .expect(&[Outside, Node], EXTERNAL, masqueraded(&all)),
    ]
}

/// Where a mode serves node ports on loopback, as far as the kernel lets it: in IPv4.
fn node_ports_on_loopback() -> Vec<Case> {
    let on_loopback = NODE_PORT_AT_NODE_IP.at(Address::Loopback);
    vec![
        case("node ports are served on loopback")
            .in_family(Family::V4)
            .hold([web(&[A, R]).into()])
            .expect(&[Node], &[on_loopback], masqueraded(&[A, R]))
            .hold([web(&[]).into()])
            .expect(&[Node], &[on_loopback], Refused),
        case("node ports are not served on the loopback of IPv6")
            .in_family(Family::V6)
            .hold([web(&[A, R]).into()])
            .expect(&[Node], &[on_loopback], Untouched),
    ]
}

/// The table "who is masqueraded and where traffic goes", in the four combinations of the two options it depends on.
fn policies_and_masquerading() -> Vec<Case> {
    let mut cases = Vec::new();
    for (masquerade_all, detects) in [(false, true), (false, false), (true, true), (true, false)] {
        let detect_local = if detects { DetectLocal::PodCidr } else { DetectLocal::No };
        let options = Options { masquerade_all, detect_local, ..Options::default() };
        let named = |name: &str| {
            let all = if masquerade_all { ", masquerading all" } else { "" };
            let detects = if detects { "" } else { ", telling no pods" };
            case(format!("{name}{all}{detects}")).with(options.clone())
        };
        // What a cluster IP does to the address of its client.
        let inside = if masquerade_all { masqueraded } else { plain };
        let outside = if masquerade_all || detects { masqueraded } else { plain };
        // A client that rules cannot tell from outside clients is treated as one.
        let circuit = if detects { plain(&[A, R]).but_in_ipvs(plain(&[A])) } else { plain(&[A]) };
        // In ipvs mode the node speaks to a cluster IP from that cluster IP.
        let from_node =
            |endpoints: &[EndpointManifest]| outside(endpoints).but_in_ipvs(masqueraded(endpoints));
        cases.extend([
            named("policy Cluster")
                .hold([web(&[A, R]).into()])
                .expect(PODS, &[CLUSTER_IP], inside(&[A, R]))
                .expect(&[Outside], &[CLUSTER_IP], outside(&[A, R]))
                .expect(&[Node], &[CLUSTER_IP], from_node(&[A, R]))
                .expect(EVERYONE, EXTERNAL, masqueraded(&[A, R])),
            named("external policy Local")
                .hold([web(&[A, R]).external_local().into()])
                .expect(PODS, &[CLUSTER_IP], inside(&[A, R]))
                .expect(&[Outside], &[CLUSTER_IP], outside(&[A, R]))
                .expect(&[Node], &[CLUSTER_IP], from_node(&[A, R]))
                .expect(PODS, EXTERNAL, circuit.clone())
                .expect(&[Node], EXTERNAL, masqueraded(&[A, R]).but_in_ipvs(plain(&[A])))
                .expect(&[Outside], EXTERNAL, plain(&[A])),
            named("internal policy Local")
                .hold([web(&[A, R]).internal_local().into()])
                .expect(PODS, &[CLUSTER_IP], inside(&[A]))
                .expect(&[Outside], &[CLUSTER_IP], outside(&[A]))
                .expect(&[Node], &[CLUSTER_IP], from_node(&[A]))
                .expect(EVERYONE, EXTERNAL, masqueraded(&[A, R])),
            named("both policies Local")
                .hold([web(&[A, R]).internal_local().external_local().into()])
                .expect(PODS, &[CLUSTER_IP], inside(&[A]))
                .expect(&[Outside], &[CLUSTER_IP], outside(&[A]))
                .expect(&[Node], &[CLUSTER_IP], from_node(&[A]))
                .expect(PODS, EXTERNAL, circuit)
                .expect(&[Node], EXTERNAL, masqueraded(&[A, R]).but_in_ipvs(plain(&[A])))
                .expect(&[Outside], EXTERNAL, plain(&[A])),
        ]);
    }
    cases.push(
        case("policies change while the service lives")
            .hold([web(&[A, R]).into()])
            .expect(&[Outside], EXTERNAL, masqueraded(&[A, R]))
            .hold([web(&[A, R]).external_local().into()])
            .expect(&[Outside], EXTERNAL, plain(&[A]))
            .expect(&[Pod], &[CLUSTER_IP], plain(&[A, R]))
            .hold([web(&[A, R]).internal_local().into()])
            .expect(&[Outside], EXTERNAL, masqueraded(&[A, R]))
            .expect(&[Pod], &[CLUSTER_IP], plain(&[A])),
    );
    cases
}

fn without_endpoints() -> Vec<Case> {
    let unready = [A.but(State::Unready), R.but(State::Unready)];
    vec![
        case("no endpoints: everyone is refused everywhere")
            .hold([web(&[]).into()])
            .expect_refusal_everywhere(),
        case("no endpoints, whatever the policies")
            .hold([web(&[]).internal_local().external_local().into()])
            .expect_refusal_everywhere(),
        case("endpoints that are not ready are none, until they are")
            .hold([web(&unready).into()])
            .expect_refusal_everywhere()
            .hold([web(&[A, R]).into()])
            .expect(&[Pod], &[CLUSTER_IP], plain(&[A, R]))
            .expect(&[Outside], EXTERNAL, masqueraded(&[A, R]))
            .hold([web(&[]).into()])
            .expect_refusal_everywhere(),
        case("no local endpoint for external policy Local: clients outside time out")
            .hold([web(&[R]).external_local().into()])
            .expect(&[Outside], EXTERNAL, Silence.but_in_ipvs(plain(&[R])))
            .expect(PODS, EVERYWHERE, plain(&[R]))
            .expect(&[Node], EXTERNAL, masqueraded(&[R]).but_in_ipvs(plain(&[R])))
            .expect(NOT_PODS, &[CLUSTER_IP], masqueraded(&[R])),
        case("no local endpoint for internal policy Local: the cluster IP is silent")
            .hold([web(&[R]).internal_local().into()])
            .expect(PODS, &[CLUSTER_IP], Silence.but_in_ipvs(plain(&[R])))
            .expect(NOT_PODS, &[CLUSTER_IP], Silence.but_in_ipvs(masqueraded(&[R])))
            .expect(EVERYONE, EXTERNAL, masqueraded(&[R]))
            .hold([web(&[]).internal_local().into()])
            .expect_refusal_everywhere(),
        case("no local endpoint for either policy Local")
            .hold([web(&[R]).internal_local().external_local().into()])
            .expect(PODS, &[CLUSTER_IP], Silence.but_in_ipvs(plain(&[R])))
            .expect(NOT_PODS, &[CLUSTER_IP], Silence.but_in_ipvs(masqueraded(&[R])))
            .expect(PODS, EXTERNAL, plain(&[R]))
            .expect(&[Node], EXTERNAL, masqueraded(&[R]).but_in_ipvs(plain(&[R])))
            .expect(&[Outside], EXTERNAL, Silence.but_in_ipvs(plain(&[R])))
            .hold([web(&[A, B, R]).internal_local().external_local().into()])
            .expect(&[Pod], &[CLUSTER_IP], plain(&[A, B]))
            .expect(&[Outside], EXTERNAL, plain(&[A, B])),
    ]
}

fn draining() -> Vec<Case> {
    let [a, b, r, s] = [A, B, R, S].map(|endpoint| endpoint.but(State::Draining));
    let [a_gone, r_gone] = [A, R].map(|endpoint| endpoint.but(State::Gone));
    vec![
        case("ready endpoints go before draining ones")
            .hold([web(&[A, b, R, s]).into()])
            .expect(&[Pod], &[CLUSTER_IP], plain(&[A, R]))
            .expect(&[Outside], EXTERNAL, masqueraded(&[A, R])),
        case("draining endpoints serve when no other does")
            .hold([web(&[a, r, B.but(State::Unready)]).into()])
            .expect(&[Pod], &[CLUSTER_IP], plain(&[a, r]))
            .expect(&[Outside], EXTERNAL, masqueraded(&[a, r]))
            .hold([web(&[a_gone, r]).into()])
            .expect(&[Pod], &[CLUSTER_IP], plain(&[r]))
            .hold([web(&[a_gone, r_gone]).into()])
            .expect_refusal_everywhere(),
        case("policy Local takes draining endpoints here before ready ones elsewhere")
            .hold([web(&[a, R]).internal_local().external_local().into()])
            .expect(&[Outside], EXTERNAL, plain(&[a]))
            .expect(&[Pod], &[CLUSTER_IP], plain(&[a]))
            .expect(&[Pod], EXTERNAL, plain(&[R]).but_in_ipvs(plain(&[a])))
            .hold([web(&[A, b, R]).internal_local().external_local().into()])
            .expect(&[Outside], EXTERNAL, plain(&[A]))
            .expect(&[Pod], &[CLUSTER_IP], plain(&[A]))
            .expect(&[Pod], EXTERNAL, plain(&[A, R]).but_in_ipvs(plain(&[A]))),
        case("policy Local with draining endpoints elsewhere only")
            .hold([web(&[a_gone, r]).external_local().into()])
            .expect(&[Outside], EXTERNAL, Silence.but_in_ipvs(plain(&[r])))
            .expect(PODS, EVERYWHERE, plain(&[r]))
            .hold([web(&[a_gone, r]).internal_local().into()])
            .expect(PODS, &[CLUSTER_IP], Silence.but_in_ipvs(plain(&[r])))
            .expect(NOT_PODS, &[CLUSTER_IP], Silence.but_in_ipvs(masqueraded(&[r])))
            .expect(&[Outside], EXTERNAL, masqueraded(&[r]))
            .hold([web(&[a_gone, r_gone]).internal_local().external_local().into()])
            .expect_refusal_everywhere(),
        case("everything drains, policy Local")
            .hold([web(&[a, r]).external_local().into()])
            .expect(&[Outside], EXTERNAL, plain(&[a]))
            .expect(PODS, &[CLUSTER_IP], plain(&[a, r]))
            .expect(PODS, EXTERNAL, plain(&[a, r]).but_in_ipvs(plain(&[a]))),
    ]
}

fn hints() -> Vec<Case> {
    let zoned = [A.for_zone("east"), R.for_zone("west"), S.for_zone("west")];
    vec![
        case("endpoints of this zone are preferred, but not for what must stay here")
            .hold([Manifest::Zone("west"), web(&zoned).external_local().into()])
            .expect(&[Pod], &[CLUSTER_IP], plain(&[R, S]))
            .expect(&[Pod], EXTERNAL, plain(&[R, S]).but_in_ipvs(plain(&[A])))
            .expect(&[Outside], EXTERNAL, plain(&[A]))
            .hold([Manifest::Zone("east"), web(&zoned).into()])
            .expect(&[Pod], &[CLUSTER_IP], plain(&[A]))
            .expect(&[Outside], EXTERNAL, masqueraded(&[A])),
        case("zone hints count only if all have them and this zone is among them")
            .hold([Manifest::Zone("north"), web(&zoned).into()])
            .expect(&[Pod], &[CLUSTER_IP], plain(&[A, R, S]))
            .hold([Manifest::Zone("west"), web(&[A, R.for_zone("west")]).into()])
            .expect(&[Pod], &[CLUSTER_IP], plain(&[A, R]))
            .hold([web(&zoned).into(), Manifest::Zone("west")])
            .expect(&[Pod], &[CLUSTER_IP], plain(&[R, S])),
        case("node hints go before zone hints")
            .hold([
                Manifest::Zone("west"),
                web(&[A.for_zone("east").for_node("node-1"), R.for_zone("west").for_node("node-2")]).into(),
            ])
            .expect(&[Pod], &[CLUSTER_IP], plain(&[A]))
            .expect(&[Outside], EXTERNAL, masqueraded(&[A])),
    ]
}

fn frontends() -> Vec<Case> {
    let port = |number, target, node_port, protocols| PortManifest { number, target, node_port, protocols };
    let wrong_port = CLUSTER_IP.port(81);
    let unused = CLUSTER_IP.at(Address::UnusedClusterIp);
    let several = ServiceManifest {
        ports: vec![port(80, TARGET, Some(NODE_PORT), ALL), port(81, OTHER_TARGET, Some(30081), ALL)],
        ..web(&[A, R])
    };
    let apart = ServiceManifest {
        ports: vec![
            port(80, TARGET, Some(NODE_PORT), TCP),
            port(80, OTHER_TARGET, Some(NODE_PORT), UDP),
            port(82, TARGET, Some(30082), SCTP),
        ],
        ..web(&[A, R])
    };
    let proxied = ServiceManifest {
        load_balancer_ips: vec![
            (Address::LoadBalancerIp, Some("Proxy")),
            (Address::OtherLoadBalancerIp, Some("VIP")),
        ],
        ..web(&[A, R])
    };
    let at_node_ip =
        |endpoints: &[_]| ServiceManifest { external_ips: vec![Address::NodeIp], ..web(endpoints) };
    let plain_node_port = |service: ServiceManifest| ServiceManifest {
        kind: "NodePort",
        external_ips: Vec::new(),
        load_balancer_ips: Vec::new(),
        ..service
    };
    vec![
        case("a port that the service does not have is refused at the cluster IP and left alone elsewhere")
            .hold([web(&[A, R]).into()])
            .expect(EVERYONE, &[wrong_port], differs(Refused, Strays))
            .expect(EVERYONE, &[EXTERNAL_IP.port(81), LOAD_BALANCER_IP.port(81)], Strays.but_in_ipvs(Refused))
            .expect(EVERYONE, &[unused], Strays),
        case("an unused cluster IP is silent once the range of cluster IPs is known")
            .hold([Manifest::ServiceCidr, web(&[A, R]).into()])
            .expect(EVERYONE, &[unused], differs(Silence, Strays).but_in_ipvs(Strays))
            .expect(EVERYONE, &[wrong_port], differs(Refused, Strays))
            .expect(&[Pod], &[CLUSTER_IP], plain(&[A, R]))
            .hold([Manifest::ServiceCidr])
            .expect(EVERYONE, &[CLUSTER_IP], differs(Silence, Strays).but_in_ipvs(Strays))
            .hold([web(&[A, R]).into()])
            .expect(&[Pod, Outside], &[unused], Strays),
        case("a service that goes leaves nothing behind")
            .hold([web(&[A, R]).external_local().into(), ServiceManifest::other(&[B]).into()])
            .expect(&[Pod], &[CLUSTER_IP], plain(&[A, R]))
            .hold([ServiceManifest::other(&[B]).into()])
            .expect(EVERYONE, &[CLUSTER_IP, EXTERNAL_IP, LOAD_BALANCER_IP], Strays)
            .expect(&[Outside, Node], &[NODE_PORT_AT_NODE_IP], Untouched)
            .expect(&[Pod], &[OTHER_CLUSTER_IP], plain(&[B])),
        case("several ports")
            .hold([several.into()])
            .expect(&[Pod], &[CLUSTER_IP], plain(&[A, R]))
            .expect(&[Pod], &[CLUSTER_IP.port(81)], plain(&[A, R]).at(OTHER_TARGET))
            .expect(&[Outside], EXTERNAL, masqueraded(&[A, R]))
            .expect(
                &[Outside],
                &[EXTERNAL_IP.port(81), LOAD_BALANCER_IP.port(81), NODE_PORT_AT_NODE_IP.port(30081)],
                masqueraded(&[A, R]).at(OTHER_TARGET),
            ),
        case("the same port number of several protocols")
            .hold([apart.into()])
            .over(TCP)
            .expect(&[Pod], &[CLUSTER_IP], plain(&[A, R]))
            .expect(&[Outside], EXTERNAL, masqueraded(&[A, R]))
            .over(UDP)
            .expect(&[Pod], &[CLUSTER_IP], plain(&[A, R]).at(OTHER_TARGET))
            .expect(&[Outside], EXTERNAL, masqueraded(&[A, R]).at(OTHER_TARGET))
            .over(SCTP)
            .expect(EVERYONE, &[CLUSTER_IP], differs(Refused, Strays))
            .expect(&[Outside], &[EXTERNAL_IP, LOAD_BALANCER_IP], Strays.but_in_ipvs(Refused))
            .expect(&[Outside, Node], &[NODE_PORT_AT_NODE_IP], Untouched)
            .expect(&[Pod], &[CLUSTER_IP.port(82)], plain(&[A, R])),
        case("a load balancer in mode Proxy has its IP to itself")
            .hold([proxied.into()])
            .expect(EVERYONE, &[LOAD_BALANCER_IP], Strays)
            .expect(EVERYONE, &[LOAD_BALANCER_IP.at(Address::OtherLoadBalancerIp)], masqueraded(&[A, R]))
            .expect(&[Outside], &[EXTERNAL_IP, NODE_PORT_AT_NODE_IP], masqueraded(&[A, R])),
        case("an external IP that is the node's own")
            .hold([at_node_ip(&[A, R]).into()])
            .expect(EVERYONE, &[EXTERNAL_IP.at(Address::NodeIp)], masqueraded(&[A, R]))
            .hold([at_node_ip(&[]).into()])
            .expect(EVERYONE, &[EXTERNAL_IP.at(Address::NodeIp)], Refused)
            .hold([at_node_ip(&[R]).external_local().into()])
            .expect(&[Outside], &[EXTERNAL_IP.at(Address::NodeIp)], Silence.but_in_ipvs(plain(&[R])))
            .expect(&[Pod], &[EXTERNAL_IP.at(Address::NodeIp)], plain(&[R])),
        case("a service becomes less accessible")
            .hold([web(&[A, R]).into()])
            .expect(&[Outside], EXTERNAL, masqueraded(&[A, R]))
            .hold([plain_node_port(web(&[A, R])).into()])
            .expect(&[Outside], &[NODE_PORT_AT_NODE_IP], masqueraded(&[A, R]))
            .expect(&[Outside], &[EXTERNAL_IP, LOAD_BALANCER_IP], Strays)
            .hold([ServiceManifest {
                name: "web",
                cluster_ip: Address::ClusterIp,
                ..ServiceManifest::other(&[A, R])
            }
            .into()])
            .expect(&[Outside], &[NODE_PORT_AT_NODE_IP], Untouched)
            .expect(&[Pod], &[CLUSTER_IP], plain(&[A, R])),
        case("a load balancer without node ports")
            .hold([ServiceManifest { ports: ServiceManifest::other(&[]).ports, ..web(&[A, R]) }
                .external_local()
                .into()])
            .expect(&[Outside], &[EXTERNAL_IP, LOAD_BALANCER_IP], plain(&[A]))
            .expect(EVERYONE, &[NODE_PORT_AT_NODE_IP], Untouched),
        case("an external IP is all a service needs for an external policy")
            .hold([ServiceManifest {
                external_ips: vec![Address::ExternalIp],
                ..ServiceManifest::other(&[A, R])
            }
            .external_local()
            .into()])
            .expect(&[Outside], &[EXTERNAL_IP], plain(&[A]))
            .expect(&[Pod], &[OTHER_CLUSTER_IP], plain(&[A, R]))
            .expect(&[Pod], &[EXTERNAL_IP], plain(&[A, R]).but_in_ipvs(plain(&[A]))),
        case("an external traffic policy without external frontends changes nothing")
            .hold([ServiceManifest::other(&[R]).external_local().into()])
            .expect(PODS, &[OTHER_CLUSTER_IP], plain(&[R]))
            .expect(NOT_PODS, &[OTHER_CLUSTER_IP], masqueraded(&[R])),
        case("an endpoint on the node itself")
            .hold([web(&[HOST]).into()])
            // What is delivered here is never sent, and so never masqueraded.
            .expect(&[Pod, RemotePod, Outside], EVERYWHERE, plain(&[HOST]))
            .expect(&[Node], EVERYWHERE, masqueraded(&[HOST]))
            .hold([web(&[HOST, R]).external_local().into()])
            .expect(&[Outside], EXTERNAL, plain(&[HOST]))
            .expect(&[Pod], &[CLUSTER_IP], plain(&[HOST, R]))
            .expect(&[Pod], EXTERNAL, plain(&[HOST, R]).but_in_ipvs(plain(&[HOST]))),
        case("addresses with leading zeros")
            .hold([ServiceManifest { leading_zeros: true, ..web(&[A, R]) }
                .only_for(&["192.000.002.000/024", "2001:db8:2::/64"])
                .into()])
            .expect(&[Pod], &[CLUSTER_IP], plain(&[A, R]))
            .expect(&[Outside], EXTERNAL, masqueraded(&[A, R]))
            .expect(&[Crowd], &[LOAD_BALANCER_IP], Silence),
    ]
}

fn hairpin() -> Vec<Case> {
    let telling_none = Options { detect_local: DetectLocal::No, ..Options::default() };
    vec![
        case("a pod that reaches itself sees the node")
            .hold([web(&[A]).into()])
            .expect(&[PodA], EVERYWHERE, masqueraded(&[A]))
            .hold([web(&[A]).internal_local().external_local().into()])
            .expect(&[PodA], EVERYWHERE, masqueraded(&[A])),
        case("a pod that reaches itself sees the node, others see the pod")
            .hold([web(&[A, B, R]).external_local().into()])
            .expect(&[PodA], &[CLUSTER_IP], masqueraded(&[A]).or(plain(&[B, R])))
            .expect(
                &[PodA],
                EXTERNAL,
                masqueraded(&[A]).or(plain(&[B, R])).but_in_ipvs(masqueraded(&[A]).or(plain(&[B]))),
            ),
        case("a pod that reaches itself sees the node, telling no pods")
            .with(telling_none)
            .hold([web(&[A]).external_local().into()])
            .expect(&[PodA], EVERYWHERE, masqueraded(&[A])),
        case("a pod that reaches itself by either of two services, until one is gone")
            .hold([web(&[A]).into(), ServiceManifest::other(&[A]).into()])
            .expect(&[PodA], &[CLUSTER_IP, OTHER_CLUSTER_IP], masqueraded(&[A]))
            .hold([web(&[A]).into()])
            .expect(&[PodA], &[CLUSTER_IP], masqueraded(&[A])),
    ]
}

fn telling_pods() -> Vec<Case> {
    let by = |detect_local| Options { detect_local, ..Options::default() };
    let ways = [
        ("a bridge", DetectLocal::Bridge("cbr0")),
        ("how interfaces begin", DetectLocal::InterfacePrefix("cb")),
    ];
    let mut cases: Vec<Case> = (ways.into_iter())
        .map(|(name, way)| {
            case(format!("pods are detected by {name}"))
                .with(by(way))
                .hold([web(&[A, R]).external_local().into()])
                .expect(&[Pod], &[CLUSTER_IP], plain(&[A, R]))
                .expect(&[Pod], EXTERNAL, plain(&[A, R]).but_in_ipvs(plain(&[A])))
                .expect(&[Node], EXTERNAL, masqueraded(&[A, R]).but_in_ipvs(plain(&[A])))
                .expect(&[Node, RemotePod, Outside], &[CLUSTER_IP], masqueraded(&[A, R]))
                .expect(&[RemotePod, Outside], EXTERNAL, plain(&[A]))
                .hold([web(&[A]).into()])
                .expect(&[PodA], EVERYWHERE, masqueraded(&[A]))
        })
        .collect();
    for way in [DetectLocal::Bridge("cbr"), DetectLocal::Bridge("cbr01"), DetectLocal::InterfacePrefix("br0")]
    {
        cases.push(
            case(format!("pod detection matches no pod: {way:?}"))
                .with(by(way))
                .hold([web(&[A, R]).external_local().into()])
                .expect(&[Pod, Node, Outside], &[CLUSTER_IP], masqueraded(&[A, R]))
                .expect(&[Pod, Outside], EXTERNAL, plain(&[A])),
        );
    }
    cases
}

fn marks() -> Vec<Case> {
    let bit = |masquerade_bit| Options { masquerade_bit, ..Options::default() };
    let everything = |case: Case| {
        let other = ServiceManifest {
            external_ips: vec![Address::OtherLoadBalancerIp],
            ..ServiceManifest::other(&[A])
        };
        let at_other = EXTERNAL_IP.at(Address::OtherLoadBalancerIp);
        case.hold([web(&[A, R]).external_local().into(), other.into()])
            .expect(&[Pod], &[CLUSTER_IP], plain(&[A, R]))
            .expect(&[Pod], EXTERNAL, plain(&[A, R]).but_in_ipvs(plain(&[A])))
            .expect(&[Outside, Node], &[CLUSTER_IP], masqueraded(&[A, R]))
            .expect(&[Outside], EXTERNAL, plain(&[A]))
            .expect(&[PodA], &[OTHER_CLUSTER_IP, at_other], masqueraded(&[A]))
    };
    vec![
        everything(case("the marks of others stay as they are").keeps_mark(0xffffbfff)),
        everything(case("masquerading by another bit").with(bit(3)).keeps_mark(0x00004000)),
        everything(case("masquerading by the last bit").with(bit(31)).keeps_mark(0x7fffffff)),
        everything(case("masquerading by the first bit").with(bit(0)).keeps_mark(0xfffffffe)),
    ]
}

fn node_ports() -> Vec<Case> {
    let at = |address| NODE_PORT_AT_NODE_IP.at(address);
    let (main, second, bridge) =
        (at(Address::NodeIp), at(Address::NodeIpTowardsRemote), at(Address::BridgeIp));
    let on = |node_port_addresses| Options { node_port_addresses, ..Options::default() };
    vec![
        case("node ports at every address")
            .hold([web(&[A, R]).into()])
            .expect(EVERYONE, &[main, second, bridge], masqueraded(&[A, R]))
            .hold([web(&[]).into()])
            .expect(EVERYONE, &[main, second, bridge], Refused)
            .hold([web(&[R]).external_local().into()])
            .expect(&[Outside], &[main, second, bridge], Silence.but_in_ipvs(plain(&[R])))
            .expect(&[Pod], &[main, second, bridge], plain(&[R])),
        case("node ports at one address")
            .with(on(&["192.0.2.0/24", "2001:db8:2::/64"]))
            .hold([web(&[A, R]).into()])
            .expect(EVERYONE, &[main], masqueraded(&[A, R]))
            .expect(EVERYONE, &[second, bridge], Untouched)
            .hold([web(&[]).into()])
            .expect(EVERYONE, &[main], Refused)
            .expect(EVERYONE, &[second, bridge], differs(Untouched, Refused))
            .hold([web(&[R]).external_local().into()])
            .expect(&[Outside], &[main], Silence.but_in_ipvs(plain(&[R])))
            .expect(&[Pod], &[main], plain(&[R]))
            .expect(EVERYONE, &[second, bridge], differs(Untouched, Silence)),
        case("node ports at several addresses")
            .with(on(&["192.0.2.0/24", "2001:db8:2::/64", "198.51.100.11/32", "2001:db8:3::11/128"]))
            .hold([web(&[A, R]).into()])
            .expect(EVERYONE, &[main, second], masqueraded(&[A, R]))
            .expect(EVERYONE, &[bridge], Untouched),
        case("node ports at every address, because one of the ranges says so")
            .with(on(&["192.0.2.0/24", "0.0.0.0/0", "2001:db8:2::/64", "::/0"]))
            .hold([web(&[A, R]).into()])
            .expect(EVERYONE, &[main, second, bridge], masqueraded(&[A, R])),
        case("a service without node ports leaves the node's own alone")
            .hold([ServiceManifest::other(&[A, R]).into()])
            .expect(EVERYONE, &[main, second, bridge], Untouched),
    ]
}

fn source_ranges() -> Vec<Case> {
    const CLIENT: &[&str] = &["192.0.2.200/32", "2001:db8:2::200/128"];
    const CLIENT_AND_NODE: &[&str] = &[" 192.0.2.0/24", "2001:db8:2::/64 "];
    const CROWD: &[&str] = &["100.64.7.0/24", "2001:db8:7::/64"];
    const PODS: &[&str] = &["10.244.0.0/16", "fd00:10:244::/48"];
    const ALL: &[&str] = &["192.0.2.200/32", "0.0.0.0/0", "2001:db8:2::200/128", "::/0"];
    #[rustfmt::skip]
    const OVERLAPPING: &[&str] = &[
        "192.0.2.0/25", "192.0.2.128/25", "192.0.2.200/32", "100.64.7.0/27", "100.64.7.32/27", "100.64.7.64/26",
        "2001:db8:2::/65", "2001:db8:2:0:8000::/65", "2001:db8:2::200/128", "2001:db8:7::/120", "2001:db8:7::/64",
    ];
    let elsewhere: &[ProbeTarget] = &[EXTERNAL_IP, NODE_PORT_AT_NODE_IP];
    let other_balancer = LOAD_BALANCER_IP.at(Address::OtherLoadBalancerIp);
    let two_balancers = ServiceManifest {
        load_balancer_ips: vec![(Address::LoadBalancerIp, None), (Address::OtherLoadBalancerIp, None)],
        ..web(&[A, R])
    };
    vec![
        case("source ranges bind the load-balancer IPs and nothing else")
            .hold([two_balancers.only_for(CLIENT).into()])
            .expect(&[Outside], &[LOAD_BALANCER_IP, other_balancer], masqueraded(&[A, R]))
            .expect(&[Crowd, Pod, RemotePod, Node], &[LOAD_BALANCER_IP, other_balancer], Silence)
            .expect(&[Crowd, Pod, RemotePod, Node], elsewhere, masqueraded(&[A, R]))
            .expect(&[Pod, RemotePod], &[CLUSTER_IP], plain(&[A, R])),
        case("source ranges that admit pods")
            .hold([web(&[A, R]).only_for(PODS).into()])
            .expect(&[Pod, RemotePod], &[LOAD_BALANCER_IP], masqueraded(&[A, R]))
            .expect(&[Outside, Crowd, Node], &[LOAD_BALANCER_IP], Silence),
        case("source ranges that admit the node")
            .hold([web(&[A, R]).only_for(CLIENT_AND_NODE).into()])
            .expect(&[Outside, Node], &[LOAD_BALANCER_IP], masqueraded(&[A, R]))
            .expect(&[Crowd, Pod], &[LOAD_BALANCER_IP], Silence),
        case("source ranges that admit the node, which has the load balancer's IP")
            .node_owns(Address::LoadBalancerIp)
            .hold([web(&[A, R]).only_for(CLIENT_AND_NODE).into()])
            .expect(&[Outside, Node], &[LOAD_BALANCER_IP], masqueraded(&[A, R]))
            .expect(&[Crowd, Pod], &[LOAD_BALANCER_IP], Silence),
        case("source ranges that do not admit the node, which has the load balancer's IP")
            .node_owns(Address::LoadBalancerIp)
            .hold([web(&[A, R]).only_for(CROWD).into()])
            .expect(&[Crowd], &[LOAD_BALANCER_IP], masqueraded(&[A, R]))
            .expect(&[Outside, Node, Pod], &[LOAD_BALANCER_IP], Silence),
        case("source ranges that admit everyone").hold([web(&[A, R]).only_for(ALL).into()]).expect(
            &[Crowd, Outside, Pod, Node],
            &[LOAD_BALANCER_IP],
            masqueraded(&[A, R]),
        ),
        case("source ranges that overlap and adjoin")
            .hold([web(&[A, R]).only_for(OVERLAPPING).into()])
            .expect(&[Crowd, Outside, Node], &[LOAD_BALANCER_IP], masqueraded(&[A, R]))
            .expect(&[Pod], &[LOAD_BALANCER_IP], Silence),
        case("source ranges come before everything else")
            .hold([web(&[]).only_for(CLIENT).into()])
            .expect(&[Outside], &[LOAD_BALANCER_IP], Refused)
            .expect(&[Crowd, Pod], &[LOAD_BALANCER_IP], differs(Silence, Refused))
            .expect(&[Node], &[LOAD_BALANCER_IP], differs(Silence, Strays).but_in_ipvs(Refused))
            .hold([web(&[A, R]).external_local().only_for(CLIENT).into()])
            .expect(&[Outside], &[LOAD_BALANCER_IP], plain(&[A]))
            .expect(&[Crowd, Pod, Node], &[LOAD_BALANCER_IP], Silence),
        case("source ranges change")
            .hold([web(&[A, R]).only_for(CLIENT).into()])
            .expect(&[Crowd], &[LOAD_BALANCER_IP], Silence)
            .hold([web(&[A, R]).only_for(CROWD).into()])
            .expect(&[Crowd], &[LOAD_BALANCER_IP], masqueraded(&[A, R]))
            .expect(&[Outside], &[LOAD_BALANCER_IP], Silence)
            .hold([web(&[A, R]).into()])
            .expect(&[Crowd, Outside], &[LOAD_BALANCER_IP], masqueraded(&[A, R])),
    ]
}

fn affinity() -> Vec<Case> {
    let sticky = |endpoints: &[_]| web(endpoints).sticky(THREE_HOURS);
    let to_a =
        |case: Case| {
            case.expect(&[Pod], &[CLUSTER_IP], plain(&[A]))
                .expect(&[Pod], EXTERNAL, masqueraded(&[A]))
                .expect(&[Node, Outside], EVERYWHERE, masqueraded(&[A]))
        };
    let local = |endpoints: &[_]| sticky(endpoints).external_local();
    vec![
        to_a(
            to_a(case("clients stick to their endpoint while others come").hold([sticky(&[A]).into()]))
                .hold([sticky(&[A, B, R]).into()]),
        )
        .expect(&[Crowd], EVERYWHERE, masqueraded(&[A, B, R])),
        to_a(
            case("clients of an endpoint that goes stick to another, and do not come back")
                .hold([sticky(&[A]).into()]),
        )
        .hold([sticky(&[B, R]).into()])
        .expect(&[Pod], &[CLUSTER_IP], plain(&[B, R]).sticking())
        .expect(&[Outside], EVERYWHERE, masqueraded(&[B, R]).sticking())
        .hold([sticky(&[A, B, R]).into()])
        .expect(&[Pod], &[CLUSTER_IP], plain(&[B, R]).sticking())
        .expect(&[Outside], EVERYWHERE, masqueraded(&[B, R]).sticking()),
        case("clients stick to one endpoint, each to its own")
            .hold([sticky(&[A, B, R]).into()])
            .expect(&[Pod, RemotePod], &[CLUSTER_IP], plain(&[A, B, R]).sticking())
            .expect(&[Node, Outside], EVERYWHERE, masqueraded(&[A, B, R]).sticking())
            .expect(&[Crowd], EVERYWHERE, masqueraded(&[A, B, R])),
        case("clients stick as long as they should and no longer")
            .hold([web(&[A]).sticky(1).into()])
            .expect(&[Crowd], EVERYWHERE, masqueraded(&[A]))
            .hold([web(&[A, R]).sticky(1).into()])
            .pass(Duration::from_millis(1_500))
            .expect(&[Crowd], EVERYWHERE, masqueraded(&[A, R]).but_in_ipvs(masqueraded(&[A]))),
        case("clients stick within what policy Local allows them")
            .hold([local(&[A]).into()])
            .expect(&[Pod], EVERYWHERE, plain(&[A]))
            .expect(&[Outside], EXTERNAL, plain(&[A]))
            .hold([local(&[A, B, R]).into()])
            .expect(&[Pod], EVERYWHERE, plain(&[A]))
            .expect(&[Outside], EXTERNAL, plain(&[A]))
            .expect(&[Crowd], EXTERNAL, plain(&[A, B]))
            .hold([local(&[R]).into()])
            .expect(&[Pod], EVERYWHERE, plain(&[R]))
            .expect(&[Outside], EXTERNAL, Silence.but_in_ipvs(plain(&[R]))),
        case("clients stick to an endpoint on the node itself")
            .hold([sticky(&[HOST]).into()])
            .expect(&[Pod, Outside], EVERYWHERE, plain(&[HOST]))
            .expect(&[Node], EVERYWHERE, masqueraded(&[HOST]))
            .hold([sticky(&[HOST, A, R]).into()])
            .expect(&[Pod, Outside], EVERYWHERE, plain(&[HOST]))
            .expect(&[Node], EVERYWHERE, masqueraded(&[HOST])),
        case("a pod that sticks to itself")
            .hold([sticky(&[A]).into()])
            .expect(&[PodA], EVERYWHERE, masqueraded(&[A]))
            .hold([sticky(&[A, R]).into()])
            .expect(&[PodA], EVERYWHERE, masqueraded(&[A])),
        case("clients that stuck are free when the service no longer asks for it")
            .hold([sticky(&[A]).into()])
            .expect(&[Outside], EVERYWHERE, masqueraded(&[A]))
            .hold([web(&[A, R]).into()])
            .expect(&[Outside], EVERYWHERE, masqueraded(&[A, R])),
        case("clients still stick when the time they do so changes")
            .hold([sticky(&[A]).into()])
            .expect(&[Outside], EVERYWHERE, masqueraded(&[A]))
            .hold([web(&[A, R]).sticky(7_200).into()])
            .expect(&[Outside], EVERYWHERE, masqueraded(&[A]))
            .expect(&[Crowd], EVERYWHERE, masqueraded(&[A, R])),
        case("one service's clients stick, another's do not")
            .hold([sticky(&[A]).into(), ServiceManifest::other(&[A]).into()])
            .expect(&[Pod], &[CLUSTER_IP, OTHER_CLUSTER_IP], plain(&[A]))
            .hold([sticky(&[A, R]).into(), ServiceManifest::other(&[A, R]).into()])
            .expect(&[Pod], &[CLUSTER_IP], plain(&[A]))
            .expect(&[Pod], &[OTHER_CLUSTER_IP], plain(&[A, R])),
    ]
}

/// What several services, or a service and the node, have the same address and port for.
fn shared_addresses() -> Vec<Case> {
    let port = |number, node_port| vec![PortManifest { number, target: TARGET, node_port, protocols: ALL }];
    let restricted =
        Options { node_port_addresses: &["192.0.2.0/24", "2001:db8:2::/64"], ..Options::default() };
    let bridge = EXTERNAL_IP.at(Address::BridgeIp);
    let at_bridge = ServiceManifest { external_ips: vec![Address::BridgeIp], ..web(&[A, R]) };
    let elsewhere = CLUSTER_IP.at(Address::OtherClusterIp).port(82);
    let mut cases = vec![
        case("the node counts as a pod where it speaks from a pod's address")
            .hold([at_bridge.external_local().into()])
            .expect(
                &[Node],
                &[bridge, NODE_PORT_AT_NODE_IP.at(Address::BridgeIp)],
                plain(&[A, R]).but_in_ipvs(plain(&[A])),
            ),
        case("an external IP that is the cluster IP of another service")
            .hold([
                ServiceManifest {
                    external_ips: vec![Address::OtherClusterIp],
                    ports: port(82, None),
                    ..web(&[A, R])
                }
                .external_local()
                .into(),
                ServiceManifest::other(&[B]).into(),
            ])
            .expect(&[Pod], &[elsewhere], plain(&[A, R]).but_in_ipvs(plain(&[A])))
            .expect(&[Outside], &[elsewhere], plain(&[A]).but_in_ipvs(masqueraded(&[A])))
            .expect(&[Pod], &[OTHER_CLUSTER_IP], plain(&[B])),
    ];
    for (name, options) in [("everywhere", Options::default()), ("at one address", restricted)] {
        let other = |endpoints: &[_]| ServiceManifest {
            external_ips: vec![Address::NodeIp],
            ports: port(NODE_PORT, None),
            ..ServiceManifest::other(endpoints)
        };
        cases.push(
            case(format!("an external IP goes before a node port of the same number, {name}"))
                .with(options.clone())
                .hold([web(&[A]).into(), other(&[B]).into()])
                .expect(&[Outside, Pod], &[NODE_PORT_AT_NODE_IP], masqueraded(&[B]))
                .expect(&[Outside], &[EXTERNAL_IP], masqueraded(&[A]))
                .hold([web(&[]).into(), other(&[R]).external_local().into()])
                .expect(
                    &[Outside],
                    &[NODE_PORT_AT_NODE_IP],
                    differs(Refused, Silence).but_in_ipvs(plain(&[R])),
                ),
        );
        cases.push(
            case(format!("clients stick to an external IP, not to the node port of the same number, {name}"))
                .with(options)
                .hold([web(&[A]).sticky(THREE_HOURS).into(), other(&[B]).sticky(THREE_HOURS).into()])
                .expect(&[Outside], &[NODE_PORT_AT_NODE_IP], masqueraded(&[B]))
                .hold([web(&[A]).sticky(THREE_HOURS).into(), other(&[A, B, R]).sticky(THREE_HOURS).into()])
                .expect(&[Outside], &[NODE_PORT_AT_NODE_IP], masqueraded(&[B])),
        );
    }
    let refusing = ServiceManifest {
        external_ips: vec![Address::NodeIp],
        ports: port(TARGET, None),
        ..ServiceManifest::other(&[])
    };
    let sticky = |endpoints: &[_]| web(endpoints).sticky(THREE_HOURS);
    cases.push(
        // In iptables mode a client is remembered where its connection is translated.
        case("clients do not stick to an endpoint that is refused")
            .hold([sticky(&[HOST]).into(), refusing.into()])
            // IPVS delivers it without a further look.
            .expect(&[Crowd], &[CLUSTER_IP], Refused.but_in_ipvs(plain(&[HOST])))
            .hold([sticky(&[HOST, A, R]).into()])
            .expect(
                &[Crowd],
                &[CLUSTER_IP],
                differs(plain(&[HOST]).or(masqueraded(&[A, R])), plain(&[HOST])).but_in_ipvs(plain(&[HOST])),
            ),
    );
    cases
}

/// Session affinity through one frontend only: what one frontend does wrong, another must not make up for.
fn affinity_by_frontend() -> Vec<Case> {
    let cluster = |endpoints: &[_]| web(endpoints).sticky(THREE_HOURS);
    let local = |endpoints: &[_]| cluster(endpoints).external_local();
    let both_local = |endpoints: &[_]| local(endpoints).internal_local();
    let a = A.but(State::Draining);
    let restricted =
        Options { node_port_addresses: &["192.0.2.0/24", "2001:db8:2::/64"], ..Options::default() };
    let mut cases = Vec::new();
    for (frontend, name) in [(EXTERNAL_IP, "an external IP"), (NODE_PORT_AT_NODE_IP, "a node port")] {
        for (options, node_ports) in
            [(Options::default(), "everywhere"), (restricted.clone(), "at one address")]
        {
            cases.push(
                case(format!("clients stick through {name} alone, node ports {node_ports}"))
                    .with(options)
                    .hold([cluster(&[A]).into()])
                    .expect(&[Outside], &[frontend], masqueraded(&[A]))
                    .hold([cluster(&[A, B, R]).into()])
                    .expect(&[Outside], &[frontend], masqueraded(&[A])),
            );
        }
        cases.extend([
            case(format!("clients are forgotten through {name} alone"))
                .hold([cluster(&[A]).into()])
                .expect(&[Outside], &[frontend], masqueraded(&[A]))
                .hold([cluster(&[B, R]).into()])
                .expect(&[Outside], &[frontend], masqueraded(&[B, R]).sticking())
                .hold([cluster(&[A, B, R]).into()])
                .expect(&[Outside], &[frontend], masqueraded(&[B, R]).sticking()),
            case(format!("clients stick to endpoints of this node through {name} alone, and are forgotten"))
                .hold([local(&[A]).into()])
                .expect(&[Outside], &[frontend], plain(&[A]))
                .hold([local(&[A, B, R]).into()])
                .expect(&[Outside], &[frontend], plain(&[A]))
                .hold([local(&[B, R]).into()])
                .expect(&[Outside], &[frontend], plain(&[B]))
                .hold([local(&[A, B, R]).into()])
                .expect(&[Outside], &[frontend], plain(&[B])),
            // In iptables mode a client may be on the lists of several endpoints, of which the first by name counts.
            case(format!(
                "clients that stick elsewhere in the cluster still do after they came through {name}"
            ))
            .hold([local(&[R]).into()])
            .expect(&[Outside], &[CLUSTER_IP], masqueraded(&[R]))
            .hold([local(&[A, R]).into()])
            .expect(&[Outside], &[frontend], plain(&[A]))
            .pass(Duration::ZERO)
            .expect(
                &[Outside],
                &[CLUSTER_IP],
                differs(masqueraded(&[R]), masqueraded(&[A, R]).sticking()),
            ),
            case(format!(
                "clients that stick on this node still do after they went elsewhere through {name}"
            ))
            .hold([both_local(&[A]).into()])
            .expect(&[Pod], &[frontend], plain(&[A]))
            .hold([both_local(&[a, R]).into()])
            .expect(&[Pod], &[frontend], plain(&[R]).but_in_ipvs(plain(&[a])))
            .hold([both_local(&[A, B, R]).into()])
            // In ipvs mode each address has its own clients.
            .expect(&[Pod], &[CLUSTER_IP], plain(&[A]).but_in_ipvs(plain(&[A, B]).sticking())),
        ]);
    }
    cases
}

/// Flows that conntrack knows from before there were rules for them.
fn older_flows() -> Vec<Case> {
    vec![
        case("what was first sent before the service was there is dropped, not refused")
            .hold([ServiceManifest::other(&[A]).into()])
            .open_flow(Pod, CLUSTER_IP)
            .open_flow(Outside, CLUSTER_IP)
            .hold([web(&[A, R]).into(), ServiceManifest::other(&[A]).into()])
            // IPVS sends it to an endpoint, but conntrack drops the answers until the proxy deletes the older entry.
            .expect_in_flow(Pod, CLUSTER_IP, differs(Silence, Strays).but_in_ipvs(Silence))
            .expect_in_flow(Outside, CLUSTER_IP, differs(Silence, Strays).but_in_ipvs(Silence)),
    ]
}
