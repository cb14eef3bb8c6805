//! How the fields of the configuration API are read from and written to a [`Node`].
//!
//! Two kinds of trouble are kept apart, as the reference does: a field nobody knows is a *strict* error, after which
//! reading goes on and start-up too; a value of the wrong type ends it.
#![allow(clippy::wildcard_enum_match_arm, reason = "JSON will get no further kinds of values")]

use std::collections::BTreeMap;

use super::document::Node;
use crate::go::{quote, yaml_float};

/// A type of the configuration API.
pub trait Field {
    /// What the reference calls the type in its errors.
    fn go_type() -> String;

    /// Overwrites what the node gives a value for. `Err` is for values that fail in a way of their own.
    fn decode(&mut self, node: &Node, decoder: &mut Decoder) -> Result<(), String>;

    fn encode(&self) -> Node;

    /// Whether a field marked `omitempty` leaves this out.
    fn is_empty(&self) -> bool {
        false
    }
}

/// Where in the document the decoder is, and what it has met on the way.
#[derive(Debug, Default)]
pub struct Decoder {
    path: Vec<Step>,
    structs: Vec<&'static str>,
    /// The name of the field's type where Go has one that ours does not.
    type_name: Option<&'static str>,
    strict: Vec<String>,
    mismatch: Option<String>,
}

#[derive(Debug)]
enum Step {
    Key(&'static str),
    Index(usize),
}

impl Decoder {
    /// Reads `node` into `value` and returns the strict errors, or why it cannot be read at all.
    pub fn run<T: Field>(value: &mut T, node: &Node) -> Result<Vec<String>, String> {
        let mut decoder = Self::default();
        value.decode(node, &mut decoder)?;
        // Go reports the first mismatch, but only when nothing worse stopped it before.
        decoder.mismatch.map_or(Ok(decoder.strict), Err)
    }

    /// Notes that `node` is not what a `T` is made of.
    pub(super) fn mismatch<T: Field>(&mut self, node: &Node) {
        let told = self.tell_mismatch::<T>(node);
        self.mismatch.get_or_insert(told);
    }

    pub(super) fn tell_mismatch<T: Field>(&self, node: &Node) -> String {
        let go_type = self.type_name.map_or_else(T::go_type, str::to_owned);
        // A number that does not fit is shown; one in the wrong place is only called a number.
        let numeric = ["int32", "float32", "v1.VerbosityLevel"].contains(&go_type.as_str());
        let number = match node {
            Node::Integer(value) if numeric => format!(" {value}"),
            Node::Float(value) if numeric => format!(" {}", yaml_float(*value)),
            _ => String::new(),
        };
        let keys: Vec<_> = self.path.iter().filter_map(Step::key).collect();
        let target = match self.structs.last() {
            Some(name) => format!("Go struct field {name}.{}", keys.join(".")),
            None => "Go value".to_owned(),
        };
        format!("json: cannot unmarshal {}{number} into {target} of type {go_type}", node.kind())
    }

    /// The entries of an object, each once noted if it comes twice; nothing if the node is no object.
    pub fn entries<'n, T: Field>(&mut self, node: &'n Node) -> &'n [(String, Node)] {
        match node {
            Node::Map(entries) => {
                for (index, (key, _)) in entries.iter().enumerate() {
                    if entries.iter().take(index).any(|(earlier, _)| earlier == key) {
                        self.strict.push(format!("duplicate field {}", quote(&self.place(key))));
                    }
                }
                entries
            }
            Node::Null => &[],
            _ => {
                self.mismatch::<T>(node);
                &[]
            }
        }
    }

    pub fn unknown(&mut self, key: &str) {
        self.strict.push(format!("unknown field {}", quote(&self.place(key))));
    }

    /// Reads a field of the struct called `within`.
    pub fn field<T: Field>(
        &mut self,
        within: &'static str,
        key: &'static str,
        type_name: Option<&'static str>,
        (value, node): (&mut T, &Node),
    ) -> Result<(), String> {
        self.structs.push(within);
        self.path.push(Step::Key(key));
        self.type_name = type_name;
        value.decode(node, self)?;
        self.type_name = None;
        self.path.pop();
        self.structs.pop();
        Ok(())
    }

    /// `logging.vmodule[1].x`
    fn place(&self, key: &str) -> String {
        let mut place = String::new();
        for step in &self.path {
            match step {
                Step::Key(key) if place.is_empty() => place.push_str(key),
                Step::Key(key) => place.extend([".", key]),
                Step::Index(index) => place.push_str(&format!("[{index}]")),
            }
        }
        if place.is_empty() { key.to_owned() } else { format!("{place}.{key}") }
    }
}

