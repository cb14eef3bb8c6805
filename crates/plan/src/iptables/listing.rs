//! Translates rules of `iptables-restore` to the form that `iptables-save` prints, to compare them.

use std::collections::BTreeMap;

use model::address::Family;

use super::saved_rule::{split_at_quote, words};

/// The rules of one table by chain, as `iptables-save` prints them, without `-A` and the chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing(pub BTreeMap<String, Vec<String>>);

impl Listing {
    /// Leaves out what differs between runs: remarks and counters.
    pub fn parse(save: &str) -> Self {
        let mut listing = Self::default();
        for line in save.lines() {
            if let Some(chain) = line.strip_prefix(':') {
                let name = chain.split(' ').next().unwrap_or_default();
                listing.0.entry(name.to_owned()).or_default();
            } else if let Some((chain, rule)) = line.strip_prefix("-A ").and_then(|line| line.split_once(' '))
            {
                listing.0.entry(chain.to_owned()).or_default().push(rule.to_owned());
            }
        }
        listing
    }
}

/// The rule as `iptables-save` prints it: addresses, interface and protocol come first, and the rest keeps its order, though
/// some values are printed differently.
pub fn as_saved(rule: &str, family: Family) -> String {
    let (single, mask) = match family {
        Family::V4 => ("/32", "255.255.255.255"),
        Family::V6 => ("/128", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    };
    let address = |word: &str| if word.contains('/') { word.to_owned() } else { format!("{word}{single}") };
    let (mut source, mut destination, mut interface, mut protocol) =
        <(String, String, String, String)>::default();
    let (mut rest, mut sign) = (String::new(), "");
    let mut words = words(rule).into_iter().map(|word| word.text).peekable();
    while let Some(word) = words.next() {
        let not = std::mem::take(&mut sign);
        let mut next = || words.next().unwrap_or_default();
        match word {
            "!" => sign = "! ",
            "-s" => source = format!("{not}-s {} ", address(next())),
            "-d" => destination = format!("{not}-d {} ", address(next())),
            "-i" => interface = format!("{not}-i {} ", next()),
            "-p" => protocol = format!("-p {} ", next()),
            "--comment" => rest += &format!("--comment \"{}\" ", next()),
            "--or-mark" => {
                let mark = number(next());
                rest += &format!("--set-xmark {mark}/{mark} ");
            }
            "--xor-mark" => rest += &format!("--set-xmark {}/0x0 ", number(next())),
            "--mark" => {
                let (mark, mask) = next().split_once('/').unwrap_or_default();
                rest += &format!("{not}--mark {}/{} ", number(mark), number(mask));
            }
            "--probability" => rest += &format!("--probability {} ", probability(next())),
            // It prints two blanks.
            "--nfacct-name" => rest += &format!("--nfacct-name  {} ", next()),
            "--name" => {
                let name = next();
                while let Some(word) = words.next_if(|word| !["-m", "-p", "-j"].contains(word)) {
                    rest += &format!("{word} ");
                }
                rest += &format!("--name {name} --mask {mask} --rsource ");
            }
            word => rest += &format!("{not}{word} "),
        }
    }
    let saved = format!("{source}{destination}{interface}{protocol}{rest}");
    let saved = saved.trim_end();
    match (saved.strip_suffix("-j REJECT"), family) {
        (Some(start), Family::V4) => format!("{start}-j REJECT --reject-with icmp-port-unreachable"),
        (Some(start), Family::V6) => format!("{start}-j REJECT --reject-with icmp6-port-unreachable"),
        (None, _) => saved.to_owned(),
    }
}

/// The same rule without its comment, which large clusters leave out.
pub fn without_comment(rule: &str) -> String {
    const COMMENT: &str = "-m comment --comment \"";
    let Some((before, after)) = rule.split_once(COMMENT) else { return rule.to_owned() };
    format!("{before}{}", split_at_quote(after).1.trim_start())
}

/// Without leading zeros.
fn number(word: &str) -> String {
    u32::from_str_radix(word.trim_start_matches("0x"), 16)
        .map_or(word.to_owned(), |mark| format!("{mark:#x}"))
}

/// The kernel stores probabilities as multiples of 2^-31.
fn probability(text: &str) -> String {
    let steps = f64::from(1u32 << 31);
    let chance = text.parse::<f64>().map(|chance| (chance * steps).round() / steps);
    chance.map_or(text.to_owned(), |chance| format!("{chance:.11}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    // The tests of the crate `kernel` compare this with real listings.
    #[test]
    fn a_comment_can_be_left_out() {
        let rule = r#"-d 10.96.0.10/32 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-X"#;
        assert_eq!(without_comment(rule), "-d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-X");
    }
}
