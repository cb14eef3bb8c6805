//! Reads what the kernel of this node holds for a packet.

use std::io;
use std::sync::Arc;

use anyhow::Context as _;
use kernel::iptables::{Programs, Runner};
use kernel::{interfaces, nftables};
use model::address::Family;
use plan::trace::live::{Live, Observed, through_sets};
use plan::trace::saved::through_rules;
use plan::trace::{Explanation, Fate, Mode};
use settings::config::ProxyMode;

use crate::behaviour::FormerRules;

/// Looks, and changes nothing.
pub fn look(explanation: &Explanation) -> anyhow::Result<Live> {
    let family = Family::of(explanation.destination.ip());
    let (observed, mode) = match explanation.mode {
        Mode::Nftables => (through_table(explanation, family)?, ProxyMode::Nftables),
        Mode::Iptables => {
            let runner = Runner::open(Arc::new(Programs::default()), family)
                .context("--live: finding out what iptables can do")?;
            let save = |table| {
                runner.save(table).with_context(|| format!("--live: reading the kernel's {table} table"))
            };
            let addresses = interfaces::addresses().context("--live: listing the node's addresses")?;
            let observed = through_rules(explanation, &save("nat")?, &save("filter")?, &addresses);
            (observed, ProxyMode::Iptables)
        }
    };
    let mut live = Live::new(explanation, observed);
    if !live.agrees {
        live.not_followed = FormerRules::look(family, mode)?.map(|before| before.name().to_owned());
    }
    Ok(live)
}

/// Where there is no table, nothing happens to a packet.
fn through_table(explanation: &Explanation, family: Family) -> anyhow::Result<Observed> {
    match nftables::Lookup::open(family).and_then(|mut sets| through_sets(explanation, &mut sets)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Observed::stopped(Fate::Untouched)),
        looked => {
            looked.context("--live: reading the kernel's nftables sets (it takes root or CAP_NET_ADMIN)")
        }
    }
}
