//! Kubernetes quantities, as far as sizes need them: `512`, `64k`, `1.5Ki`, `2e3`.
//!
//! A quantity remembers whether it was written in thousands, in multiples of 1024 or with an exponent, and prints
//! in the largest unit of that kind that leaves a whole number.

use std::fmt;

/// Billionths, so that every suffix down to `n` is exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quantity {
    nanos: i128,
    form: Form,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Form {
    #[default]
    Decimal,
    Binary,
    Exponent,
}

const UNIT: i128 = 1_000_000_000;

/// Each suffix with the power of 1000 (or 1024) it stands for, the largest first.
const DECIMAL: [(&str, i32); 10] =
    [("E", 6), ("P", 5), ("T", 4), ("G", 3), ("M", 2), ("k", 1), ("", 0), ("m", -1), ("u", -2), ("n", -3)];
const BINARY: [(&str, u32); 6] = [("Ei", 6), ("Pi", 5), ("Ti", 4), ("Gi", 3), ("Mi", 2), ("Ki", 1)];

const NO_QUANTITY: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
const NO_SUFFIX: &str = "unable to parse quantity's suffix";

impl Quantity {
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
        let number_end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(number_end);
        if number.is_empty() || number.matches('.').count() > 1 || !looks_like_suffix(suffix) {
            return Err(NO_QUANTITY);
        }
        let (scale, form) = scale_of(suffix).ok_or(NO_SUFFIX)?;
        let magnitude = scaled(number, scale);
        Ok(Self { nanos: if text.starts_with('-') { -magnitude } else { magnitude }, form })
    }

    /// The whole number this is, rounded up.
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

/// What one of the suffix is worth as a fraction of whole numbers.
fn scale_of(suffix: &str) -> Option<((i128, i128), Form)> {
    if let Some((_, power)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
        return Some((power_of(1000, *power), Form::Decimal));
    }
    if let Some((_, power)) = BINARY.iter().find(|(name, _)| *name == suffix) {
        return Some(((1024_i128.pow(*power), 1), Form::Binary));
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    Some((power_of(10, exponent.clamp(-30, 18)), Form::Exponent))
}

fn power_of(base: i128, power: i32) -> (i128, i128) {
    let size = base.pow(power.unsigned_abs());
    if power < 0 { (1, size) } else { (size, 1) }
}

/// Saturates where the reference does, at the largest 64-bit number, and rounds up below a billionth.
fn scaled(number: &str, (up, down): (i128, i128)) -> i128 {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // Nine digits say all that billionths can hold; the tenth only says that there is more.
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
        // Below 1024, and with a fraction, multiples of 1024 say nothing: those print in thousands.
        if self.form == Form::Binary && nanos.abs() >= 1024 * UNIT && nanos % UNIT == 0 {
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
                return match self.form {
                    Form::Exponent if power != 0 => write!(f, "{count}e{}", power * 3),
                    Form::Exponent | Form::Decimal | Form::Binary => write!(f, "{count}{suffix}"),
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
    fn quantities_print_in_their_canonical_form() {
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
    fn what_is_no_quantity_is_told_from_a_bad_suffix() {
        for (text, want) in [
            ("", NO_QUANTITY),
            ("abc", NO_QUANTITY),
            (" 1", NO_QUANTITY),
            ("1 k", NO_QUANTITY),
            ("1e3k", NO_QUANTITY),
            ("1K", NO_SUFFIX),
            ("5i", NO_SUFFIX),
            ("1e", NO_SUFFIX),
            ("1ee3", NO_SUFFIX),
        ] {
            assert_eq!(Quantity::parse(text), Err(want), "{text:?}");
        }
    }
}
