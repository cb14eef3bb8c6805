//! The subset of Kubernetes' `resource.Quantity` that buffer sizes need: `512`, `64k`, `1.5Ki`, `2e3`.
//!
//! A quantity keeps the format it was written in (decimal suffix, binary suffix or exponent), and prints with the largest
//! suffix of that format that leaves an integer. A value without such a suffix, as `0Ki`, prints without its format, so
//! the format does not count when quantities are compared.

use std::fmt;

#[derive(Clone, Copy, Debug, Default)]
pub struct Quantity {
    /// Billionths, so that every suffix down to `n` is exact.
    nanos: i128,
    format: Format,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Format {
    #[default]
    Decimal,
    Binary,
    Exponent,
}

const UNIT: i128 = 1_000_000_000;

/// Each suffix and its power of 1000 (`BINARY`: 1024), in descending order.
const DECIMAL: [(&str, i32); 10] =
    [("E", 6), ("P", 5), ("T", 4), ("G", 3), ("M", 2), ("k", 1), ("", 0), ("m", -1), ("u", -2), ("n", -3)];
const BINARY: [(&str, u32); 6] = [("Ei", 6), ("Pi", 5), ("Ti", 4), ("Gi", 3), ("Mi", 2), ("Ki", 1)];

const WRONG_FORMAT: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
const WRONG_SUFFIX: &str = "unable to parse quantity's suffix";

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl Quantity {
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
        let number_end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(number_end);
        if number.is_empty() || number.matches('.').count() > 1 || !looks_like_suffix(suffix) {
            return Err(WRONG_FORMAT);
        }
        let (scale, format) = scale_of(suffix).ok_or(WRONG_SUFFIX)?;
        let magnitude = scaled(number, scale);
        Ok(Self { nanos: if text.starts_with('-') { -magnitude } else { magnitude }, format })
    }

    /// Rounds up to an integer.
    pub fn value(self) -> i64 {
        let whole = self.nanos.div_euclid(UNIT) + i128::from(self.nanos.rem_euclid(UNIT) != 0);
        i64::try_from(whole).unwrap_or(if whole < 0 { i64::MIN } else { i64::MAX })
    }

    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }
}

fn looks_like_suffix(suffix: &str) -> bool {
    let rest = suffix.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
    let digits = rest.strip_prefix(['-', '+']).unwrap_or(rest);
    digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// The suffix as a factor, given as numerator and denominator.
fn scale_of(suffix: &str) -> Option<((i128, i128), Format)> {
    if let Some((_, power)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
        return Some((power_of(1000, *power), Format::Decimal));
    }
    if let Some((_, power)) = BINARY.iter().find(|(name, _)| *name == suffix) {
        return Some(((1024_i128.pow(*power), 1), Format::Binary));
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    Some((power_of(10, exponent.clamp(-30, 18)), Format::Exponent))
}

fn power_of(base: i128, power: i32) -> (i128, i128) {
    let size = base.pow(power.unsigned_abs());
    if power < 0 { (1, size) } else { (size, 1) }
}

/// As upstream does, saturates at the largest 64-bit integer, and rounds up to a billionth.
fn scaled(number: &str, (up, down): (i128, i128)) -> i128 {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // Nine digits are exact; of the digits beyond them only matters whether one is not zero, to round up.
    let (fraction, beyond) = fraction.split_at(fraction.len().min(9));
    let digits = format!("0{whole}{fraction:0<9}");
    let nanos = digits.parse::<i128>().ok().and_then(|nanos| nanos.checked_mul(up));
    let largest = i128::from(i64::MAX) * UNIT;
    let more = i128::from(beyond.bytes().any(|byte| byte != b'0'));
    nanos.map_or(largest, |nanos| ((nanos + more + down - 1) / down).min(largest))
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.nanos;
        if nanos == 0 {
            return f.write_str("0");
        }
        // Upstream prints values below 1024, and fractions, with decimal suffixes.
        if self.format == Format::Binary && nanos.abs() >= 1024 * UNIT && nanos % UNIT == 0 {
            let whole = nanos / UNIT;
            return match BINARY.iter().find(|(_, power)| whole % 1024_i128.pow(*power) == 0) {
                Some((suffix, power)) => write!(f, "{}{suffix}", whole / 1024_i128.pow(*power)),
                None => write!(f, "{whole}"),
            };
        }
        for (suffix, power) in DECIMAL {
            let (up, down) = power_of(1000, power);
            let unit = UNIT * up / down;
            if nanos % unit == 0 {
                let count = nanos / unit;
                return match self.format {
                    Format::Exponent if power != 0 => write!(f, "{count}e{}", power * 3),
                    Format::Exponent | Format::Decimal | Format::Binary => write!(f, "{count}{suffix}"),
                };
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_printed_in_canonical_form() {
        for (text, want, value) in [
            ("0", "0", 0),
            ("0k", "0", 0),
            (".", "0", 0),
            ("12", "12", 12),
            ("+5", "5", 5),
            ("-5k", "-5k", -5000),
            ("1000", "1k", 1000),
            ("1024", "1024", 1024),
            ("1500", "1500", 1500),
            ("1.5k", "1500", 1500),
            ("64k", "64k", 64_000),
            ("1000k", "1M", 1_000_000),
            ("64Ki", "64Ki", 65_536),
            ("1024Ki", "1Mi", 1_048_576),
            ("1.5Ki", "1536", 1536),
            (".5Ki", "512", 512),
            ("0.1Ki", "102400m", 103),
            ("0.5", "500m", 1),
            ("1m", "1m", 1),
            ("1n", "1n", 1),
            ("1e3", "1e3", 1000),
            ("7Ei", "7Ei", 8_070_450_532_247_928_832),
            ("8Ei", "9223372036854775807", i64::MAX),
            ("100000000000000000000Ei", "9223372036854775807", i64::MAX),
        ] {
            let quantity = Quantity::parse(text).unwrap();
            assert_eq!((quantity.to_string().as_str(), quantity.value()), (want, value), "{text:?}");
        }
    }

    #[test]
    fn a_malformed_quantity_and_an_unknown_suffix_have_different_errors() {
        for (text, want) in [
            ("", WRONG_FORMAT),
            ("abc", WRONG_FORMAT),
            (" 1", WRONG_FORMAT),
            ("1 k", WRONG_FORMAT),
            ("1e3k", WRONG_FORMAT),
            ("1K", WRONG_SUFFIX),
            ("5i", WRONG_SUFFIX),
            ("1e", WRONG_SUFFIX),
            ("1ee3", WRONG_SUFFIX),
        ] {
            assert_eq!(Quantity::parse(text), Err(want), "{text:?}");
        }
    }
}
