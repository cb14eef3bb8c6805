//! Changes single rules of shared chains, instead of writing ten thousand of them again.

use crate::iptables::chains::SharedChain;
use crate::iptables::restore::Section;

/// One value for each shared chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerChain<T>([T; 6]);

impl<T> PerChain<T> {
    pub fn get(&self, chain: SharedChain) -> &T {
        let [a, b, c, d, e, f] = &self.0;
        match chain {
            SharedChain::Refused => a,
            SharedChain::ExternalRefused => b,
            SharedChain::HealthChecks => c,
            SharedChain::ProxyFirewall => d,
            SharedChain::Services => e,
            SharedChain::NodePorts => f,
        }
    }

    pub fn get_mut(&mut self, chain: SharedChain) -> &mut T {
        let [a, b, c, d, e, f] = &mut self.0;
        match chain {
            SharedChain::Refused => a,
            SharedChain::ExternalRefused => b,
            SharedChain::HealthChecks => c,
            SharedChain::ProxyFirewall => d,
            SharedChain::Services => e,
            SharedChain::NodePorts => f,
        }
    }
}

/// Consecutive rules of a chain that are replaced by others.
#[derive(Debug, PartialEq, Eq)]
pub struct Splice {
    /// The position of the first rule, from one, after all changes above it.
    pub at: usize,
    pub delete: usize,
    pub insert: Vec<String>,
}

impl Splice {
    /// The splice from the rules `before`, the first of them at position `at`, to `after`. Common rules at both ends stay.
    pub fn between(at: usize, before: &[String], after: &[String]) -> Option<Self> {
        let same_head = before.iter().zip(after).take_while(|(a, b)| a == b).count();
        let (_, before) = before.split_at(same_head);
        let (_, after) = after.split_at(same_head);
        let same_tail = before.iter().rev().zip(after.iter().rev()).take_while(|(a, b)| a == b).count();
        let delete = before.len() - same_tail;
        let insert: Vec<String> = after.iter().take(after.len() - same_tail).cloned().collect();
        (delete > 0 || !insert.is_empty()).then_some(Self { at: at + same_head, delete, insert })
    }

    /// The number of lines of text.
    pub fn cost(&self) -> usize {
        self.delete + self.insert.len()
    }

    pub fn write(&self, chain: &str, section: &mut Section) {
        for _ in 0..self.delete {
            section.delete(chain, self.at);
        }
        for (rule, at) in self.insert.iter().zip(self.at..) {
            section.insert(chain, at, rule);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rules(text: &str) -> Vec<String> {
        text.chars().map(String::from).collect()
    }

    #[test]
    fn what_two_lists_begin_and_end_with_is_left_alone() {
        for (before, after, want) in [
            ("", "", None),
            ("abc", "abc", None),
            ("abc", "abxc", Some((12, 0, "x"))),
            ("abc", "ac", Some((11, 1, ""))),
            ("abc", "axyc", Some((11, 1, "xy"))),
            ("", "ab", Some((10, 0, "ab"))),
            ("ab", "", Some((10, 2, ""))),
            ("aa", "a", Some((11, 1, ""))),
        ] {
            let want = want.map(|(at, delete, insert)| Splice { at, delete, insert: rules(insert) });
            assert_eq!(Splice::between(10, &rules(before), &rules(after)), want, "{before} -> {after}");
        }
    }

    proptest! {
        #[test]
        fn a_splice_leads_from_one_list_to_the_other(before in "[ab]{0,5}", after in "[ab]{0,5}") {
            let mut list = rules(&before);
            if let Some(splice) = Splice::between(1, &list.clone(), &rules(&after)) {
                let from = splice.at - 1;
                list.splice(from..from + splice.delete, splice.insert);
            }
            prop_assert_eq!(list, rules(&after));
        }
    }
}
