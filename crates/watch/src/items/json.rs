//! A list as JSON.
//!
//! ```text
//!   {"kind":"ServiceList","metadata":{…},"items":[{…},{…},   …   ]}
//!    └─────────── remainder ───────────────────┘└item┘└item┘     └┘ remainder
//! ```

use serde::Deserialize;

use crate::meta::ListMeta;
use crate::wire::{MAX_OBJECT, Undecodable};

/// Contains the incomplete item, and everything around the items.
#[derive(Debug, Default)]
pub(crate) struct JsonItems {
    depth: usize,
    in_string: bool,
    is_escaped: bool,
    /// Whether the position is inside the array `items`.
    in_items: bool,
    /// The last string at the top level, which is the key of an array that follows.
    key: Vec<u8>,
    item: Vec<u8>,
    /// The list without its items.
    remainder: Vec<u8>,
}

impl JsonItems {
    /// Reads the next chunk, and calls `each` with every item that it completes.
    pub(crate) fn push(&mut self, bytes: &[u8], each: &mut dyn FnMut(&[u8])) -> Result<(), Undecodable> {
        for byte in bytes {
            self.take(*byte, each);
        }
        if self.item.len() + self.remainder.len() > MAX_OBJECT { Err(Undecodable::TooLong) } else { Ok(()) }
    }

    /// The metadata, once the list is complete.
    pub(crate) fn finish(self) -> serde_json::Result<ListMeta> {
        #[derive(Deserialize)]
        struct List {
            metadata: ListMeta,
        }
        serde_json::from_slice::<List>(&self.remainder).map(|list| list.metadata)
    }

    fn take(&mut self, byte: u8, each: &mut dyn FnMut(&[u8])) {
        // The remainder gets an empty array: commas between items are dropped.
        let between = self.in_items && self.depth == 2;
        let in_item = self.in_items && (self.depth > 2 || byte == b'{');
        if in_item {
            self.item.push(byte);
        } else if !between || byte == b']' {
            self.remainder.push(byte);
        }
        if self.in_string {
            self.take_in_string(byte);
            return;
        }
        match byte {
            b'"' => {
                self.in_string = true;
                self.key.clear();
            }
            b'{' | b'[' => {
                self.in_items |= byte == b'[' && self.depth == 1 && self.key == b"items";
                self.depth += 1;
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                self.in_items &= self.depth >= 2;
            }
            _ => {}
        }
        if in_item && self.depth == 2 {
            each(&self.item);
            self.item.clear();
        }
    }

    fn take_in_string(&mut self, byte: u8) {
        match byte {
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' => self.is_escaped = true,
            b'"' => self.in_string = false,
            _ => {}
        }
        if self.depth == 1 && self.in_string {
            self.key.push(byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn split(chunks: &[&[u8]]) -> (Vec<Value>, ListMeta) {
        let mut items = JsonItems::default();
        let mut found = Vec::new();
        for chunk in chunks {
            items.push(chunk, &mut |item| found.push(serde_json::from_slice(item).unwrap())).unwrap();
        }
        (found, items.finish().unwrap())
    }

    #[test]
    fn a_list_is_split_into_items_and_metadata() {
        let (items, meta) =
            split(&[br#"{"kind":"ServiceList","metadata":{"resourceVersion":"7","continue":"a=="},
            "items":[ {"a":"}]"} , {"items":[{"b":"\"{"}]} ],"note":["items",[{}]]}"#]);
        assert_eq!(items, [json!({"a": "}]"}), json!({"items": [{"b": "\"{"}]})]);
        assert_eq!(meta, ListMeta { resource_version: "7".into(), r#continue: "a==".into() });
    }

    #[test]
    fn an_empty_list_may_be_null() {
        for items in ["[]", "null"] {
            let list = format!(r#"{{"metadata":{{"resourceVersion":"7"}},"items":{items}}}"#);
            let (items, meta) = split(&[list.as_bytes()]);
            assert_eq!((items.len(), meta.resource_version.as_str()), (0, "7"));
        }
    }

    #[test]
    fn a_truncated_list_is_an_error() {
        let mut items = JsonItems::default();
        let mut found = 0;
        items
            .push(br#"{"metadata":{"resourceVersion":"7"},"items":[{"a":1},{"b""#, &mut |_| found += 1)
            .unwrap();
        assert_eq!(found, 1);
        assert!(items.finish().is_err());
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf =
            prop_oneof![Just(Value::Null), any::<bool>().prop_map(Value::from), ".*".prop_map(Value::from)];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::hash_map("items|metadata|[a-z\"\\\\]*", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_list_in_any_chunks_gives_its_items(
            objects in proptest::collection::vec(value(), 0..5),
            extra in value(),
            size in 1_usize..40,
        ) {
            let objects: Vec<Value> = objects.into_iter().map(|value| json!({"value": value})).collect();
            let list = json!({"a": extra, "items": objects, "metadata": {"resourceVersion": "1"}, "z": extra});
            let text = list.to_string();
            let chunks: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
            let (items, meta) = split(&chunks);
            prop_assert_eq!(items, objects);
            prop_assert_eq!(meta.resource_version, "1");
        }
    }
}
