//! How flags and configuration files combine, as `--write-config-to` shows.

mod binary;

use binary::{DEFAULT, HEADER, changes, run, run_with_config, unquote};

const KUBEADM: &str = include_str!("fixtures/kubeadm.yaml");

#[test]
fn without_flags_the_defaults_are_written() {
    let outcome = run(&[]);
    assert_eq!(outcome.written(), DEFAULT);
    assert_eq!(outcome.code, 0);
    let log = outcome.log();
    assert_eq!(log.first().map(String::as_str), Some(r#"I "Using iptables proxy""#));
    assert!(log[1].starts_with(r#"I "Wrote configuration" file="#), "{log:?}");
}

#[test]
fn each_flag_changes_its_own_key_and_no_other() {
    for (flags, want) in [
        (&["--bind-address=::"][..], &["bindAddress: '::'"][..]),
        (&["--bind-address=010.1.1.1"], &["bindAddress: 010.1.1.1"]),
        (&["--bind-address="], &[]),
        (&["--bind-address-hard-fail"], &["bindAddressHardFail: true"]),
        (&["--cluster-cidr=10.0.0.0/8,fd00::/8"], &["clusterCIDR: 10.0.0.0/8,fd00::/8"]),
        (&["--config-sync-period=1m"], &["configSyncPeriod: 1m0s"]),
        (&["--conntrack-max-per-core=0"], &["conntrack.maxPerCore: 0"]),
        (&["--conntrack-min=1"], &["conntrack.min: 1"]),
        (&["--conntrack-tcp-be-liberal"], &["conntrack.tcpBeLiberal: true"]),
        (&["--conntrack-tcp-timeout-close-wait=0"], &["conntrack.tcpCloseWaitTimeout: 0s"]),
        (&["--conntrack-tcp-timeout-established=90m"], &["conntrack.tcpEstablishedTimeout: 1h30m0s"]),
        (&["--conntrack-udp-timeout=1500ms"], &["conntrack.udpTimeout: 1.5s"]),
        (&["--conntrack-udp-timeout-stream=1us"], &["conntrack.udpStreamTimeout: 1µs"]),
        (&["--detect-local-mode=NodeCIDR"], &["detectLocalMode: NodeCIDR"]),
        (
            &["--feature-gates=ComponentFlagz=false", "--feature-gates=NativeHistograms=true"],
            &["featureGates.ComponentFlagz: false", "featureGates.NativeHistograms: true"],
        ),
        (&["--healthz-bind-address=[::1]:1"], &["healthzBindAddress: '[::1]:1'"]),
        (&["--healthz-bind-address="], &[]),
        (&["--hostname-override= NODE1 "], &["hostnameOverride: node1"]),
        (&["--iptables-localhost-nodeports=false"], &["iptables.localhostNodePorts: false"]),
        (&["--iptables-masquerade-bit=0x1f"], &["iptables.masqueradeBit: 31"]),
        (&["--iptables-min-sync-period=0"], &["iptables.minSyncPeriod: 0s"]),
        (&["--iptables-sync-period=1m"], &["iptables.syncPeriod: 1m0s"]),
        (&["--ipvs-exclude-cidrs=a,b", "--ipvs-exclude-cidrs=c"], &["ipvs.excludeCIDRs: - a - b - c"]),
        (&["--ipvs-min-sync-period=2s"], &[]),
        (&["--ipvs-scheduler=lc"], &["ipvs.scheduler: lc"]),
        (&["--ipvs-strict-arp"], &["ipvs.strictARP: true"]),
        (&["--ipvs-sync-period=1m"], &[]),
        (&["--ipvs-tcp-timeout=1s"], &["ipvs.tcpTimeout: 1s"]),
        (&["--ipvs-tcpfin-timeout=2s"], &["ipvs.tcpFinTimeout: 2s"]),
        (&["--ipvs-udp-timeout=3s"], &["ipvs.udpTimeout: 3s"]),
        (&["--kube-api-burst=1"], &["clientConnection.burst: 1"]),
        (&["--kube-api-content-type=application/json"], &["clientConnection.contentType: application/json"]),
        (&["--kube-api-qps=0.1"], &["clientConnection.qps: 0.1"]),
        (&["--kubeconfig=/etc/kubeconfig"], &["clientConnection.kubeconfig: /etc/kubeconfig"]),
        (&["--log-flush-frequency=1s"], &["logging.flushFrequency: 1s"]),
        (&["--logging-format=json"], &["logging.format: json"]),
        (&["-v=4"], &["logging.verbosity: 4"]),
        (
            &["--vmodule=a=1", "--vmodule=[b]=2"],
            &["logging.vmodule: - filePattern: a verbosity: 1 - filePattern: '[b]' verbosity: 2"],
        ),
        (&["--masquerade-all"], &["iptables.masqueradeAll: true"]),
        (&["--metrics-bind-address=0.0.0.0:1"], &["metricsBindAddress: 0.0.0.0:1"]),
        (&["--nodeport-addresses=10.0.0.0/8"], &["nodePortAddresses: - 10.0.0.0/8"]),
        (&["--nodeport-addresses="], &["nodePortAddresses: []"]),
        (&["--oom-score-adj=-998"], &["oomScoreAdj: -998"]),
        (&["--pod-bridge-interface=br0"], &["detectLocal.bridgeInterface: br0"]),
        (&["--pod-interface-name-prefix=veth"], &["detectLocal.interfaceNamePrefix: veth"]),
        (&["--profiling"], &["enableProfiling: true"]),
        (&["--show-hidden-metrics-for-version=1.35"], &["showHiddenMetricsForVersion: \"1.35\""]),
        // Flags that are not part of the configuration.
        (&["--boot-id-file=x"], &[]),
        (&["--machine-id-file=x"], &[]),
        (&["--cleanup"], &[]),
        (&["--init-only"], &[]),
        (&["--manifests=/etc/manifests"], &[]),
        (&["--master=http://localhost"], &[]),
        (&["--version=v1.36.3-x"], &[]),
        // Flags that apply only when the proxy runs.
        (&["--healthz-port=0"], &[]),
        (&["--metrics-port=0"], &[]),
    ] {
        let outcome = run(flags);
        assert_eq!(outcome.code, 0, "{flags:?}: {}", outcome.stderr);
        assert_eq!(changes(outcome.written()), want, "{flags:?}");
    }
}

#[test]
fn alpha_options_are_written_too() {
    let flags = [
        "--feature-gates=LoggingAlphaOptions=true",
        "--log-text-split-stream",
        "--log-text-info-buffer-size=1000k",
        "--log-json-split-stream",
        "--log-json-info-buffer-size=64Ki",
    ];
    let want = [
        "featureGates.LoggingAlphaOptions: true",
        "logging.options.json.infoBufferSize: 64Ki",
        "logging.options.json.splitStream: true",
        "logging.options.text.infoBufferSize: 1M",
        "logging.options.text.splitStream: true",
    ];
    assert_eq!(changes(run(&flags).written()), want);
}

#[test]
fn the_mode_decides_which_section_gets_the_shared_values() {
    let flags = [
        "--masquerade-all",
        "--iptables-sync-period=2m",
        "--iptables-min-sync-period=3s",
        "--ipvs-sync-period=4m",
        "--ipvs-min-sync-period=5s",
    ];
    for (mode, want) in [
        (
            "iptables",
            &["iptables.masqueradeAll: true", "iptables.minSyncPeriod: 3s", "iptables.syncPeriod: 2m0s"][..],
        ),
        (
            "ipvs",
            &[
                "iptables.masqueradeAll: true",
                "iptables.minSyncPeriod: 0s",
                "iptables.syncPeriod: 0s",
                "ipvs.minSyncPeriod: 5s",
                "ipvs.syncPeriod: 4m0s",
                "mode: ipvs",
            ],
        ),
        (
            "nftables",
            &[
                "iptables.minSyncPeriod: 0s",
                "iptables.syncPeriod: 0s",
                "mode: nftables",
                "nftables.masqueradeAll: true",
                "nftables.minSyncPeriod: 3s",
                "nftables.syncPeriod: 2m0s",
                "nodePortAddresses: - primary",
            ],
        ),
    ] {
        let mode = format!("--proxy-mode={mode}");
        assert_eq!(changes(run(&[&flags[..], &[&mode]].concat()).written()), want, "{mode}");
    }
    // With flags only, the ipvs mode inherits the iptables periods; with a file, it has defaults of its own.
    assert!(run(&["--proxy-mode=ipvs"]).written().contains("  minSyncPeriod: 1s\n  scheduler"));
    let from_file = run_with_config(&format!("{HEADER}mode: ipvs\n"), &[]);
    assert!(from_file.written().contains("  minSyncPeriod: 0s\n  scheduler"));
}

#[test]
fn a_written_configuration_reads_back_unchanged() {
    let rich = "mode: nftables\nbindAddress: '::'\nlogging: {flushFrequency: 7000000000, vmodule: [{filePattern: a*, verbosity: 3}]}\n\
                featureGates: {ComponentFlagz: false}\nclusterCIDR: 10.0.0.0/8,fd00::/8\nnodePortAddresses: [1.2.3.0/24, 'fd00::/8']\n\
                ipvs: {excludeCIDRs: []}\nclientConnection: {qps: -1.5, kubeconfig: 'a: b'}\nwindowsRunAsService: true\n";
    for content in [DEFAULT.to_owned(), format!("{HEADER}{rich}")] {
        let first = run_with_config(&content, &[]);
        let again = run_with_config(first.written(), &[]);
        assert_eq!(again.written(), first.written());
        assert!(!again.stderr.contains("lenient"), "{}", again.stderr);
    }
    assert_eq!(run_with_config(DEFAULT, &[]).written(), DEFAULT);
}

#[test]
fn the_configuration_file_of_kubeadm_gives_the_defaults() {
    let outcome = run_with_config(KUBEADM, &[]);
    assert_eq!(
        changes(outcome.written()),
        ["clientConnection.kubeconfig: /var/lib/kube-proxy/kubeconfig.conf", "clusterCIDR: 10.244.0.0/16"]
    );
    assert!(!outcome.stderr.contains("lenient"), "{}", outcome.stderr);
}

#[test]
fn missing_and_zero_fields_get_their_defaults() {
    for (content, want) in [
        ("", &[][..]),
        ("bindAddress: ''\n", &[]),
        (
            "bindAddress: fd00::1\n",
            &[
                "bindAddress: fd00::1",
                "healthzBindAddress: '[::]:10256'",
                "metricsBindAddress: '[::1]:10249'",
            ],
        ),
        // An IPv4-mapped IPv6 address counts as IPv4.
        ("bindAddress: ::ffff:1.2.3.4\n", &["bindAddress: ::ffff:1.2.3.4"]),
        (
            "healthzBindAddress: '::'\nmetricsBindAddress: 1.2.3.4\n",
            &["healthzBindAddress: '[::]:10256'", "metricsBindAddress: 1.2.3.4:10249"],
        ),
        ("configSyncPeriod: 0s\nclientConnection: {burst: 0, qps: 0}\n", &[]),
        ("iptables: {syncPeriod: 0s, minSyncPeriod: 0s}\n", &[]),
        ("logging: {flushFrequency: 0, format: ''}\n", &[]),
        ("logging: {flushFrequency: 1000000000}\n", &["logging.flushFrequency: 1000000000"]),
        ("logging: {flushFrequency: 1s}\n", &["logging.flushFrequency: 1s"]),
        ("conntrack: {min: 0, maxPerCore: null}\n", &["conntrack.min: 0"]),
        ("mode: null\nipvs: null\nlogging: {verbosity: null, flushFrequency: null}\n", &[]),
        ("featureGates: {ComponentFlagz: null}\n", &["featureGates.ComponentFlagz: false"]),
        ("conntrack: {tcpEstablishedTimeout: null}\nclientConnection: {burst: 10.0}\n", &[]),
        ("oomScoreAdj: 0\n", &["oomScoreAdj: 0"]),
        ("portRange: 1-2\n", &[]),
        ("nodePortAddresses: []\n", &["nodePortAddresses: []"]),
        ("hostnameOverride: ' ABC '\n", &["hostnameOverride: ' ABC '"]),
        (
            "enableProfiling: yes\niptables: {masqueradeBit: 017}\n",
            &["enableProfiling: true", "iptables.masqueradeBit: 15"],
        ),
        (
            "mode: ipvs\n---\nfoo\n",
            &["iptables.minSyncPeriod: 0s", "iptables.syncPeriod: 0s", "ipvs.syncPeriod: 30s", "mode: ipvs"],
        ),
    ] {
        let outcome = run_with_config(&format!("{HEADER}{content}"), &[]);
        assert_eq!(changes(outcome.written()), want, "{content:?}");
    }
    let json = r#"{"kind":"KubeProxyConfiguration","apiVersion":"kubeproxy.config.k8s.io/v1alpha1","oomScoreAdj":1}"#;
    assert_eq!(changes(run_with_config(json, &[]).written()), ["oomScoreAdj: 1"]);
    assert_eq!(
        changes(run_with_config(&format!("# first\n---\n{HEADER}oomScoreAdj: 1\n"), &[]).written()),
        ["oomScoreAdj: 1"]
    );
}

#[test]
fn strict_decoding_errors_are_logged_and_tolerated() {
    for (content, want) in [
        ("foo: 1\n", r#"unknown field "foo""#),
        ("Mode: ipvs\n", r#"unknown field "Mode""#),
        ("masqueradeAll: true\n", r#"unknown field "masqueradeAll""#),
        (
            "foo: 1\nbar: 2\niptables: {fOO: 1}\n",
            r#"unknown field "bar", unknown field "foo", unknown field "iptables.fOO""#,
        ),
        (
            "logging: {vmodule: [{filePattern: a}, {filePattern: b, x: 1}]}\n",
            r#"unknown field "logging.vmodule[1].x""#,
        ),
    ] {
        let outcome = run_with_config(&format!("{HEADER}{content}"), &[]);
        let log = outcome.log();
        let error =
            log[0].strip_prefix(r#"I "Using lenient decoding as strict decoding failed" err="#).unwrap();
        assert_eq!(unquote(error), format!("strict decoding error: {want}"), "{content:?}");
        assert_eq!(outcome.code, 0, "{content:?}");
    }
}

#[test]
fn the_last_of_two_duplicate_keys_wins() {
    let outcome = run_with_config(&format!("{HEADER}mode: ipvs\nmode: nftables\nxx: 1\n"), &[]);
    let error = "err=<\n\tstrict decoding error: yaml: unmarshal errors:\n\t  line 4: key \"mode\" already set in map, unknown field \"xx\"\n >\n";
    assert!(outcome.stderr.contains(error), "{}", outcome.stderr);
    assert!(outcome.written().contains("\nmode: nftables\n"));

    let json = r#"{"kind":"KubeProxyConfiguration","apiVersion":"kubeproxy.config.k8s.io/v1alpha1","mode":"ipvs","mode":"nftables","x":1}"#;
    let outcome = run_with_config(json, &[]);
    let error = r#"err="strict decoding error: duplicate field \"mode\", unknown field \"x\"""#;
    assert!(outcome.stderr.contains(error), "{}", outcome.stderr);
    assert!(outcome.written().contains("\nmode: nftables\n"));
}

#[test]
fn a_file_that_cannot_be_decoded_is_fatal() {
    for (content, want) in [
        ("mode: 5\n", "mode: invalid type: integer `5`, expected a string"),
        ("bindAddress: 5\n", "bindAddress: invalid type: integer `5`, expected a string"),
        ("configSyncPeriod: 5\n", "configSyncPeriod: invalid type: 5, expected a duration such as 30s"),
        (
            "iptables: {syncPeriod: 5}\n",
            "iptables.syncPeriod: invalid type: 5, expected a duration such as 30s",
        ),
        ("iptables: 5\n", "iptables: invalid type: 5, expected an object"),
        (
            "iptables: {masqueradeBit: x}\n",
            "iptables.masqueradeBit: invalid type: string \"x\", expected i32",
        ),
        (
            "iptables: {masqueradeBit: 1.5}\n",
            "iptables.masqueradeBit: invalid type: floating point `1.5`, expected i32",
        ),
        (
            "iptables: {masqueradeBit: 5000000000}\n",
            "iptables.masqueradeBit: invalid value: integer `5000000000`, expected i32",
        ),
        (
            "iptables: {masqueradeAll: 1}\n",
            "iptables.masqueradeAll: invalid type: integer `1`, expected a boolean",
        ),
        ("ipvs: {excludeCIDRs: x}\n", "ipvs.excludeCIDRs: invalid type: string \"x\", expected a sequence"),
        ("ipvs: {excludeCIDRs: [1]}\n", "ipvs.excludeCIDRs[0]: invalid type: integer `1`, expected a string"),
        ("featureGates: [a]\n", "featureGates: invalid type: sequence, expected a map"),
        ("featureGates: {a: 1}\n", "featureGates.a: invalid type: integer `1`, expected a boolean"),
        ("logging: {verbosity: -1}\n", "logging.verbosity: invalid value: integer `-1`, expected u32"),
        ("logging: {vmodule: 5}\n", "logging.vmodule: invalid type: integer `5`, expected a sequence"),
        ("configSyncPeriod: 5x\n", r#"configSyncPeriod: time: unknown unit "x" in duration "5x""#),
        ("configSyncPeriod: null\n", r#"configSyncPeriod: time: invalid duration """#),
        (
            "logging: {flushFrequency: true}\n",
            "logging.flushFrequency: invalid type: true, expected a duration such as 30s",
        ),
        (
            "logging: {options: {text: {infoBufferSize: abc}}}\n",
            "logging.options.text.infoBufferSize: quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        ("clientConnection: {qps: 1e300}\n", "clientConnection.qps: does not fit into a float32"),
        ("iptables: [5]\n", "iptables: invalid type: [5], expected an object"),
        (
            "logging: {vmodule: [{filePattern: a}, [b, 1]]}\n",
            "logging.vmodule[1]: invalid type: [\"b\",1], expected an object",
        ),
        // Both come before unknown fields.
        (
            "bindAddress: 5\nmode: 5\nunknown: 1\n",
            "bindAddress: invalid type: integer `5`, expected a string",
        ),
        ("a: b: c\n", "yaml: line 3: mapping values are not allowed in this context"),
    ] {
        let outcome = run_with_config(&format!("{HEADER}{content}"), &[]);
        assert_eq!(outcome.failure(), format!("failed complete: failed to decode: {want}"), "{content:?}");
        assert!(outcome.written.is_none(), "{content:?}");
    }
}

#[test]
fn files_of_another_kind_are_refused() {
    let scheme = r#"in scheme "pkg/runtime/scheme.go:111""#;
    let parse = "couldn't get version/kind; json parse error:";
    for (content, want) in [
        ("", "Object 'Kind' is missing in ''".to_owned()),
        ("null", "Object 'Kind' is missing in 'null'".to_owned()),
        (
            "kind: KubeProxyConfiguration",
            "Object 'apiVersion' is missing in 'kind: KubeProxyConfiguration'".to_owned(),
        ),
        (
            "apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration",
            format!(
                r#"no kind "KubeProxyConfiguration" is registered for version "kubeproxy.config.k8s.io/v1alpha2" {scheme}"#
            ),
        ),
        ("apiVersion: v1\nkind: Pod", format!(r#"no kind "Pod" is registered for version "v1" {scheme}"#)),
        ("apiVersion: a/b/c\nkind: Pod", "unexpected GroupVersion string: a/b/c".to_owned()),
        (
            "apiVersion: 1\nkind: Pod",
            format!("{parse} apiVersion: invalid type: integer `1`, expected a string"),
        ),
        ("- a", format!("{parse} the document: invalid type: [\"a\"], expected an object")),
        ("foo", format!("{parse} the document: invalid type: \"foo\", expected an object")),
    ] {
        let outcome = run_with_config(content, &[]);
        assert_eq!(outcome.failure(), format!("failed complete: failed to decode: {want}"), "{content:?}");
    }
    // A multi-line error stays multi-line.
    let outcome = run_with_config("foo: bar\n", &[]);
    let error =
        "err=<\n\tfailed complete: failed to decode: Object 'Kind' is missing in 'foo: bar\n\t'\n >\n";
    assert!(outcome.stderr.ends_with(error), "{}", outcome.stderr);
}

#[test]
fn errors_name_the_file_that_cannot_be_read_or_written() {
    for (flag, want) in [
        ("--config=/nope", "failed complete: open /nope: no such file or directory"),
        ("--config=/", "failed complete: read /: is a directory"),
    ] {
        assert_eq!(run(&[flag]).failure(), want);
    }
    let outcome = run(&["--write-config-to=/nope/x"]);
    assert_eq!(outcome.failure(), "open /nope/x: no such file or directory");
    let before = outcome.log().into_iter().rev().nth(1).unwrap();
    assert_eq!(before, r#"E "Error running ProxyServer" err="open /nope/x: no such file or directory""#);
}

#[test]
fn with_a_file_only_a_few_flags_apply() {
    let content = format!(
        "{HEADER}mode: nftables\nlogging: {{verbosity: 1, vmodule: [{{filePattern: f, verbosity: 1}}]}}\n"
    );
    let base = changes(run_with_config(&content, &[]).written());
    for (flags, want) in [
        (&["--proxy-mode=bogus"][..], None),
        (&["--bind-address=1.1.1.1", "--cluster-cidr=x", "--healthz-port=0", "--kubeconfig=/x"], None),
        (&["--feature-gates=Nope=true", "--oom-score-adj=5000", "--nodeport-addresses=x"], None),
        (&["-v=4"], Some("logging.verbosity: 4")),
        (&["--logging-format=text", "--log-flush-frequency=3s"], Some("logging.flushFrequency: 3s")),
        (&["--hostname-override=NODE1"], Some("hostnameOverride: node1")),
        (
            &["--vmodule=g=2,h=3"],
            Some(
                "logging.vmodule: - filePattern: g verbosity: 2 - filePattern: h verbosity: 3 - filePattern: f verbosity: 1",
            ),
        ),
    ] {
        let outcome = run_with_config(&content, flags);
        let changed: Vec<_> =
            changes(outcome.written()).into_iter().filter(|change| !base.contains(change)).collect();
        assert_eq!(changed, want.into_iter().collect::<Vec<_>>(), "{flags:?}");
    }
    let named =
        run_with_config(&format!("{HEADER}hostnameOverride: from-file\n"), &["--hostname-override=Flag"]);
    assert_eq!(changes(named.written()), ["hostnameOverride: flag"]);
}

#[test]
fn alpha_flags_apply_with_a_file_too() {
    let content = format!("{HEADER}featureGates: {{LoggingAlphaOptions: true}}\n");
    let flags =
        ["--log-text-info-buffer-size=3k", "--log-json-split-stream", "--log-json-info-buffer-size=2k"];
    let want = [
        "featureGates.LoggingAlphaOptions: true",
        "logging.options.json.infoBufferSize: 2k",
        "logging.options.json.splitStream: true",
        "logging.options.text.infoBufferSize: 3k",
    ];
    assert_eq!(changes(run_with_config(&content, &flags).written()), want);
    let outcome = run_with_config(&content, &["--log-text-split-stream"]);
    assert!(outcome.stdout.contains("Wrote configuration"), "{}", outcome.stdout);
}

#[test]
fn the_verbosity_of_a_file_can_be_raised() {
    let quiet = format!("{HEADER}mode: nftables\n");
    assert!(!run_with_config(&quiet, &[]).stderr.contains("FLAG: "));
    let outcome = run_with_config(&quiet, &["-v=4"]);
    // With a file, the logged flags keep their given values.
    assert!(outcome.stderr.contains(r#"FLAG: --proxy-mode="""#), "{}", outcome.stderr);
    let loud = format!("{HEADER}logging: {{verbosity: 1}}\n");
    assert!(run_with_config(&loud, &[]).stderr.contains("FLAG: "));
    assert!(!run_with_config(&loud, &["-v=0"]).stderr.contains("FLAG: "));
}

#[test]
fn vmodule_raises_the_verbosity_of_one_file() {
    assert!(run(&["--vmodule=flags=1"]).stderr.contains("FLAG: "));
    assert!(!run(&["--vmodule=flag=1"]).stderr.contains("FLAG: "));
}
