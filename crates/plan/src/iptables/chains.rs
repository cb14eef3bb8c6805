//! The names of chains, and the jumps to our chains. Operators and their scripts depend on both.

use std::borrow::Cow;
use std::fmt;

use model::names::{Protocol, ServicePortName};
use sha2::{Digest, Sha256};

use crate::iptables::quoting::word;

/// A table that has rules of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IptablesTable {
    Filter,
    Nat,
}

impl IptablesTable {
    pub fn name(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
        }
    }
}

pub const SERVICES: &str = "KUBE-SERVICES";
pub const EXTERNAL_SERVICES: &str = "KUBE-EXTERNAL-SERVICES";
pub const NODE_PORTS: &str = "KUBE-NODEPORTS";
pub const POSTROUTING: &str = "KUBE-POSTROUTING";
pub const MARK_MASQ: &str = "KUBE-MARK-MASQ";
pub const FORWARD: &str = "KUBE-FORWARD";
pub const PROXY_FIREWALL: &str = "KUBE-PROXY-FIREWALL";
/// Chains that only upstream's ipvs mode has.
pub const IPVS_NODE_PORT: &str = "KUBE-NODE-PORT";
pub const IPVS_LOAD_BALANCER: &str = "KUBE-LOAD-BALANCER";
pub const IPVS_SOURCE_RANGES: &str = "KUBE-SOURCE-RANGES-FIREWALL";
pub const IPVS_FILTER: &str = "KUBE-IPVS-FILTER";
pub const IPVS_OUT_FILTER: &str = "KUBE-IPVS-OUT-FILTER";
/// Shared with kubelet, which writes the same rule.
pub const FIREWALL: &str = "KUBE-FIREWALL";
/// Empty. If it is missing, another program has flushed the tables.
pub const CANARY: &str = "KUBE-PROXY-CANARY";

/// A chain that service ports add lines to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SharedChain {
    /// Filter: cluster IPs without endpoints.
    Refused,
    /// Filter: external addresses and node ports without endpoints.
    ExternalRefused,
    /// Filter: accepts health check node ports.
    HealthChecks,
    /// Filter: drops packets to load-balancer IPs that no source range allows.
    ProxyFirewall,
    /// Nat: frontends by address.
    Services,
    /// Nat: node ports.
    NodePorts,
}

impl SharedChain {
    pub const ALL: [Self; 6] = [
        Self::Refused,
        Self::ExternalRefused,
        Self::HealthChecks,
        Self::ProxyFirewall,
        Self::Services,
        Self::NodePorts,
    ];

    pub fn table(self) -> IptablesTable {
        match self {
            Self::Refused | Self::ExternalRefused | Self::HealthChecks | Self::ProxyFirewall => {
                IptablesTable::Filter
            }
            Self::Services | Self::NodePorts => IptablesTable::Nat,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Refused | Self::Services => SERVICES,
            Self::ExternalRefused => EXTERNAL_SERVICES,
            Self::HealthChecks | Self::NodePorts => NODE_PORTS,
            Self::ProxyFirewall => PROXY_FIREWALL,
        }
    }
}

/// What a service port's own chain is for. Sorted by prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    /// Entry for external destinations.
    External,
    /// Source ranges in front of `External`.
    Firewall,
    /// One endpoint: hairpin mark, affinity, DNAT.
    Endpoint,
    /// Endpoints of the whole cluster.
    Cluster,
    /// Endpoints on this node.
    Local,
}

impl Purpose {
    const ALL: [Self; 5] = [Self::External, Self::Firewall, Self::Endpoint, Self::Cluster, Self::Local];

    fn prefix(self) -> &'static str {
        match self {
            Self::External => "KUBE-EXT-",
            Self::Firewall => "KUBE-FW-",
            Self::Endpoint => "KUBE-SEP-",
            Self::Cluster => "KUBE-SVC-",
            Self::Local => "KUBE-SVL-",
        }
    }

    /// The purpose of a chain by its name, which a foreign writer may have chosen. `None` for chains of no service port.
    pub fn of(chain: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|purpose| chain.starts_with(purpose.prefix()))
    }

    /// Chains of a lower depth jump only to chains of a higher one.
    pub fn depth(self) -> u8 {
        match self {
            Self::Firewall => 0,
            Self::External => 1,
            Self::Cluster | Self::Local => 2,
            Self::Endpoint => 3,
        }
    }
}

