//! Reads what another mode, or another kube-proxy, has left in the kernel.

use std::collections::BTreeSet;
use std::net::IpAddr;

use kernel::iptables;
use kernel::nftables::{self, PresentTable};
use model::address::Family;
use plan::iptables::present::PresentRules;
use settings::config::ProxyMode;

/// Rules in the kernel of another mode, or of another kube-proxy.
#[derive(Debug)]
pub enum FormerRules {
    Iptables(PresentRules),
    Nftables(PresentTable),
}

impl FormerRules {
    /// `None` if the kernel has no rules other than those of this program in this mode.
    pub fn read(family: Family, mode: ProxyMode) -> anyhow::Result<Option<Self>> {
        Ok(match mode {
            ProxyMode::Nftables | ProxyMode::Ipvs => match iptables::present(family)? {
                Some(found) => Some(Self::Iptables(found)),
                None => nftables::present(family)?.filter(|found| !found.is_ours).map(Self::Nftables),
            },
            ProxyMode::Iptables => nftables::present(family)?.map(Self::Nftables),
        })
    }

    pub fn describe(&self) -> String {
        let (Self::Iptables(PresentRules { objects, .. }) | Self::Nftables(PresentTable { objects, .. })) =
            self;
        format!("{} ({objects} objects to remove)", self.name())
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Iptables(_) => "the iptables mode",
            Self::Nftables(found) if found.is_ours => "the nftables mode of this program",
            Self::Nftables(_) => "the kube-proxy table of another program",
        }
    }

    /// The addresses that serve node ports; `None` if all do.
    pub fn node_port_ips(&self) -> Option<&BTreeSet<IpAddr>> {
        match self {
            Self::Iptables(found) => found.node_port_ips.as_ref(),
            Self::Nftables(found) => found.node_port_ips.as_ref(),
        }
    }

    /// Whether node ports are served at 127.0.0.1.
    pub fn serves_localhost(&self) -> bool {
        matches!(self, Self::Iptables(found) if found.serves_localhost)
    }
}
