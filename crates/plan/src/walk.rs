//! The walk of a packet through the rules of either mode: the result of `nftables::interpreter` and `iptables::interpreter`.
//!
//! The interpreters use no random numbers. Where a rule does, the walk splits into paths, each with its probability.

use std::net::{IpAddr, SocketAddr};

use model::names::Protocol;

use crate::nftables::program::PacketHook;

/// The first packet of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    pub source: IpAddr,
    /// `None` if it is not known; only hashing depends on it.
    pub source_port: Option<u16>,
    pub protocol: Protocol,
    pub destination: SocketAddr,
    /// The input interface; `None` if it is not known, or if the node sends the packet.
    pub interface: Option<String>,
}

/// A packet, with everything that rules may match on.
#[derive(Clone, Copy, Debug)]
pub struct PacketContext<'a> {
    pub packet: &'a Packet,
    /// Every address of the node.
    pub addresses: &'a [IpAddr],
    /// The mark of the packet before the first rule.
    pub mark: u32,
    /// Conntrack has an entry of the flow and has seen no reply: its state is still new, and packets skip nat chains.
    pub has_entry: bool,
}

/// All paths that a packet may take.
#[derive(Clone, Debug)]
pub struct Walk<'a, Rule, Change> {
    /// Never empty; their probabilities add up to one.
    pub paths: Vec<Path<'a, Rule, Change>>,
    /// Rules that the interpreter does not understand. It treats them as rules that do not match.
    pub not_understood: Vec<String>,
}

/// One path of a packet.
#[derive(Clone, Debug)]
pub struct Path<'a, Rule, Change> {
    pub probability: f64,
    pub verdict: PacketVerdict,
    /// What the destination is translated to, if it is.
    pub endpoint: Option<SocketAddr>,
    pub is_masqueraded: bool,
    /// The mark that the packet leaves with.
    pub mark: u32,
    /// The rules that matched, in order.
    pub rules: Vec<Matched<'a, Rule>>,
    /// The chains from the base chain to the one that translated or stopped the packet; empty if none did.
    pub chains: Vec<&'a str>,
    /// What the packet changes in the kernel's state of session affinity.
    pub changes: Vec<Change>,
}

/// A rule that matched.
#[derive(Debug, PartialEq, Eq)]
pub struct Matched<'a, Rule> {
    pub chain: &'a str,
    /// Its position in the chain, from zero.
    pub number: usize,
    pub rule: &'a Rule,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PacketVerdict {
    Accept,
    Reject,
    Drop,
}

impl<Rule> Clone for Matched<'_, Rule> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Rule> Copy for Matched<'_, Rule> {}

impl PacketContext<'_> {
    /// A packet without a mark, of a flow without a conntrack entry.
    pub fn new<'a>(packet: &'a Packet, addresses: &'a [IpAddr]) -> PacketContext<'a> {
        PacketContext { packet, addresses, mark: 0, has_entry: false }
    }

    /// All of 127.0.0.0/8 is local, though interfaces have only one address of it.
    pub fn is_local(&self, ip: IpAddr) -> bool {
        ip.is_loopback() || self.addresses.contains(&ip)
    }

    pub fn is_from_node(&self) -> bool {
        self.is_local(self.packet.source)
    }

    /// The input interface as rules see it; empty if the node sends the packet.
    pub fn input_interface(&self) -> &str {
        self.packet.interface.as_deref().filter(|_| !self.is_from_node()).unwrap_or_default()
    }

    /// The hook at which destinations are translated.
    pub fn first_hook(&self) -> PacketHook {
        if self.is_from_node() { PacketHook::Output } else { PacketHook::Prerouting }
    }

    /// The hooks after [`PacketContext::first_hook`], for a packet that now has this destination. What the node sends to itself also
    /// traverses the input hooks.
    pub fn next_hooks(&self, destination: IpAddr) -> &'static [PacketHook] {
        match (self.is_from_node(), self.is_local(destination)) {
            (true, true) => &[PacketHook::Postrouting, PacketHook::Prerouting, PacketHook::Input],
            (true, false) => &[PacketHook::Postrouting],
            (false, true) => &[PacketHook::Input],
            (false, false) => &[PacketHook::Forward, PacketHook::Postrouting],
        }
    }
}

impl<'a, Rule, Change> Path<'a, Rule, Change> {
    /// The path before the first rule.
    pub(crate) fn start(context: &PacketContext<'_>) -> Self {
        Self {
            probability: 1.0,
            verdict: PacketVerdict::Accept,
            endpoint: None,
            is_masqueraded: false,
            mark: context.mark,
            rules: Vec::new(),
            chains: Vec::new(),
            changes: Vec::new(),
        }
    }

    /// The current destination.
    pub fn destination(&self, packet: &Packet) -> SocketAddr {
        self.endpoint.unwrap_or(packet.destination)
    }

    pub fn is_forwarded(&self) -> bool {
        self.verdict == PacketVerdict::Accept && self.endpoint.is_some()
    }
}
