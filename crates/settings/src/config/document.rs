//! Parses a configuration file into a tree of values, independent of its fields.
//!
//! ```text
//!   YAML ─┐                                       ┌─▶ YAML, keys sorted (--write-config-to)
//!         ├─▶ Value ─▶ KubeProxyConfiguration ────┤
//!   JSON ─┘                                       └─▶ JSON, keys in order (/configz)
//! ```
//!
//! As upstream does, reads JSON if the text starts with a brace, and the first YAML document otherwise.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use serde_saphyr::options::{DuplicateKeyPolicy, NonFiniteFloatPolicy};
use serde_saphyr::{Spanned, options};

use crate::go::quote;

#[derive(Debug)]
pub struct Document {
    /// Without fields that are null.
    pub root: Value,
    /// The strict decoder's errors about duplicate keys.
    pub duplicates: Vec<String>,
}

/// Reads YAML or JSON; the error is printed after `failed to decode: `.
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

/// Null means that a field is not set; but a null feature gate is `false`, and a null duration is an error, as upstream.
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

/// Moves the line number, which the parser puts last, to the front, as upstream prints it.
fn yaml_error(error: &serde_saphyr::Error) -> String {
    let message = error.to_string();
    let text = message.rsplit_once(" at line ").map_or(message.as_str(), |(text, _)| text);
    match error.location() {
        Some(at) => format!("yaml: line {}: {text}", at.line()),
        None => format!("yaml: {text}"),
    }
}

/// The text up to the `---` or `...` that ends the first document. The rest is ignored, even if it is not valid YAML.
fn first_document(text: &str) -> &str {
    let mut started = false;
    let mut end = 0;
    for line in text.split_inclusive('\n') {
        let marker = line.trim_end();
        let is_separator = marker == "---" || marker.starts_with("--- ");
        if (started && is_separator) || marker == "..." {
            break;
        }
        let is_blank = marker.is_empty() || marker == "---" || marker.starts_with(['#', '%']);
        started |= !is_blank;
        end += line.len();
    }
    text.get(..end).unwrap_or(text)
}

/// Reads any value and records duplicate keys: in YAML with their line, in JSON with their path.
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

    /// Go prints an integral float without a decimal point, so upstream reads it as an integer.
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
    /// The next key, and in YAML its line.
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
