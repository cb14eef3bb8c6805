//! Writes YAML byte for byte as upstream does: sorted keys, indentation by two spaces, quotes only where needed.
#![allow(clippy::wildcard_enum_match_arm, reason = "JSON has a fixed set of value types")]

use serde::Serialize;
use serde_json::{Map, Value};

use crate::go::double_text;

/// The document, ending in a newline. Fails on NaN and infinities: upstream converts through JSON, which has neither.
pub fn write(root: &impl Serialize) -> Result<String, String> {
    let mut out = String::new();
    // The conversion also sorts the keys.
    if let Value::Object(fields) = serde_json::to_value(root).map_err(|error| error.to_string())? {
        write_fields(&mut out, &fields, 0, "");
    }
    Ok(out)
}

/// `lead`, the dash of a list item, replaces the indentation of the first key.
fn write_fields(out: &mut String, fields: &Map<String, Value>, indent: usize, lead: &str) {
    for (index, (key, value)) in fields.iter().enumerate() {
        let pad = " ".repeat(indent);
        out.push_str(if index == 0 && !lead.is_empty() { lead } else { &pad });
        out.push_str(&text(key));
        out.push(':');
        match value {
            Value::Object(fields) if !fields.is_empty() => {
                out.push('\n');
                write_fields(out, fields, indent + 2, "");
            }
            Value::Array(items) if !items.is_empty() => {
                out.push('\n');
                let dash = format!("{pad}- ");
                for item in items {
                    if let Value::Object(fields) = item {
                        write_fields(out, fields, indent + 2, &dash);
                    } else {
                        out.push_str(&format!("{dash}{}\n", scalar(item)));
                    }
                }
            }
            _ => out.push_str(&format!(" {}\n", scalar(value))),
        }
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::Number(number) if number.is_f64() => double_text(number.as_f64().unwrap_or_default()),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(value) => text(value),
        Value::Array(_) => "[]".to_owned(),
        Value::Object(_) => "{}".to_owned(),
    }
}

/// A plain scalar if that parses to the same string; double quotes if it would parse to another type or has characters
/// that are not printable.
fn text(text: &str) -> String {
    if parses_as_another_type(text) || !text.chars().all(is_printable) {
        double_quoted(text)
    } else if is_plain(text) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "''"))
    }
}

