//! Finds parts of a valid configuration that do not fit this node. Messages have upstream's text: operators search their logs
//! for it.

use std::net::IpAddr;

use ipnet::IpNet;
use model::address::{Family, parse_cidr};
use settings::config::{Config, DetectLocalMode};

/// The properties of this node that the configuration is checked against.
#[derive(Clone, Copy, Debug)]
pub struct NodeProperties<'a> {
    pub primary: Family,
    pub dual_stack: bool,
    /// With `primary` resolved to the node's addresses.
    pub node_port_addresses: &'a [IpNet],
    pub pod_cidrs: &'a [String],
}

/// Checks the node-port addresses; `None` if they fit.
pub fn node_ports(config: &Config, node: NodeProperties<'_>) -> Option<String> {
    let NodeProperties { primary, node_port_addresses, pod_cidrs, .. } = node;
    let families: Vec<_> = node_port_addresses.iter().copied().map(Family::of_net).collect();
    let (first, second) = (primary, primary.other());
    if families.is_empty() {
        return Some(
            "nodePortAddresses is unset; NodePort connections will be accepted on all local IPs. \
             Consider using `--nodeport-addresses primary`"
                .into(),
        );
    }
    let lists = [
        families_of(&config.cluster_cidrs),
        families.clone(),
        config.ipvs.exclude_cidrs.iter().copied().map(Family::of_net).collect(),
        families_of(pod_cidrs),
    ];
    let appears_dual_stack = lists.iter().any(|list| list.contains(&first) && list.contains(&second));
    if appears_dual_stack && families.iter().all(|family| *family == first) {
        Some(format!(
            "cluster appears to be dual-stack but nodePortAddresses contains only {first} addresses; \
             NodePort connections will be accepted on all local {second} IPs"
        ))
    } else if !families.contains(&first) {
        Some(format!(
            "cluster appears to be {first}-primary but nodePortAddresses contains only {second} addresses; \
             NodePort connections will be accepted on all local {first} IPs"
        ))
    } else {
        None
    }
}

/// Settings with addresses of a family that is not this node's primary one.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FamilyMismatch {
    pub messages: Vec<String>,
    /// Whether the proxy cannot work with these settings.
    pub is_fatal: bool,
}

impl FamilyMismatch {
    /// All messages in one line, in brackets if there are several.
    pub fn joined(&self) -> String {
        match &self.messages[..] {
            [only] => only.clone(),
            all => format!("[{}]", all.join(", ")),
        }
    }
}

pub fn families(config: &Config, node: NodeProperties<'_>) -> FamilyMismatch {
    let NodeProperties { primary, dual_stack, pod_cidrs, .. } = node;
    let wrong = primary.other();
    let kind = if dual_stack { "primary" } else { "only" };
    let mut found = FamilyMismatch::default();
    let mut add = |what: &str, is_fatal: bool| {
        found.messages.push(format!("cluster is {primary}-{kind} but {what}"));
        found.is_fatal |= is_fatal;
    };
    let all_wrong = |list: &[Family]| !list.is_empty() && list.iter().all(|family| *family == wrong);

    if all_wrong(&families_of(&config.cluster_cidrs)) {
        let is_fatal = matches!(config.detect_local, DetectLocalMode::ClusterCidr(_)) && !dual_stack;
        add(&format!("clusterCIDRs contains only {wrong} addresses"), is_fatal);
    }
    if all_wrong(&families_of(pod_cidrs)) {
        let is_fatal = config.detect_local == DetectLocalMode::NodeCidr;
        add(&format!("node.spec.podCIDRs contains only {wrong} addresses"), is_fatal);
    }
    let source_vip = config.winkernel_source_vip.parse::<IpAddr>();
    if source_vip.is_ok_and(|ip| Family::of(ip) == wrong) {
        add(&format!("winkernel.sourceVip is {wrong}"), false);
    }
    if dual_stack {
        return found;
    }
    let exclude: Vec<_> = config.ipvs.exclude_cidrs.iter().copied().map(Family::of_net).collect();
    if all_wrong(&exclude) {
        add(&format!("ipvs.excludeCIDRs contains only {wrong} addresses"), false);
    }
    let is_wrong = |ip: IpAddr| Family::of(ip) == wrong && !ip.is_unspecified();
    if config.healthz_bind_address.is_some_and(|address| is_wrong(address.ip())) {
        add(&format!("healthzBindAddress is {wrong}"), false);
    }
    if is_wrong(config.metrics_bind_address.ip()) {
        add(&format!("metricsBindAddress is {wrong}"), false);
    }
    found
}

