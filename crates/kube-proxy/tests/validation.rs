//! Validation of the configuration, with upstream's error messages.

mod binary;

use binary::{HEADER, run, run_bare, run_with_config};

const ROOT: &str = "KubeProxyConfiguration";

fn invalid(flags: &[&str], want: &str) {
    assert_eq!(run(flags).failure(), format!("failed validate: {ROOT}.{want}"), "{flags:?}");
}

#[test]
fn numbers_must_be_in_range() {
    let conntrack = "KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration";
    let bit = "must be within the range [0, 31]";
    let zero = "must be greater than or equal to 0";
    let oom = "must be within the range [-1000, 1000]";
    for (flag, path, value, detail) in [
        ("--iptables-masquerade-bit=32", "KubeProxyIPTablesConfiguration.MasqueradeBit", "32", bit),
        ("--iptables-masquerade-bit=-1", "KubeProxyIPTablesConfiguration.MasqueradeBit", "-1", bit),
        ("--conntrack-max-per-core=-1", &format!("{conntrack}.MaxPerCore"), "-1", zero),
        ("--conntrack-min=-1", &format!("{conntrack}.Min"), "-1", zero),
        ("--oom-score-adj=1001", "KubeProxyLinuxConfiguration.OOMScoreAdj", "1001", oom),
        ("--oom-score-adj=-1001", "KubeProxyLinuxConfiguration.OOMScoreAdj", "-1001", oom),
        ("--kube-api-burst=-1", "ClientConnection.Burst", "-1", zero),
    ] {
        invalid(&[flag], &format!("{path}: Invalid value: {value}: {detail}"));
    }
    for flag in [
        "--iptables-masquerade-bit=31",
        "--oom-score-adj=1000",
        "--oom-score-adj=-1000",
        "--kube-api-burst=0",
    ] {
        assert_eq!(run(&[flag]).code, 0, "{flag}");
    }
}

#[test]
fn periods_must_be_consistent() {
    let conntrack = "KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration";
    let zero = "must be greater than or equal to 0";
    let above = "must be greater than 0";
    for (flag, path, value, detail) in [
        (
            "--conntrack-tcp-timeout-established=-1s",
            format!("{conntrack}.TCPEstablishedTimeout"),
            "-1s",
            zero,
        ),
        ("--conntrack-tcp-timeout-close-wait=-1s", format!("{conntrack}.TCPCloseWaitTimeout"), "-1s", zero),
        ("--conntrack-udp-timeout=-1ms", format!("{conntrack}.UDPTimeout"), "-1ms", zero),
        ("--conntrack-udp-timeout-stream=-1us", format!("{conntrack}.UDPStreamTimeout"), "-1µs", zero),
        ("--config-sync-period=0", "ConfigSyncPeriod".to_owned(), "0s", above),
        ("--config-sync-period=-1h", "ConfigSyncPeriod".to_owned(), "-1h0m0s", above),
        ("--iptables-min-sync-period=-1s", "MinSyncPeriod".to_owned(), "-1s", zero),
    ] {
        invalid(&[flag], &format!("{path}: Invalid value: \"{value}\": {detail}"));
    }
    invalid(
        &["--iptables-sync-period=0", "--iptables-min-sync-period=0"],
        "SyncPeriod: Invalid value: \"0s\": must be greater than 0",
    );
    invalid(
        &["--iptables-sync-period=1s", "--iptables-min-sync-period=2s"],
        "SyncPeriod: Invalid value: \"2s\": must be greater than or equal to KubeProxyConfiguration.MinSyncPeriod",
    );
    // Upstream accepts this value and panics later.
    invalid(
        &["--iptables-sync-period=2h", "--iptables-min-sync-period=61m"],
        "MinSyncPeriod: Invalid value: \"1h1m0s\": must be less than or equal to 1h0m0s",
    );
    assert_eq!(run(&["--iptables-sync-period=2h", "--iptables-min-sync-period=1h"]).code, 0);
}

