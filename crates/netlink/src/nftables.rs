//! nf_tables: writes transactions, reads the ruleset, and receives notifications of its changes.
//!
//! ```text
//!   Table, Chain, Rule, Set, Element ──▶ Batch ── commit ──▶ kernel
//!                                                              │
//!   FoundTable, FoundChain, ...  ◀── NftablesSocket ── dump ──┤
//!   Notification                 ◀── Monitor ── notification ──┘
//! ```
//!
//! Objects borrow their parts and are encoded directly into the batch. The kernel commits a batch as a whole or not at all. An
//! error names the object that was rejected; the name is decoded from the batch, so that it costs nothing otherwise.
//!
//! ```no_run
//! use netlink::Family::Ipv4;
//! use netlink::nftables::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! const FRONTEND: [Field; 3] = [Field::Ipv4Address, Field::Protocol, Field::Port];
//! let mut batch = Batch::new(Ipv4, "kube-proxy");
//! batch.add_table(&Table::default());
//! batch.add_set(&Set { counter: true, ..Set::new("no-endpoints", &FRONTEND) });
//! batch.add_chain(&Chain { name: "services", hook: None, comment: None });
//!
//! // ip daddr . meta l4proto . th dport @no-endpoints drop
//! let mut registers = Registers::default();
//! let key = registers.take(4);
//! batch.add_rule(&Rule {
//!     chain: "services",
//!     expressions: &[
//!         Expression::destination_address(Ipv4, key),
//!         Expression::Meta { key: MetaKey::L4Protocol, to: registers.take(1) },
//!         Expression::destination_port(registers.take(2)),
//!         Expression::Lookup { set: "no-endpoints".into(), key },
//!         Expression::Verdict(Verdict::Drop),
//!     ],
//!     comment: Some("no endpoints"),
//!     fingerprint: None,
//! });
//! let web = Value::concatenation(&[&[10, 96, 0, 10], &[6], &80_u16.to_be_bytes()]);
//! batch.add_elements("no-endpoints", [Element { comment: Some("default/web"), ..Element::new(web) }]);
//!
//! let mut socket = NftablesSocket::open()?;
//! socket.commit(&batch)?;
//! let packets = socket.elements(Ipv4, "kube-proxy", "no-endpoints", |element| element.counter)?;
//! # Ok(())
//! # }
//! ```

mod batch;
mod describe;
mod elements;
mod events;
mod expressions;
mod objects;
mod read;
mod sets;
mod socket;
#[cfg(test)]
mod tests;
mod userdata;
mod value;
mod wire;

pub use batch::Batch;
pub use elements::{Datum, Element};
pub use events::{Monitor, Notification, NotifiedObject};
pub use expressions::{
    Base, Comparison, ConntrackKey, Direction, DynamicOperation, Expression, FibResult, MetaKey, NatFlags,
    NatKind, NumberGenerator, RejectWith,
};
pub use objects::{Chain, ChainKind, Hook, HookPoint, Ownership, Policy, Rule, Table};
pub use read::{Counter, FoundChain, FoundDatum, FoundElement, FoundRule, FoundSet, FoundTable, Generation};
pub use sets::{Field, MapData, Set, SetRef};
pub use socket::{CommitError, NftablesSocket};
pub use value::{Register, Registers, Value, Verdict};

#[cfg(any(test, fuzzing))]
pub(crate) use read::decode_all;
