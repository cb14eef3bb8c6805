//! The reasons for a walk through the program of the nftables mode: the sets that a rule looks into tell why it exists.
#![expect(clippy::wildcard_enum_match_arm, reason = "only a few statements and sets tell why a rule exists")]

use model::address::Family;
use model::cluster::CurrentServicePort;
use model::names::ServicePortName;
use model::routing::Traffic;

use super::{
    Answer, End, ExplainSettings, FrontendKind, Masquerade, PossibleTarget, Question, Reason, traffic,
};
use crate::nftables::desired::DesiredTable;
use crate::nftables::desired_sets::DesiredSets;
use crate::nftables::elements::SlotAssignment;
use crate::nftables::interpreter::{ProgramPath, ProgramWalk, run};
use crate::nftables::program::{self, Program};
use crate::nftables::sets::{Clients, LookupBy, Set};
use crate::nftables::statements::{Affinity, ListUse, PacketField, ProgramRule, Statement};
use crate::walk::PacketVerdict;

pub(super) fn answer<'q, 's>(
    question: &'q Question<'q>,
    slots: impl Fn(&ServicePortName) -> SlotAssignment<'s>,
) -> Answer<'q> {
    let settings = question.settings;
    let mut table = DesiredTable::new(settings.nftables(Family::of(question.destination().ip())));
    table.replace_service_cidrs(question.service_cidrs.clone());
    table.replace_node_port_ips(settings.node_port_addresses.among(question.context.addresses));
    for concerned in &question.concerned {
        table.insert(concerned.name.clone(), concerned.routing.clone(), slots(&concerned.name));
    }
    let program = table.program();
    let mut sets = DesiredSets::new(&table);
    let Ok(walk) = run(&program, &question.context, &mut sets);
    reasons(question, &program, &walk)
}

impl ExplainSettings {
    pub(super) fn nftables(&self, family: Family) -> program::ProgramSettings {
        program::ProgramSettings {
            family,
            balancer: self.mode.balancer(),
            mark: self.mark,
            masquerade_all: self.masquerade_all,
            from_pod: self.from_pod.clone(),
            node_ports_everywhere: self.node_port_addresses.match_all(),
            // If it cannot, no routing needs the chains.
            can_hash: true,
        }
    }
}

fn reasons<'q>(question: &'q Question<'q>, program: &Program, walk: &ProgramWalk<'_>) -> Answer<'q> {
    let stopped = walk.paths.iter().find(|path| path.verdict != PacketVerdict::Accept);
    let forwarded = walk.paths.iter().find(|path| path.is_forwarded());
    let Some(path) = forwarded.or(stopped) else { return question.untouched() };
    let chains = chains(program, path);
    let owner = |by| match by {
        LookupBy::Address => question.owner_by_address(),
        LookupBy::NodePort => question.owner_by_node_port().map(|claim| (claim, FrontendKind::NodePort)),
    };
    if path.is_forwarded() {
        let Some((by, is_inside)) = path.rules.iter().rev().find_map(|matched| translation(matched.rule))
        else {
            return question.untouched();
        };
        let matched = owner(by);
        let targets = walk.paths.iter().filter(|path| path.is_forwarded());
        let targets = targets.filter_map(|path| {
            let masquerade = path.is_masqueraded.then(|| masquerade(path)).flatten();
            Some(PossibleTarget { address: path.endpoint?, probability: path.probability, masquerade })
        });
        let targets = targets.collect();
        let traffic = matched.map_or(Traffic::ToCluster, |(claim, kind)| {
            let routing = &claim.routing;
            if is_inside { routing.external_from_inside() } else { traffic(routing, kind) }
        });
        let end = End::Translated { targets, traffic, short_circuit: is_inside };
        let rest = walk.paths.iter().find(|path| !path.is_forwarded());
        return Answer { matched, end, chains, otherwise: rest.map(|path| path.verdict.into()) };
    }
    let (reason, matched) = stop(question, path, owner);
    Answer { matched, end: End::Stopped(path.verdict.into(), reason), chains, otherwise: None }
}