#[test]
fn sections_of_other_modes_are_not_validated() {
    let flags = [
        "--ipvs-tcp-timeout=-1s",
        "--ipvs-tcpfin-timeout=-2s",
        "--ipvs-udp-timeout=-3s",
        "--ipvs-exclude-cidrs=1.2.3.0/24,x",
    ];
    assert_eq!(run(&flags).code, 0);
    let ipvs = "KubeProxyConfiguration.KubeProxyIPVSConfiguration";
    let zero = "must be greater than or equal to 0";
    let want = format!(
        "failed validate: [{ipvs}.TCPTimeout: Invalid value: \"-1s\": {zero}, \
         {ipvs}.TCPFinTimeout: Invalid value: \"-2s\": {zero}, \
         {ipvs}.UDPTimeout: Invalid value: \"-3s\": {zero}, \
         {ipvs}.ExcludeCidrs[1]: Invalid value: \"x\": must be a valid CIDR]"
    );
    assert_eq!(run(&[&flags[..], &["--proxy-mode=ipvs"]].concat()).failure(), want);

    let bit = |mode: &str| {
        run_with_config(&format!("{HEADER}mode: {mode}\nnftables: {{masqueradeBit: 32}}\n"), &[])
    };
    assert_eq!(bit("iptables").code, 0);
    let want = "failed validate: KubeProxyConfiguration.KubeProxyNFTablesConfiguration.MasqueradeBit: \
                Invalid value: 32: must be within the range [0, 31]";
    assert_eq!(bit("nftables").failure(), want);
    // The iptables masquerade bit is validated in every mode.
    invalid(
        &["--proxy-mode=nftables", "--iptables-masquerade-bit=32"],
        "KubeProxyIPTablesConfiguration.MasqueradeBit: Invalid value: 32: must be within the range [0, 31]",
    );
}

#[test]
fn modes_must_be_known() {
    let modes = "must be iptables, ipvs, nftables or blank (blank means the best-available proxy [currently iptables])";
    for mode in ["userspace", "kernelspace", "IPVS"] {
        invalid(
            &[&format!("--proxy-mode={mode}")],
            &format!("Mode.ProxyMode: Invalid value: \"{mode}\": {modes}"),
        );
    }
    invalid(
        &["--detect-local-mode=Foo"],
        "DetectLocalMode: Unsupported value: \"Foo\": supported values: \"ClusterCIDR\", \"NodeCIDR\", \"BridgeInterface\", \"InterfaceNamePrefix\", \"\"",
    );
    for (mode, path) in [("BridgeInterface", "InterfaceName"), ("InterfaceNamePrefix", "InterfacePrefix")] {
        invalid(
            &[&format!("--detect-local-mode={mode}")],
            &format!("DetectLocalConfiguration.{path}: Invalid value: \"\": must not be empty"),
        );
    }
    assert_eq!(run(&["--detect-local-mode=BridgeInterface", "--pod-bridge-interface=br0"]).code, 0);
    assert_eq!(run(&["--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=veth"]).code, 0);
}

#[test]
fn cluster_cidrs_are_one_or_one_of_each_family() {
    let path = "DetectLocalConfiguration.ClusterCIDRs";
    let item = "must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)";
    let pair = "must be a either a single CIDR or dual-stack pair of CIDRs (e.g. [10.100.0.0/16, fde4:8dba:82e1::/48]";
    for (value, want) in [
        ("x", format!("{path}[0]: Invalid value: \"x\": {item}")),
        ("", format!("{path}[0]: Invalid value: \"\": {item}")),
        (" 1.2.3.0/24", format!("{path}[0]: Invalid value: \" 1.2.3.0/24\": {item}")),
        ("1.2.3.0/24,x", format!("{path}[1]: Invalid value: \"x\": {item}")),
        ("1.2.3.0/24,1.2.4.0/24", format!("{path}: Invalid value: [\"1.2.3.0/24\",\"1.2.4.0/24\"]: {pair}")),
        ("a,b,c", format!("{path}: Invalid value: [\"a\",\"b\",\"c\"]: {pair}")),
    ] {
        invalid(&[&format!("--cluster-cidr={value}")], &want);
    }
    for value in ["010.0.0.0/8", "fd00::/8", "fd00::/8,10.0.0.0/8"] {
        assert_eq!(run(&[&format!("--cluster-cidr={value}")]).code, 0, "{value}");
    }
    // Validated only if they are used.
    assert_eq!(run(&["--cluster-cidr=x", "--detect-local-mode=NodeCIDR"]).code, 0);
    assert_eq!(run_with_config(&format!("{HEADER}clusterCIDR: ''\n"), &[]).code, 0);
}

