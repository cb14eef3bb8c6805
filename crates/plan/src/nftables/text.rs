//! The whole table in the syntax of `nft -f`.

use std::fmt::Write as _;
use std::net::IpAddr;

use ipnet::IpNet;
use model::address::Family;

use crate::nftables::program::{HookKind, PacketHook, Program, ProgramChain, ProgramHook};
use crate::nftables::sets::{Element, Set, SetKind, Type};
use crate::nftables::statements::protocol_name;

/// The content of the sets.
#[derive(Clone, Copy, Debug)]
pub struct SetContents<'a> {
    /// Sorted.
    pub elements: &'a [Element],
    pub service_cidrs: &'a [IpNet],
    pub node_port_ips: &'a [IpAddr],
}

/// The table as `nft list table` prints it.
pub fn table(name: &str, comment: &str, program: &Program, content: SetContents<'_>) -> String {
    let family = protocol_name(program.family);
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "table {family} {name} {{\n\tcomment \"{comment}\"");
    for set in &program.sets {
        let elements = if set.kind() == SetKind::Fixed { &program.verdicts } else { content.elements };
        write_set(*set, program.family, SetContents { elements, ..content }, &mut text);
    }
    for chain in &program.chains {
        write_chain(chain, program.family, &mut text);
    }
    text.push_str("}\n");
    text
}

fn write_set(set: Set, family: Family, content: SetContents<'_>, text: &mut String) {
    let word = if set.data().is_empty() { "set" } else { "map" };
    let _ = writeln!(text, "\n\t{word} {} {{", set.name());
    // The type of slots has no name, so `typeof` gives the type of such a set by example.
    let key = set.key();
    let (verb, name): (_, fn(Type, Family) -> String) =
        if key.contains(&Type::Slot) { ("typeof", example) } else { ("type", type_name) };
    let of = |types: &[Type]| types.iter().map(|kind| name(*kind, family)).collect::<Vec<_>>().join(" . ");
    let data = if set.data().is_empty() { String::new() } else { format!(" : {}", of(set.data())) };
    let _ = writeln!(text, "\t\t{verb} {}{data}", of(&key));
    match set.kind() {
        SetKind::Plain | SetKind::Fixed => {}
        SetKind::Counting => text.push_str("\t\tcounter\n"),
        SetKind::Ranges => text.push_str("\t\tflags interval\n"),
        SetKind::Dynamic => text.push_str("\t\tsize 1048576\n\t\tflags dynamic,timeout\n"),
    }
    let _ = writeln!(text, "\t\tcomment \"{}\"", set.comment());
    let start = content.elements.partition_point(|element| element.set < set);
    let end = content.elements.partition_point(|element| element.set <= set);
    let own = content.elements.get(start..end).unwrap_or_default().iter();
    let shown: Vec<String> = if set == Set::ServiceCidrs {
        IpNet::aggregate(&content.service_cidrs.to_vec()).iter().map(ToString::to_string).collect()
    } else if set == Set::NodePortIps {
        content.node_port_ips.iter().map(ToString::to_string).collect()
    } else {
        own.map(|element| element.show(family)).collect()
    };
    if !shown.is_empty() {
        let _ = writeln!(text, "\t\telements = {{ {} }}", shown.join(",\n\t\t\t     "));
    }
    text.push_str("\t}\n");
}

fn type_name(kind: Type, family: Family) -> String {
    match (kind, family) {
        (Type::Address, Family::V4) => "ipv4_addr".into(),
        (Type::Address, Family::V6) => "ipv6_addr".into(),
        (Type::Protocol, _) => "inet_proto".into(),
        (Type::Port, _) => "inet_service".into(),
        (Type::Number, _) => "mark".into(),
        (Type::Verdict, _) => "verdict".into(),
        (Type::Slot, _) => example(kind, family),
    }
}

fn example(kind: Type, family: Family) -> String {
    match kind {
        Type::Address => format!("{} daddr", protocol_name(family)),
        Type::Protocol => "meta l4proto".into(),
        Type::Port => "th dport".into(),
        // The modulus does not matter.
        Type::Slot => "numgen random mod 65536".into(),
        Type::Number => "meta mark".into(),
        Type::Verdict => type_name(kind, family),
    }
}

/// Some priorities have names, some of these only at certain hooks.
fn priority(hook: ProgramHook) -> String {
    match (hook.point, hook.priority) {
        (_, 0) => "filter".into(),
        (PacketHook::Prerouting, -100) => "dstnat".into(),
        (PacketHook::Prerouting, number @ -110..-100) => format!("dstnat - {}", -100 - number),
        (PacketHook::Postrouting, 100) => "srcnat".into(),
        (_, number) => number.to_string(),
    }
}

fn write_chain(chain: &ProgramChain, family: Family, text: &mut String) {
    let _ = writeln!(text, "\n\tchain {} {{", chain.name);
    if let Some(hook) = chain.hook {
        let kind = match hook.kind {
            HookKind::Filter => "filter",
            HookKind::Nat => "nat",
        };
        let point = match hook.point {
            PacketHook::Prerouting => "prerouting",
            PacketHook::Input => "input",
            PacketHook::Forward => "forward",
            PacketHook::Output => "output",
            PacketHook::Postrouting => "postrouting",
        };
        let priority = priority(hook);
        let _ = writeln!(text, "\t\ttype {kind} hook {point} priority {priority}; policy accept;");
    }
    for rule in &chain.rules {
        let _ = writeln!(text, "\t\t{}", rule.show(family));
    }
    text.push_str("\t}\n");
}
