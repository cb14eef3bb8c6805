//! `--vmodule`: the verbosity of source files whose name matches a pattern.

/// The verbosity of the first pattern that matches the file's name without directory and extension.
pub(super) fn verbosity(patterns: &[(String, u32)], file: &str) -> Option<u32> {
    let name = file.rsplit('/').next().unwrap_or(file);
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    patterns.iter().find(|(pattern, _)| matches(pattern.as_bytes(), stem.as_bytes())).map(|(_, level)| *level)
}

/// Go's `filepath.Match`. A malformed pattern matches nothing.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern, name) {
        ([], _) => name.is_empty(),
        ([b'*', rest @ ..], _) => {
            (0..=name.len()).any(|skip| matches(rest, name.get(skip..).unwrap_or_default()))
        }
        (_, []) => false,
        ([b'?', rest @ ..], [_, name @ ..]) => matches(rest, name),
        ([b'[', rest @ ..], [first, name @ ..]) => {
            class(rest, *first).is_some_and(|(inside, rest)| inside && matches(rest, name))
        }
        ([b'\\', literal, rest @ ..] | [literal, rest @ ..], [first, name @ ..]) => {
            literal == first && matches(rest, name)
        }
    }
}

/// Whether the byte is in the class, and the rest of the pattern; `None` if the class is not closed.
fn class(pattern: &[u8], byte: u8) -> Option<(bool, &[u8])> {
    let (negated, mut rest) = match pattern {
        [b'^', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let mut inside = false;
    let mut first = true;
    loop {
        rest = match rest {
            [b']', rest @ ..] if !first => return Some((inside != negated, rest)),
            [low, b'-', high, rest @ ..] => {
                inside |= (*low..=*high).contains(&byte);
                rest
            }
            [one, rest @ ..] => {
                inside |= *one == byte;
                rest
            }
            [] => return None,
        };
        first = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_the_name_of_the_file() {
        for (pattern, file, want) in [
            ("flags", "crates/proxy/src/flags.rs", true),
            ("flag", "crates/proxy/src/flags.rs", false),
            ("flags.rs", "crates/proxy/src/flags.rs", false),
            ("proxy", "crates/proxy/src/flags.rs", false),
            ("f*", "flags.rs", true),
            ("*", "flags.rs", true),
            ("*gs", "flags.rs", true),
            ("f*x*s", "flags.rs", false),
            ("flag?", "flags.rs", true),
            ("flags?", "flags.rs", false),
            ("[a-f]lags", "flags.rs", true),
            ("[^a-f]lags", "flags.rs", false),
            ("[xyz]lags", "flags.rs", false),
            ("[flags", "flags.rs", false),
            ("fl\\ags", "flags.rs", true),
        ] {
            let patterns = [(pattern.to_owned(), 5)];
            assert_eq!(verbosity(&patterns, file).is_some(), want, "{pattern} on {file}");
        }
    }

    #[test]
    fn the_first_pattern_that_matches_decides() {
        let patterns = [("fl*".to_owned(), 2), ("flags".to_owned(), 7)];
        assert_eq!(verbosity(&patterns, "flags.rs"), Some(2));
    }
}
