//! The query of `kube-proxy explain` about a packet, and its encoding in the debug API.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, anyhow, bail};
use kernel::interfaces;
use model::address::{Family, parse_ip};
use model::names::Protocol;
use plan::explain::{Packet, Unanswerable};
use settings::go::os_error;

/// Describes a packet to be explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketQuery {
    /// `None` if the node itself sends the packet, from the address that it chooses.
    pub source: Option<IpAddr>,
    /// `None` if it is not known.
    pub source_port: Option<u16>,
    pub protocol: Protocol,
    pub destination: SocketAddr,
    pub interface: Option<String>,
}

/// An address, with a port or without.
pub fn parse_source(text: &str) -> Option<(IpAddr, Option<u16>)> {
    let with_port = || text.parse().ok().map(|at: SocketAddr| (at.ip(), Some(at.port())));
    parse_ip(text).map(|ip| (ip, None)).or_else(with_port)
}

impl PacketQuery {
    pub fn new(
        source: Option<(IpAddr, Option<u16>)>,
        protocol: Protocol,
        destination: SocketAddr,
        interface: Option<&str>,
    ) -> anyhow::Result<Self> {
        if destination.port() == 0 {
            bail!("there is no port 0");
        }
        // The names that the kernel allows, except for characters that would need quoting in the query.
        let is_invalid = |name: &&str| {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-@:".contains(c);
            name.is_empty() || name.len() > 15 || !name.chars().all(is_plain)
        };
        if let Some(name) = interface.filter(is_invalid) {
            bail!("{name:?} is not the name of an interface");
        }
        let destination = SocketAddr::new(destination.ip().to_canonical(), destination.port());
        if source.is_some_and(|(source, _)| Family::of(source) != Family::of(destination.ip())) {
            bail!(Unanswerable::Families);
        }
        let source_port = source.and_then(|(_, port)| port);
        let source = source.map(|(ip, _)| ip);
        Ok(Self { source, source_port, protocol, destination, interface: interface.map(Into::into) })
    }

    pub fn to_url_query(&self) -> String {
        let Self { source, source_port, protocol, destination, interface } = self;
        let mut query = format!("protocol={protocol}&to={destination}");
        if let Some(source) = source {
            let with_port = source_port.map(|port| SocketAddr::new(*source, port).to_string());
            query += &format!("&from={}", with_port.unwrap_or(source.to_string()));
        }
        if let Some(interface) = interface {
            query += &format!("&interface={interface}");
        }
        query
    }

    pub fn from_url_query(query: &str) -> anyhow::Result<Self> {
        let parts = || query.split('&').filter_map(|part| part.split_once('='));
        let value = |name: &str| parts().find(|(key, _)| *key == name).map(|(_, value)| value);
        if let Some((key, _)) =
            parts().find(|(key, _)| !["protocol", "to", "from", "interface"].contains(key))
        {
            bail!("{key}: not a parameter of this query");
        }
        let protocol = value("protocol").and_then(protocol).context("protocol: tcp, udp or sctp")?;
        let to = value("to").and_then(|to| to.parse().ok()).context("to: not an address with a port")?;
        let from =
            value("from").map(|from| parse_source(from).context("from: not an address")).transpose()?;
        Self::new(from, protocol, to, value("interface"))
    }

    /// The packet, given all addresses of the node and its node IP. The node sends from its node IP, except to itself. If the node
    /// IP is not known, `route_source` returns the address that the kernel would send from.
    pub fn packet(
        &self,
        addresses: &[IpAddr],
        node_ip: IpAddr,
        route_source: impl FnOnce(SocketAddr) -> anyhow::Result<IpAddr>,
    ) -> anyhow::Result<Packet> {
        let to = self.destination.ip();
        let source = match self.source {
            Some(source) => source,
            None if to.is_loopback() || addresses.contains(&to) => to,
            // Loopback means that the node IP is not known.
            None if node_ip.is_loopback() => route_source(self.destination)?,
            None => node_ip,
        };
        Ok(Packet {
            source,
            source_port: self.source_port,
            protocol: self.protocol,
            destination: self.destination,
            interface: self.interface.clone(),
        })
    }
}

