//! Parsing of addresses and CIDRs.

use std::net::IpAddr;

use ipnet::IpNet;
use model::address::{Family, cidrs_of_family, ips_of_family, parse_cidr, parse_ip};
use model::local::NodePortAddresses;

fn joined<T: ToString>(values: &[T]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

mod test_map_ips_by_ip_family {
    use super::*;

    #[test]
    #[rustfmt::skip]
    fn each_family_gets_its_own_in_order_and_what_does_not_parse_is_returned() {
        for (case, input, v4, v6, unreadable) in [
            ("nothing", "", "", "", ""),
            ("IPv4 only", "10.0.0.2,10.0.0.1,10.0.0.2", "10.0.0.2,10.0.0.1,10.0.0.2", "", ""),
            ("IPv6 only", "fd00::1,2001:DB8::0:1", "", "fd00::1,2001:db8::1", ""),
            ("mixed", "fd00::1,10.0.0.1,fd00::2,10.0.0.2", "10.0.0.1,10.0.0.2", "fd00::1,fd00::2", ""),
            ("leading zeros are decimal, however many", "172.30.0.041,010.0000.0.08", "172.30.0.41,10.0.0.8", "", ""),
            ("mapped addresses are IPv4", "::ffff:10.0.0.1,::FFFF:0a00:2", "10.0.0.1,10.0.0.2", "", ""),
            ("a zone is not an address", "fe80::1%eth0", "", "", "fe80::1%eth0"),
            ("an address with a prefix is not an address", "10.0.0.0/8", "", "", "10.0.0.0/8"),
            ("white space does not belong", " 10.0.0.1", "", "", " 10.0.0.1"),
            ("blanks are passed over in silence", ",  ,\t,10.0.0.1", "10.0.0.1", "", ""),
            ("nonsense between sense", "10.0.0.1,10.0.0,300.0.0.1,fd00::1", "10.0.0.1", "fd00::1", "10.0.0,300.0.0.1"),
        ] {
            for (family, want) in [(Family::V4, v4), (Family::V6, v6)] {
                let (kept, unparsable) = ips_of_family(family, input.split(','));
                assert_eq!(joined(&kept), want, "{case} in {family}");
                assert_eq!(joined(&unparsable), unreadable, "{case} in {family}");
            }
        }
    }
}

mod test_map_cidrs_by_ip_family {
    use super::*;

    #[test]
    #[rustfmt::skip]
    fn each_family_gets_its_own_in_order_and_what_does_not_parse_is_returned() {
        for (case, input, v4, v6, unreadable) in [
            ("nothing", "", "", "", ""),
            ("mixed", "10.20.30.0/24,2001:db8::/32,10.20.0.0/16", "10.20.30.0/24,10.20.0.0/16", "2001:db8::/32", ""),
            ("host bits go", "1.2.3.4/28,2001:db8::1/64", "1.2.3.0/28", "2001:db8::/64", ""),
            ("leading zeros go", "203.0.113.000/025,2001:db8::/032", "203.0.113.0/25", "2001:db8::/32", ""),
            ("white space around goes", "  10.0.0.0/8\t", "10.0.0.0/8", "", ""),
            ("blanks are passed over in silence", ", ", "", "", ""),
            ("an address is not a prefix", "10.0.0.1,fd00::1", "", "", "10.0.0.1,fd00::1"),
            ("a prefix has no more bits than its family", "10.0.0.0/33,fd00::/129", "", "", "10.0.0.0/33,fd00::/129"),
            ("white space within does not belong", "10.0.0.0/ 8", "", "", "10.0.0.0/ 8"),
        ] {
            for (family, want) in [(Family::V4, v4), (Family::V6, v6)] {
                let (kept, unparsable) = cidrs_of_family(family, input.split(','));
                assert_eq!(joined(&kept), want, "{case} in {family}");
                assert_eq!(joined(&unparsable), unreadable, "{case} in {family}");
            }
        }
    }
}

mod test_is_zero_cidr {
    use super::*;

    #[test]
    fn a_prefix_of_length_zero_matches_all_addresses() {
        for (text, zero) in [
            ("0.0.0.0/0", true),
            ("::/0", true),
            ("10.1.2.3/0", true),
            ("2001:db8::/0", true),
            ("0.0.0.0/1", false),
            ("0.0.0.0/32", false),
            ("::/1", false),
            ("10.0.0.0/8", false),
        ] {
            assert_eq!(parse_cidr(text).unwrap().prefix_len() == 0, zero, "{text}");
        }
        for family in Family::BOTH {
            assert_eq!(family.everything().prefix_len(), 0);
        }
    }
}

/// Upstream has a set of node addresses that match; ours is a list that keeps their order.
mod test_address_set {
    use super::*;

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| parse_ip(text).unwrap()).collect()
    }

    fn cidrs(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| parse_cidr(text).unwrap()).collect()
    }

    #[test]
    fn only_matching_addresses_are_returned_without_duplicates() {
        let interfaces = ips(&["127.0.0.1", "192.168.0.1", "10.0.0.5", "fd00::5", "192.168.0.1", "10.0.0.4"]);
        for (case, family, allowed, want) in [
            (
                "everything of the family",
                Family::V4,
                &[][..],
                &["127.0.0.1", "192.168.0.1", "10.0.0.5", "10.0.0.4"][..],
            ),
            ("one prefix", Family::V4, &["10.0.0.0/8"], &["10.0.0.5", "10.0.0.4"]),
            (
                "prefixes that overlap, in their own order",
                Family::V4,
                &["10.0.0.4/32", "10.0.0.0/8"],
                &["10.0.0.4", "10.0.0.5"],
            ),
            ("a prefix of the other family restricts nothing", Family::V6, &["10.0.0.0/8"], &["fd00::5"]),
            ("none qualifies", Family::V4, &["172.16.0.0/12"], &[]),
        ] {
            let addresses = NodePortAddresses::new(family, &cidrs(allowed));
            assert_eq!(addresses.among(&interfaces), ips(want), "{case}");
            assert_eq!(addresses.among(&[]), ips(&[]), "{case}, without interfaces");
        }
    }

    #[test]
    fn a_zero_prefix_makes_the_others_redundant() {
        let addresses = NodePortAddresses::new(Family::V4, &cidrs(&["10.0.0.4/32", "0.0.0.0/0"]));
        assert!(addresses.match_all());
        assert_eq!(addresses.among(&ips(&["192.168.0.1", "10.0.0.4"])), ips(&["192.168.0.1", "10.0.0.4"]));
    }
}
