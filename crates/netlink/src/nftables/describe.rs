//! Describes a message of a batch for errors. Decodes the message itself, so that encoding a batch records nothing.

use crate::Family;
use crate::attributes::{Attribute, Attributes};
use crate::message::{HEADER, Message};
use crate::nftables::userdata;
use crate::nftables::value::hex;
use crate::nftables::wire::*;

/// Formats the message like an `nft` command. `offset` is that of the attribute the kernel rejected, which identifies one of many
/// elements.
pub(super) fn describe(message: &Message<'_>, offset: Option<u32>) -> String {
    let Some((verb, noun)) = message_of(message.header.kind).and_then(words) else {
        return format!("message {:#x}", message.header.kind);
    };
    let family = message.fixed::<FIXED>().and_then(|[family, ..]| Family::from_wire(*family));
    let family = family.map_or_else(String::new, |family| format!(" {family}"));
    let attributes = message.attributes(FIXED);
    let name = |kind| attributes.find(kind).and_then(|a| a.str()).map(|name| format!(" {name}"));
    let table = name(NFTA_TABLE).unwrap_or_default();
    let rest = match noun {
        "chain" => name(NFTA_CHAIN_NAME),
        "set" => name(NFTA_SET_NAME),
        "rule" => Some(name(NFTA_RULE_CHAIN).unwrap_or_default() + &rule(attributes)),
        "element" => Some(name(NFTA_SET_ELEM_LIST_SET).unwrap_or_default() + &element(message, offset)),
        _ => None,
    };
    format!("{verb} {noun}{family}{table}{}", rest.unwrap_or_default())
}

const fn words(message: u8) -> Option<(&'static str, &'static str)> {
    Some(match message {
        NFT_MSG_NEWTABLE => ("add", "table"),
        NFT_MSG_DELTABLE => ("delete", "table"),
        NFT_MSG_NEWCHAIN => ("add", "chain"),
        NFT_MSG_DELCHAIN => ("delete", "chain"),
        NFT_MSG_NEWRULE => ("add", "rule"),
        NFT_MSG_DELRULE => ("delete", "rule"),
        NFT_MSG_NEWSET => ("add", "set"),
        NFT_MSG_DELSET => ("delete", "set"),
        NFT_MSG_NEWSETELEM => ("add", "element"),
        NFT_MSG_DELSETELEM => ("delete", "element"),
        _ => return None,
    })
}

/// Describes a rule by its comment, its handle, or the names of its expressions.
fn rule(attributes: Attributes<'_>) -> String {
    let comment = attributes
        .find(NFTA_RULE_USERDATA)
        .and_then(|userdata| userdata::find_comment(userdata.value, userdata::COMMENT));
    if let Some(comment) = comment {
        return format!(" \"{comment}\"");
    }
    if let Some(handle) = attributes.find(NFTA_RULE_HANDLE).and_then(|a| a.be64()) {
        return format!(" handle {handle}");
    }
    let Some(list) = attributes.find(NFTA_RULE_EXPRESSIONS) else { return String::new() };
    let names = list.nested().filter_map(|entry| entry.nested().find(NFTA_EXPR_NAME)?.str());
    format!(" [{}]", names.collect::<Vec<_>>().join(" "))
}

/// The element that the kernel rejected or, if unknown, the number of elements.
fn element(message: &Message<'_>, offset: Option<u32>) -> String {
    let Some(list) = message.attributes(FIXED).find(NFTA_SET_ELEM_LIST_ELEMENTS) else {
        return String::new();
    };
    let count = list.nested().count();
    let only = || list.nested().next().filter(|_| count == 1);
    match offset.and_then(|offset| entry_at(message, offset)).or_else(only) {
        Some(element) => format!(" {{ {} }}", key(element)),
        None => format!(" {{ one of {count} }}"),
    }
}

/// The list entry at this offset from the beginning of the message.
fn entry_at<'a>(message: &Message<'a>, offset: u32) -> Option<Attribute<'a>> {
    let begin = usize::try_from(offset).ok()?.checked_sub(HEADER)?;
    let entry = Attributes::new(message.body.get(begin..)?).next()?;
    (entry.kind == NFTA_LIST_ELEM && entry.is_nested).then_some(entry)
}

fn key(element: Attribute<'_>) -> String {
    let value = |kind| {
        let data = element.nested().find(kind)?;
        Some(hex(data.nested().find(NFTA_DATA_VALUE)?.value))
    };
    let range = value(NFTA_SET_ELEM_KEY_END).map(|end| format!(" - {end}")).unwrap_or_default();
    value(NFTA_SET_ELEM_KEY).unwrap_or_default() + &range
}
