//! The packet that somebody asks about, and how the question travels to a running proxy.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, anyhow, bail};
use kernel::interfaces;
use model::address::Family;
use model::names::Protocol;
use plan::explain::{Packet, Unanswerable};
use settings::go::os_error;

/// Asks what becomes of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Nothing if the node itself sends it, from whichever address it likes.
    pub source: Option<IpAddr>,
    pub protocol: Protocol,
    pub destination: SocketAddr,
    pub interface: Option<String>,
}

impl Question {
    pub fn new(
        source: Option<IpAddr>,
        protocol: Protocol,
        destination: SocketAddr,
        interface: Option<&str>,
    ) -> anyhow::Result<Self> {
        if destination.port() == 0 {
            bail!("there is no port 0");
        }
        // As the kernel names interfaces, but for what would need quoting on its way to the proxy.
        let is_odd = |name: &&str| {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-@:".contains(c);
            name.is_empty() || name.len() > 15 || !name.chars().all(is_plain)
        };
        if let Some(name) = interface.filter(is_odd) {
            bail!("{name:?} is no name of an interface");
        }
        let destination = SocketAddr::new(destination.ip().to_canonical(), destination.port());
        if source.is_some_and(|source| Family::of(source) != Family::of(destination.ip())) {
            bail!(Unanswerable::Families);
        }
        Ok(Self { source, protocol, destination, interface: interface.map(Into::into) })
    }

    pub fn to_query(&self) -> String {
        let Self { source, protocol, destination, interface } = self;
        let mut query = format!("protocol={protocol}&to={destination}");
        if let Some(source) = source {
            query += &format!("&from={source}");
        }
        if let Some(interface) = interface {
            query += &format!("&interface={interface}");
        }
        query
    }

    pub fn from_query(query: &str) -> anyhow::Result<Self> {
        let parts = || query.split('&').filter_map(|part| part.split_once('='));
        let value = |name: &str| parts().find(|(key, _)| *key == name).map(|(_, value)| value);
        if let Some((key, _)) =
            parts().find(|(key, _)| !["protocol", "to", "from", "interface"].contains(key))
        {
            bail!("{key}: not a part of this question");
        }
        let protocol = value("protocol").and_then(protocol).context("protocol: tcp, udp or sctp")?;
        let to = value("to").and_then(|to| to.parse().ok()).context("to: no address with a port")?;
        let from = value("from").map(|from| from.parse().context("from: no address")).transpose()?;
        Self::new(from, protocol, to, value("interface"))
    }

    /// The packet, given all addresses of the node and the one it is known by, which it speaks from unless it speaks to
    /// itself. If it is known by none, `kernel_picks` says what it speaks from.
    pub fn packet(
        &self,
        addresses: &[IpAddr],
        node_ip: IpAddr,
        kernel_picks: impl FnOnce(SocketAddr) -> anyhow::Result<IpAddr>,
    ) -> anyhow::Result<Packet> {
        let to = self.destination.ip();
        let source = match self.source {
            Some(source) => source,
            None if to.is_loopback() || addresses.contains(&to) => to,
            // Which stands for not known.
            None if node_ip.is_loopback() => kernel_picks(self.destination)?,
            None => node_ip,
        };
        Ok(Packet {
            source,
            protocol: self.protocol,
            destination: self.destination,
            interface: self.interface.clone(),
        })
    }
}

/// The address that the kernel of this node speaks from to a destination.
pub fn kernel_picks(destination: SocketAddr) -> anyhow::Result<IpAddr> {
    interfaces::source_towards(destination).map_err(|error| {
        let (to, why) = (destination.ip(), os_error(&error));
        anyhow!("this node itself can't send to {to} ({why}): say with --from where the packet comes from")
    })
}

/// In whatever case people write it.
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
    fn a_question_arrives_as_it_was_asked() {
        for (source, protocol, destination, interface) in [
            (None, Protocol::Tcp, "10.96.0.10:80", None),
            (Some("10.244.0.7"), Protocol::Udp, "10.96.0.10:53", Some("cni0")),
            (Some("fd00::7"), Protocol::Sctp, "[fd00:10:96::10]:80", Some("veth0.5@if-2")),
        ] {
            let source = source.map(|ip| ip.parse().unwrap());
            let question = Question::new(source, protocol, destination.parse().unwrap(), interface).unwrap();
            let query = question.to_query();
            let uri: http::Uri = format!("/explain?{query}").parse().unwrap();
            assert_eq!(Question::from_query(uri.query().unwrap()).unwrap(), question, "{query}");
        }
    }

    #[test]
    fn who_is_not_named_is_the_node_that_speaks_from_the_address_it_is_known_by() {
        let addresses = ["192.0.2.11", "2001:db8::11"].map(|ip| ip.parse().unwrap());
        for (from, to, known_by, picked, want) in [
            (None, "10.96.0.10:80", "192.0.2.11", None, Some("192.0.2.11")),
            (None, "192.0.2.11:80", "192.0.2.12", None, Some("192.0.2.11")),
            (None, "127.0.0.5:80", "192.0.2.11", None, Some("127.0.0.5")),
            (Some("10.244.0.5"), "10.96.0.10:80", "127.0.0.1", None, Some("10.244.0.5")),
            (None, "[fd00::10]:80", "::1", Some("2001:db8::11"), Some("2001:db8::11")),
            (None, "[2001:db8::11]:80", "::1", None, Some("2001:db8::11")),
            (None, "[fd00::10]:80", "::1", None, None),
        ] {
            let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
            let question = Question::new(from.map(ip), Protocol::Tcp, to.parse().unwrap(), None).unwrap();
            let packet =
                question.packet(&addresses, ip(known_by), |_| picked.map(ip).context("nothing is picked"));
            assert_eq!(packet.ok().map(|packet| packet.source), want.map(ip), "{from:?} {to} {known_by}");
        }
    }

    #[test]
    fn what_is_no_question_is_refused_by_name() {
        for (query, want) in [
            ("", "protocol: tcp, udp or sctp"),
            ("protocol=icmp&to=10.0.0.1:80", "protocol: tcp, udp or sctp"),
            ("protocol=tcp&to=10.0.0.1", "to: no address with a port"),
            ("protocol=tcp&to=10.0.0.1:0", "there is no port 0"),
            ("protocol=tcp&to=10.0.0.1:80&from=pod", "from: no address"),
            (
                "protocol=tcp&to=10.0.0.1:80&from=fd00::1",
                "source and destination are not of the same IP family",
            ),
            ("protocol=tcp&to=10.0.0.1:80&interface=", "\"\" is no name of an interface"),
            ("protocol=tcp&to=10.0.0.1:80&speed=high", "speed: not a part of this question"),
        ] {
            assert_eq!(Question::from_query(query).unwrap_err().to_string(), want, "{query}");
        }
    }
}
