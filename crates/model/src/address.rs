//! Parses addresses as Kubernetes does: leniently, into types whose text form is canonical.
//!
//! Objects stored by old releases contain IPv4 octets with leading zeros, which Kubernetes has always read as decimal.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// An IP family. Each has a store, a plan and a family worker of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// Reads a value of `ipFamilies` or `addressType`, which spell families alike.
    pub fn from_api(name: &str) -> Option<Self> {
        match name {
            "IPv4" => Some(Self::V4),
            "IPv6" => Some(Self::V6),
            _ => None,
        }
    }

    pub fn of(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    pub fn of_net(net: IpNet) -> Self {
        Self::of(net.addr())
    }

    pub fn other(self) -> Self {
        match self {
            Self::V4 => Self::V6,
            Self::V6 => Self::V4,
        }
    }

    pub fn loopback(self) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::LOCALHOST.into(),
            Self::V6 => Ipv6Addr::LOCALHOST.into(),
        }
    }

    /// The CIDR that contains every address of the family.
    pub fn everything(self) -> IpNet {
        let zero = match self {
            Self::V4 => Ipv4Addr::UNSPECIFIED.into(),
            Self::V6 => Ipv6Addr::UNSPECIFIED.into(),
        };
        IpNet::new_assert(zero, 0)
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// Parses an address. IPv4 octets may have leading zeros, an IPv4-mapped IPv6 address is IPv4, and an address with a zone
/// is rejected.
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        return parse_v6(text).map(IpAddr::V6).map(|ip| ip.to_canonical());
    }
    parse_v4(text).map(IpAddr::V4)
}

/// Parses a CIDR as [`parse_ip`] parses addresses, and clears its host bits.
pub fn parse_cidr(text: &str) -> Option<IpNet> {
    let (address, length) = text.split_once('/')?;
    let length: u8 = decimal(length, 128)?.try_into().ok()?;
    let net = if address.contains(':') {
        let ip = parse_v6(address)?;
        match ip.to_ipv4_mapped() {
            // The prefix length of an IPv4-mapped address counts from the first of 128 bits.
            Some(v4) if length >= 96 => IpNet::new(v4.into(), length - 96),
            Some(_) | None => IpNet::new(ip.into(), length),
        }
    } else {
        IpNet::new(parse_v4(address)?.into(), length)
    };
    net.ok().map(|net| net.trunc())
}

/// `a.b.c.d:port` or `[addr]:port`: the text that identifies endpoints in rules and logs, and that they are sorted by.
pub fn host_port(ip: IpAddr, port: u16) -> String {
    std::net::SocketAddr::new(ip, port).to_string()
}

/// The values of one family, in their order, and the texts that do not parse. Blank texts are ignored.
pub fn of_family<'a, T>(
    family: Family,
    texts: impl IntoIterator<Item = &'a str>,
    parse: impl Fn(&str) -> Option<T>,
    family_of: impl Fn(&T) -> Family,
) -> (Vec<T>, Vec<&'a str>) {
    let mut kept = Vec::new();
    let mut unparsable = Vec::new();
    for text in texts {
        match parse(text) {
            Some(value) if family_of(&value) == family => kept.push(value),
            Some(_) => {}
            None if text.trim().is_empty() => {}
            None => unparsable.push(text),
        }
    }
    (kept, unparsable)
}

pub fn ips_of_family<'a>(
    family: Family,
    texts: impl IntoIterator<Item = &'a str>,
) -> (Vec<IpAddr>, Vec<&'a str>) {
    of_family(family, texts, parse_ip, |ip| Family::of(*ip))
}

/// Unlike addresses, CIDRs may be surrounded by white space.
pub fn cidrs_of_family<'a>(
    family: Family,
    texts: impl IntoIterator<Item = &'a str>,
) -> (Vec<IpNet>, Vec<&'a str>) {
    of_family(family, texts, |text| parse_cidr(text.trim()), |net| Family::of_net(*net))
}

