//! What becomes of a packet when the rules of either mode are run over it: the answer of `nftables::run` and
//! `iptables::run`.
//!
//! Nothing is drawn at random. Where a rule does, the walk splits into paths, each with its probability.

use std::net::{IpAddr, SocketAddr};

use model::names::Protocol;

use crate::nftables::program::PacketHook;

/// The first packet of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    pub source: IpAddr,
    pub protocol: Protocol,
    pub destination: SocketAddr,
    /// The interface of the node that it comes in by; `None` if that is not known, or the node sends it.
    pub interface: Option<String>,
}

/// A packet with everything that rules may ask about it.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    pub packet: &'a Packet,
    /// Every address of the node.
    pub addresses: &'a [IpAddr],
    /// The mark that the packet already has when it meets the first rule.
    pub mark: u32,
    /// Conntrack knows the flow, but has seen no reply: its state is still new, and nat chains are not asked again.
    pub has_entry: bool,
}

/// Every path that a packet may take.
#[derive(Clone, Debug)]
pub struct Walk<'a, Rule, Change> {
    /// Never empty; their probabilities add up to one.
    pub paths: Vec<Path<'a, Rule, Change>>,
    /// Rules that the interpreter does not understand, and so takes for rules that do not match.
    pub not_understood: Vec<String>,
}

/// One of them.
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
    /// The chains that the packet was in when it was translated or stopped, from the base chain on; empty if it was neither.
    pub chains: Vec<&'a str>,
    /// What the packet changes in the kernel's memory of clients.
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

impl Context<'_> {
    /// A packet of a flow that conntrack has no entry of, without a mark.
    pub fn new<'a>(packet: &'a Packet, addresses: &'a [IpAddr]) -> Context<'a> {
        Context { packet, addresses, mark: 0, has_entry: false }
    }

    /// All of 127.0.0.0/8 is the node's, though its interfaces name only one of them.
    pub fn is_local(&self, ip: IpAddr) -> bool {
        ip.is_loopback() || self.addresses.contains(&ip)
    }

    pub fn is_from_node(&self) -> bool {
        self.is_local(self.packet.source)
    }

    /// The name of the interface that the packet comes in by; empty where the node sends it, as rules see it.
    pub fn input_interface(&self) -> &str {
        self.packet.interface.as_deref().filter(|_| !self.is_from_node()).unwrap_or_default()
    }

    /// The hook at which destinations are translated.
    pub fn first_hook(&self) -> PacketHook {
        if self.is_from_node() { PacketHook::Output } else { PacketHook::Prerouting }
    }

    /// The hooks that come after [`Context::first_hook`], for a packet that now has this destination. What the node sends to
    /// itself leaves it and comes in again.
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
    /// A packet that has met no rule yet.
    pub(crate) fn start(context: &Context<'_>) -> Self {
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

    /// Where the packet is on its way to now.
    pub fn destination(&self, packet: &Packet) -> SocketAddr {
        self.endpoint.unwrap_or(packet.destination)
    }

    pub fn is_forwarded(&self) -> bool {
        self.verdict == PacketVerdict::Accept && self.endpoint.is_some()
    }
}
