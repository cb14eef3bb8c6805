//! `kube-proxy top`: services and endpoints by new connections per second.
//!
//! ```text
//!   the running proxy ─▶ ConnectionsPage ─▶ Meter ─▶ Rates ─▶ TopView ─▶ screen
//!                                                      └▶ report (--once)  ▲ keys
//! ```
//!
//! Everything but `terminal` is pure: the screen is drawn from the view into a buffer of any size.

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
use proxy::debug_api::CONNECTIONS;
use settings::duration::Duration as GoDuration;

use super::{arguments, running};
use meter::Meter;

/// Each request costs the proxy CPU time, and faster updates are not readable.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

const EXAMPLES: &str = "\
Keys:
  ↑ ↓ j k PgUp PgDn   move              s   sort by rate, total or name
  Enter →             endpoints         r   reverse the order
  Esc ←               back              /   search by name or address
  q Ctrl-C            quit              ?   help

Examples:
  kube-proxy top                                  services by new connections on this node
  kube-proxy top --interval 5s                    update every five seconds
  kube-proxy top --once                           print a table of one second and exit
  kube-proxy top --once --interval 10s -o json    for scripts
  kube-proxy top --once --interval 0 -o json      totals only, without waiting

Queries the proxy that runs on this node at its --metrics-bind-address, or the metrics address of its --config. \
Connections are counted in nftables and ipvs mode, for service ports that have endpoints.";

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
                .help("Time between two reads of the counters, at least 100ms; with --once also 0, for totals only"),
        )
        .arg(
            Arg::new("once")
                .long("once")
                .action(ArgAction::SetTrue)
                .help("Read the counters twice, one interval apart, print the rates and exit"),
        )
        .arg(
            Arg::new("output")
                .short('o')
                .long("output")
                .value_name("format")
                .value_parser(PossibleValuesParser::new(["text", "json"]))
                .requires("once")
                .help("Output format of --once: text (the default) or json"),
        )
        .args(arguments::of_subcommand())
}

fn interval(text: &str) -> Result<Duration, String> {
    GoDuration::parse(text)?.to_std().ok_or_else(|| "must not be negative".to_owned())
}

pub fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let interval = matches.get_one::<Duration>("interval").copied().unwrap_or(Duration::from_secs(1));
    let once = matches.get_flag("once");
    let is_valid = interval >= MIN_INTERVAL || (once && interval.is_zero());
    if !is_valid {
        bail!("--interval must be at least 100ms; with --once it may be 0, for totals without rates");
    }
    let (config, _) = arguments::configuration(matches)?;
    let address = config.metrics_bind_address;
    if once {
        let as_json = matches.get_one::<String>("output").is_some_and(|format| format == "json");
        return print_once(address, interval, as_json);
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        bail!("standard input and output must be a terminal; use --once to print to a pipe or a file");
    }
    terminal::show(address, interval)?;
    Ok(ExitCode::SUCCESS)
}

fn print_once(address: SocketAddr, interval: Duration, as_json: bool) -> anyhow::Result<ExitCode> {
    let mut meter = Meter::default();
    let (first, at, good_for) = read_counters(address)?;
    let mut rates = meter.update(first, at);
    if !interval.is_zero() {
        sleep(interval.max(good_for));
        let (second, at, _) = read_counters(address)?;
        rates = meter.update(second, at);
    }
    let text = if as_json { report::json(&rates)? } else { report::text(&rates) };
    super::print(&text);
    Ok(ExitCode::SUCCESS)
}

/// The counters, when the proxy read them, and for how long it will return the same ones.
fn read_counters(address: SocketAddr) -> anyhow::Result<(ConnectionsPage, Duration, Duration)> {
    let answer = running::ask(address, CONNECTIONS)?;
    let page: ConnectionsPage = serde_json::from_slice(&answer)
        .context("reading the answer of the proxy: is it a Sluice of the same version?")?;
    let (counted_at, good_for) = (page.counted_at, page.good_for);
    Ok((page, counted_at, good_for))
}
