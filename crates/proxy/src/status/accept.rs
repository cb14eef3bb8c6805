//! Negotiates the format of a page. Clients have to request a structured format with its full name, so that they do not depend on
//! it by accident.

/// The format of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseFormat {
    Text,
    Structured { encoding: Encoding, version: Version },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Json,
    Yaml,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V1alpha1,
    V1beta1,
}

pub const GROUP: &str = "config.k8s.io";

impl Encoding {
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
        }
    }
}

impl Version {
    pub fn name(self) -> &'static str {
        match self {
            Self::V1alpha1 => "v1alpha1",
            Self::V1beta1 => "v1beta1",
        }
    }
}

/// The format that the client prefers among those of this kind of page; `None` if it accepts none of them.
pub fn negotiate(accept: &str, kind: &str) -> Option<ResponseFormat> {
    if accept.trim().is_empty() {
        return Some(ResponseFormat::Text);
    }
    let mut clauses: Vec<_> = accept.split(',').map(Clause::parse).collect();
    clauses.sort_by(|a, b| b.quality.total_cmp(&a.quality));
    clauses.iter().find_map(|clause| clause.format(kind))
}

/// One clause of the `Accept` header: `application/json;g=config.k8s.io;v=v1beta1;as=Statusz;q=0.9`.
#[derive(Debug)]
struct Clause<'a> {
    media_type: &'a str,
    group: Option<&'a str>,
    version: Option<&'a str>,
    kind: Option<&'a str>,
    quality: f32,
}

impl<'a> Clause<'a> {
    fn parse(text: &'a str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let media_type = parts.next().unwrap_or_default();
        let mut clause = Self { media_type, group: None, version: None, kind: None, quality: 1.0 };
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            match name {
                "g" => clause.group = Some(value),
                "v" => clause.version = Some(value),
                "as" => clause.kind = Some(value),
                "q" => clause.quality = value.parse().unwrap_or(1.0),
                _ => {}
            }
        }
        clause
    }

    fn format(&self, kind: &str) -> Option<ResponseFormat> {
        let version = match (self.group, self.version, self.kind) {
            (None, None, None) => None,
            (Some(GROUP), Some("v1beta1"), Some(named)) if named == kind => Some(Version::V1beta1),
            (Some(GROUP), Some("v1alpha1"), Some(named)) if named == kind => Some(Version::V1alpha1),
            _ => return None,
        };
        match (self.media_type, version) {
            ("text/plain" | "text/*" | "*/*", None) => Some(ResponseFormat::Text),
            ("application/json", Some(version)) => {
                Some(ResponseFormat::Structured { encoding: Encoding::Json, version })
            }
            ("application/yaml", Some(version)) => {
                Some(ResponseFormat::Structured { encoding: Encoding::Yaml, version })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_those_that_upstream_chooses() {
        let structured = |encoding, version| Some(ResponseFormat::Structured { encoding, version });
        let json = structured(Encoding::Json, Version::V1beta1);
        for (accept, want) in [
            ("", Some(ResponseFormat::Text)),
            ("*/*", Some(ResponseFormat::Text)),
            ("text/plain", Some(ResponseFormat::Text)),
            ("text/*", Some(ResponseFormat::Text)),
            ("text/html,*/*;q=0.8", Some(ResponseFormat::Text)),
            ("application/json;g=config.k8s.io;v=v1beta1;as=Statusz", json),
            ("application/json;as=Statusz;v=v1beta1;g=config.k8s.io, text/plain", json),
            ("text/plain;q=0.5, application/json;as=Statusz;v=v1beta1;g=config.k8s.io", json),
            (
                "application/json;g=config.k8s.io;v=v1alpha1;as=Statusz",
                structured(Encoding::Json, Version::V1alpha1),
            ),
            (
                "application/yaml;g=config.k8s.io;v=v1beta1;as=Statusz",
                structured(Encoding::Yaml, Version::V1beta1),
            ),
            ("application/json", None),
            ("application/*", None),
            ("application/vnd.kubernetes.protobuf", None),
            ("application/cbor;g=config.k8s.io;v=v1beta1;as=Statusz", None),
            ("application/json;g=config.k8s.io;v=v1beta1;as=Flagz", None),
            ("application/json;g=config.k8s.io;v=v2;as=Statusz", None),
            ("text/plain;g=config.k8s.io;v=v1beta1;as=Statusz", None),
            ("text/html", None),
            ("garbage", None),
        ] {
            assert_eq!(negotiate(accept, "Statusz"), want, "{accept}");
        }
    }
}
