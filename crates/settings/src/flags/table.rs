//! Every flag, sorted by name.

use super::{Flag, FlagValue, Flags};

const fn flag(name: &'static str, value: fn(&mut Flags) -> FlagValue<'_>, help: &'static str) -> Flag {
    Flag { name, shorthand: None, help, deprecated: None, value }
}

impl Flag {
    const fn short(self, shorthand: char) -> Self {
        Self { shorthand: Some(shorthand), ..self }
    }

    const fn deprecated(self, advice: &'static str) -> Self {
        Self { deprecated: Some(advice), ..self }
    }
}

/// Sorted by name.
pub static TABLE: &[Flag] = &[
    flag(
        "audit-interval",
        |f| FlagValue::Duration(&mut f.audit_interval),
        "How often to compare a part of the rules in the kernel with the desired state and to repair differences. The interval grows if the comparisons would take more than half a percent of a CPU. 0 disables them.",
    ),
    flag(
        "bind-address",
        |f| FlagValue::Ip(&mut f.config.bind_address),
        "The node's primary IP, overriding the one in its Node object; no socket is bound to it. Ignored with --config.",
    ),
    flag(
        "bind-address-hard-fail",
        |f| FlagValue::Bool(&mut f.config.bind_address_hard_fail),
        "Exit if the health or metrics server cannot bind, instead of retrying. Ignored with --config.",
    ),
    flag(
        "boot-id-file",
        |f| FlagValue::Text(&mut f.boot_id_file),
        "Accepted for compatibility, without effect.",
    ),
    flag(
        "cleanup",
        |f| FlagValue::Bool(&mut f.cleanup),
        "Remove what the iptables, nftables and ipvs modes have left on this node and exit.",
    ),
    flag(
        "cluster-cidr",
        |f| FlagValue::Text(&mut f.cluster_cidr),
        "The address range of the cluster's pods, or a comma-separated pair of one IPv4 and one IPv6 range. Traffic from it is local if --detect-local-mode is ClusterCIDR. Ignored with --config.",
    ),
    flag("config", |f| FlagValue::Text(&mut f.config_file), "Path of the configuration file."),
    flag(
        "config-sync-period",
        |f| FlagValue::Duration(&mut f.config.config_sync_period),
        "Must be greater than 0. Accepted for compatibility, without effect: objects are watched and never resynced. Ignored with --config.",
    ),
    flag(
        "connection-metrics",
        |f| FlagValue::Bool(&mut f.connection_metrics),
        "Export new connections per service and per endpoint at /metrics, at most 5000 series of each. nftables and ipvs mode only.",
    ),
    flag(
        "conntrack-max-per-core",
        |f| FlagValue::Int(f.config.conntrack.max_per_core.get_or_insert_default()),
        "Maximum number of conntrack entries per CPU core; 0 leaves the kernel's limit unchanged and ignores --conntrack-min. Ignored with --config.",
    ),
    flag(
        "conntrack-min",
        |f| FlagValue::Int(f.config.conntrack.min.get_or_insert_default()),
        "Minimum for the conntrack limit that results from --conntrack-max-per-core. Ignored with --config.",
    ),
    flag(
        "conntrack-tcp-be-liberal",
        |f| FlagValue::Bool(&mut f.config.conntrack.tcp_be_liberal),
        "Make conntrack accept TCP packets outside the window (nf_conntrack_tcp_be_liberal). Ignored with --config.",
    ),
    flag(
        "conntrack-tcp-timeout-close-wait",
        |f| FlagValue::Duration(f.config.conntrack.tcp_close_wait_timeout.get_or_insert_default()),
        "Conntrack timeout of TCP connections in CLOSE_WAIT; 0 leaves the kernel's value unchanged. Ignored with --config.",
    ),
    flag(
        "conntrack-tcp-timeout-established",
        |f| FlagValue::Duration(f.config.conntrack.tcp_established_timeout.get_or_insert_default()),
        "Conntrack timeout of idle established TCP connections; 0 leaves the kernel's value unchanged. Ignored with --config.",
    ),
    flag(
        "conntrack-udp-timeout",
        |f| FlagValue::Duration(&mut f.config.conntrack.udp_timeout),
        "Conntrack timeout of unreplied UDP flows; 0 leaves the kernel's value unchanged. Ignored with --config.",
    ),
    flag(
        "conntrack-udp-timeout-stream",
        |f| FlagValue::Duration(&mut f.config.conntrack.udp_stream_timeout),
        "Conntrack timeout of replied UDP flows; 0 leaves the kernel's value unchanged. Ignored with --config.",
    ),
    flag(
        "detect-local-mode",
        |f| FlagValue::Mode(&mut f.config.detect_local_mode, "LocalMode"),
        "How to recognize traffic from local pods: ClusterCIDR (the default), NodeCIDR, BridgeInterface or InterfaceNamePrefix. Ignored with --config.",
    ),
    flag(
        "feature-gates",
        |f| FlagValue::Gates(&mut f.config.feature_gates),
        "Comma-separated key=value pairs that enable or disable features. Ignored with --config. Options are:",
    ),
    flag(
        "healthz-bind-address",
        |f| FlagValue::IpPort(&mut f.config.healthz_bind_address),
        "Address and port of the health server. Ignored with --config.",
    ),
    flag("healthz-port", |f| FlagValue::Int(&mut f.healthz_port), "Port of the health server; 0 disables it.")
        .deprecated("This flag is deprecated and will be removed in a future release. Please use --healthz-bind-address instead."),
    flag("help", |f| FlagValue::Bool(&mut f.help), "Print this help.").short('h'),
    flag(
        "hostname-override",
        |f| FlagValue::Text(&mut f.hostname_override),
        "Name of the Node that this proxy runs on, overriding the host name.",
    ),
    flag(
        "init-only",
        |f| FlagValue::Bool(&mut f.init_only),
        "Perform the steps that need full root privileges and exit; after that the proxy can run with CAP_NET_ADMIN only.",
    ),
    flag(
        "iptables-localhost-nodeports",
        |f| FlagValue::Bool(f.config.iptables.localhost_node_ports.get_or_insert_default()),
        "Also serve node ports on IPv4 localhost (iptables mode only). Ignored with --config.",
    ),
    flag(
        "iptables-masquerade-bit",
        |f| FlagValue::Int(f.config.iptables.masquerade_bit.get_or_insert_default()),
        "Bit of the packet mark that requests masquerading in iptables and ipvs mode, 0 to 31. Ignored with --config.",
    ),
    flag(
        "iptables-min-sync-period",
        |f| FlagValue::Duration(&mut f.iptables_min_sync_period),
        "Minimum time between two syncs in iptables and nftables mode; 0 syncs at every change. Ignored with --config.",
    ),
    flag(
        "iptables-sync-period",
        |f| FlagValue::Duration(&mut f.iptables_sync_period),
        "Retry interval after a failed sync in iptables and nftables mode, and in iptables mode also the interval of checks for changes that the kernel does not report. Must be greater than 0. Ignored with --config.",
    ),
    flag(
        "ipvs-exclude-cidrs",
        |f| FlagValue::List(&mut f.config.ipvs.exclude_cidrs),
        "Comma-separated CIDRs whose virtual servers the ipvs mode does not remove. Ignored with --config.",
    ),
    flag(
        "ipvs-min-sync-period",
        |f| FlagValue::Duration(&mut f.ipvs_min_sync_period),
        "Minimum time between two syncs in ipvs mode; 0 syncs at every change. Ignored with --config.",
    ),
    flag(
        "ipvs-scheduler",
        |f| FlagValue::Text(&mut f.config.ipvs.scheduler),
        "Scheduler of the ipvs mode; rr if empty. Ignored with --config.",
    ),
    flag(
        "ipvs-strict-arp",
        |f| FlagValue::Bool(&mut f.config.ipvs.strict_arp),
        "Set arp_ignore to 1 and arp_announce to 2 in ipvs mode. Ignored with --config.",
    ),
    flag(
        "ipvs-sync-period",
        |f| FlagValue::Duration(&mut f.ipvs_sync_period),
        "Retry interval after a failed sync in ipvs mode. Must be greater than 0. Ignored with --config.",
    ),
    flag(
        "ipvs-tcp-timeout",
        |f| FlagValue::Duration(&mut f.config.ipvs.tcp_timeout),
        "Timeout of idle TCP connections in ipvs mode; 0 leaves the kernel's value unchanged. Ignored with --config.",
    ),
    flag(
        "ipvs-tcpfin-timeout",
        |f| FlagValue::Duration(&mut f.config.ipvs.tcp_fin_timeout),
        "Timeout of idle TCP connections after a FIN in ipvs mode; 0 leaves the kernel's value unchanged. Ignored with --config.",
    ),
    flag(
        "ipvs-udp-timeout",
        |f| FlagValue::Duration(&mut f.config.ipvs.udp_timeout),
        "Timeout of idle UDP flows in ipvs mode; 0 leaves the kernel's value unchanged. Ignored with --config.",
    ),
    flag(
        "kube-api-burst",
        |f| FlagValue::Int(&mut f.config.client_connection.burst),
        "Burst of requests to the API server beyond --kube-api-qps. Ignored with --config.",
    ),
    flag(
        "kube-api-content-type",
        |f| FlagValue::Text(&mut f.config.client_connection.content_type),
        "Encoding of objects from the API server: application/vnd.kubernetes.protobuf or application/json. Ignored with --config.",
    ),
    flag(
        "kube-api-qps",
        |f| FlagValue::Float(&mut f.config.client_connection.qps),
        "Maximum rate of requests to the API server, per second. Ignored with --config.",
    ),
    flag(
        "kubeconfig",
        |f| FlagValue::Text(&mut f.config.client_connection.kubeconfig),
        "Path of the kubeconfig file with the address of the API server and the credentials. Ignored with --config.",
    ),
    flag(
        "log-flush-frequency",
        |f| FlagValue::Flush(&mut f.config.logging.flush_frequency),
        "Maximum time between two flushes of the log buffer.",
    ),
    flag(
        "log-json-info-buffer-size",
        |f| FlagValue::Quantity(&mut f.config.logging.options.json.info_buffer_size),
        "[Alpha] Size of the buffer for info messages in JSON format with split streams, such as 512, 64k or 2Ki. Needs the LoggingAlphaOptions feature gate.",
    ),
    flag(
        "log-json-split-stream",
        |f| FlagValue::Bool(&mut f.config.logging.options.json.split_stream),
        "[Alpha] In JSON format, write errors to stderr and other messages to stdout. Needs the LoggingAlphaOptions feature gate.",
    ),
    flag(
        "log-text-info-buffer-size",
        |f| FlagValue::Quantity(&mut f.config.logging.options.text.info_buffer_size),
        "[Alpha] Size of the buffer for info messages in text format with split streams, such as 512, 64k or 2Ki. Needs the LoggingAlphaOptions feature gate.",
    ),
    flag(
        "log-text-split-stream",
        |f| FlagValue::Bool(&mut f.config.logging.options.text.split_stream),
        "[Alpha] In text format, write errors to stderr and other messages to stdout. Needs the LoggingAlphaOptions feature gate.",
    ),
    flag("logging-format", |f| FlagValue::Text(&mut f.config.logging.format), "Format of the log: text or json."),
    flag(
        "machine-id-file",
        |f| FlagValue::Text(&mut f.machine_id_file),
        "Accepted for compatibility, without effect.",
    ),
    flag(
        "manifests",
        |f| FlagValue::Text(&mut f.manifests),
        "Directory of YAML/JSON manifests to serve from instead of an API server.",
    ),
    flag(
        "masquerade-all",
        |f| FlagValue::Bool(&mut f.masquerade_all),
        "Masquerade all traffic to cluster IPs, wherever it comes from. Ignored with --config.",
    ),
    flag(
        "master",
        |f| FlagValue::Text(&mut f.master),
        "URL of the API server, overriding the one in the kubeconfig file.",
    ),
    flag(
        "metrics-bind-address",
        |f| FlagValue::IpPort(&mut f.config.metrics_bind_address),
        "Address and port of the metrics server. Ignored with --config.",
    ),
    flag("metrics-port", |f| FlagValue::Int(&mut f.metrics_port), "Port of the metrics server.")
        .deprecated("This flag is deprecated and will be removed in a future release. Please use --metrics-bind-address instead."),
    flag(
        "nodeport-addresses",
        |f| FlagValue::List(&mut f.config.node_port_addresses),
        "Comma-separated CIDRs of the node addresses that serve node ports, or 'primary' for the node's primary IPs. If empty, all addresses serve them, except in nftables mode, where the default is 'primary'. Ignored with --config.",
    ),
    flag(
        "oom-score-adj",
        |f| FlagValue::Int(f.config.oom_score_adj.get_or_insert_default()),
        "How likely the kernel is to kill this process when memory is short, from -1000 (never) to 1000 (first). Ignored with --config.",
    ),
    flag(
        "pod-bridge-interface",
        |f| FlagValue::Text(&mut f.config.detect_local.bridge_interface),
        "The bridge that the traffic of local pods arrives on, if --detect-local-mode is BridgeInterface. Ignored with --config.",
    ),
    flag(
        "pod-interface-name-prefix",
        |f| FlagValue::Text(&mut f.config.detect_local.interface_name_prefix),
        "Prefix of the names of local pods' interfaces, if --detect-local-mode is InterfaceNamePrefix. Ignored with --config.",
    ),
    flag(
        "profiling",
        |f| FlagValue::Bool(&mut f.config.enable_profiling),
        "Serve /debug on the metrics server: /debug/flags/v changes the verbosity, /debug/pprof reports that profiles are not available. Ignored with --config.",
    ),
    flag(
        "proxy-mode",
        |f| FlagValue::Mode(&mut f.config.mode, "ProxyMode"),
        "How to program the kernel: iptables (the default), nftables or ipvs. Ignored with --config.",
    ),
    flag(
        "show-hidden-metrics-for-version",
        |f| FlagValue::Text(&mut f.config.show_hidden_metrics_for_version),
        "The previous minor version. Accepted for compatibility, without effect: this version hides no metrics. Ignored with --config.",
    ),
    flag(
        "v",
        |f| FlagValue::Level(&mut f.config.logging.verbosity),
        "Log verbosity: 0 logs essential messages, 2 also normal operation, 4 and above details for debugging.",
    )
    .short('v'),
    flag(
        "version",
        |f| FlagValue::Version(&mut f.version),
        "Print the version and exit; --version=raw prints all build information, --version=vX.Y.Z... sets the reported version.",
    ),
    flag(
        "vmodule",
        |f| FlagValue::VModule(&mut f.config.logging.vmodule),
        "Comma-separated pattern=N settings: the log verbosity of source files whose names match the pattern. Text format only.",
    ),
    flag(
        "write-config-to",
        |f| FlagValue::Text(&mut f.write_config_to),
        "Write the configuration that results from the flags or the file, including all defaults, to this file and exit.",
    ),
];
