//! Formats numbers and names for narrow columns.

use super::meter::AddressRate;

const ELLIPSIS: char = '…';

/// New connections per second, in at most six characters below a billion.
pub fn rate(rate: Option<f64>) -> String {
    match rate {
        None => "-".to_owned(),
        Some(rate) if rate < 9.95 => format!("{rate:.1}"),
        Some(rate) => large(rate, 99_999.5),
    }
}

/// Connections, in at most seven characters below a trillion.
#[allow(clippy::cast_precision_loss, reason = "rounded to what fits anyway")]
pub fn total(total: u64) -> String {
    large(total as f64, 9_999_999.5)
}

/// Exact below the limit, rounded with a unit above.
fn large(number: f64, exact_below: f64) -> String {
    if number < exact_below {
        return format!("{number:.0}");
    }
    let (scaled, unit) = match number {
        _ if number < 999_950.0 => (number / 1e3, "k"),
        _ if number < 999_950_000.0 => (number / 1e6, "M"),
        _ => (number / 1e9, "G"),
    };
    format!("{scaled:.1}{unit}")
}

/// The share of an endpoint and, if weights differ, the share that is due to it: `33%` or `33%/50%`.
pub fn share_and_due(endpoint: &AddressRate) -> String {
    let share = endpoint.share.map_or_else(|| "-".to_owned(), percent);
    endpoint.due.map_or(share.clone(), |due| format!("{share}/{}", percent(due)))
}

/// The title of a column with these endpoints.
pub fn share_title<'a>(endpoints: impl IntoIterator<Item = &'a AddressRate>) -> &'static str {
    if endpoints.into_iter().any(|endpoint| endpoint.due.is_some()) { "SHARE/DUE" } else { "SHARE" }
}

fn percent(part: f64) -> String {
    format!("{:.0}%", part * 100.0)
}

/// Shortens a long name in the middle: similar names mostly differ at their ends.
pub fn shorten(name: &str, width: usize) -> String {
    let length = name.chars().count();
    if length <= width {
        return name.to_owned();
    }
    let Some(kept) = width.checked_sub(1) else { return String::new() };
    let tail = kept / 2;
    let head = name.chars().take(kept - tail);
    head.chain([ELLIPSIS]).chain(name.chars().skip(length - tail)).collect()
}

/// A bar of `width` cells, filled to `part` in steps of an eighth.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "within bounds"
)]
pub fn bar(part: f64, width: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (part.clamp(0.0, 1.0) * (width * 8) as f64).round() as usize;
    let rest = EIGHTHS.get(eighths % 8).copied().unwrap_or_default();
    format!("{}{rest}", "█".repeat(eighths / 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fit_their_columns() {
        for (number, text) in [
            (0.0, "0.0"),
            (9.94, "9.9"),
            (9.96, "10"),
            (248.6, "249"),
            (99_999.4, "99999"),
            (123_456.0, "123.5k"),
            (1_234_567.0, "1.2M"),
        ] {
            assert_eq!(rate(Some(number)), text);
        }
        for (number, text) in
            [(0, "0"), (9_999_999, "9999999"), (12_345_678, "12.3M"), (u64::MAX, "18446744073.7G")]
        {
            assert_eq!(total(number), text);
        }
    }

    #[test]
    fn shares_are_shown_with_those_that_are_due() {
        let endpoint =
            |share, due| AddressRate { address: String::new(), flow: Default::default(), share, due };
        for (share, due, text) in [
            (None, None, "-"),
            (Some(1.0 / 3.0), None, "33%"),
            (Some(1.0 / 3.0), Some(0.5), "33%/50%"),
            (None, Some(1.0), "-/100%"),
        ] {
            assert_eq!(share_and_due(&endpoint(share, due)), text);
        }
        let plain = endpoint(Some(1.0), None);
        assert_eq!(share_title([&plain]), "SHARE");
        assert_eq!(share_title([&plain, &endpoint(None, Some(0.5))]), "SHARE/DUE");
    }

    #[test]
    fn names_are_shortened_in_the_middle() {
        for (width, text) in [
            (20, "kube-system/kube-dns"),
            (19, "kube-syst…/kube-dns"),
            (4, "ku…s"),
            (2, "k…"),
            (1, "…"),
            (0, ""),
        ] {
            assert_eq!(shorten("kube-system/kube-dns", width), text);
        }
    }

    #[test]
    fn bars_grow_in_eighths() {
        assert_eq!([0.0, 0.125, 0.5, 1.0, 7.0].map(|part| bar(part, 2)), ["", "▎", "█", "██", "██"]);
    }
}
