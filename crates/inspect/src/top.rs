//! `kube-proxy top`: services and endpoints by new connections per second.
//!
//! ```text
//!   the running proxy ─▶ ConnectionsPage ─▶ Meter ─▶ Picture ─▶ State ─▶ screen
//!                                             └▶ report (--once)   ▲ keys
//! ```
//!
//! Everything but `terminal` is pure: a screen is drawn into a buffer from a state, whatever its size.

mod meter;
mod report;
mod screen;
mod state;
mod terminal;
mod text;

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches, Command};
use proxy::connections::ConnectionsPage;
use settings::duration::Duration as GoDuration;

use super::{desired, running};
use meter::Meter;

/// More often than this nobody can read, and each look takes the time of the proxy.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

const EXAMPLES: &str = "\
Keys:
  ↑ ↓ j k PgUp PgDn   move              s   sort by rate, total or name
  Enter →             endpoints         r   turn the order around
  Esc ←               back              /   search by name or address
  q Ctrl-C            quit              ?   help

Examples:
  kube-proxy top                                  what gets connections on this node right now
  kube-proxy top --interval 5s                    a calmer view
  kube-proxy top --once                           the same as a plain table, over one second
  kube-proxy top --once --interval 10s -o json    for scripts
  kube-proxy top --once --interval 0 -o json      counts only, without waiting

Asks the proxy that runs on this node at its --metrics-bind-address, or the one that its --config says. Connections are \
counted in nftables mode only, for service ports that have endpoints.";

pub fn command() -> Command {
    Command::new("top")
        .about("Show services and endpoints by new connections per second")
        .after_help(EXAMPLES)
        .arg(
            Arg::new("interval")
                .long("interval")
                .value_name("duration")
                .value_parser(interval)
                .default_value("1s")
                .help("Time between two looks at the counters, at least 100ms; with --once also 0, for counts only"),
        )
        .arg(
            Arg::new("once")
                .long("once")
                .action(ArgAction::SetTrue)
                .help("Look twice, one interval apart, print what was seen and exit"),
        )
        .arg(
            Arg::new("output")
                .short('o')
                .long("output")
                .value_name("format")
                .value_parser(PossibleValuesParser::new(["text", "json"]))
                .requires("once")
                .help("What to print with --once: text (the default) or json"),
        )
        .args(desired::arguments())
}

fn interval(text: &str) -> Result<Duration, String> {
    GoDuration::parse(text)?.to_std().ok_or_else(|| "must not be negative".to_owned())
}

pub fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let interval = matches.get_one::<Duration>("interval").copied().unwrap_or(Duration::from_secs(1));
    let once = matches.get_flag("once");
    let is_sensible = interval >= SHORTEST_INTERVAL || (once && interval.is_zero());
    if !is_sensible {
        bail!("--interval must be at least 100ms; with --once it may be 0, for counts without rates");
    }
    let (config, _) = desired::configuration(matches)?;
    let address = config.metrics_bind_address;
    if once {
        let as_json = matches.get_one::<String>("output").is_some_and(|format| format == "json");
        return print_once(address, interval, as_json);
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        bail!("there is no terminal to draw on; kube-proxy top --once prints instead");
    }
    terminal::show(address, interval)?;
    Ok(ExitCode::SUCCESS)
}

fn print_once(address: SocketAddr, interval: Duration, as_json: bool) -> anyhow::Result<ExitCode> {
    let mut meter = Meter::default();
    let (first, at, good_for) = look(address)?;
    let mut picture = meter.look(first, at);
    if !interval.is_zero() {
        sleep(interval.max(good_for));
        let (second, at, _) = look(address)?;
        picture = meter.look(second, at);
    }
    let text = if as_json { report::json(&picture)? } else { report::text(&picture) };
    super::print(&text);
    Ok(ExitCode::SUCCESS)
}

/// What the kernel has counted, when, and until when there will be nothing new.
fn look(address: SocketAddr) -> anyhow::Result<(ConnectionsPage, Duration, Duration)> {
    let answer = running::ask(address, "connections")?;
    let page: ConnectionsPage = serde_json::from_slice(&answer)
        .context("reading what the proxy has counted: is it a Sluice of this version?")?;
    let (counted_at, good_for) = (page.counted_at, page.good_for);
    Ok((page, counted_at, good_for))
}
