//! Quotes arbitrary text as one argument in the input of `iptables-restore`.
//!
//! A line feed always ends a rule, even in quotes. Blanks separate arguments, except in double quotes, where a backslash
//! escapes the next character. A line feed or a zero byte cannot be written at all. The API server and the kernel allow
//! none of these characters in the names of objects and interfaces; quoting keeps rules intact should one get this far.

use std::borrow::Cow;
use std::fmt::Display;

/// The maximum length of a comment in bytes, to which all quoted text is cut. So no line reaches the 10,239 bytes at which
/// `iptables-restore` splits it.
pub const LONGEST: usize = 255;

/// The text as one argument; as upstream, in quotes only if it needs them.
pub fn word(text: &str) -> Cow<'_, str> {
    let is_plain = |c: char| !needs_quotes(c) && !c.is_control();
    if !text.is_empty() && text.len() <= LONGEST && text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in argument(text).chars() {
        if matches!(c, '"' | '\'' | '\\') {
            quoted.push('\\'); // as `iptables-save` does
        }
        quoted.push(c);
    }
    quoted.push('"');
    Cow::Owned(quoted)
}

/// The text as the kernel gets it: cut to [`LONGEST`] bytes, with a question mark for each character that cannot be written.
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

/// The match that only adds a comment.
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