#[test]
fn bind_addresses_must_be_valid() {
    let check =
        |field: &str, value: &str| run_with_config(&format!("{HEADER}{field}: '{value}'\n"), &[]).failure();
    let want = "failed validate: KubeProxyConfiguration.BindAddress: Invalid value: \"foo\": \
                not a valid textual representation of an IP address";
    assert_eq!(check("bindAddress", "foo"), want);
    for (field, path) in
        [("healthzBindAddress", "HealthzBindAddress"), ("metricsBindAddress", "MetricsBindAddress")]
    {
        for (value, shown, detail) in [
            ("foo", "foo", "must be IP:port"),
            ("::1:80:x", "::1:80:x", "must be IP:port"),
            (":80", "", "must be a valid IP"),
            ("foo:80", "foo", "must be a valid IP"),
            ("1.2.3.4:0", "0", "must be a valid port"),
            ("1.2.3.4:65536", "65536", "must be a valid port"),
            ("1.2.3.4:http", "http", "must be a valid port"),
        ] {
            let want = format!("failed validate: {ROOT}.{path}: Invalid value: \"{shown}\": {detail}");
            assert_eq!(check(field, value), want, "{field}: {value}");
        }
    }
    let both = "failed validate: [KubeProxyConfiguration.MetricsBindAddress: Invalid value: \"a\": must be a valid IP, \
                KubeProxyConfiguration.MetricsBindAddress: Invalid value: \"b\": must be a valid port]";
    assert_eq!(check("metricsBindAddress", "a:b"), both);
}

#[test]
fn node_port_addresses_are_cidrs_or_primary() {
    let cidr = "must be a valid CIDR";
    let both = "can't use both 'primary' and CIDRs";
    for (value, want) in [
        ("1.2.3.4", format!("NodePortAddresses[0]: Invalid value: \"1.2.3.4\": {cidr}")),
        ("1.2.3.0/24,primary,bad", format!("NodePortAddresses[1]: Invalid value: \"primary\": {both}")),
        ("primary,primary", format!("NodePortAddresses[0]: Invalid value: \"primary\": {both}")),
    ] {
        invalid(&[&format!("--nodeport-addresses={value}")], &want);
    }
    let want = format!(
        "failed validate: [{ROOT}.NodePortAddresses[0]: Invalid value: \"bad\": {cidr}, \
         {ROOT}.NodePortAddresses[1]: Invalid value: \"primary\": {both}]"
    );
    assert_eq!(run(&["--nodeport-addresses=bad,primary"]).failure(), want);
    assert_eq!(run(&["--nodeport-addresses=primary"]).code, 0);
}

#[test]
fn only_hidden_metrics_of_the_previous_release_can_be_shown() {
    for version in ["1.34", "1.36", "v1.35"] {
        let detail = format!(
            "invalid showHiddenMetricsForVersion: showHiddenMetricsForVersion: Invalid value: \"{version}\": \
             must be omitted or have the value '1.35'; only the previous minor version is allowed"
        );
        invalid(
            &[&format!("--show-hidden-metrics-for-version={version}")],
            &format!("ShowHiddenMetricsForVersion: Invalid value: \"{version}\": {detail}"),
        );
    }
}

#[test]
fn several_errors_are_reported_in_order() {
    let flags = [
        "--detect-local-mode=Foo",
        "--show-hidden-metrics-for-version=1.2",
        "--nodeport-addresses=bad",
        "--iptables-min-sync-period=-1s",
        "--iptables-sync-period=0",
        "--config-sync-period=0",
        "--kube-api-burst=-1",
        "--proxy-mode=x",
        "--oom-score-adj=1001",
        "--conntrack-udp-timeout=-1s",
        "--conntrack-min=-1",
        "--iptables-masquerade-bit=32",
    ];
    let failure = run(&flags).failure();
    let list =
        failure.strip_prefix("failed validate: [").and_then(|list| list.strip_suffix(']')).expect(&failure);
    let paths: Vec<_> =
        list.split(", KubeProxyConfiguration.").map(|error| error.split(": ").next().unwrap()).collect();
    let conntrack = "KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration";
    assert_eq!(
        paths,
        [
            "KubeProxyConfiguration.KubeProxyIPTablesConfiguration.MasqueradeBit",
            &format!("{conntrack}.Min"),
            &format!("{conntrack}.UDPTimeout"),
            "KubeProxyLinuxConfiguration.OOMScoreAdj",
            "Mode.ProxyMode",
            "ClientConnection.Burst",
            "ConfigSyncPeriod",
            "SyncPeriod",
            "MinSyncPeriod",
            "NodePortAddresses[0]",
            "ShowHiddenMetricsForVersion",
            "DetectLocalMode",
        ]
    );
}

