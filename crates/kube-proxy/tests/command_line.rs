//! The command line of the binary: what it accepts, what it refuses, and the error messages.

mod binary;

use binary::{run, run_bare, unquote};

/// The error of a run that prints the usage text first.
fn parse_error(flags: &[&str]) -> String {
    let outcome = run(flags);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (1, ""), "{flags:?}");
    assert!(outcome.stderr.starts_with("Usage:\n  kube-proxy [flags]\n\nFlags:\n"), "{flags:?}: no usage");
    let (_, error) = outcome.stderr.rsplit_once("\n\nError: ").expect("an error after an empty line");
    error.trim_end().to_owned()
}

#[test]
fn unknown_flags_are_refused() {
    for (flag, want) in [
        ("--nosuch", "unknown flag: --nosuch"),
        ("--no_such=1", "unknown flag: --no_such"),
        ("--Config=x", "unknown flag: --Config"),
        ("-x", "unknown shorthand flag: 'x' in -x"),
        ("-xv", "unknown shorthand flag: 'x' in -xv"),
        ("-hx", "unknown shorthand flag: 'x' in -x"),
        ("-=3", "unknown shorthand flag: '=' in -=3"),
        ("---x", "bad flag syntax: ---x"),
        ("--=x", "bad flag syntax: --=x"),
        // Flags of other platforms.
        ("--windows-service", "unknown flag: --windows-service"),
        ("--network-name=x", "unknown flag: --network-name"),
        ("--source-vip=x", "unknown flag: --source-vip"),
        ("--enable-dsr", "unknown flag: --enable-dsr"),
        // Flags of older releases.
        ("--proxy-port-range=1-2", "unknown flag: --proxy-port-range"),
        ("--udp-timeout=1s", "unknown flag: --udp-timeout"),
        ("--cleanup-ipvs", "unknown flag: --cleanup-ipvs"),
        ("--masquerade-bit=1", "unknown flag: --masquerade-bit"),
        ("--log-dir=/tmp", "unknown flag: --log-dir"),
        ("--alsologtostderr", "unknown flag: --alsologtostderr"),
        ("--logtostderr", "unknown flag: --logtostderr"),
        ("--stderrthreshold=1", "unknown flag: --stderrthreshold"),
    ] {
        assert_eq!(parse_error(&[flag]), want);
    }
}

#[test]
fn a_flag_at_the_end_without_its_value_is_refused() {
    for (flag, want) in [
        ("--conntrack-min", "flag needs an argument: --conntrack-min"),
        ("--v", "flag needs an argument: --v"),
        ("-v", "flag needs an argument: 'v' in -v"),
    ] {
        assert_eq!(parse_error(&[flag]), want);
    }
}

