//! Decodes the objects of one manifest file. Errors name the line.

use std::fmt;
use std::net::IpAddr;

use model::api;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::admission;

/// An object of a kind that the proxy follows.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    Service(Box<api::Service>),
    EndpointSlice(Box<api::EndpointSlice>),
    Node(Box<api::Node>),
    ServiceCidr(Box<api::ServiceCidr>),
}

/// Identifies an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    pub kind: ObjectKind,
    pub namespace: String,
    pub name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    Service,
    EndpointSlice,
    Node,
    ServiceCidr,
}

/// An error at a place in the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Problem {
    pub line: u64,
    pub column: Option<u64>,
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}", self.line)?;
        if let Some(column) = self.column {
            write!(f, " column {column}")?;
        }
        write!(f, ": {}", self.message)
    }
}

/// The content of a file.
#[derive(Debug, Default, PartialEq)]
pub struct Content {
    pub objects: Vec<Object>,
    /// Objects that an API server would reject, with their keys if these could be decoded.
    pub refused: Vec<(Option<ObjectKey>, Problem)>,
    /// Objects of other kinds, which are logged but no errors.
    pub foreign: Vec<Problem>,
}

/// The syntax of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Yaml,
    Json,
}

/// Decodes a whole file. A syntax error makes the whole file fail, because it is unknown where an object ends. An invalid object
/// does not affect the others. `own` are the addresses of this node.
pub fn read(bytes: &[u8], form: Form, own: &[IpAddr]) -> Result<Content, Problem> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let (good, _) = bytes.split_at(error.valid_up_to());
        Problem { line: line_after(good), column: None, message: "not valid UTF-8".into() }
    })?;
    let text = text.trim_start_matches('\u{feff}');
    let mut content = Content::default();
    for document in documents(text, form)? {
        if let Some(value) = document.decode::<Option<Value>>()? {
            content.add(&document, value, own);
        }
    }
    Ok(content)
}

impl Content {
    fn add(&mut self, document: &Document<'_>, mut value: Value, own: &[IpAddr]) {
        let header = Header::of(&value);
        let Some(item_kind) = header.kind.strip_suffix("List") else {
            return self.add_object(document, "", value, own);
        };
        match value.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => {
                for (index, mut item) in items.into_iter().enumerate() {
                    // Items of a typed list may lack kind and version, which follow from the list.
                    inherit(&mut item, "kind", item_kind);
                    inherit(&mut item, "apiVersion", &header.api_version);
                    self.add_object(document, &format!("items[{index}]: "), item, own);
                }
            }
            None | Some(Value::Null) => {}
            Some(_) => {
                self.refused.push((None, document.problem(format!("{}: items: must be a list", header.kind))))
            }
        }
    }

    fn add_object(&mut self, document: &Document<'_>, path: &str, value: Value, own: &[IpAddr]) {
        let header = Header::of(&value);
        let object = match (&*header.api_version, &*header.kind) {
            (_, "") => Err(document.problem(format!("{path}Object 'Kind' is missing"))),
            ("", _) => Err(document.problem(format!("{path}Object 'apiVersion' is missing"))),
            ("v1", "Service") => document.object(value, Object::Service),
            ("discovery.k8s.io/v1", "EndpointSlice") => document.object(value, Object::EndpointSlice),
            ("v1", "Node") => document.object(value, Object::Node),
            ("networking.k8s.io/v1" | "networking.k8s.io/v1beta1", "ServiceCIDR") => {
                document.object(value, Object::ServiceCidr)
            }
            (version, kind) => {
                let message = format!("{path}{kind} ({version}) {:?} is of no use to a proxy", header.name);
                return self.foreign.push(document.problem(message));
            }
        };
        let checked = object.and_then(|mut object| {
            admission::admit(&mut object, own).map_err(|wrong| document.problem(wrong)).map(|()| object)
        });
        match checked {
            Ok(object) => self.objects.push(object),
            Err(problem) => {
                let message = format!("{path}{}{}", header.title(), problem.message);
                self.refused.push((header.key(), Problem { message, ..problem }));
            }
        }
    }
}

/// One document of a file, and its first line.
struct Document<'a> {
    text: &'a str,
    form: Form,
    first_line: u64,
}

fn documents(text: &str, form: Form) -> Result<Vec<Document<'_>>, Problem> {
    match form {
        Form::Yaml => Ok(yaml_documents(text)),
        Form::Json => json_documents(text),
    }
}

/// In YAML no line within a document may start with the marker, so splitting there is exact.
fn yaml_documents(text: &str) -> Vec<Document<'_>> {
    let mut documents = Vec::new();
    let (mut start, mut first_line) = (0, 1);
    let (mut at, mut line) = (0, 1);
    for piece in text.split_inclusive('\n') {
        let marker = piece
            .strip_prefix("---")
            .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']));
        if marker {
            documents.extend(text.get(start..at).map(|text| Document { text, form: Form::Yaml, first_line }));
            (start, first_line) = (at, line);
        }
        at += piece.len();
        line += 1;
    }
    documents.extend(text.get(start..).map(|text| Document { text, form: Form::Yaml, first_line }));
    documents
}

fn json_documents(text: &str) -> Result<Vec<Document<'_>>, Problem> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>();
    let mut documents = Vec::new();
    while let Some(value) = values.next() {
        let document = value.map_err(|error| json_problem(&error, 1))?.get();
        let end = values.byte_offset();
        let before = text.as_bytes().split_at(end.saturating_sub(document.len())).0;
        documents.push(Document { text: document, form: Form::Json, first_line: line_after(before) });
    }
    Ok(documents)
}

