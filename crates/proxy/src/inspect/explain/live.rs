//! Reads what the kernel of this node holds for a packet.

use std::sync::Arc;

use anyhow::Context as _;
use kernel::iptables::{Programs, Runner};
use kernel::{interfaces, nftables};
use model::address::Family;
use plan::trace::live::{Live, through_sets};
use plan::trace::saved::through_rules;
use plan::trace::{Explanation, Mode};

/// Looks, and changes nothing.
pub fn look(explanation: &Explanation) -> anyhow::Result<Live> {
    let family = Family::of(explanation.destination.ip());
    let observed = match explanation.mode {
        Mode::Nftables => nftables::Lookup::open(family)
            .and_then(|mut sets| through_sets(explanation, &mut sets))
            .context("--live: reading the kernel's nftables sets")?,
        Mode::Iptables => {
            let runner = Runner::new(Arc::new(Programs::default()), family);
            let save = |table| {
                runner.save(table).with_context(|| format!("--live: reading the kernel's {table} table"))
            };
            let addresses = interfaces::addresses().context("--live: listing the node's addresses")?;
            through_rules(explanation, &save("nat")?, &save("filter")?, &addresses)
        }
    };
    Ok(Live::new(explanation, observed))
}