/// The name of a service port's own chain. Ordered like its text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceChain {
    pub purpose: Purpose,
    hash: [u8; 16],
}

impl ServiceChain {
    /// `None` for a name that no chain of ours has.
    pub fn from_name(name: &str) -> Option<Self> {
        let purpose = Purpose::of(name)?;
        let hash = name.strip_prefix(purpose.prefix())?.as_bytes().try_into().ok()?;
        Some(Self { purpose, hash })
    }
}

impl fmt::Display for ServiceChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.purpose.prefix())?;
        f.write_str(std::str::from_utf8(&self.hash).unwrap_or_default())
    }
}

impl fmt::Debug for ServiceChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The names of the chains of one service port.
#[derive(Clone, Debug)]
pub struct Namer {
    seed: Sha256,
    hash: [u8; 16],
}

impl Namer {
    pub fn new(name: &ServicePortName) -> Self {
        let seed = Sha256::new().chain_update(name.to_string()).chain_update(lower_case(name.protocol));
        let hash = encode(seed.clone());
        Self { seed, hash }
    }

    /// The name of a chain of which a service port has one.
    pub fn chain(&self, purpose: Purpose) -> ServiceChain {
        ServiceChain { purpose, hash: self.hash }
    }

    /// The name of the chain of an endpoint, given as `address:port`.
    pub fn endpoint(&self, text: &str) -> ServiceChain {
        let hash = encode(self.seed.clone().chain_update(text));
        ServiceChain { purpose: Purpose::Endpoint, hash }
    }
}

pub fn lower_case(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    }
}

/// The first ten bytes of the digest in base 32: 16 characters.
fn encode(hash: Sha256) -> [u8; 16] {
    const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let digest = hash.finalize();
    let bits = digest.iter().take(10).fold(0u128, |bits, byte| bits << 8 | u128::from(*byte));
    std::array::from_fn(|at| {
        let five = (bits >> (75 - 5 * at)) & 31;
        ALPHABET.get(five as usize).copied().unwrap_or_default()
    })
}

/// A rule in a chain of the kernel that jumps to one of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jump {
    pub table: IptablesTable,
    pub from: &'static str,
    pub to: &'static str,
    /// Only the first packet of a connection.
    only_new: bool,
    comment: Option<&'static str>,
}

impl Jump {
    /// In the order in which each is inserted before the existing rules.
    pub const ALL: [Self; 14] = {
        use IptablesTable::{Filter, Nat};
        const EXTERNAL: Option<&str> = Some("kubernetes externally-visible service portals");
        const HEALTH: Option<&str> = Some("kubernetes health check service ports");
        const PORTALS: Option<&str> = Some("kubernetes service portals");
        const FORWARDING: Option<&str> = Some("kubernetes forwarding rules");
        const BALANCER: Option<&str> = Some("kubernetes load balancer firewall");
        const LEAVING: Option<&str> = Some("kubernetes postrouting rules");
        [
            Self { table: Filter, from: "INPUT", to: EXTERNAL_SERVICES, only_new: true, comment: EXTERNAL },
            Self { table: Filter, from: "FORWARD", to: EXTERNAL_SERVICES, only_new: true, comment: EXTERNAL },
            Self { table: Filter, from: "INPUT", to: NODE_PORTS, only_new: false, comment: HEALTH },
            Self { table: Filter, from: "FORWARD", to: SERVICES, only_new: true, comment: PORTALS },
            Self { table: Filter, from: "OUTPUT", to: SERVICES, only_new: true, comment: PORTALS },
            Self { table: Filter, from: "FORWARD", to: FORWARD, only_new: false, comment: FORWARDING },
            Self { table: Filter, from: "INPUT", to: PROXY_FIREWALL, only_new: true, comment: BALANCER },
            Self { table: Filter, from: "OUTPUT", to: PROXY_FIREWALL, only_new: true, comment: BALANCER },
            Self { table: Filter, from: "FORWARD", to: PROXY_FIREWALL, only_new: true, comment: BALANCER },
            Self { table: Nat, from: "OUTPUT", to: SERVICES, only_new: false, comment: PORTALS },
            Self { table: Nat, from: "PREROUTING", to: SERVICES, only_new: false, comment: PORTALS },
            Self { table: Nat, from: "POSTROUTING", to: POSTROUTING, only_new: false, comment: LEAVING },
            Self { table: Filter, from: "INPUT", to: FIREWALL, only_new: false, comment: None },
            Self { table: Filter, from: "OUTPUT", to: FIREWALL, only_new: false, comment: None },
        ]
    };

