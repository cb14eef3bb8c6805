//! Reads when a certificate expires. The API server answers an expired client certificate only by `Unauthorized`.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

// Tags of X.690.
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const CONTEXT_0: u8 = 0xa0;

/// `None` unless `der` is a certificate.
pub fn expiry(der: &[u8]) -> Option<Timestamp> {
    let (_, certificate, _) = element(der)?;
    let (_, mut fields, _) = element(certificate)?;
    if let (CONTEXT_0, _, rest) = element(fields)? {
        fields = rest; // version
    }
    for _ in ["serialNumber", "signature", "issuer"] {
        (_, _, fields) = element(fields)?;
    }
    let (_, validity, _) = element(fields)?;
    let (_, _, after_not_before) = element(validity)?;
    let (tag, not_after, _) = element(after_not_before)?;
    let text = std::str::from_utf8(not_after).ok()?;
    let text = match tag {
        // RFC 5280, 4.1.2.5.1.
        UTC_TIME if text < "50" => format!("20{text}"),
        UTC_TIME => format!("19{text}"),
        GENERALIZED_TIME => text.to_owned(),
        _ => return None,
    };
    let time = DateTime::strptime("%Y%m%d%H%M%SZ", text).ok()?;
    Some(time.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

/// The tag and the content of the first element, and the remaining bytes.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        0x81..=0x84 => {
            let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((*tag, content, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn certificate(year: i32) -> Vec<u8> {
        let mut parameters = rcgen::CertificateParams::new(["server".to_owned()]).unwrap();
        parameters.not_before = rcgen::date_time_ymd(1_999, 1, 1);
        parameters.not_after = rcgen::date_time_ymd(year, 2, 3);
        parameters.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn the_expiry_of_certificates_is_read() {
        for year in [1_999, 2_020, 2_049, 2_050, 2_100] {
            let want = format!("{year}-02-03T00:00:00Z");
            assert_eq!(expiry(&certificate(year)).map(|at| at.to_string()), Some(want));
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in any::<Vec<u8>>(), cut in any::<prop::sample::Index>()) {
            expiry(&bytes);
            let whole = certificate(2_100);
            let cut = cut.index(whole.len());
            expiry(whole.get(..cut).unwrap());
        }
    }
}