impl Document<'_> {
    fn decode<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        match self.form {
            Form::Json => {
                serde_json::from_str(self.text).map_err(|error| json_problem(&error, self.first_line))
            }
            Form::Yaml => {
                let options = serde_saphyr::options! { with_snippet: false };
                let decoded = serde_saphyr::from_str_with_options(self.text, options);
                decoded.map_err(|error| yaml_problem(&error, self.first_line))
            }
        }
    }

    /// Decodes the value into its type. If that fails, decodes the text to get the line of the error, which values lack.
    fn object<T: DeserializeOwned>(
        &self,
        value: Value,
        wrap: fn(Box<T>) -> Object,
    ) -> Result<Object, Problem> {
        serde_json::from_value(value)
            .map(|object| wrap(Box::new(object)))
            .map_err(|error| self.decode::<T>().err().unwrap_or_else(|| self.problem(error.to_string())))
    }

    fn problem(&self, message: String) -> Problem {
        // The marker at the beginning of a document has a line of its own.
        let blank =
            self.text.lines().take_while(|line| line.starts_with("---") || line.trim().is_empty()).count();
        Problem { line: self.first_line + blank as u64, column: None, message }
    }
}

/// The fields that all objects have.
#[derive(Debug, Default)]
struct Header {
    api_version: String,
    kind: String,
    namespace: String,
    name: String,
}

impl Header {
    fn of(value: &Value) -> Self {
        let text =
            |pointer: &str| value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        Self {
            api_version: text("/apiVersion"),
            kind: text("/kind"),
            namespace: text("/metadata/namespace"),
            name: text("/metadata/name"),
        }
    }

    fn title(&self) -> String {
        match (&*self.kind, &*self.namespace, &*self.name) {
            ("", _, _) => String::new(),
            (kind, _, "") => format!("{kind}: "),
            (kind, "", name) => format!("{kind} {name:?}: "),
            (kind, namespace, name) => format!("{kind} {:?}: ", format!("{namespace}/{name}")),
        }
    }

    fn key(&self) -> Option<ObjectKey> {
        let kind = match &*self.kind {
            "Service" => ObjectKind::Service,
            "EndpointSlice" => ObjectKind::EndpointSlice,
            "Node" => ObjectKind::Node,
            "ServiceCIDR" => ObjectKind::ServiceCidr,
            _ => return None,
        };
        (!self.name.is_empty()).then(|| ObjectKey::new(kind, &self.namespace, &self.name))
    }
}

impl ObjectKey {
    fn new(kind: ObjectKind, namespace: &str, name: &str) -> Self {
        let namespace = match kind {
            ObjectKind::Service | ObjectKind::EndpointSlice => admission::namespace(namespace),
            ObjectKind::Node | ObjectKind::ServiceCidr => "",
        };
        Self { kind, namespace: namespace.into(), name: name.into() }
    }
}

impl Object {
    pub fn key(&self) -> ObjectKey {
        let (kind, metadata) = match self {
            Self::Service(object) => (ObjectKind::Service, &object.metadata),
            Self::EndpointSlice(object) => (ObjectKind::EndpointSlice, &object.metadata),
            Self::Node(object) => (ObjectKind::Node, &object.metadata),
            Self::ServiceCidr(object) => (ObjectKind::ServiceCidr, &object.metadata),
        };
        ObjectKey::new(kind, &metadata.namespace, &metadata.name)
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            ObjectKind::Service => "Service",
            ObjectKind::EndpointSlice => "EndpointSlice",
            ObjectKind::Node => "Node",
            ObjectKind::ServiceCidr => "ServiceCIDR",
        };
        match &*self.namespace {
            "" => write!(f, "{kind} {}", self.name),
            namespace => write!(f, "{kind} {namespace}/{}", self.name),
        }
    }
}

fn inherit(item: &mut Value, field: &str, value: &str) {
    if let Value::Object(fields) = item
        && !value.is_empty()
    {
        fields.entry(field).or_insert_with(|| value.into());
    }
}

fn json_problem(error: &serde_json::Error, first_line: u64) -> Problem {
    let (line, column) = (error.line() as u64, error.column() as u64);
    let message = error.to_string();
    let message = message.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&message);
    // Line 0 means that the error has no position.
    Problem { line: first_line + line.saturating_sub(1), column: Some(column), message: message.into() }
}

fn yaml_problem(error: &serde_saphyr::Error, first_line: u64) -> Problem {
    let message = error.to_string();
    let Some(at) = error.location() else {
        return Problem { line: first_line, column: None, message };
    };
    let message = message
        .strip_suffix(&format!(" at line {}, column {}", at.line(), at.column()))
        .unwrap_or(&message)
        // Hints for programmers, not for the author of the file.
        .replace(", set DuplicateKeyPolicy in Options if acceptable", "")
        .replace("invalid i64", "expected a whole number");
    Problem { line: first_line + at.line().saturating_sub(1), column: Some(at.column()), message }
}

/// The number of the line that these bytes end in.
fn line_after(bytes: &[u8]) -> u64 {
    1 + bytes.iter().filter(|byte| **byte == b'\n').count() as u64
}

#[cfg(test)]
mod tests;
