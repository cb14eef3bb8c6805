//! The kernel counts per element of a set, and an element that is replaced starts again. Totals keep growing over that,
//! so that a rate over them means something.

use std::collections::BTreeMap;

/// What was counted for each `Whose`, over all of its elements.
#[derive(Clone, Debug)]
pub struct Totals<Whose, Element> {
    /// As the kernel last counted.
    counted: BTreeMap<(Whose, Element), u64>,
    totals: BTreeMap<Whose, Total>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// Since the elements were added that were there at the first count.
    pub count: u64,
    /// Since the count before.
    pub more: u64,
}

impl<Whose, Element> Default for Totals<Whose, Element> {
    fn default() -> Self {
        Self { counted: BTreeMap::new(), totals: BTreeMap::new() }
    }
}

impl<Whose: Clone + Ord, Element: Ord> Totals<Whose, Element> {
    /// Takes in all that the kernel holds now. Whoever has no element any more is forgotten.
    pub fn add(&mut self, found: impl IntoIterator<Item = (Whose, Element, u64)>) {
        let mut counted: BTreeMap<_, u64> = BTreeMap::new();
        for (whose, element, count) in found {
            *counted.entry((whose, element)).or_default() += count;
        }
        let mut totals: BTreeMap<Whose, Total> = BTreeMap::new();
        for (key, count) in &counted {
            let before = self.counted.get(key).copied().unwrap_or_default();
            let more = count.checked_sub(before).unwrap_or(*count);
            totals.entry(key.0.clone()).or_default().more += more;
        }
        for (whose, total) in &mut totals {
            total.count = self.of(whose).count + total.more;
        }
        self.totals = totals;
        self.counted = counted;
    }

    pub fn of(&self, whose: &Whose) -> Total {
        self.totals.get(whose).copied().unwrap_or_default()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Whose, Total)> {
        self.totals.iter().map(|(whose, total)| (whose, *total))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_outlive_the_elements_that_were_counted() {
        let mut totals = Totals::default();
        totals.add([("cart", 1, 5), ("cart", 2, 2), ("till", 1, 5)]);
        assert_eq!(totals.of(&"cart"), Total { count: 7, more: 7 });
        totals.add([("cart", 1, 1), ("cart", 2, 3)]);
        assert_eq!(
            totals.of(&"cart"),
            Total { count: 9, more: 2 },
            "one at an element that was replaced, and one more at the other"
        );
        assert_eq!(totals.of(&"till"), Total::default(), "gone");
        totals.add([("cart", 2, 3)]);
        assert_eq!(
            totals.of(&"cart"),
            Total { count: 9, more: 0 },
            "what an element counted stays when it goes"
        );
    }
}
