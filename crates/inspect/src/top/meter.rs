//! Computes rates from successive reads of the counters.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use proxy::connections::ConnectionsPage;
use proxy::totals::{Total, Totals};
use serde::Serialize;

/// A port of a Service; both families are added up.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PortName {
    pub namespace: String,
    pub service: String,
    pub port: String,
    pub protocol: String,
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.service)?;
        if self.port.is_empty() { Ok(()) } else { write!(f, ":{}", self.port) }
    }
}

/// New connections per second, and connections in total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionRate {
    /// `None` after the first read.
    #[serde(rename = "newConnectionsPerSecond", skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    #[serde(rename = "connections")]
    pub total: u64,
}

/// A frontend or an endpoint of a service port.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AddressRate {
    pub address: String,
    #[serde(flatten)]
    pub flow: ConnectionRate,
    /// The share of the connections of all endpoints of the service port: by rate if that is known, else by total.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// The share that weights give the endpoint, if those of the service port differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due: Option<f64>,
}

/// A service port.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    #[serde(flatten)]
    pub name: PortName,
    #[serde(flatten)]
    pub flow: ConnectionRate,
    pub frontends: Vec<AddressRate>,
    pub endpoints: Vec<AddressRate>,
}

/// The rates of one interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rates {
    pub node: String,
    pub mode: String,
    /// The length of the interval; `None` after the first read.
    #[serde(rename = "intervalSeconds", skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    #[serde(flatten)]
    pub flow: ConnectionRate,
    /// The busiest first.
    #[serde(rename = "servicePorts")]
    pub rows: Vec<Row>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Counted {
    ServicePort,
    Frontend(String),
    Endpoint(String),
}

/// Keeps the previous counters.
#[derive(Debug, Default)]
pub struct Meter {
    /// Per counter, because each is reset on its own.
    totals: Totals<(PortName, Counted), String>,
    /// The weights of the endpoints of service ports that have different ones.
    weights: BTreeMap<PortName, BTreeMap<String, u16>>,
    last_update: Option<Duration>,
}

impl Meter {
    /// The rates since the last update. `at` is the time of the counters, since an arbitrary start.
    pub fn update(&mut self, page: ConnectionsPage, at: Duration) -> Rates {
        let ConnectionsPage { node, mode, service_ports, .. } = page;
        let mut found = Vec::new();
        self.weights.clear();
        for service_port in service_ports {
            let name = PortName {
                namespace: service_port.namespace,
                service: service_port.service,
                port: service_port.port,
                protocol: service_port.protocol,
            };
            for endpoint in service_port.endpoints {
                if let Some(weight) = endpoint.weight {
                    let weights = self.weights.entry(name.clone()).or_default();
                    weights.insert(endpoint.address.clone(), weight);
                }
                let of = Counted::Endpoint(endpoint.address);
                found.push(((name.clone(), of), endpoint.counter, endpoint.connections));
            }
            for frontend in service_port.frontends {
                let address = frontend.address;
                let of = Counted::Frontend(address.clone());
                found.push(((name.clone(), of), address.clone(), frontend.connections));
                found.push(((name.clone(), Counted::ServicePort), address, frontend.connections));
            }
        }
        self.totals.add(found);
        let seconds = self.last_update.map(|before| at.saturating_sub(before).as_secs_f64());
        self.last_update = Some(at);
        let seconds = seconds.filter(|seconds| *seconds > 0.0);
        Rates { node, mode, seconds, ..self.rates(seconds) }
    }

    fn rates(&self, seconds: Option<f64>) -> Rates {
        let mut rows: BTreeMap<&PortName, Row> = BTreeMap::new();
        let mut all = Total::default();
        for ((name, of), total) in self.totals.iter() {
            let row = rows.entry(name).or_insert_with(|| Row {
                name: name.clone(),
                flow: ConnectionRate::default(),
                frontends: Vec::new(),
                endpoints: Vec::new(),
            });
            let flow = flow(total, seconds);
            let part =
                |address: &String| AddressRate { address: address.clone(), flow, share: None, due: None };
            match of {
                Counted::ServicePort => {
                    row.flow = flow;
                    all.count += total.count;
                    all.more += total.more;
                }
                Counted::Frontend(address) => row.frontends.push(part(address)),
                Counted::Endpoint(address) => row.endpoints.push(part(address)),
            }
        }
        let mut rows: Vec<Row> = rows.into_values().collect();
        for row in &mut rows {
            set_shares(&mut row.endpoints);
            let weights = self.weights.get(&row.name);
            weights.into_iter().for_each(|weights| set_due(&mut row.endpoints, weights));
            row.endpoints.sort_by(|a, b| busiest_first(&a.flow, &b.flow));
            row.frontends.sort_by(|a, b| busiest_first(&a.flow, &b.flow));
        }
        rows.sort_by(|a, b| busiest_first(&a.flow, &b.flow));
        Rates { flow: flow(all, seconds), rows, ..Rates::default() }
    }
}

