//! Counts of one moment after another become rates.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use proxy::connections::ConnectionsPage;
use proxy::totals::{Total, Totals};
use serde::Serialize;

/// One port of a Service, in both families together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Name {
    pub namespace: String,
    pub service: String,
    pub port: String,
    pub protocol: String,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.service)?;
        if self.port.is_empty() { Ok(()) } else { write!(f, ":{}", self.port) }
    }
}

/// How many connections, and how fast they come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionRate {
    /// Unknown after one look only.
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
    /// Of what all endpoints of the service port got: per second if that is known, and in total if not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    #[serde(flatten)]
    pub name: Name,
    #[serde(flatten)]
    pub flow: ConnectionRate,
    pub frontends: Vec<AddressRate>,
    pub endpoints: Vec<AddressRate>,
}

/// All there is to see at one moment; the busiest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Picture {
    pub node: String,
    pub mode: String,
    /// Time that rates are over.
    #[serde(rename = "intervalSeconds", skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    #[serde(flatten)]
    pub flow: ConnectionRate,
    #[serde(rename = "servicePorts")]
    pub rows: Vec<Row>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Of {
    All,
    Frontend(String),
    Endpoint(String),
}

/// Remembers the look before.
#[derive(Debug, Default)]
pub struct Meter {
    /// By frontend: that is where an element counts.
    totals: Totals<(Name, Of), String>,
    looked: Option<Duration>,
}

impl Meter {
    /// What is to be seen, given the counts at this time since some beginning.
    pub fn look(&mut self, page: ConnectionsPage, at: Duration) -> Picture {
        let ConnectionsPage { node, mode, service_ports, .. } = page;
        let mut found = Vec::new();
        for service_port in service_ports {
            let name = Name {
                namespace: service_port.namespace,
                service: service_port.service,
                port: service_port.port,
                protocol: service_port.protocol,
            };
            for frontend in service_port.frontends {
                let address = frontend.address;
                for endpoint in frontend.endpoints {
                    let of = Of::Endpoint(endpoint.address);
                    found.push(((name.clone(), of), address.clone(), endpoint.connections));
                }
                let of = Of::Frontend(address.clone());
                found.push(((name.clone(), of), address.clone(), frontend.connections));
                found.push(((name.clone(), Of::All), address, frontend.connections));
            }
        }
        self.totals.add(found);
        let seconds = self.looked.map(|before| at.saturating_sub(before).as_secs_f64());
        self.looked = Some(at);
        let seconds = seconds.filter(|seconds| *seconds > 0.0);
        Picture { node, mode, seconds, ..self.picture(seconds) }
    }

    fn picture(&self, seconds: Option<f64>) -> Picture {
        let mut rows: BTreeMap<&Name, Row> = BTreeMap::new();
        let mut all = Total::default();
        for ((name, of), total) in self.totals.iter() {
            let row = rows.entry(name).or_insert_with(|| Row {
                name: name.clone(),
                flow: ConnectionRate::default(),
                frontends: Vec::new(),
                endpoints: Vec::new(),
            });
            let flow = flow(total, seconds);
            let part = |address: &String| AddressRate { address: address.clone(), flow, share: None };
            match of {
                Of::All => {
                    row.flow = flow;
                    all.count += total.count;
                    all.more += total.more;
                }
                Of::Frontend(address) => row.frontends.push(part(address)),
                Of::Endpoint(address) => row.endpoints.push(part(address)),
            }
        }
        let mut rows: Vec<Row> = rows.into_values().collect();
        for row in &mut rows {
            share_out(&mut row.endpoints);
            row.endpoints.sort_by(|a, b| busiest_first(&a.flow, &b.flow));
            row.frontends.sort_by(|a, b| busiest_first(&a.flow, &b.flow));
        }
        rows.sort_by(|a, b| busiest_first(&a.flow, &b.flow));
        Picture { flow: flow(all, seconds), rows, ..Picture::default() }
    }
}

#[allow(clippy::cast_precision_loss, reason = "a rate is no exact number")]
fn flow(total: Total, seconds: Option<f64>) -> ConnectionRate {
    ConnectionRate { rate: seconds.map(|seconds| total.more as f64 / seconds), total: total.count }
}

#[allow(clippy::cast_precision_loss, reason = "a share is no exact number")]
fn share_out(endpoints: &mut [AddressRate]) {
    let weight = |part: &AddressRate| part.flow.rate.unwrap_or(part.flow.total as f64);
    let all: f64 = endpoints.iter().map(weight).sum();
    for endpoint in endpoints {
        endpoint.share = (all > 0.0).then(|| weight(endpoint) / all);
    }
}

/// Equals stay in the order of their names.
pub fn busiest_first(a: &ConnectionRate, b: &ConnectionRate) -> Ordering {
    let rate = |flow: &ConnectionRate| flow.rate.unwrap_or_default();
    rate(b).total_cmp(&rate(a)).then(b.total.cmp(&a.total))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use proxy::connections::{EndpointConnections, FrontendConnections, ServicePortConnections};

    /// Frontends with their endpoints, each with its count.
    pub type Counts<'a> = &'a [(&'a str, u64, &'a [(&'a str, u64)])];

    pub fn service_port(service: &str, counts: Counts<'_>) -> ServicePortConnections {
        let endpoint = |&(address, connections): &(&str, u64)| EndpointConnections {
            address: address.into(),
            connections,
        };
        let frontend = |&(address, connections, endpoints): &(&str, u64, &[_])| FrontendConnections {
            address: address.into(),
            connections,
            endpoints: endpoints.iter().map(endpoint).collect(),
        };
        ServicePortConnections {
            namespace: "shop".into(),
            service: service.into(),
            port: "http".into(),
            protocol: "TCP".into(),
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
    fn frontends_of_a_service_port_add_up_and_so_do_its_endpoints() {
        let mut meter = Meter::default();
        let first = meter.look(
            page(vec![service_port(
                "cart",
                &[("10.0.0.1:80", 10, &[("a", 4), ("b", 6)]), ("*:30080", 5, &[("a", 5)])],
            )]),
            Duration::ZERO,
        );
        assert_eq!(first.flow, ConnectionRate { rate: None, total: 15 });
        assert_eq!(rates(&first.rows[0].endpoints), [("a", None, 9, Some(0.6)), ("b", None, 6, Some(0.4))]);

        let second = meter.look(
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
            "8 more and, at a frontend made anew, 1"
        );
        assert_eq!(
            rates(&cart.frontends),
            [("10.0.0.1:80", Some(4.0), 18, None), ("*:30080", Some(0.5), 6, None)]
        );
        let [b, a] = &cart.endpoints[..] else { panic!("two of them") };
        assert_eq!((b.flow.rate, b.flow.total), (Some(3.0), 12));
        assert_eq!((a.flow.rate, a.flow.total, a.share), (Some(1.5), 12, Some(1.0 / 3.0)));
    }

    #[test]
    fn what_is_gone_is_not_shown() {
        let mut meter = Meter::default();
        meter.look(page(vec![service_port("cart", &[("10.0.0.1:80", 10, &[("a", 4)])])]), Duration::ZERO);
        let empty = meter.look(page(Vec::new()), Duration::from_secs(1));
        assert_eq!((empty.rows.len(), empty.flow), (0, ConnectionRate { rate: Some(0.0), total: 0 }));
    }
}
