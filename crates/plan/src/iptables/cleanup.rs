//! Removes our chains when another mode takes over, or on `--cleanup`. The caller has deleted the jumps before.

use crate::iptables::chains::{
    CANARY, EXTERNAL_SERVICES, FORWARD, IPVS_FILTER, IPVS_LOAD_BALANCER, IPVS_NODE_PORT, IPVS_OUT_FILTER,
    IPVS_SOURCE_RANGES, IptablesTable, MARK_MASQ, NODE_PORTS, POSTROUTING, PROXY_FIREWALL, Purpose, SERVICES,
};
use crate::iptables::restore::Restore;

const NAT: [&str; 7] =
    [SERVICES, NODE_PORTS, POSTROUTING, MARK_MASQ, CANARY, IPVS_NODE_PORT, IPVS_LOAD_BALANCER];
const FILTER: [&str; 10] = [
    SERVICES,
    EXTERNAL_SERVICES,
    FORWARD,
    NODE_PORTS,
    PROXY_FIREWALL,
    CANARY,
    IPVS_NODE_PORT,
    IPVS_SOURCE_RANGES,
    IPVS_FILTER,
    IPVS_OUT_FILTER,
];

/// Removes the chains of the table that are ours or those of upstream's ipvs mode; those of kubelet and of others stay. All are
/// emptied first, since the chains of upstream's two modes jump to each other.
pub fn leftovers(table: IptablesTable, found: &[&str]) -> Restore {
    let stock: &[&str] = match table {
        IptablesTable::Filter => &FILTER,
        IptablesTable::Nat => &NAT,
    };
    let mut ours: Vec<&str> = stock.iter().copied().filter(|chain| found.contains(chain)).collect();
    if table == IptablesTable::Nat {
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
