//! Encodes what tests send: of objects their metadata, of lists their items, and `Status`.

use serde_json::Value;

use super::{PREFIX, UNKNOWN_RAW};

/// An object that stands alone, in its envelope.
pub(crate) fn object(object: &Value) -> Vec<u8> {
    [&PREFIX[..], &field(UNKNOWN_RAW, message(object))].concat()
}

/// An event of a watch, with its length in front.
pub(crate) fn event(r#type: &str, value: &Value) -> Vec<u8> {
    let event = [field(1, r#type), field(2, field(1, object(value)))].concat();
    [&u32::try_from(event.len()).unwrap().to_be_bytes()[..], &event].concat()
}

fn message(object: &Value) -> Vec<u8> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let metadata = &object["metadata"];
    if let Some(items) = object["items"].as_array() {
        let metadata = [field(2, text(&metadata["resourceVersion"])), field(3, text(&metadata["continue"]))];
        let items = items.iter().flat_map(|item| field(2, message(item)));
        return field(1, metadata.concat()).into_iter().chain(items).collect();
    }
    if let Some(code) = object["code"].as_u64() {
        let code = [vec![6 << 3], varint(code)].concat();
        return [field(3, text(&object["message"])), field(4, text(&object["reason"])), code].concat();
    }
    let annotations = metadata["annotations"].as_object().cloned().unwrap_or_default();
    let annotations = annotations.iter().map(|(key, value)| [field(1, key), field(2, text(value))].concat());
    let metadata = [
        field(1, text(&metadata["name"])),
        field(3, text(&metadata["namespace"])),
        field(6, text(&metadata["resourceVersion"])),
        annotations.flat_map(|annotation| field(12, annotation)).collect(),
    ];
    // Anything but a message, for objects that cannot be decoded.
    let spec = if object["spec"]["ports"].is_string() { field(1, "eighty") } else { Vec::new() };
    [field(1, metadata.concat()), field(2, spec)].concat()
}

fn field(number: u64, value: impl AsRef<[u8]>) -> Vec<u8> {
    let value = value.as_ref();
    [&varint(number << 3 | 2)[..], &varint(value.len() as u64), value].concat()
}

fn varint(number: u64) -> Vec<u8> {
    let groups = (0..10).map(|group| number >> (7 * group)).take_while(|rest| *rest > 0);
    let mut bytes: Vec<_> = groups.map(|rest| rest.to_le_bytes()[0] | 0x80).collect();
    match bytes.last_mut() {
        Some(last) => *last &= 0x7f,
        None => bytes.push(0),
    }
    bytes
}