/// Skips invalid ranges, which other checks report.
fn families_of(cidrs: &[String]) -> Vec<Family> {
    cidrs.iter().filter_map(|text| parse_cidr(text)).map(Family::of_net).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use settings::config::{self, Completed, KubeProxyConfiguration};
    use settings::gates::Gates;

    fn config(change: impl FnOnce(&mut KubeProxyConfiguration)) -> Config {
        let mut config = KubeProxyConfiguration::default();
        config.apply_defaults();
        "nftables".clone_into(&mut config.mode);
        "ClusterCIDR".clone_into(&mut config.detect_local_mode);
        config.nftables.sync_period = settings::duration::Duration::from(std::time::Duration::from_secs(30));
        change(&mut config);
        let cidrs: Vec<_> =
            config.cluster_cidr.split(',').filter(|text| !text.is_empty()).map(str::to_owned).collect();
        let gates = Gates::resolve(&std::collections::BTreeMap::new()).unwrap();
        config::validate(Completed { config, cluster_cidrs: cidrs, gates, min_sync_is_default: true })
            .unwrap()
    }

    fn properties<'a>(
        primary: Family,
        dual_stack: bool,
        addresses: &'a [IpNet],
        pod_cidrs: &'a [String],
    ) -> NodeProperties<'a> {
        NodeProperties { primary, dual_stack, node_port_addresses: addresses, pod_cidrs }
    }

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn node_port_addresses_that_do_not_fit_the_node_are_reported() {
        for (primary, addresses, cluster_cidr, want) in [
            (
                Family::V4,
                &[][..],
                "",
                "nodePortAddresses is unset; NodePort connections will be accepted on all local IPs. \
                 Consider using `--nodeport-addresses primary`",
            ),
            (Family::V4, &["10.0.0.1/32"], "10.1.0.0/16", ""),
            (Family::V4, &["10.0.0.1/32", "fd00::1/128"], "10.1.0.0/16,fd01::/48", ""),
            (
                Family::V4,
                &["10.0.0.1/32"],
                "10.1.0.0/16,fd01::/48",
                "cluster appears to be dual-stack but nodePortAddresses contains only IPv4 addresses; \
                 NodePort connections will be accepted on all local IPv6 IPs",
            ),
            (
                Family::V6,
                &["10.0.0.1/32"],
                "",
                "cluster appears to be IPv6-primary but nodePortAddresses contains only IPv4 addresses; \
                 NodePort connections will be accepted on all local IPv6 IPs",
            ),
        ] {
            let config = config(|config| cluster_cidr.clone_into(&mut config.cluster_cidr));
            let addresses = nets(addresses);
            let found = node_ports(&config, properties(primary, true, &addresses, &[]));
            assert_eq!(found.unwrap_or_default(), want, "{primary} {addresses:?} {cluster_cidr:?}");
        }
    }

    #[test]
    fn ranges_of_the_wrong_family_are_fatal_only_where_they_are_needed() {
        for (mode, primary, dual_stack, cluster_cidr, pod_cidr, want, is_fatal) in [
            ("ClusterCIDR", Family::V4, true, "10.0.0.0/8", "", "", false),
            (
                "ClusterCIDR",
                Family::V4,
                false,
                "fd00::/48",
                "",
                "cluster is IPv4-only but clusterCIDRs contains only IPv6 addresses",
                true,
            ),
            (
                "ClusterCIDR",
                Family::V4,
                true,
                "fd00::/48",
                "",
                "cluster is IPv4-primary but clusterCIDRs contains only IPv6 addresses",
                false,
            ),
            (
                "NodeCIDR",
                Family::V6,
                true,
                "10.0.0.0/8",
                "10.0.1.0/24",
                "[cluster is IPv6-primary but clusterCIDRs contains only IPv4 addresses, \
                 cluster is IPv6-primary but node.spec.podCIDRs contains only IPv4 addresses]",
                true,
            ),
        ] {
            let config = config(|config| {
                mode.clone_into(&mut config.detect_local_mode);
                cluster_cidr.clone_into(&mut config.cluster_cidr);
            });
            let pod_cidrs: Vec<_> =
                Some(pod_cidr.to_owned()).filter(|text| !text.is_empty()).into_iter().collect();
            let found = families(&config, properties(primary, dual_stack, &[], &pod_cidrs));
            let messages = if found.messages.is_empty() { String::new() } else { found.joined() };
            assert_eq!((messages.as_str(), found.is_fatal), (want, is_fatal));
        }
    }

    #[test]
    fn bind_addresses_of_the_wrong_family_are_reported_in_single_stack() {
        let config = config(|config| {
            "[fd00::1]:10256".clone_into(&mut config.healthz_bind_address);
            "[::1]:10249".clone_into(&mut config.metrics_bind_address);
        });
        assert_eq!(families(&config, properties(Family::V4, true, &[], &[])), FamilyMismatch::default());
        let found = families(&config, properties(Family::V4, false, &[], &[]));
        let want = "[cluster is IPv4-only but healthzBindAddress is IPv6, \
                    cluster is IPv4-only but metricsBindAddress is IPv6]";
        assert_eq!((found.joined().as_str(), found.is_fatal), (want, false));
    }
}
