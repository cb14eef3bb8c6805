//! The plain values of the configuration API: texts, numbers, durations, sizes.
#![allow(clippy::wildcard_enum_match_arm, reason = "JSON will get no further kinds of values")]

use super::document::Node;
use super::fields::{Decoder, Field};
use crate::duration::Duration;
use crate::quantity::Quantity;

/// A value that is no list and no map. Null leaves it as it is, unless it says otherwise.
pub(super) trait Scalar: Sized {
    const GO_TYPE: &'static str;

    /// Whether the reference reads it by a method of its own, whose errors end the reading at once.
    const CUSTOM: bool = false;

    /// `None` if the node is of another kind.
    fn read(node: &Node) -> Result<Option<Self>, String>;

    fn write(&self) -> Node;

    fn when_null() -> Result<Option<Self>, String> {
        Ok(None)
    }

    fn is_zero(&self) -> bool {
        false
    }
}

impl<T: Scalar> Field for T {
    fn go_type() -> String {
        T::GO_TYPE.to_owned()
    }

    fn decode(&mut self, node: &Node, decoder: &mut Decoder) -> Result<(), String> {
        let is_null = matches!(node, Node::Null);
        match if is_null { T::when_null()? } else { T::read(node)? } {
            Some(value) => *self = value,
            None if is_null => {}
            None if T::CUSTOM => return Err(decoder.tell_mismatch::<T>(node)),
            None => decoder.mismatch::<T>(node),
        }
        Ok(())
    }

    fn encode(&self) -> Node {
        self.write()
    }

    fn is_empty(&self) -> bool {
        self.is_zero()
    }
}

impl Scalar for String {
    const GO_TYPE: &'static str = "string";

    fn read(node: &Node) -> Result<Option<Self>, String> {
        Ok(if let Node::Text(text) = node { Some(text.clone()) } else { None })
    }

    fn write(&self) -> Node {
        Node::text(self)
    }
}

impl Scalar for bool {
    const GO_TYPE: &'static str = "bool";

    fn read(node: &Node) -> Result<Option<Self>, String> {
        Ok(if let Node::Bool(value) = node { Some(*value) } else { None })
    }

    fn write(&self) -> Node {
        Node::Bool(*self)
    }

    fn is_zero(&self) -> bool {
        !*self
    }
}

impl Scalar for i32 {
    const GO_TYPE: &'static str = "int32";

    fn read(node: &Node) -> Result<Option<Self>, String> {
        Ok(if let Node::Integer(value) = node { (*value).try_into().ok() } else { None })
    }

    fn write(&self) -> Node {
        Node::Integer((*self).into())
    }
}

/// Log verbosities are the only unsigned numbers here.
impl Scalar for u32 {
    const GO_TYPE: &'static str = "v1.VerbosityLevel";

    fn read(node: &Node) -> Result<Option<Self>, String> {
        Ok(if let Node::Integer(value) = node { (*value).try_into().ok() } else { None })
    }

    fn write(&self) -> Node {
        Node::Integer((*self).into())
    }
}

impl Scalar for f32 {
    const GO_TYPE: &'static str = "float32";

    #[allow(clippy::cast_possible_truncation)] // what a float32 does to any number
    fn read(node: &Node) -> Result<Option<Self>, String> {
        Ok(match node {
            Node::Integer(value) => Some(*value as Self),
            Node::Float(value) => Some(*value as Self).filter(|value| value.is_finite()),
            _ => None,
        })
    }

    fn write(&self) -> Node {
        // Through text, so that 0.1 stays 0.1 and does not show what a float32 makes of it.
        Node::float(self.to_string().parse().unwrap_or(f64::from(*self)))
    }
}

impl Scalar for Duration {
    const GO_TYPE: &'static str = "string";
    const CUSTOM: bool = true;

    fn read(node: &Node) -> Result<Option<Self>, String> {
        if let Node::Text(text) = node { Self::parse(text).map(Some) } else { Ok(None) }
    }

    fn write(&self) -> Node {
        Node::text(self.to_string())
    }

    /// The reference reads null as the empty string here, and refuses that.
    fn when_null() -> Result<Option<Self>, String> {
        Self::parse("").map(Some)
    }
}

impl Scalar for Quantity {
    const GO_TYPE: &'static str = "resource.QuantityValue";

    fn read(node: &Node) -> Result<Option<Self>, String> {
        let text = match node {
            Node::Text(text) => text.clone(),
            Node::Integer(value) => value.to_string(),
            Node::Float(value) => value.to_string(),
            _ => return Ok(None),
        };
        Ok(Some(Self::parse(&text)?))
    }

    fn write(&self) -> Node {
        Node::text(self.to_string())
    }

    fn when_null() -> Result<Option<Self>, String> {
        Ok(Some(Self::default()))
    }
}