#[test]
fn logging_is_validated_first() {
    let alpha = "Forbidden: Feature LoggingAlphaOptions is disabled";
    for (flags, want) in [
        (
            &["--log-flush-frequency=0"][..],
            "logging.flushFrequency: Invalid value: \"0s\": Must be greater than zero".to_owned(),
        ),
        (
            &["--logging-format=xml"],
            "logging.format: Invalid value: \"xml\": Unsupported log format".to_owned(),
        ),
        (&["--logging-format="], "logging.format: Invalid value: \"\": Unsupported log format".to_owned()),
        (
            &["--logging-format=json", "--vmodule=a=1"],
            "logging.vmodule: Forbidden: Only supported for text log format".to_owned(),
        ),
        (
            &["--logging-format=json", "--feature-gates=LoggingBetaOptions=false"],
            "logging.format: Forbidden: Log format json is disabled, see LoggingBetaOptions feature"
                .to_owned(),
        ),
        (&["--log-text-split-stream"], format!("logging.options.text.splitStream: {alpha}")),
        (&["--log-text-info-buffer-size=1"], format!("logging.options.text.infoBufferSize: {alpha}")),
        (&["--log-json-split-stream"], format!("logging.options.json.splitStream: {alpha}")),
        (&["--log-json-info-buffer-size=1"], format!("logging.options.json.infoBufferSize: {alpha}")),
        (
            &[
                "--log-flush-frequency=-1s",
                "--log-json-split-stream",
                "--log-text-split-stream",
                "--proxy-mode=x",
            ],
            format!(
                "[logging.flushFrequency: Invalid value: \"-1s\": Must be greater than zero, \
                 logging.options.text.splitStream: {alpha}, logging.options.json.splitStream: {alpha}]"
            ),
        ),
    ] {
        assert_eq!(run(flags).failure(), format!("initialize logging: {want}"), "{flags:?}");
    }
    for (content, want) in [
        ("verbosity: 2147483648", "logging.verbosity: Invalid value: 2147483648: Must be <= 2147483647"),
        ("flushFrequency: -5", "logging.flushFrequency: Invalid value: -5: Must be greater than zero"),
        ("vmodule: [{verbosity: 1}]", "logging.vmodule[0]: Required value: File pattern must not be empty"),
        (
            "vmodule: [{filePattern: 'a,b', verbosity: 2147483648}]",
            "[logging.vmodule[0]: Invalid value: \"a,b\": File pattern must not contain equal sign or comma, \
             logging.vmodule[0]: Invalid value: 2147483648: Must be <= 2147483647]",
        ),
    ] {
        let outcome = run_with_config(&format!("{HEADER}logging: {{{content}}}\n"), &[]);
        assert_eq!(outcome.failure(), format!("initialize logging: {want}"), "{content}");
    }
}

#[test]
fn unknown_and_locked_feature_gates_are_refused() {
    for (gates, want) in [
        ("Nope=true", "unrecognized feature gate: Nope"),
        ("ProxyTerminatingEndpoints=true", "unrecognized feature gate: ProxyTerminatingEndpoints"),
        ("=true", "unrecognized feature gate: "),
        (
            "MultiCIDRServiceAllocator=false",
            "cannot set feature gate MultiCIDRServiceAllocator to false, feature is locked to true",
        ),
        (
            "SeparateCacheWatchRPC=true",
            "cannot set feature gate SeparateCacheWatchRPC to true, feature is locked to false",
        ),
    ] {
        let flag = format!("--feature-gates={gates}");
        assert_eq!(run(&[&flag]).failure(), format!("failed complete: {want}"));
    }
    let outcome = run_with_config(&format!("{HEADER}featureGates: {{Nope: true}}\n"), &[]);
    assert_eq!(outcome.failure(), "failed complete: unrecognized feature gate: Nope");
}

