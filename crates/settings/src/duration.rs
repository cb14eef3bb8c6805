//! Durations in Go's text format: `1h30m0s`, `300ms`, `-1.5h`.
//!
//! They are signed 64-bit nanoseconds, because a negative value must survive until validation rejects it with
//! upstream's error.

use std::fmt;
use std::time;

use crate::go::quote_bytes;

/// Nanoseconds. `Display` prints what Go's `Duration.String` prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Duration(i64);

const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000), // U+00B5, the micro sign
    ("μs", 1_000), // U+03BC, the Greek letter
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

impl From<time::Duration> for Duration {
    /// Saturates at the largest value, about 292 years.
    fn from(duration: time::Duration) -> Self {
        Self(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
    }
}

impl Duration {
    pub const ZERO: Self = Self(0);

    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    pub const fn from_secs(seconds: i64) -> Self {
        Self(seconds * 1_000_000_000)
    }

    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// `None` for a negative duration, which the standard library cannot represent.
    pub fn to_std(self) -> Option<time::Duration> {
        u64::try_from(self.0).ok().map(time::Duration::from_nanos)
    }

    /// Parses what Go's `time.ParseDuration` parses, with Go's error messages.
    pub fn parse(text: &str) -> Result<Self, String> {
        let invalid = || format!("time: invalid duration {}", quote_bytes(text));
        let (negative, unsigned) = match text.strip_prefix(['-', '+']) {
            Some(rest) => (text.starts_with('-'), rest),
            None => (false, text),
        };
        if unsigned == "0" {
            return Ok(Self::ZERO);
        }
        if unsigned.is_empty() {
            return Err(invalid());
        }
        let mut total: u64 = 0;
        let mut rest = unsigned;
        while !rest.is_empty() {
            let (whole, after) = split_where(rest, |c| !c.is_ascii_digit());
            let (fraction, after) = match after.strip_prefix('.') {
                Some(after) => split_where(after, |c| !c.is_ascii_digit()),
                None => ("", after),
            };
            let (unit, after) = split_where(after, |c| c.is_ascii_digit() || c == '.');
            if whole.is_empty() && fraction.is_empty() {
                return Err(invalid());
            }
            if unit.is_empty() {
                return Err(format!("time: missing unit in duration {}", quote_bytes(text)));
            }
            let Some(&(_, scale)) = UNITS.iter().find(|(name, _)| *name == unit) else {
                let (unit, text) = (quote_bytes(unit), quote_bytes(text));
                return Err(format!("time: unknown unit {unit} in duration {text}"));
            };
            let whole = if whole.is_empty() { Some(0) } else { whole.parse::<u64>().ok() };
            total = whole
                .and_then(|whole| whole.checked_mul(scale))
                .and_then(|nanos| nanos.checked_add(fraction_of(fraction, scale)))
                .and_then(|nanos| total.checked_add(nanos))
                .ok_or_else(invalid)?;
            rest = after;
        }
        let signed = if negative { 0_i64.checked_sub_unsigned(total) } else { i64::try_from(total).ok() };
        signed.map(Self).ok_or_else(invalid)
    }
}

/// `0.digits` times `scale`, truncated to whole nanoseconds.
fn fraction_of(digits: &str, scale: u64) -> u64 {
    // Eighteen digits are more precise than the nanoseconds of an hour, and the product fits into 128 bits.
    let (mut value, mut divisor) = (0_u128, 1_u128);
    for digit in digits.bytes().take(18) {
        value = value * 10 + u128::from(digit - b'0');
        divisor *= 10;
    }
    u64::try_from(value * u128::from(scale) / divisor).unwrap_or(u64::MAX)
}

fn split_where(text: &str, at: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(at).unwrap_or(text.len()))
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.unsigned_abs();
        if self.0 < 0 {
            f.write_str("-")?;
        }
        // Below a second Go uses the largest unit that leaves a nonzero integer part.
        match nanos {
            0 => f.write_str("0s"),
            1..1_000 => write!(f, "{nanos}ns"),
            1_000..1_000_000 => write!(f, "{}µs", Decimal(nanos, 1_000)),
            1_000_000..1_000_000_000 => write!(f, "{}ms", Decimal(nanos, 1_000_000)),
            _ => {
                let minutes = nanos / 60_000_000_000;
                let seconds = Decimal(nanos % 60_000_000_000, 1_000_000_000);
                match (minutes / 60, minutes % 60) {
                    (0, 0) => write!(f, "{seconds}s"),
                    (0, minutes) => write!(f, "{minutes}m{seconds}s"),
                    (hours, minutes) => write!(f, "{hours}h{minutes}m{seconds}s"),
                }
            }
        }
    }
}

