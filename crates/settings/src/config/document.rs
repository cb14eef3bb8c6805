//! A configuration file as a tree, before anything is known about its fields.
//!
//! ```text
//!   YAML ─┐                          ┌─▶ YAML, keys sorted (--write-config-to)
//!         ├─▶ Node ─▶ fields ─▶ Node ┤
//!   JSON ─┘                          └─▶ JSON, keys in order (/configz)
//! ```
//!
//! What counts as the document, and what of it, follows the reference: the first YAML document, or JSON if it starts
//! like JSON.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_saphyr::options::{DuplicateKeyPolicy, NonFiniteFloatPolicy};
use serde_saphyr::{Spanned, options};

use crate::go::quote;

#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    List(Vec<Self>),
    Map(Vec<(String, Self)>),
}

impl Node {
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// Go writes a whole number without a point, and so forgets that it ever was a float.
    #[allow(clippy::cast_possible_truncation)] // the range is checked
    pub fn float(value: f64) -> Self {
        if value.fract() == 0.0 && value.abs() < 1e21 {
            Self::Integer(value as i128)
        } else {
            Self::Float(value)
        }
    }

    /// What Go calls this kind of JSON value.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "bool",
            Self::Integer(_) | Self::Float(_) => "number",
            Self::Text(_) => "string",
            Self::List(_) => "array",
            Self::Map(_) => "object",
        }
    }

    /// The last value of a key, as later duplicates win.
    pub fn get(&self, key: &str) -> Option<&Self> {
        let Self::Map(entries) = self else { return None };
        entries.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value)
    }
}

/// A document read, and what the YAML standard would have refused about it but older parsers let pass.
#[derive(Debug)]
pub struct Document {
    pub root: Node,
    pub duplicate_keys: Vec<String>,
}

/// Reads YAML or JSON; the error is the sentence to show after `failed to decode: `.
pub fn read(text: &str) -> Result<Document, String> {
    if text.trim_start().starts_with('{') { read_json(text) } else { read_yaml(text) }
}

fn read_json(text: &str) -> Result<Document, String> {
    let mut json = serde_json::Deserializer::from_str(text);
    Reader { duplicates: None }
        .deserialize(&mut json)
        .and_then(|root| json.end().map(|()| Document { root, duplicate_keys: Vec::new() }))
        .map_err(|error| format!("couldn't get version/kind; json parse error: {error}"))
}

fn read_yaml(text: &str) -> Result<Document, String> {
    let options = options! {
        duplicate_keys: DuplicateKeyPolicy::LastWins,
        legacy_octal_numbers: true,
        non_finite_float_policy: NonFiniteFloatPolicy::AsString,
        with_snippet: false,
    };
    let duplicates = RefCell::new(Vec::new());
    let reader = Reader { duplicates: Some(&duplicates) };
    let first = first_document(text);
    let root = serde_saphyr::with_deserializer_from_str_with_options(first, options, |yaml| {
        reader.deserialize(yaml)
    })
    .map_err(|error| yaml_error(&error))?;
    Ok(Document { root, duplicate_keys: duplicates.into_inner() })
}

/// The line goes first; the parser's own words end with it.
fn yaml_error(error: &serde_saphyr::Error) -> String {
    let told = error.to_string();
    let fault = told.rsplit_once(" at line ").map_or(told.as_str(), |(fault, _)| fault);
    match error.location() {
        Some(at) => format!("yaml: line {}: {fault}", at.line()),
        None => format!("yaml: {fault}"),
    }
}

/// Up to the `---` or `...` that ends the first document; what follows is ignored, readable or not.
fn first_document(text: &str) -> &str {
    let mut started = false;
    let mut end = 0;
    for line in text.split_inclusive('\n') {
        let marker = line.trim_end();
        let separates = marker == "---" || marker.starts_with("--- ");
        if (started && separates) || marker == "..." {
            break;
        }
        let silent = marker.is_empty() || marker == "---" || marker.starts_with(['#', '%']);
        started |= !silent;
        end += line.len();
    }
    text.get(..end).unwrap_or(text)
}

/// Reads a [`Node`]; with a place to put them, it reads YAML and notes duplicate keys with their lines.
#[derive(Clone, Copy)]
struct Reader<'a> {
    duplicates: Option<&'a RefCell<Vec<String>>>,
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Node;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Integer(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Integer(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut nodes = Vec::new();
        while let Some(node) = list.next_element_seed(self)? {
            nodes.push(node);
        }
        Ok(Node::List(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries: Vec<(String, Node)> = Vec::new();
        let Some(duplicates) = self.duplicates else {
            while let Some(key) = map.next_key()? {
                entries.push((key, map.next_value_seed(self)?));
            }
            return Ok(Node::Map(entries));
        };
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            let value = map.next_value_seed(self)?;
            let line = key.referenced.line();
            match entries.iter_mut().find(|(name, _)| *name == key.value) {
                Some(entry) => {
                    duplicates
                        .borrow_mut()
                        .push(format!("line {line}: key {} already set in map", quote(&key.value)));
                    entry.1 = value;
                }
                None => entries.push((key.value, value)),
            }
        }
        // The reference turns YAML into JSON first, and its maps come out sorted.
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(Node::Map(entries))
    }
}

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Integer(value) => serializer.serialize_i128(*value),
            Self::Float(value) => serializer.serialize_f64(*value),
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(nodes) => serializer.collect_seq(nodes),
            Self::Map(entries) => {
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                for (key, value) in entries {
                    map.serialize_entry(key, value)?;
                }
                map.end()
            }
        }
    }
}