#[test]
fn setting_a_ga_or_deprecated_gate_logs_a_warning() {
    for (gate, stage) in [
        ("AllowServiceExternalIPs=false", "GA"),
        ("MultiCIDRServiceAllocator=true", "GA"),
        ("KMSv1=true", "deprecated"),
        ("SeparateCacheWatchRPC=false", "deprecated"),
    ] {
        let log = run(&[&format!("--feature-gates={gate}")]).log();
        let (name, value) = gate.split_once('=').unwrap();
        let want = format!(
            "I \"Warning: setting {stage} feature gate. It will be removed in a future release.\" featureGate=\"{name}\" value={value}"
        );
        assert!(log.contains(&want), "{log:?}");
    }
    let log = run(&["-v=1", "--feature-gates=AllAlpha=false,KMSv1=true,ComponentFlagz=T"]).log();
    let updated =
        log.iter().find(|line| line.starts_with("I \"Updated\" featureGates={")).expect("what was set");
    assert!(
        updated.contains(r#""ComponentFlagz":true"#) && updated.contains(r#""NativeHistograms":false"#),
        "{updated}"
    );
    assert!(run(&["-v=1"]).log().contains(&r#"I "Updated" featureGates={}"#.to_owned()));
}

#[test]
fn host_names_must_not_be_blank() {
    assert_eq!(
        run(&["--hostname-override=  "]).failure(),
        "failed complete: empty hostname-override is invalid"
    );
}

#[test]
fn the_deprecated_port_flags_apply_when_the_proxy_runs() {
    // The invalid mode keeps the proxy from running.
    let run = |flags: &[&str]| run_bare(&[&["--proxy-mode=bogus", "-v=1"], flags].concat());
    let mode = "KubeProxyConfiguration.Mode.ProxyMode: Invalid value: \"bogus\": must be iptables, ipvs, nftables \
                or blank (blank means the best-available proxy [currently iptables])";
    let metrics = "KubeProxyConfiguration.MetricsBindAddress: Invalid value: \"\": must be IP:port";
    let outcome = run(&["--healthz-port=0", "--metrics-port=0"]);
    assert_eq!(outcome.failure(), format!("failed validate: [{mode}, {metrics}]"));
    let outcome = run(&[
        "--healthz-port=5",
        "--healthz-bind-address=::",
        "--metrics-port=6",
        "--metrics-bind-address=1.2.3.4",
    ]);
    assert_eq!(outcome.failure(), format!("failed validate: {mode}"));
    for want in [r#"FLAG: --healthz-bind-address="[::]:5""#, r#"FLAG: --metrics-bind-address="1.2.3.4:6""#] {
        assert!(outcome.stderr.contains(want), "{want} is not in\n{}", outcome.stderr);
    }
    let alone = run(&["--healthz-port=5"]);
    assert!(alone.stderr.contains(r#"FLAG: --healthz-bind-address="0.0.0.0:10256""#));
}

#[test]
fn manifests_and_an_api_server_are_mutually_exclusive() {
    let want = "failed validate: --manifests cannot be combined with --kubeconfig or --master: \
                objects come either from files or from an API server";
    for flags in [
        &["--manifests=/m", "--kubeconfig=/k"][..],
        &["--manifests=/m", "--master=http://localhost"],
        &["--manifests=/m", "--kubeconfig=/k", "--master=http://localhost"],
    ] {
        assert_eq!(run(flags).failure(), want, "{flags:?}");
    }
    let file = format!("{HEADER}clientConnection: {{kubeconfig: /k}}\n");
    assert_eq!(run_with_config(&file, &["--manifests=/m"]).failure(), want);
    // With a file, the flag --kubeconfig is ignored.
    assert_eq!(run_with_config(HEADER, &["--manifests=/m", "--kubeconfig=/k"]).code, 0);
    assert_eq!(run(&["--manifests=/m"]).code, 0);
}
