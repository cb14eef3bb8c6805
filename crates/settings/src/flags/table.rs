//! Every flag, by name.

use super::{Flag, Flags, Slot};

const fn flag(name: &'static str, slot: fn(&mut Flags) -> Slot<'_>, help: &'static str) -> Flag {
    Flag { name, shorthand: None, help, deprecated: None, slot }
}

impl Flag {
    const fn short(self, shorthand: char) -> Self {
        Self { shorthand: Some(shorthand), ..self }
    }

    const fn deprecated(self, advice: &'static str) -> Self {
        Self { deprecated: Some(advice), ..self }
    }
}

/// In a table of text, the help is what one reads; where a value goes is one line above it.
pub static TABLE: &[Flag] = &[
    flag(
        "audit-interval",
        |f| Slot::Duration(&mut f.audit_interval),
        "How often to compare a part of the rules in the kernel with what they should be, and to write them again if they differ; less often if that would take more than half a percent of a processor. 0 never does.",
    ),
    flag(
        "bind-address",
        |f| Slot::Ip(&mut f.config.bind_address),
        "The node's primary IP, in place of the one in its Node object; nothing is bound to it. Ignored with --config.",
    ),
    flag(
        "bind-address-hard-fail",
        |f| Slot::Bool(&mut f.config.bind_address_hard_fail),
        "Exit when the health or metrics server cannot listen, instead of trying again. Ignored with --config.",
    ),
    flag(
        "boot-id-file",
        |f| Slot::Text(&mut f.boot_id_file),
        "Accepted for compatibility, without effect.",
    ),
    flag(
        "cleanup",
        |f| Slot::Bool(&mut f.cleanup),
        "Remove the rules of the iptables and nftables modes from this node and exit; those of the ipvs mode stay.",
    ),
    flag(
        "cluster-cidr",
        |f| Slot::Text(&mut f.cluster_cidr),
        "The address range of the cluster's pods, or a comma-separated pair of one IPv4 and one IPv6 range. Decides what traffic is local when --detect-local-mode is ClusterCIDR. Ignored with --config.",
    ),
    flag("config", |f| Slot::Text(&mut f.config_file), "Path of the configuration file."),
    flag(
        "config-sync-period",
        |f| Slot::Duration(&mut f.config.config_sync_period),
        "Above 0. Accepted for compatibility, without effect: objects are followed, and going through them again would change nothing. Ignored with --config.",
    ),
    flag(
        "connection-metrics",
        |f| Slot::Bool(&mut f.connection_metrics),
        "Whether /metrics tells new connections per service and per endpoint, at most 5000 of each. nftables mode only.",
    ),
    flag(
        "conntrack-max-per-core",
        |f| Slot::Int(f.config.conntrack.max_per_core.get_or_insert_default()),
        "Connections to track per CPU core; 0 leaves the kernel's limit alone and ignores --conntrack-min. Ignored with --config.",
    ),
    flag(
        "conntrack-min",
        |f| Slot::Int(f.config.conntrack.min.get_or_insert_default()),
        "Least number of connections to track, whatever --conntrack-max-per-core comes to. Ignored with --config.",
    ),
    flag(
        "conntrack-tcp-be-liberal",
        |f| Slot::Bool(&mut f.config.conntrack.tcp_be_liberal),
        "Let the kernel accept TCP packets outside the window (nf_conntrack_tcp_be_liberal). Ignored with --config.",
    ),
    flag(
        "conntrack-tcp-timeout-close-wait",
        |f| Slot::Duration(f.config.conntrack.tcp_close_wait_timeout.get_or_insert_default()),
        "How long TCP connections in CLOSE_WAIT are tracked; 0 leaves the kernel's value. Ignored with --config.",
    ),
    flag(
        "conntrack-tcp-timeout-established",
        |f| Slot::Duration(f.config.conntrack.tcp_established_timeout.get_or_insert_default()),
        "How long idle established TCP connections are tracked; 0 leaves the kernel's value. Ignored with --config.",
    ),
    flag(
        "conntrack-udp-timeout",
        |f| Slot::Duration(&mut f.config.conntrack.udp_timeout),
        "How long unanswered UDP flows are tracked; 0 leaves the kernel's value. Ignored with --config.",
    ),
    flag(
        "conntrack-udp-timeout-stream",
        |f| Slot::Duration(&mut f.config.conntrack.udp_stream_timeout),
        "How long answered UDP flows are tracked; 0 leaves the kernel's value. Ignored with --config.",
    ),
    flag(
        "detect-local-mode",
        |f| Slot::Mode(&mut f.config.detect_local_mode, "LocalMode"),
        "How to tell traffic of local pods: ClusterCIDR (used when empty), NodeCIDR, BridgeInterface or InterfaceNamePrefix. Ignored with --config.",
    ),
    flag(
        "feature-gates",
        |f| Slot::Gates(&mut f.config.feature_gates),
        "Comma-separated key=value pairs that switch features. Ignored with --config. Options are:",
    ),
    flag(
        "healthz-bind-address",
        |f| Slot::IpPort(&mut f.config.healthz_bind_address),
        "Address and port of the health server. Ignored with --config.",
    ),
    flag("healthz-port", |f| Slot::Int(&mut f.healthz_port), "Port of the health server; 0 switches it off.")
        .deprecated("This flag is deprecated and will be removed in a future release. Please use --healthz-bind-address instead."),
    flag("help", |f| Slot::Bool(&mut f.help), "Print this help.").short('h'),
    flag(
        "hostname-override",
        |f| Slot::Text(&mut f.hostname_override),
        "Name of the Node this proxy runs on, in place of the host name.",
    ),
    flag(
        "init-only",
        |f| Slot::Bool(&mut f.init_only),
        "Do what needs full root privileges and exit; afterwards the proxy can run with CAP_NET_ADMIN alone.",
    ),
    flag(
        "iptables-localhost-nodeports",
        |f| Slot::Bool(f.config.iptables.localhost_node_ports.get_or_insert_default()),
        "Serve node ports on IPv4 localhost too (iptables mode only). Ignored with --config.",
    ),
    flag(
        "iptables-masquerade-bit",
        |f| Slot::Int(f.config.iptables.masquerade_bit.get_or_insert_default()),
        "Bit of the packet mark that asks for masquerading in iptables and ipvs mode, 0 to 31. Ignored with --config.",
    ),
    flag(
        "iptables-min-sync-period",
        |f| Slot::Duration(&mut f.iptables_min_sync_period),
        "Least time between two updates of the rules in iptables and nftables mode; 0 updates at every change. Ignored with --config.",
    ),
    flag(
        "iptables-sync-period",
        |f| Slot::Duration(&mut f.iptables_sync_period),
        "How often the rules are gone through again in iptables and nftables mode; above 0. Ignored with --config.",
    ),
    flag(
        "ipvs-exclude-cidrs",
        |f| Slot::List(&mut f.config.ipvs.exclude_cidrs),
        "Comma-separated ranges whose virtual servers the ipvs mode leaves alone. Ignored with --config.",
    ),
    flag(
        "ipvs-min-sync-period",
        |f| Slot::Duration(&mut f.ipvs_min_sync_period),
        "Least time between two updates of the rules in ipvs mode; 0 updates at every change. Ignored with --config.",
    ),
    flag(
        "ipvs-scheduler",
        |f| Slot::Text(&mut f.config.ipvs.scheduler),
        "Scheduler of the ipvs mode; rr when empty. Ignored with --config.",
    ),
    flag(
        "ipvs-strict-arp",
        |f| Slot::Bool(&mut f.config.ipvs.strict_arp),
        "Set arp_ignore to 1 and arp_announce to 2 in ipvs mode. Ignored with --config.",
    ),
    flag(
        "ipvs-sync-period",
        |f| Slot::Duration(&mut f.ipvs_sync_period),
        "How often the rules are gone through again in ipvs mode; above 0. Ignored with --config.",
    ),
    flag(
        "ipvs-tcp-timeout",
        |f| Slot::Duration(&mut f.config.ipvs.tcp_timeout),
        "Idle time of TCP connections in ipvs mode; 0 leaves the kernel's value. Ignored with --config.",
    ),
    flag(
        "ipvs-tcpfin-timeout",
        |f| Slot::Duration(&mut f.config.ipvs.tcp_fin_timeout),
        "Idle time of TCP connections after a FIN in ipvs mode; 0 leaves the kernel's value. Ignored with --config.",
    ),
    flag(
        "ipvs-udp-timeout",
        |f| Slot::Duration(&mut f.config.ipvs.udp_timeout),
        "Idle time of UDP flows in ipvs mode; 0 leaves the kernel's value. Ignored with --config.",
    ),
    flag(
        "kube-api-burst",
        |f| Slot::Int(&mut f.config.client_connection.burst),
        "Requests to the API server that may be made at once. Ignored with --config.",
    ),
    flag(
        "kube-api-content-type",
        |f| Slot::Text(&mut f.config.client_connection.content_type),
        "Media type of requests to the API server. Accepted for compatibility, without effect: JSON is spoken. Ignored with --config.",
    ),
    flag(
        "kube-api-qps",
        |f| Slot::Float(&mut f.config.client_connection.qps),
        "Requests to the API server per second. Ignored with --config.",
    ),
    flag(
        "kubeconfig",
        |f| Slot::Text(&mut f.config.client_connection.kubeconfig),
        "Path of the kubeconfig file that says where the API server is and who we are. Ignored with --config.",
    ),
    flag(
        "log-flush-frequency",
        |f| Slot::Flush(&mut f.config.logging.flush_frequency),
        "Longest time that buffered log lines wait.",
    ),
    flag(
        "log-json-info-buffer-size",
        |f| Slot::Quantity(&mut f.config.logging.options.json.info_buffer_size),
        "[Alpha] Bytes of informative lines to buffer in JSON format with split streams, such as 512, 64k or 2Ki. Needs the LoggingAlphaOptions feature gate.",
    ),
    flag(
        "log-json-split-stream",
        |f| Slot::Bool(&mut f.config.logging.options.json.split_stream),
        "[Alpha] In JSON format, write errors to stderr and the rest to stdout. Needs the LoggingAlphaOptions feature gate.",
    ),
    flag(
        "log-text-info-buffer-size",
        |f| Slot::Quantity(&mut f.config.logging.options.text.info_buffer_size),
        "[Alpha] Bytes of informative lines to buffer in text format with split streams, such as 512, 64k or 2Ki. Needs the LoggingAlphaOptions feature gate.",
    ),
    flag(
        "log-text-split-stream",
        |f| Slot::Bool(&mut f.config.logging.options.text.split_stream),
        "[Alpha] In text format, write errors to stderr and the rest to stdout. Needs the LoggingAlphaOptions feature gate.",
    ),
    flag("logging-format", |f| Slot::Text(&mut f.config.logging.format), "Format of the log: text or json."),
    flag(
        "machine-id-file",
        |f| Slot::Text(&mut f.machine_id_file),
        "Accepted for compatibility, without effect.",
    ),
    flag(
        "manifests",
        |f| Slot::Text(&mut f.manifests),
        "Directory of YAML/JSON manifests to serve from instead of an API server.",
    ),
    flag(
        "masquerade-all",
        |f| Slot::Bool(&mut f.masquerade_all),
        "Masquerade all traffic to cluster IPs, whatever it comes from. Ignored with --config.",
    ),
    flag(
        "master",
        |f| Slot::Text(&mut f.master),
        "URL of the API server, in place of the one in the kubeconfig file.",
    ),
    flag(
        "metrics-bind-address",
        |f| Slot::IpPort(&mut f.config.metrics_bind_address),
        "Address and port of the metrics server. Ignored with --config.",
    ),
    flag("metrics-port", |f| Slot::Int(&mut f.metrics_port), "Port of the metrics server.")
        .deprecated("This flag is deprecated and will be removed in a future release. Please use --metrics-bind-address instead."),
    flag(
        "nodeport-addresses",
        |f| Slot::List(&mut f.config.node_port_addresses),
        "Comma-separated ranges of the node addresses that serve node ports, or the word 'primary' for the node's primary IPs. All of them when empty, except in nftables mode, which then takes 'primary'. Ignored with --config.",
    ),
    flag(
        "oom-score-adj",
        |f| Slot::Int(f.config.oom_score_adj.get_or_insert_default()),
        "How likely the kernel is to kill this process when memory is short, from -1000 (never) to 1000 (first). Ignored with --config.",
    ),
    flag(
        "pod-bridge-interface",
        |f| Slot::Text(&mut f.config.detect_local.bridge_interface),
        "The bridge that local pods' traffic comes from, when --detect-local-mode is BridgeInterface. Ignored with --config.",
    ),
    flag(
        "pod-interface-name-prefix",
        |f| Slot::Text(&mut f.config.detect_local.interface_name_prefix),
        "How the interfaces of local pods are called at the start, when --detect-local-mode is InterfaceNamePrefix. Ignored with --config.",
    ),
    flag(
        "profiling",
        |f| Slot::Bool(&mut f.config.enable_profiling),
        "Serve /debug on the metrics server: /debug/flags/v changes the verbosity, /debug/pprof says that there are no profiles. Ignored with --config.",
    ),
    flag(
        "proxy-mode",
        |f| Slot::Mode(&mut f.config.mode, "ProxyMode"),
        "How to program the kernel: iptables (used when empty) or nftables; ipvs is not available yet. Ignored with --config.",
    ),
    flag(
        "show-hidden-metrics-for-version",
        |f| Slot::Text(&mut f.config.show_hidden_metrics_for_version),
        "The minor release before this one. Accepted for compatibility, without effect: this release hides no metrics. Ignored with --config.",
    ),
    flag(
        "v",
        |f| Slot::Level(&mut f.config.logging.verbosity),
        "How much to log: 0 what always matters, 2 what is being done, 4 and above for debugging.",
    )
    .short('v'),
    flag(
        "version",
        |f| Slot::Version(&mut f.version),
        "Print the version and exit; --version=raw prints all that is known of the build, --version=vX.Y.Z... sets what is reported.",
    ),
    flag(
        "vmodule",
        |f| Slot::VModule(&mut f.config.logging.vmodule),
        "Comma-separated pattern=N settings: how much to log from the source files whose names match. Text format only.",
    ),
    flag(
        "write-config-to",
        |f| Slot::Text(&mut f.write_config_to),
        "Write the configuration that the flags or the file amount to, with all defaults, to this file and exit.",
    ),
];
