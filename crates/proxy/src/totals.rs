//! Totals that never decrease. The kernel counts per element of a set, and the counter of an element that is replaced starts at
//! zero; totals add up over that, so that rates can be computed from them.

use std::collections::BTreeMap;

/// What was counted for each `Owner`, over all of its elements.
#[derive(Clone, Debug)]
pub struct Totals<Owner, Element> {
    /// The counters as last read from the kernel.
    counted: BTreeMap<(Owner, Element), u64>,
    totals: BTreeMap<Owner, Total>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// Since the elements of the first count were added to the kernel.
    pub count: u64,
    /// Since the count before.
    pub more: u64,
}

impl<Owner, Element> Default for Totals<Owner, Element> {
    fn default() -> Self {
        Self { counted: BTreeMap::new(), totals: BTreeMap::new() }
    }
}

impl<Owner: Clone + Ord, Element: Ord> Totals<Owner, Element> {
    /// Adds all counters that the kernel holds now. Forgets owners that have no element any more.
    pub fn add(&mut self, found: impl IntoIterator<Item = (Owner, Element, u64)>) {
        let mut counted: BTreeMap<_, u64> = BTreeMap::new();
        for (owner, element, count) in found {
            *counted.entry((owner, element)).or_default() += count;
        }
        let mut totals: BTreeMap<Owner, Total> = BTreeMap::new();
        for (key, count) in &counted {
            let before = self.counted.get(key).copied().unwrap_or_default();
            let more = count.checked_sub(before).unwrap_or(*count);
            totals.entry(key.0.clone()).or_default().more += more;
        }
        for (owner, total) in &mut totals {
            total.count = self.of(owner).count + total.more;
        }
        self.totals = totals;
        self.counted = counted;
    }

    pub fn of(&self, owner: &Owner) -> Total {
        self.totals.get(owner).copied().unwrap_or_default()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Owner, Total)> {
        self.totals.iter().map(|(owner, total)| (owner, *total))
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
            "the count of an element stays when it is removed"
        );
    }
}