fn parse_v4(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        *octet = decimal(parts.next()?, 255)?.try_into().ok()?;
    }
    parts.next().is_none().then(|| octets.into())
}

fn parse_v6(text: &str) -> Option<Ipv6Addr> {
    if let Ok(ip) = text.parse() {
        return Some(ip);
    }
    // The standard library rejects leading zeros in an embedded IPv4 address.
    let (head, tail) = text.rsplit_once(':')?;
    let tail = parse_v4(tail)?;
    format!("{head}:{tail}").parse().ok()
}

/// Parses digits only: no sign, no blanks, any number of leading zeros.
fn decimal(text: &str, max: u32) -> Option<u32> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let significant = text.trim_start_matches('0');
    let value = if significant.is_empty() { 0 } else { significant.parse().ok()? };
    (value <= max).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_leniently_and_printed_canonically() {
        for (text, want) in [
            ("172.30.0.041", Some("172.30.0.41")),
            ("010.000.0.1", Some("10.0.0.1")),
            ("::ffff:1.2.3.4", Some("1.2.3.4")),
            ("::ffff:1.2.3.004", Some("1.2.3.4")),
            ("2001:DB8:0::50", Some("2001:db8::50")),
            ("2001:db8::050", Some("2001:db8::50")),
            ("fe80::1%eth0", None),
            ("1.2.3", None),
            ("1.2.3.4.5", None),
            ("1.2.3.256", None),
            ("1.2.3.-4", None),
            ("1.2.3.+4", None),
            (" 1.2.3.4", None),
            ("", None),
            ("bogus", None),
        ] {
            assert_eq!(parse_ip(text).map(|ip| ip.to_string()).as_deref(), want, "{text:?}");
        }
    }

    #[test]
    fn cidrs_lose_their_host_bits_and_leading_zeros() {
        for (text, want) in [
            ("203.0.113.000/025", Some("203.0.113.0/25")),
            ("1.2.3.4/28", Some("1.2.3.0/28")),
            ("1.2.3.4/0", Some("0.0.0.0/0")),
            ("2001:db8::1/32", Some("2001:db8::/32")),
            ("::ffff:10.1.2.3/112", Some("10.1.0.0/16")),
            ("1.2.3.4/33", None),
            ("::1/129", None),
            ("1.2.3.4", None),
            ("1.2.3.4/", None),
            ("1.2.3.4/-1", None),
            (" 1.2.3.4/8", None),
        ] {
            assert_eq!(parse_cidr(text).map(|net| net.to_string()).as_deref(), want, "{text:?}");
        }
    }

    #[test]
    fn lists_keep_their_order_and_return_what_does_not_parse() {
        let texts = ["198.51.100.070", "2001:db8::070", "bogus", "", " ", "198.51.100.7"];
        let (v4, unparsable) = ips_of_family(Family::V4, texts);
        assert_eq!(v4, ["198.51.100.70", "198.51.100.7"].map(|ip| ip.parse::<IpAddr>().unwrap()));
        assert_eq!(unparsable, ["bogus"]);
        let (v6, _) = ips_of_family(Family::V6, texts);
        assert_eq!(v6, ["2001:db8::70".parse::<IpAddr>().unwrap()]);

        let (cidrs, unparsable) = cidrs_of_family(Family::V4, [" 203.0.113.0/24 ", "::/0", "nonsense", "  "]);
        assert_eq!(cidrs, ["203.0.113.0/24".parse::<IpNet>().unwrap()]);
        assert_eq!(unparsable, ["nonsense"]);
    }

    #[test]
    fn ipv6_endpoints_are_bracketed() {
        assert_eq!(host_port("10.0.0.1".parse().unwrap(), 80), "10.0.0.1:80");
        assert_eq!(host_port("fd00::1".parse().unwrap(), 80), "[fd00::1]:80");
    }
}
