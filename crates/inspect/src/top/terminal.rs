//! The terminal: reads keys and draws screens. Restores the terminal on every exit, also on a panic.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use crossterm::event::{self, Event};
use ratatui::DefaultTerminal;
use signal_hook::consts::{SIGHUP, SIGTERM};

use super::meter::{Meter, Rates};
use super::state::{KeyOutcome, TopView};
use super::{read_counters, screen};

/// How often to check for new rates while no key is pressed.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Runs until the user quits or a signal arrives.
pub fn show(address: SocketAddr, interval: Duration) -> anyhow::Result<()> {
    // If the proxy cannot answer, fail before taking over the terminal.
    let mut meter = Meter::default();
    let (first, at, good_for) = read_counters(address)?;
    let mut pause = interval.max(good_for);
    let mut state = TopView::default();
    state.update(Ok(meter.update(first, at)));

    let (sender, results) = channel();
    let keep_reading = move || {
        loop {
            thread::sleep(pause);
            let result = read_counters(address).map_err(|error| format!("{address}: {}", error.root_cause()));
            pause = interval.max(result.as_ref().map_or(Duration::ZERO, |(.., good_for)| *good_for));
            let rates = result.map(|(page, at, _)| meter.update(page, at));
            if sender.send(rates).is_err() {
                return;
            }
        }
    };
    thread::Builder::new()
        .name("read-counters".to_owned())
        .spawn(keep_reading)
        .context("starting a thread")?;

    let is_terminated = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, is_terminated.clone()).context("registering signal handlers")?;
    }
    // This also installs a panic hook that restores the terminal.
    let mut terminal = ratatui::try_init().context("setting up the terminal")?;
    let outcome = run(&mut terminal, &mut state, &results, &is_terminated);
    ratatui::try_restore().context("restoring the terminal")?;
    outcome.context("drawing on the terminal")
}

fn run(
    terminal: &mut DefaultTerminal,
    state: &mut TopView,
    results: &Receiver<Result<Rates, String>>,
    is_terminated: &AtomicBool,
) -> io::Result<()> {
    let has_colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    loop {
        terminal.draw(|frame| {
            screen::draw(state, frame.area(), frame.buffer_mut());
            if !has_colours {
                screen::without_colours(frame.buffer_mut());
            }
        })?;
        let mut needs_redraw = false;
        while !needs_redraw {
            if is_terminated.load(Ordering::Relaxed) {
                return Ok(());
            }
            match results.try_recv() {
                Ok(result) => {
                    state.update(result);
                    needs_redraw = true;
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => {
                    return Err(io::Error::other("the thread that reads counters has ended"));
                }
            }
            if event::poll(if needs_redraw { Duration::ZERO } else { POLL_INTERVAL })? {
                needs_redraw = true;
                if let Event::Key(key) = event::read()?
                    && state.handle_key(key) == KeyOutcome::Quit
                {
                    return Ok(());
                }
            }
        }
    }
}
