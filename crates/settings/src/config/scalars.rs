//! Scalars of the configuration API in Go's text formats: durations, quantities, floats.
#![allow(clippy::wildcard_enum_match_arm, reason = "JSON has a fixed set of value types")]

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::duration::Duration;
use crate::quantity::Quantity;

/// Null is parsed as the empty string, which is an error.
pub(super) fn duration(value: &Value) -> Result<Duration, String> {
    match value {
        Value::String(text) => Duration::parse(text),
        Value::Null => Duration::parse(""),
        other => Err(format!("invalid type: {other}, expected a duration such as 30s")),
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        duration(&Value::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let parsed = match Value::deserialize(deserializer)? {
            Value::String(text) => Self::parse(&text),
            Value::Number(number) => Self::parse(&number.to_string()),
            other => {
                return Err(D::Error::custom(format!("invalid type: {other}, expected a size such as 64Ki")));
            }
        };
        parsed.map_err(D::Error::custom)
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A float32 as Go writes it: an integral value without a decimal point, and 0.1 as `0.1`.
pub(super) mod float {
    use serde::de::Error as _;
    use serde::ser::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
        let value = f32::deserialize(deserializer)?;
        if value.is_finite() { Ok(value) } else { Err(D::Error::custom("does not fit into a float32")) }
    }

    #[allow(clippy::cast_possible_truncation)] // the range is checked
    pub fn serialize<S: Serializer>(value: &f32, serializer: S) -> Result<S::Ok, S::Error> {
        let wide: f64 = value.to_string().parse().unwrap_or(f64::from(*value));
        match wide {
            _ if wide.is_nan() => Err(S::Error::custom("json: unsupported value: NaN")),
            f64::INFINITY => Err(S::Error::custom("json: unsupported value: +Inf")),
            f64::NEG_INFINITY => Err(S::Error::custom("json: unsupported value: -Inf")),
            _ if wide.fract() == 0.0 && wide.abs() < 1e18 => serializer.serialize_i64(wide as i64),
            _ => serializer.serialize_f64(wide),
        }
    }
}
