//! What the kernel holds as `iptables-save` prints it, and how it prints what a restore was told.

use std::collections::BTreeMap;

use model::address::Family;
use plan::iptables::chains::{CANARY, Jump};

use crate::commands::Commands;

/// Rules by table and chain, each with all its words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved(BTreeMap<(String, String), Vec<String>>);

impl Saved {
    pub fn read(commands: &Commands, family: Family) -> Self {
        let texts = ["filter", "nat"].map(|table| commands.save(family, table));
        Self::parse(&texts.concat())
    }

    /// Without what differs from run to run: remarks and counters. And without chains of the kernel's that are empty,
    /// which the nft variant has only after they were used.
    pub fn parse(text: &str) -> Self {
        let mut saved = Self::default();
        let mut table = "";
        for line in text.lines() {
            if let Some(name) = line.strip_prefix('*') {
                table = name;
            } else if let Some(chain) = line.strip_prefix(':') {
                if chain.contains(" - [") {
                    saved.chain(table, chain.split(' ').next().unwrap());
                }
            } else if let Some(rule) = line.strip_prefix("-A ") {
                let (chain, rule) = rule.split_once(' ').unwrap();
                saved.chain(table, chain).push(rule.to_owned());
            }
        }
        saved
    }

    /// The state after a restore into empty tables that had all jumps.
    pub fn expected(restore: &str, family: Family) -> Self {
        let mut saved = Self::default();
        for jump in Jump::ALL {
            saved.chain(jump.table.name(), jump.to);
            saved.chain(jump.table.name(), jump.from).insert(0, jump.rule());
        }
        let mut table = "";
        for line in restore.lines() {
            if let Some(name) = line.strip_prefix('*') {
                table = name;
            } else if let Some(chain) = line.strip_prefix(':') {
                saved.chain(table, chain.split(' ').next().unwrap());
            } else if let Some(rule) = line.strip_prefix("-A ") {
                let (chain, rule) = rule.split_once(' ').unwrap();
                saved.chain(table, chain).push(as_saved(rule, family));
            } else if let Some(chain) = line.strip_prefix("-X ") {
                saved.0.remove(&(table.to_owned(), chain.to_owned()));
            }
        }
        saved
    }

    fn chain(&mut self, table: &str, chain: &str) -> &mut Vec<String> {
        self.0.entry((table.to_owned(), chain.to_owned())).or_default()
    }

    pub fn without_canaries(mut self) -> Self {
        self.0.retain(|(_, chain), _| chain != CANARY);
        self
    }

    pub fn forget(&mut self, table: &str, chain: &str) {
        self.0.remove(&(table.to_owned(), chain.to_owned()));
    }

    pub fn of(&self, table: &str, chain: &str) -> Option<&Vec<String>> {
        self.0.get(&(table.to_owned(), chain.to_owned()))
    }

    /// As on a kernel that has none: without the rules that are there only to count, and without the words that count.
    pub fn without_counters(mut self) -> Self {
        for rules in self.0.values_mut() {
            rules.retain(|rule| !rule.contains("localhost_nps_accepted_pkts"));
            for rule in rules {
                *rule = rule.replace(" -m nfacct --nfacct-name  ct_state_invalid_dropped_pkts", "");
            }
        }
        self
    }

    pub fn rules(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    /// The first chain that differs says more than two pages of text.
    pub fn assert_same(&self, want: &Self, what: &str) {
        for chain in self.0.keys().chain(want.0.keys()) {
            assert_eq!(self.0.get(chain), want.0.get(chain), "{what}: {} {}", chain.0, chain.1);
        }
    }
}

/// Addresses, interface and protocol come first; everything else stays in its order, but for how it is written.
fn as_saved(rule: &str, family: Family) -> String {
    let (single, mask) = match family {
        Family::V4 => ("/32", "255.255.255.255"),
        Family::V6 => ("/128", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    };
    let address = |word: &str| if word.contains('/') { word.to_owned() } else { format!("{word}{single}") };
    let number =
        |word: &str| format!("{:#x}", u32::from_str_radix(word.trim_start_matches("0x"), 16).unwrap());
    let (mut source, mut destination, mut interface, mut protocol) =
        <(String, String, String, String)>::default();
    let (mut rest, mut not) = (String::new(), "");
    let words = words(rule);
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        let mut next = || words.next().unwrap();
        let sign = std::mem::take(&mut not);
        match word {
            "!" => not = "! ",
            "-s" => source = format!("{sign}-s {} ", address(next())),
            "-d" => destination = format!("{sign}-d {} ", address(next())),
            "-i" => interface = format!("{sign}-i {} ", next()),
            "-p" => protocol = format!("-p {} ", next()),
            "--comment" => rest += &format!("--comment \"{}\" ", next().trim_matches('"')),
            "--or-mark" => {
                let mark = number(next());
                rest += &format!("--set-xmark {mark}/{mark} ");
            }
            "--xor-mark" => rest += &format!("--set-xmark {}/0x0 ", number(next())),
            "--mark" => {
                let (mark, mask) = next().split_once('/').unwrap();
                rest += &format!("{sign}--mark {}/{} ", number(mark), number(mask));
            }
            "--probability" => rest += &format!("--probability {} ", probability(next())),
            "--nfacct-name" => rest += &format!("--nfacct-name  {} ", next()),
            "--name" => {
                let name = next().to_owned();
                let what: Vec<&str> =
                    words.by_ref().take_while(|word| *word != "-m" && *word != "-j").collect();
                // What ended it has been taken: a protocol after `--set`, a target after `--reap`.
                rest += &format!("{} --name {name} --mask {mask} --rsource ", what.join(" "));
                rest += if what.contains(&"--set") { "-m " } else { "-j " };
            }
            word => rest += &format!("{sign}{word} "),
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

/// The kernel keeps chances as multiples of 2^-31.
fn probability(text: &str) -> String {
    let chance: f64 = text.parse().unwrap();
    let steps = f64::from(1u32 << 31);
    format!("{:.11}", (chance * steps).round() / steps)
}

/// Words at blanks, but not within quotes.
fn words(rule: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut is_quoted = false;
    for part in rule.split(' ') {
        match words.last_mut() {
            Some(last) if is_quoted => *last += &format!(" {part}"),
            _ => words.push(part.to_owned()),
        }
        is_quoted ^= part.matches('"').count() % 2 == 1;
    }
    words
}
