//! `--live`: what the rules in the kernel do with a packet.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use anyhow::Context as _;
use kernel::iptables::{Programs, Runner};
use kernel::{interfaces, ipvs, nftables};
use model::address::Family;
use plan::explain::Explanation;
use plan::explain::live::{Live, through_rules, through_sets};
use plan::mode::Mode;
use plan::nftables::interpreter::Sets;
use settings::config::ProxyMode;

use crate::former_rules::FormerRules;

/// Reads the kernel and changes nothing.
pub fn read(explanation: &Explanation) -> anyhow::Result<Live> {
    let family = Family::of(explanation.destination.ip());
    let addresses = interfaces::addresses().context("--live: listing the node's addresses")?;
    let (mut live, mode) = match explanation.mode {
        Mode::Nftables => {
            (through_table(explanation, &addresses, nftables::Lookup::open(family))?, ProxyMode::Nftables)
        }
        Mode::Ipvs => {
            (through_table(explanation, &addresses, ipvs::ServersLookup::open(family))?, ProxyMode::Ipvs)
        }
        Mode::Iptables => {
            let runner = Runner::open(Arc::new(Programs::default()), family)
                .context("--live: detecting the features of iptables")?;
            let save = |table| {
                runner.save(table).with_context(|| format!("--live: reading the kernel's {table} table"))
            };
            (through_rules(explanation, &save("nat")?, &save("filter")?, &addresses), ProxyMode::Iptables)
        }
    };
    if !live.agrees {
        live.not_followed = FormerRules::read(family, mode)?.map(|before| before.name().to_owned());
    }
    Ok(live)
}

/// Without a table the kernel does nothing to a packet.
fn through_table(
    explanation: &Explanation,
    addresses: &[IpAddr],
    lookup: io::Result<impl Sets<Error = io::Error>>,
) -> anyhow::Result<Live> {
    match lookup.and_then(|mut sets| through_sets(explanation, addresses, &mut sets)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Live::without_rules(explanation)),
        result => result.context("--live: reading the kernel's nftables sets (needs root or CAP_NET_ADMIN)"),
    }
}
