//! A configuration file as a tree, before anything is known about its fields.
//!
//! ```text
//!   YAML ─┐                                       ┌─▶ YAML, keys sorted (--write-config-to)
//!         ├─▶ Value ─▶ KubeProxyConfiguration ────┤
//!   JSON ─┘                                       └─▶ JSON, keys in order (/configz)
//! ```
//!
//! What counts as the document, and what of it, follows upstream: the first YAML document, or JSON if it starts
//! like JSON.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use serde_saphyr::options::{DuplicateKeyPolicy, NonFiniteFloatPolicy};
use serde_saphyr::{Spanned, options};

use crate::go::quote;

/// A document read, without what is null, and what a strict reader would have refused about it.
#[derive(Debug)]
pub struct Document {
    pub root: Value,
    pub duplicates: Vec<String>,
}

/// Reads YAML or JSON; the error is the sentence to show after `failed to decode: `.
pub fn read(text: &str) -> Result<Document, String> {
    let duplicates = RefCell::default();
    let is_yaml = !text.trim_start().starts_with('{');
    let reader = Reader { is_yaml, path: "", duplicates: &duplicates };
    let mut root = if is_yaml { read_yaml(text, reader)? } else { read_json(text, reader)? };
    drop_nulls(&mut root);
    if root.is_null() {
        root = Value::Object(Map::new());
    }
    let mut duplicates = duplicates.into_inner();
    if is_yaml && !duplicates.is_empty() {
        duplicates = vec![format!("yaml: unmarshal errors:\n  {}", duplicates.join("\n  "))];
    }
    Ok(Document { root, duplicates })
}

/// Null leaves a field as it is, but for gates, which it switches off, and for durations, which refuse it.
fn drop_nulls(value: &mut Value) {
    let Value::Object(fields) = value else { return };
    fields.retain(|key, value| !value.is_null() || key.ends_with("Period") || key.ends_with("Timeout"));
    for (key, value) in fields {
        match value {
            Value::Object(gates) if key == "featureGates" => {
                gates.values_mut().filter(|gate| gate.is_null()).for_each(|gate| *gate = Value::Bool(false));
            }
            Value::Array(items) => items.iter_mut().for_each(drop_nulls),
            Value::Object(_) => drop_nulls(value),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
}

fn read_json(text: &str, reader: Reader<'_>) -> Result<Value, String> {
    let mut json = serde_json::Deserializer::from_str(text);
    let root = reader.deserialize(&mut json).and_then(|root| json.end().map(|()| root));
    root.map_err(|error| format!("couldn't get version/kind; json parse error: {error}"))
}

fn read_yaml(text: &str, reader: Reader<'_>) -> Result<Value, String> {
    let options = options! {
        duplicate_keys: DuplicateKeyPolicy::LastWins,
        legacy_octal_numbers: true,
        non_finite_float_policy: NonFiniteFloatPolicy::AsString,
        with_snippet: false,
    };
    let read = |yaml: serde_saphyr::Deserializer<'_, '_>| reader.deserialize(yaml);
    serde_saphyr::with_deserializer_from_str_with_options(first_document(text), options, read)
        .map_err(|error| yaml_error(&error))
}

/// The line goes first; the parser's own words end with it.
fn yaml_error(error: &serde_saphyr::Error) -> String {
    let message = error.to_string();
    let fault = message.rsplit_once(" at line ").map_or(message.as_str(), |(fault, _)| fault);
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

/// Reads any value, and notes keys that come twice: in YAML with their line, in JSON with their place.
#[derive(Clone, Copy)]
struct Reader<'a> {
    is_yaml: bool,
    path: &'a str,
    duplicates: &'a RefCell<Vec<String>>,
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    /// Go writes a whole number without a point, and so forgets that it ever was a float.
    #[allow(clippy::cast_possible_truncation)] // the range is checked
    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        let is_whole = value.fract() == 0.0 && value.abs() < 1e18;
        Ok(if is_whole { (value as i64).into() } else { value.into() })
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        loop {
            let path = format!("{}[{}]", self.path, values.len());
            match list.next_element_seed(Reader { path: &path, ..self })? {
                Some(value) => values.push(value),
                None => return Ok(Value::Array(values)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some((key, line)) = self.next_key(&mut map)? {
            let path = if self.path.is_empty() { key.clone() } else { format!("{}.{key}", self.path) };
            let value = map.next_value_seed(Reader { path: &path, ..self })?;
            if fields.contains_key(&key) {
                self.duplicates.borrow_mut().push(match line {
                    Some(line) => format!("line {line}: key {} already set in map", quote(&key)),
                    None => format!("duplicate field {}", quote(&path)),
                });
            }
            fields.insert(key, value);
        }
        Ok(Value::Object(fields))
    }
}

impl Reader<'_> {
    /// Only YAML knows lines.
    fn next_key<'de, A: MapAccess<'de>>(
        self,
        map: &mut A,
    ) -> Result<Option<(String, Option<u64>)>, A::Error> {
        if self.is_yaml {
            let key = map.next_key::<Spanned<String>>()?;
            Ok(key.map(|key| (key.value, Some(key.referenced.line()))))
        } else {
            Ok(map.next_key()?.map(|key| (key, None)))
        }
    }
}