#[allow(clippy::cast_precision_loss, reason = "a rate need not be exact")]
fn flow(total: Total, seconds: Option<f64>) -> ConnectionRate {
    ConnectionRate { rate: seconds.map(|seconds| total.more as f64 / seconds), total: total.count }
}

#[allow(clippy::cast_precision_loss, reason = "a share need not be exact")]
fn set_shares(endpoints: &mut [AddressRate]) {
    let weight = |part: &AddressRate| part.flow.rate.unwrap_or(part.flow.total as f64);
    let all: f64 = endpoints.iter().map(weight).sum();
    for endpoint in endpoints {
        endpoint.share = (all > 0.0).then(|| weight(endpoint) / all);
    }
}

/// Weights distribute the connections of a family among its endpoints: its part of those of the service port, or all if none were counted.
fn set_due(endpoints: &mut [AddressRate], weights: &BTreeMap<String, u16>) {
    for is_v6 in [false, true] {
        let of_family = |address: &str| address.starts_with('[') == is_v6;
        let its_weights = weights.iter().filter(|(address, _)| of_family(address));
        let all: f64 = its_weights.map(|(_, weight)| f64::from(*weight)).sum();
        let its = |it: &&mut AddressRate| of_family(&it.address);
        let part: Option<f64> = endpoints.iter_mut().filter(its).map(|it| it.share).sum();
        for endpoint in endpoints.iter_mut().filter(its) {
            let weight = weights.get(&endpoint.address).map(|weight| f64::from(*weight));
            endpoint.due = weight.map(|weight| part.unwrap_or(1.0) * weight / all);
        }
    }
}

