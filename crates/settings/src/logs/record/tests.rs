use super::*;

fn record(fields: Vec<(&'static str, Value)>) -> Record {
    let (file, message) = ("crates/proxy/src/logs/record.rs", "It \"happened\"".to_owned());
    Record { verbosity: 2, file, line: 49, message, fields, ..Record::default() }
}

fn text(value: &str) -> Value {
    Value::Text(value.to_owned())
}

fn time() -> Zoned {
    "2026-11-15T18:27:24.0725899+01:00[+01:00]".parse().unwrap()
}

#[test]
fn the_text_format_is_that_of_klog() {
    let line = record(vec![("file", text("/tmp/x")), ("count", Value::Json("3".to_owned()))]);
    let want =
        "I1115 18:27:24.072589    6131 record.rs:49] \"It \\\"happened\\\"\" file=\"/tmp/x\" count=3\n";
    assert_eq!(line.text(&time(), 6131), want);
}

#[test]
fn the_severity_is_the_first_letter() {
    for (severity, want) in [(Severity::Info, 'I'), (Severity::Warning, 'W'), (Severity::Error, 'E')] {
        let line = Record { severity, ..record(vec![]) };
        assert!(line.text(&time(), 1).starts_with(want), "{severity:?}");
    }
}

#[test]
fn a_long_process_id_is_not_truncated() {
    assert!(record(vec![]).text(&time(), 12_345_678).contains(" 12345678 record.rs"));
}

#[test]
fn values_of_several_lines_are_indented() {
    for (value, want) in [
        ("a\nb", "err=<\n\ta\n\tb\n >"),
        ("a\nb\n", "err=<\n\ta\n\tb\n >"),
        ("a\n\n", "err=<\n\ta\n\t\n >"),
        ("\n", "err=<\n\t\n >"),
        ("tab\tquote\"", r#"err="tab\tquote\"""#),
        ("", r#"err="""#),
    ] {
        let line = record(vec![("err", text(value)), ("k", text("v"))]);
        let tail = format!("{want} k=\"v\"\n");
        assert!(line.text(&time(), 1).ends_with(&tail), "{value:?}: {}", line.text(&time(), 1));
    }
}

#[test]
fn the_json_format_has_the_key_order_of_klog() {
    let fields = || vec![("err", text("a\n\"b\"")), ("gates", Value::Json("{\"A\":true}".to_owned()))];
    let tail = r#""err":"a\n\"b\"","gates":{"A":true}}"#.to_owned() + "\n";
    let head = r#"{"ts":1794763644072.5898,"caller":"logs/record.rs:49","msg":"It \"happened\"","#;
    assert_eq!(record(fields()).json(&time()), format!("{head}\"v\":2,{tail}"));
    let error = Record { severity: Severity::Error, ..record(fields()) };
    assert_eq!(error.json(&time()), format!("{head}{tail}"));
}

#[test]
fn callers_are_named_by_directory_and_file() {
    for (file, want) in [
        ("crates/proxy/src/main.rs", "proxy/main.rs"),
        ("crates/proxy/src/config/complete.rs", "config/complete.rs"),
        ("main.rs", "main.rs"),
    ] {
        assert_eq!(caller(file), want);
    }
}
