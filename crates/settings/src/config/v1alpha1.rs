//! `kubeproxy.config.k8s.io/v1alpha1`, the only version: the format of the configuration file and of `/configz`.
//!
//! Values are as written, valid or not. [`validation`](super::validation) turns them into the [`Config`](super::Config)
//! that the rest of the program uses.
#![allow(clippy::wildcard_enum_match_arm, reason = "JSON has a fixed set of value types")]

use std::collections::BTreeMap;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use serde_path_to_error::Track;

use super::scalars::{duration, float};
use super::{document, yaml};
use crate::duration::Duration;
use crate::go::quote;
use crate::quantity::Quantity;

const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
const KIND: &str = "KubeProxyConfiguration";

/// A configuration file. The fields are in the order in which `/configz` prints them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeProxyConfiguration {
    pub kind: String,
    pub api_version: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub feature_gates: BTreeMap<String, bool>,
    pub client_connection: ClientConnectionConfiguration,
    pub logging: LoggingConfiguration,
    pub hostname_override: String,
    pub bind_address: String,
    pub healthz_bind_address: String,
    pub metrics_bind_address: String,
    pub bind_address_hard_fail: bool,
    pub enable_profiling: bool,
    pub show_hidden_metrics_for_version: String,
    pub mode: String,
    pub iptables: KubeProxyIPTablesConfiguration,
    pub ipvs: KubeProxyIPVSConfiguration,
    pub nftables: KubeProxyNFTablesConfiguration,
    pub winkernel: KubeProxyWinkernelConfiguration,
    pub detect_local_mode: String,
    pub detect_local: DetectLocalConfiguration,
    #[serde(rename = "clusterCIDR")]
    pub cluster_cidr: String,
    pub node_port_addresses: Option<Vec<String>>,
    pub oom_score_adj: Option<i32>,
    pub conntrack: KubeProxyConntrackConfiguration,
    pub config_sync_period: Duration,
    /// Obsolete: accepted and ignored.
    pub port_range: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub windows_run_as_service: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClientConnectionConfiguration {
    pub kubeconfig: String,
    pub accept_content_types: String,
    pub content_type: String,
    #[serde(with = "float")]
    pub qps: f32,
    pub burst: i32,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LoggingConfiguration {
    pub format: String,
    pub flush_frequency: FlushFrequency,
    pub verbosity: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub vmodule: Vec<VModuleItem>,
    pub options: FormatOptions,
}

/// The verbosity of the source files whose name matches the pattern.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VModuleItem {
    pub file_pattern: String,
    pub verbosity: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FormatOptions {
    pub text: TextOptions,
    pub json: JSONOptions,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TextOptions {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub split_stream: bool,
    pub info_buffer_size: Quantity,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct JSONOptions {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub split_stream: bool,
    pub info_buffer_size: Quantity,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeProxyIPTablesConfiguration {
    pub masquerade_bit: Option<i32>,
    pub masquerade_all: bool,
    pub localhost_node_ports: Option<bool>,
    pub sync_period: Duration,
    pub min_sync_period: Duration,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeProxyIPVSConfiguration {
    pub sync_period: Duration,
    pub min_sync_period: Duration,
    pub scheduler: String,
    #[serde(rename = "excludeCIDRs")]
    pub exclude_cidrs: Option<Vec<String>>,
    #[serde(rename = "strictARP")]
    pub strict_arp: bool,
    pub tcp_timeout: Duration,
    pub tcp_fin_timeout: Duration,
    pub udp_timeout: Duration,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeProxyNFTablesConfiguration {
    pub masquerade_bit: Option<i32>,
    pub masquerade_all: bool,
    pub sync_period: Duration,
    pub min_sync_period: Duration,
}

/// Windows only: accepted and shown again, without effect.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeProxyWinkernelConfiguration {
    pub network_name: String,
    pub source_vip: String,
    #[serde(rename = "enableDSR")]
    pub enable_dsr: bool,
    pub root_hns_endpoint_name: String,
    pub forward_health_check_vip: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DetectLocalConfiguration {
    pub bridge_interface: String,
    pub interface_name_prefix: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeProxyConntrackConfiguration {
    pub max_per_core: Option<i32>,
    pub min: Option<i32>,
    pub tcp_established_timeout: Option<Duration>,
    pub tcp_close_wait_timeout: Option<Duration>,
    pub tcp_be_liberal: bool,
    pub udp_timeout: Duration,
    pub udp_stream_timeout: Duration,
}

/// A duration or a number of nanoseconds; printed in the form in which it was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushFrequency {
    pub duration: Duration,
    pub(super) as_nanos: bool,
}

impl From<Duration> for FlushFrequency {
    fn from(duration: Duration) -> Self {
        Self { duration, as_nanos: false }
    }
}

impl<'de> Deserialize<'de> for FlushFrequency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Number(number) if number.is_i64() => {
                let nanos = number.as_i64().unwrap_or_default();
                Ok(Self { duration: Duration::from_nanos(nanos), as_nanos: true })
            }
            other => duration(&other).map(Self::from).map_err(D::Error::custom),
        }
    }
}

impl Serialize for FlushFrequency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.as_nanos {
            serializer.serialize_i64(self.duration.as_nanos())
        } else {
            self.duration.serialize(serializer)
        }
    }
}

#[derive(Debug)]
pub struct Decoded {
    pub config: KubeProxyConfiguration,
    /// Why strict decoding failed, if it did.
    pub strict_error: Option<String>,
}

impl KubeProxyConfiguration {
    /// Reads the content of a file without applying defaults; the error is printed after `failed to decode: `.
    ///
    /// Decoding is lenient: unknown fields are ignored, the last of duplicate keys wins, and `strict_error` lists both.
    pub fn decode(text: &str) -> Result<Decoded, String> {
        let document = document::read(text)?;
        check_kind(&document.root, text)?;
        expect_objects(&document.root, &Self::template(), "")?;
        let mut strict = document.duplicates;
        let mut track = Track::new();
        let tracked = serde_path_to_error::Deserializer::new(&document.root, &mut track);
        let config = serde_ignored::deserialize(tracked, |path| {
            strict.push(format!("unknown field {}", quote(&path_text(&path))));
        });
        let config = config.map_err(|error| format!("{}: {error}", track.path()))?;
        let strict_error =
            (!strict.is_empty()).then(|| format!("strict decoding error: {}", strict.join(", ")));
        Ok(Decoded { config, strict_error })
    }

    /// A value that has an object wherever the API has one.
    fn template() -> Value {
        let logging = LoggingConfiguration { vmodule: vec![VModuleItem::default()], ..Default::default() };
        serde_json::to_value(Self { logging, ..Self::default() }).unwrap_or_default()
    }

    /// The configuration as the content of a configuration file.
    pub fn to_yaml(&self) -> Result<String, String> {
        yaml::write(&self.with_kind())
    }

    /// The configuration as `/configz` prints it.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(&self.with_kind())
    }

    fn with_kind(&self) -> Self {
        Self { kind: KIND.to_owned(), api_version: API_VERSION.to_owned(), ..self.clone() }
    }
}

