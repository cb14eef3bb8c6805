//! Go's text formats as far as users see them: quoting, number formats, and the error messages of Go's parsers.

use std::fmt::Write as _;

/// `strconv.Quote`.
pub fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\x07' => quoted.push_str("\\a"),
            '\x08' => quoted.push_str("\\b"),
            '\x0c' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\x0b' => quoted.push_str("\\v"),
            ' '..='~' => quoted.push(c),
            _ if c.is_ascii() => push_escape(&mut quoted, 'x', 2, c),
            // `escape_debug` leaves printable characters as they are.
            _ if c.escape_debug().len() == 1 => quoted.push(c),
            _ if u32::from(c) < 0x1_0000 => push_escape(&mut quoted, 'u', 4, c),
            _ => push_escape(&mut quoted, 'U', 8, c),
        }
    }
    quoted.push('"');
    quoted
}

fn push_escape(quoted: &mut String, kind: char, width: usize, c: char) {
    // Writing to a string cannot fail.
    let _ = write!(quoted, "\\{kind}{:0width$x}", u32::from(c));
}

/// The quoting of package `time`, which escapes every byte outside ASCII.
pub fn quote_bytes(text: &str) -> String {
    let mut quoted = String::from("\"");
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => quoted.extend(['\\', char::from(byte)]),
            b' '..=b'~' => quoted.push(char::from(byte)),
            _ => push_escape(&mut quoted, 'x', 2, char::from(byte)),
        }
    }
    quoted.push('"');
    quoted
}

/// `%q` of a list of strings: `["a" "b"]`.
pub fn quote_list(texts: &[String]) -> String {
    let quoted: Vec<_> = texts.iter().map(|text| quote(text)).collect();
    format!("[{}]", quoted.join(" "))
}

pub fn parse_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(syntax("ParseBool", text)),
    }
}

/// Parses an `int32` flag as pflag does: base 10, or 16, 8 or 2 by prefix.
pub fn parse_int(text: &str) -> Result<i32, String> {
    let (negative, digits) = match text.strip_prefix(['-', '+']) {
        Some(rest) => (text.starts_with('-'), rest),
        None => (false, text),
    };
    let magnitude = magnitude(digits).map_err(|error| error.message("ParseInt", text))?;
    let value = if negative { -i128::from(magnitude) } else { i128::from(magnitude) };
    i32::try_from(value).map_err(|_| range("ParseInt", text))
}

/// Parses a log verbosity: plain decimal digits, up to 2³¹ - 1.
pub fn parse_level(text: &str) -> Result<u32, String> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(syntax("ParseUint", text));
    }
    let level = text.parse().ok().filter(|level| *level <= i32::MAX.unsigned_abs());
    level.ok_or_else(|| range("ParseUint", text))
}

pub fn parse_float(text: &str) -> Result<f32, String> {
    // Rust rounds values that are too large to infinity; Go reports them as out of range.
    match text.parse::<f32>() {
        Ok(value) if value.is_infinite() && text.contains(|c: char| c.is_ascii_digit()) => {
            Err(range("ParseFloat", text))
        }
        Ok(value) => Ok(value),
        Err(_) => Err(syntax("ParseFloat", text)),
    }
}

/// `net.SplitHostPort`: splits `host:port` or `[host]:port`, with Go's error messages.
pub fn split_host_port(text: &str) -> Result<(&str, &str), String> {
    let error = |message: &str| Err(format!("address {text}: {message}"));
    let Some((host, port)) = text.rsplit_once(':') else {
        return error("missing port in address");
    };
    let Some(bracketed) = text.strip_prefix('[') else {
        return match host {
            _ if host.contains(':') => error("too many colons in address"),
            _ if text.contains('[') => error("unexpected '[' in address"),
            _ if text.contains(']') => error("unexpected ']' in address"),
            _ => Ok((host, port)),
        };
    };
    let Some((host, after)) = bracketed.split_once(']') else {
        return error("missing ']' in address");
    };
    match after.strip_prefix(':') {
        Some(port) if port.contains(':') => error("too many colons in address"),
        Some(_) if host.contains('[') => error("unexpected '[' in address"),
        Some(port) => Ok((host, port)),
        None => error("missing port in address"),
    }
}

/// The operating system's error message as Go prints it: it starts in lower case and has no number.
pub fn os_error(error: &std::io::Error) -> String {
    let message = error.to_string();
    let text = message.split(" (os error").next().unwrap_or(&message);
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_lowercase().chain(chars).collect())
}

enum NumError {
    Syntax,
    Range,
}

impl NumError {
    fn message(&self, function: &str, text: &str) -> String {
        match self {
            Self::Syntax => syntax(function, text),
            Self::Range => range(function, text),
        }
    }
}

/// Parses an unsigned number with Go's base prefixes; single underscores may separate digits.
fn magnitude(digits: &str) -> Result<u64, NumError> {
    let lower = digits.to_ascii_lowercase();
    let prefixes = [("0x", 16), ("0b", 2), ("0o", 8), ("0", 8)];
    let (base, body) = prefixes
        .iter()
        .find_map(|(prefix, base)| lower.strip_prefix(prefix).map(|body| (*base, body)))
        .filter(|_| lower != "0")
        .unwrap_or((10, &lower));
    if body.ends_with('_') || body.contains("__") || (base == 10 && body.starts_with('_')) {
        return Err(NumError::Syntax);
    }
    let body = body.replace('_', "");
    if body.is_empty() || !body.chars().all(|c| c.is_digit(base)) {
        return Err(NumError::Syntax);
    }
    u64::from_str_radix(&body, base).map_err(|_| NumError::Range)
}

