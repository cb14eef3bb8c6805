//! Removes our chains when another mode takes over, or on `--cleanup`. The caller has deleted the jumps before.

use crate::iptables::chains::{
    CANARY, EXTERNAL_SERVICES, FORWARD, IPVS_FILTER, IPVS_LOAD_BALANCER, IPVS_NODE_PORT, IPVS_OUT_FILTER,
    IPVS_SOURCE_RANGES, IptablesTable, MARK_MASQ, NODE_PORTS, POSTROUTING, PROXY_FIREWALL, Purpose, SERVICES,
};
use crate::iptables::restore::Restore;

/// Which rules to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leftovers {
    /// Those of the iptables mode, and of upstream's ipvs mode.
    All,
    /// Only those that upstream's ipvs mode does not share with the iptables mode.
    OfIpvs,
}

const NAT: [&str; 5] = [SERVICES, NODE_PORTS, POSTROUTING, MARK_MASQ, CANARY];
const FILTER: [&str; 6] = [SERVICES, EXTERNAL_SERVICES, FORWARD, NODE_PORTS, PROXY_FIREWALL, CANARY];
const IPVS_NAT: [&str; 2] = [IPVS_NODE_PORT, IPVS_LOAD_BALANCER];
const IPVS_FILTERS: [&str; 4] = [IPVS_NODE_PORT, IPVS_SOURCE_RANGES, IPVS_FILTER, IPVS_OUT_FILTER];

/// Removes such chains of the table; those of kubelet and of others stay. All are emptied first, since the chains of upstream's two
/// modes jump to each other.
pub fn leftovers(which: Leftovers, table: IptablesTable, found: &[&str]) -> Restore {
    let (shared, of_ipvs): (&[&str], &[&str]) = match table {
        IptablesTable::Filter => (&FILTER, &IPVS_FILTERS),
        IptablesTable::Nat => (&NAT, &IPVS_NAT),
    };
    let shared = shared.iter().filter(|_| which == Leftovers::All);
    let mut ours: Vec<&str> = shared.chain(of_ipvs).copied().filter(|chain| found.contains(chain)).collect();
    if table == IptablesTable::Nat && which == Leftovers::All {
        let mut services: Vec<&str> =
            found.iter().copied().filter(|chain| belongs_to_a_service(chain)).collect();
        services.sort_unstable();
        ours.extend(services);
    }
    let mut restore = Restore::default();
    let section = restore.section(table);
    ours.iter().for_each(|chain| section.chain(chain));
    ours.iter().for_each(|chain| section.remove(chain));
    restore
}

/// Includes the chains of local endpoints of upstream's releases before 1.25, which had another name.
fn belongs_to_a_service(chain: &str) -> bool {
    Purpose::of(chain).is_some() || chain.starts_with("KUBE-XLB-")
}
