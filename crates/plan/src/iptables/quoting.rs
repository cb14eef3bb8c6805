//! How arbitrary text gets into the input of `iptables-restore` and stays one argument there.
//!
//! A line is an entry of its own whatever is quoted, arguments are separated by blanks, double quotes keep blanks
//! together, and within them a backslash takes away the meaning of the next character. There is no way to write a line
//! feed or a zero. Names of objects and interfaces have none of that, and neither reach this far nor change here: this
//! is for the day on which something else lets them through.

use std::borrow::Cow;
use std::fmt::Display;

/// In bytes: what a comment can have. Nothing that we quote may be longer, and no line comes near the 10,239 bytes at
/// which `iptables-restore` cuts it in two.
pub const LONGEST: usize = 255;

/// The text as one argument. Written as upstream does: in quotes only if it needs them.
pub fn word(text: &str) -> Cow<'_, str> {
    let is_plain = |c: char| !needs_quotes(c) && !c.is_control();
    if !text.is_empty() && text.len() <= LONGEST && text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in argument(text).chars() {
        if matches!(c, '"' | '\'' | '\\') {
            quoted.push('\\'); // `iptables-save` does so before each of these
        }
        quoted.push(c);
    }
    quoted.push('"');
    Cow::Owned(quoted)
}

/// The text as it arrives: cut at [`LONGEST`], with a question mark for each character that cannot be written.
pub fn argument(text: &str) -> String {
    let mut left = LONGEST;
    let printable = text.chars().map(|c| if c.is_control() { '?' } else { c });
    let fitting = printable.take_while(|c| {
        let fits = c.len_utf8() <= left;
        left = left.saturating_sub(c.len_utf8());
        fits
    });
    fitting.collect()
}

/// The match that does nothing but say what a rule is for.
pub fn comment(text: impl Display) -> String {
    format!("-m comment --comment {}", word(&text.to_string()))
}

fn needs_quotes(c: char) -> bool {
    matches!(c, ' ' | '"' | '\'' | '\\')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_quoted_as_upstream_does_it() {
        for (text, want) in [
            ("shop/web:http", "shop/web:http"),
            ("shop/web:http cluster IP", "\"shop/web:http cluster IP\""),
            ("", "\"\""),
            ("a\"b", r#""a\"b""#),
            ("a\\", r#""a\\""#),
            ("it's", r#""it\'s""#),
            ("a\nCOMMIT\r\0", "\"a?COMMIT??\""),
            ("é\u{85}", "\"é?\""),
        ] {
            assert_eq!(word(text), want, "{text:?}");
        }
        assert_eq!(word(&"é".repeat(128)), format!("\"{}\"", "é".repeat(127)), "never half a character");
    }
}
