//! Relative weights of endpoints, from an annotation of their slice.
//!
//! The annotation has the form of Cilium's `service.cilium.io/weight`, one number for all endpoints of the slice, and may also
//! have weights of single addresses: `10`, `10.1.2.3=0` or `10, 10.1.2.3=0, 10.1.2.4=20`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::address::{Family, parse_ip};

/// The annotation of an EndpointSlice.
pub const WEIGHT_ANNOTATION: &str = "service.sluice.io/weight";

/// An endpoint gets a share of the connections in proportion to its weight; with zero, it gets no new ones.
pub type Weight = u16;

/// The weight of endpoints without one, which leaves room below. That of Cilium.
pub const DEFAULT_WEIGHT: Weight = 100;

/// The weights of the endpoints of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceWeights {
    others: Weight,
    by_ip: BTreeMap<IpAddr, Weight>,
}

impl Default for SliceWeights {
    fn default() -> Self {
        Self { others: DEFAULT_WEIGHT, by_ip: BTreeMap::new() }
    }
}

impl SliceWeights {
    /// `None` if any part of the annotation is invalid, or if it has two weights for the same endpoints.
    pub fn parse(text: &str, family: Family) -> Option<Self> {
        let mut others = None;
        let mut by_ip = BTreeMap::new();
        for part in text.split(',') {
            match part.split_once('=') {
                None if others.is_none() => others = Some(weight(part)?),
                Some((ip, number)) => {
                    let ip = parse_ip(ip.trim()).filter(|ip| Family::of(*ip) == family)?;
                    if by_ip.insert(ip, weight(number)?).is_some() {
                        return None;
                    }
                }
                None => return None,
            }
        }
        Some(Self { others: others.unwrap_or(DEFAULT_WEIGHT), by_ip })
    }

    pub fn of(&self, ip: IpAddr) -> Weight {
        self.by_ip.get(&ip).copied().unwrap_or(self.others)
    }
}

/// Digits only: Rust also parses a sign.
fn weight(text: &str) -> Option<Weight> {
    let text = text.trim();
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_annotation_has_a_weight_for_all_endpoints_and_weights_of_addresses() {
        let [first, second]: [IpAddr; 2] = [[10, 1, 2, 3].into(), [10, 1, 2, 4].into()];
        for (text, want) in [
            ("7", [7, 7]),
            (" 0 ", [0, 0]),
            ("65535", [65_535, 65_535]),
            ("10.1.2.3=5", [5, DEFAULT_WEIGHT]),
            ("10.1.2.4 = 3 , 10", [10, 3]),
            ("10.1.2.3=1,10.1.2.4=2,3", [1, 2]),
        ] {
            let weights = SliceWeights::parse(text, Family::V4).unwrap();
            assert_eq!([first, second].map(|ip| weights.of(ip)), want, "{text}");
        }
        let ip: IpAddr = "fd00::7".parse().unwrap();
        assert_eq!(SliceWeights::parse("fd00:0::7=9", Family::V6).unwrap().of(ip), 9);
    }

    #[test]
    fn an_invalid_annotation_has_no_weights() {
        for text in [
            "",
            ",",
            "5,",
            "5,6",
            "65536",
            "-1",
            "+1",
            "1.5",
            "a",
            "10.1.2.3",
            "10.1.2.3=",
            "=5",
            "10.1.2.300=5",
            "fd00::7=5",
            "10.1.2.3=5=6",
            "10.1.2.3=5,10.1.2.3=5",
            "5;6",
        ] {
            assert_eq!(SliceWeights::parse(text, Family::V4), None, "{text:?}");
        }
    }
}
