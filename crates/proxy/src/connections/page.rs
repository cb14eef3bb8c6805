//! The new connections of a node; `/debug/sluice/connections`.

use std::collections::BTreeMap;
use std::time::Duration;

use kernel::nftables::{Connections, CounterOf};
use model::address::host_port;
use model::names::ServicePortName;
use plan::nftables::elements;
use serde::{Deserialize, Serialize};

/// All counters of new connections, of both families.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionsPage {
    pub node: String,
    pub mode: String,
    /// When the kernel was read, since the proxy started. Two pages with the same time have the same count.
    pub counted_at: Duration,
    /// The time until the proxy counts again: a request before that gets the same count.
    pub good_for: Duration,
    /// Service ports that have endpoints, sorted by name.
    pub service_ports: Vec<ServicePortConnections>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePortConnections {
    pub namespace: String,
    pub service: String,
    /// Empty for the only port of a Service that does not name it.
    pub port: String,
    pub protocol: String,
    pub frontends: Vec<FrontendConnections>,
    pub endpoints: Vec<EndpointConnections>,
}

/// The connections to one frontend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FrontendConnections {
    /// `10.96.0.10:80`; a node port has no address of its own: `*:30080`, and `[*]:30080` in IPv6.
    pub address: String,
    /// Since its element was added to the kernel.
    pub connections: u64,
}

/// The connections that an endpoint got. It may have several counters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointConnections {
    pub address: String,
    /// The endpoint list and the slot in the nftables mode, the frontend in the ipvs mode.
    pub counter: String,
    /// Since the counter was added to the kernel. In the nftables mode, connections that session affinity assigns are not counted.
    pub connections: u64,
    /// The weight of the endpoint, if those of its service port differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
}

/// The connections of a service port: by frontend; by endpoint and counter.
#[derive(Default)]
struct Counts {
    frontends: BTreeMap<String, u64>,
    endpoints: BTreeMap<(String, String), (u64, Option<u16>)>,
}

impl ConnectionsPage {
    /// `is_v6` distinguishes the node ports of the families.
    pub fn new(node: &str, mode: &str, counted: impl IntoIterator<Item = (Connections, bool)>) -> Self {
        let mut found: BTreeMap<ServicePortName, Counts> = BTreeMap::new();
        for (Connections { service, endpoint, counter, count, weight }, is_v6) in counted {
            let counts = found.entry(service).or_default();
            let counter = match counter {
                CounterOf::Frontend(frontend) => address(&frontend, is_v6),
                CounterOf::Slot { list, slot } => format!("{list:#010x}/{slot}"),
            };
            match endpoint {
                None => *counts.frontends.entry(counter).or_default() += count,
                Some((ip, port)) => {
                    let of = (host_port(ip, port.get()), counter);
                    counts.endpoints.entry(of).or_insert((0, weight)).0 += count;
                }
            }
        }
        let service_ports = found.into_iter().map(|(name, counts)| ServicePortConnections {
            namespace: name.service.namespace.to_string(),
            service: name.service.name.to_string(),
            port: name.port.to_string(),
            protocol: name.protocol.to_string(),
            frontends: counts
                .frontends
                .into_iter()
                .map(|(address, connections)| FrontendConnections { address, connections })
                .collect(),
            endpoints: counts
                .endpoints
                .into_iter()
                .map(|((address, counter), (connections, weight))| EndpointConnections {
                    address,
                    counter,
                    connections,
                    weight,
                })
                .collect(),
        });
        Self {
            node: node.to_owned(),
            mode: mode.to_owned(),
            service_ports: service_ports.collect(),
            ..Self::default()
        }
    }
}

fn address(frontend: &elements::FrontendKey, is_v6: bool) -> String {
    match frontend.ip {
        Some(ip) => host_port(ip, frontend.port.get()),
        None if is_v6 => format!("[*]:{}", frontend.port),
        None => format!("*:{}", frontend.port),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use model::names::{NamespacedName, Port, Protocol};

    #[test]
    fn counters_of_both_families_become_one_page() {
        let port = |number| Port::from_api(number).unwrap();
        let frontend = |ip: Option<&str>, number| {
            let ip = ip.map(|ip| ip.parse().unwrap());
            CounterOf::Frontend(elements::FrontendKey { ip, protocol: Protocol::Tcp, port: port(number) })
        };
        let counted = |endpoint: Option<&str>, counter, count| Connections {
            service: ServicePortName {
                service: NamespacedName::new("shop", "cart"),
                port: "http".into(),
                protocol: Protocol::Tcp,
            },
            endpoint: endpoint.map(|ip| (ip.parse().unwrap(), port(8080))),
            counter,
            count,
            weight: None,
        };
        let mut page = ConnectionsPage::new(
            "node-1",
            "nftables",
            [
                (counted(None, frontend(Some("10.96.0.10"), 80), 5), false),
                (counted(Some("10.244.0.5"), CounterOf::Slot { list: 2, slot: 1 }, 3), false),
                (counted(Some("10.244.0.5"), CounterOf::Slot { list: 2, slot: 1 }, 2), false),
                (counted(Some("10.244.0.5"), CounterOf::Slot { list: 3, slot: 0 }, 1), false),
                (counted(None, frontend(None, 30080), 1), false),
                (counted(None, frontend(None, 30080), 2), true),
                (counted(Some("fd00::5"), frontend(None, 30080), 2), true),
            ],
        );
        page.counted_at = Duration::from_millis(1_500);
        let json = serde_json::to_value(&page).unwrap();
        assert_eq!(
            json,
            serde_json::json!({"node": "node-1", "mode": "nftables",
            "countedAt": {"secs": 1, "nanos": 500_000_000}, "goodFor": {"secs": 0, "nanos": 0},
            "servicePorts": [{
                "namespace": "shop", "service": "cart", "port": "http", "protocol": "TCP",
                "frontends": [
                    {"address": "*:30080", "connections": 1},
                    {"address": "10.96.0.10:80", "connections": 5},
                    {"address": "[*]:30080", "connections": 2},
                ],
                "endpoints": [
                    {"address": "10.244.0.5:8080", "counter": "0x00000002/1", "connections": 5},
                    {"address": "10.244.0.5:8080", "counter": "0x00000003/0", "connections": 1},
                    {"address": "[fd00::5]:8080", "counter": "[*]:30080", "connections": 2},
                ],
            }]})
        );
        assert_eq!(serde_json::from_value::<ConnectionsPage>(json).unwrap(), page);
    }
}
