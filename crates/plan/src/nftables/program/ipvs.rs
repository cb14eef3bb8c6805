//! The program of the ipvs mode: everything around the choice of an endpoint, which IPVS makes between the hooks.
//!
//! ```text
//!   prerouting          -110  firewall-check       load-balancer source ranges
//!   prerouting, output  -100  services ─▶ frontend ─▶ cluster-ip    mark what has to be masqueraded
//!                                      └▶ nodeport
//!   output               -98  IPVS, for connections of the node
//!   input                  0  host-ports-check     rejects what is no frontend at the addresses of kube-ipvs0
//!   input                 98  IPVS, for all others; sends the translated packet to the output hook
//!   output                 0  translated-firewall-check
//!   postrouting          100  masquerading
//! ```
//!
//! IPVS does not set `ct status dnat`, and the conntrack entry keeps the virtual server as its original destination. As in upstream,
//! IPVS refuses a connection to a virtual server without real servers before the source ranges drop it, if it comes from the node.

use super::HookKind::{Filter, Nat};
use super::PacketHook::{Input, Output, Postrouting, Prerouting};
use super::{
    FRONTEND, NODE_PORT, ProgramChain, ProgramSettings, chain, entry, firewall_check, hairpin, loopback,
    mark_cluster_ip_traffic, masquerading, new, rule,
};
use crate::nftables::sets::{LookupBy, Set};
use crate::nftables::statements::{PacketField, ProgramRule, Statement, frontend_fields};

/// The frontend of a packet that IPVS has translated.
const ORIGINAL_FRONTEND: &[PacketField] = frontend_fields(LookupBy::Address, true);

pub(super) fn chains(settings: &ProgramSettings) -> Vec<ProgramChain> {
    let services = || vec![rule([Statement::Jump("services".into())])];
    vec![
        chain("cluster-ip", vec![cluster_ip(settings)]),
        chain("frontend", frontend(settings)),
        chain("nodeport", external(settings, NODE_PORT, Set::ExternalLocal(LookupBy::NodePort))),
        chain("services", self::services(settings)),
        firewall_check("firewall-check", FRONTEND),
        firewall_check("translated-firewall-check", ORIGINAL_FRONTEND),
        host_ports_check(),
        masquerading(settings.mark, rule([hairpin(), Statement::Masquerade])),
        entry("filter-prerouting-pre-dnat", Filter, Prerouting, -110, vec![new("firewall-check")]),
        entry("filter-input", Filter, Input, 0, vec![new("host-ports-check")]),
        entry("filter-output", Filter, Output, 0, vec![new("translated-firewall-check")]),
        entry("nat-prerouting", Nat, Prerouting, -100, services()),
        entry("nat-output", Nat, Output, -100, services()),
        entry("nat-postrouting", Nat, Postrouting, 100, vec![rule([Statement::Jump("masquerading".into())])]),
    ]
}

fn services(settings: &ProgramSettings) -> Vec<ProgramRule> {
    vec![
        rule([Statement::Within(PacketField::Source, loopback(settings.family)), Statement::Return]),
        rule([
            Statement::In(FRONTEND.into(), Set::Frontends(LookupBy::Address)),
            Statement::Goto("frontend"),
        ]),
        rule([
            Statement::In(vec![PacketField::Destination], Set::NodePortIps),
            Statement::In(NODE_PORT.into(), Set::Frontends(LookupBy::NodePort)),
            Statement::Goto("nodeport"),
        ]),
    ]
}

fn frontend(settings: &ProgramSettings) -> Vec<ProgramRule> {
    let mut rules = vec![rule([
        Statement::In(vec![PacketField::Destination], Set::ClusterIps),
        Statement::Goto("cluster-ip"),
    ])];
    rules.extend(external(settings, FRONTEND, Set::ExternalLocal(LookupBy::Address)));
    rules
}

/// Without a way to recognize traffic from pods, only the node's own connections are marked: the kernel gives them the cluster IP
/// as their source, since it is an address of the node.
fn cluster_ip(settings: &ProgramSettings) -> ProgramRule {
    mark_cluster_ip_traffic(settings).unwrap_or_else(|| {
        let from_node = Statement::In(vec![PacketField::Source], Set::ClusterIps);
        rule([from_node, Statement::SetMark(settings.mark)])
            .because("masquerade the node's own cluster IP traffic")
    })
}

fn external(settings: &ProgramSettings, fields: &[PacketField], local: Set) -> Vec<ProgramRule> {
    vec![
        rule([Statement::In(fields.into(), local), Statement::Return]),
        rule([Statement::SetMark(settings.mark)]).because("masquerade external traffic"),
    ]
}

/// Service addresses are addresses of the node. Without this check, clients could use them to reach ports of the node itself.
fn host_ports_check() -> ProgramChain {
    let reject = [
        Statement::In(vec![PacketField::Destination], Set::BoundIps),
        Statement::NotIn(FRONTEND.into(), Set::Frontends(LookupBy::Address)),
        Statement::NotIn(NODE_PORT.into(), Set::HealthCheckPorts),
        Statement::Reject,
    ];
    chain("host-ports-check", vec![rule(reject).because("Reject traffic to invalid ports of service IPs")])
}
