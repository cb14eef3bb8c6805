//! New connections per service port and per endpoint, as the kernel counts them. Upstream has no such metrics. They are disabled by
//! default, since each service port and endpoint is a series.

use std::net::IpAddr;
use std::{fmt, io};

use kernel::nftables::{Connections, CounterOf};
use model::address::{Family, host_port};
use model::names::{Port, ServicePortName};

use crate::totals::Totals;

use super::text::{About, Entry, MetricType, Stability};
use super::{Collector, ip_family};

/// Series of one metric and one family. Further ones, in the order of their names, are left out and counted.
const MAX_SERIES: usize = 5_000;

const BY_SERVICE: About = About {
    name: "sluice_service_new_connections_total",
    help: "New connections to a service port",
    kind: MetricType::Counter,
    stability: Some(Stability::Alpha),
};

const BY_ENDPOINT: About = About {
    name: "sluice_endpoint_new_connections_total",
    help: "New connections that an endpoint of a service port got from this node",
    kind: MetricType::Counter,
    stability: Some(Stability::Alpha),
};

const LEFT_OUT: About = About {
    name: "sluice_new_connections_series_left_out",
    help: "Number of service ports and endpoints whose new connections are not shown because there are too many",
    kind: MetricType::Gauge,
    stability: Some(Stability::Alpha),
};

/// Reads the counters of one family at each scrape.
pub struct NewConnections {
    family: Family,
    count: Box<dyn FnMut() -> io::Result<Vec<Connections>> + Send>,
    totals: ByEndpoint,
}

impl NewConnections {
    pub fn new(family: Family, count: impl FnMut() -> io::Result<Vec<Connections>> + Send + 'static) -> Self {
        Self { family, count: Box::new(count), totals: ByEndpoint::default() }
    }
}

impl fmt::Debug for NewConnections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewConnections").field("family", &self.family).finish_non_exhaustive()
    }
}

impl Collector for NewConnections {
    fn entries(&mut self) -> Vec<Entry> {
        match (self.count)() {
            Ok(counted) => self.totals.add(counted),
            Err(error) => {
                tracing::error!(ipFamily = %self.family, err = %error, "Failed to count new connections");
            }
        }
        self.totals.entries(self.family, MAX_SERIES)
    }
}

type Endpoint = (IpAddr, Port);

/// Totals since the first scrape. A key without an endpoint has all connections of the service port.
#[derive(Debug, Default)]
struct ByEndpoint(Totals<(ServicePortName, Option<Endpoint>), CounterOf>);

impl ByEndpoint {
    fn add(&mut self, connections: Vec<Connections>) {
        let each =
            |Connections { service, endpoint, counter, count, .. }| ((service, endpoint), counter, count);
        self.0.add(connections.into_iter().map(each));
    }

    #[allow(clippy::cast_precision_loss, reason = "counts are floats to Prometheus")]
    fn entries(&self, family: Family, max: usize) -> Vec<Entry> {
        let (mut by_service, mut by_endpoint) = (Entry::new(BY_SERVICE), Entry::new(BY_ENDPOINT));
        let (mut services, mut endpoints) = (0, 0);
        for ((name, endpoint), total) in self.0.iter() {
            let (shown, entry) = match endpoint {
                None => (&mut services, &mut by_service),
                Some(_) => (&mut endpoints, &mut by_endpoint),
            };
            *shown += 1;
            if *shown > max {
                continue;
            }
            let endpoint = endpoint.map(|(ip, port)| host_port(ip, port.get()));
            let protocol = name.protocol.to_string();
            let labels = [
                ("ip_family", ip_family(family)),
                ("namespace", &*name.service.namespace),
                ("port", &*name.port),
                ("protocol", &protocol),
                ("service", &*name.service.name),
            ];
            entry.sample(
                endpoint.iter().map(|text| ("endpoint", text.as_str())).chain(labels),
                total.count as f64,
            );
        }
        let mut left_out = Entry::new(LEFT_OUT);
        let beyond = |shown: usize| shown.saturating_sub(max) as f64;
        left_out.sample([("ip_family", ip_family(family))], beyond(services) + beyond(endpoints));
        vec![by_service, by_endpoint, left_out]
    }
}

#[cfg(test)]
mod tests {
    use super::super::text::page;
    use super::*;

    use model::names::{NamespacedName, Protocol};
    use plan::nftables::elements::FrontendKey;

    fn connections(service: &str, endpoint: Option<&str>, node_port: i64, count: u64) -> Connections {
        let port = |number| Port::from_api(number).unwrap();
        Connections {
            service: ServicePortName {
                service: NamespacedName::new("shop", service),
                port: "http".into(),
                protocol: Protocol::Tcp,
            },
            endpoint: endpoint.map(|ip| (ip.parse().unwrap(), port(80))),
            counter: CounterOf::Frontend(FrontendKey {
                ip: None,
                protocol: Protocol::Tcp,
                port: port(node_port),
            }),
            count,
            weight: None,
        }
    }

    fn samples(totals: &ByEndpoint, max: usize) -> Vec<String> {
        let page = page(totals.entries(Family::V4, max));
        page.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    #[test]
    fn totals_outlive_the_elements_that_were_counted() {
        let mut totals = ByEndpoint::default();
        totals.add(vec![
            connections("cart", None, 1, 5),
            connections("cart", None, 2, 2),
            connections("cart", Some("10.0.0.1"), 1, 5),
        ]);
        totals.add(vec![connections("cart", None, 1, 1), connections("cart", None, 2, 3)]);
        assert_eq!(
            samples(&totals, 10),
            [
                r#"sluice_new_connections_series_left_out{ip_family="IPv4"} 0"#,
                r#"sluice_service_new_connections_total{ip_family="IPv4",namespace="shop",port="http",protocol="TCP",service="cart"} 9"#,
            ],
            "seven, then one at an element that was replaced and one more at the other; the endpoint is gone"
        );
    }

    #[test]
    fn series_beyond_the_limit_are_left_out_and_counted() {
        let mut totals = ByEndpoint::default();
        totals.add(vec![
            connections("a", None, 1, 1),
            connections("a", Some("10.0.0.1"), 1, 1),
            connections("b", None, 2, 1),
            connections("b", Some("10.0.0.1"), 2, 1),
        ]);
        let shown = samples(&totals, 1);
        assert_eq!(shown.len(), 3, "{shown:?}");
        assert!(shown[0].contains(r#"{endpoint="10.0.0.1:80","#) && shown[0].contains(r#"service="a""#));
        assert!(shown[1].ends_with(" 2"));
    }
}
