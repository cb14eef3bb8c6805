//! The terminal: keys in, screens out. It is given back as it was, whatever happens.

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

use super::meter::{Meter, Picture};
use super::state::{KeyOutcome, TopView};
use super::{look, screen};

/// Until news are shown that no key has asked for.
const TICK: Duration = Duration::from_millis(50);

/// Shows what happens until somebody has seen enough.
pub fn show(address: SocketAddr, interval: Duration) -> anyhow::Result<()> {
    // A proxy that cannot answer is better told of before the screen is taken.
    let mut meter = Meter::default();
    let (first, at, good_for) = look(address)?;
    let mut pause = interval.max(good_for);
    let mut state = TopView::default();
    state.learn(Ok(meter.look(first, at)));

    let (send, pictures) = channel();
    let keep_looking = move || {
        loop {
            thread::sleep(pause);
            let seen = look(address).map_err(|error| format!("{address}: {}", error.root_cause()));
            pause = interval.max(seen.as_ref().map_or(Duration::ZERO, |(.., good_for)| *good_for));
            let picture = seen.map(|(page, at, _)| meter.look(page, at));
            if send.send(picture).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("look".to_owned()).spawn(keep_looking).context("starting a thread")?;

    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, ended.clone()).context("waiting for signals")?;
    }
    // From here on a panic gives the terminal back, too.
    let mut terminal = ratatui::try_init().context("taking the terminal")?;
    let outcome = run(&mut terminal, &mut state, &pictures, &ended);
    ratatui::try_restore().context("giving the terminal back")?;
    outcome.context("drawing on the terminal")
}

fn run(
    terminal: &mut DefaultTerminal,
    state: &mut TopView,
    pictures: &Receiver<Result<Picture, String>>,
    ended: &AtomicBool,
) -> io::Result<()> {
    let has_colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    loop {
        terminal.draw(|frame| {
            screen::draw(state, frame.area(), frame.buffer_mut());
            if !has_colours {
                screen::without_colours(frame.buffer_mut());
            }
        })?;
        let mut has_news = false;
        while !has_news {
            if ended.load(Ordering::Relaxed) {
                return Ok(());
            }
            match pictures.try_recv() {
                Ok(picture) => {
                    state.learn(picture);
                    has_news = true;
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return Err(io::Error::other("nobody looks any more")),
            }
            if event::poll(if has_news { Duration::ZERO } else { TICK })? {
                has_news = true;
                if let Event::Key(key) = event::read()?
                    && state.hear(key) == KeyOutcome::Quit
                {
                    return Ok(());
                }
            }
        }
    }
}
