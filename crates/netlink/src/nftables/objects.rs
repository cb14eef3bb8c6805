//! Encodes tables, chains, rules and verdicts.

use crate::message::{NLM_F_APPEND, NLM_F_CREATE};
use crate::nftables::batch::Batch;
use crate::nftables::expressions::Expression;
use crate::nftables::userdata::{self, Userdata};
use crate::nftables::wire::*;

/// A table. The batch has its family and name.
#[derive(Clone, Copy, Debug, Default)]
pub struct Table<'a> {
    pub ownership: Ownership,
    pub comment: Option<&'a str>,
}

/// Which sockets may change a table, and how long it exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ownership {
    /// Any socket may change it. It exists until it is deleted.
    #[default]
    Shared,
    /// Only this socket may change it. It is deleted when the socket is closed.
    Owned,
    /// Only this socket may change it. When the socket is closed, the table stays until another socket claims it by adding it.
    /// Needs kernel 6.9.
    OwnedPersistent,
}

impl Ownership {
    const fn to_wire(self) -> u32 {
        match self {
            Self::Shared => 0,
            Self::Owned => NFT_TABLE_F_OWNER,
            Self::OwnedPersistent => NFT_TABLE_F_OWNER | NFT_TABLE_F_PERSIST,
        }
    }
}

/// A chain, with a hook if it is a base chain.
#[derive(Clone, Copy, Debug)]
pub struct Chain<'a> {
    pub name: &'a str,
    pub hook: Option<Hook>,
    pub comment: Option<&'a str>,
}

/// The hook of a base chain. The kernel rejects a chain that exists with another hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    pub kind: ChainKind,
    pub point: HookPoint,
    pub priority: i32,
    /// The kernel defaults to accept.
    pub policy: Option<Policy>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainKind {
    Filter,
    Nat,
    Route,
}

impl ChainKind {
    const fn to_wire(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
            Self::Route => "route",
        }
    }

    pub(super) fn from_wire(name: &str) -> Option<Self> {
        [Self::Filter, Self::Nat, Self::Route].into_iter().find(|kind| kind.to_wire() == name)
    }
}

/// `NF_INET_*`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum HookPoint {
    Prerouting = 0,
    Input = 1,
    Forward = 2,
    Output = 3,
    Postrouting = 4,
}

impl HookPoint {
    pub(super) fn from_wire(number: u32) -> Option<Self> {
        [Self::Prerouting, Self::Input, Self::Forward, Self::Output, Self::Postrouting]
            .into_iter()
            .find(|point| *point as u32 == number)
    }
}

/// What happens to a packet that reaches the end of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Policy {
    Drop = 0,
    Accept = 1,
}

impl Policy {
    pub(super) fn from_wire(number: u32) -> Option<Self> {
        [Self::Drop, Self::Accept].into_iter().find(|policy| *policy as u32 == number)
    }
}

/// A rule. It has no name: its chain, position and comment identify it.
#[derive(Clone, Copy, Debug)]
pub struct Rule<'a> {
    pub chain: &'a str,
    pub expressions: &'a [Expression<'a>],
    pub comment: Option<&'a str>,
    /// Identifies the content of the rule. The kernel keeps it and listings do not show it. The kernel does not return expressions
    /// as they were sent, so only the fingerprint shows whether a rule is the desired one.
    pub fingerprint: Option<u64>,
}

impl Batch {
    /// No-op if the table exists, except that a table with an owner is claimed. The comment of an existing table stays the same.
    pub fn add_table(&mut self, table: &Table<'_>) {
        self.message(NFT_MSG_NEWTABLE, 0, |m, name| {
            m.string(NFTA_TABLE_NAME, name);
            m.be32(NFTA_TABLE_FLAGS, table.ownership.to_wire());
            userdata::comment(table.comment).write(m, NFTA_TABLE_USERDATA);
        });
    }

    /// Deletes everything in the table, too.
    pub fn delete_table(&mut self) {
        self.message(NFT_MSG_DELTABLE, 0, |m, name| m.string(NFTA_TABLE_NAME, name));
    }

    /// No-op if the chain exists with the same hook. The comment of an existing chain stays the same.
    pub fn add_chain(&mut self, chain: &Chain<'_>) {
        self.message(NFT_MSG_NEWCHAIN, NLM_F_CREATE, |m, table| {
            m.string(NFTA_TABLE, table);
            m.string(NFTA_CHAIN_NAME, chain.name);
            if let Some(hook) = chain.hook {
                m.string(NFTA_CHAIN_TYPE, hook.kind.to_wire());
                if let Some(policy) = hook.policy {
                    m.be32(NFTA_CHAIN_POLICY, policy as u32);
                }
                m.nest(NFTA_CHAIN_HOOK, |m| {
                    m.be32(NFTA_HOOK_HOOKNUM, hook.point as u32);
                    m.be32(NFTA_HOOK_PRIORITY, hook.priority.cast_unsigned());
                });
            }
            userdata::comment(chain.comment).write(m, NFTA_CHAIN_USERDATA);
        });
    }

    /// Deletes the rules of the chain, too. The kernel rejects this while other rules or elements refer to the chain.
    pub fn delete_chain(&mut self, name: &str) {
        self.named(NFT_MSG_DELCHAIN, NFTA_CHAIN_NAME, name);
    }

    /// Deletes the rules of a chain, which must exist.
    pub fn flush_chain(&mut self, name: &str) {
        self.named(NFT_MSG_DELRULE, NFTA_RULE_CHAIN, name);
    }

    /// Appends a rule to its chain.
    pub fn add_rule(&mut self, rule: &Rule<'_>) {
        self.message(NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND, |m, table| {
            m.string(NFTA_TABLE, table);
            m.string(NFTA_RULE_CHAIN, rule.chain);
            m.nest(NFTA_RULE_EXPRESSIONS, |m| {
                for expression in rule.expressions {
                    m.nest(NFTA_LIST_ELEM, |m| expression.write(m));
                }
            });
            let mut userdata = Userdata::new();
            if let Some(fingerprint) = rule.fingerprint {
                userdata.put(userdata::FINGERPRINT, &fingerprint.to_be_bytes());
            }
            if let Some(comment) = rule.comment {
                userdata.put_comment(userdata::COMMENT, comment);
            }
            userdata.write(m, NFTA_RULE_USERDATA);
        });
    }

    /// Deletes a rule by the handle that the kernel assigned.
    pub fn delete_rule(&mut self, chain: &str, handle: u64) {
        self.message(NFT_MSG_DELRULE, 0, |m, table| {
            m.string(NFTA_TABLE, table);
            m.string(NFTA_RULE_CHAIN, chain);
            m.be64(NFTA_RULE_HANDLE, handle);
        });
    }
}
