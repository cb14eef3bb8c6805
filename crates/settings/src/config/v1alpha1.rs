//! `kubeproxy.config.k8s.io/v1alpha1`, the only version there is: what a file holds and `/configz` shows.
//!
//! Values are as written, valid or not. [`validation`](super::validation) makes of them the [`Config`](super::Config)
//! that the rest of the program uses.

use std::collections::BTreeMap;

use super::document::{self, Node};
use super::fields::{Decoder, Field, object};
use super::scalars::Scalar;
use super::yaml;
use crate::duration::Duration;
use crate::go::quote;
use crate::quantity::Quantity;

const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
const KIND: &str = "KubeProxyConfiguration";

object! {
    /// The whole of a configuration file. Field order is that of `/configz`.
    KubeProxyConfiguration in "v1alpha1" {
        kind: String = "kind",
        api_version: String = "apiVersion",
        feature_gates: BTreeMap<String, bool> = "featureGates" omitempty,
        client_connection: ClientConnectionConfiguration = "clientConnection",
        logging: LoggingConfiguration = "logging",
        hostname_override: String = "hostnameOverride",
        bind_address: String = "bindAddress",
        healthz_bind_address: String = "healthzBindAddress",
        metrics_bind_address: String = "metricsBindAddress",
        bind_address_hard_fail: bool = "bindAddressHardFail",
        enable_profiling: bool = "enableProfiling",
        show_hidden_metrics_for_version: String = "showHiddenMetricsForVersion",
        mode: String = "mode" ("v1alpha1.ProxyMode"),
        iptables: KubeProxyIPTablesConfiguration = "iptables",
        ipvs: KubeProxyIPVSConfiguration = "ipvs",
        nftables: KubeProxyNFTablesConfiguration = "nftables",
        winkernel: KubeProxyWinkernelConfiguration = "winkernel",
        detect_local_mode: String = "detectLocalMode" ("v1alpha1.LocalMode"),
        detect_local: DetectLocalConfiguration = "detectLocal",
        cluster_cidr: String = "clusterCIDR",
        node_port_addresses: Option<Vec<String>> = "nodePortAddresses",
        oom_score_adj: Option<i32> = "oomScoreAdj",
        conntrack: KubeProxyConntrackConfiguration = "conntrack",
        config_sync_period: Duration = "configSyncPeriod",
        /// Obsolete: read and dropped.
        port_range: String = "portRange",
        windows_run_as_service: bool = "windowsRunAsService" omitempty,
    }
}

object! {
    ClientConnectionConfiguration in "v1alpha1" {
        kubeconfig: String = "kubeconfig",
        accept_content_types: String = "acceptContentTypes",
        content_type: String = "contentType",
        qps: f32 = "qps",
        burst: i32 = "burst",
    }
}

object! {
    LoggingConfiguration in "v1" {
        format: String = "format",
        flush_frequency: FlushFrequency = "flushFrequency",
        verbosity: u32 = "verbosity",
        vmodule: Vec<VModuleItem> = "vmodule" omitempty ("v1.VModuleConfiguration"),
        options: FormatOptions = "options",
    }
}

object! {
    /// A verbosity of its own for the source files whose name matches.
    VModuleItem in "v1" {
        file_pattern: String = "filePattern",
        verbosity: u32 = "verbosity",
    }
}

object! {
    FormatOptions in "v1" {
        text: TextOptions = "text",
        json: JSONOptions = "json",
    }
}

object! {
    TextOptions in "v1" {
        split_stream: bool = "splitStream" omitempty,
        info_buffer_size: Quantity = "infoBufferSize",
    }
}

object! {
    JSONOptions in "v1" {
        split_stream: bool = "splitStream" omitempty,
        info_buffer_size: Quantity = "infoBufferSize",
    }
}

object! {
    KubeProxyIPTablesConfiguration in "v1alpha1" {
        masquerade_bit: Option<i32> = "masqueradeBit",
        masquerade_all: bool = "masqueradeAll",
        localhost_node_ports: Option<bool> = "localhostNodePorts",
        sync_period: Duration = "syncPeriod",
        min_sync_period: Duration = "minSyncPeriod",
    }
}

object! {
    KubeProxyIPVSConfiguration in "v1alpha1" {
        sync_period: Duration = "syncPeriod",
        min_sync_period: Duration = "minSyncPeriod",
        scheduler: String = "scheduler",
        exclude_cidrs: Option<Vec<String>> = "excludeCIDRs",
        strict_arp: bool = "strictARP",
        tcp_timeout: Duration = "tcpTimeout",
        tcp_fin_timeout: Duration = "tcpFinTimeout",
        udp_timeout: Duration = "udpTimeout",
    }
}

object! {
    KubeProxyNFTablesConfiguration in "v1alpha1" {
        masquerade_bit: Option<i32> = "masqueradeBit",
        masquerade_all: bool = "masqueradeAll",
        sync_period: Duration = "syncPeriod",
        min_sync_period: Duration = "minSyncPeriod",
    }
}

object! {
    /// Windows only: carried along, never acted upon.
    KubeProxyWinkernelConfiguration in "v1alpha1" {
        network_name: String = "networkName",
        source_vip: String = "sourceVip",
        enable_dsr: bool = "enableDSR",
        root_hns_endpoint_name: String = "rootHnsEndpointName",
        forward_health_check_vip: bool = "forwardHealthCheckVip",
    }
}