/// Rejects lists where the template has objects: serde would read a list as the fields of the object, in order.
fn expect_objects(found: &Value, template: &Value, path: &str) -> Result<(), String> {
    match (template, found) {
        (Value::Object(fields), Value::Object(found)) => {
            for (key, template) in fields {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                found.get(key).map_or(Ok(()), |value| expect_objects(value, template, &path))?;
            }
            Ok(())
        }
        (Value::Object(_), other) => Err(format!("{path}: invalid type: {other}, expected an object")),
        (Value::Array(items), Value::Array(found)) => {
            let template = items.first().unwrap_or(&Value::Null);
            let mut items = found.iter().enumerate();
            items.try_for_each(|(index, item)| expect_objects(item, template, &format!("{path}[{index}]")))
        }
        _ => Ok(()),
    }
}

/// `logging.vmodule[1].x`
fn path_text(path: &serde_ignored::Path<'_>) -> String {
    use serde_ignored::Path;
    match path {
        Path::Root => String::new(),
        Path::Seq { parent, index } => format!("{}[{index}]", path_text(parent)),
        Path::Map { parent: Path::Root, key } => key.clone(),
        Path::Map { parent, key } => format!("{}.{key}", path_text(parent)),
        Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => {
            path_text(parent)
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct TypeMeta {
    api_version: String,
    kind: String,
}

fn check_kind(root: &Value, text: &str) -> Result<(), String> {
    let meta = expect_objects(root, &Value::Object(Map::new()), "the document")
        .and_then(|()| serde_path_to_error::deserialize(root).map_err(|error| error.to_string()));
    let TypeMeta { api_version, kind } =
        meta.map_err(|error| format!("couldn't get version/kind; json parse error: {error}"))?;
    if kind.is_empty() {
        return Err(format!("Object 'Kind' is missing in '{text}'"));
    }
    if api_version.is_empty() {
        return Err(format!("Object 'apiVersion' is missing in '{text}'"));
    }
    if api_version.matches('/').count() > 1 {
        return Err(format!("unexpected GroupVersion string: {api_version}"));
    }
    if (api_version.as_str(), kind.as_str()) != (API_VERSION, KIND) {
        let (kind, version) = (quote(&kind), quote(&api_version));
        // Upstream's scheme is named after this file; people search for the whole message.
        let scheme = r#"scheme "pkg/runtime/scheme.go:111""#;
        return Err(format!("no kind {kind} is registered for version {version} in {scheme}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn json_keeps_the_order_of_upstream() {
        let json = KubeProxyConfiguration::with_defaults().to_json().unwrap();
        let mut rest = json.as_str();
        for part in [
            r#"{"kind":"KubeProxyConfiguration","apiVersion":"kubeproxy.config.k8s.io/v1alpha1","#,
            r#""clientConnection":{"kubeconfig":"","acceptContentTypes":"","contentType":"#,
            r#""qps":5,"burst":10},"#,
            r#""logging":{"format":"text","flushFrequency":"5s","verbosity":0,"options":{"text":{"#,
            r#""hostnameOverride":"","bindAddress":"0.0.0.0","healthzBindAddress":"#,
            r#""mode":"","iptables":{"masqueradeBit":14,"masqueradeAll":false,"localhostNodePorts":true,"#,
            r#""ipvs":{"syncPeriod":"30s","minSyncPeriod":"0s","scheduler":"","excludeCIDRs":null,"#,
            r#""winkernel":{"networkName":"","#,
            r#""detectLocalMode":"","detectLocal":{"bridgeInterface":"","interfaceNamePrefix":""},"#,
            r#""clusterCIDR":"","nodePortAddresses":null,"oomScoreAdj":-999,"#,
            r#""conntrack":{"maxPerCore":32768,"min":131072,"tcpEstablishedTimeout":"24h0m0s","#,
            r#""configSyncPeriod":"15m0s","portRange":""}"#,
        ] {
            rest = rest.split_once(part).unwrap_or_else(|| panic!("{part} is not next in {rest}")).1;
        }
        assert_eq!(rest, "");
    }

    proptest! {
        #[test]
        fn no_content_makes_the_decoder_panic(content in "\\PC*") {
            let _ = KubeProxyConfiguration::decode(&content);
            let _ = KubeProxyConfiguration::decode(&format!("apiVersion: {API_VERSION}\nkind: {KIND}\n{content}"));
        }
    }
}
