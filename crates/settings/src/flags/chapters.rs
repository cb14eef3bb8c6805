//! The chapters of the book that say what the table of flags and the configuration API say: written from them, and
//! compared with them by every test run. `make docs` writes them again.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{Flag, Flags, TABLE};
use crate::config::KubeProxyConfiguration;
use crate::gates::{self, Gate, Stage};

const BOOK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src");
/// What the help of a flag says that a configuration file silences.
const SILENCED: &str = " Ignored with --config.";

#[test]
fn the_chapter_on_flags_says_what_the_table_says() {
    compare("flags.md", &flags_chapter());
}

#[test]
fn the_chapter_on_the_configuration_file_knows_every_field() {
    compare("configuration.md", &configuration_chapter());
}

/// With `SLUICE_DOCS=write` in the environment the chapter is made so.
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
         parsed as in upstream: `--v=2`, `--v 2`, `-v2` and `--bind_address` all work, and `kube-proxy --help` prints this list.\n\n\
         A flag with a star is ignored when `--config` names a file; the [file](configuration.md) has a field for it. To \
         see what flags amount to as a file, add `--write-config-to FILE`.\n\n\
         | flag | default | what it does |\n| --- | --- | --- |\n",
    );
    for flag in TABLE.iter().filter(|flag| flag.deprecated.is_none()) {
        text.push_str(&row(flag, &mut defaults));
    }
    text.push_str("\n## Deprecated\n\nThey still work, and say so when they are used.\n\n| flag | default | what it does |\n| --- | --- | --- |\n");
    for flag in TABLE.iter().filter(|flag| flag.deprecated.is_some()) {
        text.push_str(&row(flag, &mut defaults));
    }
    text.push_str(
        "\n## Feature gates\n\n\
         Every gate of Kubernetes 1.36 can be set, since tools hand one list to all components. An unknown name is an \
         error. These gates change what this program does, all others have no effect:\n\n\
         | gate | stage | default | what it does |\n| --- | --- | --- | --- |\n",
    );
    for (gate, meaning) in GATES {
        let known = gates::known(gate.name()).expect("every gate of the program is in the table");
        let stage = match known.stage {
            Stage::Alpha => "alpha",
            Stage::Beta => "beta",
            Stage::Ga => "general",
            Stage::Deprecated => "deprecated",
        };
        let default = if known.default { "on" } else { "off" };
        text.push_str(&format!("| `{}` | {stage} | {default} | {meaning} |\n", known.name));
    }
    text
}

/// All gates that change what this program does.
const GATES: [(Gate, &str); 5] = [
    (Gate::AllowServiceExternalIPs, "Serve the `externalIPs` of Services."),
    (Gate::ComponentFlagz, "Show every flag at `/flagz` of the metrics port."),
    (Gate::ComponentStatusz, "Show version, start and paths at `/statusz` of the metrics port."),
    (Gate::LoggingAlphaOptions, "Allow the alpha options of logging: split streams and buffers."),
    (Gate::LoggingBetaOptions, "Allow the beta options of logging: the JSON format."),
];

fn row(flag: &Flag, defaults: &mut Flags) -> String {
    let slot = (flag.slot)(defaults);
    let (type_name, default) = (slot.type_name(), slot.text());
    let value = match type_name {
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
        other => panic!("what is a {other} to a reader?"),
    };
    let short = flag.shorthand.map_or(String::new(), |short| format!("`-{short}`, "));
    let star = if flag.help.contains(SILENCED) { " *" } else { "" };
    let help = flag.help.replace(SILENCED, "").replace(" Options are:", " See [below](#feature-gates).");
    let default = if default.is_empty() || default == "[]" { String::new() } else { format!("`{default}`") };
    format!("| {short}`--{}{value}`{star} | {default} | {} |\n", flag.name, escape(&help))
}

