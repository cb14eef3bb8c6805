//! Numbers as people read them.

/// Formats a value.
pub type Show = fn(f64) -> String;

pub fn thousands(number: usize) -> String {
    if number < 1_000 { number.to_string() } else { format!("{},{:03}", number / 1_000, number % 1_000) }
}

pub fn milliseconds(value: f64) -> String {
    if value >= 1_000.0 { seconds(value / 1e3) } else { rounded(value, " ms") }
}

pub fn seconds(value: f64) -> String {
    if value >= 120.0 { format!("{} min", (value / 6.0).round() / 10.0) } else { rounded(value, " s") }
}

pub fn microseconds(value: f64) -> String {
    rounded(value, " µs")
}

pub fn mebibytes(value: f64) -> String {
    rounded(value, " MiB")
}

pub fn count(value: f64) -> String {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts are not negative")]
    thousands(value.round() as usize)
}

/// At least two significant digits.
fn rounded(value: f64, unit: &str) -> String {
    match value {
        10.0.. => format!("{value:.0}{unit}"),
        1.0..10.0 => format!("{value:.1}{unit}"),
        _ => format!("{value:.2}{unit}"),
    }
}