impl Step {
    fn key(&self) -> Option<&'static str> {
        match self {
            Self::Key(key) => Some(key),
            Self::Index(_) => None,
        }
    }
}

/// Declares a struct of the API: each field with its Rust name, type and key, in the order of the reference.
macro_rules! object {
    ($(#[$meta:meta])* $name:ident in $package:literal {
        $($(#[$note:meta])* $field:ident: $type:ty = $key:literal $($omit:ident)? $(($type_name:literal))?,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $name {
            $($(#[$note])* pub $field: $type,)*
        }

        impl Field for $name {
            fn go_type() -> String {
                concat!($package, ".", stringify!($name)).to_owned()
            }

            fn decode(&mut self, node: &Node, decoder: &mut Decoder) -> Result<(), String> {
                for (key, value) in decoder.entries::<Self>(node) {
                    match key.as_str() {
                        $($key => {
                            let type_name = None$(.or(Some($type_name)))?;
                            decoder.field(stringify!($name), $key, type_name, (&mut self.$field, value))?;
                        })*
                        _ => decoder.unknown(key),
                    }
                }
                Ok(())
            }

            fn encode(&self) -> Node {
                let mut entries = Vec::new();
                $(if !object!(@omit self.$field $(, $omit)?) {
                    entries.push(($key.to_owned(), self.$field.encode()));
                })*
                Node::Map(entries)
            }
        }
    };
    (@omit $value:expr) => { false };
    (@omit $value:expr, omitempty) => { $value.is_empty() };
}
pub(super) use object;

/// A pointer in Go: null says "not given".
impl<T: Field + Default> Field for Option<T> {
    fn go_type() -> String {
        T::go_type()
    }

    fn decode(&mut self, node: &Node, decoder: &mut Decoder) -> Result<(), String> {
        match node {
            Node::Null => *self = None,
            _ => self.insert(T::default()).decode(node, decoder)?,
        }
        Ok(())
    }

    fn encode(&self) -> Node {
        self.as_ref().map_or(Node::Null, Field::encode)
    }
}

/// Lists that print as `null` when they are not given are `Option`s of this.
impl<T: Field + Default> Field for Vec<T> {
    fn go_type() -> String {
        format!("[]{}", T::go_type())
    }

    fn decode(&mut self, node: &Node, decoder: &mut Decoder) -> Result<(), String> {
        match node {
            Node::List(nodes) => {
                self.clear();
                decoder.type_name = None;
                for (index, node) in nodes.iter().enumerate() {
                    decoder.path.push(Step::Index(index));
                    let mut item = T::default();
                    item.decode(node, decoder)?;
                    self.push(item);
                    decoder.path.pop();
                }
            }
            Node::Null => self.clear(),
            _ => decoder.mismatch::<Self>(node),
        }
        Ok(())
    }

    fn encode(&self) -> Node {
        Node::List(self.iter().map(Field::encode).collect())
    }

    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

impl Field for BTreeMap<String, bool> {
    fn go_type() -> String {
        "map[string]bool".to_owned()
    }

    fn decode(&mut self, node: &Node, decoder: &mut Decoder) -> Result<(), String> {
        for (key, value) in decoder.entries::<Self>(node) {
            self.entry(key.clone()).or_default().decode(value, decoder)?;
        }
        Ok(())
    }

    fn encode(&self) -> Node {
        Node::Map(self.iter().map(|(key, value)| (key.clone(), value.encode())).collect())
    }

    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}