/// What a field of the file means.
enum Meaning {
    /// The same as this flag.
    As(&'static str),
    Is(&'static str),
}
use Meaning::{As, Is};

const OWN_WORDS: &str = "Windows only: carried along, never acted upon.";

/// Every field, in the order of the API.
const FIELDS: &[(&str, Meaning)] = &[
    ("apiVersion", Is("Always `kubeproxy.config.k8s.io/v1alpha1`; has to be there.")),
    ("kind", Is("Always `KubeProxyConfiguration`; has to be there.")),
    ("featureGates", Is("A map from names of [feature gates](flags.md#feature-gates) to `true` or `false`.")),
    ("clientConnection.kubeconfig", As("kubeconfig")),
    ("clientConnection.acceptContentTypes", Is("Accepted for compatibility: answers are asked for in JSON.")),
    (
        "clientConnection.contentType",
        Is("Accepted for compatibility: the API server is spoken to in JSON, whatever this says."),
    ),
    ("clientConnection.qps", As("kube-api-qps")),
    ("clientConnection.burst", As("kube-api-burst")),
    ("logging.format", As("logging-format")),
    ("logging.flushFrequency", As("log-flush-frequency")),
    ("logging.verbosity", As("v")),
    (
        "logging.vmodule",
        Is(
            "A list of `filePattern` and `verbosity`: how much to log from the source files whose names match. Text format only.",
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
        Is("Bit of the packet mark that asks for masquerading in nftables mode, 0 to 31."),
    ),
    ("nftables.masqueradeAll", Is("As `--masquerade-all`, for the nftables mode.")),
    (
        "nftables.syncPeriod",
        Is("How long after a failed pass the next one is tried, in nftables mode; above 0."),
    ),
    (
        "nftables.minSyncPeriod",
        Is(
            "Least time from the end of one pass to the next, in nftables mode. Left out, a pass is followed by a rest in proportion to what it took, at most this default: see [Tuning](tuning.md).",
        ),
    ),
    ("winkernel.networkName", Is(OWN_WORDS)),
    ("winkernel.sourceVip", Is(OWN_WORDS)),
    ("winkernel.enableDSR", Is(OWN_WORDS)),
    ("winkernel.rootHnsEndpointName", Is(OWN_WORDS)),
    ("winkernel.forwardHealthCheckVip", Is(OWN_WORDS)),
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
    ("portRange", Is("Obsolete: read and dropped.")),
    ("windowsRunAsService", Is(OWN_WORDS)),
];

/// Fields that are not written while they are empty.
const LEFT_OUT_WHEN_EMPTY: [&str; 5] = [
    "featureGates",
    "logging.vmodule",
    "logging.options.text.splitStream",
    "logging.options.json.splitStream",
    "windowsRunAsService",
];

fn configuration_chapter() -> String {
    let defaults: Value =
        serde_json::from_str(&KubeProxyConfiguration::with_defaults().to_json().unwrap()).unwrap();
    let known: BTreeSet<String> = FIELDS.iter().map(|(path, _)| (*path).to_owned()).collect();
    let mut wanted = BTreeSet::from(LEFT_OUT_WHEN_EMPTY.map(str::to_owned));
    leaves("", &defaults, &mut wanted);
    assert_eq!(known, wanted, "FIELDS should name every field of the API, and no other");

    let mut text = String::from(
        "<!-- Written by `make docs` from crates/settings/src/config and crates/settings/src/flags/chapters.rs. -->\n\n\
         # The configuration file\n\n\
         `--config FILE` reads upstream's `KubeProxyConfiguration`, version `v1alpha1`, with upstream's defaults and upstream's \
         validation. The file counts for everything; of the flags only `--hostname-override` and those about logging \
         are heard beside it, and those that have no field: `--manifests`, `--connection-metrics`, `--master`, \
         `--cleanup`, `--init-only`. A field that nobody knows is told in the log and left out. When the file changes, the \
         process ends, so that it is started again with what the file says now.\n\n\
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
                let flag = TABLE.iter().find(|known| known.name == *flag).expect("FIELDS names flags");
                let help = flag.help.replace(SILENCED, "").replace(" Options are:", "");
                format!("{} Flag `--{}`.", escape(&help), flag.name)
            }
            Is(text) => (*text).to_owned(),
        };
        text.push_str(&format!("| `{path}` | {default} | {meaning} |\n"));
    }
    text
}

fn leaves(path: &str, value: &Value, found: &mut BTreeSet<String>) {
    let Value::Object(fields) = value else {
        found.insert(path.to_owned());
        return;
    };
    for (name, value) in fields {
        leaves(format!("{path}.{name}").trim_start_matches('.'), value, found);
    }
}

/// So that a table shows it as it is.
fn escape(text: &str) -> String {
    text.replace('|', "\\|").replace('*', "\\*").replace('<', "&lt;")
}