/// Equal rates and totals keep their order, which is by name, in a stable sort.
pub fn busiest_first(a: &ConnectionRate, b: &ConnectionRate) -> Ordering {
    let rate = |flow: &ConnectionRate| flow.rate.unwrap_or_default();
    rate(b).total_cmp(&rate(a)).then(b.total.cmp(&a.total))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::net::SocketAddr;

    use model::address::Family;
    use model::names::Port;
    use plan::mark::Mark;
    use plan::nftables::desired::DesiredTable;
    use plan::nftables::program::ProgramSettings;
    use plan::nftables::sets::Balancer;
    use proxy::connections::{EndpointConnections, FrontendConnections, ServicePortConnections};
    use testkit::routings;

    /// Frontends with the endpoints of a list each, all with their counts.
    pub type Counts<'a> = &'a [(&'a str, u64, &'a [(&'a str, u64)])];

    pub fn service_port(service: &str, counts: Counts<'_>) -> ServicePortConnections {
        let endpoint = |counter: &str, &(address, connections): &(&str, u64)| EndpointConnections {
            address: address.into(),
            counter: counter.into(),
            connections,
            weight: None,
        };
        let frontend = |&(address, connections, _): &(&str, u64, &[_])| FrontendConnections {
            address: address.into(),
            connections,
        };
        let endpoints = counts.iter().flat_map(|(frontend, _, endpoints)| {
            endpoints.iter().map(move |counted| endpoint(frontend, counted))
        });
        ServicePortConnections {
            namespace: "shop".into(),
            service: service.into(),
            port: "http".into(),
            protocol: "TCP".into(),
            endpoints: endpoints.collect(),
            frontends: counts.iter().map(frontend).collect(),
        }
    }

    pub fn page(service_ports: Vec<ServicePortConnections>) -> ConnectionsPage {
        ConnectionsPage {
            node: "node-1".into(),
            mode: "nftables".into(),
            service_ports,
            ..ConnectionsPage::default()
        }
    }

    fn rates(parts: &[AddressRate]) -> Vec<(&str, Option<f64>, u64, Option<f64>)> {
        let each = |part: &AddressRate| (part.flow.rate, part.flow.total, part.share);
        parts.iter().map(|part| (part.address.as_str(), each(part).0, each(part).1, each(part).2)).collect()
    }

    #[test]
    fn the_frontends_and_the_endpoints_of_a_service_port_are_added_up() {
        let mut meter = Meter::default();
        let first = meter.update(
            page(vec![service_port(
                "cart",
                &[("10.0.0.1:80", 10, &[("a", 4), ("b", 6)]), ("*:30080", 5, &[("a", 5)])],
            )]),
            Duration::ZERO,
        );
        assert_eq!(first.flow, ConnectionRate { rate: None, total: 15 });
        assert_eq!(rates(&first.rows[0].endpoints), [("a", None, 9, Some(0.6)), ("b", None, 6, Some(0.4))]);

        let second = meter.update(
            page(vec![
                service_port(
                    "cart",
                    &[("10.0.0.1:80", 18, &[("a", 6), ("b", 12)]), ("*:30080", 1, &[("a", 1)])],
                ),
                service_port("new", &[("10.0.0.2:80", 20, &[])]),
            ]),
            Duration::from_secs(2),
        );
        assert_eq!(second.seconds, Some(2.0));
        assert_eq!(second.flow, ConnectionRate { rate: Some(14.5), total: 44 });
        let names: Vec<_> = second.rows.iter().map(|row| row.name.to_string()).collect();
        assert_eq!(names, ["shop/new:http", "shop/cart:http"], "the busiest first");
        let cart = &second.rows[1];
        assert_eq!(
            cart.flow,
            ConnectionRate { rate: Some(4.5), total: 24 },
            "8 more, and 1 at a frontend whose counter was reset"
        );
        assert_eq!(
            rates(&cart.frontends),
            [("10.0.0.1:80", Some(4.0), 18, None), ("*:30080", Some(0.5), 6, None)]
        );
        let [b, a] = &cart.endpoints[..] else { panic!("two endpoints expected") };
        assert_eq!((b.flow.rate, b.flow.total), (Some(3.0), 12));
        assert_eq!((a.flow.rate, a.flow.total, a.share), (Some(1.5), 12, Some(1.0 / 3.0)));
    }

    #[test]
    fn the_shares_that_are_due_follow_the_weights_of_each_family() {
        let mut counted = service_port("cart", &[]);
        let mut count = |family, slice: &str, counts: &[(&str, u64)]| {
            let objects =
                format!("service shop/cart 10.96.0.1,fd00:96::1 http:80\nslice shop/cart-1 of cart {slice}");
            let mut table = DesiredTable::new(ProgramSettings {
                family,
                balancer: Balancer::Slots,
                mark: Mark::from_bit(14).unwrap(),
                masquerade_all: false,
                from_pod: None,
                node_ports_everywhere: true,
                can_hash: true,
            });
            table.accept(routings(family, &objects).into_iter().map(|(name, it)| (name, Some(it))).collect());
            let weights = table.weights().into_values().next().unwrap();
            let of = |address: &SocketAddr| (address.ip(), Port::from_api(address.port().into()).unwrap());
            counted.endpoints.extend(counts.iter().map(|(address, connections)| EndpointConnections {
                address: (*address).into(),
                counter: "10.96.0.1:80".into(),
                connections: *connections,
                weight: weights.get(&of(&address.parse().unwrap())).copied(),
            }));
        };
        let v4 = [("10.0.0.1:80", 20), ("10.0.0.2:80", 40)];
        count(Family::V4, "http:80 weights=1,10.0.0.2=3 | 10.0.0.1 | 10.0.0.2", &v4);
        let v6 = [("[fd00::1]:80", 10), ("[fd00::2]:80", 10), ("[fd00::3]:80", 0)];
        count(Family::V6, "http:80 weights=10,fd00::3=20 | fd00::1 | fd00::2 | fd00::3", &v6);
        let dues = |counted: &ServicePortConnections| -> BTreeMap<String, f64> {
            let rates = Meter::default().update(page(vec![counted.clone()]), Duration::ZERO);
            let endpoints = rates.rows.into_iter().flat_map(|row| row.endpoints);
            endpoints.map(|it| (it.address, (it.due.unwrap() * 1000.0).round() / 1000.0)).collect()
        };
        let found: Vec<f64> = dues(&counted).into_values().collect();
        // Three quarters of the connections are of IPv4.
        assert_eq!(found, [0.188, 0.563, 0.063, 0.063, 0.125]);
        counted.endpoints.truncate(2);
        assert_eq!(dues(&counted).into_values().collect::<Vec<_>>(), [0.25, 0.75]);
        counted.endpoints.iter_mut().for_each(|it| it.connections = 0);
        assert_eq!(dues(&counted).into_values().collect::<Vec<_>>(), [0.25, 0.75]);
    }

    #[test]
    fn a_removed_service_port_is_not_listed() {
        let mut meter = Meter::default();
        meter.update(page(vec![service_port("cart", &[("10.0.0.1:80", 10, &[("a", 4)])])]), Duration::ZERO);
        let empty = meter.update(page(Vec::new()), Duration::from_secs(1));
        assert_eq!((empty.rows.len(), empty.flow), (0, ConnectionRate { rate: Some(0.0), total: 0 }));
    }
}
