//! Tables, chains, rules and verdicts, as they are written.

use crate::message::{NLM_F_APPEND, NLM_F_CREATE};
use crate::nftables::batch::Batch;
use crate::nftables::expressions::Expression;
use crate::nftables::userdata::{self, Userdata};
use crate::nftables::wire::*;

/// A table. Its family and name are the batch's.
#[derive(Clone, Copy, Debug, Default)]
pub struct Table<'a> {
    pub ownership: Ownership,
    pub comment: Option<&'a str>,
}

/// Who may change a table, and for how long it lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ownership {
    /// Anyone, until it is deleted.
    #[default]
    Shared,
    /// Only this socket, and gone with it.
    Owned,
    /// Only this socket, and after it whoever claims it by adding it anew. Kernel 6.9 and later.
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

/// A chain, with a hook if packets come to it by themselves.
#[derive(Clone, Copy, Debug)]
pub struct Chain<'a> {
    pub name: &'a str,
    pub hook: Option<Hook>,
    pub comment: Option<&'a str>,
}

/// Where a base chain stands. Adding a chain that exists with another hook is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    pub kind: ChainKind,
    pub point: HookPoint,
    pub priority: i32,
    /// `None` leaves it to the kernel, which accepts.
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

/// A rule, which has no name: it is known by its chain, its place and what it says of itself.
#[derive(Clone, Copy, Debug)]
pub struct Rule<'a> {
    pub chain: &'a str,
    pub expressions: &'a [Expression<'a>],
    pub comment: Option<&'a str>,
    /// Anything that tells this rule from another, kept by the kernel and unseen in listings. The kernel
    /// doesn't give expressions back as they were sent, so this is how to tell whether a rule is the
    /// wanted one.
    pub fingerprint: Option<u64>,
}

impl Batch {
    /// A no-op if the table is there; its comment stays as it was. With an owner: claims it.
    pub fn add_table(&mut self, table: &Table<'_>) {
        self.message(NFT_MSG_NEWTABLE, 0, |m, name| {
            m.string(NFTA_TABLE_NAME, name);
            m.be32(NFTA_TABLE_FLAGS, table.ownership.to_wire());
            userdata::comment(table.comment).write(m, NFTA_TABLE_USERDATA);
        });
    }

    /// Takes everything in the table with it.
    pub fn delete_table(&mut self) {
        self.message(NFT_MSG_DELTABLE, 0, |m, name| m.string(NFTA_TABLE_NAME, name));
    }

    /// Removes all rules and leaves chains and sets, as `nft flush table` does.
    pub fn flush_table(&mut self) {
        self.message(NFT_MSG_DELRULE, 0, |m, table| m.string(NFTA_TABLE, table));
    }

    /// A no-op if the chain is there with the same hook; its comment stays as it was.
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

    /// Refused while something still leads to it; its own rules go with it.
    pub fn delete_chain(&mut self, name: &str) {
        self.named(NFT_MSG_DELCHAIN, NFTA_CHAIN_NAME, name);
    }

    /// Removes the rules of a chain, which must exist.
    pub fn flush_chain(&mut self, name: &str) {
        self.named(NFT_MSG_DELRULE, NFTA_RULE_CHAIN, name);
    }

    /// Puts a rule at the end of its chain.
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

    /// By the handle the kernel gave it.
    pub fn delete_rule(&mut self, chain: &str, handle: u64) {
        self.message(NFT_MSG_DELRULE, 0, |m, table| {
            m.string(NFTA_TABLE, table);
            m.string(NFTA_RULE_CHAIN, chain);
            m.be64(NFTA_RULE_HANDLE, handle);
        });
    }
}