object! {
    DetectLocalConfiguration in "v1alpha1" {
        bridge_interface: String = "bridgeInterface",
        interface_name_prefix: String = "interfaceNamePrefix",
    }
}

object! {
    KubeProxyConntrackConfiguration in "v1alpha1" {
        max_per_core: Option<i32> = "maxPerCore",
        min: Option<i32> = "min",
        tcp_established_timeout: Option<Duration> = "tcpEstablishedTimeout",
        tcp_close_wait_timeout: Option<Duration> = "tcpCloseWaitTimeout",
        tcp_be_liberal: bool = "tcpBeLiberal",
        udp_timeout: Duration = "udpTimeout",
        udp_stream_timeout: Duration = "udpStreamTimeout",
    }
}

/// Written as Go text or as nanoseconds, and shown again the way it was written.
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

impl Scalar for FlushFrequency {
    const GO_TYPE: &'static str = "time.Duration";

    fn read(node: &Node) -> Result<Option<Self>, String> {
        let nanos = match node {
            Node::Text(text) => return Ok(Some(Duration::parse(text)?.into())),
            Node::Integer(nanos) => i64::try_from(*nanos).ok(),
            Node::Null | Node::Bool(_) | Node::Float(_) | Node::List(_) | Node::Map(_) => None,
        };
        if let Some(nanos) = nanos {
            return Ok(Some(Self { duration: Duration::from_nanos(nanos), as_nanos: true }));
        }
        // Wrapped by hand in the reference, so this error does not say which field it was.
        let json = serde_json::to_string(node).unwrap_or_default();
        let kind = node.kind();
        let what = if kind == "number" { format!("number {json}") } else { kind.to_owned() };
        let go_type = Self::GO_TYPE;
        Err(format!(
            "invalid duration {}: json: cannot unmarshal {what} into Go value of type {go_type}",
            quote(&json)
        ))
    }

    fn write(&self) -> Node {
        if self.as_nanos { Node::Integer(self.duration.as_nanos().into()) } else { self.duration.write() }
    }
}

/// A decoded file, and why only leniently, if so.
#[derive(Debug)]
pub struct Decoded {
    pub config: KubeProxyConfiguration,
    pub strict_error: Option<String>,
}

impl KubeProxyConfiguration {
    /// Reads a file's content without applying defaults; the error follows `failed to decode: `.
    ///
    /// Unknown fields and duplicate keys are no errors here: they are left out, the last one wins, and the caller is
    /// told what a strict reader would have said.
    pub fn decode(text: &str) -> Result<Decoded, String> {
        let document = document::read(text)?;
        check_kind(&document.root, text)?;
        let mut config = Self::default();
        let mut strict = Decoder::run(&mut config, &document.root)?;
        if !document.duplicate_keys.is_empty() {
            let keys = document.duplicate_keys.join("\n  ");
            strict.insert(0, format!("yaml: unmarshal errors:\n  {keys}"));
        }
        let strict_error =
            (!strict.is_empty()).then(|| format!("strict decoding error: {}", strict.join(", ")));
        Ok(Decoded { config, strict_error })
    }

    /// The content of a configuration file that says the same.
    pub fn to_yaml(&self) -> Result<String, String> {
        yaml::write(&self.encode_with_kind())
    }

    /// What `/configz` shows.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(&self.encode_with_kind())
    }

    fn encode_with_kind(&self) -> Node {
        let named = Self { kind: KIND.to_owned(), api_version: API_VERSION.to_owned(), ..self.clone() };
        named.encode()
    }
}

/// The two fields that say what the rest of the document is.
fn check_kind(root: &Node, text: &str) -> Result<(), String> {
    if !matches!(root, Node::Map(_) | Node::Null) {
        let target = r#"Go value of type struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;
        return Err(no_kind(root, target));
    }
    let (api_version, kind) = (type_field(root, "apiVersion")?, type_field(root, "kind")?);
    if kind.is_empty() {
        return Err(format!("Object 'Kind' is missing in '{text}'"));
    }
    if api_version.is_empty() {
        return Err(format!("Object 'apiVersion' is missing in '{text}'"));
    }
    if api_version.matches('/').count() > 1 {
        return Err(format!("unexpected GroupVersion string: {api_version}"));
    }
    if (api_version, kind) != (API_VERSION, KIND) {
        let (kind, version) = (quote(kind), quote(api_version));
        // The file name is the reference's, and part of what people search for.
        let scheme = r#"scheme "pkg/runtime/scheme.go:111""#;
        return Err(format!("no kind {kind} is registered for version {version} in {scheme}"));
    }
    Ok(())
}

fn type_field<'n>(root: &'n Node, key: &str) -> Result<&'n str, String> {
    match root.get(key) {
        None | Some(Node::Null) => Ok(""),
        Some(Node::Text(text)) => Ok(text),
        Some(other) => Err(no_kind(other, &format!("Go struct field .{key} of type string"))),
    }
}

fn no_kind(node: &Node, target: &str) -> String {
    let kind = node.kind();
    format!("couldn't get version/kind; json parse error: json: cannot unmarshal {kind} into {target}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn json_keeps_the_order_of_the_reference() {
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
        fn no_content_upsets_the_decoder(content in "\\PC*") {
            let _ = KubeProxyConfiguration::decode(&content);
            let _ = KubeProxyConfiguration::decode(&format!("apiVersion: {API_VERSION}\nkind: {KIND}\n{content}"));
        }
    }
}