    /// The jumps that cleanup deletes: kubelet needs the others.
    pub fn own() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|jump| jump.to != FIREWALL)
    }

    /// A jump of upstream's releases 1.13 to 1.19, which cleanup deletes as well.
    pub const FORMER: Self = Self {
        table: IptablesTable::Filter,
        from: "INPUT",
        to: SERVICES,
        only_new: true,
        comment: Some("kubernetes service portals"),
    };

    /// The jumps of upstream's ipvs mode that differ from ours, which cleanup deletes as well.
    pub const OF_IPVS: [Self; 5] = {
        use IptablesTable::Filter;
        const HEALTH: Option<&str> = Some("kubernetes health check rules");
        const FIREWALL: Option<&str> = Some("kube-proxy firewall rules");
        const ACCESS: Option<&str> = Some("kubernetes ipvs access filter");
        [
            Self { table: Filter, from: "INPUT", to: IPVS_NODE_PORT, only_new: false, comment: HEALTH },
            Self { table: Filter, from: "INPUT", to: PROXY_FIREWALL, only_new: false, comment: FIREWALL },
            Self { table: Filter, from: "FORWARD", to: PROXY_FIREWALL, only_new: false, comment: FIREWALL },
            Self { table: Filter, from: "INPUT", to: IPVS_FILTER, only_new: false, comment: ACCESS },
            Self { table: Filter, from: "OUTPUT", to: IPVS_OUT_FILTER, only_new: false, comment: ACCESS },
        ]
    };

    /// The rule as `iptables-save` prints it.
    pub fn saved(&self) -> String {
        format!("-A {} {}", self.from, self.rule())
    }

    /// The rule in the syntax of `iptables-restore`, without `-A` and its chain.
    pub fn rule(&self) -> String {
        let words: Vec<Cow<'_, str>> = self.arguments().into_iter().map(word).collect();
        words.join(" ")
    }

    /// The rule as arguments of the `iptables` command, which need no quotes.
    pub fn arguments(&self) -> Vec<&'static str> {
        let mut arguments = Vec::new();
        if self.only_new {
            arguments.extend(["-m", "conntrack", "--ctstate", "NEW"]);
        }
        if let Some(comment) = self.comment {
            arguments.extend(["-m", "comment", "--comment", comment]);
        }
        arguments.extend(["-j", self.to]);
        arguments
    }
}

/// Whether only we write the chain. Kubelet writes `KUBE-FIREWALL`, too.
pub fn is_ours(chain: &str) -> bool {
    const FIXED: [&str; 8] =
        [SERVICES, EXTERNAL_SERVICES, NODE_PORTS, POSTROUTING, MARK_MASQ, FORWARD, PROXY_FIREWALL, CANARY];
    FIXED.contains(&chain) || Purpose::of(chain).is_some()
}

/// The chains that `iptables-save` lists for one table. Its first line is never a chain.
pub fn saved_chains(save: &str) -> impl Iterator<Item = &str> {
    let lines = save.split('\n').skip(1);
    lines.filter_map(|line| line.strip_prefix(':')?.split(' ').next())
}

#[cfg(test)]
mod tests {
    use model::names::NamespacedName;

    use super::*;

    fn name(service: &str, port: &str, protocol: Protocol) -> ServicePortName {
        let (namespace, service) = service.split_once('/').unwrap();
        ServicePortName { service: NamespacedName::new(namespace, service), port: port.into(), protocol }
    }