/// `strconv.FormatFloat(value, 'g', -1, …)`: uses an exponent below 1e-4 and from 1e6 on.
///
/// `digits` is the shortest text that parses to the same number, as `{:e}` prints it.
fn general(digits: &str) -> String {
    let (mantissa, exponent) = digits.split_once('e').unwrap_or((digits, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..6).contains(&exponent) {
        // `Display` prints no exponent and does not round.
        return digits.parse::<f64>().map_or_else(|_| digits.to_owned(), |value| value.to_string());
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

/// A float as pflag prints it.
pub fn float_text(value: f32) -> String {
    match value {
        _ if value.is_nan() => "NaN".to_owned(),
        _ if value.is_infinite() => if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned(),
        _ => general(&format!("{value:e}")),
    }
}

/// A float as Prometheus prints a sample, and as upstream writes one to YAML.
pub fn double_text(value: f64) -> String {
    match value {
        _ if value.is_nan() => "NaN".to_owned(),
        _ if value.is_infinite() => if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned(),
        _ => general(&format!("{value:e}")),
    }
}

fn syntax(function: &str, text: &str) -> String {
    format!("strconv.{function}: parsing {}: invalid syntax", quote(text))
}

fn range(function: &str, text: &str) -> String {
    format!("strconv.{function}: parsing {}: value out of range", quote(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_quoted_as_in_go() {
        for (text, want) in [
            ("plain", r#""plain""#),
            ("a \"b\" \\", r#""a \"b\" \\""#),
            ("\n\t\r\x07\x0b", r#""\n\t\r\a\v""#),
            ("\x01\x7f", r#""\x01\x7f""#),
            ("é 😀", r#""é 😀""#),
            ("\u{a0}\u{200b}", r#""\u00a0\u200b""#),
            ("\u{e0001}", r#""\U000e0001""#),
        ] {
            assert_eq!(quote(text), want, "{text:?}");
        }
    }

    #[test]
    fn samples_have_an_exponent_from_a_million_on() {
        for (value, want) in [
            (0.0, "0"),
            (1.0, "1"),
            (-101.59389494, "-101.59389494"),
            (262_144.0, "262144"),
            (1_048_576.0, "1.048576e+06"),
            (1_794_789_169.930_002, "1.794789169930002e+09"),
            (2.344e-6, "2.344e-06"),
            (0.0001, "0.0001"),
            (18_446_744_073_709_551_615.0, "1.8446744073709552e+19"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(double_text(value), want);
        }
    }

    #[test]
    fn integers_are_parsed_in_every_base_of_go() {
        let syntax = |text: &str| Err(format!("strconv.ParseInt: parsing {text:?}: invalid syntax"));
        let range = |text: &str| Err(format!("strconv.ParseInt: parsing {text:?}: value out of range"));
        for (text, want) in [
            ("0", Ok(0)),
            ("00", Ok(0)),
            ("+5", Ok(5)),
            ("0x10", Ok(16)),
            ("017", Ok(15)),
            ("-017", Ok(-15)),
            ("0o17", Ok(15)),
            ("0b11", Ok(3)),
            ("1_000", Ok(1000)),
            ("0x_1", Ok(1)),
            ("0_1", Ok(1)),
            ("-2147483648", Ok(i32::MIN)),
            ("2147483648", range("2147483648")),
            ("99999999999999999999", range("99999999999999999999")),
            ("", syntax("")),
            ("-", syntax("-")),
            ("--1", syntax("--1")),
            (" 1", syntax(" 1")),
            ("08", syntax("08")),
            ("0x", syntax("0x")),
            ("0_", syntax("0_")),
            ("1__0", syntax("1__0")),
            ("_1", syntax("_1")),
            ("x", syntax("x")),
        ] {
            assert_eq!(parse_int(text), want, "{text:?}");
        }
    }

    #[test]
    fn floats_are_printed_as_in_flags_and_in_yaml() {
        for (value, flag, yaml) in [
            (5.0, "5", "5"),
            (0.1, "0.1", "0.1"),
            (-1.5, "-1.5", "-1.5"),
            (100_000.0, "100000", "100000"),
            (1e6, "1e+06", "1e+06"),
            (16_777_216.0, "1.6777216e+07", "1.6777216e+07"),
            (1e-7, "1e-07", "1e-07"),
            (1e22, "1e+22", "1e+22"),
        ] {
            assert_eq!(float_text(value), flag, "{value} as a flag");
            let value: f64 = value.to_string().parse().unwrap();
            assert_eq!(double_text(value), yaml, "{value} as YAML");
        }
        assert_eq!(float_text(f32::INFINITY), "+Inf");
    }

    #[test]
    fn host_and_port_are_split_as_in_go() {
        let error = |text: &str, message: &str| Err(format!("address {text}: {message}"));
        for (text, want) in [
            ("1.2.3.4:80", Ok(("1.2.3.4", "80"))),
            ("[::1]:80", Ok(("::1", "80"))),
            (":80", Ok(("", "80"))),
            ("1.2.3.4:", Ok(("1.2.3.4", ""))),
            ("foo", error("foo", "missing port in address")),
            ("[::1]", error("[::1]", "missing port in address")),
            ("[::1]80", error("[::1]80", "missing port in address")),
            ("[::1]x:80", error("[::1]x:80", "missing port in address")),
            ("[1.2.3.4:80", error("[1.2.3.4:80", "missing ']' in address")),
            ("::1:80", error("::1:80", "too many colons in address")),
            ("1:2:3", error("1:2:3", "too many colons in address")),
            ("a]:80", error("a]:80", "unexpected ']' in address")),
        ] {
            assert_eq!(split_host_port(text), want, "{text}");
        }
    }
}