/// A value and a divisor that is a power of ten: prints the exact quotient, without trailing zeros.
struct Decimal(u64, u64);

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(value, divisor) = *self;
        write!(f, "{}", value / divisor)?;
        if value % divisor != 0 {
            let digits = format!("{:0width$}", value % divisor, width = divisor.ilog10() as usize);
            write!(f, ".{}", digits.trim_end_matches('0'))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_parsed_and_printed_as_in_go() {
        for (text, want) in [
            ("0", "0s"),
            ("+0", "0s"),
            ("-0", "0s"),
            ("1s", "1s"),
            ("+1s", "1s"),
            ("-1s", "-1s"),
            ("1.5h", "1h30m0s"),
            ("1h30m", "1h30m0s"),
            ("24h", "24h0m0s"),
            ("15m", "15m0s"),
            ("300ms", "300ms"),
            ("1us", "1µs"),
            ("1µs", "1µs"),
            ("1μs", "1µs"),
            ("1500us", "1.5ms"),
            ("1.5ns", "1ns"),
            (".5s", "500ms"),
            ("1.s", "1s"),
            ("1.111s", "1.111s"),
            ("1.000000001s", "1.000000001s"),
            ("1.0000000001s", "1s"),
            ("39h9m14.425s", "39h9m14.425s"),
            ("0.100000000000000000000h", "6m0s"),
            ("9223372036854775807ns", "2562047h47m16.854775807s"),
            ("-9223372036854775808ns", "-2562047h47m16.854775808s"),
        ] {
            assert_eq!(Duration::parse(text).map(|d| d.to_string()), Ok(want.to_owned()), "{text:?}");
        }
    }

    #[test]
    fn an_invalid_duration_is_rejected_with_the_error_of_go() {
        for (text, want) in [
            ("", r#"time: invalid duration """#),
            (".", r#"time: invalid duration ".""#),
            ("s", r#"time: invalid duration "s""#),
            ("--1s", r#"time: invalid duration "--1s""#),
            ("9223372036854775808ns", r#"time: invalid duration "9223372036854775808ns""#),
            ("-9223372036854775809ns", r#"time: invalid duration "-9223372036854775809ns""#),
            ("3000000h", r#"time: invalid duration "3000000h""#),
            ("99999999999999999999h", r#"time: invalid duration "99999999999999999999h""#),
            ("1", r#"time: missing unit in duration "1""#),
            ("1h1", r#"time: missing unit in duration "1h1""#),
            ("1..5s", r#"time: missing unit in duration "1..5s""#),
            ("1d", r#"time: unknown unit "d" in duration "1d""#),
            ("1 s", r#"time: unknown unit " s" in duration "1 s""#),
            ("1h-1m", r#"time: unknown unit "h-" in duration "1h-1m""#),
            ("1e3s", r#"time: unknown unit "e" in duration "1e3s""#),
            ("1s\"", r#"time: unknown unit "s\"" in duration "1s\"""#),
            ("1é", r#"time: unknown unit "\xc3\xa9" in duration "1\xc3\xa9""#),
        ] {
            assert_eq!(Duration::parse(text), Err(want.to_owned()), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn a_printed_duration_parses_to_the_same_value(nanos in any::<i64>()) {
            let duration = Duration::from_nanos(nanos);
            prop_assert_eq!(Duration::parse(&duration.to_string()), Ok(duration));
        }
    }
}