    #[test]
    fn chain_names_are_those_of_upstream() {
        for (service, port, protocol, want) in [
            ("shop/web", "http", Protocol::Tcp, "67NZLRHBNDSAWJRO"),
            ("default/plain", "", Protocol::Tcp, "L7CMIJ7MLO4LHB3N"),
            ("kube-system/dns", "dns", Protocol::Udp, "2KKYJRIGYGQNRODB"),
            ("kube-system/dns", "sig", Protocol::Sctp, "IEJUNFC4DMJDZGFC"),
        ] {
            let namer = Namer::new(&name(service, port, protocol));
            for purpose in [Purpose::Cluster, Purpose::Local, Purpose::External, Purpose::Firewall] {
                let chain = namer.chain(purpose);
                assert_eq!(chain.to_string(), format!("{}{want}", purpose.prefix()));
                assert_eq!(ServiceChain::from_name(&chain.to_string()), Some(chain));
            }
        }
    }

    #[test]
    fn endpoint_chain_names_are_those_of_upstream() {
        for (service, port, endpoint, want) in [
            ("shop/web", "http", "10.244.1.5:8080", "KUBE-SEP-34ZZ2QFGO32YYXXO"),
            ("shop/six", "https", "[fd00:10:244:1::8]:8443", "KUBE-SEP-EUZSXCNKSV7BRPUM"),
        ] {
            let namer = Namer::new(&name(service, port, Protocol::Tcp));
            assert_eq!(namer.endpoint(endpoint).to_string(), want);
        }
    }

    #[test]
    fn a_chain_belongs_to_a_service_port_by_its_prefix() {
        for (chain, want) in [
            ("KUBE-SVC-67NZLRHBNDSAWJRO", Some(Purpose::Cluster)),
            ("KUBE-SVL-X", Some(Purpose::Local)),
            ("KUBE-SEP-X", Some(Purpose::Endpoint)),
            ("KUBE-FW-X", Some(Purpose::Firewall)),
            ("KUBE-EXT-X", Some(Purpose::External)),
            ("KUBE-SERVICES", None),
            ("KUBE-EXTERNAL-SERVICES", None),
            ("KUBE-FIREWALL", None),
            ("KUBE-XLB-X", None),
        ] {
            assert_eq!(Purpose::of(chain), want, "{chain}");
        }
    }

    #[test]
    fn chains_are_ordered_like_their_names() {
        let namer = Namer::new(&name("shop/web", "http", Protocol::Tcp));
        let chains = Purpose::ALL.map(|purpose| namer.chain(purpose));
        let names = chains.map(|chain| chain.to_string());
        assert!(chains.is_sorted() && names.is_sorted(), "{names:?}");
    }

    #[test]
    fn chains_of_kubelet_and_others_are_not_ours() {
        for ours in ["KUBE-SERVICES", "KUBE-PROXY-CANARY", "KUBE-SEP-X"] {
            assert!(is_ours(ours), "{ours}");
        }
        for others in ["KUBE-FIREWALL", "KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT", "INPUT", "CNI-X"] {
            assert!(!is_ours(others), "{others}");
        }
    }

    #[test]
    fn jumps_are_printed_as_iptables_save_prints_them() {
        let [first, .., last] = Jump::ALL.map(|jump| jump.saved());
        assert_eq!(
            first,
            "-A INPUT -m conntrack --ctstate NEW -m comment --comment \"kubernetes externally-visible service portals\" \
             -j KUBE-EXTERNAL-SERVICES"
        );
        assert_eq!(last, "-A OUTPUT -j KUBE-FIREWALL");
    }

    // Upstream's TestGetChainsFromTable.
    #[test]
    fn chains_are_found_in_what_iptables_save_prints() {
        let save = "# Generated by iptables-save\n*nat\n:PREROUTING ACCEPT [2136997:197881818]\n\
                    :KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES -m comment --comment \"a :B c\" -j KUBE-B\n\
                    :KUBE-B - [0:0]\nCOMMIT\n";
        assert_eq!(saved_chains(save).collect::<Vec<_>>(), ["PREROUTING", "KUBE-SERVICES", "KUBE-B"]);
        assert_eq!(saved_chains(":X - [0:0]\n").count(), 0);
    }
}
