//! The reasons for a walk through the program of the ipvs mode, with IPVS between its hooks.
#![expect(clippy::wildcard_enum_match_arm, reason = "only a few statements and sets tell why a rule exists")]

use model::address::Family;
use model::cluster::CurrentServicePort;
use model::routing::Traffic;

use super::{Answer, End, FrontendKind, Masquerade, PossibleTarget, Question, Reason, traffic};
use crate::ipvs::desired::{DesiredIpvs, usable_node_ips};
use crate::nftables::desired::DesiredTable;
use crate::nftables::elements::SlotAssignment;
use crate::nftables::interpreter::{ProgramPath, run};
use crate::nftables::program::Program;
use crate::nftables::sets::Set;
use crate::nftables::statements::{ProgramRule, Statement};
use crate::walk::PacketVerdict;

type Owner<'q> = Option<(&'q CurrentServicePort<'q>, FrontendKind)>;

pub(super) fn answer<'q>(question: &'q Question<'q>) -> Answer<'q> {
    let table = table(question);
    let program = table.program();
    let Ok(walk) = run(&program, &question.context, &mut DesiredIpvs::new(&table));
    let stopped = walk.paths.iter().find(|path| path.verdict != PacketVerdict::Accept);
    let forwarded: Vec<_> = walk.paths.iter().filter(|path| path.is_forwarded()).collect();
    let Some(path) = forwarded.first().copied().or(stopped) else { return question.untouched() };
    let chains = chains(&program, path);
    let owner = owner(question);
    if forwarded.is_empty() {
        let (reason, matched) = stop(path, owner);
        return Answer { matched, end: End::Stopped(path.verdict.into(), reason), chains, otherwise: None };
    }
    let targets = forwarded.iter().filter_map(|path| {
        let masquerade = path.is_masqueraded.then(|| masquerade(path)).flatten();
        Some(PossibleTarget { address: path.endpoint?, probability: path.probability, masquerade })
    });
    // Without a local endpoint, policy Local falls back to those of the cluster.
    let traffic = match owner.map(|(claim, kind)| traffic(&claim.routing, kind)) {
        Some(Traffic::ToLocal) => Traffic::ToLocal,
        _ => Traffic::ToCluster,
    };
    let end = End::Translated { targets: targets.collect(), traffic, short_circuit: false };
    Answer { matched: owner, end, chains, otherwise: None }
}

fn table(question: &Question<'_>) -> DesiredTable {
    let (settings, addresses) = (question.settings, question.context.addresses);
    let family = Family::of(question.destination().ip());
    let mut table = DesiredTable::new(settings.nftables(family));
    let node_port_ips = settings.node_port_addresses.among(addresses);
    table.replace_node_port_ips(usable_node_ips(&node_port_ips, family).collect());
    table.replace_node_ips(usable_node_ips(addresses, family).collect());
    for concerned in &question.concerned {
        table.insert(concerned.name.clone(), concerned.routing.clone(), SlotAssignment::default());
    }
    table
}

/// The service port of the virtual server.
fn owner<'q>(question: &'q Question<'q>) -> Owner<'q> {
    let node_port = || Some((question.owner_by_node_port()?, FrontendKind::NodePort));
    question.owner_by_address().or_else(node_port)
}

/// The chains to show, without base chains. IPVS is none of them, so those before it are shown.
fn chains(program: &Program, path: &ProgramPath<'_>) -> Vec<String> {
    let is_shown = |name: &str| {
        let chain = program.chains.iter().find(|chain| chain.name == name);
        chain.is_some_and(|chain| chain.hook.is_none() && name != "masquerading")
    };
    let mut all: Vec<String> = if path.chains.is_empty() {
        path.rules.iter().map(|matched| matched.chain.to_owned()).collect()
    } else {
        path.chains.iter().map(|name| (*name).to_owned()).collect()
    };
    all.retain(|name| is_shown(name));
    all.dedup();
    all
}

/// Why a path is masqueraded: the rule that sets the mark says it, or else the rule that masquerades.
fn masquerade(path: &ProgramPath<'_>) -> Option<Masquerade> {
    let marks = |rule: &ProgramRule| rule.statements.iter().any(|it| matches!(it, Statement::SetMark(_)));
    let Some(matched) = path.rules.iter().find(|matched| marks(matched.rule)) else {
        return Some(Masquerade::Hairpin);
    };
    let by = |statement: &Statement| match statement {
        Statement::NotWithin(..) | Statement::NotFromInterface(_) => Some(Masquerade::NotFromPod),
        Statement::In(_, Set::ClusterIps) => Some(Masquerade::FromNode),
        _ => None,
    };
    let otherwise = if matched.chain == "cluster-ip" { Masquerade::All } else { Masquerade::External };
    matched.rule.statements.iter().find_map(by).or(Some(otherwise))
}

/// Why a path is stopped, and whose frontend the packet is sent to. IPVS is no rule: what it refuses has no real servers.
fn stop<'q>(path: &ProgramPath<'_>, owner: Owner<'q>) -> (Reason, Owner<'q>) {
    let last = path.rules.last().map(|matched| &matched.rule.statements[..]).unwrap_or_default();
    let looks_in = |set: Set| last.iter().any(|it| matches!(it, Statement::In(_, found) if *found == set));
    match last.last() {
        Some(Statement::Drop) if looks_in(Set::Firewalled) => {
            (Reason::NotInSourceRanges, owner.map(|(claim, _)| (claim, FrontendKind::LoadBalancerIp)))
        }
        Some(Statement::Reject) if looks_in(Set::BoundIps) => (Reason::NoSuchPort, None),
        _ => {
            let traffic = owner.map(|(claim, kind)| traffic(&claim.routing, kind));
            let is_elsewhere = traffic == Some(Traffic::DropNoLocalEndpoints);
            let reason = if is_elsewhere { Reason::NoLocalEndpoints } else { Reason::NoEndpoints };
            (reason, owner)
        }
    }
}
