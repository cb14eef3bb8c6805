//! The output of `--once`.

use super::meter::{AddressRate, Rates, Row};
use super::text::{rate, share_and_due, share_title, total};

pub fn json(rates: &Rates) -> serde_json::Result<String> {
    Ok(serde_json::to_string_pretty(rates)? + "\n")
}

/// A line for each service port, followed by one for each of its endpoints.
pub fn text(rates: &Rates) -> String {
    let name = |row: &Row| format!("{}/{}", row.name, row.name.protocol);
    let widest = |lengths: &mut dyn Iterator<Item = usize>| lengths.max().unwrap_or_default();
    let names = widest(&mut rates.rows.iter().map(|row| name(row).chars().count())).max("SERVICE PORT".len());
    let parts = rates.rows.iter().flat_map(|row| &row.endpoints);
    let addresses = widest(&mut parts.map(|part| part.address.len())).max("ENDPOINT".len());
    let title = share_title(rates.rows.iter().flat_map(|row| &row.endpoints));
    let shares = title.len();
    let line = |name: &str, endpoint: &str, rate: &str, share: &str, total: &str| {
        format!("{name:<names$}  {endpoint:<addresses$}  {rate:>8}  {share:>shares$}  {total:>11}\n")
    };
    let mut lines = line("SERVICE PORT", "ENDPOINT", "NEW/S", title, "CONNECTIONS");
    for row in &rates.rows {
        lines += &line(&name(row), "", &rate(row.flow.rate), "", &total(row.flow.total));
        for part in &row.endpoints {
            let AddressRate { address, flow, .. } = part;
            lines += &line("", address, &rate(flow.rate), &share_and_due(part), &total(flow.total));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::meter::Meter;
    use super::super::meter::tests::{page, service_port};
    use super::*;

    fn rates() -> Rates {
        let at = |count: u64| {
            page(vec![service_port(
                "cart",
                &[(
                    "10.96.0.10:80",
                    10 * count,
                    &[("10.244.0.5:8080", 4 * count), ("10.244.0.6:8080", 6 * count)],
                )],
            )])
        };
        let mut meter = Meter::default();
        meter.update(at(1), Duration::ZERO);
        meter.update(at(2), Duration::from_secs(1))
    }

    #[test]
    fn the_text_is_a_table() {
        assert_eq!(
            text(&rates()),
            "\
SERVICE PORT        ENDPOINT            NEW/S  SHARE  CONNECTIONS
shop/cart:http/TCP                         10                  20
                    10.244.0.6:8080       6.0    60%           12
                    10.244.0.5:8080       4.0    40%            8
"
        );
    }

    #[test]
    fn the_json_has_every_rate() {
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&json(&rates()).unwrap()).unwrap(),
            serde_json::json!({
                "node": "node-1", "mode": "nftables", "intervalSeconds": 1.0,
                "newConnectionsPerSecond": 10.0, "connections": 20,
                "servicePorts": [{
                    "namespace": "shop", "service": "cart", "port": "http", "protocol": "TCP",
                    "newConnectionsPerSecond": 10.0, "connections": 20,
                    "frontends": [{"address": "10.96.0.10:80", "newConnectionsPerSecond": 10.0, "connections": 20}],
                    "endpoints": [
                        {"address": "10.244.0.6:8080", "newConnectionsPerSecond": 6.0, "connections": 12, "share": 0.6},
                        {"address": "10.244.0.5:8080", "newConnectionsPerSecond": 4.0, "connections": 8, "share": 0.4},
                    ],
                }],
            })
        );
    }

    #[test]
    fn there_are_no_rates_after_the_first_read() {
        let once =
            Meter::default().update(page(vec![service_port("cart", &[("a:1", 3, &[])])]), Duration::ZERO);
        let json = json(&once).unwrap();
        assert!(!json.contains("PerSecond") && !json.contains("intervalSeconds"), "{json}");
        assert!(text(&once).contains("shop/cart:http/TCP                   -"), "{}", text(&once));
    }
}
