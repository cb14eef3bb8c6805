//! What the proxy reads of `k8s.io/apimachinery/pkg/apis/meta/v1`, besides what the model needs.

use serde::Deserialize;

/// Any object.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct AnyObject {
    pub(crate) metadata: Identity,
}

/// The metadata of any object.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Identity {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) resource_version: String,
    pub(crate) annotations: Option<Marks>,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Marks {
    /// Set on the bookmark that ends a list which is sent as a stream.
    #[serde(rename = "k8s.io/initial-events-end")]
    pub(crate) initial_events_end: Option<String>,
}

impl Identity {
    pub(crate) fn ends_list(&self) -> bool {
        let mark = self.annotations.as_ref().and_then(|marks| marks.initial_events_end.as_deref());
        mark == Some("true")
    }
}

/// The metadata of a list.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ListMeta {
    pub(crate) resource_version: String,
    pub(crate) r#continue: String,
}

/// How the API server says no.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Status {
    pub(crate) code: u16,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) details: Option<StatusDetails>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct StatusDetails {
    pub(crate) retry_after_seconds: Option<u64>,
}