fn is_plain(text: &str) -> bool {
    let mut before = None;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let ends_word = chars.peek().is_none_or(|next| *next == ' ');
        let special = match c {
            ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%' | '@' | '`' => {
                before.is_none()
            }
            '#' => before.is_none_or(|before| before == ' '),
            '?' | '-' => before.is_none() && ends_word,
            ':' => ends_word,
            _ => false,
        };
        if special {
            return false;
        }
        before = Some(c);
    }
    !text.starts_with([' ']) && !text.ends_with(' ') && !text.starts_with("---") && !text.starts_with("...")
}

fn is_printable(c: char) -> bool {
    matches!(c, ' '..='~' | '\u{a0}'..='\u{2027}' | '\u{202a}'..='\u{d7ff}' | '\u{e000}'..='\u{fefe}' | '\u{ff00}'..='\u{fffd}')
}

fn double_quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            _ if is_printable(c) => quoted.push(c),
            _ => quoted.push_str(&match u32::from(c) {
                code @ ..0x100 => format!("\\x{code:02X}"),
                code @ 0x100..0x1_0000 => format!("\\u{code:04X}"),
                code => format!("\\U{code:08X}"),
            }),
        }
    }
    quoted.push('"');
    quoted
}

/// Whether YAML 1.1 resolves a plain scalar to something other than a string.
fn parses_as_another_type(text: &str) -> bool {
    const WORDS: &str = " y Y yes Yes YES on On ON n N no No NO off Off OFF true True TRUE false False FALSE \
                         ~ null Null NULL .nan .NaN .NAN .inf .Inf .INF ";
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    text.is_empty()
        || WORDS.split(' ').any(|word| word == text)
        || matches!(unsigned, ".inf" | ".Inf" | ".INF")
        || (!unsigned.starts_with('_') && is_number(&unsigned.to_ascii_lowercase().replace('_', "")))
        || is_sexagesimal(unsigned)
        || is_date(text)
}

fn is_number(text: &str) -> bool {
    let digits = |text: &str, base| !text.is_empty() && text.chars().all(|c| c.is_digit(base));
    if let Some((base, body)) = [("0x", 16), ("0b", 2), ("0o", 8)]
        .iter()
        .find_map(|(prefix, base)| text.strip_prefix(prefix).map(|body| (*base, body)))
    {
        return digits(body, base);
    }
    let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    (digits(whole, 10) || (whole.is_empty() && digits(fraction, 10)))
        && (fraction.is_empty() || digits(fraction, 10))
        && digits(exponent.strip_prefix(['-', '+']).unwrap_or(exponent), 10)
}

/// YAML 1.1 has numbers in base 60: `1:30` is 90. The last group may have a fraction.
fn is_sexagesimal(text: &str) -> bool {
    let Some((first, groups)) = text.split_once(':') else { return false };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
    let (groups, fraction) = groups.split_once('.').unwrap_or((groups, ""));
    first.starts_with(|c: char| c.is_ascii_digit())
        && digits(first)
        && digits(fraction)
        && groups
            .split(':')
            .all(|group| group.len() <= 2 && group.parse::<u8>().is_ok_and(|group| group < 60))
}

fn is_date(text: &str) -> bool {
    let day = text.split(['T', 't', ' ']).next().unwrap_or(text);
    let parts: Vec<_> = day.split('-').collect();
    let digits = |part: &&str| part.bytes().all(|byte| byte.is_ascii_digit());
    matches!(parts.iter().map(|part| part.len()).collect::<Vec<_>>()[..], [4, 1..=2, 1..=2])
        && parts.iter().all(digits)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::document;
    use super::*;

    proptest! {
        #[test]
        fn any_string_parses_to_itself(text in any::<String>()) {
            let root = serde_json::json!({ "key": text });
            let written = write(&root).unwrap();
            let read = document::read(&written).map(|document| document.root);
            prop_assert_eq!(read, Ok(root), "{}", written);
        }
    }

    #[test]
    fn strings_are_quoted_only_where_upstream_quotes() {
        for (value, want) in [
            ("plain", "plain"),
            ("/a/b.conf", "/a/b.conf"),
            ("a:b", "a:b"),
            (":a", ":a"),
            ("-a", "-a"),
            ("a'b", "a'b"),
            ("a,b", "a,b"),
            ("a\\b", "a\\b"),
            ("1.2.3.4", "1.2.3.4"),
            ("010.2.3.0/24,fd00::/8", "010.2.3.0/24,fd00::/8"),
            ("0.0.0.0:1", "0.0.0.0:1"),
            ("1:60", "1:60"),
            ("1 2", "1 2"),
            ("1a", "1a"),
            ("1e", "1e"),
            ("0x", "0x"),
            ("._", "._"),
            ("_1", "_1"),
            ("é", "é"),
            ("::", "'::'"),
            ("[::]:10256", "'[::]:10256'"),
            ("a: b", "'a: b'"),
            ("a #b", "'a #b'"),
            ("'a", "'''a'"),
            ("- a", "'- a'"),
            ("---", "'---'"),
            (" a", "' a'"),
            ("a ", "'a '"),
            ("*a", "'*a'"),
            ("", r#""""#),
            ("yes", r#""yes""#),
            ("~", r#""~""#),
            ("0", r#""0""#),
            ("+1", r#""+1""#),
            ("08", r#""08""#),
            ("0x1f", r#""0x1f""#),
            ("0X1F", r#""0X1F""#),
            ("1_000", r#""1_000""#),
            ("1e3", r#""1e3""#),
            (".5", r#"".5""#),
            ("-.inf", r#""-.inf""#),
            ("1:30", r#""1:30""#),
            ("12:30:45", r#""12:30:45""#),
            ("2001-01-01", r#""2001-01-01""#),
            ("2001-01-01T00:00:00Z", r#""2001-01-01T00:00:00Z""#),
            ("a\tb", r#""a\tb""#),
            ("a\u{1}b", r#""a\x01b""#),
            ("😀", r#""\U0001F600""#),
        ] {
            assert_eq!(text(value), want, "{value:?}");
        }
    }
}