#[test]
fn values_of_the_wrong_type_are_refused_with_go_s_messages() {
    let quantity =
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
    for (flag, value, want) in [
        ("bind-address", "1.2.3", r#""1.2.3" is not a valid IP address"#),
        ("bind-address", "fe80::1%eth0", r#""fe80::1%eth0" is not a valid IP address"#),
        ("cleanup", "maybe", r#"strconv.ParseBool: parsing "maybe": invalid syntax"#),
        ("oom-score-adj", "x", r#"strconv.ParseInt: parsing "x": invalid syntax"#),
        ("oom-score-adj", "2147483648", r#"strconv.ParseInt: parsing "2147483648": value out of range"#),
        ("kube-api-qps", "abc", r#"strconv.ParseFloat: parsing "abc": invalid syntax"#),
        ("kube-api-qps", "1e50", r#"strconv.ParseFloat: parsing "1e50": value out of range"#),
        ("iptables-sync-period", "5", r#"time: missing unit in duration "5""#),
        ("iptables-sync-period", "5x", r#"time: unknown unit "x" in duration "5x""#),
        ("iptables-sync-period", "", r#"time: invalid duration """#),
        ("log-flush-frequency", "5", r#"time: missing unit in duration "5""#),
        ("log-text-info-buffer-size", "abc", quantity),
        ("log-json-info-buffer-size", "1K", "unable to parse quantity's suffix"),
        ("feature-gates", "A", "malformed pair, expect string=bool"),
        (
            "feature-gates",
            "A=x",
            r#"invalid value of A: x, err: strconv.ParseBool: parsing "x": invalid syntax"#,
        ),
        ("vmodule", "a", r#""a" does not have the pattern=N format"#),
        ("vmodule", "=1", r#""=1" does not have the pattern=N format"#),
        ("vmodule", "a=", r#""a=" does not have the pattern=N format"#),
        (
            "vmodule",
            "a=-1",
            r#"parsing verbosity in "a=-1": strconv.ParseUint: parsing "-1": invalid syntax"#,
        ),
        (
            "vmodule",
            "a=9999999999",
            r#"parsing verbosity in "a=9999999999": strconv.ParseUint: parsing "9999999999": value out of range"#,
        ),
        (
            "healthz-bind-address",
            "foo",
            r#""foo" is not in a valid format (ip or ip:port): address foo: missing port in address"#,
        ),
        (
            "healthz-bind-address",
            "1:2:3",
            r#""1:2:3" is not in a valid format (ip or ip:port): address 1:2:3: too many colons in address"#,
        ),
        ("metrics-bind-address", "foo:80", r#""foo" is not a valid IP address"#),
        ("metrics-bind-address", ":80", r#""" is not a valid IP address"#),
        ("metrics-bind-address", "1.2.3.4:99999", r#""99999" is not a valid number"#),
        ("metrics-bind-address", "1.2.3.4:+1", r#""+1" is not a valid number"#),
        (
            "nodeport-addresses",
            "\"a",
            r#"parse error on line 1, column 3: extraneous or missing " in quoted-field"#,
        ),
        ("nodeport-addresses", "a\"b", r#"parse error on line 1, column 2: bare " in non-quoted-field"#),
        ("version", "foo", r#"strconv.ParseBool: parsing "foo": invalid syntax"#),
        ("version", "1.36.3", r#"strconv.ParseBool: parsing "1.36.3": invalid syntax"#),
        ("version", "vfoo", r#"could not parse "vfoo" as version"#),
        ("version", "v1.36", r#"illegal version string "v1.36""#),
        ("version", "v01.36.3", r#"illegal zero-prefixed version component "01" in "v01.36.3""#),
        ("version", "v1.36.3-", r#"could not parse pre-release/metadata (-) in version "v1.36.3-""#),
        (
            "version",
            "v9.9.9",
            r#"version "v9.9.9" must match major/minor/patch of default version "v1.36.3""#,
        ),
    ] {
        let error = parse_error(&[&format!("--{flag}={value}")]);
        let (head, detail) = error.split_once(" flag: ").expect("a flag and what is wrong with it");
        assert_eq!(detail, want, "{flag}={value}");
        let quoted = serde_json::Value::from(value).to_string();
        assert_eq!(head, format!("invalid argument {quoted} for \"--{flag}\""));
    }
}

#[test]
fn an_error_names_both_the_shorthand_and_the_flag() {
    for (argument, value) in [("-v=x", "x"), ("--v=x", "x"), ("-v2x", "2x"), ("-v=", "="), ("-vh", "h")] {
        let want = format!(
            r#"invalid argument "{value}" for "-v, --v" flag: strconv.ParseUint: parsing "{value}": invalid syntax"#
        );
        assert_eq!(parse_error(&[argument]), want, "{argument}");
    }
    let want = r#"strconv.ParseUint: parsing "2147483648": value out of range"#;
    assert!(parse_error(&["-v2147483648"]).ends_with(want));
}

#[test]
fn positional_arguments_are_refused_unless_empty() {
    for (arguments, want) in [
        (&["x"][..], r#"["x"]"#),
        (&["x", "", "y z"], r#"["x" "" "y z"]"#),
        (&["-"], r#"["-"]"#),
        (&["--", "--v=2"], r#"["--v=2"]"#),
        (&["--profiling", "false"], r#"["false"]"#),
        (&["--version", "foo"], r#"["foo"]"#),
    ] {
        let outcome = run(arguments);
        let want = format!("Error: \"kube-proxy\" does not take any arguments, got {want}\n");
        assert_eq!((outcome.code, outcome.stderr), (1, want), "{arguments:?}");
    }
    assert_eq!(run(&["", ""]).code, 0);
}

#[test]
fn a_mistyped_subcommand_gets_a_suggestion() {
    let got = |list: &str| format!("Error: \"kube-proxy\" does not take any arguments, got {list}\n");
    for (arguments, error, hint) in [
        (&["explan", "tcp", "10.96.0.10:80"][..], got(r#"["explan" "tcp" "10.96.0.10:80"]"#), "explain"),
        (&["verfiy"], got(r#"["verfiy"]"#), "verify"),
        (&["Plan"], got(r#"["Plan"]"#), "plan"),
        (&["explan", "--live", "tcp", "10.96.0.10:80"], "Error: unknown flag: --live\n".into(), "explain"),
    ] {
        let outcome = run_bare(arguments);
        let want = format!("{error}Did you mean \"kube-proxy {hint}\"?\n");
        assert!(outcome.code == 1 && outcome.stderr.ends_with(&want), "{arguments:?}: {}", outcome.stderr);
    }
    let late = run_bare(&["--v=2", "verify"]);
    let want =
        format!("{}Did you mean \"kube-proxy verify\"? Subcommands come first.\n", got(r#"["verify"]"#));
    assert_eq!((late.code, late.stderr), (1, want));
}

#[test]
fn deprecated_flags_work_and_name_their_replacement() {
    for (flag, instead) in
        [("healthz-port", "healthz-bind-address"), ("metrics-port", "metrics-bind-address")]
    {
        let outcome = run(&[&format!("--{flag}=1")]);
        let want = format!(
            "Flag --{flag} has been deprecated, This flag is deprecated and will be removed in a future release. \
             Please use --{instead} instead."
        );
        assert_eq!((outcome.code, outcome.stderr.lines().next()), (0, Some(want.as_str())));
    }
}

#[test]
fn help_goes_to_standard_output_whatever_the_other_flags() {
    for flags in [&["--help"][..], &["-h"], &["--version", "--help"], &["--help", "x"]] {
        let outcome = run_bare(flags);
        assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""), "{flags:?}");
        assert!(outcome.stdout.contains("\n\nUsage:\n  kube-proxy [flags]\n\nFlags:\n"), "{flags:?}");
    }
    assert_eq!(run_bare(&["--help", "--nosuch"]).code, 1);
}

#[test]
fn help_shows_names_types_and_defaults() {
    let help = run_bare(&["--help"]).stdout;
    let flags: Vec<_> = help.lines().filter(|line| line.starts_with("  ") && line.contains(" --")).collect();
    for want in [
        "      --bind-address ip   … (default 0.0.0.0)",
        "      --cleanup   …",
        "      --conntrack-tcp-timeout-established duration   … (default 24h0m0s)",
        "      --detect-local-mode LocalMode   …",
        "      --feature-gates mapStringBool   …",
        "      --healthz-bind-address ipport   … (default 0.0.0.0:10256)",
        "  -h, --help   …",
        "      --iptables-localhost-nodeports   … (default true)",
        "      --kube-api-content-type string   … (default \"application/vnd.kubernetes.protobuf\")",
        "      --kube-api-qps float32   … (default 5)",
        "      --log-json-info-buffer-size quantity   …",
        "      --logging-format string   … (default \"text\")",
        "      --manifests string   …",
        "      --nodeport-addresses strings   …",
        "      --oom-score-adj int32   … (default -999)",
        "      --proxy-mode ProxyMode   …",
        "  -v, --v Level   …",
        "      --version version[=true]   …",
        "      --vmodule pattern=N,...   …",
    ] {
        let (start, end) = want.split_once('…').unwrap();
        let shown = flags.iter().any(|line| line.starts_with(start) && line.ends_with(end));
        assert!(shown, "{want} is not in\n{}", flags.join("\n"));
    }
    assert!(help.contains("WatchListClient=true|false (BETA - default=true)"));
    assert!(!help.contains("MultiCIDRServiceAllocator"), "locked gates are not listed");
    assert!(!help.contains("--healthz-port"), "neither are deprecated flags");
}

#[test]
fn the_version_is_that_of_the_upstream_release() {
    let reported = format!("v1.36.3+sluice-{}", env!("CARGO_PKG_VERSION"));
    for (flags, want) in [
        (&["--version"][..], format!("Kubernetes {reported}\n")),
        (&["--version=true"], format!("Kubernetes {reported}\n")),
        (&["--version=v1.36.3-a.1+b", "--version"], "Kubernetes v1.36.3-a.1+b\n".to_owned()),
        (&["--config=/nope", "--version"], format!("Kubernetes {reported}\n")),
    ] {
        let outcome = run_bare(flags);
        assert_eq!((outcome.code, outcome.stdout, outcome.stderr.as_str()), (0, want, ""), "{flags:?}");
    }
    let raw = run_bare(&["--version=raw"]).stdout;
    let head = format!(
        "version.Info{{Major:\"1\", Minor:\"36\", EmulationMajor:\"\", EmulationMinor:\"\", \
         MinCompatibilityMajor:\"\", MinCompatibilityMinor:\"\", GitVersion:\"{reported}\", GitCommit:\""
    );
    assert!(raw.starts_with(&head), "{raw}");
    assert!(
        raw.contains("GoVersion:\"rustc ") && raw.contains("Compiler:\"rustc\", Platform:\"linux/"),
        "{raw}"
    );
}

#[test]
fn every_flag_is_logged_with_its_value_at_verbosity_one() {
    let log =
        run(&["-v=1", "--cluster-cidr=10.0.0.0/8", "--vmodule=a=1,b*=3", "--ipvs-exclude-cidrs=a,b"]).log();
    let flags: Vec<_> = log.iter().filter_map(|line| line.strip_prefix("I FLAG: --")).collect();
    assert!(flags.is_sorted_by_key(|flag| flag.split_once('=').unwrap().0), "{flags:?}");
    for want in [
        r#"bind-address="0.0.0.0""#,
        r#"boot-id-file="/proc/sys/kernel/random/boot_id""#,
        r#"cluster-cidr="10.0.0.0/8""#,
        r#"config="""#,
        r#"conntrack-tcp-timeout-established="24h0m0s""#,
        // The completed value, not the given one.
        r#"detect-local-mode="ClusterCIDR""#,
        r#"proxy-mode="iptables""#,
        r#"feature-gates="""#,
        r#"healthz-port="10256""#,
        r#"help="false""#,
        r#"ipvs-exclude-cidrs="[a,b]""#,
        r#"kube-api-qps="5""#,
        r#"log-flush-frequency="5s""#,
        r#"log-json-info-buffer-size="0""#,
        r#"machine-id-file="/etc/machine-id,/var/lib/dbus/machine-id""#,
        r#"nodeport-addresses="[]""#,
        r#"v="1""#,
        r#"version="false""#,
        r#"vmodule="a=1,b*=3""#,
    ] {
        assert!(flags.contains(&want), "{want} is not in {flags:#?}");
    }
    assert_eq!(flags.len(), 62, "59 of upstream, --audit-interval, --manifests and --connection-metrics");
    assert!(run(&[]).log().iter().all(|line| !line.contains("FLAG")));
}

#[test]
fn json_logs_begin_once_the_configuration_is_known() {
    let outcome = run(&["--logging-format=json", "--proxy-mode=bogus", "-v=1"]);
    for line in outcome.stderr.lines() {
        let json: serde_json::Value = serde_json::from_str(line).expect(line);
        assert!(json["ts"].as_f64().unwrap() > 1.7e12, "{line}");
    }
    let last = outcome.stderr.lines().last().unwrap();
    let (_, tail) = last.split_once(r#","msg":"#).unwrap();
    assert!(
        tail.starts_with(r#""command failed","err":"failed validate: KubeProxyConfiguration.Mode"#),
        "{last}"
    );
    let early = run(&["--logging-format=json"]);
    assert!(early.stderr.starts_with('I'), "completion still logs as text: {}", early.stderr);
}

#[test]
fn split_streams_separate_information_from_errors() {
    let gate = "--feature-gates=LoggingAlphaOptions=true";
    for flags in [
        &[gate, "--log-text-split-stream", "--proxy-mode=ipvs"][..],
        &[gate, "--log-text-split-stream", "--log-text-info-buffer-size=64k", "--proxy-mode=ipvs"],
        &[gate, "--logging-format=json", "--log-json-split-stream", "--proxy-mode=ipvs"],
        &[
            gate,
            "--logging-format=json",
            "--log-json-split-stream",
            "--log-json-info-buffer-size=1Mi",
            "--proxy-mode=ipvs",
        ],
    ] {
        let outcome = run(flags);
        assert_eq!(outcome.stderr, "", "{flags:?}");
        assert!(outcome.stdout.contains("Wrote configuration"), "{flags:?}");
        let outcome = run(&[flags, &["--kube-api-burst=-1"]].concat());
        assert!(outcome.stderr.contains("command failed"), "{flags:?}");
        assert_eq!(outcome.stdout, "", "{flags:?}");
    }
}

#[test]
fn text_lines_have_klog_s_header() {
    let outcome = run(&[]);
    let line = outcome.stderr.lines().next().unwrap();
    let shape: String = line.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    let (head, message) = shape.split_once("] ").unwrap();
    assert!(head.starts_with("I0000 00:00:00.000000 "), "{line}");
    assert_eq!(
        head.chars().skip(22).take(7).collect::<String>().trim_start_matches(' ').trim_matches('0'),
        ""
    );
    assert!(head.ends_with(" complete.rs:000") || head.ends_with(" complete.rs:00"), "{line}");
    assert_eq!(unquote(message), "Using iptables proxy");
}

#[test]
fn completions_and_the_manual_cover_every_flag_and_subcommand() {
    let help = run(&["--help"]).stdout;
    for tool in ["completion", "explain", "plan", "render", "top", "verify"] {
        assert!(help.contains(&format!("\n  kube-proxy {tool} ")), "{tool} is not in the help");
    }
    for (what, flag) in [
        ("bash", "--audit-interval"),
        ("zsh", "--audit-interval"),
        ("fish", "-l audit-interval"),
        ("elvish", "--audit-interval"),
        ("powershell", "--audit-interval"),
        ("man", "\\-\\-audit\\-interval"),
    ] {
        let printed = run_bare(&["completion", what]);
        assert_eq!((printed.code, printed.stderr.as_str()), (0, ""), "{what}");
        assert!(
            printed.stdout.contains(flag) && printed.stdout.contains("explain"),
            "{what}: {}",
            printed.stdout
        );
    }
    let page = run_bare(&["completion", "man", "explain"]).stdout;
    assert!(page.contains(".TH kube-proxy-explain 1") && page.contains("\\-\\-live"), "{page}");
    assert_eq!(run_bare(&["completion", "man", "nothing"]).code, 1);
    let unknown = run_bare(&["completion", "tcsh"]);
    assert!(unknown.code != 0 && unknown.stderr.contains("invalid value 'tcsh'"), "{}", unknown.stderr);
}

#[test]
fn bash_completes_flags() {
    let script = run_bare(&["completion", "bash"]).stdout;
    let complete = "COMP_WORDS=(kube-proxy explain --li) COMP_CWORD=2; _kube__proxy kube-proxy --li explain; echo \"${COMPREPLY[@]}\"";
    let output = std::process::Command::new("bash")
        .arg("-c")
        .arg(format!("{script}\n{complete}"))
        .output()
        .expect("bash");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!((stdout.trim(), stderr.as_ref()), ("--live", ""));
}