/// The chains to show: without base chains, and without those that only try random slots.
fn chains(program: &Program, path: &ProgramPath<'_>) -> Vec<String> {
    let tries_slot = |rule: &ProgramRule| {
        matches!(rule.statements[..], [Statement::List(_, _, ListUse::Dnat(_) | ListUse::HashDnat(_))])
    };
    let is_shown = |name: &&&str| {
        let chain = program.chains.iter().find(|chain| chain.name == **name);
        chain.is_some_and(|chain| chain.hook.is_none() && !chain.rules.iter().all(tries_slot))
    };
    path.chains.iter().filter(is_shown).map(|name| (*name).to_owned()).collect()
}

/// If a rule translates: how it looks up frontends, and whether it is only for traffic from inside.
fn translation(rule: &ProgramRule) -> Option<(LookupBy, bool)> {
    rule.statements.iter().find_map(|statement| match statement {
        Statement::List(by, clients, ListUse::Dnat(_) | ListUse::HashDnat(_)) => {
            Some((*by, *clients == Clients::Inside))
        }
        Statement::Affinity(by, Affinity::Dnat(list)) => Some((*by, list.is_some())),
        _ => None,
    })
}

/// Why a path is masqueraded: the first rule that sets the mark says it, or else the rule that masquerades.
fn masquerade(path: &ProgramPath<'_>) -> Option<Masquerade> {
    let marks = |rule: &&ProgramRule| rule.statements.iter().any(|it| matches!(it, Statement::SetMark(_)));
    let masquerades = |rule: &&ProgramRule| rule.statements.contains(&Statement::Masquerade);
    let by = |statement: &Statement| match statement {
        Statement::IsLocal(PacketField::Source) => Some(Masquerade::FromNode),
        Statement::NotWithin(..) | Statement::NotFromInterface(_) => Some(Masquerade::NotFromPod),
        Statement::Goto(_) => Some(Masquerade::External),
        Statement::In(_, Set::Hairpin) => Some(Masquerade::Hairpin),
        _ => None,
    };
    let rules = || path.rules.iter().map(|matched| matched.rule);
    match rules().find(marks) {
        Some(rule) => rule.statements.iter().find_map(by).or(Some(Masquerade::All)),
        None => rules().find(masquerades)?.statements.iter().find_map(by),
    }
}

/// Why a path is stopped, and whose frontend the packet is sent to.
fn stop<'q>(
    question: &'q Question<'q>,
    path: &ProgramPath<'_>,
    owner: impl Fn(LookupBy) -> Option<(&'q CurrentServicePort<'q>, FrontendKind)>,
) -> (Reason, Option<(&'q CurrentServicePort<'q>, FrontendKind)>) {
    // The last rule, or the one that leads to its chain.
    let last = path.rules.get(path.rules.len().saturating_sub(2)..).unwrap_or_default();
    let sets = last.iter().flat_map(|matched| &matched.rule.statements);
    let found = sets.filter_map(|statement| match statement {
        Statement::In(_, set) => Some(match set {
            Set::Firewalled => {
                let owner = owner(LookupBy::Address).map(|(claim, _)| (claim, FrontendKind::LoadBalancerIp));
                (Reason::NotInSourceRanges, owner)
            }
            Set::NoEndpoints(by) => (Reason::NoEndpoints, owner(*by)),
            Set::NoLocalEndpoints(by) => (Reason::NoLocalEndpoints, owner(*by)),
            Set::ClusterIps => (Reason::NoSuchPort, None),
            Set::ServiceCidrs => (Reason::UnusedClusterIp, None),
            _ => return None,
        }),
        _ => None,
    });
    found.last().unwrap_or((Reason::NoService, question.owner_by_address()))
}
