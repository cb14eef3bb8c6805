use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::stream::tests::Captured;
use super::*;

/// The messages that a logger with these settings writes while `body` runs, without the header of each line.
///
/// One at a time: tracing computes the maximum level of all subscribers of the process, and concurrent computations may
/// end with that of an earlier one.
fn logged(settings: LogSettings, body: impl FnOnce(&Logs)) -> Vec<String> {
    static LOCK: Mutex<()> = Mutex::new(());
    let _guard = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let seen = Captured::default();
    let logs = Logs::to(Streams::to(Box::new(seen.clone()), None));
    logs.apply(settings).unwrap();
    tracing::subscriber::with_default(Klog(logs.clone()), || body(&logs));
    seen.text().lines().map(|line| line.split_once("] ").unwrap_or(("", line)).1.to_owned()).collect()
}

fn at(verbosity: u32) -> LogSettings {
    LogSettings { verbosity, ..LogSettings::default() }
}

fn log_one_of_each() {
    tracing::info!(v = 0, "zero");
    tracing::info!(v = 1, "one");
    tracing::debug!(v = 2, "two");
    tracing::debug!(v = 3, "three");
    tracing::trace!(v = 5, "five");
    tracing::warn!("warning");
    tracing::error!("error");
}

#[test]
fn verbosity_decides_what_is_logged() {
    for (verbosity, want) in [
        (0, "zero warning error"),
        (1, "zero one warning error"),
        (2, "zero one two warning error"),
        (3, "zero one two three warning error"),
        (4, "zero one two three warning error"),
        (5, "zero one two three five warning error"),
    ] {
        let lines = logged(at(verbosity), |_| log_one_of_each());
        let want: Vec<_> = want.split(' ').map(|word| format!("{word:?}")).collect();
        assert_eq!(lines, want, "at {verbosity}");
    }
}

#[test]
fn verbosity_can_change_while_running() {
    let lines = logged(at(0), |logs| {
        tracing::debug!(v = 2, "before");
        logs.set_verbosity(2);
        tracing::debug!(v = 2, "between");
        logs.set_verbosity(0);
        tracing::debug!(v = 2, "after");
    });
    assert_eq!(lines, [r#""between""#]);
}

#[test]
fn vmodule_raises_the_verbosity_of_matching_files_only() {
    for (pattern, level, want) in [
        ("tests", 2, vec![r#""two""#]),
        ("test?", 9, vec![r#""two""#]),
        ("tests", 1, vec![]),
        ("other", 9, vec![]),
    ] {
        let settings = LogSettings { vmodule: vec![(pattern.to_owned(), level)], ..at(0) };
        let lines = logged(settings, |_| tracing::debug!(v = 2, "two"));
        assert_eq!(lines, want, "{pattern}={level}");
    }
}

#[test]
fn disabled_levels_are_filtered_by_the_hint() {
    for (verbosity, vmodule, want) in [
        (0, None, LevelFilter::INFO),
        (1, None, LevelFilter::INFO),
        (2, None, LevelFilter::DEBUG),
        (3, None, LevelFilter::DEBUG),
        (4, None, LevelFilter::TRACE),
        (0, Some(3), LevelFilter::DEBUG),
    ] {
        let logs = Logs::to(Streams::to(Box::new(Captured::default()), None));
        let vmodule = vmodule.map(|level| ("x".to_owned(), level)).into_iter().collect();
        logs.apply(LogSettings { vmodule, ..at(verbosity) }).unwrap();
        assert_eq!(Klog(logs).max_level_hint(), Some(want), "at {verbosity}");
    }
}

#[test]
fn events_without_a_verbosity_are_logged_at_high_verbosities_only() {
    let log = |_: &Logs| {
        tracing::info!("info");
        tracing::debug!("debug");
        tracing::trace!("trace");
    };
    assert_eq!(logged(at(5), log), [r#""info""#]);
    assert_eq!(logged(at(6), log), [r#""info""#, r#""debug""#]);
    assert_eq!(logged(at(8), log), [r#""info""#, r#""debug""#, r#""trace""#]);
}

#[test]
fn fields_of_every_type_are_logged() {
    let error = io::Error::other("broken");
    let lines = logged(at(2), |_| {
        tracing::debug!(v = 2, ipFamily = %"IPv4", count = 3, ratio = 1.5, ok = true, "kinds");
        tracing::info!(names = ?["a", "b"], elapsed = ?Duration::from_millis(1500), "debugged");
        tracing::info!("primary ipFamily" = "IPv6", "spaced");
        tracing::error!(service = "ns/name", err = %error, "failed");
        tracing::info!(service = "ns/name", err = %error, "no error");
        tracing::info!(target: PLAIN, "FLAG: --x={:?}", "y");
    });
    assert_eq!(
        lines,
        [
            r#""kinds" ipFamily="IPv4" count=3 ratio=1.5 ok=true"#,
            r#""debugged" names=["a","b"] elapsed="1.5s""#,
            r#""spaced" primary ipFamily="IPv6""#,
            r#""failed" err="broken" service="ns/name""#,
            r#""no error" service="ns/name" err="broken""#,
            r#"FLAG: --x="y""#,
        ]
    );
}

#[test]
fn json_lines_carry_the_verbosity_unless_they_are_errors() {
    let settings = LogSettings { format: Format::Json, ..at(2) };
    let lines = logged(settings, |_| {
        tracing::debug!(v = 2, file = "x", "two");
        tracing::error!(err = "broken", "failed");
    });
    let tails: Vec<_> = lines.iter().map(|line| line.split_once(r#","msg":"#).unwrap().1).collect();
    assert_eq!(tails, [r#""two","v":2,"file":"x"}"#, r#""failed","err":"broken"}"#]);
}

#[test]
fn the_buffer_is_flushed_periodically() {
    let info = Captured::default();
    let sink = Some((Box::new(info.clone()) as Box<_>, 1000));
    let logs = Logs::to(Streams::to(Box::new(Captured::default()), sink));
    logs.flush_every(Duration::from_millis(5)).unwrap();
    tracing::subscriber::with_default(Klog(logs), || tracing::info!("waiting"));
    let deadline = Instant::now() + Duration::from_secs(60);
    while info.text().is_empty() {
        assert!(Instant::now() < deadline, "nothing was flushed");
        std::thread::yield_now();
    }
    assert!(info.text().ends_with("\"waiting\"\n"));
}