/// The source address that the kernel of this node chooses for a destination.
pub fn route_source(destination: SocketAddr) -> anyhow::Result<IpAddr> {
    interfaces::source_towards(destination).map_err(|error| {
        let (to, why) = (destination.ip(), os_error(&error));
        anyhow!("this node itself can't send to {to} ({why}): say with --from where the packet comes from")
    })
}

/// Accepts upper and lower case.
pub fn protocol(name: &str) -> Option<Protocol> {
    if name.is_empty() {
        return None;
    }
    Protocol::from_api(Some(&name.to_uppercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_decoded_to_what_was_encoded() {
        for (source, protocol, destination, interface) in [
            (None, Protocol::Tcp, "10.96.0.10:80", None),
            (Some("10.244.0.7"), Protocol::Udp, "10.96.0.10:53", Some("cni0")),
            (Some("fd00::7"), Protocol::Sctp, "[fd00:10:96::10]:80", Some("veth0.5@if-2")),
            (Some("10.244.0.7:4711"), Protocol::Tcp, "10.96.0.10:80", None),
            (Some("[fd00::7]:4711"), Protocol::Tcp, "[fd00:10:96::10]:80", None),
        ] {
            let source = source.map(|ip| parse_source(ip).unwrap());
            let described =
                PacketQuery::new(source, protocol, destination.parse().unwrap(), interface).unwrap();
            let query = described.to_url_query();
            let uri: http::Uri = format!("/explain?{query}").parse().unwrap();
            assert_eq!(PacketQuery::from_url_query(uri.query().unwrap()).unwrap(), described, "{query}");
        }
    }

    #[test]
    fn a_packet_without_a_source_comes_from_the_node_and_its_node_ip() {
        let addresses = ["192.0.2.11", "2001:db8::11"].map(|ip| ip.parse().unwrap());
        for (from, to, node_ip, picked, want) in [
            (None, "10.96.0.10:80", "192.0.2.11", None, Some("192.0.2.11")),
            (None, "192.0.2.11:80", "192.0.2.12", None, Some("192.0.2.11")),
            (None, "127.0.0.5:80", "192.0.2.11", None, Some("127.0.0.5")),
            (Some("10.244.0.5"), "10.96.0.10:80", "127.0.0.1", None, Some("10.244.0.5")),
            (None, "[fd00::10]:80", "::1", Some("2001:db8::11"), Some("2001:db8::11")),
            (None, "[2001:db8::11]:80", "::1", None, Some("2001:db8::11")),
            (None, "[fd00::10]:80", "::1", None, None),
        ] {
            let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
            let described =
                PacketQuery::new(from.map(|from| (ip(from), None)), Protocol::Tcp, to.parse().unwrap(), None)
                    .unwrap();
            let packet = described.packet(&addresses, ip(node_ip), |_| picked.map(ip).context("no route"));
            assert_eq!(packet.ok().map(|packet| packet.source), want.map(ip), "{from:?} {to} {node_ip}");
        }
    }

    #[test]
    fn an_invalid_query_is_refused_with_the_parameter_named() {
        for (query, want) in [
            ("", "protocol: tcp, udp or sctp"),
            ("protocol=icmp&to=10.0.0.1:80", "protocol: tcp, udp or sctp"),
            ("protocol=tcp&to=10.0.0.1", "to: not an address with a port"),
            ("protocol=tcp&to=10.0.0.1:0", "there is no port 0"),
            ("protocol=tcp&to=10.0.0.1:80&from=pod", "from: not an address"),
            (
                "protocol=tcp&to=10.0.0.1:80&from=fd00::1",
                "source and destination are not of the same IP family",
            ),
            ("protocol=tcp&to=10.0.0.1:80&interface=", "\"\" is not the name of an interface"),
            ("protocol=tcp&to=10.0.0.1:80&speed=high", "speed: not a parameter of this query"),
        ] {
            assert_eq!(PacketQuery::from_url_query(query).unwrap_err().to_string(), want, "{query}");
        }
    }
}
