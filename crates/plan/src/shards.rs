//! A map that is cheap to clone at any size: clones share the shards that neither of them has changed since.
//!
//! ```text
//!   ours   a   b   c'  d      the first change to a shard copies it, unless no clone shares it any more
//!          │   │       │
//!   clone  a   b   c   d
//! ```

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use foldhash::fast::RandomState;

/// One for each value of a byte. With more, clones would cost more; with fewer, the changes after them.
const SHARDS: usize = 256;

/// A map without an order.
#[derive(Clone, Debug)]
pub struct Shards<K, V> {
    shards: Box<[Shard<K, V>]>,
    /// Not that of the shards: keys that it puts into the same shard must not collide there again.
    hasher: RandomState,
}

type Shard<K, V> = Arc<HashMap<K, V, RandomState>>;

impl<K, V> Default for Shards<K, V> {
    fn default() -> Self {
        Self { shards: vec![Shard::default(); SHARDS].into(), hasher: RandomState::default() }
    }
}

impl<K, V> Shards<K, V> {
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.shards.iter().flat_map(|shard| shard.iter())
    }

    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.is_empty())
    }
}

impl<K: Eq + Hash + Clone, V: Clone> Shards<K, V> {
    pub fn get(&self, key: &K) -> Option<&V> {
        self.shards.get(self.place(key))?.get(key)
    }

    pub fn contains_key(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.own(key)?.get_mut(key)
    }

    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.own(&key)?.insert(key, value)
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        self.own(key)?.remove(key)
    }

    /// The shard of the key, copied if a clone shares it.
    fn own(&mut self, key: &K) -> Option<&mut HashMap<K, V, RandomState>> {
        let place = self.place(key);
        self.shards.get_mut(place).map(Arc::make_mut)
    }

    fn place(&self, key: &K) -> usize {
        let [byte, ..] = self.hasher.hash_one(key).to_le_bytes();
        byte.into()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Op {
        Insert(u16, u8),
        Change(u16, u8),
        Remove(u16),
        Clone,
    }

    fn op() -> impl Strategy<Value = Op> {
        let key = || 0..300_u16;
        prop_oneof![
            8 => (key(), any::<u8>()).prop_map(|(key, value)| Op::Insert(key, value)),
            4 => (key(), any::<u8>()).prop_map(|(key, value)| Op::Change(key, value)),
            4 => key().prop_map(Op::Remove),
            1 => Just(Op::Clone),
        ]
    }

    fn content(map: &Shards<u16, u8>) -> BTreeMap<u16, u8> {
        map.iter().map(|(key, value)| (*key, *value)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn it_is_a_map_and_so_are_its_clones(ops in vec(op(), 0..500)) {
            let (mut map, mut expected) = (Shards::default(), BTreeMap::new());
            let mut clones = Vec::new();
            for op in ops {
                match op {
                    Op::Insert(key, value) => prop_assert_eq!(map.insert(key, value), expected.insert(key, value)),
                    Op::Change(key, value) => {
                        let (found, value_of) = (map.get_mut(&key), expected.get_mut(&key));
                        prop_assert_eq!(&found, &value_of);
                        found.into_iter().chain(value_of).for_each(|it| *it = value);
                    }
                    Op::Remove(key) => prop_assert_eq!(map.remove(&key), expected.remove(&key)),
                    Op::Clone => clones.push((map.clone(), expected.clone())),
                }
            }
            clones.push((map, expected));
            for (map, expected) in clones {
                prop_assert!((0..300).all(|key| map.get(&key) == expected.get(&key)));
                prop_assert_eq!(content(&map), expected);
            }
        }
    }

    #[test]
    fn a_change_copies_the_shard_it_is_in_and_only_once() {
        let mut map = Shards::default();
        (0..10_000).for_each(|key| _ = map.insert(key, key));
        let apart = |one: &Shards<_, _>, other: &Shards<_, _>| {
            one.shards.iter().zip(&other.shards).filter(|(one, other)| !Arc::ptr_eq(one, other)).count()
        };
        let clone = map.clone();
        assert_eq!(apart(&map, &clone), 0);
        map.insert(7, 8);
        assert_eq!(apart(&map, &clone), 1);
        let before = map.shards.iter().map(Arc::as_ptr).collect::<Vec<_>>();
        map.insert(7, 9);
        drop(clone);
        (0..10_000).for_each(|key| _ = map.remove(&key));
        assert!(before.iter().zip(&map.shards).all(|(before, after)| *before == Arc::as_ptr(after)));
    }
}
