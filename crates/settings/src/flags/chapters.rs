//! The chapters of the book about flags and the configuration file are generated from the code. `make docs` writes them;
//! a plain test run fails if they are out of date.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{Flag, Flags, TABLE};
use crate::config::KubeProxyConfiguration;
use crate::gates::{self, Gate, Stage};

const BOOK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src");
/// The part of a flag's help that the chapter replaces by a star.
const IGNORED_WITH_CONFIG: &str = " Ignored with --config.";

#[test]
fn the_chapter_on_flags_matches_the_table() {
    compare("flags.md", &flags_chapter());
}

#[test]
fn the_chapter_on_the_configuration_file_has_every_field() {
    compare("configuration.md", &configuration_chapter());
}

/// Writes the chapter first if the environment has `SLUICE_DOCS=write`.
fn compare(chapter: &str, want: &str) {
    let path = Path::new(BOOK).join(chapter);
    if std::env::var_os("SLUICE_DOCS").is_some_and(|what| what == "write") {
        fs::write(&path, want).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    let differs = found.lines().zip(want.lines()).find(|(found, want)| found != want);
    assert!(
        found == want,
        "docs/src/{chapter} is not up to date: run `make docs`. First difference: {differs:?}"
    );
}

fn flags_chapter() -> String {
    let mut defaults = Flags::default();
    let mut text = String::from(
        "<!-- Written by `make docs` from crates/settings/src/flags/table.rs. -->\n\n\
         # Every flag\n\n\
         These are upstream's flags and three more: `--audit-interval`, `--connection-metrics` and `--manifests`. They are \
         parsed as upstream parses them: `--v=2`, `--v 2`, `-v2` and `--bind_address` all work. `kube-proxy --help` prints \
         this list.\n\n\
         A flag with a star is ignored if `--config` names a file; the [file](configuration.md) has a field for it. To \
         convert flags to a file, add `--write-config-to FILE`.\n\n\
         | flag | default | what it does |\n| --- | --- | --- |\n",
    );
    for flag in TABLE.iter().filter(|flag| flag.deprecated.is_none()) {
        text.push_str(&row(flag, &mut defaults));
    }
    text.push_str("\n## Deprecated\n\nThese still work, and print a warning.\n\n| flag | default | what it does |\n| --- | --- | --- |\n");
    for flag in TABLE.iter().filter(|flag| flag.deprecated.is_some()) {
        text.push_str(&row(flag, &mut defaults));
    }
    text.push_str(
        "\n## Feature gates\n\n\
         Every gate of Kubernetes 1.36 can be set, since tools pass the same list to all components. An unknown gate is an \
         error. Sluice implements these gates; the others have no effect:\n\n\
         | gate | stage | default | what it does |\n| --- | --- | --- | --- |\n",
    );
    for (gate, meaning) in GATES {
        let spec = gates::find(gate.name()).expect("the table has every gate of `Gate`");
        let stage = match spec.stage {
            Stage::Alpha => "alpha",
            Stage::Beta => "beta",
            Stage::Ga => "GA",
            Stage::Deprecated => "deprecated",
        };
        let default = if spec.default { "on" } else { "off" };
        text.push_str(&format!("| `{}` | {stage} | {default} | {meaning} |\n", spec.name));
    }
    text
}

const GATES: [(Gate, &str); 5] = [
    (Gate::AllowServiceExternalIPs, "Serve the `externalIPs` of Services."),
    (Gate::ComponentFlagz, "Serve the values of all flags at `/flagz` on the metrics port."),
    (Gate::ComponentStatusz, "Serve version, start time and paths at `/statusz` on the metrics port."),
    (Gate::LoggingAlphaOptions, "Allow the alpha logging options: split streams and buffers."),
    (Gate::LoggingBetaOptions, "Allow the beta logging options: the JSON format."),
];

fn row(flag: &Flag, defaults: &mut Flags) -> String {
    let value = (flag.value)(defaults);
    let (type_name, default) = (value.type_name(), value.text());
    let placeholder = match type_name {
        "" => "",
        "duration" => " DURATION",
        "float32" | "int32" | "Level" => " NUMBER",
        "ip" => " IP",
        "ipport" => " IP:PORT",
        "LocalMode" | "ProxyMode" => " MODE",
        "mapStringBool" => " NAME=BOOL,...",
        "pattern=N,..." => " PATTERN=N,...",
        "quantity" => " SIZE",
        "string" => " TEXT",
        "strings" => " LIST",
        "version[=true]" => "[=raw]",
        other => panic!("type {other} has no placeholder"),
    };
    let short = flag.shorthand.map_or(String::new(), |short| format!("`-{short}`, "));
    let star = if flag.help.contains(IGNORED_WITH_CONFIG) { " *" } else { "" };
    let help =
        flag.help.replace(IGNORED_WITH_CONFIG, "").replace(" Options are:", " See [below](#feature-gates).");
    let default = if default.is_empty() || default == "[]" { String::new() } else { format!("`{default}`") };
    format!("| {short}`--{}{placeholder}`{star} | {default} | {} |\n", flag.name, escape(&help))
}

/// The description of a field.
enum Meaning {
    /// That of this flag.
    As(&'static str),
    Is(&'static str),
}
use Meaning::{As, Is};

const WINDOWS_ONLY: &str = "Windows only: accepted without effect.";

/// Every field, in the order of the API.
const FIELDS: &[(&str, Meaning)] = &[
    ("apiVersion", Is("Required: `kubeproxy.config.k8s.io/v1alpha1`.")),
    ("kind", Is("Required: `KubeProxyConfiguration`.")),
    ("featureGates", Is("A map from names of [feature gates](flags.md#feature-gates) to `true` or `false`.")),
    ("clientConnection.kubeconfig", As("kubeconfig")),
    (
        "clientConnection.acceptContentTypes",
        Is("The `Accept` header of requests to the API server; empty: `contentType`, or else anything."),
    ),
    ("clientConnection.contentType", As("kube-api-content-type")),
    ("clientConnection.qps", As("kube-api-qps")),
    ("clientConnection.burst", As("kube-api-burst")),
    ("logging.format", As("logging-format")),
    ("logging.flushFrequency", As("log-flush-frequency")),
    ("logging.verbosity", As("v")),
    (
        "logging.vmodule",
        Is(
            "A list of `filePattern` and `verbosity`: the log verbosity of source files whose names match the pattern. Text format only.",
        ),
    ),
    ("logging.options.text.splitStream", As("log-text-split-stream")),
    ("logging.options.text.infoBufferSize", As("log-text-info-buffer-size")),
    ("logging.options.json.splitStream", As("log-json-split-stream")),
    ("logging.options.json.infoBufferSize", As("log-json-info-buffer-size")),
    ("hostnameOverride", As("hostname-override")),
    ("bindAddress", As("bind-address")),
    ("healthzBindAddress", As("healthz-bind-address")),
    ("metricsBindAddress", As("metrics-bind-address")),
    ("bindAddressHardFail", As("bind-address-hard-fail")),
    ("enableProfiling", As("profiling")),
    ("showHiddenMetricsForVersion", As("show-hidden-metrics-for-version")),
    ("mode", As("proxy-mode")),
    ("iptables.masqueradeBit", As("iptables-masquerade-bit")),
    ("iptables.masqueradeAll", Is("As `--masquerade-all`, for the iptables and ipvs modes.")),
    ("iptables.localhostNodePorts", As("iptables-localhost-nodeports")),
    ("iptables.syncPeriod", Is("As `--iptables-sync-period`, for the iptables mode.")),
    ("iptables.minSyncPeriod", Is("As `--iptables-min-sync-period`, for the iptables mode.")),
    ("ipvs.syncPeriod", As("ipvs-sync-period")),
    ("ipvs.minSyncPeriod", As("ipvs-min-sync-period")),
    ("ipvs.scheduler", As("ipvs-scheduler")),
    ("ipvs.excludeCIDRs", As("ipvs-exclude-cidrs")),
    ("ipvs.strictARP", As("ipvs-strict-arp")),
    ("ipvs.tcpTimeout", As("ipvs-tcp-timeout")),
    ("ipvs.tcpFinTimeout", As("ipvs-tcpfin-timeout")),
    ("ipvs.udpTimeout", As("ipvs-udp-timeout")),
    (
        "nftables.masqueradeBit",
        Is("Bit of the packet mark that requests masquerading in nftables mode, 0 to 31."),
    ),
    ("nftables.masqueradeAll", Is("As `--masquerade-all`, for the nftables mode.")),
    (
        "nftables.syncPeriod",
        Is("Retry interval after a failed sync, in nftables mode. Must be greater than 0."),
    ),
    (
        "nftables.minSyncPeriod",
        Is(
            "Minimum time from the end of one sync to the next, in nftables mode. If not set, the pause is proportional to the duration of the sync, and at most the default: see [Tuning](tuning.md).",
        ),
    ),
    ("winkernel.networkName", Is(WINDOWS_ONLY)),
    ("winkernel.sourceVip", Is(WINDOWS_ONLY)),
    ("winkernel.enableDSR", Is(WINDOWS_ONLY)),
    ("winkernel.rootHnsEndpointName", Is(WINDOWS_ONLY)),
    ("winkernel.forwardHealthCheckVip", Is(WINDOWS_ONLY)),
    ("detectLocalMode", As("detect-local-mode")),
    ("detectLocal.bridgeInterface", As("pod-bridge-interface")),
    ("detectLocal.interfaceNamePrefix", As("pod-interface-name-prefix")),
    ("clusterCIDR", As("cluster-cidr")),
    ("nodePortAddresses", As("nodeport-addresses")),
    ("oomScoreAdj", As("oom-score-adj")),
    ("conntrack.maxPerCore", As("conntrack-max-per-core")),
    ("conntrack.min", As("conntrack-min")),
    ("conntrack.tcpEstablishedTimeout", As("conntrack-tcp-timeout-established")),
    ("conntrack.tcpCloseWaitTimeout", As("conntrack-tcp-timeout-close-wait")),
    ("conntrack.tcpBeLiberal", As("conntrack-tcp-be-liberal")),
    ("conntrack.udpTimeout", As("conntrack-udp-timeout")),
    ("conntrack.udpStreamTimeout", As("conntrack-udp-timeout-stream")),
    ("configSyncPeriod", As("config-sync-period")),
    ("portRange", Is("Obsolete: accepted and ignored.")),
    ("windowsRunAsService", Is(WINDOWS_ONLY)),
];

/// Fields that are not serialized if they are empty.
const OMITTED_IF_EMPTY: [&str; 5] = [
    "featureGates",
    "logging.vmodule",
    "logging.options.text.splitStream",
    "logging.options.json.splitStream",
    "windowsRunAsService",
];

fn configuration_chapter() -> String {
    let defaults: Value =
        serde_json::from_str(&KubeProxyConfiguration::with_defaults().to_json().unwrap()).unwrap();
    let described: BTreeSet<String> = FIELDS.iter().map(|(path, _)| (*path).to_owned()).collect();
    let mut fields = BTreeSet::from(OMITTED_IF_EMPTY.map(str::to_owned));
    add_leaves("", &defaults, &mut fields);
    assert_eq!(described, fields, "FIELDS should have exactly the fields of the API");

    let mut text = String::from(
        "<!-- Written by `make docs` from crates/settings/src/config and crates/settings/src/flags/chapters.rs. -->\n\n\
         # The configuration file\n\n\
         `--config FILE` reads upstream's `KubeProxyConfiguration`, version `v1alpha1`, with upstream's defaults and upstream's \
         validation. With a file, only these flags have an effect: `--hostname-override`, the logging flags, and the flags \
         without a field, which are `--audit-interval`, `--cleanup`, `--connection-metrics`, `--init-only`, `--manifests` \
         and `--master`. Unknown fields are logged and ignored. When the file changes, the process exits, so that it is \
         restarted with the new content.\n\n\
         ```yaml\n\
         apiVersion: kubeproxy.config.k8s.io/v1alpha1\n\
         kind: KubeProxyConfiguration\n\
         mode: nftables\n\
         clusterCIDR: 10.244.0.0/16\n\
         clientConnection:\n  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf\n\
         ```\n\n\
         | field | default | meaning |\n| --- | --- | --- |\n",
    );
    for (path, meaning) in FIELDS {
        let default = path.split('.').try_fold(&defaults, |value, key| value.get(key));
        let default = match default {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) if text.is_empty() => String::new(),
            Some(Value::String(text)) => format!("`{text}`"),
            Some(other) => format!("`{other}`"),
        };
        let meaning = match meaning {
            As(flag) => {
                let flag = TABLE.iter().find(|entry| entry.name == *flag).expect("FIELDS names flags");
                let help = flag.help.replace(IGNORED_WITH_CONFIG, "").replace(" Options are:", "");
                format!("{} Flag `--{}`.", escape(&help), flag.name)
            }
            Is(text) => (*text).to_owned(),
        };
        text.push_str(&format!("| `{path}` | {default} | {meaning} |\n"));
    }
    text
}

fn add_leaves(path: &str, value: &Value, found: &mut BTreeSet<String>) {
    let Value::Object(fields) = value else {
        found.insert(path.to_owned());
        return;
    };
    for (name, value) in fields {
        add_leaves(format!("{path}.{name}").trim_start_matches('.'), value, found);
    }
}

/// Escapes what Markdown would interpret in a table.
fn escape(text: &str) -> String {
    text.replace('|', "\\|").replace('*', "\\*").replace('<', "&lt;")
}
