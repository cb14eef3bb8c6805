//! Parses a rule as `iptables-save` prints it. Comments contain names, which may look like options.

/// Its options in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SavedRule<'a> {
    pub options: Vec<SavedOption<'a>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedOption<'a> {
    pub name: &'a str,
    pub is_negated: bool,
    /// Empty for an option without a value.
    pub value: &'a str,
}

impl<'a> SavedRule<'a> {
    /// Parses a rule without `-A` and its chain.
    pub fn parse(text: &'a str) -> Self {
        let mut rule = Self::default();
        let mut words = words(text).into_iter().peekable();
        let mut is_negated = false;
        while let Some(Word { text: name, .. }) = words.next() {
            if name == "!" {
                is_negated = true;
                continue;
            }
            let value =
                words.next_if(|word| word.is_quoted || !(word.text.starts_with('-') || word.text == "!"));
            let value = value.map(|word| word.text).unwrap_or_default();
            rule.options.push(SavedOption { name, is_negated: std::mem::take(&mut is_negated), value });
        }
        rule
    }

    /// The value of the first option with this name that is not negated.
    pub fn value(&self, name: &str) -> Option<&'a str> {
        let option = self.options.iter().find(|option| option.name == name && !option.is_negated);
        option.map(|option| option.value)
    }

    /// The options that decide whether a packet matches: those before the target.
    pub fn matches(&self) -> &[SavedOption<'a>] {
        let end = self.options.iter().position(|option| ["-j", "-g"].contains(&option.name));
        self.options.get(..end.unwrap_or(self.options.len())).unwrap_or_default()
    }

    /// The target of `-j` or `-g`.
    pub fn target(&self) -> Option<&'a str> {
        self.value("-j").or_else(|| self.value("-g"))
    }

    pub fn comment(&self) -> Option<&'a str> {
        self.value("--comment")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word<'a> {
    /// Without quotes around it.
    pub text: &'a str,
    pub is_quoted: bool,
}

/// Splits at blanks, except in quotes. A backslash escapes a quote in quotes.
pub fn words(text: &str) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (text, after, is_quoted) = match rest.strip_prefix('"') {
            Some(quoted) => {
                let (text, after) = split_at_quote(quoted);
                (text, after, true)
            }
            None => {
                let (text, after) = rest.split_once(' ').unwrap_or((rest, ""));
                (text, after, false)
            }
        };
        words.push(Word { text, is_quoted });
        rest = after.trim_start();
    }
    words
}

/// The text before the closing quote, and the text after it.
pub fn split_at_quote(text: &str) -> (&str, &str) {
    let mut is_escaped = false;
    for (at, char) in text.char_indices() {
        match char {
            '"' if !is_escaped => {
                let (before, after) = text.split_at(at);
                return (before, after.strip_prefix('"').unwrap_or(after));
            }
            char => is_escaped = char == '\\' && !is_escaped,
        }
    }
    (text, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_with_their_values() {
        let rule = SavedRule::parse(
            r#"! -s 10.244.0.0/16 -d 10.96.0.10/32 -p tcp -m recent --rcheck --seconds 10800 -m tcp --dport 80 -j DNAT --to-destination 10.1.1.1:80"#,
        );
        assert_eq!(
            rule.options.first(),
            Some(&SavedOption { name: "-s", is_negated: true, value: "10.244.0.0/16" })
        );
        assert_eq!(rule.value("-s"), None);
        assert_eq!(rule.value("-d"), Some("10.96.0.10/32"));
        assert_eq!(rule.value("--rcheck"), Some(""));
        assert_eq!(rule.value("--seconds"), Some("10800"));
        assert_eq!(rule.value("--dport"), Some("80"));
        assert_eq!(rule.target(), Some("DNAT"));
        assert_eq!(rule.value("--to-destination"), Some("10.1.1.1:80"));
        assert_eq!(rule.value("--ctstate"), None);
    }

    #[test]
    fn names_in_comments_are_no_options() {
        for comment in [
            "default/node-js has no endpoints",
            "default/x-d",
            "a -j b",
            "-j",
            "! -d 10.0.0.1",
            r#"a \"-j b\" -d"#,
        ] {
            let text = format!(
                r#"-d 10.96.0.10/32 -p tcp -m comment --comment "{comment}" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable"#
            );
            let rule = SavedRule::parse(&text);
            assert_eq!(rule.comment(), Some(comment));
            assert_eq!(rule.value("-d"), Some("10.96.0.10/32"), "{comment}");
            assert_eq!(rule.value("--dport"), Some("80"), "{comment}");
            assert_eq!(rule.target(), Some("REJECT"), "{comment}");
        }
    }

    #[test]
    fn a_node_port_of_a_service_whose_name_ends_like_an_option_has_no_address() {
        let rule = SavedRule::parse(
            r#"-p tcp -m comment --comment "default/x-d" -m tcp --dport 30080 -j KUBE-EXT-X"#,
        );
        assert_eq!((rule.value("-d"), rule.target()), (None, Some("KUBE-EXT-X")));
    }
}
